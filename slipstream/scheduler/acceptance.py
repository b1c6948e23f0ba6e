"""AcceptanceTracker: what is known of how drafts fare, as survivals that planners rank and drafting rules weigh.

All of it is odds of refusal, (1 - c) / c for a chance c given the drafts before. Where the drafter gives confidences,
theirs are multiplied by one factor for all, which calibrates them. Where it is silent, they are those of the draft's
position over all requests, multiplied by a factor of the request's own, shrunk to 1. Both are learnt by matching
moments: a factor f is right when refusals = Σ f o / (1 + f o) over the judged drafts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.request import Request
from slipstream.scheduler.verification import Survivals

PRIOR_TRIALS = 6.0
PRIOR_ACCEPTANCE = 0.8
"""A position is believed to be accepted so often until about so many drafts were judged there."""

MEMORY_TRIALS = 512.0
"""Judged drafts of a position after which older ones count half."""

CALIBRATION_PRIOR = 8.0
REQUEST_MEMORY, CALIBRATION_MEMORY = 32.0, 1024.0
"""Expected refusals that the prior factor of 1 counts as, and after which older evidence counts half."""

PRIOR_VARIANCE, PRIOR_VARIANCE_WEIGHT = 0.15, 200.0
MIN_VARIANCE, MAX_VARIANCE = 0.01, 1.0
"""Of requests' factors: believed at first, with the weight of so many squared expected refusals; and its bounds. The
prior of a request's factor counts as 1 / variance refusals (a gamma distribution's shape)."""

PROBE_PART = 1 / 32
"""A probe speaks for drafts that were not made, or not judged, since the one before: it weighs at least this part of
the evidence there is."""

DOUBTED_TRIALS = 32.0
"""Evidence of a position that is kept when drafting begins anew."""

MIN_CONFIDENCE = 1e-6
MIN_SURVIVAL = 1e-30
NUM_PRIOR_BLOCKS, NUM_BLOCKS_REMEMBERED = 8, 256
"""Blocks of confidences that the first real ones stand beside, so that one does not decide; and of how many at most the
next ones are thought to be like."""
_NONE: tuple[float, ...] = ()


@dataclass(slots=True)
class OddsFactor:
    """How much higher (or lower) the odds of refusal are than was thought, shrunk to 1.

    Attributes:
        memory: expected refusals after which older evidence counts half.
        refusals: so far. expected: Σ o / (1 + f o), those expected over f.
    """

    memory: float
    refusals: float = 0.0
    expected: float = 0.0

    def value(self, prior: float) -> float:
        """f, shrunk to 1 as if by `prior` refusals that were expected."""
        return (self.refusals + prior) / (self.expected + prior)

    def observe(self, expected: float, refusals: float) -> None:
        """Drafts were judged."""
        self.expected += expected
        self.refusals += refusals
        if self.expected > self.memory:
            self.expected *= 0.5
            self.refusals *= 0.5


@dataclass(slots=True)
class RequestEvidence:
    """A request's factor, and its refusals against those of a request with the factor 1, for `Spread`."""

    factor: OddsFactor
    refusals: int = 0
    expected: float = 0.0

    @property
    def excess(self) -> float:
        """Expected to be the variance of factors times `expected` squared: chance alone leaves 0."""
        return (self.refusals - self.expected) ** 2 - self.expected


