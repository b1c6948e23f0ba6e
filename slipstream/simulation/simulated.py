"""SimulatedExecutor: the scheduler's plans on a modelled machine, in virtual time. It makes no text, only counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.scheduler.costs import StepCosts, StepShape
from slipstream.scheduler.layouts import DraftLayout
from slipstream.scheduler.protocol import NewRequest, RequestResult, StepPlan, StepResult
from slipstream.simulation.acceptance import RequestAcceptance
from slipstream.simulation.clock import VirtualClock

TOKEN_ID = 2
"""Every token that a simulated target emits."""


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
    """

    def __init__(
        self,
        machine: StepCosts,
        fate_of: Callable[[str], RequestAcceptance],
        layout: DraftLayout,
        clock: VirtualClock,
    ) -> None:
        self.machine = machine
        self.clock = clock
        self._fate_of = fate_of
        self._layout = layout
        self._states: dict[str, _State] = {}
        self._token_runs: list[list[int]] = []

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor."""
        for request_id in plan.released_request_ids:
            self._states.pop(request_id, None)
        for new in plan.new_requests:
            self._states[new.request_id] = self._state_of(new)
        states, layout, step = self._states, self._layout, plan.step
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
                result.token_ids = self._tokens(1)
                num_rows = entry.num_target_rows
            else:
                verified = 0
                if entry.num_verify_rows and entry.draft_handle == state.draft_handle:
                    room = state.max_total_tokens - state.num_tokens - 1
                    verified = max(min(entry.num_verify_rows, state.num_drafts, room), 0)
                num_decodes += 1
                num_verify += verified
                if first_verified < 0:
                    first_verified = verified
                is_uniform = is_uniform and verified == first_verified
                num_rows = 1 + verified
                num_kv += state.num_tokens + verified
                num_attended += num_rows * (state.num_tokens + verified)
                accepted = 0
                if verified:
                    accepted = state.fate.num_accepted(state.num_tokens - state.num_prompt_tokens, verified)
                result = RequestResult(entry.request_id, entry.epoch, self._tokens(accepted + 1), verified, accepted)
            state.num_tokens += len(result.token_ids)
            state.draft_handle = -1
            num_drafts = min(entry.num_draft_tokens, state.max_total_tokens - state.num_tokens - 1)
            if num_drafts > 0:
                state.draft_handle, state.num_drafts = step, num_drafts
                result.num_draft_tokens = num_drafts
                result.draft_confidences = state.fate.confidences(
                    state.num_tokens - state.num_prompt_tokens, num_drafts
                )
                num_draft_requests += 1
            else:
                num_skipped += bool(entry.num_draft_tokens)
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

    def _tokens(self, count: int) -> list[int]:
        """A list of `count` tokens; shared, nobody changes it."""
        runs = self._token_runs
        while len(runs) <= count:
            runs.append([TOKEN_ID] * len(runs))
        return runs[count]
