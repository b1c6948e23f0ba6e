"""Refits: a table follows a drifting machine, and nothing but a drift moves it."""

from __future__ import annotations

import random

import pytest

from slipstream.engine.refit import CostRefitter, Refit, RefitRule
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.costs import shape_of
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.protocol import RequestResult, ScheduledRequest, StepMode, StepPlan, StepResult

TABLE = CostTable(Provenance("m", "n"), {StepMode.EAGER: Grid((1.0, 64.0), (0.0,), ((10.0,), (73.0,)))})


class Machine:
    """Runs steps of random sizes; a step takes what the first table says, times a factor, and some noise."""

    def __init__(self, refitter: CostRefitter, seed: int = 0, noise: float = 0.1) -> None:
        self.refitter = refitter
        self.step = 0
        self._noise = noise
        self._random = random.Random(seed)

    def run(self, num_steps: int, factor: float, mode: StepMode = StepMode.EAGER) -> None:
        for _ in range(num_steps):
            count = self._random.randint(1, 64)
            requests = [ScheduledRequest(str(i), 0, 10, 1, 0, -1, False, True, 0, 0, []) for i in range(count)]
            plan = StepPlan(self.step, requests, num_target_rows=count)
            ms = TABLE.pass_ms(shape_of(plan)) * factor * self._random.lognormvariate(0.0, self._noise)
            results = [RequestResult(str(i), 0, [1]) for i in range(count)]
            self.refitter.observe(plan, StepResult(self.step, results, mode, target_ms=ms))
            self.step += 1


def refitter_of(rule: RefitRule | None = None) -> tuple[CostRefitter, list[CostTable], list[Refit]]:
    applied: list[CostTable] = []
    heard: list[Refit] = []
    return CostRefitter(TABLE, applied.append, rule or RefitRule(), [heard.append]), applied, heard


@pytest.mark.parametrize("factor", [0.4, 0.8, 1.3, 3.0])
def test_it_converges_and_then_rests(factor: float) -> None:
    refitter, applied, heard = refitter_of()
    machine = Machine(refitter)
    machine.run(64 * 8, factor)
    assert refitter.table.corrections[StepMode.EAGER] == pytest.approx(factor, rel=0.1)
    assert [table.version for table in applied] == list(range(1, len(applied) + 1)) == [r.version for r in heard]
    ratios = [event.ratio for event in heard]
    assert all((ratio > 1.0) == (factor > 1.0) for ratio in ratios), "it comes from one side: no swinging"
    before = refitter.refits
    machine.run(64 * 20, factor)
    assert refitter.refits == before, "it rests once it is there"


def test_one_refit_changes_little() -> None:
    refitter, applied, heard = refitter_of()
    Machine(refitter).run(64, 10.0)
    assert refitter.table.corrections[StepMode.EAGER] == pytest.approx(1.25)
    assert (len(applied), heard[0].step, heard[0].mode) == (1, 63, StepMode.EAGER)
    assert heard[0].ratio == pytest.approx(10.0, rel=0.1)


def test_a_machine_as_measured_is_left_alone() -> None:
    refitter, applied, _ = refitter_of()
    Machine(refitter).run(64 * 30, 1.02)
    assert not applied
    assert refitter.table is TABLE


def test_single_slow_steps_move_nothing() -> None:
    refitter, applied, _ = refitter_of()
    machine = Machine(refitter)
    for _ in range(40):
        machine.run(24, 1.0)
        machine.run(1, 500.0)
    assert not applied


def test_it_follows_a_slow_drift_and_back() -> None:
    refitter, _, _ = refitter_of()
    machine = Machine(refitter)
    for percent in [*range(100, 160), *range(160, 99, -1)]:
        machine.run(64, percent / 100)
        correction = refitter.table.corrections.get(StepMode.EAGER, 1.0)
        assert correction == pytest.approx(percent / 100, rel=0.1)


def test_steps_that_say_nothing_are_not_counted() -> None:
    refitter, applied, _ = refitter_of()
    machine = Machine(refitter)
    machine.run(200, 5.0, StepMode.PIECEWISE)  # not the mode that the table thinks
    machine.run(200, 0.0)
    refitter.observe(StepPlan(0, []), StepResult(0, []))
    assert not applied
