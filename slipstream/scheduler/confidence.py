"""Planners that verify by value: the likeliest drafts of all requests first (design 4).

The rules are those of DSpark's scheduler (arXiv 2607.05147, Algorithm 1, section 5.2 and Appendix A); the total is
chosen in verify_rows.py from what a planner offers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.scheduler.verification import Survivals, TurnByTurnPlanner, VerifyOffer, offer_of


def most_valuable(survivals: Survivals, num_rows: int, turn: int) -> list[int]:
    """Drafts per request when the `num_rows` likeliest run, always the first ones of each. Ties go to the earlier
    position, then to a request that rotates with `turn`; what a draft says plays no part."""
    num_requests, depth = survivals.shape
    first = turn % num_requests if num_requests else 0
    # By position, then by request from `first` on: a stable sort keeps that order among equals.
    values = np.roll(survivals, -first, axis=0).ravel(order="F")
    chosen = np.argsort(-values, kind="stable")[: min(num_rows, np.count_nonzero(values))]
    counts = np.bincount(chosen % num_requests, minlength=num_requests) if num_requests else np.zeros(0, dtype=int)
    return np.roll(counts, first).tolist() if depth else [0] * num_requests


class ConfidencePlanner:
    """Rows compete across requests by survival; the total is free, the argmax over the whole cost curve.

    Args:
        stop_early: the total grows only while each row raises the expected tokens per ms (Algorithm 1). Needed where
            drafts are accepted by the textbook rejection rule: there a later draft's confidence is computed from an
            earlier draft, and a rule that looks ahead would let a draft decide whether it is verified itself.
    """

    reason = ""

    def __init__(self, *, stop_early: bool = False) -> None:
        self._stop_early = stop_early

    def offer(self, survivals: Survivals) -> VerifyOffer:
        """See VerificationPlanner."""
        return offer_of(survivals, may_trim=True, stop_early=self._stop_early)

    def distribute(self, drafts: Sequence[int], survivals: Survivals | None, num_rows: int, turn: int) -> list[int]:
        """See VerificationPlanner; turn by turn where nothing is known."""
        if survivals is None:
            return TurnByTurnPlanner().distribute(drafts, None, num_rows, turn)
        return most_valuable(survivals, num_rows, turn)


class OldTotalPlanner:
    """The total follows from the survivals of an earlier step, the ranking from the present ones (section 5.2): so the
    size of a step can be known before its drafts are, and no draft decides whether it is verified itself.

    Args:
        age: steps between the survivals that decide the total and those that rank.

    Attributes:
        reason: both ages.
    """

    def __init__(self, age: int = 2) -> None:
        self._offers: deque[VerifyOffer] = deque(maxlen=age + 1)
        self.reason = ""

    def offer(self, survivals: Survivals) -> VerifyOffer:
        """See VerificationPlanner. What `age` calls ago was expected of rows; the rows at hand now may be fewer."""
        self._offers.append(offer_of(survivals, may_trim=True))
        self.reason = f"total by survivals {len(self._offers) - 1} steps old, ranking by survivals 0 steps old"
        return _cut(self._offers[0], self._offers[-1])

    def distribute(self, drafts: Sequence[int], survivals: Survivals | None, num_rows: int, turn: int) -> list[int]:
        """See VerificationPlanner."""
        return ConfidencePlanner().distribute(drafts, survivals, num_rows, turn)


def _cut(old: VerifyOffer, now: VerifyOffer) -> VerifyOffer:
    """What the old offer says of as many rows and depths as there are now."""
    num_rows, num_depths = len(now.gains), len(now.depth_gains)
    return VerifyOffer(
        _stretched(old.gains, num_rows), _stretched(old.depth_gains, num_depths), now.depth_rows, now.may_trim
    )


def _stretched(values: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """The first `length` values; past the end the last one goes on: rows of which nothing is known bring nothing."""
    return np.pad(values[:length], (0, max(length - len(values), 0)), mode="edge")
