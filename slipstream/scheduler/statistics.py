"""SchedulerStatistics: counters that only grow, kept where the facts are known."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SchedulerStatistics:
    """Totals since the scheduler was made. *Drafted* were made, *admitted* planned for verification, *verified* really
    ran as target rows, *accepted* were emitted; drafts past a stop count as neither verified nor accepted.

    Attributes:
        num_steps: committed steps by kind.
        num_target_rows, num_draft_query_rows: rows that ran; num_prefill_rows, num_verify_rows: rows planned.
        acceptance_histogram: `[v][a]` = steps of a decoding request that verified v drafts and accepted a, [K+1][K+1].
        num_decode_tokens: output tokens of the steps in `acceptance_histogram`: accepted drafts, and the target's own
            token of each step, but for one that an accepted draft ended, such as an EOS.
        num_stale_results: results dropped because their request had ended or started over.
        num_skipped_drafts: drafting requests that had just ended or had only one token left.
    """

    acceptance_histogram: list[list[int]]
    num_steps: dict[str, int] = field(default_factory=dict)
    num_target_rows: int = 0
    num_prefill_rows: int = 0
    num_verify_rows: int = 0
    num_draft_query_rows: int = 0
    num_drafted_tokens: int = 0
    num_output_tokens: int = 0
    num_decode_tokens: int = 0
    num_preemptions: int = 0
    num_stale_results: int = 0
    num_skipped_drafts: int = 0
    num_finished: dict[str, int] = field(default_factory=dict)

    @classmethod
    def for_drafts(cls, num_speculative_tokens: int) -> SchedulerStatistics:
        """All zero, for K drafts at most."""
        size = num_speculative_tokens + 1
        return cls([[0] * size for _ in range(size)])

    @property
    def num_decode_emits(self) -> int:
        """Emitting steps of decoding requests, which gave `num_decode_tokens`."""
        return sum(map(sum, self.acceptance_histogram))

    @property
    def num_admitted_tokens(self) -> int:
        """Drafts planned for verification."""
        return self.num_verify_rows

    @property
    def num_verified_tokens(self) -> int:
        """Drafts that ran as target rows."""
        return sum(verified * sum(row) for verified, row in enumerate(self.acceptance_histogram))

    @property
    def num_accepted_tokens(self) -> int:
        """Drafts that were emitted."""
        return sum(self.accepted_per_position())

    def verified_per_position(self) -> list[int]:
        """How often a draft at each position (0 = first) was verified, [K]."""
        histogram = self.acceptance_histogram
        return [sum(map(sum, histogram[position + 1 :])) for position in range(len(histogram) - 1)]

    def accepted_per_position(self) -> list[int]:
        """How often a draft at each position (0 = first) was accepted, [K]; sums to `num_accepted_tokens`."""
        histogram = self.acceptance_histogram
        return [sum(sum(row[position + 1 :]) for row in histogram) for position in range(len(histogram) - 1)]
