"""Sequential temperature scaling: one divisor of the confidence logit per position, fitted from left to right.

Source: DSpark (arXiv 2607.05147), section on calibration, in our own words: position k's divisor is the one that makes
the calibration error of the cumulative product up to k smallest, with the divisors before it held fixed. A divisor
keeps the order of confidences at its position.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slipstream.training.outcomes import Floats, Outcomes
from slipstream.training.reliability import calibration_error

LEAST, MOST = 0.05, 20.0
COARSE, FINE = 121, 81
_EDGE = 1e-12


def logits_of(confidences: Floats) -> Floats:
    """log(c / (1 - c)), with 0 and 1 held off."""
    kept = np.clip(confidences, _EDGE, 1.0 - _EDGE)
    return np.asarray(np.log(kept) - np.log1p(-kept))


def scaled(outcomes: Outcomes, divisors: tuple[float, ...]) -> Outcomes:
    """The outcomes with confidences as they are after division by `divisors` (one per position)."""
    chances = 1.0 / (1.0 + np.exp(-logits_of(outcomes.confidences) / np.array(divisors)))
    beyond = outcomes.confidences >= 1.0  # stands for no draft
    return replace(outcomes, confidences=np.where(beyond, 1.0, chances))


def fit_divisors(outcomes: Outcomes) -> tuple[float, ...]:
    """Divisors for confidences that were not calibrated yet; 1 at positions that were never judged.

    A grid over [LEAST, MOST], evenly in the logarithm, then a finer one around the best; of equal ones, the nearest
    to 1.
    """
    logits = logits_of(outcomes.confidences)
    before = np.ones(len(outcomes))
    divisors = []
    for position in range(outcomes.depth):
        known, labels = outcomes.at(position)
        column, prefix = logits[known, position], before[known]

        def error(logarithm: float, column: Floats = column, prefix: Floats = prefix, labels=labels) -> float:  # type: ignore[no-untyped-def]
            return calibration_error(prefix / (1.0 + np.exp(-column / np.exp(logarithm))), labels)

        best = 0.0
        if known.any():
            coarse = np.linspace(np.log(LEAST), np.log(MOST), COARSE)
            best = min([0.0, *coarse], key=lambda place: (error(place), abs(place)))
            step = coarse[1] - coarse[0]
            fine = np.linspace(max(best - step, coarse[0]), min(best + step, coarse[-1]), FINE)
            best = min([best, *fine], key=lambda place: (error(place), abs(place)))
        divisors.append(float(np.exp(best)))
        before = before / (1.0 + np.exp(-logits[:, position] / divisors[-1]))
    return tuple(divisors)
