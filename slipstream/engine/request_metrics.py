"""RequestMetrics: when things happened to a submission and how much was done; and who wants to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.engine.draft_history import DraftHistory
from slipstream.request import FinishReason, SamplingParams


@dataclass(slots=True)
class RequestMetrics:
    """One choice's history. Times are seconds on the engine's clock.

    Attributes:
        num_steps: steps that gave tokens. drafts: what became of the drafts of each.
        num_drafted_steps: steps in which at least one draft was verified.
        num_preemptions: how often the choice lost its KV; known at its end.
        seed: the one that reproduces this choice, drawn on arrival when the user gave none.
    """

    arrival_time: float
    num_prompt_tokens: int
    seed: int
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_steps: int = 0
    num_drafted_steps: int = 0
    num_preemptions: int = 0
    drafts: DraftHistory = field(default_factory=DraftHistory)

    @property
    def num_verified(self) -> int:
        """Drafts that ran as target rows, over all steps."""
        return sum(self.drafts.verified)

    @property
    def num_accepted(self) -> int:
        """Drafts that were accepted, over all steps."""
        return sum(self.drafts.accepted)

    @property
    def time_to_first_token(self) -> float | None:
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def time_per_output_token(self) -> float | None:
        """(last - first) / (N - 1) seconds; None with fewer than two tokens."""
        if self.first_token_time is None or self.last_token_time is None or self.num_output_tokens < 2:
            return None
        return (self.last_token_time - self.first_token_time) / (self.num_output_tokens - 1)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Mean of 1 + accepted over the steps that verified drafts; None when none did."""
        return self.drafts.mean_acceptance_length


class MetricsListener(Protocol):
    """Hears what fronts learn about requests; every method is cheap. What one raises harms nobody (listeners.py)."""

    def on_submitted(self, sampling: SamplingParams, num_prompt_tokens: int) -> None: ...

    def on_tokens(self, num_tokens: int, gap_s: float | None) -> None:
        """A choice got tokens; `gap_s` since its previous ones, None for the first."""
        ...

    def on_first_token(self, metrics: RequestMetrics, seconds: float) -> None: ...

    def on_step(self, num_tokens: int, duration_s: float) -> None: ...

    def on_finished(self, metrics: RequestMetrics, sampling: SamplingParams, reason: FinishReason, now: float) -> None:
        """A choice ended."""
        ...

    def on_answered(self, metrics: Sequence[RequestMetrics]) -> None:
        """Every choice of a prompt ended by itself; one entry per choice."""
        ...
