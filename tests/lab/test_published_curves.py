"""Against published curves: what the benchmark of that name prints, with shorter answers, must stay within its bars."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from slipstream.simulation.machines.v4_pro import CONCURRENCIES

PATH = Path(__file__).parents[2] / "benchmarks" / "published_curves.py"


@pytest.fixture(scope="module")
def curves() -> ModuleType:
    spec = importlib.util.spec_from_file_location("published_curves", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["published_curves"] = module
    spec.loader.exec_module(module)
    return module


def tokens(column: int | None, concurrency: int) -> int:
    """Of each request: enough for steady decoding, and for the drafting rule to have learnt."""
    return max(320 if column is None else 128, min(1024, 4096 // concurrency))


def test_predicted_columns_are_within_the_bar(curves: ModuleType) -> None:
    columns = (1, 3, 5, None)
    cells = [cell for c in CONCURRENCIES for k in columns for cell in curves.cells([k], [c], tokens(k, c))]
    assert len(cells) == 24
    assert not any(cell.is_fitted for cell in cells)
    assert curves.mean_error(cells) <= curves.MAX_ERROR == 0.10
    assert max(abs(cell.error) for cell in cells) <= 0.15


def test_fitted_columns_come_back_from_the_simulation(curves: ModuleType) -> None:
    for cell in curves.cells((0, 7), (16, 64), 512):
        assert cell.predicted.tpot_ms == pytest.approx(cell.measured.tpot_ms, rel=0.03)


@pytest.mark.parametrize("concurrency", CONCURRENCIES)
def test_the_chosen_k_loses_little_against_the_best(curves: ModuleType, concurrency: int) -> None:
    choice = curves.choose(concurrency)
    assert choice.loss <= curves.MAX_LOSS == 0.03
    assert choice.chosen in (1, 3, 5, 7)
