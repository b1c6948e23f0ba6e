"""CalibrationCounts: how often drafts were accepted that the drafter was so and so sure of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.scheduler.acceptance import AcceptanceTracker
from slipstream.scheduler.protocol import StepPlan, StepResult

NUM_BINS = 10


@dataclass(frozen=True, slots=True)
class _Block:
    """A request's newest drafts: the step that made them, and their confidences."""

    step: int
    confidences: Sequence[float]


class CalibrationCounts:
    """A StepObserver. Counts judged drafts, those up to the first refused one, by position and confidence: bin b holds
    confidences from b / 10 up to (b + 1) / 10. Silent drafters leave it empty.

    Attributes, each of shape [K, NUM_BINS]:
        judged, accepted: drafts. confidence: sum of what the drafter said of them. calibrated: sum of what the
        scheduler made of it (AcceptanceTracker).
    """

    def __init__(self, acceptance: AcceptanceTracker, num_speculative_tokens: int) -> None:
        self._acceptance = acceptance
        self._most = num_speculative_tokens
        self._blocks: dict[str, _Block] = {}
        shape = (num_speculative_tokens, NUM_BINS)
        self.judged = np.zeros(shape)
        self.accepted = np.zeros(shape)
        self.confidence = np.zeros(shape)
        self.calibrated = np.zeros(shape)

    def __call__(self, plan: StepPlan, result: StepResult) -> None:
        """See StepObserver."""
        blocks = self._blocks
        for request_id in plan.released_request_ids:
            blocks.pop(request_id, None)
        confidences: list[float] = []
        positions: list[int] = []
        accepted: list[int] = []
        for entry, outcome in zip(plan.requests, result.results, strict=True):
            block = blocks.pop(entry.request_id, None)
            if block is not None and outcome.num_verified and entry.draft_handle == block.step:
                num_judged = min(outcome.num_accepted + 1, outcome.num_verified, len(block.confidences))
                num_right = min(outcome.num_accepted, num_judged)
                confidences += block.confidences[:num_judged]
                positions += range(num_judged)
                accepted += [1] * num_right + [0] * (num_judged - num_right)
            if outcome.draft_confidences is not None and outcome.num_draft_tokens:
                blocks[entry.request_id] = _Block(plan.step, outcome.draft_confidences)
        if confidences:
            self._add(np.array(confidences), np.array(positions), np.array(accepted))

    def _add(self, confidences: NDArray[np.float64], positions: NDArray[np.int64], accepted: NDArray[np.int64]) -> None:
        bins = np.clip((confidences * NUM_BINS).astype(np.int64), 0, NUM_BINS - 1)
        places = positions * NUM_BINS + bins
        for totals, weights in (
            (self.judged, None),
            (self.accepted, accepted),
            (self.confidence, confidences),
            (self.calibrated, self._acceptance.calibrated([confidences.tolist()])[0]),
        ):
            sums = np.bincount(places, weights, minlength=totals.size)
            totals += sums.reshape(totals.shape)
