"""`slipstream evaluate`: what a drafter brings on prompt sets, in real speculative decoding beside plain decoding."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.config import COUPLED, EMBEDDED_MODEL, SchedulerSettings, SettingError, SpeculativeSettings
from slipstream.simulation.output_files import check_outputs
from slipstream.training.target_arguments import add_target_arguments, target_settings

if TYPE_CHECKING:
    from slipstream.training.evaluation import Evaluation
    from slipstream.training.train_bar import StageBar

MIN_WIDTH = 132


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream evaluate`."""
    parser.add_argument(
        "drafter", nargs="?", metavar="FOLDER", help="a dspark or dflash drafter; or the name of one that ships"
    )
    parser.add_argument("--model", default=EMBEDDED_MODEL, metavar="MODEL", help="the target, as for serve")
    parser.add_argument("--speculative-config", metavar="JSON", help="in place of a folder: any method, as for serve")
    parser.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="JSON",
        help="a further --speculative-config to measure in turn with it, such as a chain; repeatable",
    )
    parser.add_argument(
        "--prompts",
        action="append",
        default=[],
        metavar="FILE",
        help="JSONL; each is a set (default: built-in prompts); repeatable",
    )
    parser.add_argument("--num-prompts", type=int, metavar="N", help="of each set, the first ones (default: all)")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="of an answer (default: 256)")
    parser.add_argument("--temperature", type=float, action="append", metavar="T", help="repeatable (default: 0 and 1)")
    parser.add_argument(
        "--concurrency", default="1", metavar="N,…", help="requests at a time, one or several numbers (default: 1)"
    )
    parser.add_argument(
        "--as-served",
        action="store_true",
        help="decide each step as serve does, by costs measured here (default: verify every draft, so that acceptance "
        "is that of all)",
    )
    parser.add_argument(
        "--profile-seconds",
        type=float,
        default=SchedulerSettings().profile_seconds,
        metavar="S",
        help="with --as-served: what measuring costs may take, for each way (default: 5)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of sampled answers (default: 0)")
    parser.add_argument("--no-plain", action="store_true", help="do not decode plainly too; then there is no speed-up")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    add_target_arguments(parser)
    parser.add_argument("--no-progress", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Returns 0; 1 for failed requests or drafts; 2 for a model or drafter that cannot be used. Raises SettingError."""
    temperatures = sorted(set(args.temperature or [0.0, 1.0]))
    for temperature in temperatures:
        if not 0.0 <= temperature < float("inf"):
            raise SettingError(f"--temperature must be from 0 on, got {temperature:g}")
    for name in ("num_prompts", "max_tokens"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise SettingError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if not 0.0 < args.profile_seconds < float("inf"):
        raise SettingError(f"--profile-seconds must be above 0, got {args.profile_seconds:g}")
    levels = _concurrency(args.concurrency)
    check_outputs({"--json": args.json}, {f"--prompts {path}": path for path in args.prompts})
    from slipstream.engine.engine import EngineDeadError
    from slipstream.models.config import ModelLoadError
    from slipstream.training.train_bar import StageBar

    try:
        ways = _ways(args)
        with StageBar(is_shown=not args.no_progress) as bar:
            return _run(args, ways, temperatures, levels, bar)
    except ModelLoadError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 2
    except EngineDeadError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 1


def _concurrency(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise SettingError(f"--concurrency takes whole numbers from 1 on, such as 1,4,16; got {text!r}")
    return sorted({int(word) for word in words})


def _ways(args: argparse.Namespace) -> dict[str, SpeculativeSettings]:
    """What drafts, by name."""
    from slipstream.config import parse_speculative_config
    from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint
    from slipstream.speculation.shipped import drafter_folder

    if (args.drafter is None) == (args.speculative_config is None):
        raise SettingError("give the folder of a drafter, or --speculative-config, and not both")
    found = []
    if args.drafter is not None:
        folder = drafter_folder(args.drafter)
        method = open_drafter_checkpoint(folder).config.algorithm.value
        found.append(SpeculativeSettings(method=method, model=str(folder)))
    for text in (*([] if args.speculative_config is None else [args.speculative_config]), *args.beside):
        settings = parse_speculative_config(text)
        if settings is None or settings.method == "forced":
            raise SettingError(
                f"{text!r} drafts nothing of its own; plain decoding is measured unless --no-plain is given"
            )
        found.append(settings)
    ways = {_name(settings): settings for settings in found}
    if len(ways) < len(found):
        names = ", ".join(map(_name, found))
        raise SettingError(
            "--beside: the ways to draft must differ in method, num_speculative_tokens or rejection_sample_method, "
            f"got {names}"
        )
    return ways


def _name(settings: SpeculativeSettings) -> str:
    """What the tables call a way to draft."""
    words = ["+".join(settings.drafters) or settings.method]
    if settings.num_speculative_tokens is not None:
        words.append(f"K={settings.num_speculative_tokens}")
    if settings.rejection_sample_method != COUPLED:
        words.append(settings.rejection_sample_method)
    return " ".join(words)


def _run(
    args: argparse.Namespace,
    ways: dict[str, SpeculativeSettings],
    temperatures: list[float],
    levels: list[int],
    bar: StageBar,
) -> int:
    from slipstream.bench.dataset import BUILT_IN_PROMPTS
    from slipstream.bench.model_systems import ModelFactory
    from slipstream.training.evaluation import Conditions, PromptSet, evaluate, means
    from slipstream.training.measured_decoding import measuring_settings, serving_settings
    from slipstream.training.measuring_prompts import prompts_of

    sets = [PromptSet(Path(path).stem, prompts_of(path)[: args.num_prompts]) for path in args.prompts]
    sets = sets or [PromptSet("built-in", list(BUILT_IN_PROMPTS)[: args.num_prompts])]
    model = target_settings(args)
    factory = ModelFactory(model, progress=not args.no_progress)
    total = len(temperatures) * len(levels) * sum(len(part.texts) for part in sets)
    found: list[Evaluation] = []
    done = 0

    def report(before: int, count: int) -> None:
        bar.report("Prompts", before + count, total)

    for temperature in temperatures:
        for concurrency in levels:
            conditions = Conditions(temperature, concurrency, args.max_tokens, args.seed)
            settings = (
                serving_settings(model, args.profile_seconds)
                if args.as_served
                else measuring_settings(model, None, concurrency, verify_all=True)
            )
            for part in sets:
                found += evaluate(
                    factory,
                    settings,
                    ways,
                    part,
                    conditions,
                    with_plain=not args.no_plain,
                    on_progress=partial(report, done),
                )
                done += len(part.texts)
    _print(found, factory.description)
    if args.json is not None:
        values = {
            "command": args.command_line,
            "model": factory.description,
            "as_served": args.as_served,
            "max_tokens": args.max_tokens,
            "sets": [evaluation.to_json() for evaluation in found],
            "means": [asdict(mean) for mean in means(found)],
        }
        Path(args.json).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    return 1 if any(evaluation.failures or evaluation.draft_failures for evaluation in found) else 0


def _print(found: list[Evaluation], description: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from slipstream.training.evaluation import COLUMNS, means

    console = Console()
    console.width = max(console.width, MIN_WIDTH)
    console.print(description, highlight=False, markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("prompts", "drafts by") else "right")
    several = [mean for mean in means(found) if mean.num_sets > 1]
    for row in [*(evaluation.row() for evaluation in found), *(mean.row() for mean in several)]:
        table.add_row(*row)
    console.print(table)
    depth = max((len(evaluation.conditional) for evaluation in found), default=0)
    positions = Table(title="Acceptance by position: given the drafts before, and all up to it", title_justify="left",
                      box=None, pad_edge=False)  # fmt: skip
    for column in ("prompts", "T", "at once", "drafts by", *(str(k + 1) for k in range(depth))):
        positions.add_column(column, justify="left" if column in ("prompts", "drafts by") else "right")
    for evaluation in found:
        positions.add_row(*evaluation.position_row(depth))
    console.print(positions)
    for line in (evaluation.faults_line() for evaluation in found):
        if line is not None:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
