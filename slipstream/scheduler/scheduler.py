"""Scheduler: which requests run in each step, with how many rows (design 1, 3, 6). Pure Python; reads no clock."""

from __future__ import annotations

from slipstream.config import SchedulerConfig
from slipstream.kv.manager import KVManager
from slipstream.request import FinishReason, Request, RequestError, RequestOutput, RequestStatus
from slipstream.scheduler.brains import acceptance_for, drafting_for, planner_for, policy_for
from slipstream.scheduler.costs import StepCosts, shape_of
from slipstream.scheduler.drafting import DraftingCandidates, DraftingDecision, DraftingPolicy
from slipstream.scheduler.layouts import LAYOUTS, DraftCostTable
from slipstream.scheduler.policy import StepPolicy
from slipstream.scheduler.protocol import (
    RequestResult,
    ScheduledRequest,
    StepKind,
    StepMode,
    StepPlan,
    StepResult,
    StopChecker,
)
from slipstream.scheduler.queue import WaitingQueue
from slipstream.scheduler.separate import SeparateBudget
from slipstream.scheduler.shared import SharedBudget
from slipstream.scheduler.statistics import SchedulerStatistics, StepTotals
from slipstream.scheduler.step_builder import StepBuilder
from slipstream.scheduler.stopping import TokenStopChecker
from slipstream.scheduler.verification import VerificationPlanner

_NO_DRAFTS = DraftingDecision(0)


