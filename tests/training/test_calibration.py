"""Calibration figures and the fit of divisors and shifts, on outcomes of a known law."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.training.outcomes import Outcomes
from slipstream.training.reliability import calibration_error, ranking_area, reliability, squared_error
from slipstream.training.temperature_fit import Scaling, fit_scaling, logits_of, scaled, unscaled

DEPTH = 7


def drawn(confidences: np.ndarray, chances: np.ndarray, seed: int) -> Outcomes:
    """Blocks whose drafts are accepted with `chances`, each given the ones before."""
    luck = np.random.default_rng(seed).random(chances.shape)
    accepted = np.logical_and.accumulate(luck < chances, axis=1).sum(axis=1)
    return Outcomes(confidences, accepted, np.full(len(accepted), chances.shape[1]))


def test_V9_overconfident_head_is_brought_down_to_the_truth_position_by_position() -> None:
    shape = (40_000, DEPTH)
    said, truth = np.full(shape, 0.95), np.full(shape, 0.80)
    fitted_on = drawn(said, truth, 1)
    assert reliability(fitted_on).error[-1] == pytest.approx(0.95**7 - 0.80**7, abs=0.01)  # .70 against .21
    scaling = fit_scaling(fitted_on)
    exact = np.log(0.95 / 0.05) / np.log(0.80 / 0.20)
    assert exact == pytest.approx(2.12, abs=0.005)
    assert scaling.divisors == pytest.approx([exact] * DEPTH, rel=0.08)
    assert scaling.shifts == (0.0,) * DEPTH
    held_out = scaled(drawn(said, truth, 2), scaling)
    assert max(reliability(held_out).error) < 0.02
    assert held_out.confidences.cumprod(axis=1)[0, -1] == pytest.approx(0.80**7, abs=0.01)


def test_fit_keeps_the_order_of_confidences_and_finds_a_divisor_for_each_position() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0.5, 1.5, (60_000, 3))
    true_divisors = np.array([0.5, 1.0, 3.0])
    chances = 1 / (1 + np.exp(-logits / true_divisors))
    outcomes = drawn(1 / (1 + np.exp(-logits)), chances, 4)
    scaling = fit_scaling(outcomes)
    assert scaling.divisors == pytest.approx(true_divisors, rel=0.2)
    assert scaling.shifts == (0.0,) * 3
    after = scaled(outcomes, scaling)
    for position in range(3):
        order = np.argsort(outcomes.confidences[:, position], kind="stable")
        assert (np.diff(after.confidences[order, position]) >= 0).all()
    assert reliability(after).mean_error < 0.01 < reliability(outcomes).mean_error


def test_head_that_is_too_sure_on_both_sides_of_a_half_is_shifted() -> None:
    """As one is that was trained for many epochs: it says .7 and .3 where .4 and .1 are true."""
    rng = np.random.default_rng(5)
    logits = rng.normal(0.6, 1.0, (40_000, 3))
    divisors, shifts = np.array([1.3, 1.0, 1.0]), np.array([-1.0, -0.7, -1.5])
    chances = 1 / (1 + np.exp(-(logits / divisors + shifts)))
    said = 1 / (1 + np.exp(-logits))
    fitted_on = drawn(said, chances, 6)
    scaling = fit_scaling(fitted_on)
    assert scaling.divisors == pytest.approx(divisors, rel=0.15)
    assert scaling.shifts == pytest.approx(shifts, abs=0.12)
    held_out = drawn(said, chances, 7)
    after = scaled(held_out, scaling)
    assert reliability(after).mean_error < 0.01 < 0.1 < reliability(held_out).mean_error
    by_divisors = scaled(held_out, Scaling(tuple(np.full(3, 20.0)), (0.0,) * 3))
    assert reliability(by_divisors).error[0] > 0.05  # no divisor brings a mean of .64 to .42


def test_unscaled_takes_a_scaling_back() -> None:
    said = np.array([[0.2, 0.7, 1.0], [0.5, 0.9, 0.1]])
    outcomes = Outcomes(said, np.array([1, 0]), np.array([2, 3]))
    scaling = Scaling((0.5, 2.0, 3.0), (-1.0, 0.0, 0.5))
    after = scaled(outcomes, scaling)
    assert after.confidences[0, 2] == 1.0 and abs(after.confidences - said).max() > 0.1
    assert unscaled(after, scaling).confidences == pytest.approx(said)


def test_positions_that_were_never_judged_keep_their_confidence() -> None:
    outcomes = Outcomes(np.full((50, 3), 0.9), np.arange(50) % 2, np.ones(50, np.int64))
    scaling = fit_scaling(outcomes)
    assert (scaling.divisors[1:], scaling.shifts[1:]) == ((1.0, 1.0), (0.0, 0.0))
    assert len(reliability(outcomes).error) == 1


def test_figures_by_hand() -> None:
    chances = np.array([0.1, 0.1, 0.72, 0.74, 0.9])
    labels = np.array([False, True, True, False, True])
    # Bins of width .05: {.1, .1} has mean .1 and share .5; {.72, .74} .73 and .5; {.9} .9 and 1.
    assert calibration_error(chances, labels) == pytest.approx((2 * 0.4 + 2 * 0.23 + 0.1) / 5)
    # Of 3 x 2 pairs: .1 against .1 (tie) and .74; .72 against .1 and .74; .9 against both.
    assert ranking_area(chances, labels) == pytest.approx((0.5 + 0 + 1 + 0 + 2) / 6)
    assert squared_error(chances, labels) == pytest.approx((0.01 + 0.81 + 0.28**2 + 0.74**2 + 0.01) / 5)
    assert ranking_area(chances, np.ones(5, bool)) is None
    assert calibration_error(np.array([1.0]), np.array([True])) == 0.0


def test_acceptance_counts_positions_behind_a_refusal_as_not_reached() -> None:
    outcomes = Outcomes(np.full((4, 2), 0.5), np.array([0, 1, 2, 1]), np.array([2, 2, 2, 1]))
    conditional, cumulative = outcomes.acceptance()
    assert conditional == [pytest.approx(3 / 4), pytest.approx(1 / 2)]
    assert cumulative == [pytest.approx(3 / 4), pytest.approx(1 / 3)]


def test_logits_of_certainty_are_finite() -> None:
    assert np.isfinite(logits_of(np.array([0.0, 1.0, 0.5]))).all()
