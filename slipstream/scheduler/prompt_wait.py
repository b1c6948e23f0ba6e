"""How long prompts have waited that could run: what a rule that holds prompts back must know (design 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY_EVENTS = 16
MEMORY_ENDS = 4
"""Prompts that became ready, and steps in which requests ended, that running means reach back over."""


@dataclass(frozen=True, slots=True)
class PromptWait:
    """Since the last step that ran prompt rows, or since prompts could run again.

    Attributes:
        num_ready: prompts that have a seat, or could have one now.
        oldest_s: seconds that the longest-waiting of them could have run.
        seat_seconds: seats that ready prompts could have filled, integrated over the time they could.
        decode_steps_per_ready: requests that decode, summed over the steps from one prompt's becoming ready to the
            next, a running mean; infinity while unknown.
        ready_per_end: prompts that become ready at once for each request that ends, at most 1, a running mean: 1 while
            requests queue, or while each user sends the next request when the last one was answered.
        burst_s: seconds since prompts began to hold back their last rows; 0 where they do not.
        ms_since_ran, tokens_since_ran: time and expected tokens of a decode from the last step with prompt rows on,
            that step included; 0 before the first.
    """

    num_ready: int = 0
    oldest_s: float = 0.0
    seat_seconds: float = 0.0
    decode_steps_per_ready: float = math.inf
    ready_per_end: float = 0.0
    burst_s: float = 0.0
    ms_since_ran: float = 0.0
    tokens_since_ran: float = 0.0


class PromptWaitTracker:
    """Integrates over the scheduler's steps. Time is the scheduler's `now`."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._num_ready = 0
        self._since = 0.0
        self._seat_seconds = 0.0
        self._mean_gap = 0.0
        self._num_gaps = 0
        self._gap = 0.0
        self._num_decodes = 0
        self._ready_per_end = 0.0
        self._ran = False
        self._ran_at: float | None = None
        self._tokens = 0.0
        self._burst_since: float | None = None

    def update(self, num_ready: int, num_decodes: int, now: float) -> PromptWait:
        """Before a step is composed: `num_ready` prompts could run now beside so many decodes."""
        if not self._num_ready:
            self._since = now
        elif self._last is not None and not self._ran:
            self._seat_seconds += self._num_ready * max(now - self._last, 0.0)
        if not num_ready:
            self._seat_seconds = 0.0
            self._burst_since = None
        num_became_ready = num_ready - self._num_ready
        self._count(num_became_ready)
        num_ended = self._num_decodes - num_decodes
        if num_ended > 0:
            share = min(max(num_became_ready / num_ended, 0.0), 1.0)
            self._ready_per_end += (share - self._ready_per_end) / MEMORY_ENDS
        self._num_decodes = num_decodes
        self._gap += num_decodes
        self._last = now
        self._num_ready = num_ready
        self._ran = False
        return PromptWait(
            num_ready,
            now - self._since if num_ready else 0.0,
            self._seat_seconds,
            max(self._mean_gap, self._gap) if self._num_gaps else math.inf,
            self._ready_per_end,
            0.0 if self._burst_since is None else now - self._burst_since,
            0.0 if self._ran_at is None else (now - self._ran_at) * 1e3,
            self._tokens,
        )

    def planned(self, tokens_per_decode: float) -> None:
        """The step is planned, with or without prompt rows: a decode is expected to make so many tokens."""
        self._tokens += tokens_per_decode

    def ran(self, now: float, num_finished: int, *, finishes: bool) -> None:
        """The step runs prompt rows, the last ones of `num_finished` prompts: the account starts over. `finishes`:
        whether last rows were allowed to run."""
        self._since = now
        self._seat_seconds = 0.0
        self._num_ready -= num_finished
        self._num_decodes += num_finished
        self._ran = True
        self._ran_at = now
        self._tokens = 0.0
        if finishes:
            self._burst_since = None
        elif self._burst_since is None:
            self._burst_since = now

    def _count(self, num_became_ready: int) -> None:
        """Prompts that were there before anybody decoded tell nothing of the pace."""
        if num_became_ready <= 0 or not self._gap:
            return
        for _ in range(min(num_became_ready, MEMORY_EVENTS)):
            gap = self._gap / num_became_ready
            self._num_gaps = min(self._num_gaps + 1, MEMORY_EVENTS)
            self._mean_gap += (gap - self._mean_gap) / self._num_gaps
        self._gap = 0.0
