"""`slipstream tune`: settings for a scenario or a recording, within limits."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.config import SettingError, shown
from slipstream.lab.simulate_command import MAX_PROCESSES, PROCESSES
from slipstream.lab.tune_limits import add_limit_arguments, limits_of

if TYPE_CHECKING:
    from slipstream.lab.tune_result import Trial
    from slipstream.lab.tune_subject import Subject

MAX_TRIALS = 100_000
FILE_WIDTH = 120
"""Columns of a table that goes to no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream tune`."""
    parser.add_argument("source", metavar="SOURCE", help="a scenario (.toml), or a recording that --record wrote")
    add_limit_arguments(parser)
    group = parser.add_argument_group("search")
    group.add_argument("--trials", type=int, default=60, metavar="N", help="settings to simulate (default: 60)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="another seed searches elsewhere (default: 0)")
    group.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="NAME=A,B,C",
        help="values to try for a setting, such as max_num_seqs=32,64 or composition=cost; repeatable",
    )
    group.add_argument(
        "--workers",
        type=int,
        default=PROCESSES,
        metavar="N",
        help=f"processes; changes no result (default: {PROCESSES})",
    )
    group = parser.add_argument_group("where to start")
    group.add_argument("--variant", metavar="NAME", help="of a scenario with several: the one that is tuned")
    group.add_argument(
        "--workload", metavar="NAME", help="only this one of a scenario's, by name or place (default: all)"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="over the scenario's file, as for simulate; repeatable",
    )
    parser.add_argument("--json", metavar="FILE", help="every number")
    parser.add_argument("--html", metavar="FILE", help="a page with the Pareto plot, that needs nothing else")
    parser.add_argument("--no-progress", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Returns 0; 1 when no setting keeps the limits, or a file could not be written. Raises SettingError for what
    cannot be tuned."""
    from rich.console import Console

    from slipstream.lab.report_files import FAILED, check_report_files, write_report_files
    from slipstream.lab.tune import tune
    from slipstream.lab.tune_report import TuneReport, print_report
    from slipstream.lab.tune_space import space_around

    for flag, number, most in (("--trials", args.trials, MAX_TRIALS), ("--workers", args.workers, MAX_PROCESSES)):
        if not 1 <= number <= most:
            raise SettingError(f"{flag} must be between 1 and {most}, got {shown(number)}")
    if not 0 <= args.seed < 1 << 32:
        raise SettingError(f"--seed must be between 0 and {(1 << 32) - 1}, got {shown(args.seed)}")
    check_report_files(args.json, args.html, source=args.source)
    subject = _subject(args)
    space = space_around(
        subject.start, most_at_once=subject.most_at_once, known_drafts=subject.known_drafts, asked=args.search
    )
    with _progress(args) as on_trial:
        tuning = tune(
            subject,
            space,
            limits_of(args),
            num_trials=args.trials,
            seed=args.seed,
            workers=args.workers,
            on_trial=on_trial,
        )
    report = TuneReport(subject, tuning, args.seed)
    console = Console()
    print_report(console if console.is_terminal else Console(width=max(console.width, FILE_WIDTH)), report)

    def page() -> str:
        from slipstream.lab.tune_html import html_of

        return html_of(report)

    failed = write_report_files(args.json, args.html, report.to_json, page)
    return failed or (0 if tuning.best.keeps_limits else FAILED)


def _subject(args: argparse.Namespace) -> Subject:
    if Path(args.source).suffix == ".toml":
        from slipstream.lab.scenario_file import load_scenario
        from slipstream.lab.tune_subject import scenario_subject

        return scenario_subject(load_scenario(args.source, args.set), args.variant, args.workload)
    for flag, given in (("--variant", args.variant), ("--workload", args.workload), ("--set", args.set)):
        if given:
            raise SettingError(f"{flag} belongs to scenarios; {args.source} is taken for a recording (no .toml)")
    from slipstream.lab.tune_recording import recording_subject
    from slipstream.simulation.recording_reader import read_recording

    return recording_subject(read_recording(Path(args.source)))


@contextmanager
def _progress(args: argparse.Namespace) -> Iterator[Callable[[Trial], None]]:
    """A bar on stderr where that is a terminal; it shows the best throughput so far."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = args.no_progress or not console.is_terminal
    best = 0.0
    with Progress(*columns, console=console, disable=hidden, transient=True) as progress:
        task = progress.add_task("tuning", total=args.trials)

        def on_trial(trial: Trial) -> None:
            nonlocal best
            if trial.keeps_limits:
                best = max(best, trial.throughput)
            known = f"best {best:.0f} tok/s" if best else "limits not kept yet"
            progress.update(task, advance=1, description=f"tuning, {known}")

        yield on_trial
