"""DraftHistory: what became of one choice's drafts, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slipstream.request import RequestOutput


@dataclass(slots=True)
class DraftHistory:
    """*Drafted* were made, *admitted* planned for verification, *verified* ran as target rows, *accepted* were emitted.

    Attributes:
        drafted: sizes of the draft blocks that were made, in order.
        admitted: one entry per step that was planned to verify drafts.
        verified, accepted: one entry per step that did.
    """

    drafted: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, output: RequestOutput) -> None:
        """Book one step."""
        if output.num_admitted:
            self.admitted.append(output.num_admitted)
        if output.num_verified:
            self.verified.append(output.num_verified)
            self.accepted.append(output.num_accepted)
        if output.num_drafted:
            self.drafted.append(output.num_drafted)

    @classmethod
    def sum(cls, histories: Iterable[DraftHistory]) -> DraftHistory:
        """Several choices' as one."""
        total = cls()
        for history in histories:
            total.drafted += history.drafted
            total.admitted += history.admitted
            total.verified += history.verified
            total.accepted += history.accepted
        return total

    @property
    def num_steps(self) -> int:
        """Steps that verified at least one draft."""
        return len(self.verified)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Mean of 1 + accepted over those steps; None when there were none."""
        return 1.0 + sum(self.accepted) / len(self.accepted) if self.accepted else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / verified drafts; None when none was verified."""
        return sum(self.accepted) / sum(self.verified) if self.verified else None

    def acceptance_histogram(self, most: int) -> list[int]:
        """`[a]` = steps that accepted exactly a drafts, [most + 1]."""
        histogram = [0] * (most + 1)
        for count in self.accepted:
            histogram[count] += 1
        return histogram


def per_position(counts: Sequence[int], most: int) -> list[int]:
    """How many of `counts` reach each draft position, 0 being the first, [most]."""
    return [sum(count > position for count in counts) for position in range(most)]
