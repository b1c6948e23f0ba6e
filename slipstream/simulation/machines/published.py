"""Cost tables transcribed from published measurements, and one scaled from them.

What is measured and what is inferred is said per table in its provenance and in docs/machine-models.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from slipstream.config import SettingError
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.costs import DecodeGraphs
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.protocol import StepMode
from slipstream.simulation.machines.architectures import DEEPSEEK_V4_FLASH, DEEPSEEK_V41_FLASH
from slipstream.simulation.machines.hardware import B300, GB300

BLOG = (
    "vLLM blog 2026-08-14, DSpark adaptive verification, figure 2 (fig2-costcurve.svg, values read from the drawing "
    "to about 1 %), https://github.com/vllm-project/vllm-project.github.io"
)

B300_VERIFY_MS: Mapping[int, float] = {
    1: 5.11, 8: 5.35, 16: 5.59, 32: 6.26, 48: 6.94, 64: 7.90, 96: 8.77, 128: 9.47, 160: 11.3, 240: 11.4,
    256: 11.5, 304: 13.9, 320: 14.1, 384: 14.6, 448: 15.7, 512: 16.2, 640: 17.4, 768: 17.8, 896: 19.2, 1024: 20.6,
}  # fmt: skip
"""Rows -> milliseconds of the target's pass in a graph."""

B300_EAGER_MS: Mapping[int, float] = {1536: 104.5, 4097: 133.5, 16384: 234.9}
"""The same past the capture limit."""

B300_DRAFT_MS: Mapping[int, float] = {
    1: 0.88, 8: 1.07, 16: 1.32, 32: 1.61, 48: 1.99, 64: 2.27, 96: 2.72, 128: 3.14, 192: 4.31, 256: 5.38,
}  # fmt: skip
"""Requests -> milliseconds of the DSpark drafter's pass at K = 7."""


def capture_sizes_up_to(limit: int) -> tuple[int, ...]:
    """Row counts that vLLM captures by default: 1, 2, 4, multiples of 8 to 256, then of 16."""
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, limit + 1, 16))
    return tuple(size for size in sizes if size <= limit)


def b300_v4_flash() -> CostTable:
    """DeepSeek-V4-Flash-0731 on four B300: decode steps in graphs of any shape up to 1,024 rows, eager past it."""
    return CostTable(
        Provenance(
            machine="4 x B300, tensor parallel 4",
            model="DeepSeek-V4-Flash-0731, DSpark drafter",
            date="2026-08-14",
            source=BLOG,
            notes=(
                "440 profiled steps, median of 5, 8,192 tokens of context per request, K = 7",
                "steps with prompt rows: the eager curve, which was published from 1,536 rows on, flat below",
                "capture sizes: vLLM's defaults up to the published limit",
                "the drafter's pass was published over requests at K = 7 only, and is used for every K",
            ),
        ),
        {StepMode.FULL_GRAPH: _over_rows(B300_VERIFY_MS), StepMode.EAGER: _over_rows(B300_EAGER_MS)},
        draft=_over_rows(B300_DRAFT_MS),
        decode_graphs=DecodeGraphs.VARLEN,
        capture_sizes=capture_sizes_up_to(1024),
    )


def gb300_v41_flash() -> CostTable:
    """DeepSeek-V4.1-Flash on one node of four GB300, scaled from the B300 curve (inferred, not measured).

    Per number of rows, the time that V4-Flash's routed experts take to read is taken off the published curve, the rest
    is scaled by the number of layers, and the time that V4.1-Flash's experts take is added.
    """
    flash, v41 = DEEPSEEK_V4_FLASH, DEEPSEEK_V41_FLASH

    def scaled(rows: int, ms: float) -> float:
        rest = ms - B300.read_ms(flash.expert_bytes(rows) / 4)
        return rest * v41.num_layers / flash.num_layers + GB300.read_ms(v41.expert_bytes(rows) / 4)

    verify = {rows: scaled(rows, ms) for rows, ms in B300_VERIFY_MS.items() if rows <= 512}
    return CostTable(
        Provenance(
            machine="4 x GB300, tensor parallel 4",
            model="DeepSeek-V4.1-Flash, DSpark drafter",
            date="2026-08-14",
            source=BLOG,
            notes=(
                "inferred: the B300 V4-Flash curve with the routed experts' bytes of V4.1-Flash and 40 of 43 layers",
                "steps with prompt rows: the eager curve of B300; no such figure was published for GB300",
                "capture limit 512, vLLM's default for 64 requests of 6 rows; graphs of any decode shape",
            ),
        ),
        {StepMode.FULL_GRAPH: _over_rows(verify), StepMode.EAGER: _over_rows(B300_EAGER_MS)},
        draft=_over_rows(B300_DRAFT_MS),
        decode_graphs=DecodeGraphs.VARLEN,
        capture_sizes=capture_sizes_up_to(512),
    )


def with_mixed_ms(table: CostTable, ms: float) -> CostTable:
    """The same table, its eager curve moved so that the smallest eager step takes `ms`: what a step with prompt rows
    costs where only decode steps have graphs."""
    _check_ms(ms)
    eager = table.target[StepMode.EAGER]
    move = ms - eager.ms[0][0]
    moved = tuple(tuple(max(value + move, 0.0) for value in line) for line in eager.ms)
    target = {**table.target, StepMode.EAGER: dataclasses.replace(eager, ms=moved)}
    return _noted(dataclasses.replace(table, target=target), f"assumed: eager steps take {ms:g} ms and more")


def with_piecewise_ms(table: CostTable, ms: float) -> CostTable:
    """The same table with piecewise graphs for steps with prompt rows within the capture limit: `ms`, or what a full
    graph takes where that is more."""
    _check_ms(ms)
    full = table.target.get(StepMode.FULL_GRAPH)
    if full is None:
        raise SettingError("piecewise steps are modelled beside full graphs, and this table has none")
    floored = tuple(tuple(max(value, ms) for value in line) for line in full.ms)
    target = {**table.target, StepMode.PIECEWISE: dataclasses.replace(full, ms=floored)}
    return _noted(dataclasses.replace(table, target=target), f"assumed: piecewise steps take at least {ms:g} ms")


def _over_rows(ms: Mapping[int, float]) -> Grid:
    """A grid in which the second quantity plays no part."""
    return Grid(tuple(map(float, ms)), (0.0,), tuple((value,) for value in ms.values()))


def _noted(table: CostTable, note: str) -> CostTable:
    provenance = dataclasses.replace(table.provenance, notes=(*table.provenance.notes, note))
    return dataclasses.replace(table, provenance=provenance)


def _check_ms(ms: float) -> None:
    if not 0.0 < ms < float("inf"):
        raise SettingError(f"a step takes some milliseconds, more than 0, got {ms}")
