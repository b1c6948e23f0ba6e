"""DraftByCost: as many drafts as make the most tokens per millisecond, by running acceptance and costs (design 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipstream.request import Request
from slipstream.scheduler.costs import DecodeGraphs, StepCosts, StepShape
from slipstream.scheduler.drafting import DraftingCandidates, DraftingDecision
from slipstream.scheduler.verification import Survivals, VerifyOffer, offer_of
from slipstream.scheduler.verify_rows import best_verify_rows

LEARNING_DRAFTS = 64
"""Until so many drafts were judged, everybody drafts K and the decision is looked at often."""
SHORT_HOLD, HOLD = 4, 32
"""Steps that a decision holds while learning, and later."""
LOAD_CHANGE = 8
"""A change of the load by more than 1/8 has the decision looked at again."""
HYSTERESIS = 0.01
"""Another K must promise so much more."""
PROBE_SHARE = 0.004
"""Part of the time that probing may cost."""
MIN_PROBE_STEPS, MAX_PROBE_STEPS = 16, 512


@dataclass(frozen=True, slots=True)
class DraftingOutlook:
    """What drafting `count` tokens each is expected to come to: tokens per ms, and ms per step."""

    count: int
    tokens_per_ms: float
    step_ms: float


class DraftByCost:
    """Weighs every K: the drafter's pass, and the best verify rows over the whole cost curve. A decision holds for a
    while, so that a load swinging about a border does not swing it. Drafts always where costs are not known."""

    def decide(self, candidates: DraftingCandidates, costs: StepCosts | None) -> DraftingDecision:
        """See DraftingPolicy."""
        most, previous, step = candidates.most, candidates.previous, candidates.step
        if costs is None or not candidates.requests:
            return DraftingDecision(most)
        decision = None if previous is None or previous.num_requests == 0 else previous
        if decision is None or self._is_due(decision, candidates):
            decision = self._weigh(decision, candidates, costs)
        elif decision.probes:
            decision = replace(decision, exceptions={}, probes=frozenset())
        return decision

    @staticmethod
    def _is_due(decision: DraftingDecision, candidates: DraftingCandidates) -> bool:
        age = candidates.step - decision.decided_step
        if age < SHORT_HOLD:
            return False
        is_learning = candidates.acceptance.num_judged < 4 * LEARNING_DRAFTS
        change = abs(len(candidates.requests) - decision.num_requests) * LOAD_CHANGE
        return age >= (SHORT_HOLD if is_learning else HOLD) or change > decision.num_requests

    def _weigh(
        self, decision: DraftingDecision | None, candidates: DraftingCandidates, costs: StepCosts
    ) -> DraftingDecision:
        most, step, num_requests = candidates.most, candidates.step, len(candidates.requests)
        if candidates.acceptance.num_judged < LEARNING_DRAFTS:
            return DraftingDecision(most, decided_step=step, num_requests=num_requests)
        outlooks = outlooks_of(candidates, costs)
        best = max(outlooks, key=lambda outlook: outlook.tokens_per_ms)
        if decision is not None:
            kept = outlooks[min(decision.most, most)]
            if best.tokens_per_ms <= kept.tokens_per_ms * (1.0 + HYSTERESIS):
                best = kept
        reason = ""
        if best.count < most:
            reason = (
                f"{best.count} drafts each promise {best.tokens_per_ms:.3f} tokens per ms, "
                f"{most} promise {outlooks[most].tokens_per_ms:.3f}"
            )
        return DraftingDecision(best.count, reason=reason, decided_step=step, num_requests=num_requests)


def outlooks_of(candidates: DraftingCandidates, costs: StepCosts) -> list[DraftingOutlook]:
    """For 0 … K drafts each, shape [K + 1]."""
    requests, layout = candidates.requests, candidates.layout
    num_requests = len(requests)
    shape = StepShape(num_requests, num_kv_tokens=candidates.num_kv_tokens)
    plain_ms = costs.target_ms(shape)
    outlooks = [DraftingOutlook(0, num_requests / plain_ms if plain_ms > 0 else 0.0, plain_ms)]
    room = candidates.max_rows - num_requests
    for count in range(1, candidates.most + 1):
        offer = forecast(candidates, count)
        draft_ms = costs.draft_ms(num_requests, num_requests * layout.draft_query_rows(1 + count, count))
        choice = best_verify_rows(offer, costs, shape, room, draft_ms=draft_ms)
        outlooks.append(DraftingOutlook(count, choice.tokens_per_ms, choice.target_ms + draft_ms))
    return outlooks


def forecast(candidates: DraftingCandidates, count: int) -> VerifyOffer:
    """What `count` drafts of each request will offer: like the recent ones that came with confidences, spread over as
    many requests, or by running acceptance."""
    recent = candidates.acceptance.recent()
    num_requests = len(candidates.requests)
    if recent is None:
        return offer_of(candidates.acceptance.expected(candidates.requests, count), may_trim=True)
    sample = offer_of(recent[:, :count], may_trim=True)
    scale = num_requests / len(recent)
    rows = np.arange(num_requests * count + 1)
    gains = np.interp(rows / scale, np.arange(len(sample.gains)), sample.gains) * scale
    return VerifyOffer(gains, sample.depth_gains * scale, [k * num_requests for k in range(count + 1)], may_trim=True)
