"""A drafter that keeps what was asked of it and what it gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.scheduler.protocol import DraftBlock, Drafter, DraftRequest


@dataclass
class Watched:
    """A Drafter that keeps what was asked and given."""

    inner: Drafter
    seen: list[tuple[DraftRequest, DraftBlock]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layout = self.inner.layout

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        blocks = self.inner.propose(requests)
        for asked, block in zip(requests, blocks, strict=True):
            copy = DraftRequest(
                asked.request_id,
                list(asked.token_ids),
                asked.num_draft_tokens,
                asked.num_prompt_tokens,
                asked.sampling,
                asked.seed,
                asked.choice_index,
            )
            self.seen.append((copy, block))
        return blocks

    def release(self, request_id: str) -> None:
        self.inner.release(request_id)

    def drafts(self) -> dict[tuple[str, int, int], list[int]]:
        """By request, text length and K: a repeat (after a preemption) must have given the same."""
        found: dict[tuple[str, int, int], list[int]] = {}
        for asked, block in self.seen:
            key = (asked.request_id, len(asked.token_ids), asked.num_draft_tokens)
            assert found.setdefault(key, block.token_ids) == block.token_ids
        return found
