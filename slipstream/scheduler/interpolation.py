"""Curves and grids of measured points: linear between points, flat before the first, the last slope past the end."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.config import SettingError, shown

MAX_MS = 1e9
"""Of a step; more is no time that a step takes."""
MAX_POINT = 1e15
"""Of an axis: below it every whole number is a float of its own."""


def check_axis(name: str, points: Sequence[float]) -> None:
    """Raise SettingError unless the points rise and are not below 0."""
    if not points:
        raise SettingError(f"{name} is empty; at least one point is needed")
    # A point that is no number fails every comparison.
    rises = all(before < after for before, after in itertools.pairwise(points))
    if not (rises and points[0] >= 0 and points[-1] <= MAX_POINT):
        raise SettingError(f"{name} must rise from 0 or more to {MAX_POINT:g} at most, got {shown(list(points))}")


def bracket(points: Sequence[float], x: float) -> tuple[int, float]:
    """The segment for `x` and the place in it: value = (1 - t) v[i] + t v[i + 1]; t may exceed 1 past the end."""
    if len(points) == 1 or x <= points[0]:
        return 0, 0.0
    i = min(bisect_right(points, x), len(points) - 1) - 1
    return i, (x - points[i]) / (points[i + 1] - points[i])


def interpolate(points: Sequence[float], values: Sequence[float], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values at many places at once, by the rule of `bracket`, never below 0; shape of `x`."""
    inner = np.interp(x, points, values)
    if len(points) > 1 and len(x) and x[-1] > points[-1]:  # x rises
        slope = (values[-1] - values[-2]) / (points[-1] - points[-2])
        inner = np.maximum(inner + np.maximum(x - points[-1], 0.0) * slope, 0.0)
    return inner


@dataclass(frozen=True, slots=True)
class Curve:
    """Milliseconds over one quantity. Raises SettingError for points that do not rise or lengths that differ."""

    points: tuple[float, ...]
    ms: tuple[float, ...]

    def __post_init__(self) -> None:
        check_axis("a curve's axis", self.points)
        if len(self.points) != len(self.ms):
            raise SettingError(f"a curve has {len(self.points)} points and {len(self.ms)} times; they must be as many")
        check_times(self.ms)

    def __call__(self, x: float) -> float:
        """Never below 0."""
        i, t = bracket(self.points, x)
        if t == 0.0:
            return self.ms[i]
        return max(self.ms[i] + t * (self.ms[i + 1] - self.ms[i]), 0.0)

    def at(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """At rising places, shape of `x`."""
        return interpolate(self.points, self.ms, x)


@dataclass(frozen=True, slots=True)
class Grid:
    """Milliseconds over two quantities, `ms[row][column]`, interpolated in both."""

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    ms: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        check_axis("a grid's first axis", self.rows)
        check_axis("a grid's second axis", self.columns)
        if len(self.ms) != len(self.rows) or any(len(line) != len(self.columns) for line in self.ms):
            raise SettingError(f"a grid of {len(self.rows)} x {len(self.columns)} points needs as many times")
        for line in self.ms:
            check_times(line)

    def __call__(self, row: float, column: float) -> float:
        """Never below 0."""
        i, t = bracket(self.rows, row)
        low = self._along(i, column)
        if t == 0.0:
            return low
        return max(low + t * (self._along(i + 1, column) - low), 0.0)

    def along_rows(self, rows: NDArray[np.float64], column: float) -> NDArray[np.float64]:
        """At rising rows of one column, shape of `rows`."""
        return interpolate(self.rows, [self._along(i, column) for i in range(len(self.rows))], rows)

    def _along(self, i: int, column: float) -> float:
        line = self.ms[i]
        j, t = bracket(self.columns, column)
        return line[j] if t == 0.0 else max(line[j] + t * (line[j + 1] - line[j]), 0.0)


def check_times(ms: Sequence[float]) -> None:
    """Raise SettingError for a time that is negative, not finite, or beyond MAX_MS."""
    for value in ms:
        if not 0.0 <= value <= MAX_MS:
            raise SettingError(f"a time must be a number of milliseconds from 0 to {MAX_MS:g}, got {shown(value)}")
