"""What a scheduler counts: each stage of a draft per position, rows by kind and mode, and why nobody drafts (P15)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from case_rig import VOCAB, make_drafter, make_rig, prompt
from driver import drive, make_config, make_request

from slipstream.config import SchedulerConfig
from slipstream.request import FinishReason
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.costs import DecodeGraphs
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.protocol import RequestResult, StepMode, StepPlan, StepResult, StopVerdict
from slipstream.scheduler.scheduler import Scheduler
from slipstream.scheduler.statistics import NoDrafts, SchedulerStatistics
from slipstream.simulation.scripted import HashedLogits, sample_greedily


def counted(kind: str, layout_name: str = "ngram", *, requests: int = 1, **config: object) -> SchedulerStatistics:
    """Counters after requests of 40 tokens with drafters of K = 4."""
    logits = HashedLogits(VOCAB)
    drafter = make_drafter(kind, layout_name, logits, sample_greedily, 4)
    rig = make_rig(drafter, logits=logits, layout_name=layout_name, num_speculative_tokens=4, **config)
    rig.drive([make_request(str(i), prompt(10, i), 40) for i in range(requests)])
    return rig.scheduler.statistics


def test_every_stage_is_counted_per_position() -> None:
    statistics = counted("half")
    stages = [
        statistics.drafted_per_position(),
        statistics.admitted_per_position(),
        statistics.verified_per_position(),
        statistics.accepted_per_position(),
    ]
    totals = [
        statistics.num_drafted_tokens,
        statistics.num_admitted_tokens,
        statistics.num_verified_tokens,
        statistics.num_accepted_tokens,
    ]
    assert [sum(stage) for stage in stages] == totals and min(totals) > 0
    for stage in stages:
        assert len(stage) == 4 and stage == sorted(stage, reverse=True), "who reaches a position passed the ones before"
    for earlier, later in pairwise(stages):
        assert all(a >= b for a, b in zip(earlier, later, strict=True))
    assert stages[3][2:] == [0, 0], "half: right for two positions"


def test_rows_by_kind_add_up_to_the_rows_that_ran() -> None:
    statistics = counted("ragged", requests=3)
    totals = list(statistics.steps.values())
    assert {key for key, _ in statistics.steps} == set(statistics.num_steps)
    assert {mode for _, mode in statistics.steps} == {"eager"}
    rows = [sum(t.num_prompt_rows + t.num_decode_rows + t.num_verify_rows for t in totals)]
    assert rows == [statistics.num_target_rows]
    assert sum(t.num_prompt_rows for t in totals) == 30
    assert sum(t.num_verify_rows for t in totals) == statistics.num_verified_tokens
    assert sum(t.num_decode_rows for t in totals) == statistics.num_decode_emits
    assert sum(t.num_steps for t in totals) == sum(statistics.num_steps.values())


def test_padding_of_graphs_is_counted_apart() -> None:
    curve = Grid((1.0, 64.0), (0.0,), ((1.0,), (2.0,)))
    costs = CostTable(
        Provenance("m", "n"),
        {StepMode.EAGER: curve, StepMode.FULL_GRAPH: curve},
        decode_graphs=DecodeGraphs.VARLEN,
        capture_sizes=(8,),
    )
    scheduler = Scheduler(make_config(), costs=costs)
    for name in "ab":
        scheduler.add_request(make_request(name, range(5), 3))
    while scheduler.has_work():
        plan = scheduler.schedule(0.0)
        results = [RequestResult(e.request_id, e.epoch, [7] if e.emits else []) for e in plan.requests]
        scheduler.commit(plan, StepResult(plan.step, results, plan.mode, plan.num_target_rows))
    graph = scheduler.statistics.steps["decode", "full_graph"]
    assert (graph.num_steps, graph.num_decode_rows, graph.num_padding_rows) == (2, 4, 12)


def test_a_step_that_failed_ran_no_rows() -> None:
    scheduler = Scheduler(make_config())
    scheduler.add_request(make_request("a", range(5), 3))
    plan = scheduler.schedule(0.0)
    failed = [RequestResult(e.request_id, e.epoch, [], error="no luck") for e in plan.requests]
    scheduler.commit(plan, StepResult(plan.step, failed))
    totals = scheduler.statistics.steps["prefill", "eager"]
    assert (totals.num_steps, totals.num_prompt_rows) == (1, 0)


def test_speculation_at_work_counts_no_switch_off() -> None:
    assert set(counted("oracle").num_without_drafts.values()) == {0}


def test_P15_the_drafters_position_limit_is_counted() -> None:
    statistics = counted("oracle", draft_max_model_len=20)
    assert statistics.num_without_drafts[NoDrafts.POSITION_LIMIT] > 10


@pytest.mark.parametrize("layout_name", ["dspark", "dflash"])
def test_P15_drafters_that_find_no_row_are_counted(layout_name: str) -> None:
    statistics = counted("half", layout_name, requests=4, draft_capacity=6)
    assert statistics.num_without_drafts[NoDrafts.DRAFT_CAPACITY] > 0
    assert statistics.num_drafted_tokens > 0


def test_P15_a_load_that_says_zero_is_counted() -> None:
    statistics = counted("oracle", requests=3, draft_schedule=((1, 1, 4), (2, 8, 0)))
    assert statistics.num_without_drafts[NoDrafts.LOAD] > 0


def test_P15_drafting_that_is_not_worth_its_time_is_counted() -> None:
    dear = CostTable(
        Provenance("m", "n"),
        {StepMode.EAGER: Grid((1.0, 64.0), (0.0,), ((1.0,), (640.0,)))},
        draft=Grid((1.0, 64.0), (0.0, 8.0), ((1000.0, 1000.0), (1000.0, 1000.0))),
    )
    config: SchedulerConfig = make_config(layout_name="dspark", num_speculative_tokens=4)
    scheduler = Scheduler(config, costs=dear)

    class Silent:
        def execute(self, plan: StepPlan) -> StepResult:
            results = [
                RequestResult(e.request_id, e.epoch, [7] if e.emits else [], e.num_verify_rows, 0, e.num_draft_tokens)
                for e in plan.requests
            ]
            return StepResult(plan.step, results, plan.mode, plan.num_target_rows)

    drive(scheduler, Silent(), [make_request("a", range(10), 60)])
    assert scheduler.statistics.num_without_drafts[NoDrafts.COST] > 40


def test_P15_too_few_blocks_are_counted() -> None:
    statistics = counted("oracle", "dspark", requests=4, num_kv_blocks=14, block_size=4, max_model_len=56)
    assert statistics.num_without_drafts[NoDrafts.KV_BLOCKS] > 0


def test_a_stop_check_that_raises_ends_its_own_request_only() -> None:
    class Broken:
        def check(self, request, new_token_ids):  # type: ignore[no-untyped-def]
            if request.request_id == "bad":
                raise RuntimeError("no such rule")
            if len(request.token_ids) + len(new_token_ids) >= request.max_total_tokens:
                return StopVerdict(len(new_token_ids), FinishReason.LENGTH)
            return None

    scheduler = Scheduler(make_config(), stop_checker=Broken())

    class Counting:
        def execute(self, plan: StepPlan) -> StepResult:
            results = [RequestResult(e.request_id, e.epoch, [7] if e.emits else []) for e in plan.requests]
            return StepResult(plan.step, results, plan.mode, plan.num_target_rows)

    run = drive(scheduler, Counting(), [make_request("bad", range(5), 4), make_request("good", range(5), 4)])
    assert run.token_ids["good"] == [7, 7, 7, 7] and run.token_ids["bad"] == []
    assert run.finish_reasons["bad"].value == "error"
    assert "no such rule" in next(o.error for o in run.outputs if o.request_id == "bad")
