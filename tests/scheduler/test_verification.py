"""Planners that verify by value, the choice of how many rows, and what survivals are known from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from counter_example import FIRST_CONFIDENCE, SECOND_CONFIDENCE, TableOfThree, drafting_request, draw_draft, token_of
from hypothesis import given
from hypothesis import strategies as st

from slipstream.scheduler.acceptance import AcceptanceTracker
from slipstream.scheduler.confidence import ConfidencePlanner, OldTotalPlanner, most_valuable
from slipstream.scheduler.cost_table import CostTable, HostCost, Provenance
from slipstream.scheduler.costs import DecodeGraphs, StepShape
from slipstream.scheduler.interpolation import Curve, Grid
from slipstream.scheduler.protocol import StepMode
from slipstream.scheduler.verification import Survivals, TurnByTurnPlanner, offer_of
from slipstream.scheduler.verify_rows import best_verify_rows, target_ms_by_verify_rows


def survivals_of(*confidences: list[float]) -> Survivals:
    """From conditional confidences per request, of any lengths."""
    depth = max(map(len, confidences), default=0)
    table = np.zeros((len(confidences), depth))
    for i, values in enumerate(confidences):
        table[i, : len(values)] = np.cumprod(values)
    return table


chances = st.floats(0.01, 1.0)
blocks = st.lists(st.lists(chances, max_size=6), min_size=1, max_size=8)


@st.composite
def tables(draw: st.DrawFn) -> CostTable:
    """Flat, rising and falling curves; with stairs and without; each kind of graphs."""
    graphs = draw(st.sampled_from(DecodeGraphs))
    points = st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True).map(sorted)

    def grid() -> Grid:
        rows = tuple(map(float, draw(points)))
        ms = draw(st.lists(st.floats(0.5, 50.0), min_size=len(rows), max_size=len(rows)))
        return Grid(rows, (0.0, 100.0), tuple((value, value + 3.0) for value in ms))

    target = {StepMode.EAGER: grid()}
    sizes: tuple[int, ...] = ()
    if graphs is not DecodeGraphs.NONE:
        target[StepMode.FULL_GRAPH] = grid()
        sizes = tuple(draw(points))
        if draw(st.booleans()):
            target[StepMode.PIECEWISE] = grid()
    sampling = Curve((1.0, 20.0), (0.1, 1.0)) if draw(st.booleans()) else None
    return CostTable(
        Provenance("drawn", "none"),
        target,
        sampling=sampling,
        host=HostCost(0.1, 0.01),
        decode_graphs=graphs,
        capture_sizes=sizes,
    )


# -- how many rows ---------------------------------------------------------------------------------------------------


@given(tables(), st.integers(1, 20), st.integers(0, 20), st.integers(0, 40))
def test_all_row_counts_at_once_cost_what_each_costs(table: CostTable, decodes: int, prompts: int, most: int) -> None:
    shape = StepShape(decodes, num_prompt_rows=prompts, num_emitting_prompts=prompts // 7, num_kv_tokens=50)
    each = [table.target_ms(replace(shape, num_verify_rows=n, is_uniform=n == 0)) for n in range(most + 1)]
    assert target_ms_by_verify_rows(table, shape, most) == pytest.approx(each)


@given(tables(), blocks, st.integers(0, 30), st.floats(0.0, 5.0), st.one_of(st.none(), st.floats(0.0, 3.0)))
def test_the_total_is_the_best_of_all(
    table: CostTable, confidences: list[list[float]], room: int, draft_ms: float, rate: float | None
) -> None:
    """Against brute force over every n and, where graphs are uniform, every depth."""
    offer = offer_of(survivals_of(*confidences), may_trim=True)
    num_decodes = len(confidences)
    shape = StepShape(num_decodes, num_prompt_rows=0 if rate is None else 3, num_kv_tokens=40)
    choice = best_verify_rows(offer, table, shape, room, draft_ms=draft_ms, rate=rate)

    def value(gain: float, ms: float) -> float:
        return (num_decodes + gain) / (ms + draft_ms) if rate is None else gain - rate * ms

    options = [
        value(offer.gains[n], table.target_ms(replace(shape, num_verify_rows=n, is_uniform=n == 0)))
        for n in range(min(room, len(offer.gains) - 1) + 1)
    ]
    if table.decode_graphs is DecodeGraphs.UNIFORM and rate is None:
        for k in range(min(map(len, confidences)) + 1):
            if k * num_decodes <= room:
                whole = replace(shape, num_verify_rows=k * num_decodes, is_uniform=True)
                options.append(value(offer.depth_gains[k], table.target_ms(whole)))
    assert 0 <= choice.num_rows <= room
    assert value(choice.gain, choice.target_ms) == pytest.approx(max(options))
    if choice.depth is not None:
        assert choice.num_rows == choice.depth * num_decodes


def stairs(*ms: float) -> CostTable:
    """Graphs of 4, 8, 16 and 32 rows that take so long, varlen."""
    sizes = (4, 8, 16, 32)
    grid = Grid(tuple(map(float, sizes)), (0.0,), tuple((value,) for value in ms))
    return CostTable(
        Provenance("stairs", "none"),
        {StepMode.FULL_GRAPH: grid, StepMode.EAGER: Grid((1.0,), (0.0,), ((100.0,),))},
        decode_graphs=DecodeGraphs.VARLEN,
        capture_sizes=sizes,
    )


def test_a_stair_is_used_up_to_its_edge_and_a_valley_is_looked_beyond() -> None:
    survivals = survivals_of(*[[0.5] * 7] * 4)  # 2, 1, 1/2, … more accepted drafts per depth
    offer = offer_of(survivals, may_trim=True)
    shape = StepShape(4)
    # 4 rows: 4/10; 8: 6/11; 16: 7.5/18; 32 rows: 7.9/40
    assert best_verify_rows(offer, stairs(10, 11, 18, 40), shape, 28).num_rows == 4
    # The second stair is a loss, the third a gain: 4/10 > 6/16 < 7.5/16.5
    assert best_verify_rows(offer, stairs(10, 16, 16.5, 40), shape, 28).num_rows == 12
    cautious = offer_of(survivals, may_trim=True, stop_early=True)
    assert best_verify_rows(cautious, stairs(10, 16, 16.5, 40), shape, 28).num_rows == 0
    assert best_verify_rows(offer, stairs(10, 10, 10, 10), shape, 28).num_rows == 28, "a flat table verifies all"
    assert best_verify_rows(offer, stairs(10, 30, 60, 90), shape, 28).num_rows == 0


def test_uniform_graphs_have_one_k() -> None:
    table = replace(stairs(10, 11, 12, 40), decode_graphs=DecodeGraphs.UNIFORM)
    survivals = survivals_of([0.9, 0.9, 0.9], [0.5, 0.5, 0.5], [0.1, 0.1, 0.1], [0.9, 0.1, 0.1])
    choice = best_verify_rows(offer_of(survivals, may_trim=True), table, StepShape(4), 12)
    assert choice.depth == 3 and choice.num_rows == 12
    ragged = survivals_of([0.9, 0.9, 0.9], [0.5, 0.5, 0.5], [0.1, 0.1, 0.1], [0.9])
    choice = best_verify_rows(offer_of(ragged, may_trim=True), table, StepShape(4), 12)
    assert choice.depth == 1 and choice.num_rows == 4, "two rows each would need a second draft of the last"


def test_beside_prompts_rows_are_worth_what_steps_of_decodes_make_of_the_time() -> None:
    """A ratio would verify all: the prompt's 500 ms make every row look cheap."""
    grid = Grid((1.0, 1000.0), (0.0,), ((5.0,), (5.0 + 999 * 1.0,)))
    table = CostTable(Provenance("1 ms a row", "none"), {StepMode.EAGER: grid})
    offer = offer_of(survivals_of(*[[0.6, 0.6, 0.6]] * 8), may_trim=True)
    alone = best_verify_rows(offer, table, StepShape(8), 24)
    beside = StepShape(8, num_prompt_rows=500)
    assert best_verify_rows(offer, table, beside, 24, rate=alone.tokens_per_ms).num_rows == alone.num_rows == 0
    assert best_verify_rows(offer, table, beside, 24).num_rows == 24