class Scheduler:
    """Owns requests from arrival to end, and the KV pool.

    `schedule` and `commit` alternate; at lag 1 one more `schedule` comes before each `commit`. Rows in flight are upper
    bounds: a decode of Q rows in flight advances its request by 1 to Q tokens.

    Attributes:
        config, layout: sizes, and the costs of the speculation method in use.
        kv: block tables and prefix cache.
        running: requests with a seat, in admission order. waiting: the others.
        statistics: counters that only grow.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        stop_checker: StopChecker | None = None,
        policy: StepPolicy | None = None,
        planner: VerificationPlanner | None = None,
        drafting: DraftingPolicy | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        self.config = config
        self.layout = LAYOUTS[config.layout_name]
        self.kv = KVManager(config.num_kv_blocks, config.block_size, config.enable_prefix_caching)
        self.running: list[Request] = []
        self.waiting = WaitingQueue(config.priority_ageing_s)
        self.statistics = SchedulerStatistics.for_drafts(config.num_speculative_tokens)
        self._stop_checker = stop_checker or TokenStopChecker()
        self.acceptance = acceptance_for(config)
        self._drafting = drafting or drafting_for(config)
        self._last_drafting: DraftingDecision | None = None
        self._costs = costs
        self._budget: SeparateBudget | SharedBudget
        if config.draft_budget == "separate":
            self._budget = SeparateBudget(
                policy or policy_for(config), planner or planner_for(config), self.acceptance, costs
            )
        else:
            self._budget = SharedBudget()
        self._draft_costs = DraftCostTable.of(self.layout, config.num_speculative_tokens)
        self._requests: dict[str, Request] = {}
        self._released: list[str] = []
        self._next_step = 0
        self._next_epoch = 0

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output tokens of one request at most: the model's limit, or the whole KV pool if smaller."""
        return min(self.config.max_model_len, self.config.num_kv_blocks * self.config.block_size)

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def costs(self) -> StepCosts | None:
        """The cost table that steps are decided by."""
        return self._costs

    def set_costs(self, costs: StepCosts | None) -> None:
        """Decide by another cost table from the next step on: one that was just measured, or refitted."""
        self._costs = costs
        if isinstance(self._budget, SeparateBudget):
            self._budget.costs = costs

    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._requests)

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises RequestError when it could never be served."""
        if request.request_id in self._requests:
            raise RequestError(f"request id {request.request_id!r} is in use", "request_id")
        length, limit = request.num_prompt_tokens, self.max_request_tokens
        if length == 0:
            raise RequestError("the prompt is empty; at least 1 token is needed", "prompt")
        if length >= limit:
            if limit < self.config.max_model_len:
                bound = (
                    f"the KV pool holds {self.config.num_kv_blocks} blocks of {self.config.block_size} = {limit} tokens"
                )
            else:
                bound = f"this model's max_model_len is {limit} tokens"
            raise RequestError(
                f"the prompt has {length} tokens, but {bound}, prompt and output together; "
                f"the longest prompt that works is {limit - 1}",
                "prompt",
                "context_length_exceeded",
            )
        max_tokens = request.sampling.max_tokens
        request.max_total_tokens = limit if max_tokens is None else min(length + max_tokens, limit)
        request.epoch = self._take_epoch()
        self._requests[request.request_id] = request
        self.waiting.add(request)

    def abort(self, request_id: str) -> bool:
        """End a request at once, whatever it is doing; False when there is none with this id."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._end(request, FinishReason.ABORT, None)
        return True

    def forget_cached(self) -> None:
        """Drop what the prefix cache holds; running requests keep their blocks."""
        self.kv.pool.forget_cached()

    def _take_epoch(self) -> int:
        self._next_epoch += 1
        return self._next_epoch - 1

    def _end(self, request: Request, reason: FinishReason, stop_reason: int | str | None) -> None:
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.kv.free(request)
            self._released.append(request.request_id)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason
        del self._requests[request.request_id]
        self.acceptance.forget(request.request_id)
        finished = self.statistics.num_finished
        finished[reason.value] = finished.get(reason.value, 0) + 1

    # -- schedule -------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step; its `requests` are empty when nothing can run. `now`: seconds on the engine's clock."""
        drafting = self._decide_drafting()
        step = StepBuilder(
            step=self._next_step,
            now=now,
            config=self.config,
            layout=self.layout,
            kv=self.kv,
            running=self.running,
            waiting=self.waiting,
            drafting=drafting,
            draft_costs=self._draft_costs,
            next_epoch=self._next_epoch,
        )
        if drafting.reason:
            step.reasons.append(drafting.reason)
        self._budget.fill(step)
        self._next_epoch = step.next_epoch
        self.statistics.num_preemptions += len(step.preempted)
        for cause, count in step.without_drafts.items():
            self.statistics.num_without_drafts[cause] += count
        released = self._released + [request.request_id for request in step.preempted]
        plan = _plan_of(step, released, self._costs)
        self._released = [] if plan.requests else released  # nobody runs an empty plan
        self._next_step += bool(plan.requests)
        return plan

    def _decide_drafting(self) -> DraftingDecision:
        """Who may draft after the next step."""
        most = self.config.num_speculative_tokens
        if not most:
            return _NO_DRAFTS
        decodes = [request for request in self.running if not request.is_prefilling]
        num_kv_tokens = 0
        if self._costs is not None:
            num_kv_tokens = sum([len(request.token_ids) for request in decodes])
        decision = self._drafting.decide(
            DraftingCandidates(
                self._next_step,
                decodes,
                most,
                num_kv_tokens,
                self.layout,
                self.acceptance,
                self.config.max_num_batched_tokens,
                self._last_drafting,
                self._budget.row_bound_share if isinstance(self._budget, SeparateBudget) else 0.0,
            ),
            self._costs,
        )
        last, self._last_drafting = self._last_drafting, decision
        if last is not None:
            self.acceptance.probing = last.probes
            if decision.most and not last.most:
                self.acceptance.doubt()
        return decision

    # -- commit ---------------------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, result: StepResult) -> list[RequestOutput]:
        """Advance requests by what a step did. Results of requests that ended or started over since are dropped."""
        statistics = self.statistics
        kind = plan.kind.value
        statistics.num_steps[kind] = statistics.num_steps.get(kind, 0) + 1
        statistics.num_target_rows += result.num_target_rows
        statistics.num_prefill_rows += plan.num_prefill_rows
        statistics.num_verify_rows += plan.num_verify_rows
        statistics.num_draft_query_rows += result.num_draft_query_rows
        statistics.last_target_rows = result.num_target_rows
        statistics.last_draft_query_rows = result.num_draft_query_rows
        statistics.num_skipped_drafts += result.num_skipped_drafts
        outputs: list[RequestOutput] = []
        requests = self._requests
        admitted_lengths = statistics.admitted_lengths
        num_decodes = 0
        for scheduled, outcome in zip(plan.requests, result.results, strict=True):
            if not scheduled.is_prefill:
                num_decodes += 1
                admitted_lengths[scheduled.num_verify_rows] += 1
            request = requests.get(scheduled.request_id)
            if request is None or request.epoch != scheduled.epoch:
                statistics.num_stale_results += 1
                continue
            request.in_flight_rows -= scheduled.num_target_rows
            if outcome.prompt_logprobs:
                # Rows that run again after a preemption say the same again.
                request.prompt_logprobs[request.num_computed_tokens :] = outcome.prompt_logprobs
            if outcome.error is not None:
                outputs.append(RequestOutput(request.request_id, [], FinishReason.ERROR, error=outcome.error))
                self._end(request, FinishReason.ERROR, None)
            elif scheduled.emits:
                request.in_flight_emits -= 1
                outputs.append(self._commit_tokens(request, scheduled, outcome, plan.step))
            else:
                request.num_computed_tokens += scheduled.num_target_rows
                self.kv.cache_computed(request)
        self._count_step(plan, result, num_decodes)
        return outputs

    def _count_step(self, plan: StepPlan, result: StepResult, num_decodes: int) -> None:
        key = plan.kind.value, result.mode.value
        totals = self.statistics.steps.get(key)
        if totals is None:
            totals = self.statistics.steps[key] = StepTotals()
        totals.num_steps += 1
        totals.num_draft_query_rows += result.num_draft_query_rows
        if result.num_target_rows:  # a step that failed ran none
            totals.num_prompt_rows += plan.num_prefill_rows
            totals.num_decode_rows += num_decodes
            totals.num_verify_rows += result.num_target_rows - plan.num_prefill_rows - num_decodes
            totals.num_padding_rows += max(plan.num_padded_rows - plan.num_target_rows, 0)

    def _commit_tokens(
        self, request: Request, scheduled: ScheduledRequest, outcome: RequestResult, step: int
    ) -> RequestOutput:
        """Append emitted tokens up to a stop, before any of them is hashed or counted."""
        token_ids = outcome.token_ids
        num_verified, num_accepted = outcome.num_verified, outcome.num_accepted
        logprobs, refused = outcome.logprobs, outcome.refused_draft_ids
        is_first = not request.num_output_tokens
        try:
            verdict = self._stop_checker.check(request, token_ids)
        except Exception as error:  # what is wrong with one request's text is no reason to end the others
            self._end(request, FinishReason.ERROR, None)
            message = f"its stops could not be checked: {type(error).__name__}: {error}"
            return RequestOutput(request.request_id, [], FinishReason.ERROR, error=message)
        if verdict is not None and verdict.num_kept_tokens < len(token_ids):
            kept = verdict.num_kept_tokens
            token_ids = token_ids[:kept]
            num_verified, num_accepted = min(num_verified, kept), min(num_accepted, kept)
            logprobs = logprobs[:kept] if logprobs is not None else None
            refused = ()
        request.token_ids += token_ids
        # Rows of known tokens all count, draft rows as far as they were accepted.
        computed = request.num_computed_tokens + scheduled.num_target_rows - scheduled.num_verify_rows + num_accepted
        request.num_computed_tokens = computed
        if computed // self.kv.block_size > request.num_hashed_blocks:
            self.kv.cache_computed(request)
        if request.draft_handle == step:
            request.num_draft_tokens = outcome.num_draft_tokens
            request.draft_confidences = outcome.draft_confidences

        statistics = self.statistics
        statistics.num_output_tokens += len(token_ids)
        if outcome.num_draft_tokens:
            statistics.draft_lengths[outcome.num_draft_tokens] += 1
        if not scheduled.is_prefill:
            statistics.num_decode_tokens += len(token_ids)
            statistics.acceptance_histogram[num_verified][num_accepted] += 1
            if self._costs is not None and num_verified:
                self.acceptance.observe(request.request_id, num_verified, num_accepted)
        if self._costs is not None and outcome.num_draft_tokens:
            self.acceptance.note_drafts(request.request_id, outcome.draft_confidences)
        output = RequestOutput(
            request.request_id,
            token_ids,
            None,
            None,
            num_verified,
            num_accepted,
            request.num_cached_tokens,
            logprobs,
            num_drafted=outcome.num_draft_tokens,
            num_admitted=scheduled.num_verify_rows,
            refused_draft_ids=refused,
        )
        if is_first and request.sampling.prompt_logprobs is not None:
            output.prompt_logprobs = request.prompt_logprobs
        if verdict is not None:
            output.finish_reason, output.stop_reason = verdict.finish_reason, verdict.stop_reason
            output.num_preemptions = request.num_preemptions
            self._end(request, verdict.finish_reason, verdict.stop_reason)
        return output


