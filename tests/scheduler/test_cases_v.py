"""Reported faults of kind V: verification by confidence, drafting by cost, K by load. The ids are those of cases.toml.
V2, V3, V5 and V11 are also in test_cases_plans.py."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from random import Random

import pytest
from case_rig import CountingExecutor, make_rig, plain_tokens, prompt
from driver import drive, make_config, make_request

from slipstream.bench.arrivals import all_at_once
from slipstream.config import SchedulerConfig, SettingError, parse_speculative_config
from slipstream.lab.simulate import SimulatedRequest, SimulatedRun, Simulation, simulate
from slipstream.scheduler.acceptance import AcceptanceTracker
from slipstream.scheduler.confidence import ConfidencePlanner, OldTotalPlanner
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.costs import DecodeGraphs
from slipstream.scheduler.drafting import AlwaysDraft, DraftingCandidates, DraftingDecision, ScheduledDrafting
from slipstream.scheduler.drafting_by_cost import DraftByCost, outlooks_of
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.policy import StepCandidates, StepComposition
from slipstream.scheduler.protocol import StepMode
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.acceptance import AcceptanceModel, GeometricAcceptance
from slipstream.simulation.mixture_acceptance import acceptance_by_depth

LAGS = pytest.mark.parametrize("lag", [0, 1])


def line(first_ms: float, row_ms: float, draft_ms: float) -> CostTable:
    """No graphs; `row_ms` a row, `draft_ms` a pass of the drafter."""
    grid = Grid((1.0, 1000.0), (0.0,), ((first_ms,), (first_ms + 999 * row_ms,)))
    return CostTable(Provenance("a line", "none"), {StepMode.EAGER: grid}, draft=Grid((1.0,), (1.0,), ((draft_ms,),)))


def sizes(most: int, **fields: object) -> SchedulerConfig:
    return make_config(
        max_num_batched_tokens=512, max_num_seqs=256, max_model_len=4096, num_kv_blocks=20_000,
        enable_prefix_caching=False, layout_name="dspark", num_speculative_tokens=most, **fields,
    )  # fmt: skip


def run_simulation(
    config: SchedulerConfig, machine: CostTable, acceptance: AcceptanceModel, num_requests: int = 32, output: int = 400
) -> SimulatedRun:
    workload = [SimulatedRequest(16, output)] * num_requests
    return simulate(Simulation(config, machine, acceptance, workload, all_at_once(num_requests), machine))


# -- V2 --------------------------------------------------------------------------------------------------------------


def test_V2_a_budget_of_ten_of_24_rows_goes_to_the_likeliest() -> None:
    """The planner's total is what runs, and the record says so."""

    class Ten:
        def compose(self, candidates: StepCandidates, costs: object, now: float) -> StepComposition:
            return StepComposition(candidates.num_prompt_rows, min(candidates.num_drafts, 10))

    config = sizes(6, verification="confidence")
    scheduler = Scheduler(config, policy=Ten(), costs=line(10.0, 0.01, 1.0))
    run = drive(scheduler, CountingExecutor(), [make_request(f"r{i}", prompt(5, i), 100) for i in range(4)])
    partial = [
        (plan, result)
        for plan, result in zip(run.plans, run.results, strict=True)
        if "14 of 24 drafts yielded" in plan.reason
    ]
    assert len(partial) > 10
    for plan, result in partial:
        assert plan.num_verify_rows == 10 and result.num_target_rows == 14


# -- V3 --------------------------------------------------------------------------------------------------------------


def test_V3_acceptance_holds_while_the_batch_drains_under_confidence() -> None:
    """256 requests, no new arrivals: all end, and the last are accepted like the first."""
    config = sizes(5, verification="confidence")
    acceptance = acceptance_by_depth([0.8] * 5, difficulty_spread=1.0, calibration_error=0.0)
    workload = [SimulatedRequest(16, 60 + i) for i in range(256)]
    machine = line(10.0, 0.05, 1.0)
    run = simulate(Simulation(config, machine, acceptance, workload, all_at_once(256), machine))
    assert all(record.finish_reason == "length" for record in run.record.requests)
    tokens_per_step = [
        record.num_output_tokens / len(record.chunks)
        for record in sorted(run.record.requests, key=lambda record: record.end_time)
    ]
    assert sum(tokens_per_step[-10:]) >= 0.9 * sum(tokens_per_step[:10])


# -- V4 --------------------------------------------------------------------------------------------------------------


