"""How long prompts have waited that could run: what a rule that holds prompts back must know (design 4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptWait:
    """Since the last step that ran prompt rows, or since prompts could run again.

    Attributes:
        num_ready: prompts that have a seat, or could have one now.
        oldest_s: seconds that the longest-waiting of them could have run.
        seat_seconds: seats that ready prompts could have filled, integrated over the time they could.
        ready_per_s: rate at which prompts become ready, a running mean; 0 while unknown.
    """

    num_ready: int = 0
    oldest_s: float = 0.0
    seat_seconds: float = 0.0
    ready_per_s: float = 0.0


class PromptWaitTracker:
    """Integrates over the scheduler's steps. Time is the scheduler's `now`."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._num_ready = 0
        self._since = 0.0
        self._seat_seconds = 0.0

    def update(self, num_ready: int, now: float) -> PromptWait:
        """Before a step is composed: `num_ready` prompts could run now."""
        if self._last is not None:
            self._seat_seconds += self._num_ready * max(now - self._last, 0.0)
        if not self._num_ready:
            self._since = now
        self._last = now
        self._num_ready = num_ready
        return PromptWait(num_ready, now - self._since if num_ready else 0.0, self._seat_seconds)

    def ran(self, now: float) -> None:
        """The step runs prompt rows: the account starts over."""
        self._since = now
        self._seat_seconds = 0.0