class AcceptanceTracker:
    """Learns from committed steps. Only verified drafts up to the first refused one are evidence: those behind it were
    never looked at.

    Attributes:
        probing: requests whose drafts at hand are to be judged whatever is known: they count as sure.
        num_judged: drafts that were evidence so far.
        is_silent: no drafter ever gave a confidence.
    """

    def __init__(self, num_speculative_tokens: int) -> None:
        most = num_speculative_tokens
        self._refusals = [PRIOR_TRIALS * (1.0 - PRIOR_ACCEPTANCE)] * most
        self._expected = [PRIOR_TRIALS * PRIOR_ACCEPTANCE] * most
        self._odds = [(1.0 - PRIOR_ACCEPTANCE) / PRIOR_ACCEPTANCE] * most
        self._requests: dict[str, RequestEvidence] = {}
        self._excess = PRIOR_VARIANCE * PRIOR_VARIANCE_WEIGHT
        self._excess_weight = PRIOR_VARIANCE_WEIGHT
        self._request_prior = 1.0 / PRIOR_VARIANCE
        self._calibration = OddsFactor(CALIBRATION_MEMORY)
        self._confidences: dict[str, Sequence[float]] = {}
        self.is_silent = True
        self._recent: deque[Sequence[float]] = deque(
            [(PRIOR_ACCEPTANCE,) * most] * NUM_PRIOR_BLOCKS, maxlen=NUM_BLOCKS_REMEMBERED
        )
        self.probing: frozenset[str] = frozenset()
        self.num_judged = 0

    # -- evidence -------------------------------------------------------------------------------------------------

    def observe(self, request_id: str, num_verified: int, num_accepted: int) -> None:
        """A committed step verified so many drafts of a request and accepted the first `num_accepted`."""
        refused = num_accepted < num_verified
        num_judged = num_accepted + refused
        self.num_judged += num_judged
        is_probe = request_id in self.probing
        confidences = self._confidences.get(request_id)
        if confidences is not None and len(confidences) >= num_judged:
            factor, expected = self._calibration.value(CALIBRATION_PRIOR), 0.0
            for confidence in confidences[:num_judged]:
                expected += (1.0 - confidence) / (confidence + factor * (1.0 - confidence) + MIN_CONFIDENCE)
            weight = max(self._calibration.expected * PROBE_PART, 1.0) if is_probe else 1.0
            self._calibration.observe(weight * expected, weight * refused)
        known = self._requests.get(request_id)
        if known is None:
            known = self._requests[request_id] = RequestEvidence(OddsFactor(REQUEST_MEMORY))
        self._observe_positions(known, num_judged, refused, is_probe)

    def _observe_positions(self, request: RequestEvidence, num_judged: int, refused: bool, is_probe: bool) -> None:
        """Learn of the positions and of the request from its drafts."""
        odds, expected, refusals = self._odds, self._expected, self._refusals
        factor = request.factor.value(self._request_prior)
        whole = typical = 0.0
        for position in range(num_judged):
            chance = 1.0 / (1.0 + factor * odds[position])
            whole += odds[position] * chance
            typical += odds[position] / (1.0 + odds[position])
            weight = max((expected[position] + refusals[position]) * PROBE_PART, 1.0) if is_probe else 1.0
            expected[position] += weight * factor * chance
            if refused and position == num_judged - 1:
                refusals[position] += weight
            odds[position] = refusals[position] / expected[position]
            if expected[position] > MEMORY_TRIALS:
                expected[position] *= 0.5
                refusals[position] *= 0.5
        request.factor.observe(whole, refused)
        request.expected += typical
        request.refusals += refused

    def _learn_spread(self, request: RequestEvidence) -> None:
        """A request has ended: how far its acceptance was from the mean tells how far those of others may be."""
        self._excess += request.excess
        self._excess_weight += request.expected**2
        variance = min(max(self._excess / self._excess_weight, MIN_VARIANCE), MAX_VARIANCE)
        self._request_prior = 1.0 / variance

    def note_drafts(self, request_id: str, confidences: Sequence[float] | None) -> None:
        """A committed step made drafts; `confidences` are conditional, None where the drafter is silent."""
        if confidences is None:
            self._confidences.pop(request_id, None)
            return
        self._confidences[request_id] = confidences
        self._recent.append(confidences)
        self.is_silent = False

    def doubt(self) -> None:
        """Drafting begins on the word of a few probes: what is seen now is to outweigh them soon."""
        for position, (expected, refusals) in enumerate(zip(self._expected, self._refusals, strict=True)):
            scale = min(DOUBTED_TRIALS / (expected + refusals), 1.0)
            self._expected[position] *= scale
            self._refusals[position] *= scale

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        known = self._requests.pop(request_id, None)
        if known is not None:
            self._learn_spread(known)
        self._confidences.pop(request_id, None)

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
            survivals = self.calibrated(confidences).cumprod(axis=1)
        else:
            survivals = np.empty((len(requests), depth))
        if silent:
            survivals[silent] = self.expected([requests[i] for i in silent], depth)
        if self.probing:
            survivals[[i for i, request in enumerate(requests) if request.request_id in self.probing]] = 1.0
        return np.where(at_hand, np.maximum(survivals, MIN_SURVIVAL), 0.0)

    def foreseen(
        self, requests: Sequence[Request], drafts: Sequence[int], survivals: Callable[[], Survivals]
    ) -> Survivals:
        """What the size of a step is decided by: the survivals of these very drafts, unless the rule that judges them
        forbids to look."""
        return survivals()

    def expected(self, requests: Sequence[Request], depth: int) -> Survivals:
        """Survivals of `depth` drafts that are not made yet, by running acceptance, shape [R, depth]."""
        factors = [
            1.0
            if (known := self._requests.get(request.request_id)) is None
            else known.factor.value(self._request_prior)
            for request in requests
        ]
        return _survivals(np.outer(factors, self._odds[:depth]))

    def typical(self, depth: int) -> NDArray[np.float64]:
        """Survivals of a request of which nothing is known, by running acceptance, shape [depth]."""
        return np.asarray(_survivals(np.array([self._odds[:depth]]))[0])

    def recent(self) -> Survivals | None:
        """Calibrated survivals of the last blocks that came with confidences, [M, K]; None where none did. Blocks that
        were shorter than K go on by running acceptance."""
        if self.is_silent:
            return None
        most = len(self._odds)
        chances = self.calibrated([[*block, *[0.0] * (most - len(block))] for block in self._recent])
        missing = np.arange(most) >= np.array([len(block) for block in self._recent])[:, None]
        return np.asarray(np.where(missing, 1.0 / (1.0 + np.array(self._odds)), chances).cumprod(axis=1))

    def calibrated(self, confidences: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """Conditional chances, of the shape of the confidences, by what became of earlier ones."""
        chances = np.array(confidences, dtype=np.float64)
        refused = 1.0 - chances
        chances /= chances + self._calibration.value(CALIBRATION_PRIOR) * refused + MIN_CONFIDENCE * (chances == 0.0)
        return chances


def _survivals(odds: NDArray[np.float64]) -> Survivals:
    return np.asarray((1.0 / (1.0 + odds)).cumprod(axis=1))
