"""Fits the one figure of a machine that is not known, so that one variant gives what was published."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from slipstream.config import SettingError
from slipstream.lab.report_figures import FIGURES
from slipstream.lab.scenario import Fit, Published, Scenario
from slipstream.lab.scenario_run import map_cases, run_case
from slipstream.lab.workload import Workload

TOLERANCE = 1e-3
"""Of the value; the published figures have two or three digits."""
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, slots=True)
class FittedValue:
    """The best value for one workload, and what it misses by.

    Attributes:
        error: root mean square of the log errors of the fitted figures.
    """

    workload: str
    value: float
    error: float


def fit_all(scenario: Scenario, *, processes: int = 1, on_done: Callable[[], None] | None = None) -> list[FittedValue]:
    """Fit every workload, in order. Raises SettingError for a scenario without `[fit]`."""
    if scenario.fit is None or scenario.published is None:
        raise SettingError(f"scenario {scenario.name} has no [fit] and [published], so there is nothing to fit")
    return list(map_cases(fit_workload, [(scenario, workload) for workload in scenario.workloads], processes, on_done))


def with_fitted(scenario: Scenario, values: list[FittedValue]) -> Scenario:
    """The same with these values in place of those in its file."""
    assert scenario.fit is not None
    return replace(scenario, fit=replace(scenario.fit, values={value.workload: value.value for value in values}))


def fit_workload(scenario: Scenario, workload: Workload) -> FittedValue:
    """The value between the fit's `low` and `high` whose errors are least, to TOLERANCE."""
    fit, published = scenario.fit, scenario.published
    assert fit is not None and published is not None

    def error(value: float) -> float:  # squared, so that parabolas fit
        return _error(scenario, fit, published, workload, value)

    value = round(least(error, fit.low, fit.high), 1)
    return FittedValue(workload.name, value, math.sqrt(error(value)))


def least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one valley is least on [low, high]: parabolas through three points over the logarithm,
    golden sections where a parabola leads nowhere."""
    known: dict[float, float] = {}

    def at(x: float) -> float:
        if x not in known:
            known[x] = function(math.exp(x))
        return known[x]

    a, b = math.log(low), math.log(high)
    x = (a + b) / 2.0
    while b - a > TOLERANCE:
        wider = b - x if b - x > x - a else a - x
        new = _vertex((a, x, b), (at(a), at(x), at(b)))
        if abs(new - x) < TOLERANCE / 4:
            new = x + math.copysign(min(TOLERANCE / 2, abs(wider) / 2), wider)  # found: close in from the wider side
        elif not a < new < b:
            new = x + (1.0 - _GOLDEN) * wider
        if at(new) <= at(x):
            a, x, b = (x, new, b) if new > x else (a, new, x)
        else:
            a, b = (a, new) if new > x else (new, b)
    return math.exp(x)


def _vertex(x: tuple[float, float, float], y: tuple[float, float, float]) -> float:
    """Where the parabola through three points has its lowest point; infinity for a line or a hill."""
    left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    bend = (right - left) / (x[2] - x[0])
    return math.inf if bend <= 0 else (x[0] + x[1]) / 2.0 - left / (2.0 * bend)


def _error(scenario: Scenario, fit: Fit, published: Published, workload: Workload, value: float) -> float:
    tried = replace(scenario, fit=replace(fit, values={workload.name: value}))
    result = run_case(tried, workload, scenario.variant(fit.variant)).result
    logs = []
    for figure in FIGURES:
        if figure.name in fit.figures:
            number = figure.number(result)
            if not number:
                raise SettingError(f"{workload.name}: {figure.label} has no value to fit on")
            logs.append(math.log(number / published.rows[fit.variant][figure.name]))
    return sum(log * log for log in logs) / len(logs)
