"""Chances and confidences in logits: means over normal difficulties, and shifts of a chosen calibration error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.config import SettingError

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_FARTHEST_LOGIT = 60.0  # sigmoid is 0 or 1 to the last bit well before


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-logits)), infinities included."""
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))


def place_logits(chances: Sequence[float], spread: float) -> Array:
    """Logits m_j for which the mean of sigmoid(m_j + spread z), z standard normal, is chances[j]; 0 and 1 stay so."""

    def logit_of(chance: float) -> float:
        if chance in (0.0, 1.0):
            return -math.inf if chance == 0.0 else math.inf
        return _rising_root(lambda logit: float(_WEIGHTS @ sigmoid(logit + spread * _NODES)), chance)

    return np.array([logit_of(chance) for chance in chances])


def confidence_shift(logits: Array, weights: Array, spread: float, error: float) -> float:
    """How far logits are shifted up for an expected calibration error of `error`.

    Args:
        logits: of each kind of draft before its difficulty, shape [N].
        weights: how many drafts of each kind are judged, in any unit, shape [N].
        spread: standard deviation of the difficulty.
        error: mean of |confidence - chance| over judged drafts.

    Raises:
        SettingError: below 0, or more than confidences of 1 would be wrong by.
    """
    table = logits[:, None] + spread * _NODES
    chances = sigmoid(table)
    weights = weights[:, None] / weights.sum() * _WEIGHTS
    most = float((weights * (1.0 - chances)).sum())
    if not 0.0 <= error < most:
        nearest = f"{most * 0.99:.3g}" if error >= most else "0"
        raise SettingError(
            f"calibration_error must be from 0 to below {most:.3g}, where every confidence would be 1, got {error}; "
            f"the nearest is {nearest}"
        )
    if not error:
        return 0.0
    return _rising_root(lambda shift: float((weights * (sigmoid(table + shift) - chances)).sum()), error)


def _rising_root(function: Callable[[float], float], value: float) -> float:
    """Where a rising function of a logit takes this value."""
    low, high = -_FARTHEST_LOGIT, _FARTHEST_LOGIT
    for _ in range(70):  # to the last bits of a double
        middle = (low + high) / 2
        if function(middle) < value:
            low = middle
        else:
            high = middle
    return high
