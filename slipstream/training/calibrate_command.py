"""`slipstream calibrate`: fit a drafter's confidences to what the target really accepts, and keep the fit in it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.config import EMBEDDED_MODEL, SettingError, SpeculativeSettings
from slipstream.training.target_arguments import add_target_arguments, target_settings

if TYPE_CHECKING:
    from slipstream.speculation.formats.checkpoint import DrafterCheckpoint
    from slipstream.training.calibration_run import CalibrationResult
    from slipstream.training.train_bar import StageBar

NUM_EVENTS = 5000
MIN_WIDTH = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream calibrate`."""
    parser.add_argument("drafter", metavar="FOLDER", help="a dspark drafter; its config.json is rewritten")
    parser.add_argument("--model", default=EMBEDDED_MODEL, metavar="MODEL", help="the target, as for serve")
    parser.add_argument(
        "--prompts",
        action="append",
        default=[],
        metavar="FILE",
        help="JSONL with prompts that it was not trained on; repeatable (default: fresh ones of the recipe's kinds)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        action="append",
        metavar="T",
        help="of the requests; each gets a fit of its own; repeatable (default: 0 and 1)",
    )
    parser.add_argument(
        "--events",
        type=int,
        default=NUM_EVENTS,
        metavar="N",
        help=f"verified blocks to judge the fit by; as many more are fitted on (default: {NUM_EVENTS})",
    )
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="of an answer (default: 256)")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="requests at a time (default: 16)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and answers (default: 0)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--dry-run", action="store_true", help="print the figures, leave the drafter as it is")
    add_target_arguments(parser)
    parser.add_argument("--no-progress", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Returns 0; 2 for a model or drafter that cannot be used. Raises SettingError."""
    temperatures = sorted(set(args.temperature or [0.0, 1.0]))
    for temperature in temperatures:
        if not 0.0 <= temperature < float("inf"):
            raise SettingError(f"--temperature must be from 0 on, got {temperature:g}")
    for name in ("events", "max_tokens", "concurrency"):
        if getattr(args, name) < 1:
            raise SettingError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    from slipstream.engine.engine import EngineDeadError
    from slipstream.models.config import ModelLoadError
    from slipstream.training.train_bar import StageBar

    try:
        with StageBar(is_shown=not args.no_progress) as bar:
            return _run(args, temperatures, bar)
    except ModelLoadError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 2
    except EngineDeadError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace, temperatures: list[float], bar: StageBar) -> int:
    from slipstream.bench.model_systems import ModelFactory
    from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint
    from slipstream.training.calibration_run import calibrate
    from slipstream.training.measuring_prompts import calibration_prompts

    checkpoint = open_drafter_checkpoint(Path(args.drafter))
    if not checkpoint.config.has_confidence:
        raise SettingError(f"{args.drafter} has no confidence head, so there is nothing to calibrate")
    model = target_settings(args)
    factory = ModelFactory(model, progress=not args.no_progress)
    method = checkpoint.config.algorithm.value
    speculative = SpeculativeSettings(method=method, model=args.drafter, num_speculative_tokens=None)
    results = []
    for temperature in temperatures:
        prompts = calibration_prompts(args.prompts, checkpoint.config.training, args.seed)
        results.append(
            calibrate(
                factory,
                model,
                speculative,
                checkpoint.config,
                prompts,
                temperature=temperature,
                num_events=args.events,
                max_tokens=args.max_tokens,
                concurrency=args.concurrency,
                seed=args.seed,
                on_progress=partial(bar.report, f"Blocks at temperature {temperature:g}"),
            )
        )
    _print(results)
    if args.json is not None:
        Path(args.json).write_text(json.dumps([r.to_json() for r in results], indent=2) + "\n", encoding="utf-8")
    if not args.dry_run:
        _write(checkpoint, results, args.command_line)
    return 0


def _print(results: list[CalibrationResult]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.width = max(console.width, MIN_WIDTH)
    for result in results:
        table = Table(title=f"Temperature {result.temperature:g}", title_justify="left", box=None, pad_edge=False)
        for column in ("draft", "events", "divisor", "shift", "ECE", "after", "AUROC", "after", "Brier", "after"):
            table.add_column(column, justify="right")
        for row in result.rows():
            table.add_row(*row)
        console.print(table)


def _write(checkpoint: DrafterCheckpoint, results: list[CalibrationResult], command_line: str) -> None:
    import torch

    from slipstream.speculation.drafter_config import Calibration
    from slipstream.speculation.formats.checkpoint import write_drafter
    from slipstream.training.command_words import without_folders
    from slipstream.training.train_run import EXPORT_TYPE

    fitted = {
        r.temperature: Calibration(temperature=r.temperature, divisors=r.scaling.divisors, shifts=r.scaling.shifts)
        for r in results
    }
    kept = {c.temperature: c for c in checkpoint.config.calibrations} | fitted
    record: dict[str, Any] = dict(checkpoint.config.training)
    record["calibration"] = [result.to_json() for result in results]
    record["calibrated_by"] = without_folders(command_line)
    config = dataclasses.replace(checkpoint.config, calibrations=tuple(kept[t] for t in sorted(kept)), training=record)
    tensors = checkpoint.load(EXPORT_TYPE, torch.device("cpu")).state_dict()
    write_drafter(checkpoint.directory, config, tensors)
