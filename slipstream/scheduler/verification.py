"""VerificationPlanner: which drafts share the verify rows of a step (design 4); see also confidence.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Survivals = NDArray[np.float64]
"""`[i, j]` = chance that drafts 1 … j + 1 of decode i are all accepted, never rising along j; above 0, and 0
where it has no such draft. Shape [R, K]."""


@dataclass(frozen=True, slots=True)
class VerifyOffer:
    """What verify rows are expected to bring.

    Attributes:
        gains: `[n]` = expected accepted drafts when the n most valuable rows run, shape [N + 1].
        depth_gains: `[k]` = the same when every decode verifies its first k drafts, shape [K + 1]; a decode with
            fewer drafts verifies those it has.
        depth_rows: `[k]` = rows that takes, shape [K + 1].
        may_trim: whether rows may be left out; False verifies all that fit.
        stop_early: rows are added as long as each raises the expected tokens per ms, and never past the first that
            does not: what a later draft promises must not decide whether an earlier one is verified.
    """

    gains: NDArray[np.float64]
    depth_gains: NDArray[np.float64]
    depth_rows: Sequence[int]
    may_trim: bool
    stop_early: bool = False


class VerificationPlanner(Protocol):
    """Values verify rows, and distributes them among requests.

    Attributes:
        reason: in words, what of the last offer a reader of the plan should know; empty for nothing.
    """

    @property
    def reason(self) -> str: ...

    def offer(self, survivals: Survivals) -> VerifyOffer:
        """What rows are expected to bring."""
        ...

    def distribute(self, drafts: Sequence[int], survivals: Survivals | None, num_rows: int, turn: int) -> list[int]:
        """Drafts to verify per request: at most `drafts[i]`, `num_rows` in total, always the first ones.

        Args:
            drafts: drafts at hand per request.
            survivals: as for `offer`; None where nothing is known.
            num_rows: rows to give.
            turn: number of this step; ties rotate with it, so that nobody is last for ever.
        """
        ...


def offer_of(survivals: Survivals, *, may_trim: bool, stop_early: bool = False) -> VerifyOffer:
    """The offer that follows from survivals: the most valuable rows first, and one K for all."""
    num_rows = np.count_nonzero(survivals, axis=0)
    ranked = np.sort(survivals, axis=None)[::-1]
    return VerifyOffer(
        _sums_from_zero(ranked[: num_rows.sum()]),
        _sums_from_zero(survivals.sum(axis=0)),
        [0, *num_rows.cumsum().tolist()],
        may_trim,
        stop_early,
    )


def _sums_from_zero(values: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros(len(values) + 1)
    values.cumsum(out=sums[1:])
    return sums


class TurnByTurnPlanner:
    """Everybody's first draft, then everybody's second, until the rows are used up; verifies all that fit."""

    reason = ""

    def offer(self, survivals: Survivals) -> VerifyOffer:
        """See VerificationPlanner."""
        return offer_of(survivals, may_trim=False)

    def distribute(self, drafts: Sequence[int], survivals: Survivals | None, num_rows: int, turn: int) -> list[int]:
        """See VerificationPlanner; survivals play no part."""
        if sum(drafts) <= num_rows:
            return list(drafts)
        counts = [0] * len(drafts)
        open_requests = [i for i, count in enumerate(drafts) if count > 0]
        left = num_rows
        while left >= len(open_requests) > 0:
            rounds = min(left // len(open_requests), min(drafts[i] - counts[i] for i in open_requests))
            for i in open_requests:
                counts[i] += rounds
            left -= rounds * len(open_requests)
            open_requests = [i for i in open_requests if counts[i] < drafts[i]]
        for k in range(left if open_requests else 0):
            counts[open_requests[(turn * left + k) % len(open_requests)]] += 1
        return counts
