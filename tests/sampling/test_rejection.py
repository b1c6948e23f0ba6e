"""The textbook rejection rule: against its definition path by path, and in law."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
from pairwise import pairwise_rows
from sampling.rejection_reference import chain_law, chi_square, part_of, reference_judge, softmax, speculate
from sampling.sampling_reference import chi_square_bound, make_row, processed_distribution

from slipstream.request import SamplingParams
from slipstream.sampling.acceptance import rejection_match_probability
from slipstream.sampling.noise import NoiseStream, noise_key, stream_key, uniform
from slipstream.sampling.rejection import DrawnDistribution
from slipstream.sampling.sampler import Sampler
from slipstream.scheduler.protocol import DraftDistribution, DraftRequest, SampleRow
from slipstream.speculation.draft_sampling import DraftSampler

FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "penalties": {"presence_penalty": 0.7, "repetition_penalty": 1.3, "logit_bias": {2: 1.5}},
}


def table(seed: int, rows: int, columns: int, scale: float = 1.2) -> torch.Tensor:
    """Random logits of the next token after each token."""
    return scale * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TARGET, DRAFT = table(1, 5, 5), table(2, 5, 5)


def drawn(logits: torch.Tensor, temperature: float, target_ids: list[int] | None = None) -> DrawnDistribution:
    ids = range(len(logits)) if target_ids is None else target_ids
    return DrawnDistribution(logits, torch.tensor(list(ids)), temperature)


def judged_row(
    seed: int, sampling: SamplingParams, distribution: DraftDistribution, drafts: list[int], column: int
) -> SampleRow:
    row = make_row(sampling, seed=seed, prompt=[3, 1], output=[0, 4], drafts=drafts, num_drafts=column)
    row.draft_distribution = distribution
    return row


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_rows_are_judged_as_the_definition_says(filters: str, temperature: float) -> None:
    sampling, vocab_size = SamplingParams(temperature=temperature, **FILTERS[filters]), 9
    random_, rows, logits, expected = random.Random(5), [], [], []
    for seed in range(40):
        target, draft = table(seed, 1, vocab_size)[0], table(seed + 1000, 1, vocab_size)[0]
        drafts, column = [random_.randrange(vocab_size) for _ in range(4)], seed % 4
        row = judged_row(seed, sampling, drawn(draft, temperature), drafts, column)
        p, q = processed_distribution(target.tolist(), row), softmax(draft.tolist(), temperature)
        rows.append(row)
        logits.append(target)
        key = noise_key(seed, 0, row.output_position)
        expected.append(reference_judge(p, q, drafts[column], key, column))
    assert Sampler(vocab_size).sample(torch.stack(logits), rows).token_ids == expected
    accepted = sum(token == row.draft_token_ids[row.num_drafts] for token, row in zip(expected, rows, strict=True))
    assert 2 < accepted < 38


# -- law -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("temperature", "filters", "method"),
    [
        (0.5, "top-k", "probabilistic"),
        (1.0, "plain", "probabilistic"),
        (1.5, "top-p", "probabilistic"),
        (1.0, "penalties", "probabilistic"),
        (1.5, "plain", "greedy"),
    ],
)
def test_tokens_and_pairs_have_the_targets_law(temperature: float, filters: str, method: str) -> None:
    """Whole q and one-hot, over several rounds."""
    sampling, num_seeds = SamplingParams(temperature=temperature, **FILTERS[filters]), 500
    chains = speculate(TARGET, DRAFT, sampling, num_seeds, num_tokens=4, num_drafts=3, method=method)
    law = chain_law(TARGET, sampling, 4)
    for start, length in ((0, 1), (0, 2), (1, 2), (2, 2), (3, 1)):
        observed = [tuple(text[start : start + length]) for text in chains.token_ids]
        statistic, degrees = chi_square(observed, part_of(law, start, length))
        assert statistic < chi_square_bound(max(degrees, 1)), (start, length)
    assert 0.05 < chains.acceptance < 0.98, "some accepted, some refused"


LAW_FACTORS: dict[str, list[Any]] = {
    "temperature": [0.5, 1.0, 1.5],
    "filters": list(FILTERS),
    "method": ["probabilistic", "greedy"],
    "num_drafts": [1, 2, 5],
}
PAIRS = [tuple(row[name] for name in LAW_FACTORS) for row in pairwise_rows(LAW_FACTORS)]
LAW_CASES = [
    pytest.param(*case, marks=() if case in PAIRS else pytest.mark.exhaustive)
    for case in itertools.product(*LAW_FACTORS.values())
]
"""Every two levels of every two factors meet in CI, all of them in `make test-exhaustive`."""


@pytest.mark.slow
@pytest.mark.parametrize(tuple(LAW_FACTORS), LAW_CASES)
def test_whole_texts_have_the_targets_law(temperature: float, filters: str, method: str, num_drafts: int) -> None:
    sampling = SamplingParams(temperature=temperature, **FILTERS[filters])
    chains = speculate(TARGET, DRAFT, sampling, 2_000, num_tokens=4, num_drafts=num_drafts, method=method)
    statistic, degrees = chi_square([tuple(text) for text in chains.token_ids], chain_law(TARGET, sampling, 4))
    assert statistic < chi_square_bound(max(degrees, 1))


def test_another_q_than_the_drafts_would_give_another_law() -> None:
    """That the tests above can fail."""
    num_seeds = 1000
    requests = [DraftRequest("r", [0], 1, 1, SamplingParams(), seed, 0) for seed in range(num_seeds)]
    chooser = DraftSampler(torch.arange(5), 5, "probabilistic").chooser(requests)
    drafts = chooser(0, DRAFT[0].expand(num_seeds, 5)).tolist()
    rows = [
        SampleRow(SamplingParams(), seed, 0, frozenset(), [0], 1, [draft], 0, drawn(DRAFT[0].roll(1), 1.0))
        for seed, draft in enumerate(drafts)
    ]
    tokens = Sampler(5).sample(TARGET[0].expand(num_seeds, 5), rows).token_ids
    statistic, degrees = chi_square([(token,) for token in tokens], chain_law(TARGET, SamplingParams(), 1))
    assert statistic > 2 * chi_square_bound(degrees)


def test_a_lost_q_costs_acceptance_and_not_the_law() -> None:
    """Its draft is judged by equality with a sample that knows nothing of it: accepted sum p q of the time."""
    num_seeds = 1000
    lost = speculate(TARGET, DRAFT, SamplingParams(), num_seeds, num_tokens=2, num_drafts=2, loses_q=True)
    statistic, degrees = chi_square([tuple(text) for text in lost.token_ids], chain_law(TARGET, SamplingParams(), 2))
    assert statistic < chi_square_bound(degrees)
    p, q = (softmax(logits[0].tolist(), 1.0) for logits in (TARGET, DRAFT))
    expected = sum(a * b for a, b in zip(p, q, strict=True))
    once = speculate(TARGET, DRAFT, SamplingParams(), num_seeds, loses_q=True)
    assert once.acceptance == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / num_seeds))


def test_equal_distributions_accept_every_draft() -> None:
    for seed, temperature in ((1, 0.5), (2, 1.0), (3, 1.5)):
        same = table(seed, 7, 7)
        chains = speculate(same, same, SamplingParams(temperature=temperature), 60, num_tokens=6, num_drafts=5)
        assert chains.acceptance == 1.0


def test_disjoint_distributions_accept_none_and_give_the_target() -> None:
    target, draft = torch.full((6, 6), -math.inf).double(), torch.full((6, 6), -math.inf).double()
    target[:, :3], draft[:, 3:] = TARGET[[0, 1, 2, 3, 4, 0], :3], DRAFT[[0, 1, 2, 3, 4, 0], :3]
    chains = speculate(target, draft, SamplingParams(), 500, num_tokens=2, num_drafts=2)
    assert sum(chains.accepted) == 0
    first, *after = (softmax(row, 1.0) for row in [target[0, :3].tolist(), *target[:3, :3].tolist()])
    law = {(a, b): first[a] * after[a][b] for a in range(3) for b in range(3)}
    statistic, degrees = chi_square([tuple(text) for text in chains.token_ids], law)
    assert statistic < chi_square_bound(degrees)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_reduced_vocabulary(temperature: float) -> None:
    """q = 0 outside it; the draft's id is the target's."""
    target, draft, ids = table(5, 8, 8), table(6, 8, 3), [1, 4, 6]
    sampling = SamplingParams(temperature=temperature)
    chains = speculate(target, draft, sampling, 800, num_tokens=2, num_drafts=2, target_ids=ids)
    statistic, degrees = chi_square([tuple(text) for text in chains.token_ids], chain_law(target, sampling, 2))
    assert statistic < chi_square_bound(degrees)
    whole = torch.full((8,), -math.inf).double()
    whole[ids] = draft[0]
    assert drawn(draft[0], temperature, ids).dense(8).tolist() == pytest.approx(softmax(whole.tolist(), temperature))
    assert sum(chains.accepted) > 0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_drafts_are_accepted_as_often_as_one_minus_the_total_variation(temperature: float) -> None:
    num_seeds = 1500
    chains = speculate(TARGET, DRAFT, SamplingParams(temperature=temperature), num_seeds)
    p, q = (softmax(logits[0].tolist(), temperature) for logits in (TARGET, DRAFT))
    expected = rejection_match_probability(p, q)
    assert expected == pytest.approx(1 - 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True)))
    assert chains.acceptance == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / num_seeds))


@pytest.mark.parametrize(("trials", "tolerance"), [(1_500, 0.045), pytest.param(50_000, 0.008, marks=pytest.mark.slow)])
def test_G2_q_is_what_the_drafts_were_drawn_from(trials: int, tolerance: float) -> None:
    """A drafter that keeps its two likeliest tokens: q is of those two, and the law is the target's all the same."""
    kept = DRAFT[:1].topk(2).indices[0].tolist()
    draft = torch.full_like(DRAFT, -math.inf)
    draft[:, kept] = DRAFT[:, kept]
    sampling = SamplingParams(top_k=4)
    asked = DraftRequest("r", [0], 1, 1, sampling, 3, 0)
    chooser = DraftSampler(torch.arange(5), 5, "probabilistic").chooser([asked])
    chooser(0, draft[:1])
    [q] = chooser.distributions(0)
    assert isinstance(q, DrawnDistribution)
    assert sorted(torch.nonzero(q.dense(5)).flatten().tolist()) == sorted(kept) and float(
        q.dense(5).sum()
    ) == pytest.approx(1)
    law = chain_law(TARGET, sampling, 1)
    chains = speculate(TARGET, draft, sampling, trials)
    assert len(law) == 4
    for (token,), chance in law.items():
        assert sum(text == [token] for text in chains.token_ids) / trials == pytest.approx(chance, abs=tolerance)


