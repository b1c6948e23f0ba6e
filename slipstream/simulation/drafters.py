"""Scripted drafters: always right, never right, right for m positions, only EOS, ragged; for tests and simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slipstream.request import OutputConstraint
from slipstream.scheduler.layouts import DraftLayout
from slipstream.scheduler.protocol import DraftBlock, DraftRequest, Matchers, SampleRow, TokenMatcher
from slipstream.simulation.scripted import LogitsFunction, RowSampler, sample_greedily

Predict = Callable[[DraftRequest, list[int]], int]
"""(request, prefix) -> the token the target will sample after `prefix`."""


def predict_with(
    logits: LogitsFunction, sampler: RowSampler = sample_greedily, matchers: Matchers | None = None
) -> Predict:
    """What a target with these logits samples; knows the request's parameters and seed as the target does, and its
    constraint where `matchers` are given."""
    known: dict[OutputConstraint, TokenMatcher] = {}

    def matcher_of(constraint: OutputConstraint | None) -> TokenMatcher | None:
        if constraint is None or matchers is None:
            return None
        if constraint not in known:
            known[constraint] = matchers.matcher(constraint, frozenset())
        return known[constraint]

    def predict(request: DraftRequest, prefix: list[int]) -> int:
        row = SampleRow(
            request.sampling,
            request.seed,
            request.choice_index,
            frozenset(),
            prefix,
            request.num_prompt_tokens,
            [],
            0,
            matcher=matcher_of(request.sampling.constraint),
        )
        return sampler(np.stack([logits(prefix)]), [row]).token_ids[0]

    return predict


class ScriptedDrafter:
    """Drafts from foreknowledge, spoilt by a rule.

    Args:
        layout: whose budgets and KV it obeys.
        predict: the target's next token.
        num_right: drafts of each block that are right; the rest is wrong.
        num_offered: (request, call) -> drafts offered of those wanted; None offers all.
    """

    def __init__(
        self,
        layout: DraftLayout,
        predict: Predict,
        vocab_size: int,
        *,
        num_right: int = 1 << 30,
        num_offered: Callable[[DraftRequest, int], int] | None = None,
    ) -> None:
        self.layout = layout
        self._predict = predict
        self._vocab_size = vocab_size
        self._num_right = num_right
        self._num_offered = num_offered
        self._num_calls: dict[str, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter."""
        return [self._block(request) for request in requests]

    def _block(self, request: DraftRequest) -> DraftBlock:
        calls = self._num_calls.get(request.request_id, 0)
        self._num_calls[request.request_id] = calls + 1
        count = request.num_draft_tokens
        if self._num_offered is not None:
            count = min(count, self._num_offered(request, calls))
        prefix = list(request.token_ids)
        drafts: list[int] = []
        for index in range(count):
            token = self._predict(request, prefix)
            if index >= self._num_right:
                token = (token + 1) % self._vocab_size
            drafts.append(token)
            prefix.append(token)
        return DraftBlock(drafts)

    def release(self, request_id: str) -> None:
        """See Drafter."""
        self._num_calls.pop(request_id, None)


class ConstantDrafter:
    """Drafts one token over and over: EOS, to see that a draft alone ends nothing."""

    def __init__(self, layout: DraftLayout, token_id: int) -> None:
        self.layout = layout
        self._token_id = token_id

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter."""
        return [DraftBlock([self._token_id] * request.num_draft_tokens) for request in requests]

    def release(self, request_id: str) -> None:
        """See Drafter; nothing is kept."""


def oracle(layout: DraftLayout, predict: Predict, vocab_size: int) -> ScriptedDrafter:
    """Always right."""
    return ScriptedDrafter(layout, predict, vocab_size)


def wrong(layout: DraftLayout, predict: Predict, vocab_size: int) -> ScriptedDrafter:
    """Never right."""
    return ScriptedDrafter(layout, predict, vocab_size, num_right=0)


def half(layout: DraftLayout, predict: Predict, vocab_size: int, num_right: int) -> ScriptedDrafter:
    """Right for the first `num_right` positions of each block."""
    return ScriptedDrafter(layout, predict, vocab_size, num_right=num_right)


def ragged(layout: DraftLayout, predict: Predict, vocab_size: int, most: int) -> ScriptedDrafter:
    """0 to `most` right drafts by turn."""
    return ScriptedDrafter(layout, predict, vocab_size, num_offered=lambda _request, call: call % (most + 1))
