"""AcceptanceTracker: how drafts fared so far, per request and overall, as a guide to what drafting is worth."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.request import Request


class AcceptanceTracker:
    """Running acceptance, learnt from committed steps.

    Only verified drafts up to the first refused one are evidence: those behind it were never looked at.
    """

    def __init__(self, num_speculative_tokens: int) -> None:
        self._num_drafts = num_speculative_tokens
        self._verified = [1.0] * num_speculative_tokens
        self._accepted = [1.0] * num_speculative_tokens

    def observe(self, request_id: str, num_verified: int, num_accepted: int) -> None:
        """A committed step verified so many drafts of a request and accepted the first `num_accepted`."""
        for position in range(min(num_accepted + 1, num_verified)):
            self._verified[position] += 1.0
            self._accepted[position] += position < num_accepted

    def forget(self, request_id: str) -> None:
        """The request has ended."""

    def survival(self, request_id: str) -> Sequence[float]:
        """Chance that the request's drafts 1 … j are all accepted, for j = 1 … K, shape [K]; never rising."""
        chances, chance = [], 1.0
        for verified, accepted in zip(self._verified, self._accepted, strict=True):
            chance *= accepted / verified
            chances.append(chance)
        return chances

    def survival_of(self, request: Request, num_drafts: int) -> Sequence[float]:
        """The same for drafts at hand: by their confidences where the drafter gave some for this very block."""
        confidences = request.draft_confidences
        if confidences is None or len(confidences) < num_drafts:
            return self.survival(request.request_id)[:num_drafts]
        chances, chance = [], 1.0
        for confidence in confidences[:num_drafts]:
            chance *= confidence
            chances.append(chance)
        return chances