# -- rows and batches ------------------------------------------------------------------------------------------------


def test_batches_do_not_matter() -> None:
    """Permuted, padded with others, alone: the same tokens for the same seeds."""
    sampler, rows, logits = Sampler(40), [], table(7, 60, 40)
    for seed in range(60):
        sampling = SamplingParams(temperature=0.5 + seed % 3 * 0.5, top_k=seed % 2 * 7)
        if seed % 5 == 0:
            rows.append(make_row(sampling, seed=seed))
            continue
        distribution = drawn(table(seed, 1, 40)[0], sampling.temperature)
        rows.append(judged_row(seed, sampling, distribution, [seed % 40, (3 * seed) % 40], seed % 2))
    whole = sampler.sample(logits, rows).token_ids
    order = list(range(60))
    random.Random(1).shuffle(order)
    shuffled = sampler.sample(logits[order], [rows[i] for i in order]).token_ids
    assert [shuffled[order.index(i)] for i in range(60)] == whole
    assert [sampler.sample(logits[i : i + 1], [rows[i]]).token_ids[0] for i in range(60)] == whole


def test_a_large_vocabulary_is_judged_in_pieces() -> None:
    vocab_size = 100_000  # two rows of these are judged at a time
    logits, draft = table(8, 7, vocab_size), table(9, 1, vocab_size)[0]
    rows = [judged_row(seed, SamplingParams(), drawn(draft, 1.0), [int(draft.argmax())], 0) for seed in range(7)]
    sampler = Sampler(vocab_size)
    assert sampler.sample(logits, rows).token_ids == [
        sampler.sample(logits[i : i + 1], [rows[i]]).token_ids[0] for i in range(7)
    ]


