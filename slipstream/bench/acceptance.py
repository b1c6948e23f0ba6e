"""Acceptance of drafts, counted one way everywhere.

*Drafted*, *verified* and *accepted* are three numbers: a draft that was made may be trimmed before the target sees it,
and only a verified one can be accepted. Rates divide by what was really verified, never by steps times K, and the
token after the accepted ones is in no numerator. Tokens per decode step are counted, not derived: a step that an
accepted draft ended, such as an EOS, has no token after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.scheduler.statistics import SchedulerStatistics


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Sums over decode steps; a *decode step* is one request's part of one engine step.

    Attributes:
        num_decode_steps: decode steps, with or without drafts. num_decode_tokens: their output tokens. None over HTTP.
        num_steps_verified: decode steps in which at least one draft was verified (vLLM's `num_drafts`).
        histogram: verified drafts of a step -> how often 0, 1, 2, … of them were accepted; None over HTTP.
        accepted_by_position: steps whose draft at position 0, 1, … was accepted.
    """

    num_decode_steps: int | None
    num_decode_tokens: int | None
    num_steps_verified: int
    drafted: int
    verified: int
    accepted: int
    accepted_by_position: tuple[int, ...]
    histogram: Mapping[int, tuple[int, ...]] | None = None

    @property
    def rate(self) -> float | None:
        """Accepted over verified, in [0, 1]."""
        return self.accepted / self.verified if self.verified else None

    @property
    def mean_length(self) -> float | None:
        """Mean tokens of a step that verified drafts: the accepted ones and the target's own."""
        return 1.0 + self.accepted / self.num_steps_verified if self.num_steps_verified else None

    @property
    def tokens_per_decode_step(self) -> float | None:
        """Mean tokens of any decode step, those without drafts included."""
        if self.num_decode_tokens is None or not self.num_decode_steps:
            return None
        return self.num_decode_tokens / self.num_decode_steps

    @property
    def rate_by_position(self) -> tuple[float, ...]:
        """Share of steps that verified drafts whose draft at each position was accepted (vLLM's definition)."""
        return tuple(count / self.num_steps_verified for count in self.accepted_by_position)

    @property
    def rate_by_position_verified(self) -> tuple[float, ...] | None:
        """As above, over the steps that verified a draft at that position; not blurred by trimmed steps."""
        if self.histogram is None:
            return None
        return tuple(
            count / sum(sum(counts) for length, counts in self.histogram.items() if length > position)
            for position, count in enumerate(self.accepted_by_position)
        )

    @property
    def rate_by_position_reached(self) -> tuple[float | None, ...] | None:
        """Share accepted of the drafts at each position that were verified and had all drafts before them accepted;
        None at a position without any."""
        if self.histogram is None:
            return None
        reached = [
            sum(sum(counts[position:]) for length, counts in self.histogram.items() if length > position)
            for position in range(len(self.accepted_by_position))
        ]
        return tuple(
            accepted / count if count else None
            for accepted, count in zip(self.accepted_by_position, reached, strict=True)
        )

    @property
    def mean_length_full(self) -> float | None:
        """Mean length over the steps that verified the most drafts: without the cut at a request's end."""
        if not self.histogram:
            return None
        counts = self.histogram[max(self.histogram)]
        return 1.0 + sum(accepted * count for accepted, count in enumerate(counts)) / sum(counts)

    def to_json(self) -> dict[str, Any]:
        """Keys as in `vllm bench serve` where the meaning is the same; its acceptance rate is in percent."""
        return {
            "spec_decode_acceptance_rate": None if self.rate is None else 100.0 * self.rate,
            "spec_decode_acceptance_length": self.mean_length,
            "spec_decode_num_drafts": self.num_steps_verified,
            "spec_decode_draft_tokens": self.drafted,
            "spec_decode_verified_tokens": self.verified,
            "spec_decode_accepted_tokens": self.accepted,
            "spec_decode_per_position_acceptance_rates": list(self.rate_by_position),
            "spec_decode_per_verified_position_acceptance_rates": (
                None if self.rate_by_position_verified is None else list(self.rate_by_position_verified)
            ),
            "spec_decode_num_decode_steps": self.num_decode_steps,
            "spec_decode_tokens_per_decode_step": self.tokens_per_decode_step,
            "spec_decode_acceptance_length_full_steps": self.mean_length_full,
            "spec_decode_histogram": (
                None if self.histogram is None else {str(k): list(v) for k, v in sorted(self.histogram.items())}
            ),
        }


def acceptance_between(before: SchedulerStatistics, after: SchedulerStatistics) -> Acceptance | None:
    """What one scheduler counted between two moments; None when no request decoded in between."""
    num_steps = after.num_decode_emits - before.num_decode_emits
    if num_steps <= 0:
        return None
    histogram = {}
    for verified, (old, new) in enumerate(zip(before.acceptance_histogram, after.acceptance_histogram, strict=True)):
        grown = tuple(count - was for count, was in zip(new, old, strict=True))[: verified + 1]
        if verified and any(grown):
            histogram[verified] = grown
    by_position = tuple(
        sum(sum(counts[position + 1 :]) for counts in histogram.values())
        for position in range(max(histogram, default=0))
    )
    return Acceptance(
        num_decode_steps=num_steps,
        num_decode_tokens=after.num_decode_tokens - before.num_decode_tokens,
        num_steps_verified=sum(sum(counts) for counts in histogram.values()),
        drafted=after.num_drafted_tokens - before.num_drafted_tokens,
        verified=sum(length * sum(counts) for length, counts in histogram.items()),
        accepted=sum(by_position),
        accepted_by_position=by_position,
        histogram=histogram,
    )
