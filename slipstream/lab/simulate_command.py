"""`slipstream simulate`: a scenario in virtual time, its table, its JSON and its page."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slipstream.config import SettingError, shown

PROCESSES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

MAX_PROCESSES = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream simulate`."""
    parser.add_argument("scenario", metavar="SCENARIO", help="a .toml file; docs/simulation.md says what is in it")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="over the file: a scheduler setting, or TABLE.KEY such as machine.mixed_ms; repeatable",
    )
    parser.add_argument("--json", metavar="FILE", help="every number")
    parser.add_argument("--html", metavar="FILE", help="a page that needs nothing else, with every step drawn")
    parser.add_argument("--fit", action="store_true", help="fit again what the scenario fits, and print the values")
    parser.add_argument(
        "--processes", type=int, default=PROCESSES, metavar="N", help=f"runs at once (default: {PROCESSES})"
    )
    parser.add_argument("--no-progress", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 when a report could not be written; raises SettingError for a scenario that cannot work."""
    from rich.console import Console

    from slipstream.lab import fit
    from slipstream.lab.report_files import check_report_files, write_report_files
    from slipstream.lab.scenario_file import load_scenario
    from slipstream.lab.scenario_run import run as run_scenario
    from slipstream.lab.simulation_report import report_of
    from slipstream.lab.simulation_table import print_report

    if not 1 <= args.processes <= MAX_PROCESSES:
        raise SettingError(f"--processes must be between 1 and {MAX_PROCESSES}, got {shown(args.processes)}")
    scenario = load_scenario(args.scenario, args.set)
    check_report_files(args.json, args.html, scenario=args.scenario)
    console = Console()
    if args.fit:
        with _progress(args, "fitting", len(scenario.workloads)) as done:
            values = fit.fit_all(scenario, processes=args.processes, on_done=done)
        scenario = fit.with_fitted(scenario, values)
        console.print("[fit.values]", markup=False)
        for value in values:
            text = f"{json.dumps(value.workload, ensure_ascii=False)} = {value.value:g}  # error {value.error:.3f}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    with _progress(args, "simulating", len(scenario.workloads) * len(scenario.variants)) as done:
        result = run_scenario(scenario, processes=args.processes, keep_steps=args.html is not None, on_done=done)
    report = report_of(result)
    print_report(console, report)

    def page() -> str:
        from slipstream.lab.html_report import html_of

        return html_of(report)

    return write_report_files(args.json, args.html, report.to_json, page)


@contextmanager
def _progress(args: argparse.Namespace, title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = args.no_progress or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)
