"""Acceptance models: which drafts a simulated target accepts, and what the drafter believed of them.

Luck is drawn per (seed, request, output position) and nothing else, so that two policies meet the same luck: wherever
their steps begin, both stumble at the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.config import SettingError


def luck(seed: int, index: int, num_tokens: int) -> NDArray[np.float64]:
    """Uniform draws in [0, 1), one per output position of the request with this place in the workload, [num_tokens]."""
    return np.random.default_rng((seed, index)).random(num_tokens)


class RequestAcceptance(Protocol):
    """The fate of one request's drafts. `position`: output position that the first draft would fill, from 0."""

    def num_accepted(self, position: int, num_verified: int) -> int:
        """Leading drafts that the target accepts of those verified."""
        ...

    def confidences(self, position: int, num_drafts: int) -> Sequence[float] | None:
        """The drafter's belief in each draft given the ones before; None when it is silent, shape [num_drafts]."""
        ...


class AcceptanceModel(Protocol):
    """Makes the fates of requests."""

    def request(self, index: int, num_output_tokens: int) -> RequestAcceptance:
        """The fate of the request with this place in the workload."""
        ...


def conditional_acceptance(acceptance_length: float, num_draft_tokens: int) -> float:
    """The p for which p + p² + … + p^K = acceptance_length - 1.

    Raises:
        SettingError: outside [1, K + 1], naming the nearest length that works.
    """
    if num_draft_tokens < 1:
        raise SettingError(f"num_speculative_tokens must be at least 1 to have drafts, got {num_draft_tokens}")
    most = num_draft_tokens + 1
    if not 1.0 <= acceptance_length <= most:
        nearest = most if acceptance_length > most else 1
        raise SettingError(
            f"acceptance_length must be between 1 and num_speculative_tokens + 1 = {most}, "
            f"got {acceptance_length:g}; the nearest is {nearest}"
        )
    low, high = 0.0, 1.0
    for _ in range(60):  # to the last bit of a double
        middle = (low + high) / 2
        if sum(middle**j for j in range(1, num_draft_tokens + 1)) < acceptance_length - 1.0:
            low = middle
        else:
            high = middle
    return high


class GeometricAcceptance:
    """Every draft is accepted with the same chance, given the ones before it; the drafter is silent.

    Args:
        conditional: that chance. seed: another seed is other luck.
    """

    def __init__(self, conditional: float, seed: int = 0) -> None:
        self._conditional = conditional
        self._seed = seed

    def request(self, index: int, num_output_tokens: int) -> RequestAcceptance:
        """See AcceptanceModel."""
        refused = luck(self._seed, index, num_output_tokens) >= self._conditional
        return _FixedStumbles(refused)


class _FixedStumbles:
    """Drafts are refused at fixed positions of the text."""

    def __init__(self, refused: NDArray[np.bool_]) -> None:
        # [p] = first position from p on that is refused
        count = len(refused)
        places = np.where(refused, np.arange(count), count)
        self._next_refused: list[int] = np.minimum.accumulate(places[::-1])[::-1].tolist()

    def num_accepted(self, position: int, num_verified: int) -> int:
        if position >= len(self._next_refused):
            return 0
        return min(num_verified, self._next_refused[position] - position)

    def confidences(self, position: int, num_drafts: int) -> Sequence[float] | None:
        return None
