"""Rows with a constraint: only what fits is sampled, and what is reported is of the distribution of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from slipstream.request import SamplingParams
from slipstream.sampling.sampler import LogitsError, Sampler
from slipstream.scheduler.executor_state import RequestState
from slipstream.scheduler.protocol import ConstraintError, DraftBlock, DraftDistribution, SampleRow

VOCAB = 16
SAMPLER = Sampler(VOCAB)


class Only:
    """A TokenMatcher under which the next token is one of a few."""

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = token_ids
        self.asked: list[list[int]] = []

    def allowed(self, output: Sequence[int]) -> bytes:
        """See TokenMatcher."""
        self.asked.append(list(output))
        return sum(1 << token_id for token_id in self.token_ids).to_bytes(2, "little")

    def num_legal(self, output: Sequence[int], drafts: Sequence[int]) -> int:
        """See TokenMatcher."""
        return next((i for i, draft in enumerate(drafts) if draft not in self.token_ids), len(drafts))


def row(matcher: Any, drafts: Sequence[int] = (), num_drafts: int = 0, **sampling: Any) -> SampleRow:
    params = SamplingParams(**{"temperature": 0.0, **sampling})
    return SampleRow(params, 7, 0, frozenset({15}), [1, 2, 3], 2, list(drafts), num_drafts, matcher=matcher)


def sampled(logits: torch.Tensor, *rows: SampleRow) -> list[int]:
    return SAMPLER.sample(logits, rows).token_ids


def logits(number: int = 1) -> torch.Tensor:
    return torch.randn(number, VOCAB, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logit_bias": {0: 100.0}},
        {"allowed_token_ids": (0, 1)},
        {"bad_words_token_ids": ((4,), (9,))},
        {"min_tokens": 10, "max_tokens": 20},
        {"presence_penalty": 2.0, "repetition_penalty": 3.0},
        {"top_k": 1},
        {"min_p": 1.0},
        {"top_p": 0.01},
    ],
)
def test_nothing_but_what_fits_is_sampled(temperature: float, more: dict[str, Any]) -> None:
    for seed in range(20):
        rows = logits(1) * (1 + seed)
        assert sampled(rows, row(Only(4, 9, 15), temperature=temperature, **more))[0] in (4, 9, 15)


def test_the_end_alone_wins_over_min_tokens() -> None:
    assert sampled(logits(), row(Only(15), min_tokens=9)) == [15]


@pytest.mark.parametrize("bad", [-math.inf, math.nan])
def test_tokens_that_fit_are_possible_though_the_model_gives_them_no_chance(bad: float) -> None:
    rows = logits()
    rows[0, [4, 9]] = bad
    assert sampled(rows, row(Only(4, 9)))[0] in (4, 9)


def test_every_verify_row_is_asked_after_the_drafts_before_it() -> None:
    matcher = Only(5, 6)
    rows = [row(matcher, [5, 6], index) for index in range(3)]
    assert set(sampled(logits(3), *rows)) <= {5, 6}
    assert matcher.asked == [[3], [3, 5], [3, 5, 6]]


def test_rows_without_a_constraint_are_what_they_are_alone() -> None:
    rows = logits(3)
    plain = row(None, temperature=1.0)
    assert sampled(rows, row(Only(4)), plain, plain)[1:] == sampled(rows[1:], plain, plain)


def test_log_probabilities_are_of_the_models_own_distribution() -> None:
    rows = logits()
    done = SAMPLER.sample(rows, [row(Only(4), logprobs=2)])
    assert done.token_ids == [4] and done.logprobs[0] is not None
    expected = rows[0].double().log_softmax(0)
    assert done.logprobs[0].logprob == pytest.approx(float(expected[4]), abs=1e-5)
    assert done.logprobs[0].top[0][0] == int(expected.argmax())


class Broken(Only):
    """A matcher whose grammar has become too complex."""

    def allowed(self, output: Sequence[int]) -> bytes:
        """See TokenMatcher."""
        raise ConstraintError("too complex")


def test_dead_ends_name_their_rows_and_reasons_beside_rows_without_logits() -> None:
    rows = logits(4)
    rows[1] = math.nan
    with pytest.raises(LogitsError) as caught:
        sampled(rows, row(Only()), row(Only(4)), row(Only(4)), row(Broken()))
    assert caught.value.rows == [0, 1, 3]
    assert "fits" in caught.value.reasons[0] and "NaN" in caught.value.reasons[1]
    assert caught.value.reasons[3] == "too complex"


@pytest.mark.parametrize(("with_distributions", "kept"), [(False, 2), (True, 3)])
def test_the_textbook_rule_judges_the_first_illegal_draft_itself(with_distributions: bool, kept: int) -> None:
    """Left out, it would leave its row to plain sampling, which after q's choice would no longer be P."""
    state = RequestState("r", 0, [1, 2, 3], 2, SamplingParams(), 0, 0, 99, frozenset(), matcher=Only(5, 6))
    distributions = [DraftDistribution()] * 4 if with_distributions else None
    assert state.usable_drafts(DraftBlock([5, 6, 7, 5], distributions=distributions)) == kept
    assert state.usable_drafts(DraftBlock([5, 6], distributions=(distributions or [])[:2])) == 2
