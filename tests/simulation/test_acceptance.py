"""Acceptance models: means as asked, luck that follows the position alone, confidences as wrong as asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.config import SettingError
from slipstream.simulation.acceptance import AcceptanceModel, GeometricAcceptance, luck
from slipstream.simulation.mixture_acceptance import (
    AcceptanceClass,
    MixtureAcceptance,
    acceptance_by_depth,
    conditional_chances,
)

EASY = AcceptanceClass(1.0, (0.9, 0.85, 0.8, 0.7, 0.6))
HARD = AcceptanceClass(3.0, (0.6, 0.45, 0.3, 0.2, 0.1))
DEPTH = 5
NUM_TOKENS = 400


def judged_drafts(model: AcceptanceModel, num_requests: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(depth, accepted, confidence) of every draft that is judged when a block begins at every position."""
    depths, accepted, confidences = [], [], []
    for index in range(num_requests):
        fate = model.request(index, NUM_TOKENS)
        for position in range(NUM_TOKENS - DEPTH):
            count = fate.num_accepted(position, DEPTH)
            beliefs = fate.confidences(position, DEPTH)
            for depth in range(min(count + 1, DEPTH)):
                depths.append(depth)
                accepted.append(depth < count)
                confidences.append(np.nan if beliefs is None else beliefs[depth])
    return np.array(depths), np.array(accepted), np.array(confidences)


@pytest.mark.parametrize("spread", [0.0, 1.5])
def test_chances_by_depth_come_out_whatever_the_spread(spread: float) -> None:
    depths, accepted, _ = judged_drafts(acceptance_by_depth(HARD.chances, difficulty_spread=spread, seed=4), 60)
    for depth, chance in enumerate(HARD.chances):
        mine = accepted[depths == depth]
        assert mine.mean() == pytest.approx(chance, abs=5 * np.sqrt(chance * (1 - chance) * DEPTH / len(mine)))


def test_one_chance_at_every_depth_is_the_geometric_model() -> None:
    geometric, by_depth = GeometricAcceptance(0.8, seed=7), acceptance_by_depth([0.8] * DEPTH, seed=7)
    for index in range(5):
        ours, theirs = by_depth.request(index, 100), geometric.request(index, 100)
        for position in range(101):
            for count in range(DEPTH + 1):
                room = min(count, 100 - position)
                assert ours.num_accepted(position, room) == theirs.num_accepted(position, room)
        assert ours.confidences(3, DEPTH) is None


def test_shares_decide_how_many_requests_are_easy() -> None:
    model = MixtureAcceptance([EASY, HARD], seed=1)
    assert np.mean([model.class_of(index) == 0 for index in range(4000)]) == pytest.approx(0.25, abs=0.035)


def test_a_draft_is_accepted_when_the_luck_of_its_position_is_below_its_chance() -> None:
    """The confidence without error is that chance, so luck and confidence foretell every outcome."""
    model = MixtureAcceptance([EASY, HARD], difficulty_spread=1.0, calibration_error=0.0, seed=3)
    for index in range(6):
        uniform, fate = luck(3, index, 100), model.request(index, 100)
        for position in range(96):
            chances = fate.confidences(position, DEPTH)
            assert chances is not None
            expected = 0
            while expected < DEPTH and uniform[position + expected] < chances[expected]:
                expected += 1
            assert fate.num_accepted(position, DEPTH) == expected
            assert fate.num_accepted(position, 2) == min(expected, 2)


def test_the_longer_request_meets_the_same_luck() -> None:
    model = MixtureAcceptance([EASY, HARD], difficulty_spread=1.0, calibration_error=0.05)
    short, long = model.request(2, 50), model.request(2, 90)
    for position in range(45):
        assert short.num_accepted(position, DEPTH) == long.num_accepted(position, DEPTH)
        assert short.confidences(position, DEPTH) == long.confidences(position, DEPTH)


@pytest.mark.parametrize("error", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("spread", [0.0, 1.2])
def test_confidences_are_as_wrong_as_asked(error: float, spread: float) -> None:
    model = MixtureAcceptance([EASY, HARD], difficulty_spread=spread, calibration_error=error, seed=11)
    _, accepted, confidences = judged_drafts(model, 150)
    edges = np.quantile(confidences, np.linspace(0, 1, 11)[1:-1])
    bins = np.searchsorted(edges, confidences)
    gaps = [(confidences - accepted)[bins == b] for b in np.unique(bins)]
    measured = sum(abs(gap.mean()) * len(gap) for gap in gaps) / len(accepted)
    assert measured == pytest.approx(error, abs=0.015)


def test_confidences_know_more_than_depth() -> None:
    """Among first drafts of equal requests, the confident ones are accepted more often."""
    model = acceptance_by_depth(HARD.chances, difficulty_spread=1.5, calibration_error=0.0)
    depths, accepted, confidences = judged_drafts(model, 60)
    first, said = accepted[depths == 0], confidences[depths == 0]
    middle = np.median(said)
    assert first[said > middle].mean() - first[said <= middle].mean() > 0.3


def test_certain_drafts_stay_certain() -> None:
    model = acceptance_by_depth((1.0, 0.5, 0.0), difficulty_spread=2.0, calibration_error=0.0)
    fate = model.request(0, 50)
    for position in range(45):
        confidences = fate.confidences(position, 3)
        assert confidences is not None
        assert (confidences[0], confidences[2]) == (1.0, 0.0)
        assert 1 <= fate.num_accepted(position, 3) <= 2


def test_survivals_become_chances() -> None:
    chances = conditional_chances((0.84, 0.67, 0.5, 0.0, 0.0))
    assert np.cumprod(chances) == pytest.approx((0.84, 0.67, 0.5, 0.0, 0.0))
    assert AcceptanceClass(1.0, chances).acceptance_length == pytest.approx(3.01)
    with pytest.raises(SettingError, match=r"fall from at most 1.*0\.6, 0\.7"):
        conditional_chances((0.6, 0.7))


def test_seeds_are_other_luck() -> None:
    fates = [MixtureAcceptance([HARD], seed=seed).request(0, 200) for seed in (0, 0, 1)]
    first, same, other = ([fate.num_accepted(position, DEPTH) for position in range(190)] for fate in fates)
    assert first == same != other


@pytest.mark.parametrize(
    ("classes", "options", "message"),
    [
        ([], {}, "at least one class"),
        ([AcceptanceClass(0.0, (0.5,))], {}, "share .* above 0, got 0.0"),
        ([AcceptanceClass(1.0, (0.5,)), AcceptanceClass(1.0, (0.5, 0.4))], {}, r"as many chances each.*\[1, 2\]"),
        ([AcceptanceClass(1.0, (1.2,))], {}, "between 0 and 1, got 1.2; the nearest is 1"),
        ([HARD], {"difficulty_spread": -1.0}, "0 or more logits, got -1.0; the nearest is 0"),
        ([HARD], {"calibration_error": 0.9}, r"to below 0\.5\d*, .*got 0.9; the nearest is 0\.\d+"),
        ([HARD], {"calibration_error": -0.1}, "got -0.1; the nearest is 0"),
    ],
)
def test_bad_figures_are_refused(classes: list[AcceptanceClass], options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        MixtureAcceptance(classes, **options)


def test_more_drafts_than_chances_are_refused() -> None:
    fate = acceptance_by_depth((0.8, 0.7)).request(0, 20)
    with pytest.raises(SettingError, match="chances for 2 drafts in a row, and 3 were made"):
        fate.confidences(0, 3)
