"""SimulatedExecutor: the scheduler's plans on a modelled machine, in virtual time. It makes no text, only counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.config import MAX_SPECULATIVE_TOKENS
from slipstream.scheduler.costs import StepCosts, StepShape
from slipstream.scheduler.layouts import DraftLayout
from slipstream.scheduler.protocol import NewRequest, RequestResult, StepPlan, StepResult
from slipstream.simulation.acceptance import RequestAcceptance
from slipstream.simulation.clock import VirtualClock

TOKEN_ID = 2
"""Every token that a simulated target emits."""

_TOKEN_RUNS = [[TOKEN_ID] * count for count in range(MAX_SPECULATIVE_TOKENS + 2)]
"""`[n]`: a list of n tokens; shared, nobody changes them."""


@dataclass(slots=True)
class _State:
    """What the executor knows of a request: counts where a model has token ids (see ExecutorState)."""

    fate: RequestAcceptance
    num_prompt_tokens: int
    num_tokens: int
    max_total_tokens: int
    draft_handle: int = -1
    num_drafts: int = 0


class SimulatedExecutor:
    """An Executor whose steps cost what a machine model says and accept what an acceptance model says.

    Stop tokens never appear: a request ends at its `max_tokens`.

    Args:
        machine: what steps cost here; the scheduler may decide by another, worse table.
        fate_of: request id -> the fate of its drafts.
        clock: advanced by each step.
        offered: (request id, output position, drafts asked for) -> drafts that the drafter finds there; None for a
            drafter that always gives what is asked.
    """

    def __init__(
        self,
        machine: StepCosts,
        fate_of: Callable[[str], RequestAcceptance],
        layout: DraftLayout,
        clock: VirtualClock,
        offered: Callable[[str, int, int], int] | None = None,
    ) -> None:
        self._offered = offered
        self.machine = machine
        self.clock = clock
        self._fate_of = fate_of
        self._layout = layout
        self._states: dict[str, _State] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor."""
        for request_id in plan.released_request_ids:
            self._states.pop(request_id, None)
        for new in plan.new_requests:
            self._states[new.request_id] = self._state_of(new)
        states, layout, step, token_runs = self._states, self._layout, plan.step, _TOKEN_RUNS
        constant_rows = None if layout.carries_target_rows else layout.draft_query_rows
        rows_by_count: dict[int, int] = {}
        results: list[RequestResult] = []
        num_decodes = num_verify = num_emitting_prompts = num_prompts = num_kv = num_attended = 0
        num_draft_requests = num_draft_rows = num_skipped = 0
        first_verified, is_uniform = -1, True
        for entry in plan.requests:
            state = states[entry.request_id]
            if entry.is_prefill:
                result = RequestResult(entry.request_id, entry.epoch, [])
                num_prompts += 1
                num_tokens = entry.num_computed_tokens + entry.num_target_rows
                num_kv += num_tokens
                num_attended += entry.num_target_rows * num_tokens
                if not entry.emits:
                    results.append(result)
                    if constant_rows is None:
                        num_draft_rows += layout.draft_query_rows(entry.num_target_rows, 0)
                    continue
                num_emitting_prompts += 1
                result.token_ids = token_runs[1]
                num_rows = entry.num_target_rows
            else:
                # The busiest loop of a simulation: comparisons instead of min and max, one result per request.
                verified = accepted = 0
                num_tokens = state.num_tokens
                room = state.max_total_tokens - num_tokens - 1
                if entry.num_verify_rows and entry.draft_handle == state.draft_handle:
                    verified = entry.num_verify_rows
                    if verified > state.num_drafts:
                        verified = state.num_drafts
                    if verified > room:
                        verified = room if room > 0 else 0
                    if verified:
                        num_verify += verified
                        accepted = state.fate.num_accepted(num_tokens - state.num_prompt_tokens, verified)
                num_decodes += 1
                if first_verified < 0:
                    first_verified = verified
                elif verified != first_verified:
                    is_uniform = False
                num_rows = 1 + verified
                num_kv += num_tokens + verified
                num_attended += num_rows * (num_tokens + verified)
                result = RequestResult(entry.request_id, entry.epoch, token_runs[accepted + 1], verified, accepted)
            state.num_tokens += len(result.token_ids)
            state.draft_handle = -1
            num_drafts = entry.num_draft_tokens
            if num_drafts:
                room = state.max_total_tokens - state.num_tokens - 1
                if num_drafts > room:
                    num_drafts = room
                if num_drafts > 0:
                    if self._offered is not None:
                        position = state.num_tokens - state.num_prompt_tokens
                        num_drafts = self._offered(entry.request_id, position, num_drafts)
                    state.draft_handle, state.num_drafts = step, num_drafts
                    result.num_draft_tokens = num_drafts
                    result.draft_confidences = state.fate.confidences(
                        state.num_tokens - state.num_prompt_tokens, num_drafts
                    )
                    num_draft_requests += 1
                else:
                    num_skipped += 1
                    num_drafts = 0
            if constant_rows is None:
                num_draft_rows += layout.draft_query_rows(num_rows, num_drafts)
            elif num_drafts:
                rows = rows_by_count.get(num_drafts)
                if rows is None:
                    rows = rows_by_count[num_drafts] = constant_rows(num_rows, num_drafts)
                num_draft_rows += rows
            results.append(result)
        shape = StepShape(
            num_decodes,
            num_verify,
            plan.num_prefill_rows,
            num_emitting_prompts,
            num_kv,
            is_uniform,
            num_prompts,
            num_attended,
        )
        target_ms = self.machine.target_ms(shape)
        draft_ms = self.machine.draft_ms(num_draft_requests, num_draft_rows)
        self.clock.advance((target_ms + draft_ms) / 1e3)
        return StepResult(
            step,
            results,
            self.machine.dispatch(shape).mode,
            shape.num_rows,
            num_draft_rows,
            num_skipped,
            target_ms,
            draft_ms,
        )

    def _state_of(self, new: NewRequest) -> _State:
        return _State(self._fate_of(new.request_id), new.num_prompt_tokens, len(new.token_ids), new.max_total_tokens)
