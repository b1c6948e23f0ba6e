"""What tuning finds: every candidate that was tried, the best of them, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slipstream.bench.metrics import BenchResult
from slipstream.lab.tune_limits import Limit
from slipstream.lab.tune_space import Candidate, Space

SAME_WITHIN = 0.005
"""Throughputs that differ by less count as equal: the lower TPOT decides."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate and what it gives.

    Attributes:
        results: one per workload. misses: one per limit, by what part of it the worst workload misses it.
    """

    candidate: Candidate
    results: tuple[BenchResult, ...]
    misses: tuple[float, ...] = ()

    @property
    def throughput(self) -> float:
        """Output tokens per second; the geometric mean over the workloads."""
        return _geometric_mean(result.output_throughput for result in self.results)

    @property
    def tpot_ms(self) -> float:
        """Median TPOT; the geometric mean over the workloads."""
        return _geometric_mean(result.tpot_ms.median for result in self.results if result.tpot_ms is not None)

    @property
    def ttft_ms(self) -> float:
        """Median TTFT; the geometric mean over the workloads."""
        return _geometric_mean(result.ttft_ms.median for result in self.results if result.ttft_ms is not None)

    def ratios(self, other: Trial) -> tuple[float, float, float]:
        """Throughput, TPOT and TTFT over those of another trial."""
        pairs = (
            (self.throughput, other.throughput),
            (self.tpot_ms, other.tpot_ms),
            (self.ttft_ms, other.ttft_ms),
        )
        throughput, tpot, ttft = (own / base if base > 0 else math.nan for own, base in pairs)
        return throughput, tpot, ttft

    @property
    def miss(self) -> float:
        """The largest miss; 0 or less keeps every limit."""
        return max(self.misses, default=0.0)

    @property
    def keeps_limits(self) -> bool:
        return self.miss <= 0.0

    def value(self, limit: Limit) -> float:
        """What the workload gives that has the hardest time to keep it."""
        return limit.worst([value for result in self.results if (value := limit.value(result)) is not None])


@dataclass(frozen=True, slots=True)
class Refusal:
    """A candidate that cannot work, and why."""

    candidate: Candidate
    reason: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """Everything that was tried. `trials[0]` is the start.

    Attributes:
        is_exhaustive: every combination of the space was tried.
    """

    limits: tuple[Limit, ...]
    space: Space
    trials: tuple[Trial, ...]
    refusals: tuple[Refusal, ...]
    is_exhaustive: bool

    @property
    def start(self) -> Trial:
        return self.trials[0]

    @property
    def best(self) -> Trial:
        """The highest throughput within the limits; where none keeps them, the one that misses them least. Never
        below the start, if that keeps them."""
        return best_of(self.trials)

    @property
    def pareto(self) -> list[Trial]:
        """Those within the limits (all, where none is) that no other beats in throughput and TPOT, by TPOT."""
        kept = [trial for trial in self.trials if trial.keeps_limits] or list(self.trials)
        front: list[Trial] = []
        for trial in sorted(kept, key=lambda trial: (trial.tpot_ms, -trial.throughput)):
            if not front or trial.throughput > front[-1].throughput:
                front.append(trial)
        return front

    def without(self, place: int) -> Trial | None:
        """The best trial that keeps all limits but the one at this place, if it is better than the best one."""
        kept = [t for t in self.trials if all(miss <= 0 for i, miss in enumerate(t.misses) if i != place)]
        best = max(kept, key=lambda trial: trial.throughput, default=None)
        if best is None or not self.best.keeps_limits or best.throughput <= self.best.throughput * (1 + SAME_WITHIN):
            return None
        return best


def best_of(trials: Sequence[Trial]) -> Trial:
    """See Tuning.best; the first trial is the start."""
    kept = [trial for trial in trials if trial.keeps_limits]
    if not kept:
        return min(trials, key=lambda trial: (trial.miss, -trial.throughput))
    highest = max(trial.throughput for trial in kept)
    least = highest * (1 - SAME_WITHIN)
    if trials[0].keeps_limits:
        least = max(least, trials[0].throughput)
    equal = [trial for trial in kept if trial.throughput >= least]
    return min(equal, key=lambda trial: (trial.tpot_ms, -trial.throughput))


def _geometric_mean(values: Iterable[float]) -> float:
    """0 where one is: steps of a fitted table may come out as costing nothing."""
    listed = list(values)
    if min(listed) <= 0.0:
        return 0.0
    return math.exp(sum(map(math.log, listed)) / len(listed)) if len(listed) > 1 else listed[0]
