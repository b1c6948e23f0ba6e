"""StepTimes: what a cost table said of the passes that ran, and what they took."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

RATIO_EDGES = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0)
"""Upper edges of the buckets of measured over predicted; the last bucket is above all of them."""


@dataclass(slots=True)
class PassTimes:
    """Sums over passes of one sort, milliseconds.

    Attributes:
        ratios: passes by measured over predicted, one bucket per edge and one above. ratio_sum: of those ratios.
    """

    num_passes: int = 0
    predicted_ms: float = 0.0
    measured_ms: float = 0.0
    ratio_sum: float = 0.0
    ratios: list[int] = field(default_factory=lambda: [0] * (len(RATIO_EDGES) + 1))

    def add(self, predicted_ms: float, measured_ms: float) -> None:
        """A pass ran; `predicted_ms` > 0."""
        ratio = measured_ms / predicted_ms
        self.num_passes += 1
        self.predicted_ms += predicted_ms
        self.measured_ms += measured_ms
        self.ratio_sum += ratio
        self.ratios[bisect_left(RATIO_EDGES, ratio)] += 1


@dataclass(slots=True)
class StepTimes:
    """By (pass, mode): `target` in each mode, and `draft`, which has none ("")."""

    passes: dict[tuple[str, str], PassTimes] = field(default_factory=dict)

    def add(self, name: str, mode: str, predicted_ms: float, measured_ms: float) -> None:
        """A pass ran; passes that the table knows nothing of, or that were not measured, do not count."""
        if predicted_ms <= 0.0 or measured_ms <= 0.0:
            return
        times = self.passes.get((name, mode))
        if times is None:
            times = self.passes[name, mode] = PassTimes()
        times.add(predicted_ms, measured_ms)
