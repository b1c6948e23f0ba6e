"""Lays the roofline beside what was measured: the B300 V4-Flash curve point by point, and single points.

python benchmarks/roofline_against_published.py
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.costs import StepShape
from slipstream.scheduler.protocol import StepMode
from slipstream.simulation.machines import machine_named
from slipstream.simulation.machines.published import B300_DRAFT_MS, B300_EAGER_MS, B300_VERIFY_MS, gb300_v41_flash

K, RANDOM_LENGTH = 5, 5.45
"""DSpark on `random` prompts: acceptance length 5.43 and 5.47 of 6, https://github.com/sgl-project/sglang/pull/33083."""


def step_ms(table: CostTable, num_requests: int, k: int) -> float:
    """A pure decode step with k drafts each, and the drafter's pass."""
    target = table.target_ms(StepShape(num_requests, k * num_requests))
    return target + (table.draft_ms(num_requests, k * num_requests) if k else 0.0)


def curve(title: str, over: str, measured: Mapping[int, float], modelled: Mapping[int, float]) -> Table:
    """Measured and modelled milliseconds, and the error."""
    table = Table(title=title)
    for heading in (over, "measured, ms", "roofline, ms", "error"):
        table.add_column(heading, justify="right")
    for at, ms in measured.items():
        table.add_row(str(at), f"{ms:.2f}", f"{modelled[at]:.2f}", f"{modelled[at] / ms - 1:+.0%}")
    return table


def main() -> None:
    """Print everything."""
    console = Console(width=120)
    b300 = machine_named("roofline:b300:deepseek-v4-flash:tp4")
    for title, mode, measured in (
        ("Target's pass in a graph, 4 x B300, DeepSeek-V4-Flash", StepMode.FULL_GRAPH, B300_VERIFY_MS),
        ("The same without a graph (the first point is fitted)", StepMode.EAGER, B300_EAGER_MS),
    ):
        console.print(curve(title, "rows", measured, {rows: b300.target[mode](rows, 0.0) for rows in measured}))
    drafts = {count: b300.draft_ms(count, 7 * count) for count in B300_DRAFT_MS}
    console.print(curve("Drafter's pass, K = 7", "requests", B300_DRAFT_MS, drafts))

    gb300, h200, h100, cpu = (
        machine_named(f"roofline:{name}")
        for name in (
            "gb300:deepseek-v4-flash:tp4",
            "h200:deepseek-v4-flash:tp4",
            "h100:deepseek-v4-flash:tp4",
            "cpu:smollm2-135m",
        )
    )
    v41 = machine_named("roofline:gb300:deepseek-v4.1-flash:tp4")
    points = (
        ("4 x GB300, V4-Flash, DSpark, 1 request: TPOT 1.31 ms x 5.45", 1.31 * RANDOM_LENGTH, step_ms(gb300, 1, K)),
        ("4 x H200, the same: TPOT 1.72 ms x 5.45", 1.72 * RANDOM_LENGTH, step_ms(h200, 1, K)),
        (
            "4 x H800, V4-Flash, piecewise step of a 16-token prompt: TTFT 22 ms (figures of H100)",
            22.0,
            h100.target_ms(StepShape(0, num_prompt_rows=16, num_emitting_prompts=1)),
        ),
        (
            "4 x GB300, V4.1-Flash, 64 x 6 rows, scaled from the B300 curve",
            step_ms(gb300_v41_flash(), 64, K),
            step_ms(v41, 64, K),
        ),
        ("this CPU, embedded model, 1 request, docs/performance.md: 47.0 tokens/s", 1e3 / 47.0, step_ms(cpu, 1, 0)),
        ("the same, 8 requests: 282.4 tokens/s", 8e3 / 282.4, step_ms(cpu, 8, 0)),
    )
    table = Table(title="Single points")
    table.add_column("step")
    for heading in ("ms", "roofline, ms", "error"):
        table.add_column(heading, justify="right")
    for name, ms, ours in points:
        table.add_row(name, f"{ms:.1f}", f"{ours:.1f}", f"{ours / ms - 1:+.0%}")
    console.print(table)


if __name__ == "__main__":
    main()
