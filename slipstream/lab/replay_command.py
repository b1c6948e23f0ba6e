"""`slipstream replay`: a recording through the scheduler, unchanged or under other settings."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from slipstream.bench.metrics import BenchResult
    from slipstream.lab.what_if import Outcome
    from slipstream.simulation.recording import Recording
    from slipstream.simulation.replay import Divergence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream replay`."""
    parser.add_argument("recording", metavar="RECORDING", help="a file that --record wrote")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of a setting, such as draft_budget=shared; repeatable",
    )
    parser.add_argument(
        "--fit-costs",
        action="store_true",
        help="model steps by a fit to the recorded ones, though the run had a cost table",
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 when unchanged settings gave other plans. Raises SettingError for what cannot be replayed."""
    from rich.console import Console

    from slipstream.config import SettingError
    from slipstream.lab import what_if
    from slipstream.simulation.recorded_requests import recorded_parts
    from slipstream.simulation.recording_reader import read_recording
    from slipstream.simulation.replay import first_divergence

    recording = read_recording(Path(args.recording))
    if args.fit_costs and not args.set:
        raise SettingError("--fit-costs says how to model other settings; give --set NAME=VALUE too")
    console = Console()
    print_heading(console, args.recording, recording)
    change = what_if.changed(recording.header, args.set) if args.set else None
    if change is not None and change.settings.scheduler.commit_lag != recording.header.commit_lag:
        console.print("With another commit_lag plans are made at other moments; none can be compared.", soft_wrap=True)
    else:
        replay = what_if.replay_of(recording, change)
        with _progress(args, "replaying", recording.num_steps) as step:
            found = first_divergence(
                recording, replay, only_rows=change is not None, on_step=lambda number: step(number + 1)
            )
        print_divergence(console, recording, found, None if change is None else change.text)
        if change is None:
            return 0 if found is None else 1
    assert change is not None
    total = 2 * sum(len(part.requests) for part in recorded_parts(recording))
    done = 0
    with _progress(args, "modelling", total) as step:

        def on_done() -> None:
            nonlocal done
            done += 1
            step(done)

        outcome = what_if.outcome_of(recording, change, use_fitted=args.fit_costs, on_done=on_done)
    print_outcome(console, outcome, change.text)
    return 0


def print_heading(console: Console, path: str, recording: Recording) -> None:
    """What the recording is."""
    from slipstream.lab.plan_words import counted
    from slipstream.simulation.recording import Added
    from slipstream.version import __version__

    header = recording.header
    config = header.config
    num_requests = sum(isinstance(event, Added) for event in recording.events)
    lines = [
        f"{path}: {header.model}, {header.date}",
        f"{counted(recording.num_steps, 'step')}, {counted(num_requests, 'request')}; B = "
        f"{config.max_num_batched_tokens}, S = {config.max_num_seqs}, K = {config.num_speculative_tokens} "
        f"({config.layout_name}, {config.draft_budget} budget), commit lag {header.commit_lag}",
    ]
    if recording.is_cut:
        lines.append("The recording was cut off: its run did not close it. What is there is used.")
    if header.version != __version__:
        lines.append(
            f"It was made by version {header.version}, this is {__version__}: plans may differ for that alone."
        )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_divergence(console: Console, recording: Recording, found: Divergence | None, change: str | None) -> None:
    """The verdict, and both plans where they differ."""
    from rich.table import Table
    from rich.text import Text

    from slipstream.lab.plan_words import differences

    steps = recording.num_steps
    under = "" if change is None else f" with {change}"
    if found is None:
        same = "hold the same rows as the recorded ones" if change else "are equal to the recorded ones"
        console.print(f"All {steps} plans{under} {same}.", style="bold", highlight=False, markup=False, soft_wrap=True)
        return
    if found.recorded is None or found.replayed is None:
        text = f"Before step {found.step}{under}: a request is refused. {found.refusal}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    console.print(
        f"Step {found.step} of {steps}{under} is the first that is planned differently.",
        style="bold",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    table = Table(header_style="bold")
    for column in ("", "recorded", "replayed" if change is None else "changed"):
        table.add_column(column)
    for row in differences(found.recorded, found.replayed):
        table.add_row(*map(Text, row))
    console.print(table)


def print_outcome(console: Console, outcome: Outcome, change: str) -> None:
    """Measured beside modelled, and what the model assumes."""
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold", title="Modelled outcome (measured stands in the first column only)")
    table.add_column("")
    table.add_column("recorded,\nmeasured", justify="right")
    table.add_column("recorded settings,\nmodelled", justify="right")
    table.add_column("error of\nthe model", justify="right")
    table.add_column(Text(f"{change},\nmodelled"), justify="right")
    table.add_column("change", justify="right")
    for name, read in _FIGURES:
        values = [read(result) for result in (outcome.recorded, outcome.modelled, outcome.modelled_change)]
        table.add_row(
            name,
            _number(values[0]),
            _number(values[1]),
            _change(values[0], values[1]),
            _number(values[2]),
            _change(values[1], values[2]),
        )
    console.print(table)
    for result, which in ((outcome.recorded, "recorded"), (outcome.modelled_change, "changed")):
        for reason, count in result.failures.items():
            text = f"{count} requests of the {which} run are not counted: {reason}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.print("Assumed:", style="bold")
    for sentence in outcome.assumptions:
        console.print(f"* {sentence}", highlight=False, markup=False, soft_wrap=True)


def _running(result: BenchResult) -> float | None:
    return None if result.steps is None or result.steps.running is None else float(result.steps.running.peak)


_FIGURES = (
    ("output tokens/s", lambda r: r.output_throughput),
    ("TPOT, median, ms", lambda r: None if r.tpot_ms is None else r.tpot_ms.median),
    ("TTFT, median, ms", lambda r: None if r.ttft_ms is None else r.ttft_ms.median),
    ("TTFT, p99, ms", lambda r: None if r.ttft_ms is None else r.ttft_ms.p99),
    ("running, peak", _running),
    ("steps", lambda r: None if r.steps is None else float(r.steps.total)),
    ("rows per step", lambda r: None if r.steps is None else r.steps.rows_per_step),
    ("tokens per step and request", lambda r: r.tokens_per_chunk),
)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if float(value).is_integer():
        return f"{value:.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _change(before: float | None, after: float | None) -> str:
    return "–" if not before or after is None else f"{after / before - 1:+.0%}"


@contextmanager
def _progress(args: argparse.Namespace, title: str, total: int) -> Iterator:  # type: ignore[type-arg]
    """A bar on a terminal; gives what sets its place."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = args.no_progress or not console.is_terminal
    with Progress(console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda place: bar.update(task, completed=place)
