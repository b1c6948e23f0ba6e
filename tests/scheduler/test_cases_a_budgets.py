"""Reported faults, kind A: token budgets, draft slots, admission, fairness. The ids are those of tests/cases.toml."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from case_rig import CountingExecutor, Rig, counting, make_rig, offering, plain_tokens, prompt, shares
from driver import Run, drive, make_config, make_request
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.config import (
    ModelFacts,
    SchedulerSettings,
    SettingError,
    Settings,
    SpeculativeSettings,
    resolve_settings,
)
from slipstream.request import FinishReason, RequestError, RequestStatus
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import StepKind, StepPlan
from slipstream.scheduler.scheduler import Scheduler
from slipstream.scheduler.verification import TurnByTurnPlanner
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor

EACH_LAYOUT = pytest.mark.parametrize("layout_name", LAYOUTS)
LAYOUTS_WITH_OWN_PASS = ("dflash", "dspark", "dspark_fill_in")
"""Those whose drafter's pass does not repeat the target's rows, so that a request may skip it."""


def first_step(rig: Rig, *requests) -> StepPlan:
    for request in requests:
        rig.scheduler.add_request(request)
    return rig.scheduler.schedule(0.0)


def decoding(rig: Rig, count: int, *, max_tokens: int | None = None, prompt_tokens: int = 1) -> None:
    """Bring `count` requests `d0`, `d1`, … to where all of them decode."""
    for index in range(count):
        rig.scheduler.add_request(make_request(f"d{index}", prompt(prompt_tokens, index), max_tokens))
    step = 0
    while any(r.num_output_tokens == 0 for r in rig.scheduler._requests.values()):
        plan = rig.scheduler.schedule(float(step))
        rig.scheduler.commit(plan, rig.executor.execute(plan))
        step += 1
        assert step < 1000
    assert rig.scheduler.num_running == count


# -- A1, A2: the two pools, each with its own formula ----------------------------------------


@pytest.mark.parametrize("layout_name", LAYOUTS_WITH_OWN_PASS)
def test_A1_prompts_that_fit_both_stages_are_both_admitted(layout_name: str) -> None:
    rig = make_rig(
        "oracle",
        max_num_batched_tokens=16,
        max_num_seqs=8,
        layout_name=layout_name,
        num_speculative_tokens=4,
        draft_capacity=16,
    )
    plan = first_step(rig, make_request("a", prompt(8)), make_request("b", prompt(8, 1)))
    assert shares(plan) == {"a": 8, "b": 8}
    assert all(entry.num_draft_tokens == 4 for entry in plan.requests), "both draft as well"


@pytest.mark.parametrize("lag", [0, 1])
def test_A1_four_of_five_may_draft_and_the_fifth_still_gets_its_token(lag: int) -> None:
    rig = make_rig(
        "oracle",
        max_num_batched_tokens=64,
        max_num_seqs=8,
        layout_name="dspark",
        num_speculative_tokens=4,
        draft_capacity=16,
    )
    requests = [make_request(f"r{i}", prompt(1, i), 60) for i in range(5)]
    run = rig.drive(requests, lag=lag)
    full = [plan for plan in run.plans if len(plan.requests) == 5 and plan.kind is StepKind.DECODE]
    assert len(full) > 8
    skipped = Counter()
    for plan in full:
        drafting = {entry.request_id for entry in plan.requests if entry.num_draft_tokens}
        if all(entry.num_computed_tokens < 50 for entry in plan.requests):
            assert len(drafting) == 4 and plan.num_draft_query_rows == 16
            skipped[next(e.request_id for e in plan.requests if e.request_id not in drafting)] += 1
    assert len(skipped) == 5, "who goes without rotates"
    assert run.token_ids == plain_tokens([make_request(f"r{i}", prompt(1, i), 60) for i in range(5)])


@EACH_LAYOUT
@pytest.mark.parametrize("draft_capacity", [1, 2, 8, 16, 64, 128, 8192])
def test_A2_draft_capacity_is_never_passed_and_no_slack_is_thrown_away(layout_name: str, draft_capacity: int) -> None:
    layout = LAYOUTS[layout_name]
    most = 7

    @settings(max_examples=25, deadline=None)
    @given(st.integers(1, 200), st.integers(0, 6), st.integers(0, 4))
    def check(prompt_tokens: int, num_decodes: int, num_offered: int) -> None:
        seats = num_decodes + 1
        if layout.carries_target_rows and draft_capacity < seats:
            return  # refused at the start: each running request needs its own row in the pass
        executor = CountingExecutor(accepted=0)
        config = make_config(
            max_num_batched_tokens=8192,
            max_num_seqs=seats,
            max_model_len=16384,
            num_kv_blocks=4096,
            layout_name=layout_name,
            num_speculative_tokens=most,
            draft_capacity=draft_capacity,
        )
        scheduler = Scheduler(config)
        requests = [make_request(f"d{i}", [5], 4000) for i in range(num_decodes)]
        for request in requests:
            scheduler.add_request(request)
        num_steps = 0
        while any(request.num_output_tokens < 2 for request in requests):
            num_steps += 1
            assert num_steps < 50, "somebody waits while others draft"
            plan = scheduler.schedule(0.0)
            assert plan.num_draft_query_rows <= draft_capacity
            result = executor.execute(plan)
            for outcome in result.results:
                outcome.num_draft_tokens = min(outcome.num_draft_tokens, num_offered)
            scheduler.commit(plan, result)
        scheduler.add_request(make_request("new", [5] * prompt_tokens, 4000))
        plan = scheduler.schedule(0.0)
        used = sum(layout.draft_query_rows(e.num_target_rows, e.num_draft_tokens) for e in plan.requests)
        assert used == plan.num_draft_query_rows <= draft_capacity
        left = draft_capacity - used
        entries = {entry.request_id: entry for entry in plan.requests}
        assert all(f"d{i}" in entries for i in range(num_decodes)), "every decode has its row"
        chunk = entries["new"].num_target_rows if "new" in entries else 0
        if layout.carries_target_rows:
            # Its rows shrink with D, but by no row more than needed.
            assert chunk == prompt_tokens or left == 0
        else:
            assert chunk == prompt_tokens, "target rows are none of D's business"
        silent = [e for e in plan.requests if e.emits and not e.num_draft_tokens]
        assert not silent or left < layout.draft_query_rows(0, most), "one more request could have drafted"

    check()


@EACH_LAYOUT
def test_A2_a_lone_long_prompt_runs_in_one_step(layout_name: str) -> None:
    config = make_config(
        max_num_batched_tokens=8192,
        max_num_seqs=8,
        max_model_len=16384,
        num_kv_blocks=2048,
        layout_name=layout_name,
        num_speculative_tokens=7,
    )
    scheduler = Scheduler(config)
    scheduler.add_request(make_request("long", [5] * 8192))
    plan = scheduler.schedule(0.0)
    assert shares(plan) == {"long": 8192} and plan.requests[0].emits
    assert plan.requests[0].num_draft_tokens == 7


# -- A5, A7: the shared pool, kept to be measured ----------------------------------------


def resolve(method_layout: str, most: int, **scheduler: object):
    speculative = SpeculativeSettings(
        method="forced", layout=method_layout, num_speculative_tokens=most, acceptance_length=2.0
    )
    settings_tree = Settings(scheduler=SchedulerSettings(**scheduler), speculative=speculative)  # type: ignore[arg-type]
    facts = ModelFacts(max_position=4096, kv_bytes_per_token=1024)
    return resolve_settings(settings_tree, facts, LAYOUTS[method_layout])


@pytest.mark.parametrize(("layout_name", "most"), [("pard", 16), ("dspark", 17), ("dflash", 16)])
def test_A5_a_shared_pool_without_rows_says_which_flags_to_change(layout_name: str, most: int) -> None:
    sizes = {"max_num_batched_tokens": 2048, "max_num_seqs": 240}
    with pytest.raises(SettingError) as caught:
        resolve(layout_name, most, draft_budget="shared", **sizes)
    message = str(caught.value)
    for number in ("2048", "240", str(most), "-1792"):
        assert re.search(rf"(?<!\d){number}(?!\d)", message), f"{number} is missing in {message!r}"
    for flag in ("--max-num-batched-tokens", "--max-num-seqs", "num_speculative_tokens", "--draft-budget separate"):
        assert flag in message
    # What it recommends works.
    for flag, name in (("--max-num-batched-tokens", "max_num_batched_tokens"), ("--max-num-seqs", "max_num_seqs")):
        value = int(re.findall(rf"{flag} (\d+)", message)[-1])
        assert value != sizes[name]
        resolve(layout_name, most, draft_budget="shared", **(sizes | {name: value}))
    assert resolve(layout_name, most, **sizes).scheduler.max_num_seqs == 240, "split budgets simply start"


@pytest.mark.parametrize("layout_name", [name for name in LAYOUTS if LAYOUTS[name].draft_query_rows(1, 16) > 1])
def test_A5_draft_capacity_too_small_for_one_request_is_refused(layout_name: str) -> None:
    least = LAYOUTS[layout_name].draft_query_rows(1, 16)
    with pytest.raises(SettingError) as caught:
        resolve(layout_name, 16, max_num_seqs=1, max_num_batched_tokens=64, draft_capacity=least - 1)
    message = str(caught.value)
    assert f"--draft-capacity {least - 1}" in message and f"at least {least} " in message and "16" in message
    resolve(layout_name, 16, max_num_seqs=1, max_num_batched_tokens=64, draft_capacity=least)


@pytest.mark.parametrize(("live", "rows"), [(1, 8186), (32, 8000), (128, 7424), (1024, 2048)])
@pytest.mark.parametrize("draft_budget", ["shared", "separate"])
def test_A7_only_live_requests_are_charged(live: int, rows: int, draft_budget: str) -> None:
    config = make_config(
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
        max_model_len=20000,
        num_kv_blocks=8192,
        layout_name="dspark",
        num_speculative_tokens=7,
        draft_budget=draft_budget,
    )
    rig = Rig(config, Scheduler(config), CountingExecutor(), None)  # type: ignore[arg-type]
    decoding(rig, live - 1)
    for request in rig.scheduler.running:
        request.num_draft_tokens = 0  # nothing to verify, so that what is left is the prompt's
    rig.scheduler.add_request(make_request("prompt", [5] * 10000, 4))
    plan = rig.scheduler.schedule(0.0)
    assert len(plan.requests) == live
    assert plan.num_target_rows == (rows if draft_budget == "shared" else 8192)
    assert shares(plan)["prompt"] == plan.num_target_rows - (live - 1)


# -- A8, A9, A10: what is granted is what runs ----------------------------------------


@EACH_LAYOUT
@pytest.mark.parametrize("lag", [0, 1])
def test_A8_a_step_packed_to_the_limit_stays_within_it(layout_name: str, lag: int) -> None:
    budget = 64
    rig = make_rig(
        "half",
        max_num_batched_tokens=budget,
        max_num_seqs=8,
        max_model_len=512,
        num_kv_blocks=512,
        layout_name=layout_name,
        num_speculative_tokens=5,
    )
    random = Random(3)
    waiting = [make_request(f"r{i}", prompt(random.randrange(1, 150), i), random.randrange(4, 60)) for i in range(110)]
    run = rig.drive(waiting, lag=lag)
    assert len(run.plans) >= 200
    assert max(result.num_target_rows for result in run.results) <= budget
    assert sum(plan.num_target_rows == budget for plan in run.plans) > 20, "steps were packed"
    assert any(plan.kind is StepKind.MIXED and len(plan.requests) == 8 for plan in run.plans)
    assert all(r.num_draft_query_rows <= rig.config.draft_capacity for r in run.results)
    assert len(run.finish_reasons) == 110


@EACH_LAYOUT
@pytest.mark.parametrize("draft_budget", ["separate", "shared"])
def test_A9_the_chunk_leaves_room_for_every_drafters_rows(layout_name: str, draft_budget: str) -> None:
    rig = make_rig(
        "oracle",
        max_num_batched_tokens=32,
        max_num_seqs=5,
        layout_name=layout_name,
        num_speculative_tokens=4,
        draft_budget=draft_budget,
    )
    decoding(rig, 4, max_tokens=200)
    rig.scheduler.add_request(make_request("prompt", prompt(100), 8))
    plan = rig.scheduler.schedule(0.0)
    rows = shares(plan)
    if draft_budget == "separate":
        assert [rows[f"d{i}"] for i in range(4)] == [5, 5, 5, 5] and rows["prompt"] == 12
    else:
        reserved = LAYOUTS[layout_name].reserved_slots(4)
        assert sum(rows.values()) + reserved * len(rows) <= 32
        assert rows.get("prompt", 0) <= 12
    result = rig.executor.execute(plan)
    assert result.num_target_rows == plan.num_target_rows <= 32


@EACH_LAYOUT
@pytest.mark.parametrize("draft_budget", ["separate", "shared"])
def test_A10_two_live_decodes_are_charged_as_two(layout_name: str, draft_budget: str) -> None:
    config = make_config(
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        max_model_len=16384,
        num_kv_blocks=2048,
        layout_name=layout_name,
        num_speculative_tokens=4,
        draft_budget=draft_budget,
    )
    rig = Rig(config, Scheduler(config), CountingExecutor(), None)  # type: ignore[arg-type]
    decoding(rig, 2)
    rig.scheduler.add_request(make_request("prompt", [5] * 8000, 4))
    rows = shares(rig.scheduler.schedule(0.0))
    assert rows == {"d0": 5, "d1": 5, "prompt": 8000}


# -- A11, A12: drafts are charged as they are, once ----------------------------------------


def test_A11_the_planner_charges_kept_drafts_not_slack() -> None:
    planner = TurnByTurnPlanner()
    for turn in range(4):
        assert planner.distribute([1, 6], None, 8, turn) == [1, 6]
        assert planner.distribute([1, 6], None, 7, turn) == [1, 6]
        assert sum(planner.distribute([1, 6], None, 6, turn)) == 6


@pytest.mark.parametrize("lag", [0, 1])
def test_A11_ragged_drafts_share_the_rows_left(lag: int) -> None:
    logits = HashedLogits(32)
    rig = make_rig(
        offering(1, 6, logits=logits),
        logits=logits,
        max_num_batched_tokens=10,
        max_num_seqs=2,
        num_speculative_tokens=13,
    )
    run = rig.drive([make_request("r0", prompt(1), 60), make_request("r1", prompt(1, 1), 60)], lag=lag)
    together = [
        {e.request_id: r.num_verified for e, r in zip(plan.requests, result.results, strict=True)}
        for plan, result in zip(run.plans, run.results, strict=True)
        if len(plan.requests) == 2 and plan.kind is StepKind.DECODE
    ]
    if lag == 0:
        assert {tuple(step.values()) for step in together[:-2]} == {(1, 6)}, "1 + 6 rows fit into 8"
    assert run.num_verified > 0
    plain = plain_tokens([make_request("r0", prompt(1), 60), make_request("r1", prompt(1, 1), 60)], logits=logits)
    assert run.token_ids == plain


class RecordingExecutor(ScriptedExecutor):
    """Notes per request what a step was to run and what it ran."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.ran: list[dict[str, int]] = []
        begin = self.state.begin

        def noting(plan: StepPlan):
            batch = begin(plan)
            self.ran.append({rows.state.request_id: len(rows.token_ids) for rows in batch})
            return batch

        self.state.begin = noting  # type: ignore[method-assign]


