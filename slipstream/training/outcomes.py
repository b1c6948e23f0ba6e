"""What became of drafts, block by block: the confidences a drafter gave, and how many the target accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.scheduler.protocol import StepPlan, StepResult

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Of N verified blocks with up to K drafts.

    Attributes:
        confidences: chance that draft k is accepted given that those before are, [N, K]; 1 past a block's end.
        accepted: leading drafts that were accepted, [N].
        judged: positions of which the outcome is known, [N]: up to the last verified draft, or all of them once one was
            refused; not past a token that ended the text.
    """

    confidences: Floats
    accepted: Counts
    judged: Counts

    def __len__(self) -> int:
        return len(self.accepted)

    @property
    def depth(self) -> int:
        """K."""
        return int(self.confidences.shape[1])

    def at(self, position: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which blocks were judged at a position (from 0), [N]; of those, which had all drafts up to it accepted."""
        known = self.judged > position
        return known, self.accepted[known] > position

    def acceptance(self) -> tuple[list[float | None], list[float | None]]:
        """By position: share accepted given that the ones before were, and share with all up to it accepted."""
        conditional: list[float | None] = []
        cumulative: list[float | None] = []
        for position in range(self.depth):
            known = self.judged > position
            reached = known & (self.accepted >= position)
            passed = int((self.accepted[known] > position).sum())
            conditional.append(passed / int(reached.sum()) if reached.any() else None)
            cumulative.append(passed / int(known.sum()) if known.any() else None)
        return conditional, cumulative

    def part(self, blocks: NDArray[np.bool_]) -> Outcomes:
        """Some of the blocks."""
        return Outcomes(self.confidences[blocks], self.accepted[blocks], self.judged[blocks])


class OutcomeCollector:
    """Hears every step (plan, result) of an executor and pairs drafts with what came of them.

    Attributes:
        request_ids: whose block each one is, in order.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        self._depth = num_draft_tokens
        self._waiting: dict[tuple[str, int], Sequence[float]] = {}
        self._stops: dict[str, frozenset[int]] = {}
        self._confidences: list[list[float]] = []
        self._accepted: list[int] = []
        self._judged: list[int] = []
        self.request_ids: list[str] = []

    def __len__(self) -> int:
        return len(self._accepted)

    def hear(self, plan: StepPlan, result: StepResult) -> None:
        """A step ran."""
        for new in plan.new_requests:
            self._stops[new.request_id] = new.stop_token_ids
        for done in result.results:
            key = (done.request_id, done.epoch)
            confidences = self._waiting.pop(key, None)
            if confidences is not None and done.num_verified:
                self._add(done.request_id, confidences, done.token_ids, done.num_verified, done.num_accepted)
            if done.draft_confidences is not None and done.num_draft_tokens:
                self._waiting[key] = done.draft_confidences[: done.num_draft_tokens]

    def outcomes(self) -> Outcomes:
        """All blocks so far."""
        shape = (len(self), self._depth)
        return Outcomes(
            np.array(self._confidences, np.float64).reshape(shape),
            np.array(self._accepted, np.int64),
            np.array(self._judged, np.int64),
        )

    def _add(
        self, request_id: str, confidences: Sequence[float], token_ids: Sequence[int], verified: int, accepted: int
    ) -> None:
        judged = verified if accepted == verified else len(confidences)
        end = _first_of(token_ids[:accepted], self._stops.get(request_id, frozenset()))
        if end is not None:
            judged, accepted = end + 1, end + 1
        self._confidences.append([*confidences, *[1.0] * (self._depth - len(confidences))])
        self._accepted.append(accepted)
        self._judged.append(judged)
        self.request_ids.append(request_id)


def joined(parts: Iterable[Outcomes]) -> Outcomes:
    """Several together; at least one, of equal depth."""
    kept = list(parts)
    return Outcomes(
        np.concatenate([part.confidences for part in kept]),
        np.concatenate([part.accepted for part in kept]),
        np.concatenate([part.judged for part in kept]),
    )


def _first_of(token_ids: Sequence[int], stops: frozenset[int]) -> int | None:
    return next((i for i, token_id in enumerate(token_ids) if token_id in stops), None)
