"""`slipstream evaluate`: what a drafter brings on prompt sets, in real speculative decoding beside plain decoding."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.config import EMBEDDED_MODEL, SettingError, SpeculativeSettings

if TYPE_CHECKING:
    from slipstream.training.evaluation import Evaluation
    from slipstream.training.train_bar import StageBar

MIN_WIDTH = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream evaluate`."""
    parser.add_argument("drafter", nargs="?", metavar="FOLDER", help="a dspark or dflash drafter")
    parser.add_argument("--model", default=EMBEDDED_MODEL, metavar="MODEL", help="the target, as for serve")
    parser.add_argument("--speculative-config", metavar="JSON", help="in place of a folder: any method, as for serve")
    parser.add_argument(
        "--prompts",
        action="append",
        default=[],
        metavar="FILE",
        help="JSONL; each is a set (default: built-in prompts)",
    )
    parser.add_argument("--num-prompts", type=int, metavar="N", help="of each set, the first ones (default: all)")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="of an answer (default: 256)")
    parser.add_argument("--temperature", type=float, action="append", metavar="T", help="repeatable (default: 0 and 1)")
    parser.add_argument("--concurrency", type=int, default=1, metavar="N", help="requests at a time (default: 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of sampled answers (default: 0)")
    parser.add_argument("--no-plain", action="store_true", help="do not decode plainly too; then there is no speed-up")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--num-threads", type=int, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu or cuda (default: auto)")
    parser.add_argument("--dtype", default="auto", metavar="TYPE", help="number format (default: auto)")
    parser.add_argument("--no-progress", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Returns 0; 1 when requests failed; 2 for a model or drafter that cannot be used. Raises SettingError."""
    temperatures = sorted(set(args.temperature or [0.0, 1.0]))
    for temperature in temperatures:
        if not 0.0 <= temperature < float("inf"):
            raise SettingError(f"--temperature must be from 0 on, got {temperature:g}")
    for name in ("num_prompts", "max_tokens", "concurrency"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise SettingError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    from slipstream.engine.engine import EngineDeadError
    from slipstream.models.config import ModelLoadError
    from slipstream.training.train_bar import StageBar

    try:
        speculative = _speculative(args)
        with StageBar(is_shown=not args.no_progress) as bar:
            return _run(args, speculative, temperatures, bar)
    except ModelLoadError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 2
    except EngineDeadError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 1


def _speculative(args: argparse.Namespace) -> SpeculativeSettings:
    from slipstream.config import parse_speculative_config
    from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint

    if (args.drafter is None) == (args.speculative_config is None):
        raise SettingError("give the folder of a drafter, or --speculative-config, and not both")
    if args.drafter is not None:
        method = open_drafter_checkpoint(Path(args.drafter)).config.algorithm.value
        return SpeculativeSettings(method=method, model=args.drafter, num_speculative_tokens=None)
    settings = parse_speculative_config(args.speculative_config)
    if settings is None:
        raise SettingError("--speculative-config none: there is nothing to evaluate without drafts")
    return settings


def _run(args: argparse.Namespace, speculative: SpeculativeSettings, temperatures: list[float], bar: StageBar) -> int:
    from slipstream.bench.dataset import BUILT_IN_PROMPTS
    from slipstream.bench.model_systems import ModelFactory
    from slipstream.config import ModelSettings
    from slipstream.training.evaluation import PromptSet, evaluate
    from slipstream.training.measuring_prompts import prompts_of

    sets = [PromptSet(Path(path).stem, prompts_of(path)[: args.num_prompts]) for path in args.prompts]
    sets = sets or [PromptSet("built-in", list(BUILT_IN_PROMPTS)[: args.num_prompts])]
    model = ModelSettings(model=args.model, device=args.device, dtype=args.dtype, num_threads=args.num_threads)
    factory = ModelFactory(model, progress=not args.no_progress)
    total = len(temperatures) * sum(len(part.texts) for part in sets)
    found: list[Evaluation] = []

    def report(before: int, count: int) -> None:
        bar.report("Prompts", before + count, total)

    for temperature in temperatures:
        for part in sets:
            done = sum(evaluation.num_prompts for evaluation in found)
            found.append(
                evaluate(
                    factory,
                    model,
                    speculative,
                    part,
                    temperature=temperature,
                    max_tokens=args.max_tokens,
                    concurrency=args.concurrency,
                    seed=args.seed,
                    with_plain=not args.no_plain,
                    on_progress=partial(report, done),
                )
            )
    _print(found, factory.description)
    if args.json is not None:
        values = {"model": factory.description, "concurrency": args.concurrency, "sets": [e.to_json() for e in found]}
        Path(args.json).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    return 1 if any(evaluation.failures for evaluation in found) else 0


def _print(found: list[Evaluation], description: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from slipstream.training.evaluation import COLUMNS, means

    console = Console()
    console.width = max(console.width, MIN_WIDTH)
    console.print(description, highlight=False, markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in [*(evaluation.row() for evaluation in found), *means(found)]:
        table.add_row(*row)
    console.print(table)
    depth = max((len(evaluation.conditional) for evaluation in found), default=0)
    positions = Table(title="Acceptance by position: given the drafts before, and all up to it", title_justify="left",
                      box=None, pad_edge=False)  # fmt: skip
    for place, column in enumerate(("prompts", "T", *(str(k + 1) for k in range(depth)))):
        positions.add_column(column, justify="left" if place == 0 else "right")
    for evaluation in found:
        positions.add_row(*evaluation.position_row(depth))
    console.print(positions)