def test_V4_k_zero_by_schedule_costs_what_no_speculation_costs() -> None:
    machine = line(10.0, 0.2, 3.0)
    acceptance = GeometricAcceptance(0.7)
    off = run_simulation(sizes(0), machine, acceptance)
    zero = run_simulation(sizes(5, draft_schedule=((1, 256, 0),)), machine, acceptance)
    assert all(step.num_draft_query_rows == 0 and step.draft_ms == 0.0 for step in zero.record.steps)
    assert zero.record.duration_s <= 1.02 * off.record.duration_s


def test_V4_k_zero_by_cost_costs_what_no_speculation_costs() -> None:
    """The rule finds out that drafts are not worth it, and probes now and then: still within 2%."""
    machine = line(10.0, 0.5, 5.0)
    acceptance = GeometricAcceptance(0.2)
    off = run_simulation(sizes(0), machine, acceptance, output=2000)
    by_cost = run_simulation(sizes(5), machine, acceptance, output=2000)
    assert by_cost.record.duration_s <= 1.02 * off.record.duration_s


@pytest.mark.parametrize("policy", [ScheduledDrafting(((1, 64, 5), (65, 256, 0)), AlwaysDraft()), DraftByCost()])
def test_V4_crossing_a_border_for_200_steps_switches_at_most_four_times(policy) -> None:
    """Two kinds of border: of a schedule, and a cliff that makes 64 x 6 rows a bargain and 65 x 6 a disaster."""
    cheap = Grid((1.0, 384.0), (0.0,), ((10.0,), (12.0,)))
    machine = CostTable(
        Provenance("a cliff", "none"),
        {StepMode.FULL_GRAPH: cheap, StepMode.EAGER: Grid((1.0,), (0.0,), ((100.0,),))},
        draft=Grid((1.0, 64.0, 65.0), (1.0,), ((1.0,), (1.0,), (60.0,))),
        decode_graphs=DecodeGraphs.VARLEN,
        capture_sizes=tuple(range(1, 385)),
    )
    tracker, random = AcceptanceTracker(5), Random(2)
    requests = [make_request(f"r{i}", [1, 2]) for i in range(65)]
    decision: DraftingDecision | None = None
    chosen = []
    for step in range(400):
        load = 64 + step % 2 if step >= 200 else 64
        candidates = DraftingCandidates(step, requests[:load], 5, 1000, LAYOUTS["dspark"], tracker, 2048, decision)
        decision = policy.decide(candidates, machine)
        chosen.append(decision.most)
        for request in requests[:load]:
            accepted = sum(1 for _ in itertools.takewhile(lambda _: random.random() < 0.8, range(decision.most)))
            if decision.most:
                tracker.observe(request.request_id, decision.most, accepted)
    assert chosen[199] == 5
    assert sum(a != b for a, b in itertools.pairwise(chosen[200:])) <= 4


# -- V5 --------------------------------------------------------------------------------------------------------------


@LAGS
def test_V5_k_by_load_changes_without_a_trace_in_the_text(lag: int) -> None:
    """Concurrency 4, 8, 20, 1 under the schedule of the report: drafts of 7, 5 and 3, the text of plain decoding."""
    rig = make_rig(
        "half", layout_name="dspark", num_speculative_tokens=7, max_num_seqs=20, block_size=4, num_kv_blocks=1024,
        max_num_batched_tokens=160, draft_schedule=((1, 4, 7), (5, 16, 5), (17, 64, 3)),
    )  # fmt: skip
    arrivals = {0: 3, 6: 4, 12: 12}
    numbers = itertools.count()

    def arrive(step: int) -> None:
        for _ in range(arrivals.get(step, 0)):
            index = next(numbers)
            rig.scheduler.add_request(make_request(f"r{index}", prompt(6, index), 110))

    rig.scheduler.add_request(make_request("r99", prompt(6, 99), 240))
    run = rig.drive(before_step=arrive, lag=lag)
    asked = {entry.num_draft_tokens for plan in run.plans for entry in plan.requests}
    assert asked >= {7, 5, 3} and max(run.num_running) == 20
    last = [plan for plan in run.plans if len(plan.requests) == 1][-20]
    assert last.requests[0].num_draft_tokens == 7, "alone again, it drafts 7"
    names = [int(name[1:]) for name in run.token_ids]
    assert run.num_verified and run.token_ids == plain_tokens(
        [make_request(f"r{i}", prompt(6, i), 240 if i == 99 else 110) for i in names]
    )


# -- V7, V8 ----------------------------------------------------------------------------------------------------------


def with_replay(machine: CostTable, replay_ms: float) -> CostTable:
    """A step that verifies pays for a cache that is rewound and replayed after a refusal: a jump at the first verify
    row of so many decodes."""
    plain = machine.target[StepMode.EAGER]
    rows = (1.0, 8.0, 9.0, 1000.0)
    ms = tuple((plain(row, 0.0) + (replay_ms if row > 8 else 0.0),) for row in rows)
    return replace(machine, target={StepMode.EAGER: Grid(rows, (0.0,), ms)})


