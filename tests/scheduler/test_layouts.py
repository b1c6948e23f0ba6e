"""DraftLayout against the table of design 3, row by row."""

from __future__ import annotations

import pytest

from slipstream.config import SettingError, SpeculativeSettings
from slipstream.scheduler.layouts import LAYOUTS, DraftCostTable, layout_for

# method: (pass, lookahead slots, reserved under shared) for Q target rows and K drafts
TABLE = {
    "ngram": lambda q, k: (0, 0, 0),
    "suffix": lambda q, k: (0, 0, 0),
    "eagle3": lambda q, k: (q, k - 1, 0),
    "mtp": lambda q, k: (q, k - 1, 0),
    "draft_model": lambda q, k: (q + 1, k, 1),
    "p_eagle": lambda q, k: (q + k - 1, k - 1, k - 1),
    "pard": lambda q, k: (q + k, k, k),
    "dflash": lambda q, k: (k + 1, k + 1, k),
    "dspark": lambda q, k: (k, k, k - 1),
    "dspark_fill_in": lambda q, k: (k + 1, k + 1, k - 1),
}


@pytest.mark.parametrize("method", TABLE)
@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("q", [1, 6, 512])
def test_rows_and_slots(method: str, q: int, k: int) -> None:
    layout = LAYOUTS[method]
    expected = TABLE[method](q, k)
    assert (layout.draft_query_rows(q, k), layout.lookahead_slots(k), layout.reserved_slots(k)) == expected
    assert layout.context_rows(q) == (q if method in ("dflash", "dspark", "dspark_fill_in") else 0)


def test_every_method_of_the_table_is_there() -> None:
    assert set(LAYOUTS) == set(TABLE)


@pytest.mark.parametrize("method", TABLE)
def test_without_drafts_only_carried_rows_remain(method: str) -> None:
    layout = LAYOUTS[method]
    assert layout.draft_query_rows(7, 0) == (7 if layout.carries_target_rows else 0)
    assert layout.lookahead_slots(0) == layout.reserved_slots(0) == 0


@pytest.mark.parametrize("method", TABLE)
def test_the_default_capacity_is_never_short(method: str) -> None:
    layout, b, s, k = LAYOUTS[method], 64, 8, 5
    capacity = layout.default_draft_capacity(b, s, k)
    # The worst step: S requests whose target rows fill B.
    rows = [b - (s - 1)] + [1] * (s - 1)
    assert sum(layout.draft_query_rows(q, k) for q in rows) <= capacity


def test_the_cost_table_is_the_layout() -> None:
    table = DraftCostTable.of(LAYOUTS["dspark_fill_in"], 5)
    assert table.extra_rows == (0, 2, 3, 4, 5, 6)
    assert table.lookahead_slots == (0, 2, 3, 4, 5, 6)


def test_an_unknown_layout_is_refused_by_name() -> None:
    settings = SpeculativeSettings(method="forced", layout="dspork", acceptance_length=2.0)
    with pytest.raises(SettingError, match="dspork"):
        layout_for(settings)
    assert layout_for(None).draft_query_rows(5, 5) == 0
