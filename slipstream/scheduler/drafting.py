"""DraftingPolicy: whether requests draft at all, and how many (design 4). Decided before any confidence exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.request import Request
from slipstream.scheduler.acceptance import AcceptanceTracker
from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.layouts import DraftLayout


@dataclass(frozen=True, slots=True)
class DraftingCandidates:
    """Who could draft after this step.

    Attributes:
        step: number of this step.
        requests: running decodes.
        most: K.
        num_kv_tokens: KV tokens that a decode step of these requests reads.
        layout: what a draft costs in query rows.
        acceptance: what is known of how drafts fared.
    """

    step: int
    requests: Sequence[Request]
    most: int
    num_kv_tokens: int
    layout: DraftLayout
    acceptance: AcceptanceTracker


@dataclass(frozen=True, slots=True)
class DraftingDecision:
    """Drafts to make per request.

    Attributes:
        most: for everybody. exceptions: request id -> another number for some.
        reason: in words, where it is less than K.
    """

    most: int
    exceptions: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    def num_draft_tokens(self, request_id: str) -> int:
        """Drafts that the request may make after this step."""
        return self.exceptions.get(request_id, self.most) if self.exceptions else self.most


class DraftingPolicy(Protocol):
    """Decides once per step, for all. Pure: same arguments, same answer."""

    def decide(self, candidates: DraftingCandidates, costs: StepCosts | None) -> DraftingDecision: ...


class AlwaysDraft:
    """As many as allowed, always."""

    def decide(self, candidates: DraftingCandidates, costs: StepCosts | None) -> DraftingDecision:
        """See DraftingPolicy."""
        return DraftingDecision(candidates.most)
