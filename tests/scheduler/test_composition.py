"""`--composition`: the pure rules on tables of every form, and the promises they keep in front of executors."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from driver import make_config
from test_random_traffic import run_traffic

from slipstream.bench.arrivals import all_at_once, closed_loop
from slipstream.bench.metrics import summarize
from slipstream.config import COMPOSITIONS
from slipstream.lab.simulate import SimulatedRequest, Simulation, simulate
from slipstream.scheduler.composition import BurstPolicy, CostPolicy, PromptLimits
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.costs import DecodeGraphs
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.policy import MixAtOncePolicy, StepCandidates
from slipstream.scheduler.prompt_wait import PromptWait, PromptWaitTracker
from slipstream.scheduler.protocol import StepMode
from slipstream.scheduler.verification import offer_of
from slipstream.simulation.acceptance import GeometricAcceptance, conditional_acceptance

B, DECODES, DRAFTS = 512, 60, 5
LIMITS = PromptLimits(max_wait_s=10.0)
SURVIVALS = np.tile(np.array([0.9, 0.8, 0.7, 0.65, 0.6]), (DECODES, 1))


def over_rows(*points: tuple[float, float]) -> Grid:
    return Grid(tuple(row for row, _ in points), (0.0,), tuple((ms,) for _, ms in points))


def table(
    eager: Grid, full: Grid | None = None, graphs: DecodeGraphs = DecodeGraphs.VARLEN, sizes=tuple(range(8, 513, 8))
) -> CostTable:
    target = {StepMode.EAGER: eager}
    if full is None:
        return CostTable(Provenance("test", "test"), target)
    target[StepMode.FULL_GRAPH] = full
    return CostTable(Provenance("test", "test"), target, decode_graphs=graphs, capture_sizes=sizes)


CLIFF = table(over_rows((1, 160.0), (512, 160.0)), over_rows((1, 8.0), (512, 21.0)))
"""A step with prompt rows costs eight decode steps, whatever it holds."""
FLAT = table(over_rows((1, 20.0), (512, 20.0)))
"""Nothing costs more than anything."""
LINEAR = table(over_rows((1, 12.0), (512, 1012.0)))
"""A CPU: each row costs the same."""
STAIRS = table(
    over_rows((1, 160.0), (512, 160.0)), over_rows((1, 8.0), (512, 40.0)), sizes=(8, 64, 128, 256, 320, 384, 512)
)
UNIFORM = replace(CLIFF, decode_graphs=DecodeGraphs.UNIFORM)


def candidates(
    num_prompt_rows: int, num_ready: int, *, may_trim: bool = False, decodes: int = DECODES, **changes: object
) -> StepCandidates:
    """60 decodes with 5 drafts each, and prompts of 128 rows that wait."""
    left = B - decodes
    wait = PromptWait(num_ready, decode_steps_per_ready=float(changes.pop("gap", 60.0)))
    made = StepCandidates(decodes, decodes * DRAFTS, min(num_prompt_rows, left), left, 64, num_ready)
    made.num_ready_rows = num_prompt_rows
    made.next_prompt_rows = 128.0
    made.num_emitting_prompts = num_ready
    made.prompt_wait = replace(wait, **changes)  # type: ignore[arg-type]
    made.offer = lambda: offer_of(SURVIVALS[:decodes], may_trim=may_trim)
    return made


# -- without a table, without decodes ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [BurstPolicy(LIMITS), CostPolicy(LIMITS)], ids=["burst", "cost"])
def test_without_costs_every_rule_mixes_at_once(policy) -> None:
    asked = candidates(30, 1)
    assert policy.compose(asked, None, 0.0) == MixAtOncePolicy().compose(asked, None, 0.0)


@pytest.mark.parametrize("costs", [CLIFF, FLAT, LINEAR, STAIRS, UNIFORM])
@pytest.mark.parametrize("policy", [BurstPolicy(LIMITS), CostPolicy(LIMITS)], ids=["burst", "cost"])
def test_where_nobody_decodes_prompts_run(policy, costs: CostTable) -> None:
    asked = StepCandidates(0, 0, 30, B, 64, 8, num_ready_rows=30, next_prompt_rows=30.0)
    asked.prompt_wait = PromptWait(1)
    assert policy.compose(asked, costs, 0.0).num_prompt_rows == 30


# -- when prompts run ----------------------------------------------------------------------------------------------


def test_beyond_a_cliff_a_few_rows_wait_and_a_full_step_runs() -> None:
    for policy in (BurstPolicy(LIMITS), CostPolicy(LIMITS)):
        few = policy.compose(candidates(128, 1), CLIFF, 0.0)
        assert (few.num_prompt_rows, few.num_verify_rows) == (0, DECODES * DRAFTS)
        assert "wait" in few.reason
        full = policy.compose(candidates(512, 4, gap=600.0), CLIFF, 0.0)
        assert full.num_prompt_rows == B - DECODES
        assert full.num_verify_rows == 0, "a prompt row is worth more than any draft there"


def test_where_mixing_is_free_cost_mixes_at_once_and_burst_waits() -> None:
    for costs in (LINEAR, FLAT):
        assert BurstPolicy(LIMITS).compose(candidates(128, 1), costs, 0.0).num_prompt_rows == 0
    assert CostPolicy(LIMITS).compose(candidates(128, 1), LINEAR, 0.0).num_prompt_rows == 128


def test_a_lonely_prompt_does_not_wait_for_company_that_is_far_off() -> None:
    soon = CostPolicy(LIMITS).compose(candidates(128, 1, gap=30.0), CLIFF, 0.0)
    never = CostPolicy(LIMITS).compose(candidates(128, 1, gap=60.0 * 10_000), CLIFF, 0.0)
    unknown = CostPolicy(LIMITS).compose(candidates(128, 1, gap=float("inf")), CLIFF, 0.0)
    assert soon.num_prompt_rows == 0
    assert never.num_prompt_rows == unknown.num_prompt_rows == 128


def test_waiting_ends_when_it_has_cost_what_it_could_save() -> None:
    waited = [
        CostPolicy(LIMITS).compose(candidates(128, 1, gap=30.0, seat_seconds=seconds), CLIFF, 0.0).num_prompt_rows
        for seconds in (0.0, 1.0, 10.0, 60.0)
    ]
    assert waited[0] == 0 and waited[-1] == 128
    assert waited == sorted(waited), "once it runs, longer waiting does not change that"


@pytest.mark.parametrize("policy", [BurstPolicy(LIMITS), CostPolicy(LIMITS)], ids=["burst", "cost"])
def test_the_wait_limit_fires_from_the_moment_a_prompt_could_run(policy) -> None:
    assert policy.compose(candidates(128, 1, gap=30.0, oldest_s=9.9), CLIFF, 0.0).num_prompt_rows == 0
    late = policy.compose(candidates(128, 1, gap=30.0, oldest_s=10.0), CLIFF, 0.0)
    assert late.num_prompt_rows == 128 and "10.0 s" in late.reason


@pytest.mark.parametrize("rule", [BurstPolicy, CostPolicy])
def test_a_time_per_token_limit_spaces_prompt_steps(rule) -> None:
    policy = rule(PromptLimits(10.0, max_tpot_ms=20.0))
    soon = candidates(512, 4, ms_since_ran=180.0, tokens_since_ran=5.0)
    made_up = candidates(512, 4, gap=600.0, ms_since_ran=240.0, tokens_since_ran=15.0)
    expired = candidates(512, 4, ms_since_ran=180.0, tokens_since_ran=5.0, oldest_s=11.0)
    assert policy.compose(soon, CLIFF, 0.0).num_prompt_rows == 0
    assert policy.compose(made_up, CLIFF, 0.0).num_prompt_rows == B - DECODES
    assert policy.compose(expired, CLIFF, 0.0).num_prompt_rows > 0


def test_decodes_about_to_end_are_waited_for() -> None:
    """Eight seats are free and the prompts fill steps: with the ends of the other decodes close, all go together."""
    alone = candidates(8 * 128, 8, gap=6000.0)
    assert CostPolicy(LIMITS).compose(alone, CLIFF, 0.0).num_prompt_rows > 0
    alone.tokens_to_ends = [1 + i // 2 for i in range(DECODES)]
    assert CostPolicy(LIMITS).compose(alone, CLIFF, 0.0).num_prompt_rows == 0
    alone.tokens_to_ends = [4000 + i for i in range(DECODES)]
    assert CostPolicy(LIMITS).compose(alone, CLIFF, 0.0).num_prompt_rows > 0


def test_prompts_of_a_burst_end_together_where_an_anchor_would_cost_more_than_its_token() -> None:
    burst = candidates(8 * 512, 8, gap=1e6)
    assert not CostPolicy(LIMITS).compose(burst, CLIFF, 0.0).finishes_prompts
    assert CostPolicy(LIMITS).compose(burst, LINEAR, 0.0).finishes_prompts
    assert CostPolicy(LIMITS).compose(candidates(400, 3, gap=1e6), CLIFF, 0.0).finishes_prompts, "the last step"
    held = candidates(8 * 512, 8, gap=1e6, burst_s=10.0)
    assert CostPolicy(LIMITS).compose(held, CLIFF, 0.0).finishes_prompts, "no longer than the wait limit"


# -- what verification gets ----------------------------------------------------------------------------------------


def test_stairs_are_climbed_to_an_edge_and_ties_break_to_fewer_rows() -> None:
    composition = CostPolicy(LIMITS).compose(candidates(0, 0, may_trim=True), STAIRS, 0.0)
    rows = DECODES + composition.num_verify_rows
    assert rows in STAIRS.capture_sizes or composition.num_verify_rows == DECODES * DRAFTS
    flat = CostPolicy(LIMITS).compose(candidates(0, 0, may_trim=True), FLAT, 0.0)
    assert flat.num_verify_rows == DECODES * DRAFTS, "where rows are free every draft is verified"


def test_uniform_graphs_verify_one_depth() -> None:
    composition = CostPolicy(LIMITS).compose(candidates(0, 0, may_trim=True), UNIFORM, 0.0)
    assert composition.depth == DRAFTS and composition.num_verify_rows == DECODES * DRAFTS


def test_in_a_mixed_step_on_a_cpu_only_drafts_worth_their_time_run() -> None:
    composition = CostPolicy(LIMITS).compose(candidates(128, 1, may_trim=True), LINEAR, 0.0)
    alone = CostPolicy(LIMITS).compose(candidates(0, 0, may_trim=True), LINEAR, 0.0)
    assert composition.num_prompt_rows == 128
    assert abs(composition.num_verify_rows - alone.num_verify_rows) <= 2, "a row costs the same in either step"


# -- the tracker ---------------------------------------------------------------------------------------------------


def test_the_tracker_integrates_seats_over_time_and_starts_over_when_prompts_run() -> None:
    tracker = PromptWaitTracker()
    tracker.update(0, 8, 0.0)
    tracker.update(2, 8, 1.0)
    wait = tracker.update(3, 7, 3.0)
    assert (wait.num_ready, wait.oldest_s, wait.seat_seconds) == (3, 2.0, 4.0)
    tracker.ran(3.0, 2, finishes=True)
    tracker.planned(1.0)
    wait = tracker.update(1, 9, 4.0)
    assert (wait.num_ready, wait.oldest_s, wait.seat_seconds) == (1, 1.0, 0.0)
    assert (wait.ms_since_ran, wait.tokens_since_ran) == (1000.0, 1.0)


def test_the_tracker_learns_the_pace_of_prompts_and_that_they_follow_ends() -> None:
    tracker = PromptWaitTracker()
    for step in range(400):
        ended = step % 10 == 9
        tracker.update(int(ended), 20 - ended, float(step))
        if ended:
            tracker.ran(float(step), 1, finishes=True)
    wait = tracker.update(0, 20, 400.0)
    assert wait.decode_steps_per_ready == pytest.approx(200.0, rel=0.05), "20 decodes, one in ten steps"
    assert wait.ready_per_end > 0.9


# -- in front of executors -----------------------------------------------------------------------------------------


def public_shape(composition: str, rows: int, *, is_cached: bool = False) -> Simulation:
    config = make_config(
        max_num_batched_tokens=rows,
        max_num_seqs=64,
        max_model_len=1024,
        num_kv_blocks=64 * 64,
        layout_name="dspark",
        num_speculative_tokens=5,
        enable_prefix_caching=is_cached,
        composition=composition,
    )
    acceptance = GeometricAcceptance(conditional_acceptance(4.72, 5))
    return Simulation(config, CLIFF, acceptance, [SimulatedRequest(128, 512)] * 256, all_at_once(256), CLIFF)


@pytest.mark.parametrize("rows", [256, 512])
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_sixty_four_run_under_every_rule(composition: str, rows: int) -> None:
    """The anchor case of design 3: with K = 5 the verify rows alone pass B = 256. (Under `mix` the prompts share their
    blocks, as in test_anchor_cases.py: at B = 256 its promised rows bring in new prompts no faster than 55 others end.)
    """
    run = simulate(public_shape(composition, rows, is_cached=composition == "mix"))
    result = summarize(run.record)
    assert result.completed == 256 and result.total_output_tokens == 256 * 512
    assert result.steps is not None and result.steps.running is not None
    assert result.steps.running.peak == 64


def test_waiting_for_prompts_pays_beyond_a_cliff_and_costs_nothing_on_a_cpu() -> None:
    def throughput(composition: str, costs: CostTable) -> float:
        simulation = replace(public_shape(composition, 512), machine=costs, costs=costs)
        return summarize(simulate(simulation).record).output_throughput

    mix, cost = throughput("mix", CLIFF), throughput("cost", CLIFF)
    assert cost > 1.4 * mix
    assert throughput("cost", LINEAR) > 0.99 * throughput("mix", LINEAR)


@pytest.mark.parametrize("composition", ["burst", "cost"])
def test_no_prompt_waits_longer_than_the_limit(composition: str) -> None:
    """Two users beside long decodes: their prompts never fill a step."""
    simulation = public_shape(composition, 512)
    workload = [SimulatedRequest(16, 900), SimulatedRequest(64, 2), SimulatedRequest(16, 900)]
    simulation = replace(
        simulation,
        config=replace(simulation.config, max_prompt_wait_s=0.5),
        workload=workload,
        arrivals=closed_loop(3, 2),
    )
    record = simulate(simulation).record
    longest_step = max(step.duration_s for step in record.steps)
    for request in record.requests:
        assert request.chunks[0].time - request.sent_time <= 0.5 + 3 * longest_step


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_A17_a_token_at_least_every_second_step_and_within_two_chunk_steps(composition: str) -> None:
    config = make_config(
        max_num_batched_tokens=512,
        max_num_seqs=16,
        max_model_len=8192,
        num_kv_blocks=8192,
        layout_name="dspark",
        num_speculative_tokens=5,
        enable_prefix_caching=False,
        composition=composition,
    )
    victim, attack = SimulatedRequest(8, 700), [SimulatedRequest(4096, 4)] * 60
    simulation = Simulation(config, CLIFF, GeometricAcceptance(0.0), [victim, *attack], all_at_once(61), CLIFF)
    record = simulate(simulation).record
    times = [chunk.time for chunk in record.requests[0].chunks]
    chunk_ms = max(step.duration_s for step in record.steps) * 1e3
    gaps_ms = np.diff(times) * 1e3
    assert record.requests[0].num_output_tokens == 700
    assert float(np.percentile(gaps_ms, 99)) <= 2 * chunk_ms
    ends = [step.start_time + step.duration_s for step in record.steps]
    steps_between = np.diff(np.searchsorted(ends, np.array(times) - 1e-9))
    assert steps_between.max() <= 2
    assert sum(step.kind == "mixed" for step in record.steps) > 60, "the attack took place"


@pytest.mark.parametrize("costs", [CLIFF, LINEAR, UNIFORM], ids=["cliff", "linear", "uniform"])
@pytest.mark.parametrize("composition", ["burst", "cost"])
def test_random_traffic_holds_the_invariants_and_the_texts(composition: str, costs: CostTable) -> None:
    random = Random(11)
    for _ in range(40):
        config = make_config(
            max_num_batched_tokens=random.randrange(8, 40),
            max_num_seqs=random.randrange(1, 8),
            max_model_len=80,
            block_size=4,
            num_kv_blocks=random.randrange(21, 60),
            layout_name=random.choice(sorted(LAYOUTS)),
            num_speculative_tokens=random.randrange(0, 8),
            composition=composition,
            verification=random.choice(("fixed", "confidence")),
            max_prompt_wait_s=random.choice((0.0, 4.0, 10.0)),
            max_tpot_ms=random.choice((None, 100.0, 2000.0)),
        )
        run_traffic(config, random.randrange(2), random.randrange(2**31), costs)
