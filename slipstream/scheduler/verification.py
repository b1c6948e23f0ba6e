"""VerificationPlanner: which drafts share the verify rows of a step (design 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class VerificationPlanner(Protocol):
    """Distributes verify rows among requests."""

    def distribute(
        self, drafts: Sequence[int], confidences: Sequence[Sequence[float] | None], num_rows: int, turn: int
    ) -> list[int]:
        """Drafts to verify per request: at most `drafts[i]`, `num_rows` in total, always the first ones.

        Args:
            drafts: drafts at hand per request.
            confidences: per request the chance of each draft given the ones before, or None.
            num_rows: rows to give.
            turn: number of this step; ties rotate with it, so that nobody is last for ever.
        """
        ...


class TurnByTurnPlanner:
    """Everybody's first draft, then everybody's second, until the rows are used up."""

    def distribute(
        self, drafts: Sequence[int], confidences: Sequence[Sequence[float] | None], num_rows: int, turn: int
    ) -> list[int]:
        """See VerificationPlanner; confidences play no part."""
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
