"""A cost table fitted to a recording's own steps, for runs that were recorded without one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slipstream.config import SettingError
from slipstream.lab.recorded_steps import RecordedStep
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.protocol import StepMode

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
MIN_STEPS = 8


def fit_costs(steps: Sequence[RecordedStep], model: str) -> CostTable:
    """Milliseconds of a step over its rows (linear between a few knots) and the KV tokens it reads (linear).

    Least squares, not medians: the fitted times of all steps then add up to the time they took, stalls of the machine
    included, and a modelled run takes neither more nor less for that.

    Raises:
        SettingError: fewer than MIN_STEPS steps.
    """
    if len(steps) < MIN_STEPS:
        raise SettingError(
            f"the recording has {len(steps)} measured steps and no cost table; a fit needs at least {MIN_STEPS}"
        )
    rows = np.array([step.committed.result.num_target_rows for step in steps], dtype=np.float64)
    kv = np.array([step.shape.num_kv_tokens for step in steps], dtype=np.float64)
    draft_ms = np.array([step.committed.result.draft_ms for step in steps])
    ms = np.array([1e3 * step.duration_s for step in steps]) - draft_ms
    knots = np.unique(np.quantile(rows, _QUANTILES, method="nearest"))
    hats = _hats(rows, knots)
    at_knots, per_kv = _fit(hats, kv, ms)
    most_kv = float(kv.max())
    columns = (0.0, most_kv) if most_kv > 0 else (0.0,)
    grid = Grid(
        tuple(knots.tolist()),
        columns,
        tuple(tuple(float(base + per_kv * column) for column in columns) for base in at_knots),
    )
    return CostTable(
        provenance=Provenance(
            machine="the recorded run's own",
            model=model,
            source=f"fitted to the durations of {len(steps)} recorded steps",
            notes=(f"rows seen: {int(knots[0])} to {int(knots[-1])}",),
        ),
        target={StepMode.EAGER: grid},
        draft=_fit_draft(steps, draft_ms),
    )


def mean_error(table: CostTable, steps: Sequence[RecordedStep]) -> float:
    """Mean of |fitted - measured| over the steps, as a share of the mean step."""
    fitted = np.array([table.target_ms(s.shape) + s.committed.result.draft_ms for s in steps])
    measured = np.array([1e3 * step.duration_s for step in steps])
    return float(np.abs(fitted - measured).mean() / measured.mean())


def _hats(rows: NDArray[np.float64], knots: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of linear interpolation between knots, shape [N, knots]."""
    hats = np.zeros((len(rows), len(knots)))
    hats[rows == knots[-1], -1] = 1.0
    for i, (low, high) in enumerate(pairwise(knots.tolist())):
        inside = (rows >= low) & (rows < high)
        t = (rows[inside] - low) / (high - low)
        hats[inside, i], hats[inside, i + 1] = 1.0 - t, t
    return hats


def _fit(
    hats: NDArray[np.float64], kv: NDArray[np.float64], ms: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Milliseconds at each knot, and per KV token; none below 0. KV that explains nothing is left out."""
    solution = _least_squares(np.column_stack((hats, kv)), ms)
    per_kv = float(solution[-1])
    if per_kv < 0 or solution.min() < 0:
        per_kv = 0.0
        solution = _least_squares(hats, ms)
        return np.maximum(solution, 0.0), per_kv
    return solution[:-1], per_kv


def _least_squares(matrix: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.lstsq(matrix, values, rcond=None)[0], dtype=np.float64)


def _fit_draft(steps: Sequence[RecordedStep], draft_ms: NDArray[np.float64]) -> Grid | None:
    """The drafter's pass: a line over the requests that draft."""
    if not draft_ms.any():
        return None
    counts = np.array(
        [sum(entry.emits and entry.num_draft_tokens > 0 for entry in s.planned.plan.requests) for s in steps],
        dtype=np.float64,
    )
    drafting = counts > 0
    if not drafting.any():
        return None
    x, y = counts[drafting], draft_ms[drafting]
    slope, base = np.polyfit(x, y, 1) if len(np.unique(x)) > 1 else (0.0, float(y.mean()))
    if slope < 0 or base + slope < 0:
        slope, base = 0.0, float(y.mean())
    most = max(float(x.max()), 2.0)
    return Grid((1.0, most), (0.0,), ((float(base + slope),), (float(base + slope * most),)))
