"""Random cost tables of three kinds of machine; for generated scenarios."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from slipstream.scheduler.cost_table import CostTable, HostCost, Provenance
from slipstream.scheduler.costs import DecodeGraphs
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.protocol import StepMode

KV_POINTS = (0.0, 262144.0)
"""Two points: time over KV tokens read is a straight line."""


class MachineFamily(StrEnum):
    """GRAPH: decode graphs, and a high floor for any step outside them. PIECEWISE: mixed steps have graphs too, for a
    small multiple of the time. CPU: no graphs; time grows with rows from the first one on."""

    GRAPH = "graph"
    PIECEWISE = "piecewise"
    CPU = "cpu"


def draw_machine(
    random: np.random.Generator, family: MachineFamily, seats: int, budget: int, most_drafts: int
) -> CostTable:
    """A table of this family for so many seats, rows per step and drafts per request."""
    provenance = Provenance("drawn at random", str(family), notes=("belongs to no machine in particular",))
    if family is MachineFamily.CPU:
        return CostTable(
            provenance,
            {StepMode.EAGER: _cpu_grid(random, budget)},
            draft=_draft_grid(random, random.uniform(2.0, 20.0), random.uniform(0.05, 1.0), seats, most_drafts),
            host=HostCost(0.2, 0.02),
        )
    first_ms = random.uniform(4.0, 15.0)
    row_us = random.uniform(4.0, 40.0)
    kv_us = random.uniform(0.0, 0.01)
    eager_floor = first_ms * random.uniform(3.0, 15.0)
    eager_row_us = row_us * random.uniform(0.5, 1.5)
    target = {
        StepMode.FULL_GRAPH: _grid(random, first_ms, row_us, kv_us, budget),
        StepMode.EAGER: _grid(random, eager_floor, eager_row_us, kv_us, budget),
    }
    if family is MachineFamily.PIECEWISE:
        target[StepMode.PIECEWISE] = _grid(random, first_ms * random.uniform(1.1, 3.0), row_us, kv_us, budget)
    largest = seats * (most_drafts + 1) if random.random() < 0.7 else max(budget, seats)
    graphs = DecodeGraphs.UNIFORM if random.random() < 0.4 else DecodeGraphs.VARLEN
    return CostTable(
        provenance,
        target,
        draft=_draft_grid(random, random.uniform(0.3, 2.0), random.uniform(0.001, 0.02), seats, most_drafts),
        decode_graphs=graphs,
        capture_sizes=_capture_sizes(largest),
    )


def _capture_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, then in eights up to 256 and in wider stairs beyond."""
    sizes = {1, 2, 4, *range(8, 257, 8), *range(288, 513, 32), *range(640, 8193, 128)}
    return (*sorted(size for size in sizes if size < largest), largest)


def _grid(random: np.random.Generator, first_ms: float, row_us: float, kv_us: float, budget: int) -> Grid:
    """A floor, then a bend (weights of more and more experts, then arithmetic), and a line over KV tokens."""
    bend = random.uniform(0.0, 0.6) * first_ms
    rows = tuple(float(size) for size in (1, 16, 64, 256, max(1024, 2 * budget)))
    lines = []
    for count in rows:
        ms = first_ms + bend * (1.0 - np.exp(-count / 64.0)) + row_us * 1e-3 * count
        lines.append(tuple(float(ms + kv_us * 1e-3 * kv) for kv in KV_POINTS))
    return Grid(rows, KV_POINTS, tuple(lines))


def _cpu_grid(random: np.random.Generator, budget: int) -> Grid:
    """Weights are read once per step, arithmetic grows with rows: the line's slope counts from the first row on."""
    floor = random.uniform(5.0, 60.0)
    row_ms = floor * random.uniform(0.02, 0.4)
    kv_us = random.uniform(0.0, 0.5)
    rows = tuple(float(size) for size in (1, 4, 16, 64, max(256, budget)))
    lines = []
    for count in rows:
        ms = floor + row_ms * count * random.uniform(0.9, 1.0)
        lines.append(tuple(float(ms + kv_us * 1e-3 * kv) for kv in KV_POINTS))
    lines.sort()
    return Grid(rows, KV_POINTS, tuple(lines))


def _draft_grid(random: np.random.Generator, base_ms: float, request_ms: float, seats: int, most_drafts: int) -> Grid:
    """Over requests and query rows per request: one pass, a little longer for more of either."""
    row_ms = request_ms * random.uniform(0.05, 0.5)
    requests = (1.0, float(max(seats, 2)))
    columns = (1.0, float(most_drafts + 1))
    return Grid(
        requests,
        columns,
        tuple(tuple(base_ms + count * (request_ms + row_ms * rows) for rows in columns) for count in requests),
    )
