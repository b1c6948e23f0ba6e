"""Prompt lookup: draft what followed the newest tokens when they last stood earlier in the same text.

Source: Saxena, "Prompt Lookup Decoding" (2023); the settings' names are vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftBlock, DraftRequest


class NgramIndex:
    """Where each n-gram of one text last occurred; grows with the text at a cost per new token.

    Attributes:
        num_indexed: tokens already taken in.
    """

    __slots__ = ("_continuations", "_longest", "_shortest", "num_indexed")

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._continuations: dict[tuple[int, ...], int] = {}
        self.num_indexed = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take in every n-gram that has a token after it; the newest occurrence replaces older ones."""
        for follower in range(max(self.num_indexed, 1), len(token_ids)):
            for length in range(self._shortest, min(self._longest, follower) + 1):
                self._continuations[tuple(token_ids[follower - length : follower])] = follower
        self.num_indexed = len(token_ids)

    def continuation(self, token_ids: Sequence[int]) -> int | None:
        """Position of the token that followed the longest known n-gram at the text's end; None when none is known."""
        for length in range(min(self._longest, len(token_ids)), self._shortest - 1, -1):
            start = self._continuations.get(tuple(token_ids[-length:]))
            if start is not None:
                return start
        return None


class NgramDrafter:
    """A Drafter that looks only at a request's own tokens. It has no model: no rows, no KV.

    Args:
        prompt_lookup_min, prompt_lookup_max: n-gram lengths looked for, the longest first.
    """

    def __init__(self, prompt_lookup_min: int, prompt_lookup_max: int) -> None:
        self.layout = LAYOUTS["ngram"]
        self._shortest = prompt_lookup_min
        self._longest = prompt_lookup_max
        self._indexes: dict[str, NgramIndex] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter; an empty block where the text's end is new to it."""
        return [DraftBlock(self._drafts(request), distributions=()) for request in requests]

    def _drafts(self, request: DraftRequest) -> list[int]:
        token_ids = request.token_ids
        index = self._indexes.get(request.request_id)
        if index is None or index.num_indexed > len(token_ids):  # shorter than before: another request under this id
            index = self._indexes[request.request_id] = NgramIndex(self._shortest, self._longest)
        index.extend(token_ids)
        start = index.continuation(token_ids)
        if start is None:
            return []
        # A match that overlaps the end repeats with its period: what it copies may be its own drafts.
        text = token_ids[start : start + request.num_draft_tokens]
        period = len(token_ids) - start
        while len(text) < request.num_draft_tokens:
            text.append(text[len(text) - period])
        return text

    def release(self, request_id: str) -> None:
        """See Drafter."""
        self._indexes.pop(request_id, None)