@EACH_LAYOUT
@pytest.mark.parametrize(("lag", "num_blocks"), [(0, 40), (1, 20)])
def test_A12_the_plan_is_what_runs(layout_name: str, lag: int, num_blocks: int) -> None:
    rig = make_rig(
        "ragged",
        executor_type=RecordingExecutor,
        max_num_batched_tokens=14,
        max_num_seqs=8,
        max_model_len=128,
        num_kv_blocks=num_blocks,
        block_size=8,
        layout_name=layout_name,
        num_speculative_tokens=5,
        draft_capacity=24,
    )
    random = Random(5)
    requests = [make_request(f"r{i}", prompt(random.randrange(1, 60), i), random.randrange(4, 60)) for i in range(150)]
    run = rig.drive(requests, lag=lag)
    assert len(run.plans) >= 500
    executor = rig.executor
    assert isinstance(executor, RecordingExecutor)
    trimmed = 0
    for plan, result, ran in zip(run.plans, run.results, executor.ran, strict=True):
        assert result.num_target_rows == sum(ran.values())
        for entry, outcome in zip(plan.requests, result.results, strict=True):
            rows = ran[entry.request_id]
            if lag == 0 or entry.is_prefill:
                assert rows == entry.num_target_rows
            assert 1 <= rows <= entry.num_target_rows, "at lag 1 the plan is an upper bound"
            if entry.emits:
                assert rows - outcome.num_verified == (entry.num_target_rows - entry.num_verify_rows)
        trimmed += "yielded" in plan.reason
    if num_blocks == 40:
        assert trimmed > 5, "the budget was tight"
    else:
        assert rig.scheduler.statistics.num_preemptions > 0, "the pool was tight"


