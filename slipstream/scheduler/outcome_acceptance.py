"""What the textbook rejection rule lets a scheduler know of the drafts at hand: see OutcomeTracker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slipstream.request import Request
from slipstream.scheduler.acceptance import MIN_SURVIVAL, AcceptanceTracker
from slipstream.scheduler.verification import Survivals


class OutcomeTracker(AcceptanceTracker):
    """Foresees by outcomes alone, never by what drafts say of themselves.

    Under the textbook rejection rule a draft must not decide whether it is verified itself, and the confidences behind
    it tell which token it is (DSpark, arXiv 2607.05147, Appendix A: P(A) = .85 instead of .70). So all that a step's
    size follows from (how many rows are verified, what prompts run beside them, how many drafts are made next) comes
    from running acceptance, which was known before these drafts were drawn. Confidences only rank the drafts among
    which those rows are shared out: there a draft's place depends on its own prefix and on other requests (section
    5.2).
    """

    def note_drafts(self, request_id: str, confidences: Sequence[float] | None) -> None:
        """See AcceptanceTracker. They are kept to be calibrated; no later block is thought to be like this one."""
        if confidences is None:
            self._confidences.pop(request_id, None)
        else:
            self._confidences[request_id] = confidences

    def foreseen(
        self, requests: Sequence[Request], drafts: Sequence[int], survivals: Callable[[], Survivals]
    ) -> Survivals:
        """See AcceptanceTracker: by running acceptance."""
        depth = max(drafts, default=0)
        chances = self.expected(requests, depth)
        chances[[i for i, request in enumerate(requests) if request.request_id in self.probing]] = 1.0
        at_hand = np.arange(depth) < np.array(drafts, dtype=np.int64)[:, None]
        return np.where(at_hand, np.maximum(chances, MIN_SURVIVAL), 0.0)