def test_greedy_requests_take_no_notice_of_q() -> None:
    sampling = SamplingParams(temperature=0.0)
    rows = [judged_row(seed, sampling, drawn(DRAFT[0], 1.0), [seed % 5], 0) for seed in range(5)]
    assert Sampler(5).sample(TARGET[:1].expand(5, 5), rows).token_ids == [int(TARGET[0].argmax())] * 5
    asked = DraftRequest("r", [0], 1, 1, sampling, 3, 0)
    chooser = DraftSampler(torch.arange(5), 5, "probabilistic").chooser([asked])
    assert int(chooser(0, DRAFT[:1])) == int(DRAFT[0].argmax())
    assert chooser.distributions(0) == ()


def test_a_refused_draft_is_never_drawn_again() -> None:
    """Else the engine would take it for accepted: wherever u refuses x, the residual leaves x out."""
    rows, expected = [], 0
    for seed in range(500):
        row = judged_row(seed, SamplingParams(), drawn(DRAFT[0], 1.0), [2], 0)
        u = uniform(stream_key(noise_key(seed, 0, row.output_position), NoiseStream.ACCEPTANCE, 0))
        expected += u * softmax(DRAFT[0].tolist(), 1.0)[2] < softmax(TARGET[0].tolist(), 1.0)[2]
        rows.append(row)
    tokens = Sampler(5).sample(TARGET[:1].expand(500, 5), rows).token_ids
    assert 0 < tokens.count(2) == expected < 500


def test_a_distribution_of_another_kind_is_an_error() -> None:
    row = judged_row(0, SamplingParams(), DraftDistribution(), [2], 0)
    with pytest.raises(TypeError, match="of which this sampler knows nothing"):
        Sampler(5).sample(TARGET[:1], [row])


def test_streams_of_noise_have_nothing_in_common() -> None:
    keys = [noise_key(seed, choice, position) for seed in range(5) for choice in range(2) for position in range(50)]
    every = set(keys)
    for stream in NoiseStream:
        for column in range(8):
            every.update(stream_key(key, stream, column) for key in keys)
    assert len(every) == len(keys) * (1 + 8 * len(NoiseStream))
    numbers = [uniform(key) for key in every]
    assert min(numbers) > 0 and max(numbers) < 1
    counts = [0] * 20
    for number in numbers:
        counts[int(number * 20)] += 1
    expected = len(numbers) / 20
    assert sum((count - expected) ** 2 / expected for count in counts) < chi_square_bound(19)
