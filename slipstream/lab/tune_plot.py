"""The Pareto plot of a tuning: throughput against TPOT as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from slipstream.lab.tune_report import TuneReport, columns_of, row_of
from slipstream.lab.tune_result import Trial

WIDTH, HEIGHT = 900, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 28, 44
_WIDE = 5.0
"""From this ratio of the largest TPOT to the least on, the axis is logarithmic."""

Scale = Callable[[float], float]


def pareto_svg(report: TuneReport) -> str:
    """A point per trial with its settings as a tooltip, the front as a line, start, best, and a limit of TPOT p50."""
    tuning = report.tuning
    least, most = (f(trial.tpot_ms for trial in tuning.trials) for f in (min, max))
    highest = max(trial.throughput for trial in tuning.trials)
    is_log = 0 < least <= most / _WIDE
    x_ticks = log_ticks(least, most) if is_log else linear_ticks(most)
    y_ticks = linear_ticks(highest)
    x_low, x_high = (min(least, x_ticks[0]) * 0.97, max(most, x_ticks[-1]) * 1.03) if is_log else (0.0, x_ticks[-1])

    def x(ms: float) -> float:
        share = math.log(ms / x_low) / math.log(x_high / x_low) if is_log else ms / x_high
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def y(throughput: float) -> float:
        return HEIGHT - _BOTTOM - throughput / y_ticks[-1] * (HEIGHT - _TOP - _BOTTOM)

    parts = _axes(x, y, x_ticks, y_ticks)
    single = len(report.subject.cases) == 1
    for limit in tuning.limits:
        if single and (limit.time, limit.statistic) == ("tpot", "p50") and x_low < limit.bound <= x_high:
            at = x(limit.bound)
            parts.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
            parts.append(f'<text class="bound" x="{at + 5:.1f}" y="{_TOP + 10}">{escape(limit.flag)}</text>')
    front = tuning.pareto
    # A staircase: between two settings there is no third.
    line = " ".join(f"H{x(trial.tpot_ms):.1f} V{y(trial.throughput):.1f}" for trial in front)
    parts.append(f'<path class="front" d="M{x(front[0].tpot_ms):.1f} {y(front[0].throughput):.1f} {line}"/>')
    for trial in sorted(tuning.trials, key=lambda trial: trial.keeps_limits):
        kind, radius = ("on-front", 5) if trial in front else ("kept", 4.5) if trial.keeps_limits else ("missed", 4)
        parts.append(
            f'<circle class="{kind}" cx="{x(trial.tpot_ms):.1f}" cy="{y(trial.throughput):.1f}" r="{radius}">'
            f"<title>{escape(_settings(report, trial))}</title></circle>"
        )
    start, best = tuning.start, tuning.best
    parts.append(
        f'<rect class="start" x="{x(start.tpot_ms) - 6:.1f}" y="{y(start.throughput) - 6:.1f}" width="12" height="12">'
        f"<title>start: {escape(_settings(report, start))}</title></rect>"
    )
    parts.append(f'<circle class="best" cx="{x(best.tpot_ms):.1f}" cy="{y(best.throughput):.1f}" r="9"/>')
    named = [(best, report.best_name)] if best is start else [(start, "start"), (best, report.best_name)]
    for trial, name in named:
        anchor, dx = ("end", -13) if x(trial.tpot_ms) > WIDTH - 100 else ("start", 13)
        parts.append(
            f'<text class="name" text-anchor="{anchor}" x="{x(trial.tpot_ms) + dx:.1f}" '
            f'y="{y(trial.throughput) + 4:.1f}">{escape(name)}</text>'
        )
    label = "Throughput against TPOT of every setting that was simulated"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def linear_ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least `most`, about five."""
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * i for i in range(math.ceil(most / step * (1 - 1e-9)) + 1)]


def log_ticks(least: float, most: float) -> list[float]:
    """1, 2 and 5 times powers of ten, those within the range and one beside it on either hand."""
    first = math.floor(math.log10(least))
    ticks = [10.0**power * factor for power in range(first, math.floor(math.log10(most)) + 2) for factor in (1, 2, 5)]
    low = max(i for i, tick in enumerate(ticks) if tick <= least * (1 + 1e-9))
    high = min(i for i, tick in enumerate(ticks) if tick >= most * (1 - 1e-9))
    return ticks[low : high + 1]


def _axes(x: Scale, y: Scale, x_ticks: list[float], y_ticks: list[float]) -> list[str]:
    bottom, parts = HEIGHT - _BOTTOM, []
    for tick in x_ticks:
        parts.append(f'<line class="tick" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text text-anchor="middle" x="{x(tick):.1f}" y="{bottom + 17}">{tick:g}</text>')
    for tick in y_ticks:
        parts.append(f'<line class="tick" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text text-anchor="end" x="{_LEFT - 8}" y="{y(tick) + 4:.1f}">{tick:g}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text text-anchor="end" x="{WIDTH - _RIGHT}" y="{HEIGHT - 8}">median TPOT, ms</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="{_TOP - 14}">output tokens per second</text>')
    return parts


def _settings(report: TuneReport, trial: Trial) -> str:
    limits = report.tuning.limits
    names = columns_of(limits, len(trial.results))
    return ", ".join(f"{name} {value}" for name, value in zip(names, row_of(trial, limits), strict=True))
