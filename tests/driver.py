"""Drives a scheduler and an executor without an engine: step loop at lag 0 or 1, invariants checked at every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from slipstream.config import SchedulerConfig
from slipstream.request import FinishReason, Request, RequestOutput, SamplingParams
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import Executor, StepPlan, StepResult
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.invariants import InvariantChecker


def make_config(
    *,
    max_num_batched_tokens: int = 64,
    max_num_seqs: int = 8,
    max_model_len: int = 256,
    block_size: int = 16,
    num_kv_blocks: int = 256,
    layout_name: str = "ngram",
    num_speculative_tokens: int = 0,
    draft_capacity: int | None = None,
    min_prefill_tokens: int | None = None,
    **other: object,
) -> SchedulerConfig:
    """A SchedulerConfig with small defaults; D and min_prefill_tokens as the engine would choose them."""
    layout = LAYOUTS[layout_name]
    if draft_capacity is None:
        draft_capacity = layout.default_draft_capacity(max_num_batched_tokens, max_num_seqs, num_speculative_tokens)
    if min_prefill_tokens is None:
        min_prefill_tokens = max(max_num_batched_tokens // 8, 1)
    return SchedulerConfig(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        block_size=block_size,
        num_kv_blocks=num_kv_blocks,
        layout_name=layout_name,
        num_speculative_tokens=num_speculative_tokens,
        draft_capacity=draft_capacity,
        min_prefill_tokens=min_prefill_tokens,
        **other,  # type: ignore[arg-type]
    )


def make_request(
    request_id: str, prompt: Iterable[int], max_tokens: int | None = 16, *, eos: Iterable[int] = (), **kwargs: object
) -> Request:
    """A greedy request; sampling parameters and Request arguments by name."""
    request_fields = {"seed", "choice_index", "priority", "arrival_time", "cache_salt"}
    for_request = {key: value for key, value in kwargs.items() if key in request_fields}
    for_sampling = {"temperature": 0.0} | {key: value for key, value in kwargs.items() if key not in request_fields}
    sampling = SamplingParams(max_tokens=max_tokens, **for_sampling)  # type: ignore[arg-type]
    return Request(request_id, list(prompt), sampling, eos_token_ids=tuple(eos), **for_request)  # type: ignore[arg-type]


@dataclass
class Run:
    """What came out: tokens and outputs per request, and every step."""

    token_ids: dict[str, list[int]] = field(default_factory=dict)
    finish_reasons: dict[str, FinishReason] = field(default_factory=dict)
    stop_reasons: dict[str, int | str | None] = field(default_factory=dict)
    outputs: list[RequestOutput] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    num_running: list[int] = field(default_factory=list)
    num_verified: int = 0

    def note(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            self.outputs.append(output)
            self.token_ids.setdefault(output.request_id, []).extend(output.new_token_ids)
            self.num_verified += output.num_verified
            if output.finish_reason is not None:
                self.finish_reasons[output.request_id] = output.finish_reason
                self.stop_reasons[output.request_id] = output.stop_reason


def drive(
    scheduler: Scheduler,
    executor: Executor,
    requests: Iterable[Request] = (),
    *,
    lag: int = 0,
    before_step: Callable[[int], None] | None = None,
    max_steps: int = 100_000,
) -> Run:
    """Run until nothing is left. `before_step(n)` may add or abort requests before step n is planned."""
    run = Run()
    checker = InvariantChecker(scheduler)
    for request in requests:
        scheduler.add_request(request)
    outstanding: deque[tuple[StepPlan, StepResult]] = deque()
    for step in range(max_steps):
        if before_step is not None:
            before_step(step)
        plan = scheduler.schedule(float(step))
        checker.check_plan(plan)
        run.num_running.append(scheduler.num_running)
        if plan.requests:
            result = executor.execute(plan)
            run.plans.append(plan)
            run.results.append(result)
            outstanding.append((plan, result))
        while len(outstanding) > (lag if plan.requests else 0):
            run.note(scheduler.commit(*outstanding.popleft()))
            checker.check_pool()
        if not plan.requests and not scheduler.has_work():
            return run
    raise AssertionError(f"still running after {max_steps} steps: {scheduler.running}, {len(scheduler.waiting)} wait")
