"""DeepSeek-V4-Pro-0813 on eight B300: a published sweep, and a cost table fitted on two of its columns.

Only *none* (no drafts) and *k = 7* are fitted; the other columns are there to be predicted
(benchmarks/published_curves.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.interpolation import Curve, Grid
from slipstream.scheduler.protocol import StepMode
from slipstream.simulation.machines.published import B300_DRAFT_MS

SOURCE = (
    "vLLM blog 2026-08-14, DSpark adaptive verification, figure 3 (values read from the drawing), vLLM 73b8394, TP8, "
    "experts in parallel, SPEED-Bench, 880 prompts, at most 2,048 output tokens, T = 1.0, "
    "https://github.com/vllm-project/vllm-project.github.io"
)
GOLDEN_SOURCE = (
    "SemiAnalysisAI/InferenceX at 843c625, golden_al_distribution/dsv4-pro-0813-dspark.yaml, "
    "https://github.com/SemiAnalysisAI/InferenceX"
)


@dataclass(frozen=True, slots=True)
class Point:
    """Output tokens per second of all requests, and the median time per output token."""

    output_throughput: float
    tpot_ms: float

    def occupancy(self, concurrency: int) -> float:
        """Mean number of requests that decode, as a part of the concurrency: less at the ends of a run, and while
        prompts run."""
        return self.output_throughput * self.tpot_ms / 1e3 / concurrency


CONCURRENCIES = (1, 16, 32, 64, 128, 256)


def _column(*figures: tuple[float, float]) -> Mapping[int, Point]:
    return {c: Point(*figure) for c, figure in zip(CONCURRENCIES, figures, strict=True)}


FIXED: Mapping[int, Mapping[int, Point]] = {
    0: _column((101, 9.87), (1124, 13.9), (1664, 18.7), (2774, 21.9), (4406, 26.8), (6323, 34.0)),
    1: _column((153, 6.49), (1408, 11.0), (2384, 12.8), (3864, 15.6), (5912, 19.9), (8619, 25.1)),
    3: _column((231, 4.29), (1906, 7.95), (3112, 9.65), (4856, 12.2), (7402, 15.6), (9728, 22.6)),
    5: _column((251, 3.89), (1939, 7.76), (3071, 9.63), (4931, 11.9), (6846, 16.7), (8766, 25.1)),
    7: _column((251, 3.95), (1878, 7.93), (2939, 10.1), (4611, 12.6), (6250, 18.3), (7609, 29.1)),
}
"""K -> concurrency -> measured."""

ADAPTIVE = _column((269, 3.68), (2037, 7.35), (3361, 8.82), (5197, 11.3), (7417, 15.3), (9719, 22.5))
"""Concurrency -> measured with adaptive verification, K = 7."""

MOST_DRAFTS = 7

GOLDEN_LENGTHS: Mapping[int, float] = {1: 1.84, 2: 2.51, 3: 3.01, 4: 3.36, 5: 3.61, 6: 3.77, 7: 3.73, 8: 3.47}
"""K -> acceptance length, each from a run of its own."""


def golden_survivals() -> tuple[float, ...]:
    """Chance that drafts 1 … j are all accepted, j = 1 … 7: differences of the lengths up to K = 5. The lengths of
    K = 6 and 7 are from runs that differ in more than K (7 is below 6), so the last two positions are one geometric
    tail that makes the length of K = 7 come out."""
    lengths = [1.0, *(GOLDEN_LENGTHS[k] for k in range(1, 6))]
    survivals = np.diff(lengths).tolist()
    tail = GOLDEN_LENGTHS[MOST_DRAFTS] - lengths[-1]  # = last (r + r^2)
    ratio = (np.sqrt(1.0 + 4.0 * tail / survivals[-1]) - 1.0) / 2.0
    return (*survivals, float(survivals[-1] * ratio), float(survivals[-1] * ratio**2))


def fit_v4_pro() -> CostTable:
    """The target's curve over rows and the drafter's over query rows.

    A plain decode step has one row per request and takes the TPOT of *none*. A step of *k = 7* has eight, takes its
    TPOT times the acceptance length, and holds the drafter's pass: the curve published for V4-Flash, over query rows,
    times one factor, which is fitted where both columns have steps of equal rows.
    """
    plain = {c: point.tpot_ms for c, point in FIXED[0].items()}
    steps = {c: point.tpot_ms * GOLDEN_LENGTHS[MOST_DRAFTS] for c, point in FIXED[MOST_DRAFTS].items()}
    draft = Curve(tuple(MOST_DRAFTS * float(c) for c in B300_DRAFT_MS), tuple(B300_DRAFT_MS.values()))
    shared = [c for c in steps if (1 + MOST_DRAFTS) * c in plain]
    shapes = np.array([draft(MOST_DRAFTS * c) for c in shared])
    over = np.array([steps[c] - plain[(1 + MOST_DRAFTS) * c] for c in shared])
    factor = float(shapes @ over / (shapes @ shapes))
    target = {(1 + MOST_DRAFTS) * c: ms - factor * draft(MOST_DRAFTS * c) for c, ms in steps.items()} | plain
    rows = sorted(target)
    counts, drafts = tuple(map(float, CONCURRENCIES)), tuple(range(1, MOST_DRAFTS + 1))
    return CostTable(
        Provenance(
            machine="8 x B300, tensor parallel 8 with expert parallelism",
            model="DeepSeek-V4-Pro-0813, DSpark drafter",
            date="2026-08-14",
            source=SOURCE,
            notes=(
                "fitted on the columns none and k = 7 alone",
                f"acceptance lengths: {GOLDEN_SOURCE}",
                f"the drafter's pass: {factor:.2f} x the published V4-Flash curve, over query rows",
                "one curve for every step: stairs of captured sizes were not published, and prompts are short",
            ),
        ),
        {StepMode.EAGER: Grid(tuple(map(float, rows)), (0.0,), tuple((target[row],) for row in rows))},
        draft=Grid(
            counts, tuple(map(float, drafts)), tuple(tuple(factor * draft(c * k) for k in drafts) for c in counts)
        ),
    )


def fitted_occupancy(concurrency: int) -> float:
    """Mean of what *none* and *k = 7* had."""
    return (FIXED[0][concurrency].occupancy(concurrency) + FIXED[MOST_DRAFTS][concurrency].occupancy(concurrency)) / 2