def test_what_may_not_be_trimmed_runs_as_far_as_it_fits() -> None:
    offer = TurnByTurnPlanner().offer(survivals_of([0.1, 0.1], [0.1]))
    assert best_verify_rows(offer, stairs(10, 30, 60, 90), StepShape(2), 2).num_rows == 2
    assert best_verify_rows(offer, stairs(10, 30, 60, 90), StepShape(2), 99).num_rows == 3


# -- who gets them ---------------------------------------------------------------------------------------------------


@given(blocks, st.integers(0, 60), st.integers(0, 100))
def test_rows_go_to_the_likeliest_first_drafts(confidences: list[list[float]], rows: int, turn: int) -> None:
    survivals = survivals_of(*confidences)
    drafts = list(map(len, confidences))
    counts = ConfidencePlanner().distribute(drafts, survivals, rows, turn)
    assert all(0 <= count <= most for count, most in zip(counts, drafts, strict=True))
    assert sum(counts) == min(rows, sum(drafts))
    gained = sum(survivals[i, :count].sum() for i, count in enumerate(counts))
    assert gained == pytest.approx(offer_of(survivals, may_trim=True).gains[sum(counts)])


@given(blocks)
def test_offers_never_rise_by_more_than_a_draft_and_ever_less(confidences: list[list[float]]) -> None:
    offer = offer_of(survivals_of(*confidences), may_trim=True)
    steps = np.diff(offer.gains)
    assert len(offer.gains) == sum(map(len, confidences)) + 1
    assert all(0.0 < step <= 1.0 + 1e-9 for step in steps) and all(a >= b - 1e-9 for a, b in pairwise(steps))
    assert offer.depth_rows[-1] == sum(map(len, confidences))
    assert offer.depth_gains[-1] == pytest.approx(offer.gains[-1])


