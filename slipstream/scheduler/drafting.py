"""DraftingPolicy: whether a request drafts at all, and how many (design 4)."""

from __future__ import annotations

from typing import Protocol

from slipstream.request import Request


class DraftingPolicy(Protocol):
    """Decides before any confidence exists."""

    def num_draft_tokens(self, request: Request, most: int, now: float) -> int:
        """Drafts the request should make after this step, 0 to `most`."""
        ...


class AlwaysDraft:
    """As many as allowed, always."""

    def num_draft_tokens(self, request: Request, most: int, now: float) -> int:
        """See DraftingPolicy."""
        return most
