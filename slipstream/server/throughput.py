"""BusyRate: how fast things get done while there is something to do."""

from __future__ import annotations

import math

MEMORY_S = 30.0
"""Busy seconds after which what was measured counts 1/e."""


class BusyRate:
    """Amounts per second of busy time, the last MEMORY_S of it weighing most. Idle time does not count: a server that
    had nothing to do was not slow."""

    def __init__(self, memory_s: float = MEMORY_S) -> None:
        self._memory_s = memory_s
        self._amount = 0.0
        self._seconds = 0.0

    def add(self, amount: float) -> None:
        """So much was done."""
        self._amount += amount

    def pass_time(self, seconds: float) -> None:
        """Busy time went by."""
        decay = math.exp(-seconds / self._memory_s)
        self._amount *= decay
        self._seconds = self._seconds * decay + self._memory_s * (1.0 - decay)

    @property
    def per_second(self) -> float | None:
        """None until something was done."""
        return self._amount / self._seconds if self._seconds > 0.0 and self._amount > 0.0 else None
