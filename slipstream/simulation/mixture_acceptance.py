"""Acceptance by depth, with easy and hard requests, easy and hard positions, and a drafter that knows some of it.

A draft at depth j (from 0) that would fill output position p is accepted, given the ones before it, with the chance
sigmoid(logit'(c_j) + spread z_p): c_j belongs to the request's class, z_p is standard normal, and logit' is placed so
that the mean over z_p is c_j. So the spread changes what confidences can know, never how much is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.config import SettingError
from slipstream.simulation.acceptance import RequestAcceptance, luck
from slipstream.simulation.calibration import confidence_shift, place_logits, sigmoid

_CLASS_STREAM, _DIFFICULTY_STREAM = 1, 2  # beside the luck of (seed, request)


@dataclass(frozen=True, slots=True)
class AcceptanceClass:
    """A kind of request.

    Attributes:
        share: its part of the requests, relative to the other classes' shares.
        chances: chance of a draft given the ones before it, by depth from the first on, shape [K].
    """

    share: float
    chances: tuple[float, ...]

    @property
    def acceptance_length(self) -> float:
        """Tokens per step when all K drafts are verified."""
        return 1.0 + float(np.cumprod(self.chances).sum())


class MixtureAcceptance:
    """Requests of several classes; one class is acceptance by depth alone. An AcceptanceModel.

    Args:
        classes: as many chances in each.
        difficulty_spread: standard deviation, in logits, of the difficulty of positions; 0 makes depth and class all
            there is to know.
        calibration_error: None is a silent drafter. 0 gives the true chances as confidences. More is an over-confident
            drafter: its logits are shifted up until the expected calibration error, the mean of |confidence - chance|
            over the drafts that are judged (up to the first refused one), is this.
        seed: another seed is other luck, other classes and other difficulties.

    Raises:
        SettingError: a figure out of range, naming the nearest that works.
    """

    def __init__(
        self,
        classes: Sequence[AcceptanceClass],
        *,
        difficulty_spread: float = 0.0,
        calibration_error: float | None = None,
        seed: int = 0,
    ) -> None:
        _check(classes, difficulty_spread)
        shares = np.array([one.share for one in classes])
        self._bounds = np.cumsum(shares / shares.sum())[:-1]
        self._seed = seed
        self._spread = difficulty_spread
        self._logits = [place_logits(one.chances, difficulty_spread) for one in classes]
        self._shift: float | None = None
        if calibration_error is not None:
            judged = [
                one.share / shares.sum() * np.concatenate(([1.0], np.cumprod(one.chances)[:-1])) for one in classes
            ]
            self._shift = confidence_shift(
                np.concatenate(self._logits), np.concatenate(judged), difficulty_spread, calibration_error
            )

    def class_of(self, index: int) -> int:
        """Place in `classes` of the request with this place in the workload."""
        draw = np.random.default_rng((self._seed, index, _CLASS_STREAM)).random()
        return int(np.searchsorted(self._bounds, draw, side="right"))

    def request(self, index: int, num_output_tokens: int) -> RequestAcceptance:
        """See AcceptanceModel."""
        logits = self._logits[self.class_of(index) if len(self._logits) > 1 else 0]
        depth = len(logits)
        ends = num_output_tokens + depth
        # [p, j]: the draft at depth j of a block that begins at position p
        places = np.arange(num_output_tokens + 1)[:, None] + np.arange(depth)
        uniform = np.append(luck(self._seed, index, num_output_tokens), np.ones(depth))[places]
        if not self._spread:
            chances = sigmoid(logits)
            confidences = None
            if self._shift is not None:
                confidences = [sigmoid(logits + self._shift).tolist()] * (num_output_tokens + 1)
            return _TabulatedFate(uniform < chances, confidences)
        rng = np.random.default_rng((self._seed, index, _DIFFICULTY_STREAM))
        table = logits + (self._spread * rng.standard_normal(ends))[places]
        accepted = uniform < sigmoid(table)
        return _TabulatedFate(accepted, None if self._shift is None else sigmoid(table + self._shift).tolist())


def acceptance_by_depth(
    chances: Sequence[float], *, difficulty_spread: float = 0.0, calibration_error: float | None = None, seed: int = 0
) -> MixtureAcceptance:
    """Every request alike, with these conditional chances by depth; see MixtureAcceptance."""
    return MixtureAcceptance(
        [AcceptanceClass(1.0, tuple(chances))],
        difficulty_spread=difficulty_spread,
        calibration_error=calibration_error,
        seed=seed,
    )


def conditional_chances(survivals: Sequence[float]) -> tuple[float, ...]:
    """Chances given the ones before, from the chances that drafts 1 … j are all accepted.

    Raises:
        SettingError: survivals that rise or leave [0, 1].
    """
    chances, before = [], 1.0
    for survival in survivals:
        if not 0.0 <= survival <= before:
            raise SettingError(f"survivals must fall from at most 1 and not below 0, got {list(survivals)}")
        chances.append(survival / before if before else 0.0)
        before = survival
    return tuple(chances)


class _TabulatedFate:
    """Everything drawn beforehand, so that a step only looks up.

    Args:
        accepted: [p, j], whether the draft at depth j of the block that begins at position p is accepted given the ones
            before it, shape [T + 1, K].
        confidences: the same shape; None is silent.
    """

    def __init__(self, accepted: NDArray[np.bool_], confidences: list[list[float]] | None) -> None:
        self._depth = accepted.shape[1]
        self._num_accepted: list[int] = np.cumprod(accepted, axis=1).sum(axis=1).tolist()
        self._confidences = confidences

    def num_accepted(self, position: int, num_verified: int) -> int:
        accepted = self._num_accepted[position]
        return accepted if accepted < num_verified else num_verified

    def confidences(self, position: int, num_drafts: int) -> Sequence[float] | None:
        if num_drafts > self._depth:
            raise SettingError(
                f"the acceptance model has chances for {self._depth} drafts in a row, and {num_drafts} were made; "
                f"give {num_drafts} chances or set num_speculative_tokens to {self._depth}"
            )
        if self._confidences is None:
            return None
        confidences = self._confidences[position]
        return confidences if num_drafts == self._depth else confidences[:num_drafts]


def _check(classes: Sequence[AcceptanceClass], difficulty_spread: float) -> None:
    if not classes:
        raise SettingError("acceptance needs at least one class of requests, got none")
    depth = len(classes[0].chances)
    for one in classes:
        if not 0.0 < one.share < float("inf"):
            raise SettingError(f"the share of a class of requests must be above 0, got {one.share}; leave it out")
        if not one.chances or len(one.chances) != depth:
            raise SettingError(
                f"classes of requests need as many chances each, at least one; got "
                f"{[len(other.chances) for other in classes]}"
            )
        for chance in one.chances:
            if not 0.0 <= chance <= 1.0:
                nearest = 1 if chance > 1 else 0
                raise SettingError(f"a chance must be between 0 and 1, got {chance}; the nearest is {nearest}")
    if not 0.0 <= difficulty_spread < float("inf"):
        raise SettingError(f"difficulty_spread must be 0 or more logits, got {difficulty_spread}; the nearest is 0")
