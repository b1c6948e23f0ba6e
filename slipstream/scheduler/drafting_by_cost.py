"""DraftByCost: as many drafts as make the most tokens per millisecond, by running acceptance and costs (design 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slipstream.scheduler.costs import DecodeGraphs, StepCosts, StepShape
from slipstream.scheduler.drafting import DraftingCandidates, DraftingDecision
from slipstream.scheduler.statistics import NoDrafts
from slipstream.scheduler.verification import Survivals, VerifyOffer, offer_of
from slipstream.scheduler.verify_rows import best_verify_rows

SHORT_HOLD, HOLD = 4, 32
"""Steps that a decision holds: while each judged draft may change it, until NUM_SETTLED were judged, and otherwise."""
NUM_SETTLED = 256
NUM_FIRST = 32
"""Until so many drafts were judged, probes come four times as often."""
LOAD_CHANGE = 8
"""A change of the load by more than 1/8 has the decision looked at again."""
HYSTERESIS, START_MARGIN = 0.01, 0.02
"""Another K must promise so much more; drafting begins for the second and ends as soon as it promises no more: what
began it was few drafts, and the luckier they were the sooner."""
PROBE_SHARE = 0.004
"""Part of the time that probing may cost."""
PROBE_SURVIVAL = 0.1
"""Probes reach one draft further than where so many are believed to survive."""
MIN_PROBE_STEPS, MAX_PROBE_STEPS = 16, 1024


@dataclass(frozen=True, slots=True)
class DraftingOutlook:
    """What drafting `count` tokens each is expected to come to.

    Attributes:
        num_rows: drafts worth verifying. tokens_per_ms, step_ms: of a step of decodes alone, with the drafter's pass.
    """

    count: int
    num_rows: int
    tokens_per_ms: float
    step_ms: float


class DraftByCost:
    """Weighs every K: the drafter's pass, and the best verify rows over the whole cost curve. A decision holds for a
    while, so that a load swinging about a border does not swing it. Where fewer than K are drafted, or silent drafts
    are left out, a request at a time drafts K now and then and has them verified, so that no judgement is for ever.
    Drafts always where costs are not known."""

    def decide(self, candidates: DraftingCandidates, costs: StepCosts | None) -> DraftingDecision:
        """See DraftingPolicy."""
        previous = candidates.previous
        if costs is None or not candidates.requests:
            return DraftingDecision(candidates.most)
        decision = None if previous is None or previous.num_requests == 0 else previous
        if decision is None or self._is_due(decision, candidates):
            decision = self._weigh(decision, candidates, costs)
        elif decision.probes:
            decision = replace(decision, exceptions={}, probes=frozenset())
        if decision.probe_steps and candidates.step - decision.probed_step >= decision.probe_steps:
            decision = self._probing(decision, candidates, costs)
        return decision

    @staticmethod
    def _is_due(decision: DraftingDecision, candidates: DraftingCandidates) -> bool:
        age = candidates.step - decision.decided_step
        if age < SHORT_HOLD:
            return False
        num_judged = candidates.acceptance.num_judged
        if age >= HOLD or decision.num_judged < num_judged < NUM_SETTLED:
            return True
        return abs(len(candidates.requests) - decision.num_requests) * LOAD_CHANGE > decision.num_requests

    def _weigh(
        self, decision: DraftingDecision | None, candidates: DraftingCandidates, costs: StepCosts
    ) -> DraftingDecision:
        most, num_requests = candidates.most, len(candidates.requests)
        outlooks = outlooks_of(candidates, costs)
        best = max(outlooks, key=lambda outlook: outlook.tokens_per_ms)
        if decision is not None:
            kept = outlooks[min(decision.most, most)]
            margin = START_MARGIN if not kept.count else HYSTERESIS if best.count else 0.0
            if best.tokens_per_ms <= kept.tokens_per_ms * (1.0 + margin):
                best = kept
        reason = ""
        if best.count < most:
            reason = (
                f"{best.count} drafts each promise {best.tokens_per_ms:.3f} tokens per ms, "
                f"{most} promise {outlooks[most].tokens_per_ms:.3f}"
            )
        return DraftingDecision(
            best.count,
            reason=reason,
            decided_step=candidates.step,
            num_requests=num_requests,
            num_judged=candidates.acceptance.num_judged,
            probe_steps=self._probe_steps(best, candidates, costs),
            probed_step=candidates.step if decision is None else decision.probed_step,
            cause=None if best.count else NoDrafts.COST,
        )

    @staticmethod
    def _probe_steps(chosen: DraftingOutlook, candidates: DraftingCandidates, costs: StepCosts) -> int:
        """Steps between two probes, by what one costs; 0 where there is nothing to learn that is not seen anyway."""
        most, num_requests, acceptance = candidates.most, len(candidates.requests), candidates.acceptance
        depth = probe_depth(candidates, chosen.count)
        is_trimmed = acceptance.is_silent and chosen.num_rows < num_requests * chosen.count
        if chosen.count == most and not is_trimmed:
            return 0
        num_probing = num_requests if costs.decode_graphs is DecodeGraphs.UNIFORM else 1
        rows = candidates.layout.draft_query_rows(1 + depth, depth)
        shape = StepShape(num_requests, chosen.num_rows, num_kv_tokens=candidates.num_kv_tokens)
        probing = replace(shape, num_verify_rows=max(num_probing * depth, chosen.num_rows + depth))
        extra_ms = max(costs.target_ms(probing) - costs.target_ms(shape), 0.0)
        if not chosen.count:
            extra_ms += costs.draft_ms(num_probing, num_probing * rows)
        steps = extra_ms / (PROBE_SHARE * chosen.step_ms) if chosen.step_ms > 0 else 0.0
        if acceptance.num_judged < NUM_FIRST:
            steps /= 4.0
        return round(min(max(steps, MIN_PROBE_STEPS), MAX_PROBE_STEPS))

    @staticmethod
    def _probing(decision: DraftingDecision, candidates: DraftingCandidates, costs: StepCosts) -> DraftingDecision:
        requests = candidates.requests
        if costs.decode_graphs is DecodeGraphs.UNIFORM:
            chosen = list(requests)  # one alone would cost all of them their graph
        else:
            chosen = [requests[candidates.step // decision.probe_steps % len(requests)]]
        depth = probe_depth(candidates, decision.most)
        probes = frozenset(request.request_id for request in chosen)
        return replace(decision, exceptions=dict.fromkeys(probes, depth), probes=probes, probed_step=candidates.step)


def probe_depth(candidates: DraftingCandidates, count: int) -> int:
    """Drafts of a probe: as far as what happens there may change the judgement, and more than are drafted anyway."""
    survivals = candidates.acceptance.typical(candidates.most)
    return min(max(count, int(np.count_nonzero(survivals >= PROBE_SURVIVAL))) + 1, candidates.most)


def outlooks_of(candidates: DraftingCandidates, costs: StepCosts) -> list[DraftingOutlook]:
    """For 0 … K drafts each, shape [K + 1]."""
    num_requests = len(candidates.requests)
    shape = StepShape(num_requests, num_kv_tokens=candidates.num_kv_tokens)
    plain_ms = costs.target_ms(shape)
    outlooks = [DraftingOutlook(0, 0, num_requests / plain_ms if plain_ms > 0 else 0.0, plain_ms)]
    room = candidates.max_rows - num_requests
    useful = max(1.0 - candidates.row_bound_share, 1e-3)  # passes whose drafts are of use pay for the others
    recent = candidates.acceptance.recent()
    for count in range(1, candidates.most + 1):
        offer = forecast(candidates, recent, count)
        draft_rows = num_requests * candidates.layout.draft_query_rows(1 + count, count)
        draft_ms = costs.draft_ms(num_requests, draft_rows) / useful
        choice = best_verify_rows(offer, costs, shape, room, draft_ms=draft_ms)
        outlooks.append(DraftingOutlook(count, choice.num_rows, choice.tokens_per_ms, choice.target_ms + draft_ms))
    return outlooks


def forecast(candidates: DraftingCandidates, recent: Survivals | None, count: int) -> VerifyOffer:
    """What `count` drafts of each request will offer: like the recent ones that came with confidences, spread over as
    many requests, or by running acceptance."""
    num_requests = len(candidates.requests)
    if recent is None:
        return offer_of(candidates.acceptance.expected(candidates.requests, count), may_trim=True)
    sample = offer_of(recent[:, :count], may_trim=True)
    scale = num_requests / len(recent)
    rows = np.arange(num_requests * count + 1)
    gains = np.interp(rows / scale, np.arange(len(sample.gains)), sample.gains) * scale
    return VerifyOffer(gains, sample.depth_gains * scale, [k * num_requests for k in range(count + 1)], may_trim=True)
