"""How many drafts are made: by costs and running acceptance, and by load."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from driver import make_config, make_request
from hypothesis import given
from hypothesis import strategies as st

from slipstream.config import SchedulerConfig
from slipstream.scheduler.acceptance import AcceptanceTracker
from slipstream.scheduler.brains import drafting_for, planner_for
from slipstream.scheduler.confidence import ConfidencePlanner
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.costs import DecodeGraphs, StepCosts
from slipstream.scheduler.drafting import AlwaysDraft, DraftingCandidates, DraftingDecision, ScheduledDrafting
from slipstream.scheduler.drafting_by_cost import HOLD, NUM_SETTLED, DraftByCost, outlooks_of
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import StepMode
from slipstream.scheduler.verification import TurnByTurnPlanner

K = 5


def table(row_ms: float, draft_ms: float = 1.0, graphs: DecodeGraphs = DecodeGraphs.NONE) -> CostTable:
    """10 ms and `row_ms` more per row; the drafter's pass takes `draft_ms`."""
    line = Grid((1.0, 1000.0), (0.0,), ((10.0 + row_ms,), (10.0 + 1000 * row_ms,)))
    modes = {StepMode.EAGER: line}
    if graphs is not DecodeGraphs.NONE:
        modes[StepMode.FULL_GRAPH] = line
    draft = Grid((1.0,), (1.0,), ((draft_ms,),))
    sizes = () if graphs is DecodeGraphs.NONE else tuple(range(1, 513))
    return CostTable(Provenance("a line", "none"), modes, draft=draft, decode_graphs=graphs, capture_sizes=sizes)


class Drafts:
    """Asks a policy step by step, and lets drafts be accepted with a fixed chance; only verified ones are learnt of."""

    def __init__(self, policy, costs: StepCosts | None, chance: float, num_requests: int = 16) -> None:
        self.policy, self.costs, self.chance = policy, costs, chance
        self.tracker, self.random = AcceptanceTracker(K), Random(5)
        self.requests = [make_request(f"r{i}", [1, 2, 3]) for i in range(num_requests)]
        self.decision: DraftingDecision | None = None
        self.step_number = 0

    def candidates(self, num_requests: int | None = None) -> DraftingCandidates:
        return DraftingCandidates(
            self.step_number,
            self.requests[:num_requests],
            K,
            1000,
            LAYOUTS["dspark"],
            self.tracker,
            512,
            self.decision,
        )

    def step(self, num_requests: int | None = None) -> DraftingDecision:
        candidates = self.candidates(num_requests)
        self.decision = decision = self.policy.decide(candidates, self.costs)
        self.tracker.probing = decision.probes
        self.step_number += 1
        for request in candidates.requests:
            count = decision.num_draft_tokens(request.request_id)
            accepted = 0
            while accepted < count and self.random.random() < self.chance:
                accepted += 1
            if count:
                self.tracker.observe(request.request_id, count, accepted)
        return decision

    def run(self, steps: int) -> list[DraftingDecision]:
        return [self.step() for _ in range(steps)]


def test_without_costs_drafts_are_made_always() -> None:
    assert {d.most for d in Drafts(DraftByCost(), None, 0.1).run(100)} == {K}
    assert {d.most for d in Drafts(AlwaysDraft(), table(1.0), 0.1).run(10)} == {K}


def test_names_of_the_settings_choose_the_rules() -> None:
    fixed = make_config(layout_name="dspark", num_speculative_tokens=K, verification="fixed")
    assert isinstance(drafting_for(fixed), AlwaysDraft) and isinstance(planner_for(fixed), TurnByTurnPlanner)
    weighed = replace(fixed, verification="confidence")
    assert isinstance(drafting_for(weighed), DraftByCost) and isinstance(planner_for(weighed), ConfidencePlanner)
    assert isinstance(drafting_for(replace(fixed, draft_schedule=((1, 8, 3),))), ScheduledDrafting)


def test_cheap_rows_and_good_drafts_are_made_to_the_full() -> None:
    decisions = Drafts(DraftByCost(), table(0.01), 0.9).run(200)
    assert {d.most for d in decisions} == {K} and not any(d.reason for d in decisions)


@pytest.mark.parametrize("graphs", [DecodeGraphs.NONE, DecodeGraphs.UNIFORM, DecodeGraphs.VARLEN])
def test_useless_drafts_end_within_a_few_dozen_steps(graphs: DecodeGraphs) -> None:
    decisions = Drafts(DraftByCost(), table(0.5, 4.0, graphs), 0.1).run(2000)
    first = next(i for i, d in enumerate(decisions) if d.most == 0)
    assert first <= 24 and all(d.most == 0 for d in decisions[first:])
    assert "0 drafts each promise" in decisions[-1].reason
    made = sum(d.num_draft_tokens(f"r{i}") for d in decisions[100:] for i in range(16))
    assert 0 < made < 0.01 * 1900 * 16 * K, "a few probes"


