"""The bar: schedule + commit at 256 running requests within 1 ms (docs/performance.md has the figure)."""

from __future__ import annotations

import gc
from random import Random

import pytest
from driver import make_config, make_request
from machine_speed import skip_if_slow

from slipstream.scheduler.protocol import RequestResult, StepPlan, StepResult
from slipstream.scheduler.scheduler import Scheduler

NUM_REQUESTS = 256
K = 5
PROMPT_TOKENS = 32


class FreeExecutor:
    """Accepts 3 or 4 of K drafts and makes K new ones, in no time worth measuring."""

    def __init__(self) -> None:
        self._random = Random(1)

    def execute(self, plan: StepPlan) -> StepResult:
        random = self._random
        results = []
        for entry in plan.requests:
            accepted = min(random.choice((3, 4)), entry.num_verify_rows)
            tokens = [random.randrange(1000, 40000) for _ in range(accepted + 1)] if entry.emits else []
            results.append(
                RequestResult(
                    entry.request_id, entry.epoch, tokens, entry.num_verify_rows, accepted, entry.num_draft_tokens
                )
            )
        return StepResult(plan.step, results, num_target_rows=plan.num_target_rows)


def steady_scheduler() -> tuple[Scheduler, FreeExecutor]:
    """256 requests that decode for long, K drafts each, prefix cache on, stop ids set."""
    scheduler = Scheduler(
        make_config(
            max_num_batched_tokens=4096,
            max_num_seqs=NUM_REQUESTS,
            max_model_len=8192,
            block_size=16,
            num_kv_blocks=NUM_REQUESTS * 120,
            layout_name="dspark",
            num_speculative_tokens=K,
        )
    )
    random = Random(0)
    for index in range(NUM_REQUESTS):
        prompt = [random.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)]
        scheduler.add_request(make_request(f"request-{index}", prompt, None, eos=(2,), stop_token_ids=(3, 4)))
    executor = FreeExecutor()
    while scheduler.num_waiting or any(r.num_output_tokens < 2 for r in scheduler.running):
        plan = scheduler.schedule(0.0)
        scheduler.commit(plan, executor.execute(plan))
    return scheduler, executor


@pytest.mark.timing
@pytest.mark.benchmark(group="scheduler", warmup=False)
def test_schedule_and_commit_within_a_millisecond(benchmark) -> None:
    skip_if_slow()
    scheduler, executor = steady_scheduler()
    emitted = []
    state = {"plan": scheduler.schedule(0.0)}

    def next_step() -> tuple[tuple[StepPlan, StepResult], dict[str, object]]:
        plan = state["plan"]
        return (plan, executor.execute(plan)), {}

    def step(plan: StepPlan, result: StepResult) -> None:
        outputs = scheduler.commit(plan, result)
        state["plan"] = scheduler.schedule(1.0)
        emitted.append(len(outputs))

    gc.collect()
    benchmark.pedantic(step, setup=next_step, rounds=200, warmup_rounds=10)
    assert set(emitted) == {NUM_REQUESTS}
    assert scheduler.num_running == NUM_REQUESTS
    assert scheduler.kv.pool.num_cached > NUM_REQUESTS * 40, "the prefix cache was at work"
    assert benchmark.stats.stats.median <= 1e-3
