"""Sequential temperature scaling: one divisor of the confidence logit per position, fitted from left to right; and a
shift where a divisor cannot do it.

Source: DSpark (arXiv 2607.05147), section on calibration, in our own words: position k's divisor is the one that makes
the calibration error of the cumulative product up to k smallest, with those before it held fixed. A divisor leaves a
logit on its side of 0, so a head that says 0.7 where 0.4 is true cannot be mended by it. The shift is ours, in the
manner of Platt scaling. Both keep the order of confidences at their position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from slipstream.training.outcomes import Floats, Outcomes
from slipstream.training.reliability import Labels, calibration_error, squared_error

LEAST, MOST = 0.05, 20.0
COARSE, FINE = 121, 81
MIN_GAIN, MIN_SQUARED_GAIN = 0.005, 0.001
"""A shift is taken only where it lowers the calibration error or the squared error by more than this: below lies
chance. The second finds divisors that make all chances alike, which costs ranking and no calibration error."""
FURTHEST = 30.0
_EDGE = 1e-12
_HALVINGS = 40


@dataclass(frozen=True, slots=True)
class Scaling:
    """Confidence k becomes sigmoid(logit / divisors[k] + shifts[k]); one of each per position."""

    divisors: tuple[float, ...]
    shifts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Column:
    """One position of the judged blocks: logits, products of the scaled confidences before it, outcomes up to it."""

    logits: Floats
    before: Floats
    labels: Labels

    def chances(self, divisor: float, shift: float) -> Floats:
        """The cumulative product up to this position."""
        return self.before * _sigmoid(self.logits / divisor + shift)

    def error(self, divisor: float, shift: float) -> float:
        """Calibration error of `chances`."""
        return calibration_error(self.chances(divisor, shift), self.labels)

    def squared(self, divisor: float, shift: float) -> float:
        """Squared error of `chances`."""
        return squared_error(self.chances(divisor, shift), self.labels)


def logits_of(confidences: Floats) -> Floats:
    """log(c / (1 - c)), with 0 and 1 held off."""
    kept = np.clip(confidences, _EDGE, 1.0 - _EDGE)
    return np.asarray(np.log(kept) - np.log1p(-kept))


def scaled(outcomes: Outcomes, scaling: Scaling) -> Outcomes:
    """The outcomes with confidences as they are after `scaling`."""
    chances = _sigmoid(logits_of(outcomes.confidences) / np.array(scaling.divisors) + np.array(scaling.shifts))
    return _with_confidences(outcomes, chances)


def unscaled(outcomes: Outcomes, scaling: Scaling) -> Outcomes:
    """What `scaled` made these of."""
    logits = logits_of(outcomes.confidences) - np.array(scaling.shifts)
    return _with_confidences(outcomes, _sigmoid(logits * np.array(scaling.divisors)))


def fit_scaling(outcomes: Outcomes) -> Scaling:
    """For confidences that were not calibrated yet; 1 and 0 at positions that were never judged."""
    logits = logits_of(outcomes.confidences)
    before = np.ones(len(outcomes))
    divisors, shifts = [], []
    for position in range(outcomes.depth):
        known, labels = outcomes.at(position)
        divisor, shift = 1.0, 0.0
        if known.any():
            column = _Column(logits[known, position], before[known], labels)
            divisor = _best_divisor(lambda divisor, column=column: column.error(divisor, 0.0))  # type: ignore[misc]
            moved = _shifted(column)
            gain = column.error(divisor, 0.0) - column.error(*moved)
            squared_gain = column.squared(divisor, 0.0) - column.squared(*moved)
            if gain > MIN_GAIN or squared_gain > MIN_SQUARED_GAIN:
                divisor, shift = moved
        divisors.append(divisor)
        shifts.append(shift)
        before = before * _sigmoid(logits[:, position] / divisor + shift)
    return Scaling(tuple(divisors), tuple(shifts))


def _shifted(column: _Column) -> tuple[float, float]:
    """The divisor of the smallest squared error, with the shift that makes the mean chance the share of true labels.

    Not of the smallest calibration error: there, one chance for all blocks would be hard to beat.
    """
    divisor = _best_divisor(lambda divisor: column.squared(divisor, _matching_shift(column, divisor)))
    return divisor, _matching_shift(column, divisor)


def _matching_shift(column: _Column, divisor: float) -> float:
    """By bisection; the mean chance rises with the shift."""
    share = float(column.labels.mean())
    low, high = -FURTHEST, FURTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(column.chances(divisor, middle).mean()) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _best_divisor(cost: Callable[[float], float]) -> float:
    """Of least cost: a grid over [LEAST, MOST], evenly in the logarithm, then a finer one around the best; of equal
    ones, the nearest to 1."""

    def at(logarithm: float) -> tuple[float, float]:
        return cost(float(np.exp(logarithm))), abs(logarithm)

    coarse = np.linspace(np.log(LEAST), np.log(MOST), COARSE)
    best = min([0.0, *coarse], key=at)
    step = coarse[1] - coarse[0]
    fine = np.linspace(max(best - step, coarse[0]), min(best + step, coarse[-1]), FINE)
    return float(np.exp(min([best, *fine], key=at)))


def _sigmoid(logits: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))


def _with_confidences(outcomes: Outcomes, chances: Floats) -> Outcomes:
    beyond = outcomes.confidences >= 1.0  # stands for no draft
    return replace(outcomes, confidences=np.where(beyond, 1.0, chances))