def test_what_nothing_new_is_known_of_is_not_weighed_again() -> None:
    """One request that does not draft: between probes a decision holds as long as later, when much is known."""
    decisions = Drafts(DraftByCost(), table(0.5, 4.0), 0.1, num_requests=1).run(1000)
    quiet = [d for d in decisions if d.most == 0]
    assert 0 < quiet[-1].num_judged < NUM_SETTLED, "or it would hold anyway"
    weighed = sorted({d.decided_step for d in quiet})
    num_probes = sum(bool(d.probes) for d in quiet)
    assert num_probes < len(weighed) <= len(quiet) / HOLD + 2 * num_probes + 2


def test_a_number_between_is_found() -> None:
    """Rows are cheap enough for some drafts of .6 each and too dear for all. More may be drafted than verified: the
    likeliest requests have theirs looked at further."""
    drafts = Drafts(DraftByCost(), table(0.2, 1.0), 0.6)
    most = drafts.run(400)[-1].most
    truth = [(1 - 0.6 ** (k + 1)) / 0.4 * 16 / (10 + 16 * 0.2 * (k + 1) + (k > 0)) for k in range(K + 1)]
    best = max(range(K + 1), key=lambda k: truth[k])
    outlook = outlooks_of(drafts.candidates(), drafts.costs)[most]
    assert 0 < best < K and best - 0.5 <= outlook.num_rows / 16 <= best + 0.5
    assert outlook.tokens_per_ms == pytest.approx(truth[best], rel=0.1)


def test_zero_is_not_for_ever() -> None:
    """Drafts that were useless become good ones, as when the kind of text changes."""
    drafts = Drafts(DraftByCost(), table(0.3, 2.0), 0.05)
    assert drafts.run(300)[-1].most == 0
    drafts.chance = 0.95
    back = next((i for i, d in enumerate(drafts.run(4000)) if d.most > 0), None)
    assert back is not None


def test_probing_costs_less_than_a_hundredth() -> None:
    for num_requests in (1, 4, 64):
        costs = table(0.3, 3.0)
        drafts = Drafts(DraftByCost(), costs, 0.05, num_requests)
        drafts.run(1000)
        plain = extra = 0.0
        for decision in drafts.run(3000):
            counts = [decision.num_draft_tokens(f"r{i}") for i in range(num_requests)]
            assert decision.most == 0
            plain += 10 + num_requests * 0.3
            extra += sum(counts) * 0.3 + (3.0 if any(counts) else 0.0)
        assert 0.0 < extra < 0.01 * plain


@given(st.floats(0.0, 1.0), st.floats(0.01, 5.0), st.floats(0.0, 20.0), st.integers(1, 32))
def test_what_is_chosen_never_promises_less_than_none(
    chance: float, row_ms: float, draft_ms: float, num_requests: int
) -> None:
    drafts = Drafts(DraftByCost(), table(row_ms, draft_ms), chance, num_requests)
    drafts.run(12)
    outlooks = outlooks_of(drafts.candidates(), drafts.costs)
    fresh = DraftByCost().decide(replace(drafts.candidates(), previous=None), drafts.costs)
    best = max(outlook.tokens_per_ms for outlook in outlooks)
    assert outlooks[fresh.most].tokens_per_ms == pytest.approx(best)


# -- K by load -------------------------------------------------------------------------------------------------------

SCHEDULE = ((1, 4, 5), (5, 16, 3), (17, 64, 0))


def test_k_follows_the_schedule() -> None:
    drafts = Drafts(ScheduledDrafting(SCHEDULE, AlwaysDraft()), None, 0.5, 100)
    for load, count in ((1, 5), (4, 5), (8, 3), (16, 3), (40, 0), (100, 0), (8, 3), (2, 5)):
        assert drafts.step(load).most == count, load
    assert "at most 3 drafts each while 8 requests run" in drafts.step(8).reason


def test_a_load_just_outside_changes_k_when_it_lasts() -> None:
    drafts = Drafts(ScheduledDrafting(SCHEDULE, AlwaysDraft()), None, 0.5, 100)
    assert drafts.step(16).most == 3
    counts = [drafts.step(17).most for _ in range(60)]
    assert counts[0] == 3 and counts[-1] == 0 and counts == sorted(counts, reverse=True)


def test_the_schedule_bounds_what_costs_decide() -> None:
    config: SchedulerConfig = make_config(
        layout_name="dspark", num_speculative_tokens=K, verification="confidence", draft_schedule=SCHEDULE
    )
    drafts = Drafts(drafting_for(config), table(0.01), 0.9, 20)
    assert {drafts.step(10).most for _ in range(100)} == {3}
    useless = Drafts(drafting_for(config), table(0.5, 4.0), 0.05, 20)
    assert [useless.step(10).most for _ in range(100)][-1] == 0
