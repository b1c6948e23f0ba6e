"""A drafter that knows the text beforehand, spoilt by a rule: for tests against real models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slipstream.scheduler.layouts import DraftLayout
from slipstream.scheduler.protocol import DraftBlock, DraftRequest


class ReferenceTextDrafter:
    """Drafts from the known output of each request.

    Args:
        layout: whose budgets it obeys.
        texts: prefix of request ids -> output token ids; the longest prefix that fits counts. Without one: no drafts.
        vocab_size: a wrong draft is another token below this.
        num_right: drafts of each block that are right, the rest is wrong; None makes all right.
        num_offered: output position of the first draft -> drafts offered at most (a ragged drafter); None offers all.
    """

    def __init__(
        self,
        layout: DraftLayout,
        texts: Mapping[str, Sequence[int]],
        vocab_size: int,
        *,
        num_right: int | None = None,
        num_offered: Callable[[int], int] | None = None,
    ) -> None:
        self.layout = layout
        self._texts = texts
        self._vocab_size = vocab_size
        self._num_right = num_right
        self._num_offered = num_offered

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter; blocks end where the known text ends."""
        return [DraftBlock(self._drafts(request), distributions=()) for request in requests]

    def _drafts(self, request: DraftRequest) -> list[int]:
        fitting = [prefix for prefix in self._texts if request.request_id.startswith(prefix)]
        if not fitting:
            return []
        position = len(request.token_ids) - request.num_prompt_tokens
        count = request.num_draft_tokens
        if self._num_offered is not None:
            count = min(count, self._num_offered(position))
        drafts = list(self._texts[max(fitting, key=len)][position : position + count])
        if self._num_right is not None:
            for i in range(self._num_right, len(drafts)):
                drafts[i] = (drafts[i] + 1) % self._vocab_size
        return drafts

    def release(self, request_id: str) -> None:
        """See Drafter; nothing is kept."""
