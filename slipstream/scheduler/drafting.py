"""DraftingPolicy: whether requests draft at all, and how many (design 4). Decided before any confidence exists.

The rule that weighs costs is in drafting_by_cost.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from slipstream.request import Request
from slipstream.scheduler.acceptance import AcceptanceTracker
from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.layouts import DraftLayout
from slipstream.scheduler.statistics import NoDrafts

DraftSchedule = Sequence[tuple[int, int, int]]
"""(lowest, highest, K): drafts per request while so many requests run; ranges rise from 1 on without gaps."""

SCHEDULE_SLACK = 8
"""Loads up to 1/8 outside a range do not leave it at once ..."""
SCHEDULE_PATIENCE = 32
"""... but after so many steps in a row."""


@dataclass(frozen=True, slots=True)
class DraftingDecision:
    """Drafts to make per request.

    Attributes:
        most: for everybody. exceptions: request id -> another number for some.
        probes: requests whose next drafts are verified whatever is known of them, to learn how they fare.
        reason: in words, where it is less than K. cause: for the counters, where it is 0.
        decided_step, num_requests, num_judged: when this was weighed, for how many, and by how many judged drafts;
            carried on while it holds.
        probe_steps: steps between two probes; 0 for none. probed_step: when the last one was, or could have been.
        load_range: place in the schedule of K by load. outside_since: first of the steps in a row that were outside it.
    """

    most: int
    exceptions: Mapping[str, int] = field(default_factory=dict)
    probes: frozenset[str] = frozenset()
    reason: str = ""
    decided_step: int = 0
    num_requests: int = 0
    num_judged: int = 0
    probe_steps: int = 0
    probed_step: int = 0
    load_range: int | None = None
    outside_since: int | None = None
    cause: NoDrafts | None = None

    def num_draft_tokens(self, request_id: str) -> int:
        """Drafts that the request may make after this step."""
        return self.exceptions.get(request_id, self.most) if self.exceptions else self.most


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
        max_rows: B, rows of the target's pass.
        previous: the decision for the step before; None at first.
        row_bound_share: part of the last steps in which prompts were short of rows, not of seats. There drafts bring
            nothing: each takes a row and saves at most one.
    """

    step: int
    requests: Sequence[Request]
    most: int
    num_kv_tokens: int
    layout: DraftLayout
    acceptance: AcceptanceTracker
    max_rows: int
    previous: DraftingDecision | None = None
    row_bound_share: float = 0.0


class DraftingPolicy(Protocol):
    """Decides once per step, for all. Pure: same arguments, same answer."""

    def decide(self, candidates: DraftingCandidates, costs: StepCosts | None) -> DraftingDecision: ...


class AlwaysDraft:
    """As many as allowed, always."""

    def decide(self, candidates: DraftingCandidates, costs: StepCosts | None) -> DraftingDecision:
        """See DraftingPolicy."""
        return DraftingDecision(candidates.most)


class ScheduledDrafting:
    """K by the number of running requests (vLLM's `num_speculative_tokens_per_batch_size`), within which another rule
    decides. Loads above the last range keep its K.

    A load that swings about a border does not change K with it: a range is left at once for a load far outside it, and
    for one just outside only when that lasts.
    """

    def __init__(self, schedule: DraftSchedule, inner: DraftingPolicy) -> None:
        self._schedule = schedule
        self._inner = inner

    def decide(self, candidates: DraftingCandidates, costs: StepCosts | None) -> DraftingDecision:
        """See DraftingPolicy."""
        load, step, previous = len(candidates.requests), candidates.step, candidates.previous
        current = previous.load_range if previous is not None else None
        fitting = self._range_of(load)
        outside_since = None
        if current is not None and current != fitting:
            low, high, _ = self._schedule[current]
            outside_since = step if previous is None or previous.outside_since is None else previous.outside_since
            is_near = low - max(low // SCHEDULE_SLACK, 1) <= load <= high + max(high // SCHEDULE_SLACK, 1)
            if is_near and step - outside_since < SCHEDULE_PATIENCE:
                fitting = current
            else:
                outside_since = None
        most = min(candidates.most, self._schedule[fitting][2])
        inner = (
            self._inner.decide(replace(candidates, most=most), costs)
            if most
            else DraftingDecision(0, cause=NoDrafts.LOAD)
        )
        reason = inner.reason
        if not reason and most < candidates.most:
            reason = f"at most {most} drafts each while {load} requests run"
        return replace(inner, reason=reason, load_range=fitting, outside_since=outside_since)

    def _range_of(self, load: int) -> int:
        for place, (_, high, _) in enumerate(self._schedule):
            if load <= high:
                return place
        return len(self._schedule) - 1
