"""From timed passes to the parts of a cost table: a non-negative least-squares fit, every pass counting by its relative
error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.engine.profile_shapes import PassShape
from slipstream.scheduler.cost_table import AttentionCost, HostCost
from slipstream.scheduler.interpolation import Grid, bracket

_PULL = 0.01
"""Weight that draws the costs of KV, pairs and requests to 0 where the passes do not tell them from rows."""


@dataclass(frozen=True, slots=True)
class PassFit:
    """What passes cost without sampling. errors: fitted over measured, less 1, by pass."""

    target: Grid
    attention: AttentionCost
    errors: Mapping[PassShape, float]


def fit_passes(measured: Mapping[PassShape, float], most_rows: int) -> PassFit:
    """Milliseconds = f(rows) + a * KV tokens + b * pairs + c * requests, nothing negative. f never falls, and is linear
    between the row counts of the passes of one request without context. Where they end before `most_rows`, f goes on
    as it rose over all of them: the last two may be the edge of a stair."""
    axis = tuple(sorted({shape.num_rows for shape in measured if shape.context == 0 and shape.num_requests == 1}))
    shapes = list(measured)
    matrix = np.zeros((len(shapes), len(axis) + 3))
    for line, shape in zip(matrix, shapes, strict=True):
        line[: len(axis)] = _steps_up_to(axis, shape.num_rows)
        line[len(axis) :] = shape.num_kv_tokens, shape.num_pairs, shape.num_requests
    ms = np.array([measured[shape] for shape in shapes])
    relative = matrix / ms[:, None]
    pull = np.zeros((3, len(axis) + 3))
    pull[:, len(axis) :] = np.diag(_PULL * np.linalg.norm(relative[:, len(axis) :], axis=0))
    found = non_negative_least_squares(
        np.concatenate([relative, pull]), np.concatenate([np.ones(len(ms)), np.zeros(3)])
    )
    row_ms = np.cumsum(found[: len(axis)])
    per_kv, per_pair, per_request = (float(value) for value in found[len(axis) :])
    most_kv = max(shape.num_kv_tokens for shape in shapes)
    if axis[-1] < most_rows and len(axis) > 1:
        rise = (row_ms[-1] - row_ms[0]) / (axis[-1] - axis[0])
        row_ms = np.append(row_ms, row_ms[-1] + rise * (most_rows - axis[-1]))
        axis = (*axis, most_rows)
    target = Grid(
        tuple(map(float, axis)),
        (0.0, float(most_kv)),
        tuple((float(value), float(value) + per_kv * most_kv) for value in row_ms),
    )
    errors = dict(zip(shapes, (matrix @ found / ms - 1.0).tolist(), strict=True))
    return PassFit(target, AttentionCost(per_request, per_pair), errors)


def fit_host(measured: Mapping[int, float]) -> HostCost:
    """From milliseconds by number of requests."""
    counts = np.array(list(measured), dtype=np.float64)
    ms = np.array(list(measured.values()))
    if len(counts) < 2:
        return HostCost(float(ms.mean()) if len(ms) else 0.0, 0.0)
    per_step, per_request = non_negative_least_squares(np.stack([np.ones_like(counts), counts], 1), ms).tolist()
    return HostCost(per_step, per_request)


def non_negative_least_squares(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """x >= 0 that makes `matrix @ x` close to `target`: columns that would be negative are left out, the most negative
    first. matrix: [N, M], target: [N], result: [M]."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    kept = np.arange(matrix.shape[1])
    result = np.zeros(matrix.shape[1])
    while len(kept):
        solved = np.linalg.lstsq(matrix[:, kept] / scale[kept], target, rcond=None)[0]
        if solved.min() >= 0.0:
            result[kept] = solved / scale[kept]
            break
        kept = np.delete(kept, int(solved.argmin()))
    return result


def _steps_up_to(axis: Sequence[int], rows: int) -> NDArray[np.float64]:
    """How much of each point's rise over the point before is in the value at `rows`, by the rule of a cost table."""
    i, t = bracket(axis, rows)
    parts = np.zeros(len(axis))
    parts[: i + 1] = 1.0
    if t:
        parts[i + 1] = t
    return parts
