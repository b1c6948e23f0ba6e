"""CostRefitter: keeps a cost table true while the machine drifts, slowly and against the middle of many steps."""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.engine.step_times import StepTimes
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.costs import shape_of
from slipstream.scheduler.protocol import StepMode, StepPlan, StepResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RefitRule:
    """When and how far a table is corrected.

    Attributes:
        window: steps of one mode whose middle decides; they are looked at once, then forgotten.
        tolerance: what the middle must be off by, as a part, beyond what the spread of the times leaves in doubt.
        max_change: factor by which one refit changes a mode at most.
    """

    window: int = 64
    tolerance: float = 0.05
    max_change: float = 1.25


@dataclass(frozen=True, slots=True)
class Refit:
    """A correction that was made.

    Attributes:
        step: the step after which. mode: of which passes.
        ratio: measured over expected in the middle of the window. correction: the mode's factor from now on.
        version: of the new table.
    """

    step: int
    mode: StepMode
    ratio: float
    correction: float
    version: int


@dataclass(slots=True)
class CostRefitter:
    """Watches live steps, and corrects the table by one factor per mode where it has drifted.

    A step far off the others changes nothing: the middle decides. It does not swing either: times measured under one
    table are not held against the next.

    Attributes:
        table: the newest. apply: takes it into use. listeners: hear of each refit, after it was applied.
        refits: how many there were. times: what the table said of live steps, and what they took.
    """

    table: CostTable
    apply: Callable[[CostTable], None]
    rule: RefitRule = field(default_factory=RefitRule)
    listeners: list[Callable[[Refit], None]] = field(default_factory=list)
    refits: int = 0
    times: StepTimes = field(default_factory=StepTimes)
    _drifts: dict[StepMode, list[float]] = field(default_factory=dict)

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """A step was committed. Steps without a time, and those that ran in another mode than the table thinks, say
        nothing."""
        if result.target_ms <= 0.0 or not plan.requests:
            return
        shape = shape_of(plan, result)
        expected = self.table.pass_ms(shape)
        mode = self.table.dispatch(shape).mode
        if expected <= 0.0 or mode is not result.mode:
            return
        self.times.add("target", mode.value, expected, result.target_ms)
        if result.draft_ms > 0.0:
            num_drafting = sum([outcome.num_draft_tokens > 0 for outcome in result.results])
            said = self.table.draft_ms(num_drafting, result.num_draft_query_rows)
            self.times.add("draft", "", said, result.draft_ms)
        drifts = self._drifts.setdefault(mode, [])
        drifts.append(math.log(result.target_ms / expected))
        if len(drifts) >= self.rule.window:
            middle = statistics.median(drifts)
            doubt = 2.0 * _median_error(drifts, middle)
            drifts.clear()
            if abs(middle) > math.log1p(self.rule.tolerance) + doubt:
                self._refit(plan.step, mode, middle)

    def _refit(self, step: int, mode: StepMode, drift: float) -> None:
        most = math.log(self.rule.max_change)
        factor = math.exp(max(-most, min(drift, most)))
        correction = self.table.corrections.get(mode, 1.0) * factor
        corrections = {**self.table.corrections, mode: correction}
        self.table = dataclasses.replace(self.table, corrections=corrections, version=self.table.version + 1)
        self.refits += 1
        self.apply(self.table)
        refit = Refit(step, mode, math.exp(drift), correction, self.table.version)
        logger.info(
            "cost table refitted after step %d: %s passes take %.0f %% of what it said; version %d",
            *(step, mode.value, 100.0 * refit.ratio, refit.version),
        )
        for listener in self.listeners:
            listener(refit)


def _median_error(values: list[float], median: float) -> float:
    """Standard error of a median, from the median absolute deviation: 1.4826 makes a standard deviation of it and
    sqrt(pi / 2) the error of a median of a mean's, both for normal values."""
    deviation = 1.4826 * statistics.median(abs(value - median) for value in values)
    return math.sqrt(math.pi / 2.0) * deviation / math.sqrt(len(values))
