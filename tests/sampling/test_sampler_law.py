"""Observed frequencies against the exact processed softmax."""

import math

import pytest
import torch
from sampling_reference import chi_square_bound, law, make_row, processed_distribution

from slipstream.request import SamplingParams
from slipstream.sampling.acceptance import coupled_match_probabilities, coupled_match_probability
from slipstream.sampling.sampler import Sampler

LOGITS = [2.0, 1.5, 1.0, 0.25, 0.0, -0.5, -1.0, -3.0]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_G12_law_is_the_softmax_at_the_requests_temperature(temperature):
    sampling = SamplingParams(temperature=temperature)
    expected = processed_distribution(LOGITS, make_row(sampling))
    observed = law(LOGITS, sampling, 200_000)
    assert max(abs(o - e) for o, e in zip(observed, expected, strict=True)) < 0.004


def test_G3_min_p_at_every_position():
    sampling = SamplingParams(min_p=0.5)
    logits = [math.log(p) for p in (0.4, 0.35, 0.15, 0.1)]
    totals = [0.0] * 4
    for num_drafts in range(4):  # the bonus row and the rows before it obey alike
        observed = law(logits, sampling, 5_000, drafts=[2, 2, 2], num_drafts=num_drafts)
        assert observed[2] == observed[3] == 0
        totals = [total + share / 4 for total, share in zip(totals, observed, strict=True)]
    assert totals[:2] == pytest.approx([0.533, 0.467], abs=0.015)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 3},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"top_k": 5, "top_p": 0.7, "min_p": 0.05},
        {"logit_bias": {6: 3.0}, "presence_penalty": 1.0, "repetition_penalty": 1.5},
    ],
)
def test_law_by_chi_square(temperature, filters):
    sampling = SamplingParams(temperature=temperature, **filters)
    prefix = {"prompt": [1, 2], "output": [0, 3, 3]}
    expected = processed_distribution(LOGITS, make_row(sampling, **prefix))
    trials = 3_000
    observed = law(LOGITS, sampling, trials, **prefix)
    assert all(o == 0 for o, e in zip(observed, expected, strict=True) if e == 0)
    cells = [(o, e) for o, e in zip(observed, expected, strict=True) if e > 0]
    if len(cells) > 1:
        assert trials * sum((o - e) ** 2 / e for o, e in cells) < chi_square_bound(len(cells) - 1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_law_without_filters_by_chi_square(temperature):
    sampling, trials = SamplingParams(temperature=temperature), 50_000
    expected = processed_distribution(LOGITS, make_row(sampling))
    observed = law(LOGITS, sampling, trials)
    chi_square = trials * sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    assert chi_square < chi_square_bound(len(LOGITS) - 1)


def test_exact_boundaries_count_as_reached():
    """0.4 + 0.35 reaches top_p = 0.75 and 0.2 reaches min_p = 0.5 of 0.4, whatever the last bits say."""
    logits = [math.log(p) for p in (0.4, 0.35, 0.15, 0.1)]
    assert processed_distribution(logits, make_row(SamplingParams(top_p=0.75)))[2] == 0
    assert law(logits, SamplingParams(top_p=0.75), 2_000)[2:] == [0, 0]
    logits = [math.log(p) for p in (0.4, 0.25, 0.2, 0.15)]
    observed = law(logits, SamplingParams(min_p=0.5), 2_000)
    assert observed[2] > 0.15 and observed[3] == 0


def test_top_k_keeps_exactly_k_and_the_lowest_ids_of_equals():
    observed = law([1.0, 2.0, 2.0, 2.0, 0.0], SamplingParams(top_k=2), 2_000)
    assert observed[1] > 0.4 and observed[2] > 0.4
    assert observed[0] == observed[3] == observed[4] == 0


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ([2.0, 1.0, 0.5, -1.0], [1.0, 2.0, 0.5, 0.0]),
        ([0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0]),
        ([4.0, 1.0, 0.0, -2.0], [3.5, 1.5, 0.5, -1.0]),
    ],
)
def test_coupled_acceptance_matches_the_formula(target, draft):
    """Drafts drawn with the same noise are accepted as often as design 5's formula says."""
    trials, sampler = 20_000, Sampler(4)
    rows = [make_row(SamplingParams(), seed=seed) for seed in range(trials)]
    tokens = [
        sampler.sample(torch.tensor([logits], dtype=torch.float64).expand(trials, 4), rows).token_ids
        for logits in (target, draft)
    ]
    p, q = (processed_distribution(logits, rows[0]) for logits in (target, draft))
    expected = coupled_match_probability(p, q)
    observed = sum(a == b for a, b in zip(*tokens, strict=True)) / trials
    assert observed == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / trials))
    distance = 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))
    assert (1 - distance) / (1 + distance) <= expected <= 1 - distance + 1e-12


def test_coupled_match_probability_at_its_ends():
    assert coupled_match_probability([0.3, 0.7], [0.3, 0.7]) == pytest.approx(1.0)
    assert coupled_match_probability([1.0, 0.0], [0.0, 1.0]) == 0.0
    assert coupled_match_probability([1.0, 0.0], [0.25, 0.75]) == pytest.approx(0.25)


def test_the_formula_over_whole_vocabularies_is_the_double_sum():
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(2, 50, 30, dtype=torch.float64, generator=generator)
    target, draft = logits.softmax(-1)
    target[:, 4], draft[:, 7], draft[:, 9] = 0.0, 0.0, target[:, 9]
    target[10:20, 5] = draft[10:20, 5] = 0.0
    target[20] = draft[20] = 1 / 30  # all ratios equal
    draft[21] = torch.nn.functional.one_hot(torch.tensor(11), 30)
    target, draft = target / target.sum(-1, keepdim=True), draft / draft.sum(-1, keepdim=True)
    expected = [coupled_match_probability(p, q) for p, q in zip(target.tolist(), draft.tolist(), strict=True)]
    assert coupled_match_probabilities(target, draft).tolist() == pytest.approx(expected, abs=1e-12)
    assert expected[20] == pytest.approx(1.0) and expected[21] == pytest.approx(float(target[21, 11]))
    draft[:, 20:] = 0.0
    draft /= draft.sum(-1, keepdim=True)
    expected = [coupled_match_probability(p, q) for p, q in zip(target.tolist(), draft.tolist(), strict=True)]
    assert coupled_match_probabilities(target[:, :20], draft[:, :20]).tolist() == pytest.approx(expected, abs=1e-12)
