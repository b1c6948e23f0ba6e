"""SchedulerStatistics: counters that only grow, kept where the facts are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class NoDrafts(StrEnum):
    """Why a request that could have drafted did not.

    POSITION_LIMIT: its drafts would pass the drafter's last position (`draft_max_model_len`). COST: no number of drafts
    is worth its time now. LOAD: `num_speculative_tokens_per_batch_size` says 0 at this load. DRAFT_CAPACITY: others
    took the drafter's rows of this step. KV_BLOCKS: no block was free for the drafts' slots.
    """

    POSITION_LIMIT = "position_limit"
    COST = "cost"
    LOAD = "load"
    DRAFT_CAPACITY = "draft_capacity"
    KV_BLOCKS = "kv_blocks"


@dataclass(slots=True)
class StepTotals:
    """What the committed steps of one kind and mode came to.

    Attributes:
        num_prompt_rows, num_decode_rows, num_verify_rows, num_draft_query_rows: rows that ran; a decode row is the one
            that every decoding request has, a verify row a draft behind it.
        num_padding_rows: rows that a captured graph adds.
    """

    num_steps: int = 0
    num_prompt_rows: int = 0
    num_decode_rows: int = 0
    num_verify_rows: int = 0
    num_draft_query_rows: int = 0
    num_padding_rows: int = 0


@dataclass(slots=True)
class SchedulerStatistics:
    """Totals since the scheduler was made. *Drafted* were made, *admitted* planned for verification, *verified* really
    ran as target rows, *accepted* were emitted; drafts past a stop count as neither verified nor accepted.

    Attributes:
        num_steps: committed steps by kind. steps: what they came to, by (kind, mode).
        num_target_rows, num_draft_query_rows: rows that ran; num_prefill_rows, num_verify_rows: rows planned.
        last_target_rows, last_draft_query_rows: the same of the newest committed step.
        acceptance_histogram: `[v][a]` = steps of a decoding request that verified v drafts and accepted a, [K+1][K+1].
        num_decode_tokens: output tokens of the steps in `acceptance_histogram`: accepted drafts, and the target's own
            token of each step, but for one that an accepted draft ended, such as an EOS.
        draft_lengths, admitted_lengths: `[n]` = blocks of n drafts that were made; decodes planned with n, [K+1].
        num_without_drafts: steps of requests that could have drafted and did not, by reason.
        num_stale_results: results dropped because their request had ended or started over.
        num_skipped_drafts: drafting requests that had just ended or had only one token left.
    """

    acceptance_histogram: list[list[int]]
    draft_lengths: list[int]
    admitted_lengths: list[int]
    num_steps: dict[str, int] = field(default_factory=dict)
    steps: dict[tuple[str, str], StepTotals] = field(default_factory=dict)
    num_target_rows: int = 0
    num_prefill_rows: int = 0
    num_verify_rows: int = 0
    num_draft_query_rows: int = 0
    last_target_rows: int = 0
    last_draft_query_rows: int = 0
    num_output_tokens: int = 0
    num_decode_tokens: int = 0
    num_preemptions: int = 0
    num_stale_results: int = 0
    num_skipped_drafts: int = 0
    num_without_drafts: dict[NoDrafts, int] = field(default_factory=lambda: dict.fromkeys(NoDrafts, 0))
    num_finished: dict[str, int] = field(default_factory=dict)

    @classmethod
    def for_drafts(cls, num_speculative_tokens: int) -> SchedulerStatistics:
        """All zero, for K drafts at most."""
        size = num_speculative_tokens + 1
        return cls([[0] * size for _ in range(size)], [0] * size, [0] * size)

    @property
    def num_decode_emits(self) -> int:
        """Emitting steps of decoding requests, which gave `num_decode_tokens`."""
        return sum(map(sum, self.acceptance_histogram))

    @property
    def num_drafted_tokens(self) -> int:
        """Drafts that were made."""
        return sum(length * count for length, count in enumerate(self.draft_lengths))

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

    def drafted_per_position(self) -> list[int]:
        """How often a draft at each position (0 = first) was made, [K]."""
        return _per_position(self.draft_lengths)

    def admitted_per_position(self) -> list[int]:
        """How often a draft at each position (0 = first) was planned for verification, [K]."""
        return _per_position(self.admitted_lengths)

    def verified_per_position(self) -> list[int]:
        """How often a draft at each position (0 = first) was verified, [K]."""
        return _per_position([sum(row) for row in self.acceptance_histogram])

    def accepted_per_position(self) -> list[int]:
        """How often a draft at each position (0 = first) was accepted, [K]; sums to `num_accepted_tokens`."""
        return _per_position([sum(column) for column in zip(*self.acceptance_histogram, strict=True)])


def _per_position(lengths: list[int]) -> list[int]:
    """From `[n]` = runs of length n to how often each position was reached."""
    return [sum(lengths[position + 1 :]) for position in range(len(lengths) - 1)]
