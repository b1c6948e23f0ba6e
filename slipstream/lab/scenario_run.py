"""Runs every variant of a scenario on every workload, on one core or several."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from slipstream.bench.metrics import BenchResult, summarize
from slipstream.bench.records import StepRecord
from slipstream.config import SchedulerConfig
from slipstream.lab.processes import QuietPool
from slipstream.lab.scenario import Scenario, Variant
from slipstream.lab.simulate import simulate
from slipstream.lab.workload import Workload

OnDone = Callable[[], None]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One variant on one workload.

    Attributes:
        steps: every step, where they were asked for.
    """

    workload: Workload
    variant: Variant
    config: SchedulerConfig
    result: BenchResult
    steps: Sequence[StepRecord] = ()


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """All cases: workloads in order, and for each its variants in order."""

    scenario: Scenario
    cases: tuple[CaseResult, ...]

    def case(self, workload: str, variant: str) -> CaseResult:
        """The case of these names."""
        return next(case for case in self.cases if (case.workload.name, case.variant.name) == (workload, variant))

    def of_variant(self, variant: str) -> list[CaseResult]:
        """Its cases, by workload."""
        return [case for case in self.cases if case.variant.name == variant]


def run_case(scenario: Scenario, workload: Workload, variant: Variant, *, keep_steps: bool = False) -> CaseResult:
    """Simulate one variant on one workload; deterministic."""
    simulation = scenario.simulation(workload, variant)
    with _garbage_left_alone():
        record = simulate(simulation).record
        result = summarize(record)
    return CaseResult(workload, variant, simulation.config, result, tuple(record.steps) if keep_steps else ())


def run(
    scenario: Scenario, *, processes: int = 1, keep_steps: bool = False, on_done: OnDone | None = None
) -> ScenarioResult:
    """Simulate everything; the results do not depend on `processes`.

    Args:
        keep_steps: keep every step for a drawing. on_done: called after each case, in this process.
    """
    cases = [(scenario, workload, variant) for workload in scenario.workloads for variant in scenario.variants]
    work = partial(run_case, keep_steps=keep_steps)
    return ScenarioResult(scenario, tuple(map_cases(work, cases, processes, on_done)))


def map_cases(
    work: Callable[..., _T], cases: Sequence[tuple[Any, ...]], processes: int, on_done: OnDone | None = None
) -> Iterator[_T]:
    """`work(*case)` of each, in order, on as many cores as `processes` says."""
    done = on_done or (lambda: None)
    if min(processes, len(cases)) <= 1:
        for case in cases:
            result = work(*case)
            done()
            yield result
        return
    with QuietPool(min(processes, len(cases))) as pool:
        futures = [pool.submit(work, *case) for case in cases]
        for future in futures:
            result = future.result()
            done()
            yield result


@contextmanager
def _garbage_left_alone() -> Iterator[None]:
    """No garbage collection inside: a run makes millions of objects and no cycles, and looking for some takes time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
