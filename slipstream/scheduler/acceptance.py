"""AcceptanceTracker: what is known of how drafts fare, as survivals that planners rank and drafting rules weigh.

Everything is a hazard: the chance that drafts 1 … j are all accepted is exp(-θ H_j). Where the drafter gives
confidences, H_j is the sum of their negative logarithms, and one θ for all calibrates them. Where it is silent, H_j
comes from the running acceptance of position j over all requests, and each request has a θ of its own, shrunk to 1
(proportional hazards with gamma frailty: θ = (refusals + s) / (hazard that was faced + s)).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.request import Request
from slipstream.scheduler.verification import Survivals

PRIOR_TRIALS = 6.0
PRIOR_ACCEPTANCE = 0.8
"""A position is believed to be accepted so often until about so many drafts were judged there."""

MEMORY_TRIALS = 2048.0
"""Judged drafts of a position, and over all of a calibration, after which older ones count half."""

REQUEST_PRIOR = 6.0
REQUEST_MEMORY = 32.0
CALIBRATION_PRIOR = 8.0
"""s and memory of the θ of requests, and s of the one that calibrates, in units of hazard (expected refusals)."""

MIN_CONFIDENCE = 1e-6
MIN_SURVIVAL = 1e-30
NUM_BLOCKS_REMEMBERED = 64
_NONE: tuple[float, ...] = ()


@dataclass(slots=True)
class Frailty:
    """How much more (or less) often refusals come than a hazard says, shrunk to 1.

    Attributes:
        prior: s. memory: hazard after which older evidence counts half. refusals, faced: evidence so far.
    """

    prior: float
    memory: float
    refusals: float = 0.0
    faced: float = 0.0

    @property
    def factor(self) -> float:
        """θ."""
        return (self.refusals + self.prior) / (self.faced + self.prior)

    def observe(self, before: float, through: float, *, refused: bool) -> None:
        """Drafts were judged whose hazards sum to `through`, or to `before` without the refused last one: that one is
        taken to have come half way through its hazard."""
        self.faced += 0.5 * (before + through) if refused else through
        self.refusals += refused
        if self.faced > self.memory:
            self.faced *= 0.5
            self.refusals *= 0.5


class AcceptanceTracker:
    """Learns from committed steps. Only verified drafts up to the first refused one are evidence: those behind it were
    never looked at."""

    def __init__(self, num_speculative_tokens: int) -> None:
        most = num_speculative_tokens
        self._verified = [PRIOR_TRIALS] * most
        self._accepted = [PRIOR_TRIALS * PRIOR_ACCEPTANCE] * most
        self._hazards = [0.0] * (most + 1)  # H_0 … H_K
        self._is_stale = True
        self._requests: dict[str, Frailty] = {}
        self._calibration = Frailty(CALIBRATION_PRIOR, MEMORY_TRIALS)
        self._confidences: dict[str, Sequence[float]] = {}
        self._recent: deque[Sequence[float]] = deque(maxlen=NUM_BLOCKS_REMEMBERED)
        self._probing: set[str] = set()
        self.num_judged = 0

    # -- evidence -------------------------------------------------------------------------------------------------

    def observe(self, request_id: str, num_verified: int, num_accepted: int) -> None:
        """A committed step verified so many drafts of a request and accepted the first `num_accepted`."""
        refused = num_accepted < num_verified
        num_judged = num_accepted + refused
        self.num_judged += num_judged
        self._probing.discard(request_id)
        confidences = self._confidences.get(request_id)
        if confidences is not None and len(confidences) >= num_verified:
            through = before = 0.0
            for confidence in confidences[:num_judged]:
                before = through
                through -= math.log(max(confidence, MIN_CONFIDENCE))
            self._calibration.observe(before, through, refused=refused)
        else:
            frailty = self._requests.get(request_id)
            if frailty is None:
                frailty = self._requests[request_id] = Frailty(REQUEST_PRIOR, REQUEST_MEMORY)
            hazards = self._cumulative_hazards()
            frailty.observe(hazards[max(num_judged - 1, 0)], hazards[num_judged], refused=refused)
        self._is_stale = True
        for position in range(num_judged):
            self._verified[position] += 1.0
            self._accepted[position] += position < num_accepted
            if self._verified[position] > MEMORY_TRIALS:
                self._verified[position] *= 0.5
                self._accepted[position] *= 0.5

    def note_drafts(self, request_id: str, confidences: Sequence[float] | None) -> None:
        """A committed step made drafts; `confidences` are conditional, None where the drafter is silent."""
        if confidences is None:
            self._confidences.pop(request_id, None)
            return
        self._confidences[request_id] = confidences
        if len(confidences) == len(self._verified):
            self._recent.append(confidences)

    def probe(self, request_ids: Iterable[str]) -> None:
        """The next drafts of these requests are to be judged whatever is known: they count as sure until they are."""
        self._probing.update(request_ids)

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._requests.pop(request_id, None)
        self._confidences.pop(request_id, None)
        self._probing.discard(request_id)

    # -- what follows from it -------------------------------------------------------------------------------------

    def survivals(self, requests: Sequence[Request], drafts: Sequence[int]) -> Survivals:
        """Of the drafts at hand: by their confidences where the drafter gave some for this very block, else by running
        acceptance.

        Args:
            drafts: drafts of each request that are worth verifying.
        """
        depth = max(drafts, default=0)
        confidences, silent = [], []
        for i, (request, count) in enumerate(zip(requests, drafts, strict=True)):
            given = request.draft_confidences
            if given is None or len(given) < count:
                if count:
                    silent.append(i)
                given = _NONE
            confidences.append(given if len(given) == depth else [*given[:depth], *[1.0] * (depth - len(given))])
        at_hand = np.arange(depth) < np.array(drafts, dtype=np.int64)[:, None]
        if len(silent) < len(confidences):
            survivals = self._calibrated(confidences)
        else:
            survivals = np.empty((len(requests), depth))
        if silent:
            survivals[silent] = self.expected([requests[i] for i in silent], depth)
        if self._probing:
            survivals[[i for i, request in enumerate(requests) if request.request_id in self._probing]] = 1.0
        return np.where(at_hand, np.maximum(survivals, MIN_SURVIVAL), 0.0)

    def expected(self, requests: Sequence[Request], depth: int) -> Survivals:
        """Survivals of `depth` drafts that are not made yet, by running acceptance, shape [R, depth]."""
        hazards = np.array(self._cumulative_hazards()[1 : depth + 1])
        factors = [
            1.0 if (known := self._requests.get(request.request_id)) is None else known.factor for request in requests
        ]
        return np.exp(-np.outer(factors, hazards))

    def recent(self) -> Survivals | None:
        """Calibrated survivals of the last whole blocks that came with confidences, [M, K]; None where none did."""
        return self._calibrated(list(self._recent)) if self._recent else None

    def _calibrated(self, confidences: Sequence[Sequence[float]]) -> Survivals:
        products: NDArray[np.float64] = np.array(confidences, dtype=np.float64).cumprod(axis=1)
        return np.asarray(products**self._calibration.factor)

    def _cumulative_hazards(self) -> list[float]:
        if self._is_stale:
            total = 0.0
            for j, (verified, accepted) in enumerate(zip(self._verified, self._accepted, strict=True), 1):
                total -= math.log(accepted / verified)
                self._hazards[j] = total
            self._is_stale = False
        return self._hazards
