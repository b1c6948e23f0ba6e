"""Machine models: transcribed figures come out again, inferred ones follow their formula, every figure has a source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from slipstream.config import SettingError
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.cost_table_json import cost_table_from_json, cost_table_to_json
from slipstream.scheduler.costs import DecodeGraphs, StepShape
from slipstream.scheduler.protocol import StepMode
from slipstream.simulation.machines import machine_named, machine_names, v4_pro
from slipstream.simulation.machines.architectures import (
    ARCHITECTURES,
    DEEPSEEK_V4_FLASH,
    DEEPSEEK_V41_FLASH,
    QWEN3_8B,
    SMOLLM2_135M,
)
from slipstream.simulation.machines.drafter_figures import DRAFTERS
from slipstream.simulation.machines.figures import Figure
from slipstream.simulation.machines.hardware import B300, H200, HARDWARE, THIS_CPU
from slipstream.simulation.machines.published import (
    B300_DRAFT_MS,
    B300_EAGER_MS,
    B300_VERIFY_MS,
    b300_v4_flash,
    capture_sizes_up_to,
    gb300_v41_flash,
    with_mixed_ms,
    with_piecewise_ms,
)
from slipstream.simulation.machines.roofline import device_ms, roofline_table


def figures_in(value: object) -> Iterator[object]:
    """Every number that a dataclass holds, however deep."""
    if isinstance(value, dict):
        for one in value.values():
            yield from figures_in(one)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from figures_in(getattr(value, field.name))
    elif isinstance(value, float | int) and not isinstance(value, bool):
        yield value


@pytest.mark.parametrize("known", [HARDWARE, ARCHITECTURES, DRAFTERS])
def test_every_figure_has_a_source(known: dict[str, object]) -> None:
    figures = list(figures_in(known))
    assert len(figures) > 5 * len(known)
    for figure in figures:
        assert isinstance(figure, Figure)
        assert len(figure.source) > 10


# -- published ----------------------------------------------------------------------------------------------------


def test_the_b300_curve_comes_out_as_published() -> None:
    table = b300_v4_flash()
    for rows, ms in B300_VERIFY_MS.items():
        shape = StepShape(rows)
        assert table.target_ms(shape) == pytest.approx(ms)
        assert table.dispatch(shape).mode is StepMode.FULL_GRAPH
    for rows, ms in B300_EAGER_MS.items():
        assert table.target_ms(StepShape(1, rows - 1)) == pytest.approx(ms)
    for count, ms in B300_DRAFT_MS.items():
        assert table.draft_ms(count, 7 * count) == pytest.approx(ms)


def test_steps_with_prompt_rows_leave_the_graphs_of_the_b300_curve() -> None:
    table = b300_v4_flash()
    assert table.target_ms(StepShape(64, 320)) == pytest.approx(14.6)
    assert table.target_ms(StepShape(64, 320, 8)) == pytest.approx(104.5)


def test_captured_sizes_are_those_of_vllm() -> None:
    assert capture_sizes_up_to(24) == (1, 2, 4, 8, 16, 24)
    assert capture_sizes_up_to(512)[-3:] == (480, 496, 512)
    assert capture_sizes_up_to(512).count(256) == 1


def test_v41_is_scaled_by_its_experts_and_layers() -> None:
    """At 384 rows nearly all experts are read: 147 GB and 289 GB over four accelerators at 0.8 of their bandwidth."""
    table = gb300_v41_flash()
    rest = 14.6 - 147 / 4 / (7.75 * 0.8)
    expected = rest * 40 / 43 + 289 / 4 / (8.0 * 0.8)
    assert table.target_ms(StepShape(64, 320)) == pytest.approx(expected, rel=0.005)
    assert table.target_ms(StepShape(64, 320)) + table.draft_ms(64, 320) == pytest.approx(21.0, abs=1.0)
    curve = [line[0] for line in table.target[StepMode.FULL_GRAPH].ms]
    assert curve == sorted(curve)
    assert table.capture_limit == 512


def test_mixed_cost_is_set_and_keeps_the_slope_of_long_steps() -> None:
    table = gb300_v41_flash()
    slow = with_mixed_ms(table, 160.0)
    for prompt_rows in (1, 100, 1000):
        assert slow.target_ms(StepShape(50, 250, prompt_rows)) == pytest.approx(160.0)
    assert slow.target_ms(StepShape(1, 0, 4096)) == pytest.approx(160.0 + 133.5 - 104.5)
    assert slow.target_ms(StepShape(64, 320)) == table.target_ms(StepShape(64, 320))
    assert "assumed" in slow.provenance.notes[-1]
    assert table.target_ms(StepShape(50, 250, 1)) == pytest.approx(104.5)


def test_piecewise_steps_are_never_faster_than_full_graphs() -> None:
    table = with_piecewise_ms(gb300_v41_flash(), 32.0)
    assert table.dispatch(StepShape(50, 250, 20)).mode is StepMode.PIECEWISE
    assert table.target_ms(StepShape(50, 250, 20)) == pytest.approx(32.0)
    low = with_piecewise_ms(gb300_v41_flash(), 10.0)
    assert low.target_ms(StepShape(50, 250, 20)) == pytest.approx(low.target_ms(StepShape(50, 270)))
    assert table.dispatch(StepShape(50, 250, 300)).mode is StepMode.EAGER  # 600 rows are past the limit
    with pytest.raises(SettingError, match="this table has none"):
        with_piecewise_ms(machine_named("roofline:cpu:smollm2-135m:tp1"), 30.0)


@pytest.mark.parametrize("ms", [0.0, -3.0, float("inf"), float("nan")])
def test_a_step_takes_time(ms: float) -> None:
    for change in (with_mixed_ms, with_piecewise_ms):
        with pytest.raises(SettingError, match=f"more than 0, got {ms}"):
            change(gb300_v41_flash(), ms)


# -- roofline -----------------------------------------------------------------------------------------------------


def test_distinct_experts_grow_with_rows_and_end_at_all() -> None:
    experts = DEEPSEEK_V41_FLASH.experts
    assert experts is not None
    for rows, part in ((1, 6 / 384), (6, 0.09), (48, 0.53), (96, 0.78), (192, 0.95), (384, 0.998)):
        assert experts.part_touched(rows) == pytest.approx(part, abs=0.005)
    assert DEEPSEEK_V4_FLASH.weight_bytes(5000) == pytest.approx(159e9)
    assert QWEN3_8B.weight_bytes(1) == QWEN3_8B.weight_bytes(5000)


def test_sizes_are_those_of_the_models() -> None:
    assert QWEN3_8B.dense_bytes / 2 + 4096 * 151936 == pytest.approx(8.19e9, rel=0.002)  # with the embedding
    assert SMOLLM2_135M.active_parameters == pytest.approx(134.5e6, rel=0.001)


def test_a_dense_step_is_reading_computing_and_launching() -> None:
    reading = 15.14e9 / (4.8e12 * 0.8) * 1e3
    computing = 64 * 2 * 7.57e9 / (989e12 * 0.6) * 1e3
    launching = 36 * 14 * 3e-3
    assert device_ms(H200, QWEN3_8B, 1, 64) == pytest.approx(reading + computing + launching, rel=0.001)
    kv = device_ms(H200, QWEN3_8B, 1, 64, 100_000.0) - device_ms(H200, QWEN3_8B, 1, 64)
    assert kv == pytest.approx(100_000 * 36 * 2 * 8 * 128 * 2 / (4.8e12 * 0.8) * 1e3)


def test_tensor_parallel_shares_weights_and_grouped_kv_and_pays_for_exchange() -> None:
    floor = 36 * 14 * 3e-3
    one, two = device_ms(H200, QWEN3_8B, 1, 1, 1e6) - floor, device_ms(H200, QWEN3_8B, 2, 1, 1e6) - floor
    assert one / 2 < two < one / 2 * 1.01
    latent = [device_ms(B300, DEEPSEEK_V4_FLASH, n, 1, 1e6) - device_ms(B300, DEEPSEEK_V4_FLASH, n, 1) for n in (1, 4)]
    assert latent[0] == pytest.approx(latent[1])  # one shared latent head: each accelerator reads all of it


def test_modes_differ_by_what_the_host_launches() -> None:
    table = roofline_table(B300, DEEPSEEK_V4_FLASH, tensor_parallel=4)
    full, piecewise, eager = (
        table.target[mode](256, 0.0) for mode in (StepMode.FULL_GRAPH, StepMode.PIECEWISE, StepMode.EAGER)
    )
    assert piecewise - full == pytest.approx(43 * 10 * 48e-3)
    assert eager - full == pytest.approx(43 * 38 * 48e-3)


def test_the_roofline_is_near_the_published_curve_where_all_experts_are_read() -> None:
    table = roofline_table(B300, DEEPSEEK_V4_FLASH, tensor_parallel=4)
    for rows, ms in B300_VERIFY_MS.items():
        error = table.target[StepMode.FULL_GRAPH](rows, 0.0) / ms - 1.0
        assert abs(error) < (0.06 if rows >= 304 else 0.45)
    for rows, ms in B300_EAGER_MS.items():
        assert table.target[StepMode.EAGER](rows, 0.0) == pytest.approx(ms, rel=0.07)


def test_a_cpu_has_no_graphs_and_no_neighbours() -> None:
    table = roofline_table(THIS_CPU, SMOLLM2_135M)
    assert table.decode_graphs is DecodeGraphs.NONE
    assert table.dispatch(StepShape(4)).mode is StepMode.EAGER
    assert table.target_ms(StepShape(8)) < table.target_ms(StepShape(8, 0, 1)) * 1.0001
    with pytest.raises(SettingError, match="no link to others: tensor_parallel must be 1, got 2"):
        roofline_table(THIS_CPU, SMOLLM2_135M, tensor_parallel=2)
    with pytest.raises(SettingError, match="no such figure"):
        roofline_table(THIS_CPU, DEEPSEEK_V4_FLASH)
    with pytest.raises(SettingError, match="1, 2, 4, 8, …, got 3"):
        roofline_table(H200, QWEN3_8B, tensor_parallel=3)


# -- by name ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", machine_names())
def test_every_named_machine_is_a_table_that_rises_and_survives_json(name: str) -> None:
    table = machine_named(name)
    assert isinstance(table, CostTable)
    assert cost_table_from_json(cost_table_to_json(table)) == table
    costs = [table.target_ms(StepShape(count, 5 * count)) for count in (1, 2, 8, 32, 64)]
    assert costs == sorted(costs)
    assert costs[0] > 0.0
    assert table.provenance.source


def test_names_may_say_the_degree() -> None:
    two, four = (machine_named(f"roofline:h200:qwen3-8b:tp{n}") for n in (2, 4))
    assert machine_named("roofline:h200:qwen3-8b") == machine_named("roofline:h200:qwen3-8b:tp1")
    assert four.target_ms(StepShape(8)) < two.target_ms(StepShape(8))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("b300-v4-flsh", "'b300-v4-flsh' is not known; .*nearest is 'b300-v4-flash'"),
        ("roofline", "roofline:HARDWARE:ARCHITECTURE:tp1"),
        ("roofline:h20:qwen3-8b", "hardware 'h20' is not known; choose one of gb300, .*nearest is 'h200'"),
        ("roofline:h200:qwen3", "architecture 'qwen3' is not known; .*nearest is 'qwen3-8b'"),
        ("roofline:h200:qwen3-8b:4", "degree as tp1, got '4'"),
        ("roofline:h200:qwen3-8b:tp0", "got 0; the nearest is 1"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        machine_named(name)


# -- the V4-Pro sweep ---------------------------------------------------------------------------------------------


def test_golden_survivals_give_the_published_lengths() -> None:
    survivals = v4_pro.golden_survivals()
    for k in (1, 2, 3, 4, 5, 7):
        assert 1.0 + sum(survivals[:k]) == pytest.approx(v4_pro.GOLDEN_LENGTHS[k])
    assert list(survivals) == sorted(survivals, reverse=True)


def test_the_fit_gives_its_columns_back() -> None:
    table = v4_pro.fit_v4_pro()
    for c in v4_pro.CONCURRENCIES:
        assert table.target_ms(StepShape(c)) == pytest.approx(v4_pro.FIXED[0][c].tpot_ms)
        step = table.target_ms(StepShape(c, 7 * c)) + table.draft_ms(c, 7 * c)
        # where both columns have steps of equal rows, they do not agree to the last bit
        assert step == pytest.approx(v4_pro.FIXED[7][c].tpot_ms * 3.73, rel=0.01)


def test_the_fit_never_looks_at_what_is_to_be_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    table, occupancy = v4_pro.fit_v4_pro(), v4_pro.fitted_occupancy(64)
    wrong = {k: {c: v4_pro.Point(1.0, 1.0) for c in v4_pro.CONCURRENCIES} for k in (1, 3, 5)}
    monkeypatch.setattr(v4_pro, "FIXED", {**v4_pro.FIXED, **wrong})
    monkeypatch.setattr(v4_pro, "ADAPTIVE", wrong[1])
    assert v4_pro.fit_v4_pro() == table
    assert v4_pro.fitted_occupancy(64) == occupancy