def test_V7_predicted_step_times_hold_and_a_net_loss_ends_drafting() -> None:
    """8 decodes at 70%: worth it at the plain cost, not when each refusal replays for half a step."""
    acceptance = GeometricAcceptance(0.7)
    plain = line(10.0, 0.5, 1.0)
    for machine, drafts_in_the_end in ((plain, True), (with_replay(plain, 25.0), False)):
        config = replace(sizes(4), max_num_seqs=8, min_prefill_tokens=64)
        run = run_simulation(config, machine, acceptance, 8, 1200)
        steps = [step for step in run.record.steps if step.kind == "decode" and step.num_running == 8]
        late = steps[200:]
        assert (sum(step.num_verify_rows for step in late) > len(late)) == drafts_in_the_end
        scheduler = run.scheduler
        requests = [make_request(str(i), [1] * 100) for i in range(8)]
        candidates = DraftingCandidates(0, requests, 4, 0, LAYOUTS["dspark"], scheduler.acceptance, 512)
        outlooks = outlooks_of(candidates, machine)
        best = max(outlooks, key=lambda outlook: outlook.tokens_per_ms)
        took = sum(step.target_ms + step.draft_ms for step in late) / len(late)
        assert best.step_ms == pytest.approx(took, rel=0.1)
        assert (best.count > 0) == drafts_in_the_end


def test_V8_at_a_net_loss_k_goes_to_zero_within_200_steps() -> None:
    """The same drafter at temperature 0 (.8 accepted) and 1 (.3)."""
    machine = line(8.0, 0.8, 6.0)
    cold = run_simulation(sizes(7), machine, GeometricAcceptance(0.8), 4, 1500)
    warm = run_simulation(sizes(7), machine, GeometricAcceptance(0.3), 4, 1500)
    assert sum(step.num_draft_query_rows > 0 for step in cold.record.steps) > 0.9 * len(cold.record.steps) - 20
    drafting = [step.num_draft_query_rows > 0 for step in warm.record.steps]
    assert any(drafting[:20]), "it tried"
    assert sum(drafting[200:]) <= 0.02 * len(drafting[200:])


# -- V10, V12 --------------------------------------------------------------------------------------------------------


def lengths_of(scheduler: Scheduler, confidences: dict[str, list[float]]) -> tuple[dict[str, int], str]:
    """What the next step verifies of drafts with these confidences, and its reason."""
    for request in scheduler.running:
        request.draft_confidences = confidences[request.request_id]
    plan = scheduler.schedule(0.0)
    counts = {entry.request_id: entry.num_verify_rows for entry in plan.requests}
    scheduler.commit(plan, CountingExecutor(0).execute(plan))
    return counts, plan.reason


def decoding(planner, costs: CostTable, names: str, most: int, policy=None) -> Scheduler:
    """A scheduler whose requests decode and have drafts at hand."""
    config = sizes(most, composition="cost")
    scheduler = Scheduler(config, planner=planner, costs=costs, drafting=AlwaysDraft(), policy=policy)
    for name in names:
        scheduler.add_request(make_request(name, [1, 2, 3], 500))
    for _ in range(3):
        plan = scheduler.schedule(0.0)
        scheduler.commit(plan, CountingExecutor(0).execute(plan))
    assert all(request.num_draft_tokens == most for request in scheduler.running)
    return scheduler


@pytest.mark.parametrize("planner", [ConfidencePlanner(), OldTotalPlanner(age=2)])
def test_V10_lengths_follow_fresh_confidences_and_only_the_total_may_lag(planner) -> None:
    """A falls from .9 to .1 at one step: in that very step its rows go to B."""
    scheduler = decoding(planner, line(10.0, 0.9, 0.0), "AB", 4)
    before = {"A": [0.9] * 4, "B": [0.6] * 4}
    for _ in range(4):
        counts, reason = lengths_of(scheduler, before)
    after, _ = lengths_of(scheduler, {"A": [0.1] * 4, "B": [0.6] * 4})
    assert counts["A"] == 4 and counts["B"] <= after["B"] and after["A"] <= 2
    if isinstance(planner, OldTotalPlanner):
        assert sum(after.values()) == sum(counts.values()), "the total lags by two steps"
        assert "total by survivals 2 steps old, ranking by survivals 0 steps old" in reason
        for _ in range(3):
            later, _ = lengths_of(scheduler, {"A": [0.1] * 4, "B": [0.6] * 4})
        assert sum(later.values()) < sum(after.values())
    else:
        assert sum(after.values()) < sum(counts.values())


