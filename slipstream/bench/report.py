"""Results for people: one table per command, and the same numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slipstream.bench.acceptance import Acceptance
from slipstream.bench.compare import Comparison
from slipstream.bench.dataset import SYNTHETIC_NOTE
from slipstream.bench.metrics import BenchResult, Distribution

MAX_ERRORS_SHOWN = 5
MAX_DIFFERENCES_SHOWN = 5
UNKNOWN = "–"


class OutputError(RuntimeError):
    """The numbers could not be written to their file."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """The numbers of a report, one readable file. Raises OutputError."""
    try:
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"--output-json {path} could not be written: {error.strerror or error}") from None


def print_result(
    console: Console, title: str, result: BenchResult, *, is_synthetic: bool = False, notes: Sequence[str] = ()
) -> None:
    """One run as a table; acceptance on synthetic prompts is refused a verdict."""
    console.print(title, highlight=False, markup=False, soft_wrap=True)
    table = Table(show_header=True, header_style="bold")
    for name in ("", "mean", "median", "p90", "p99"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for label, values in (
        ("TTFT (ms)", result.ttft_ms),
        ("TPOT (ms)", result.tpot_ms),
        ("token time (ms)", result.token_time_ms),
        ("chunk gap (ms)", result.chunk_gap_ms),
        ("E2E (ms)", result.e2e_ms),
        ("wait in the client (ms)", result.client_queue_ms),
    ):
        if values is not None:
            table.add_row(label, *_cells(values))
    console.print(table)
    # A table of their own: long values would widen the columns above.
    singles = Table(show_header=False)
    for label, text in _single_values(result):
        singles.add_row(label, text)
    if result.acceptance is not None and not is_synthetic:
        singles.add_section()
        for label, text in acceptance_rows(result.acceptance):
            singles.add_row(label, text)
    console.print(singles)
    _print_failures(console, [result])
    if result.acceptance is not None and is_synthetic:
        console.print(SYNTHETIC_NOTE)
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)


def _cells(values: Distribution) -> list[str]:
    return [_number(value) for value in (values.mean, values.median, values.p90, values.p99)]


def _single_values(result: BenchResult) -> list[tuple[str, str]]:
    rows = [
        ("requests served, failed", f"{result.completed}, {result.failed}"),
        ("duration (s)", _number(result.duration_s)),
        ("prompt, output tokens", f"{result.total_input_tokens}, {result.total_output_tokens}"),
        ("output tokens/s", _number(result.output_throughput)),
        ("all tokens/s", _number(result.total_token_throughput)),
        ("requests/s", _number(result.request_throughput)),
        ("tokens per chunk", _number(result.tokens_per_chunk)),
        ("in flight, peak and mean", f"{result.in_flight.peak}, {_number(result.in_flight.mean)}"),
    ]
    if result.coalesced_chunks:
        rows.append(("chunks that shared a read (gap 0)", str(result.coalesced_chunks)))
    steps = result.steps
    if steps is not None:
        if steps.running is not None:
            rows.append(("running, peak and mean", f"{steps.running.peak}, {_number(steps.running.mean)}"))
        for kind in ("decode", "mixed", "prefill"):
            took = steps.mean_ms(kind)
            each = "" if took is None else f", {_number(took)} ms each"
            rows.append((f"{kind} steps", f"{steps.counts.get(kind, 0)} ({steps.share(kind):.0%}){each}"))
    return rows


def acceptance_rows(acceptance: Acceptance) -> list[tuple[str, str]]:
    """The lines on drafts; *length* is tokens of a step, accepted drafts and the target's own token."""
    if not acceptance.verified:
        return [("drafts", "none verified")]
    counts = (acceptance.drafted, acceptance.verified, acceptance.accepted)
    rows = [
        ("drafted/verified/accepted", " / ".join(str(count) for count in counts)),
        ("accepted of verified", f"{acceptance.rate:.1%}"),
        ("length, steps with drafts", _number(acceptance.mean_length)),
        ("length, most drafts", _number(acceptance.mean_length_full)),
        ("tokens per decode step", _number(acceptance.tokens_per_decode_step)),
        ("accepted by position", " ".join(f"{rate:.2f}" for rate in acceptance.rate_by_position)),
    ]
    return [(label, text) for label, text in rows if text != UNKNOWN]


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the comparison."""

    label: str
    number: Callable[[BenchResult], float | None]
    is_share: bool = False


def _median(name: str) -> Callable[[BenchResult], float | None]:
    def number(result: BenchResult) -> float | None:
        values: Distribution | None = getattr(result, name)
        return None if values is None else values.median

    return number


def _running(name: str) -> Callable[[BenchResult], float | None]:
    def number(result: BenchResult) -> float | None:
        running = None if result.steps is None else result.steps.running
        return None if running is None else float(getattr(running, name))

    return number


def _accepted(name: str) -> Callable[[BenchResult], float | None]:
    def number(result: BenchResult) -> float | None:
        value: float | None = None if result.acceptance is None else getattr(result.acceptance, name)
        return value

    return number


def _share(kind: str) -> Callable[[BenchResult], float | None]:
    return lambda result: None if result.steps is None else result.steps.share(kind)


def _step_ms(kind: str) -> Callable[[BenchResult], float | None]:
    return lambda result: None if result.steps is None else result.steps.mean_ms(kind)


FIGURES = (
    Figure("output tokens/s", lambda result: result.output_throughput),
    Figure("TPOT, median (ms)", _median("tpot_ms")),
    Figure("TTFT, median (ms)", _median("ttft_ms")),
    Figure("E2E, median (ms)", _median("e2e_ms")),
    Figure("running, peak", _running("peak")),
    Figure("running, mean", _running("mean")),
    Figure("steps", lambda result: None if result.steps is None else float(result.steps.total)),
    Figure("target rows per step", lambda result: None if result.steps is None else result.steps.rows_per_step),
    Figure("mixed steps", _share("mixed"), is_share=True),
    Figure("pure decode steps", _share("decode"), is_share=True),
    Figure("mixed step (ms)", _step_ms("mixed")),
    Figure("pure decode step (ms)", _step_ms("decode")),
    Figure("acceptance length, all K drafts", _accepted("mean_length_full")),
    Figure("acceptance length", _accepted("mean_length")),
)


def print_comparison(console: Console, title: str, comparison: Comparison) -> None:
    """Medians over repeats, ratios to the first variant, and whether the text was the same."""
    values = comparison.variation.values
    console.print(title, highlight=False, markup=False, soft_wrap=True)
    table = Table(header_style="bold")
    table.add_column(comparison.variation.name)
    for value in values:
        table.add_column(value, justify="right")
    for value in values[1:]:
        table.add_column(f"{value} / {values[0]}", justify="right")
    for figure in FIGURES:
        numbers = comparison.medians(figure.number)
        if all(number is None for number in numbers):
            continue
        show = _percent if figure.is_share else _number
        ratios = [_ratio(number, numbers[0]) for number in numbers[1:]]
        table.add_row(figure.label, *(show(number) for number in numbers), *ratios)
    console.print(table)
    if len(comparison.results[0]) > 1:
        console.print(f"medians over {len(comparison.results[0])} interleaved runs of each")
    _print_failures(console, [result for results in comparison.results for result in results])
    for note in comparison.notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print(f"same text: {'yes' if comparison.same_text else '[red]no[/red]'}")
    for difference in comparison.differences[:MAX_DIFFERENCES_SHOWN]:
        console.print(
            f"  {comparison.variation.name}={difference.value}, run {difference.repeat + 1}: request "
            f"{difference.index} differs from output token {difference.position} on",
            soft_wrap=True,
        )
    if len(comparison.differences) > MAX_DIFFERENCES_SHOWN:
        console.print(f"  … and {len(comparison.differences) - MAX_DIFFERENCES_SHOWN} more")


def _print_failures(console: Console, results: Sequence[BenchResult]) -> None:
    errors = [(message, count) for result in results for message, count in result.failures.items()]
    for message, count in errors[:MAX_ERRORS_SHOWN]:
        console.print(f"[red]{count} failed:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    if len(errors) > MAX_ERRORS_SHOWN:
        console.print(f"[red]… and {len(errors) - MAX_ERRORS_SHOWN} other errors[/red]")


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _ratio(value: float | None, base: float | None) -> str:
    return UNKNOWN if value is None or not base else f"{value / base:.2f}"
