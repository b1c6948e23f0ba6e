"""The figures that simulation reports show and that published rows hold: one name and one meaning each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.bench.metrics import BenchResult, Distribution


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of a report.

    Attributes:
        name: in scenario files and JSON. label: for people, with the unit.
        more_is_better: None where it is neither.
    """

    name: str
    label: str
    number: Callable[[BenchResult], float | None]
    more_is_better: bool | None = None


def _median(values: Distribution | None) -> float | None:
    return None if values is None else values.median


def _ttft_s(result: BenchResult) -> float | None:
    return None if result.ttft_ms is None else result.ttft_ms.median / 1e3


def _running(result: BenchResult) -> float | None:
    return None if result.steps is None or result.steps.running is None else float(result.steps.running.peak)


def _mixed_share(result: BenchResult) -> float | None:
    return None if result.steps is None else result.steps.share("mixed") + result.steps.share("prefill")


FIGURES = (
    Figure("output_throughput", "tok/s", lambda result: result.output_throughput, True),
    Figure("tpot_ms", "TPOT ms", lambda result: _median(result.tpot_ms), False),
    Figure("ttft_s", "TTFT s", _ttft_s, False),
    Figure("running", "running", _running),
    Figure("prompt_step_share", "prompt steps", _mixed_share),
    Figure(
        "acceptance_length",
        "length",
        lambda result: None if result.acceptance is None else result.acceptance.mean_length,
    ),
)
"""TPOT and TTFT are medians over requests, `running` is the peak, the acceptance length that of steps with drafts."""
FIGURE_NAMES = tuple(figure.name for figure in FIGURES)
