"""SchedulerStatistics: counters that only grow, kept where the facts are known."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SchedulerStatistics:
    """Totals since the scheduler was made. *Drafted* were made, *admitted* planned for verification, *verified* really
    ran as target rows, *accepted* were emitted; drafts past a stop count as neither verified nor accepted.

    Attributes:
        num_steps: committed steps by kind.
        acceptance_histogram: `[v][a]` = steps of a request that verified v drafts and accepted a.
        num_decode_emits: emitting steps of decoding requests; with it, tokens per decode step can be told.
    """

    num_steps: dict[str, int] = field(default_factory=dict)
    num_target_rows: int = 0
    num_prefill_rows: int = 0
    num_verify_rows: int = 0
    num_draft_query_rows: int = 0
    num_drafted_tokens: int = 0
    num_admitted_tokens: int = 0
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    num_decode_emits: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_stale_results: int = 0
    num_skipped_drafts: int = 0
    num_finished: dict[str, int] = field(default_factory=dict)
    acceptance_histogram: list[list[int]] = field(default_factory=list)

    def count_verification(self, num_verified: int, num_accepted: int) -> None:
        """Record one decoding request's step."""
        histogram = self.acceptance_histogram
        while len(histogram) <= num_verified:
            histogram.append([0] * (len(histogram) + 1))
        histogram[num_verified][num_accepted] += 1

    def verified_per_position(self) -> list[int]:
        """How often a draft at each position (0 = first) was verified."""
        return [
            sum(sum(row) for row in self.acceptance_histogram[position + 1 :])
            for position in range(max(len(self.acceptance_histogram) - 1, 0))
        ]

    def accepted_per_position(self) -> list[int]:
        """How often a draft at each position (0 = first) was accepted; sums to `num_accepted_tokens`."""
        return [
            sum(sum(row[position + 1 :]) for row in self.acceptance_histogram)
            for position in range(max(len(self.acceptance_histogram) - 1, 0))
        ]