def test_V12_scores_are_conditional_and_rows_compete_by_their_products() -> None:
    class ThreeRows:
        def compose(self, candidates: StepCandidates, costs: object, now: float) -> StepComposition:
            return StepComposition(0 if candidates.num_decodes else candidates.num_prompt_rows, 3)

    scheduler = decoding(ConfidencePlanner(), line(10.0, 0.1, 0.0), "ABC", 2, ThreeRows())
    for request in scheduler.running:
        request.draft_confidences = {"A": [0.8, 0.8], "B": [0.5, 0.9], "C": [0.3, 0.95]}[request.request_id]
    plan = scheduler.schedule(0.0)
    assert {entry.request_id: entry.num_verify_rows for entry in plan.requests} == {"A": 2, "B": 1, "C": 0}
    outputs = scheduler.commit(plan, CountingExecutor().execute(plan))
    assert {output.request_id: len(output.new_token_ids) for output in outputs} == {"A": 3, "B": 2, "C": 1}


# -- V13 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "entry", "word"),
    [
        ([[1, 4, 5], [4, 16, 3]], "entry 2, [4, 16, 3]", "let it begin at 5"),
        ([[1, 4, 5], [7, 16, 3]], "entry 2, [7, 16, 3]", "leaves 5 to 6 requests"),
        ([[1, 4, 5], [5, 16, 6]], "entry 2, [5, 16, 6]", "num_speculative_tokens = 5"),
        ([[1, 4, -1]], "entry 1, [1, 4, -1]", "the nearest is 0"),
        ([[1, 4, 5], [16, 5, 3]], "entry 2, [16, 5, 3]", "falls"),
        ([[5, 16, 3], [1, 4, 5]], "entry 1, [5, 16, 3]", "leaves 1 to 4"),
        ([[1, 4, 5], [1, 4, 5]], "entry 2, [1, 4, 5]", "let it begin at 5"),
        ([[0, 4, 5]], "entry 1, [0, 4, 5]", "let it begin at 1"),
        ([[1, 4]], "entry 1, [1, 4]", "three whole numbers"),
        ([[1, 4, 2.5]], "entry 1, [1, 4, 2.5]", "three whole numbers"),
        ([], "num_speculative_tokens_per_batch_size", "must be a list"),
        ("1-4", "num_speculative_tokens_per_batch_size", "must be a list"),
    ],
)
def test_V13_a_schedule_that_cannot_work_is_refused_naming_the_entry(schedule: object, entry: str, word: str) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": schedule}
    with pytest.raises(SettingError) as error:
        parse_speculative_config(json.dumps(config))
    assert entry in str(error.value) and word in str(error.value)


# -- B = 256 with 64 running -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("composition", ["mix", "burst", "cost"])
@pytest.mark.parametrize("verification", ["fixed", "confidence"])
@pytest.mark.parametrize("table", ["none", "flat", "stairs"])
def test_sixty_four_run_within_256_rows_under_every_policy(composition: str, verification: str, table: str) -> None:
    """64 x 6 rows do not fit: verify rows yield, seats do not (design 3). `burst` would hold the last prompt, which
    fills no step, for its whole wait limit."""
    flat, stairs = Grid((1.0,), (0.0,), ((15.0,),)), Grid((1.0, 256.0), (0.0,), ((8.0,), (16.0,)))
    machines = {
        "none": None,
        "flat": CostTable(Provenance("flat", "none"), {StepMode.EAGER: flat}),
        "stairs": CostTable(
            Provenance("stairs", "none"),
            {StepMode.EAGER: Grid((1.0,), (0.0,), ((90.0,),)), StepMode.FULL_GRAPH: stairs},
            decode_graphs=DecodeGraphs.VARLEN,
            capture_sizes=(8, 64, 128, 256),
        ),
    }  # fmt: skip
    config = replace(
        sizes(5, composition=composition, verification=verification),
        max_num_batched_tokens=256, max_num_seqs=64, min_prefill_tokens=32,
        max_prompt_wait_s=0.5 if composition == "burst" else 10.0,
    )  # fmt: skip
    acceptance = acceptance_by_depth([0.9, 0.9, 0.85, 0.8, 0.8], difficulty_spread=1.0, calibration_error=0.0)
    workload = [SimulatedRequest(96, 800)] * 72
    machine = machines["flat"] if table == "none" else machines[table]
    assert machine is not None
    run = simulate(Simulation(config, machine, acceptance, workload, all_at_once(72), machines[table]))
    assert max(step.num_running for step in run.record.steps) == 64
    assert max(step.num_target_rows for step in run.record.steps) <= 256
