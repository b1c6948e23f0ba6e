"""TokenStopChecker: ends requests by token id and by length; stop strings are the engine's business."""

from __future__ import annotations

from slipstream.request import FinishReason, Request
from slipstream.scheduler.protocol import StopVerdict


class TokenStopChecker:
    """Judges new tokens one by one: EOS and stop ids first, then the length limit."""

    def check(self, request: Request, new_token_ids: list[int]) -> StopVerdict | None:
        """See StopChecker."""
        stop_token_ids = request.stop_token_ids
        known = len(request.token_ids)
        limit = request.max_total_tokens
        if known + len(new_token_ids) < limit and stop_token_ids.isdisjoint(new_token_ids):
            return None
        min_total = request.num_prompt_tokens + request.sampling.min_tokens
        for kept, token in enumerate(new_token_ids, start=1):
            if token in stop_token_ids and known + kept > min_total:
                by_user = token in request.sampling.stop_token_ids
                return StopVerdict(kept, FinishReason.STOP, token if by_user else None)
            if known + kept >= limit:
                return StopVerdict(kept, FinishReason.LENGTH)
        return None
