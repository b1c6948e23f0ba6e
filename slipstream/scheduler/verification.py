"""VerificationPlanner: which drafts share the verify rows of a step (design 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Survivals = Sequence[Sequence[float]]
"""Per decode and draft j: the chance that drafts 1 … j are all accepted; never rising within a request."""


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

    gains: Sequence[float]
    depth_gains: Sequence[float]
    depth_rows: Sequence[int]
    may_trim: bool
    stop_early: bool = False


class VerificationPlanner(Protocol):
    """Values verify rows, and distributes them among requests. Pure."""

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


def offer_of(survivals: Survivals, *, may_trim: bool) -> VerifyOffer:
    """The offer that follows from survivals: the most valuable rows first, and one K for all."""
    ranked = sorted([value for values in survivals for value in values], reverse=True)
    gains, total = [0.0], 0.0
    for value in ranked:
        total += value
        gains.append(total)
    depth = max(map(len, survivals), default=0)
    depth_gains, depth_rows = [0.0], [0]
    for k in range(depth):
        at_depth = [values[k] for values in survivals if len(values) > k]
        depth_gains.append(depth_gains[-1] + sum(at_depth))
        depth_rows.append(depth_rows[-1] + len(at_depth))
    return VerifyOffer(gains, depth_gains, depth_rows, may_trim)


class TurnByTurnPlanner:
    """Everybody's first draft, then everybody's second, until the rows are used up; verifies all that fit."""

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
