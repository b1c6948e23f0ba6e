"""TraceAcceptance: the fate of drafts as a recording saw it, and where it saw nothing, at the recording's own rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.simulation.acceptance import RequestAcceptance, luck
from slipstream.simulation.recorded_requests import Offer, RecordedRequest

_UNKNOWN, _REFUSED, _ACCEPTED = -1, 0, 1
_OFFER_LUCK = 1  # another seed: whether drafts are found must not follow from whether they are right


class TraceRates:
    """What drafts were worth in the whole recording.

    Attributes:
        conditional: by depth (0 = first draft), the share accepted of those whose predecessors were; never empty.
        confidences: mean confidence by depth; None where the drafter was silent.
        offered: share of the times the drafter was asked that it gave any draft.
    """

    def __init__(self, requests: Sequence[RecordedRequest]) -> None:
        verifications = [v for request in requests for v in request.verifications]
        depth = max((v.num_verified for v in verifications), default=0)
        reached, accepted = np.zeros(depth), np.zeros(depth)
        for v in verifications:
            reached[: min(v.num_accepted + 1, v.num_verified)] += 1
            accepted[: v.num_accepted] += 1
        self.conditional: list[float] = (accepted / np.maximum(reached, 1)).tolist() or [0.0]
        offers = [offer for request in requests for offer in request.offers]
        self.offered = sum(offer.num_given > 0 for offer in offers) / len(offers) if offers else 0.0
        spoken = [offer.confidences for offer in offers if offer.confidences]
        self.confidences: list[float] | None = None
        if spoken:
            self.confidences = [
                float(np.mean([c[depth] for c in spoken if len(c) > depth])) for depth in range(max(map(len, spoken)))
            ]


class TraceAcceptance:
    """An AcceptanceModel.

    Every output position that a recorded draft was verified for is accepted or refused as it was then: the token there
    belongs to the request alone, so this holds wherever a step begins, as far as the drafter proposes the same token
    from another anchor. Positions nobody verified are drawn at the rate of their depth in the step, with luck keyed by
    (request, position). Depths beyond the deepest recorded draft take the rate of that one.
    """

    def __init__(self, requests: Sequence[RecordedRequest], seed: int = 0) -> None:
        """`requests`: in the order of their index, which is their place in the workload."""
        self.rates = TraceRates(requests)
        self._requests = requests
        self._seed = seed

    def request(self, index: int, num_output_tokens: int) -> TraceFate:
        """See AcceptanceModel."""
        return TraceFate(self._requests[index], num_output_tokens, self.rates, self._seed)

    def share_known(self) -> float:
        """Output positions whose draft's fate was recorded, of all after each request's first token."""
        known = total = 0
        for request in self._requests:
            count = request.num_output_tokens
            known += int((_bitmap(request, count)[1:] != _UNKNOWN).sum()) if count else 0
            total += max(count - 1, 0)
        return known / total if total else 0.0


class TraceFate(RequestAcceptance):
    """One request's fate."""

    def __init__(self, request: RecordedRequest, num_output_tokens: int, rates: TraceRates, seed: int) -> None:
        self._rates = rates
        self._bitmap: list[int] = _bitmap(request, num_output_tokens).tolist()
        self._luck: list[float] = luck(seed, request.index, num_output_tokens).tolist()
        self._offer_luck: list[float] = luck(seed + _OFFER_LUCK, request.index, num_output_tokens).tolist()
        self._offers: dict[int, Offer] = {offer.position: offer for offer in request.offers}

    def num_accepted(self, position: int, num_verified: int) -> int:
        """See RequestAcceptance."""
        rates = self._rates.conditional
        for depth in range(num_verified):
            place = position + depth
            if place >= len(self._bitmap):
                return depth
            fate = self._bitmap[place]
            if fate == _UNKNOWN:
                fate = self._luck[place] < rates[min(depth, len(rates) - 1)]
            if not fate:
                return depth
        return num_verified

    def num_offered(self, position: int, num_asked: int) -> int:
        """Drafts that the drafter finds from here on: as many as it found then, else at the recording's rate."""
        offer = self._offers.get(position)
        if offer is not None:
            return num_asked if offer.num_given == offer.num_asked else min(num_asked, offer.num_given)
        if position >= len(self._offer_luck):
            return 0
        return num_asked if self._offer_luck[position] < self._rates.offered else 0

    def confidences(self, position: int, num_drafts: int) -> Sequence[float] | None:
        """See RequestAcceptance: those recorded for this anchor, and the mean of their depth for the rest."""
        means = self._rates.confidences
        if means is None or not num_drafts:
            return None
        offer = self._offers.get(position)
        recorded = list(offer.confidences or ())[:num_drafts] if offer is not None else []
        return recorded + [means[min(depth, len(means) - 1)] for depth in range(len(recorded), num_drafts)]


def _bitmap(request: RecordedRequest, num_output_tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    """Accepted, refused or unknown for each output position, shape [num_output_tokens]."""
    bitmap = np.full(num_output_tokens, _UNKNOWN, dtype=np.int8)
    for v in request.verifications:
        bitmap[v.position : v.position + v.num_accepted] = _ACCEPTED
        refused = v.position + v.num_accepted
        if v.num_accepted < v.num_verified and refused < num_output_tokens:
            bitmap[refused] = _REFUSED
    return bitmap
