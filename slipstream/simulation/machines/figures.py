"""Figure: a number and where it comes from."""

from __future__ import annotations

from typing import Self


class Figure(float):
    """A number that knows its source; computes as a float.

    Args:
        value: the number. source: who states or measured it, or what it was inferred from.
    """

    source: str

    def __new__(cls, value: float, source: str) -> Self:
        figure = super().__new__(cls, value)
        figure.source = source
        return figure
