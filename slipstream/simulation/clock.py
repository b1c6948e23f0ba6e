"""VirtualClock: time that passes only when a simulated step or a wait says so."""

from __future__ import annotations


class VirtualClock:
    """Seconds since the start of a simulation. Call it to read it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass; negative spans count as none."""
        self.now += max(seconds, 0.0)
