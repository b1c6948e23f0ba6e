"""Hypothesis drives the scheduler with random traffic; every step is checked against the invariants of design 3.

Arrivals, aborts, lengths, budgets, pools, layouts, priorities and lag are all drawn. The scripted executor reads every
prefix back through the block tables, so that any fault in KV accounting changes the text.
"""

from __future__ import annotations

from random import Random

import pytest
from driver import drive, make_config, make_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.request import RequestError
from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftRequest
from slipstream.scheduler.scheduler import Scheduler
from slipstream.scheduler.statistics import SchedulerStatistics
from slipstream.simulation.drafters import ScriptedDrafter, predict_with
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor

VOCAB = 16
EOS = 15
LOGITS = HashedLogits(VOCAB, seed=3, window=1, scale=2.0)
STEPS = {"count": 0}


def plain_text(prompt: list[int], max_total_tokens: int, ignore_eos: bool) -> list[int]:
    """What the target says on its own."""
    tokens = list(prompt)
    while len(tokens) < max_total_tokens:
        tokens.append(int(LOGITS(tokens).argmax()))
        if tokens[-1] == EOS and not ignore_eos:
            break
    return tokens[len(prompt) :]


@st.composite
def traffic(draw):
    """Settings that resolve_settings would let through, and a seed for everything else."""
    layout = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    most = draw(st.integers(0, 8))
    seats = draw(st.integers(1, 9))
    budget = draw(st.integers(seats, 64))
    shared = draw(st.booleans()) and budget > seats * layout.reserved_slots(most)
    needed = layout.default_draft_capacity(budget, seats, most)
    least = layout.draft_query_rows(seats if layout.carries_target_rows else 1, most)
    capacity = needed if shared or not most else draw(st.integers(min(least, needed), needed))
    block_size = draw(st.sampled_from((1, 4, 16)))
    config = make_config(
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        max_model_len=draw(st.integers(8, 96)),
        block_size=block_size,
        num_kv_blocks=draw(st.integers(2, 160)) if block_size < 16 else draw(st.integers(2, 24)),
        layout_name=layout.method,
        num_speculative_tokens=most,
        draft_budget="shared" if shared else "separate",
        draft_capacity=capacity,
        min_prefill_tokens=draw(st.integers(0, budget)),
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from((0, 1, 7))),
        draft_max_model_len=draw(st.sampled_from((None, 24))),
        priority_ageing_s=draw(st.sampled_from((1.0, 30.0))),
    )
    return config, draw(st.integers(0, 1)), draw(st.integers(0, 2**31))


def run_traffic(config, lag: int, seed: int, costs: StepCosts | None = None) -> SchedulerStatistics:
    random = Random(seed)
    scheduler = Scheduler(config, costs=costs)
    predict = predict_with(LOGITS)
    layout = LAYOUTS[config.layout_name]

    def offered(request: DraftRequest, call: int) -> int:
        return random.randrange(request.num_draft_tokens + 1) if random.random() < 0.3 else request.num_draft_tokens

    def sometimes_right(request: DraftRequest, prefix: list[int]) -> int:
        token = predict(request, prefix)
        return token if random.random() < 0.7 else random.randrange(VOCAB)

    executor = ScriptedExecutor(
        LOGITS,
        num_kv_blocks=config.num_kv_blocks,
        block_size=config.block_size,
        drafter=ScriptedDrafter(layout, sometimes_right, VOCAB, num_offered=offered),
        max_model_len=config.max_model_len,
    )
    prefix = [random.randrange(VOCAB - 1) for _ in range(40)]
    expected: dict[str, list[int]] = {}
    live: list[str] = []
    aborted: set[str] = set()
    to_come = random.randrange(1, 24)

    def before_step(step: int) -> None:
        nonlocal to_come
        while to_come and random.random() < 0.5:
            to_come -= 1
            length = random.randrange(1, min(config.max_model_len + 4, 60))
            prompt = (prefix if random.random() < 0.5 else [])[: random.randrange(1, 41)]
            prompt = (prompt + [random.randrange(VOCAB - 1) for _ in range(length)])[:length]
            request = make_request(
                f"r{to_come}",
                prompt,
                random.choice((1, 2, 3, 12, 40, None)),
                eos=(EOS,),
                ignore_eos=random.random() < 0.5,
                priority=random.randrange(3),
                arrival_time=float(step),
            )
            try:
                scheduler.add_request(request)
            except RequestError:
                assert len(prompt) >= scheduler.max_request_tokens
                continue
            expected[request.request_id] = plain_text(prompt, request.max_total_tokens, request.sampling.ignore_eos)
            live.append(request.request_id)
        if live and random.random() < 0.08:
            victim = random.choice(live)
            if scheduler.abort(victim):
                aborted.add(victim)

    run = drive(scheduler, executor, lag=lag, before_step=before_step, max_steps=20_000)
    while to_come:  # the last arrivals may come when nothing is left to do
        run_more = drive(scheduler, executor, lag=lag, before_step=before_step, max_steps=20_000)
        run.plans += run_more.plans
        for name, tokens in run_more.token_ids.items():
            run.token_ids.setdefault(name, []).extend(tokens)
    for name, text in expected.items():
        if name in aborted:
            assert text[: len(run.token_ids.get(name, []))] == run.token_ids.get(name, [])
        else:
            assert run.token_ids[name] == text, name
    assert scheduler.kv.pool.num_used == 0
    assert scheduler.statistics.num_accepted_tokens <= scheduler.statistics.num_verified_tokens
    assert scheduler.statistics.num_verified_tokens <= scheduler.statistics.num_admitted_tokens
    return scheduler.statistics


def num_steps(statistics: SchedulerStatistics) -> int:
    return sum(statistics.num_steps.values())


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(traffic())
def test_random_traffic_holds_the_invariants(drawn) -> None:
    STEPS["count"] += num_steps(run_traffic(*drawn))


def test_ten_thousand_steps_were_driven() -> None:
    """Runs after the property test; tops it up with seeded traffic where Hypothesis drew short runs."""
    random = Random(7)
    while STEPS["count"] < 10_000:
        layout = random.choice(sorted(LAYOUTS))
        config = make_config(
            max_num_batched_tokens=random.randrange(8, 40),
            max_num_seqs=random.randrange(1, 8),
            max_model_len=80,
            block_size=4,
            num_kv_blocks=random.randrange(21, 60),
            layout_name=layout,
            num_speculative_tokens=random.randrange(0, 8),
        )
        STEPS["count"] += num_steps(run_traffic(config, random.randrange(2), random.randrange(2**31)))
    assert STEPS["count"] >= 10_000


@pytest.mark.parametrize("lag", [0, 1])
def test_tight_pools_preempt(lag: int) -> None:
    """Fixed seeds with a tight pool really preempt, so that the property above covers it."""
    config = make_config(
        max_num_batched_tokens=24,
        max_num_seqs=6,
        max_model_len=80,
        block_size=4,
        num_kv_blocks=22,
        layout_name="dflash",
        num_speculative_tokens=4,
    )
    assert sum(run_traffic(config, lag, seed).num_preemptions for seed in range(12)) > 0
