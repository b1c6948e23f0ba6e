"""SharedBudget: the reservation of vLLM 0.32, kept so that its price can be measured on any workload (design 3)."""

from __future__ import annotations

from slipstream.request import Request, RequestStatus
from slipstream.scheduler.statistics import NoDrafts
from slipstream.scheduler.step_builder import StepBuilder


class SharedBudget:
    """Each scheduled request also costs its reserved slots against B, in admission order.

    Scheduling stops when what is left is not more than the reserved slots; the last decode may be cut short. Source:
    reference of vLLM 0.32's scheduler, where the per-request reservation is dynamic.
    """

    def fill(self, step: StepBuilder) -> None:
        """Grant rows until the budget is used up."""
        slots = step.layout.reserved_slots(step.config.num_speculative_tokens)
        left = step.config.max_num_batched_tokens
        for request in list(step.running):
            if left <= slots:
                step.reasons.append(f"{left} rows left, {slots} reserved per request")
                return
            if request.status is RequestStatus.RUNNING:  # else preempted for one before it
                left -= self._grant(step, request, left - slots, slots)
        while left > slots:
            admitted = step.admit_next()
            if admitted is None:
                return
            left -= self._grant(step, admitted, left - slots, slots)

    @staticmethod
    def _grant(step: StepBuilder, request: Request, most: int, slots: int) -> int:
        """Enter the request with at most `most` rows; gives what it costs."""
        if request.is_prefilling:
            start = request.num_computed_tokens + request.in_flight_rows
            num_left = len(request.token_ids) - start
            # The pass that carries rows is bounded by B through the reservation, so D plays no part here.
            granted = step.grant_prompt(request, start, min(num_left, most), step.config.draft_capacity)
            return 0 if granted is None else granted[0] + slots
        decode = step.decode_of(request)
        if decode is None:
            return 0
        _, start, room, num_drafts = decode
        num_verify = min(num_drafts, most - 1)
        num_draft = step.drafts_wanted(request, start + 1 + num_verify, room)
        if step.kv.grow(request, step.tokens_needed(start + 1 + num_verify, num_draft)) is None:
            if num_draft:
                num_draft = step.no_drafts(NoDrafts.KV_BLOCKS)
            if not step.make_room(request, start + 1):
                return 0
            num_verify = min(num_verify, len(request.block_ids) * step.kv.block_size - start - 1)
        draft_rows = step.layout.draft_query_rows(1 + num_verify, num_draft)
        step.add_decode(request, start, num_verify, num_draft, draft_rows)
        return 1 + num_verify + slots