def _plan_of(step: StepBuilder, released: list[str], costs: StepCosts | None) -> StepPlan:
    """The finished plan with its sums, kind, mode and reason."""
    requests = step.decodes + step.prefills
    num_rows = num_draft_rows = 0
    for entry in requests:
        num_rows += entry.num_target_rows
        num_draft_rows += entry.num_draft_query_rows
    num_prefill = sum([entry.num_target_rows for entry in step.prefills])
    num_verify = num_rows - num_prefill - len(step.decodes)
    kind = StepKind.EMPTY
    if step.decodes:
        kind = StepKind.MIXED if step.prefills else StepKind.DECODE
    elif step.prefills:
        kind = StepKind.PREFILL
    if step.preempted:
        step.reasons.append(f"{len(step.preempted)} preempted for want of KV blocks")
    reason = "; ".join(
        [f"{len(step.decodes)} decodes, {num_verify} verify rows, {num_prefill} prompt rows", *step.reasons]
    )
    plan = StepPlan(
        step=step.step,
        requests=requests,
        new_requests=step.new_requests,
        released_request_ids=released,
        kind=kind,
        mode=StepMode.EAGER,
        num_target_rows=num_rows,
        num_prefill_rows=num_prefill,
        num_verify_rows=num_verify,
        num_draft_query_rows=num_draft_rows,
        num_padded_rows=num_rows,
        reason=reason,
    )
    if costs is not None and requests:
        run = costs.dispatch(shape_of(plan))
        plan.mode, plan.num_padded_rows, plan.graph_key = run.mode, run.num_padded_rows, run.graph_key
        plan.costs_version = costs.version
    return plan
