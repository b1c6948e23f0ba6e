"""Cost tables: what they answer, and their JSON form."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.config import SettingError
from slipstream.scheduler.cost_table import AttentionCost, CostTable, HostCost, Provenance
from slipstream.scheduler.cost_table_json import cost_table_from_json, cost_table_to_json
from slipstream.scheduler.costs import DecodeGraphs, StepShape, shape_of
from slipstream.scheduler.interpolation import Curve, Grid
from slipstream.scheduler.protocol import RequestResult, ScheduledRequest, StepMode, StepPlan, StepResult


def flat(*points: tuple[float, float]) -> Grid:
    """A grid over rows alone."""
    return Grid(tuple(rows for rows, _ in points), (0.0,), tuple((ms,) for _, ms in points))


TABLE = CostTable(
    Provenance("a machine", "a model", "2026-01-01", "slipstream profile", notes=("a note",)),
    {
        StepMode.EAGER: Grid((1.0, 100.0), (0.0, 1000.0), ((50.0, 60.0), (149.0, 169.0))),
        StepMode.FULL_GRAPH: flat((8.0, 10.0), (16.0, 12.0), (32.0, 20.0)),
    },
    draft=Grid((1.0, 10.0), (5.0,), ((1.0,), (2.0,))),
    sampling=Curve((1.0, 11.0), (0.5, 1.5)),
    attention=AttentionCost(0.25, 0.001),
    host=HostCost(0.1, 0.01),
    decode_graphs=DecodeGraphs.UNIFORM,
    capture_sizes=(8, 16, 32),
    corrections={StepMode.EAGER: 1.5},
    version=3,
)
PLAIN = replace(TABLE, sampling=None, attention=AttentionCost(), host=HostCost(), corrections={})


def test_steps_are_padded_to_captured_sizes_and_lose_the_graph_past_the_largest() -> None:
    assert PLAIN.target_ms(StepShape(9)) == PLAIN.target_ms(StepShape(16)) == 12.0
    assert PLAIN.dispatch(StepShape(9)).num_padded_rows == 16
    assert PLAIN.target_ms(StepShape(32)) == 20.0
    assert PLAIN.dispatch(StepShape(33)) == PLAIN.dispatch(StepShape(33, is_uniform=False))
    assert PLAIN.dispatch(StepShape(33)).mode is StepMode.EAGER
    assert PLAIN.target_ms(StepShape(33)) == 50.0 + 32.0, "the cliff"


def test_what_is_not_uniform_or_holds_prompts_runs_eagerly() -> None:
    for shape in (StepShape(4, 5, is_uniform=False), StepShape(4, 0, 5)):
        assert PLAIN.dispatch(shape).mode is StepMode.EAGER
    piecewise = replace(PLAIN, target={**PLAIN.target, StepMode.PIECEWISE: flat((1.0, 30.0))})
    assert piecewise.dispatch(StepShape(4, 0, 5)).graph_key == "piecewise/16"


def test_eager_times_go_on_past_the_last_point() -> None:
    assert PLAIN.target_ms(StepShape(200)) == pytest.approx(249.0)
    assert PLAIN.target_ms(StepShape(100, num_kv_tokens=2000)) == pytest.approx(189.0)


def test_the_parts_of_a_step_add_up_and_the_correction_spares_the_host() -> None:
    shape = StepShape(2, 3, 45, 1, 500, False, 2, 4000)
    assert shape.num_requests == 4
    target = (50.0 + 49.0) + (10.0 + (20.0 - 10.0) * 49 / 99) / 2
    expected = target + 4 * 0.25 + 4000 * 0.001 + (0.5 + 0.1 * 5)
    assert TABLE.pass_ms(shape) == pytest.approx(1.5 * expected)
    assert TABLE.target_ms(shape) == pytest.approx(1.5 * expected + 0.1 + 3 * 0.01)
    assert TABLE.target_ms(StepShape(0)) == 0.0


def test_who_does_not_know_requests_and_pairs_gets_what_the_rest_shows() -> None:
    shape = StepShape(3, 0, 10, 0, 70)
    assert (shape.num_requests, shape.num_pairs) == (4, 70)
    assert StepShape(3).num_requests == 3


def test_a_drafter_costs_nothing_without_requests_and_something_without_rows() -> None:
    assert TABLE.draft_ms(0, 0) == 0.0
    assert TABLE.draft_ms(10, 50) == 2.0
    ngram = replace(TABLE, draft=Grid((1.0, 10.0), (0.0,), ((0.1,), (0.2,))))
    assert ngram.draft_ms(10, 0) == 0.2
    assert replace(TABLE, draft=None).draft_ms(10, 50) == 0.0


@pytest.mark.parametrize("graphs", DecodeGraphs)
@pytest.mark.parametrize("num_prompt_rows", [0, 7])
def test_all_verify_rows_at_once_cost_what_each_number_costs(graphs: DecodeGraphs, num_prompt_rows: int) -> None:
    """A verify row looks at what its request has: the pairs grow with it."""
    table = replace(TABLE, decode_graphs=graphs)
    shape = StepShape(6, 0, num_prompt_rows, 0, 600, num_prompts=int(num_prompt_rows > 0), num_attended=900)
    each = 600 / shape.num_requests
    expected = [
        table.target_ms(
            replace(shape, num_verify_rows=n, is_uniform=n == 0, num_attended=900 + round(n * each)),
        )
        for n in range(61)
    ]
    np.testing.assert_allclose(table.target_ms_by_verify_rows(shape, 60), expected, atol=2e-3)


def test_the_shape_of_what_ran_counts_the_drafts_that_were_there() -> None:
    def entry(name: str, computed: int, rows: int, verify: int, *, prefill: bool = False) -> ScheduledRequest:
        return ScheduledRequest(name, 0, computed, rows, verify, 0, prefill, not prefill, 0, 0, [])

    plan = StepPlan(1, [entry("a", 10, 6, 5), entry("b", 20, 6, 5), entry("p", 4, 8, 0, prefill=True)])
    plan.num_verify_rows, plan.num_prefill_rows = 10, 8
    assert shape_of(plan) == StepShape(2, 10, 8, 0, 16 + 26 + 12, True, 1, 6 * 16 + 6 * 26 + 8 * 12)
    ran = StepResult(1, [RequestResult("a", 0, [1], 2), RequestResult("b", 0, [1], 5), RequestResult("p", 0, [])])
    assert shape_of(plan, ran) == StepShape(2, 7, 8, 0, 13 + 26 + 12, False, 1, 3 * 13 + 6 * 26 + 8 * 12)


def test_json_gives_an_equal_table_back() -> None:
    text = json.dumps(cost_table_to_json(TABLE))
    assert cost_table_from_json(json.loads(text)) == TABLE
    assert cost_table_from_json(cost_table_to_json(PLAIN)) == PLAIN


def test_parts_that_may_be_left_out() -> None:
    value = {
        "format": "slipstream-cost-table/1",
        "provenance": {"machine": "m", "model": "n"},
        "target_ms": {"eager": {"num_rows": [1, 2], "num_kv_tokens": [0], "ms": [[1], [2]]}},
    }
    table = cost_table_from_json(value)
    assert table.target_ms(StepShape(2)) == 2.0
    assert table.decode_graphs is DecodeGraphs.NONE


def put(value: dict[str, Any], path: str, new: object) -> None:
    """Set `a.b.c`; REMOVED takes it away."""
    *parents, last = path.split(".")
    for parent in parents:
        value = value[parent]
    if new is REMOVED:
        del value[last]
    else:
        value[last] = new


REMOVED = object()
NAN = float("nan")


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        ("format", "other/1", "slipstream-cost-table/1"),
        ("format", REMOVED, "slipstream-cost-table/1"),
        ("target_ms", REMOVED, "target_ms must be a JSON object"),
        ("target_ms.eager", REMOVED, "eager"),
        ("target_ms.eager.ms", REMOVED, "target_ms.eager must be an object with num_rows, num_kv_tokens and ms"),
        ("target_ms.eager.num_rows", REMOVED, "target_ms.eager.num_rows must be a list of numbers"),
        ("target_ms.eager.num_rows", [100, 1], "target_ms.eager: a grid's first axis must rise"),
        ("target_ms.eager.num_rows", [1, NAN], "target_ms.eager: a grid's first axis must rise"),
        ("target_ms.eager.num_rows", [1, float("inf")], "target_ms.eager: a grid's first axis must rise"),
        ("target_ms.eager.num_kv_tokens", [], "second axis is empty"),
        ("target_ms.eager.ms", [[1.0, NAN], [1.0, 1.0]], "got nan"),
        ("target_ms.eager.ms", [[1.0, -1.0], [1.0, 1.0]], "got -1"),
        ("target_ms.eager.ms", [[1.0, 1.0]], "2 x 2 points needs as many times"),
        ("target_ms.eager.ms", [["1", 1.0], [1.0, 1.0]], "must be a list of numbers"),
        ("target_ms.warp", {}, "choose one of eager, piecewise, full_graph"),
        ("target_ms.eager.colour", 1, "unknown key 'colour'"),
        ("colour", 1, "unknown key 'colour'"),
        ("provenance.colour", "x", "unknown key 'colour'"),
        ("provenance.machine", REMOVED, "provenance.machine is missing"),
        ("provenance.notes", "text", "notes a list of texts"),
        ("sampling_ms.num_rows", [5, 5], "sampling_ms: a curve's axis must rise"),
        ("sampling_ms.ms", [1.0], "2 points and 1 times"),
        ("draft_ms.ms", [[True], [1.0]], "must be a list of numbers"),
        ("host_ms.per_step", -1, "host_ms.per_step must be a number from 0 to"),
        ("host_ms.per_row", 1, "unknown key 'per_row'"),
        ("host_ms", 1, "host_ms must be an object with per_step and per_request"),
        ("attention_ms.per_pair", NAN, "attention_ms.per_pair must be a number from 0 to"),
        ("corrections.eager", 0, "factor above 0"),
        ("corrections", [1], "corrections must be an object"),
        ("capture_sizes", [8, 8], "capture_sizes must rise"),
        ("capture_sizes", [], "needs capture_sizes"),
        ("capture_sizes", [8.5], "whole numbers"),
        ("decode_graphs", "some", "choose one of uniform, varlen, none"),
        ("version", -1, "version must be a whole number"),
        ("version", True, "version must be a whole number"),
    ],
)
def test_a_bad_file_is_refused_and_the_place_is_named(path: str, new: object, message: str) -> None:
    value = copy.deepcopy(cost_table_to_json(TABLE))
    put(value, path, new)
    with pytest.raises(SettingError, match=re.escape(message)):
        cost_table_from_json(value)


def test_the_documented_example_is_a_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cost-tables.md").read_text(encoding="utf-8")
    example = text.split("```json\n")[1].split("```")[0]
    table = cost_table_from_json(json.loads(example))
    assert table.target_ms(StepShape(65)) == 9.0
