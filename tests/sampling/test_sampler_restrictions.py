"""Tokens that must not be sampled, or must: allowed ids, bad words, the bound of the reasoning; at draft rows too."""

from __future__ import annotations

import itertools

import pytest
import torch
from sampling_reference import decode, make_row

from slipstream.request import RequestError, SamplingParams, ThinkingBudget
from slipstream.sampling.processing import check_sampling
from slipstream.sampling.sampler import Sampler

LOGITS = [0.5, 3.0, 0.2, 0.1, 0.0, -0.5, 1.0, -2.0]
START, END = (6,), (7, 5)


def always(prefix: list[int]) -> list[float]:
    return LOGITS


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_G20_only_allowed_tokens(num_drafts: int, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, allowed_token_ids=(2, 3))
    plain, _ = decode(always, sampling, 30)
    assert set(plain) <= {2, 3} and (temperature == 0.0 or len(set(plain)) == 2)
    drafted, _ = decode(always, sampling, 30, propose=lambda prefix: [1] * num_drafts)
    assert drafted == plain


@pytest.mark.parametrize("num_drafts", [0, 1, 4])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_G20_bad_words_are_never_completed(num_drafts: int, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, bad_words_token_ids=((1, 1), (0,), (6, 1, 6)))
    plain, _ = decode(always, sampling, 60)
    pairs = list(itertools.pairwise(plain))
    assert (1, 1) not in pairs and 0 not in plain and 1 in plain
    assert (6, 1, 6) not in list(zip(plain, plain[1:], plain[2:], strict=False))
    drafted, accepted = decode(always, sampling, 60, propose=lambda p: plain[len(p) - 1 :][:num_drafts])
    assert drafted == plain and (accepted > 0 or num_drafts == 0)
    wrong, _ = decode(always, sampling, 60, propose=lambda p: [1] * num_drafts)
    assert wrong == plain, "drafts that complete a bad word are refused, and nothing else changes"


def test_bad_words_look_at_the_output_only() -> None:
    row = make_row(SamplingParams(temperature=0.0, bad_words_token_ids=((1, 1),)), prompt=(0, 1))
    assert Sampler(8).sample(torch.tensor([LOGITS]), [row]).token_ids == [1]


def test_S8_the_budget_forces_the_marker_at_every_draft_offset() -> None:
    """The model opens its reasoning, goes on for ever, and is stopped after exactly `budget` tokens."""

    def thinks(prefix: list[int]) -> list[float]:
        logits = list(LOGITS)
        logits[6 if len(prefix) == 1 else 1] = 9.0
        return logits

    for budget in (0, 1, 10):
        sampling = SamplingParams(temperature=0.0, thinking=ThinkingBudget(budget, START, END, False))
        expected = [6, *[1] * budget, 7, 5, *[1] * 5]
        for num_drafts in (0, 1, 3, 7):
            tokens, accepted = decode(
                thinks,
                sampling,
                len(expected),
                propose=lambda p, n=num_drafts, e=expected: e[len(p) - 1 :][:n],  # type: ignore[misc]
            )
            assert tokens == expected and (accepted > 0 or num_drafts == 0)
            eager, _ = decode(thinks, sampling, len(expected), propose=lambda p, n=num_drafts: [1] * n)  # type: ignore[misc]
            assert eager == expected, "drafts past the budget are refused"


@pytest.mark.parametrize(
    ("output", "is_open", "forced"),
    [
        ([], True, None),
        ([1, 1], True, 7),
        ([1, 1, 7], True, 5),
        ([1, 1, 7, 5], True, None),
        ([1, 7, 5, 1, 1, 1], True, None),
        ([1, 1, 1, 1], False, None),
        ([6, 1], False, None),
        ([6, 1, 1], False, 7),
        ([0, 6, 1, 1], False, 7),
    ],
)
def test_when_a_token_is_forced(output: list[int], is_open: bool, forced: int | None) -> None:
    assert ThinkingBudget(2, START, END, is_open).forced_token(output) == forced


def test_allowed_ids_outside_the_vocabulary_are_refused_by_name() -> None:
    with pytest.raises(RequestError, match="allowed_token_ids names token id 8") as caught:
        check_sampling(SamplingParams(allowed_token_ids=(1, 8)), 8)
    assert caught.value.parameter == "allowed_token_ids"