# -- A13, A14: no cost for drafts that cannot be ----------------------------------------


@EACH_LAYOUT
def test_A13_a_prompt_in_the_middle_holds_no_lookahead(layout_name: str) -> None:
    layout = LAYOUTS[layout_name]
    rig = make_rig(
        "oracle",
        max_num_batched_tokens=32,
        block_size=16,
        layout_name=layout_name,
        num_speculative_tokens=7,
        draft_capacity=64,
    )
    request = make_request("r", prompt(64), 40)
    plan = first_step(rig, request)
    assert shares(plan) == {"r": 32} and not plan.requests[0].emits
    assert len(request.block_ids) == 2
    carried = 32 if layout.carries_target_rows else 0
    assert plan.num_draft_query_rows == carried and plan.requests[0].num_draft_tokens == 0
    rig.scheduler.commit(plan, rig.executor.execute(plan))
    assert rig.executor.num_draft_passes == 0
    plan = rig.scheduler.schedule(1.0)
    assert plan.requests[0].emits and plan.requests[0].num_draft_tokens == 7
    assert plan.num_draft_query_rows == layout.draft_query_rows(32, 7)
    assert len(request.block_ids) == -(-(64 + layout.lookahead_slots(7)) // 16)


@EACH_LAYOUT
@pytest.mark.parametrize("lag", [0, 1])
def test_A14_no_draft_pass_for_one_token(layout_name: str, lag: int) -> None:
    rig = make_rig("oracle", max_num_seqs=8, layout_name=layout_name, num_speculative_tokens=7)
    run = rig.drive([make_request(f"r{i}", prompt(10, i), 1) for i in range(20)], lag=lag)
    assert rig.executor.num_draft_passes == 0
    assert all(entry.num_draft_tokens == 0 for plan in run.plans for entry in plan.requests)
    assert [len(tokens) for tokens in run.token_ids.values()] == [1] * 20
    assert set(run.finish_reasons.values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_A14_never_more_drafts_than_could_be_emitted(lag: int, max_tokens: int) -> None:
    rig = make_rig("oracle", layout_name="dspark", num_speculative_tokens=7)
    run = rig.drive([make_request("r", prompt(10), max_tokens)], lag=lag)
    emitted = 0
    for plan, result in zip(run.plans, run.results, strict=True):
        if result.results[0].token_ids:
            emitted += len(result.results[0].token_ids)
        assert plan.requests[0].num_draft_tokens <= max(max_tokens - 1, 0)
        if lag == 0:
            assert plan.requests[0].num_verify_rows <= max_tokens - 1
        assert result.results[0].num_draft_tokens <= max(max_tokens - emitted, 0) + (7 if lag else 0)
    assert len(run.token_ids["r"]) == max_tokens
    assert rig.executor.num_draft_passes == 0 or max_tokens > 2


# -- A15, A16: admission ----------------------------------------


@EACH_LAYOUT
@pytest.mark.parametrize("lag", [0, 1])
def test_A15_more_requests_than_seats_queue(layout_name: str, lag: int) -> None:
    rig = make_rig("oracle", max_num_seqs=4, layout_name=layout_name, num_speculative_tokens=3)
    run = rig.drive([make_request(f"r{i}", prompt(5 + i % 7, i), 9) for i in range(40)], lag=lag)
    assert len(run.finish_reasons) == 40 and set(run.finish_reasons.values()) == {FinishReason.LENGTH}
    assert max(run.num_running) == 4


def test_A16_a_prompt_larger_than_the_pool_is_refused_at_once() -> None:
    rig = make_rig("oracle", max_model_len=4096, block_size=16, num_kv_blocks=20, num_speculative_tokens=3)
    with pytest.raises(RequestError) as caught:
        rig.scheduler.add_request(make_request("large", prompt(400)))
    error = caught.value
    assert error.code == "context_length_exceeded" and error.parameter == "prompt"
    for part in ("400", "20 blocks", "320", "319"):
        assert part in error.message
    assert not rig.scheduler.has_work()
    run = rig.drive([make_request("largest", prompt(319), None), make_request("small", prompt(10), 8)])
    assert len(run.token_ids["small"]) == 8 and len(run.token_ids["largest"]) == 1


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("num_blocks", [4, 5, 7, 20])
def test_A16_whatever_is_accepted_ends(lag: int, num_blocks: int) -> None:
    """Lookahead and verify rows must not make an accepted request wait for blocks that will never exist."""
    for layout_name in ("dspark", "dflash", "pard", "eagle3"):
        rig = make_rig(
            "oracle", max_model_len=4096, block_size=4, num_kv_blocks=num_blocks, layout_name=layout_name,
            num_speculative_tokens=7, max_num_batched_tokens=8, max_num_seqs=4,
        )  # fmt: skip
        requests = [make_request(f"r{i}", prompt(n, n), None) for i, n in enumerate(range(1, num_blocks * 4))]
        run = rig.drive(requests, lag=lag)
        assert {len(run.token_ids[r.request_id]) + r.num_prompt_tokens for r in requests} == {num_blocks * 4}


# -- A17, A18: fairness ----------------------------------------


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("draft_budget", ["separate", "shared"])
def test_A17_a_stream_of_prompts_does_not_starve_a_decode(lag: int, draft_budget: str) -> None:
    config = make_config(
        max_num_batched_tokens=512,
        max_num_seqs=16,
        max_model_len=8192,
        num_kv_blocks=8192,
        layout_name="dspark",
        num_speculative_tokens=5,
        draft_budget=draft_budget,
    )
    scheduler = Scheduler(config)
    victim = make_request("victim", prompt(8), 700)

    def keep_attacking(step: int) -> None:
        if victim.status is not RequestStatus.FINISHED and step % 2 == 0:
            scheduler.add_request(make_request(f"attack{step}", [step, *[5] * 4095], 4, arrival_time=float(step)))

    scheduler.add_request(victim)
    run = drive(scheduler, CountingExecutor(accepted=0), before_step=keep_attacking, lag=lag)
    last = next(i for i, plan in enumerate(run.plans) if "victim" not in shares(plan))
    got = [result.results[0].token_ids for result in run.results[:last]]
    assert len(run.token_ids["victim"]) == 700
    assert last <= 702 and all(got), "a token in every step, whatever else is in it"
    assert sum(plan.kind is StepKind.MIXED for plan in run.plans[:last]) > 600, "the attack took place"


@pytest.mark.parametrize("lag", [0, 1])
def test_A18_eight_equal_streams_are_served_equally(lag: int) -> None:
    rig = make_rig(
        "oracle", max_num_batched_tokens=12, max_num_seqs=8, max_model_len=2048, num_kv_blocks=1024,
        layout_name="dspark", num_speculative_tokens=4, logits=counting,
    )  # fmt: skip
    requests = [make_request(f"r{i}", [2, 3, 4], None) for i in range(8)]
    for request in requests:
        rig.scheduler.add_request(request)
    run = Run()
    outstanding = []
    start: dict[str, int] = {}
    steps = 0
    while steps < 100:
        plan = rig.scheduler.schedule(0.0)
        outstanding.append((plan, rig.executor.execute(plan)))
        while len(outstanding) > lag:
            run.note(rig.scheduler.commit(*outstanding.pop(0)))
        if plan.kind is not StepKind.DECODE or len(plan.requests) < 8:
            continue
        if not start:
            start = {r.request_id: len(r.token_ids) for r in requests}
        steps += 1
        assert all(rows >= 1 for rows in shares(plan).values())
        if steps > 2:
            assert plan.num_target_rows == 12 and plan.num_verify_rows == 4
    gained = [len(r.token_ids) - start[r.request_id] for r in requests]
    assert max(gained) / min(gained) <= 1.25, gained
    assert run.num_verified > 300


def test_A18_drafting_rotates_when_draft_capacity_is_short() -> None:
    rig = make_rig(
        "oracle", max_num_batched_tokens=64, max_num_seqs=8, max_model_len=2048, num_kv_blocks=1024,
        layout_name="dspark", num_speculative_tokens=4, draft_capacity=12, logits=counting,
    )  # fmt: skip
    requests = [make_request(f"r{i}", [2, 3, 4], None) for i in range(8)]
    for request in requests:
        rig.scheduler.add_request(request)
    for _ in range(100):
        plan = rig.scheduler.schedule(0.0)
        rig.scheduler.commit(plan, rig.executor.execute(plan))
    gained = [r.num_output_tokens for r in requests]
    assert min(gained) > 150 and max(gained) / min(gained) <= 1.25, gained


# -- A19: cached tokens cost nothing ----------------------------------------


@EACH_LAYOUT
def test_A19_cached_tokens_are_not_charged(layout_name: str) -> None:
    rig = make_rig(
        "oracle", max_num_batched_tokens=64, max_num_seqs=4, max_model_len=512, block_size=16,
        layout_name=layout_name, num_speculative_tokens=4, draft_capacity=256,
    )  # fmt: skip
    shared = prompt(240)
    rig.drive([make_request("first", shared + prompt(1, 9), 2)])
    requests = [make_request(f"r{i}", shared + prompt(16, 10 + i), 8) for i in range(4)]
    plan = first_step(rig, *requests)
    assert shares(plan) == {f"r{i}": 16 for i in range(4)}
    assert [r.num_cached_tokens for r in requests] == [240] * 4
    rig.scheduler.commit(plan, rig.executor.execute(plan))
    run = rig.drive()
    plain = plain_tokens([make_request(f"r{i}", shared + prompt(16, 10 + i), 8) for i in range(4)])
    assert {r.request_id: r.output_token_ids for r in requests} == plain
    assert len(run.finish_reasons) == 4
