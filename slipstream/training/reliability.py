"""How well confidences foretell acceptance: calibration error, ranking, squared error.

Everything is about the *cumulative* product of confidences up to a position, against "all drafts up to it were
accepted": that is what verification is planned by. Definitions as in the DSpark evaluation (arXiv 2607.05147).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.training.outcomes import Floats, Outcomes

NUM_BINS = 20
Labels = NDArray[np.bool_]


def calibration_error(chances: Floats, labels: Labels) -> float:
    """Expected calibration error over NUM_BINS bins of equal width: the mean over events of the distance between a
    bin's mean chance and its share of true labels."""
    places = np.minimum((chances * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    predicted = np.bincount(places, weights=chances, minlength=NUM_BINS)
    happened = np.bincount(places, weights=labels, minlength=NUM_BINS)
    return float(np.abs(predicted - happened).sum() / max(len(chances), 1))


def ranking_area(chances: Floats, labels: Labels) -> float | None:
    """Area under the ROC curve: chance that a true event has a higher number than a false one, ties counted half. None
    where all labels are alike."""
    num_true = int(labels.sum())
    num_false = len(labels) - num_true
    if not num_true or not num_false:
        return None
    _, place, counts = np.unique(chances, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0
    return float((ranks[place][labels].sum() - num_true * (num_true + 1) / 2.0) / (num_true * num_false))


def squared_error(chances: Floats, labels: Labels) -> float:
    """Brier score."""
    return float(np.mean((chances - labels) ** 2))


@dataclass(frozen=True, slots=True)
class Reliability:
    """Figures by position, and their means weighted by events.

    Attributes:
        num_events: judged blocks. error: expected calibration error. area: ROC; None without both outcomes. brier:
            squared error. All lists have one entry per position.
    """

    num_events: tuple[int, ...]
    error: tuple[float, ...]
    area: tuple[float | None, ...]
    brier: tuple[float, ...]

    @property
    def mean_error(self) -> float:
        """Calibration error over all positions."""
        return float(np.average(self.error, weights=self.num_events))

    @property
    def mean_brier(self) -> float:
        """Squared error over all positions."""
        return float(np.average(self.brier, weights=self.num_events))

    @property
    def mean_area(self) -> float | None:
        """ROC area over the positions that have one."""
        known = [(area, count) for area, count in zip(self.area, self.num_events, strict=True) if area is not None]
        return float(np.average([a for a, _ in known], weights=[c for _, c in known])) if known else None


def reliability(outcomes: Outcomes) -> Reliability:
    """Figures of outcomes; positions that were never judged are left off."""
    survivals = outcomes.confidences.cumprod(axis=1)
    events, errors, areas, briers = [], [], [], []
    for position in range(outcomes.depth):
        known, labels = outcomes.at(position)
        if not known.any():
            break
        chances = survivals[known, position]
        events.append(int(known.sum()))
        errors.append(calibration_error(chances, labels))
        areas.append(ranking_area(chances, labels))
        briers.append(squared_error(chances, labels))
    return Reliability(tuple(events), tuple(errors), tuple(areas), tuple(briers))