def test_ties_go_to_earlier_positions_and_then_in_turn() -> None:
    survivals = np.full((4, 3), 0.5)
    assert most_valuable(survivals, 4, 0) == [1, 1, 1, 1], "a later position waits although it is as likely"
    assert most_valuable(survivals, 6, 0) == [2, 2, 1, 1]
    assert most_valuable(survivals, 6, 3) == [2, 1, 1, 2]
    total: Counter[int] = Counter()
    for turn in range(8):
        total.update(dict(enumerate(most_valuable(survivals, 3, turn))))
    assert set(total.values()) == {6}


def test_without_survivals_rows_are_dealt_turn_by_turn() -> None:
    assert ConfidencePlanner().distribute([3, 3, 1], None, 5, 0) == TurnByTurnPlanner().distribute(
        [3, 3, 1], None, 5, 0
    )


def test_an_old_total_fits_the_rows_at_hand() -> None:
    planner = OldTotalPlanner(age=2)
    first = planner.offer(survivals_of([0.9, 0.9]))
    assert first.gains == pytest.approx([0.0, 0.9, 1.71]) and "total by survivals 0 steps old" in planner.reason
    wider = planner.offer(survivals_of([0.5, 0.5], [0.5, 0.5]))
    assert wider.gains == pytest.approx([0.0, 0.9, 1.71, 1.71, 1.71]), "of more rows nothing was known"
    narrower = planner.offer(survivals_of([0.5]))
    assert narrower.gains == pytest.approx([0.0, 0.9]) and "total by survivals 2 steps old" in planner.reason


