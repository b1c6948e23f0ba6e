"""Limits of `slipstream tune`: what users may have to wait at most, what the server must make at least."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.bench.metrics import BenchResult
from slipstream.config import shown

STATISTICS = {"p50": "median", "p90": "p90", "p99": "p99", "mean": "mean"}
TIMES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2e_ms"}
"""Name of a time in flags -> the distribution of BenchResult that has it."""

_UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4}
_DURATION = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound.

    Attributes:
        time: key of TIMES; None bounds the output throughput from below.
        statistic: key of STATISTICS. bound: milliseconds, or tokens per second.
    """

    time: str | None
    statistic: str
    bound: float

    @property
    def flag(self) -> str:
        """As it is given."""
        return "--min-throughput" if self.time is None else f"--max-{self.time}-{self.statistic}"

    @property
    def label(self) -> str:
        """For people."""
        return (
            "tok/s" if self.time is None else f"{self.time.upper() if self.time != 'e2e' else 'E2E'} {self.statistic}"
        )

    def value(self, result: BenchResult) -> float | None:
        """What a run gives; None where it has no such time."""
        if self.time is None:
            return result.output_throughput
        times = getattr(result, TIMES[self.time])
        return None if times is None else float(getattr(times, STATISTICS[self.statistic]))

    def worst(self, values: Sequence[float]) -> float:
        """Of several runs, the value that is hardest to keep."""
        return min(values) if self.time is None else max(values)

    def miss(self, value: float) -> float:
        """By what part of the bound it is missed: 0.15 is 15 %; 0 or less keeps it."""
        if self.time is None:
            return 1.0 - value / self.bound
        return value / self.bound - 1.0

    def in_words(self, value: float) -> str:
        """A value in this limit's unit."""
        return f"{value:.0f} tok/s" if self.time is None else duration_in_words(value)


def parse_duration_ms(text: str) -> float:
    """`2s`, `20ms`, `1.5 s`, `500us`, `1min` in milliseconds.

    Raises:
        argparse.ArgumentTypeError: no number, no unit, or not above 0; says how to write it.
    """
    shown_text = shown(text)
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{shown_text} is no time above 0; write a number and a unit, such as 20ms or 2s"
        )
    number, unit = match.groups()
    if not unit:
        raise argparse.ArgumentTypeError(f"{shown_text} has no unit; write {number[:20]}ms or {number[:20]}s")
    if unit.lower() not in _UNITS_MS:
        raise argparse.ArgumentTypeError(f"{shown_text}: the unit {unit!r} is not known; use {', '.join(_UNITS_MS)}")
    value = float(number) * _UNITS_MS[unit.lower()]
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{shown_text} must be above 0 and finite")
    return value


def duration_in_words(ms: float) -> str:
    """Milliseconds, or seconds where those are many."""
    return f"{ms / 1e3:.3g} s" if ms >= 999.5 else f"{ms:.3g} ms"


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag per limit."""
    group = parser.add_argument_group("limits (times with a unit: 20ms, 2s)")
    for time, text in (
        ("ttft", "time to the first token"),
        ("tpot", "time per output token"),
        ("e2e", "time to the last token"),
    ):
        for statistic, name in STATISTICS.items():
            group.add_argument(
                f"--max-{time}-{statistic}",
                type=parse_duration_ms,
                metavar="TIME",
                help=f"{text}: {name} over the requests at most",
            )
    group.add_argument("--min-throughput", type=_throughput, metavar="TOK_S", help="output tokens per second at least")


def limits_of(args: argparse.Namespace) -> tuple[Limit, ...]:
    """Those that were given."""
    limits = [
        Limit(time, statistic, bound)
        for time in TIMES
        for statistic in STATISTICS
        if (bound := getattr(args, f"max_{time}_{statistic}")) is not None
    ]
    if args.min_throughput is not None:
        limits.append(Limit(None, "mean", args.min_throughput))
    return tuple(limits)


def _throughput(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no number of tokens per second above 0, such as 3000")
    return value
