"""Arrival processes have the mean and spread their names promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slipstream.bench.arrivals import all_at_once, choose_arrivals, closed_loop, open_loop
from slipstream.config import SettingError


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (math.inf, 0.0)])
def test_open_loop_gaps_have_the_rate_and_the_burstiness(burstiness: float, variation: float) -> None:
    gaps = np.diff(open_loop(20_000, 5.0, burstiness, seed=1).times, prepend=0.0)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.2, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05, abs=1e-9)


def test_same_seed_same_times_and_the_rate_keeps_its_own_variance() -> None:
    assert open_loop(50, 2.0, seed=3).times == open_loop(50, 2.0, seed=3).times
    ends = {open_loop(50, 2.0, seed=seed).times[-1] for seed in range(5)}
    assert len(ends) == 5  # not stretched to 50 / 2


def test_closed_loop_and_all_at_once() -> None:
    assert closed_loop(3, 2).max_concurrency == 2
    assert all_at_once(3).times == [0.0, 0.0, 0.0]
    assert all_at_once(3).is_open_loop


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0, "rate": None}, "--concurrency"),
        ({"concurrency": None, "rate": 0.0}, "--request-rate"),
        ({"concurrency": None, "rate": math.nan}, "--request-rate"),
        ({"concurrency": None, "rate": 1.0, "burstiness": 0.0}, "--burstiness"),
        ({"concurrency": 2, "rate": 1.0}, "exclude each other"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, float], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        choose_arrivals(4, **({"burstiness": 1.0, "seed": 0} | options))  # type: ignore[arg-type]