# -- Appendix A of the DSpark paper ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("stop_early", "chance_of_a"), [(True, 0.70), (False, 0.85)])
def test_looking_ahead_biases_the_textbook_rejection_rule(stop_early: bool, chance_of_a: float) -> None:
    """One request, two drafts, target (.7, .3) and drafter (.5, .5) over A and B. The second draft's confidence is .9
    after A and 0 after B, so a rule that looks past the dip verifies the first draft only when it is A."""
    planner, random = ConfidencePlanner(stop_early=stop_early), Random(1)
    num_draws, num_a, lengths = 20_000, 0, Counter()
    for _ in range(num_draws):
        draft = draw_draft(random)
        survivals = survivals_of([FIRST_CONFIDENCE, SECOND_CONFIDENCE[draft]])
        choice = best_verify_rows(planner.offer(survivals), TableOfThree(), StepShape(1), 2)
        [length] = planner.distribute([2], survivals, choice.num_rows, 0)
        lengths[draft, length] += 1
        num_a += token_of(random, draft, length) == 0
    assert set(lengths) == ({(0, 0), (1, 0)} if stop_early else {(0, 2), (1, 0)})
    assert num_a / num_draws == pytest.approx(chance_of_a, abs=4 * (0.25 / num_draws) ** 0.5)


# -- what is known ---------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=60))
def test_survivals_never_rise(steps: list[tuple[int, int]]) -> None:
    tracker = AcceptanceTracker(4)
    for index, (verified, accepted) in enumerate(steps):
        tracker.observe(f"r{index % 3}", verified, min(verified, accepted))
    requests = [drafting_request("r0"), drafting_request("r1", [0.9, 1.0, 0.0, 0.3]), drafting_request("new")]
    survivals = tracker.survivals(requests, [4, 3, 2])
    assert survivals.shape == (3, 4)
    assert (np.diff(survivals, axis=1) <= 0).all()
    assert (survivals > 0).sum(axis=1).tolist() == [4, 3, 2], "a draft at hand is never worth nothing at all"
    assert (survivals <= 1).all()


def test_running_acceptance_is_learnt_in_a_few_steps_and_per_request() -> None:
    """Two kinds of requests, silent drafter: .9 and .2 per draft given the ones before."""
    tracker, random = AcceptanceTracker(5), Random(3)
    truth = {f"r{i}": 0.9 if i % 2 else 0.2 for i in range(16)}

    def step() -> None:
        for name, chance in truth.items():
            accepted = 0
            while accepted < 5 and random.random() < chance:
                accepted += 1
            tracker.observe(name, 5, accepted)

    for _ in range(30):
        step()
    requests = [drafting_request(name) for name in truth]
    first = tracker.survivals(requests, [5] * 16)[:, 0]
    assert first[1::2].min() > 0.65 and first[::2].max() < 0.45, "shrunk to the mean, and apart"
    whole = tracker.expected([drafting_request("new")], 5)[0]
    assert 0.4 < whole[0] < 0.9, "of a new request only the mean is known"


def test_overconfident_heads_are_calibrated() -> None:
    """Confidences of .95 where .8 is accepted: after some steps the survivals are those of .8."""
    tracker, random, confidences = AcceptanceTracker(7), Random(4), [0.95] * 7
    request = drafting_request("r", confidences)
    assert tracker.survivals([request], [7])[0] == pytest.approx(np.cumprod(confidences))
    for index in range(400):
        name = f"r{index}"
        tracker.note_drafts(name, confidences)
        accepted = 0
        while accepted < 7 and random.random() < 0.8:
            accepted += 1
        tracker.observe(name, 7, accepted)
    assert tracker.survivals([request], [7])[0] == pytest.approx(0.8 ** np.arange(1, 8), abs=0.04)


def test_drafts_that_are_to_be_probed_come_first() -> None:
    tracker = AcceptanceTracker(3)
    for _ in range(200):
        tracker.observe("r", 3, 0)
    requests = [drafting_request("r"), drafting_request("s", [0.9, 0.9, 0.9])]
    tracker.probing = frozenset({"r"})
    assert most_valuable(tracker.survivals(requests, [2, 3]), 2, 0) == [2, 0]
