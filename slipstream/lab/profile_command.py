"""`slipstream profile`: measure what steps cost on this machine, and keep it as a cost table."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.config import EMBEDDED_MODEL, NO_COST_TABLE, SettingError, check_settings
from slipstream.engine.flags import add_engine_arguments, given_engine_flags, settings_from_args
from slipstream.simulation.output_files import check_output

if TYPE_CHECKING:
    from rich.console import Console

    from slipstream.engine.profiling import Profile
    from slipstream.scheduler.cost_table import CostTable

SECONDS = 20.0
MAX_SECONDS = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream profile`."""
    parser.add_argument("model", nargs="?", default=EMBEDDED_MODEL, metavar="MODEL", help="as for serve")
    parser.add_argument("--output", metavar="FILE", help="where to write the cost table, JSON")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"measure so long at most (default: {SECONDS:g})"
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="of sampled rows; 0 is cheaper (default: 1)"
    )
    parser.add_argument("--no-progress", action="store_true")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Returns 0; 1 when the time was too short; 2 for a model that cannot be loaded. Raises SettingError."""
    _check(args)
    settings = settings_from_args(args, args.model, {"cost_table": NO_COST_TABLE})
    check_settings(settings)
    from rich.console import Console

    from slipstream.engine.build import build_engine
    from slipstream.engine.cost_table_files import write_cost_table
    from slipstream.engine.cost_tables import measured_here
    from slipstream.engine.profile_bar import profile_bar
    from slipstream.engine.profiling import CostProfiler
    from slipstream.engine.step_probe import StepProbe
    from slipstream.execution.executor import TorchExecutor
    from slipstream.models.config import ModelLoadError

    settings = replace(settings, scheduler=replace(settings.scheduler, commit_lag=0))  # steps are timed one by one
    try:
        built = build_engine(settings, progress=not args.no_progress)
    except ModelLoadError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 2
    executor = built.engine.executor
    if not isinstance(executor, TorchExecutor):
        raise AssertionError(f"an engine around a model runs a TorchExecutor, not a {type(executor).__name__}")
    profiler = CostProfiler(StepProbe(executor, temperature=args.temperature), built.resolution.scheduler)
    with profile_bar(args.seconds, is_shown=not args.no_progress) as on_progress:
        profiler.run(args.seconds, on_progress=on_progress)
    profile = profiler.profile()
    if profile is None:
        print(
            f"slipstream: --seconds {args.seconds:g} was too short to measure steps; try {4 * args.seconds:g}",
            file=sys.stderr,
        )
        return 1
    table = profile.table(measured_here(built.source, settings.model))
    console = Console()
    print_profile(console, profile, table)
    if args.output is not None:
        write_cost_table(table, args.output)
        console.print(f"Written to {args.output}", highlight=False, markup=False, soft_wrap=True)
    return 0


def print_profile(console: Console, profile: Profile, table: CostTable) -> None:
    """What was measured, and what became of it."""
    from rich.table import Table

    origin = table.provenance
    console.print(f"{origin.model} on {origin.machine}", highlight=False, markup=False, soft_wrap=True)
    passes = Table(title="Passes without sampling", title_justify="left", box=None, pad_edge=False)
    for column in ("requests", "rows of each", "context", "ms", "fit"):
        passes.add_column(column, justify="right")
    for shape, ms in profile.passes.items():
        error = profile.fit.errors[shape]
        cells = (str(shape.num_requests), str(shape.rows[0]), str(shape.context), f"{ms:.1f}", f"{error:+.1%}")
        passes.add_row(*cells)
    console.print(passes)
    other = Table(title="Beside them", title_justify="left", box=None, pad_edge=False)
    for column in ("what", "number", "ms"):
        other.add_column(column, justify="left" if column == "what" else "right")
    for count, ms in profile.sampling.items():
        other.add_row("logits and sampling, rows", str(count), f"{ms:.2f}")
    for drafted, ms in profile.draft.items():
        rows = f" of {drafted.num_query_rows} rows" if drafted.num_query_rows else ""
        other.add_row(f"drafter, requests{rows}", str(drafted.num_requests), f"{ms:.2f}")
    for count, ms in profile.host.items():
        other.add_row("scheduler and engine, requests", str(count), f"{ms:.2f}")
    attention = table.attention
    other.add_row("each request of a pass", "1", f"{attention.per_request_ms:.3f}")
    other.add_row("pairs of a row and a token it reads", "1000", f"{1e3 * attention.per_pair_ms:.3f}")
    console.print(other)
    for note in origin.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _check(args: argparse.Namespace) -> None:
    given = given_engine_flags(args)
    for name, hint in (("cost_table", "this command makes one"), ("profile_seconds", "use --seconds")):
        if name in given:
            raise SettingError(f"--{name.replace('_', '-')} has no meaning for profile: {hint}")
    if not 0.0 < args.seconds <= MAX_SECONDS:
        raise SettingError(f"--seconds must be above 0 and at most {MAX_SECONDS:g}, got {args.seconds:g}")
    if not 0.0 <= args.temperature < float("inf"):
        raise SettingError(f"--temperature must be from 0 on, got {args.temperature:g}; 0 is greedy")
    if args.output is not None:
        check_output("--output", args.output)
