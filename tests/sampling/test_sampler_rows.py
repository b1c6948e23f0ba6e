"""Rows do not see each other; the tensor code equals the definition; broken input never gives a wrong id."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import make_row, reference_gumbel, reference_sample

from slipstream.request import RequestError, SamplingParams
from slipstream.sampling.noise import noise_key
from slipstream.sampling.sampler import LogitsError, Sampler, check_sampling, first_argmax

VOCAB = 12
token_ids = st.integers(0, VOCAB - 1)

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([1.0, 0.9, 0.31]),
    top_k=st.sampled_from([0, 1, 3, VOCAB + 5]),
    min_p=st.sampled_from([0.0, 0.07, 0.6]),
    min_tokens=st.integers(0, 6),
    logit_bias=st.dictionaries(token_ids, st.sampled_from([-100.0, -1.5, 0.75, 100.0]), max_size=2),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logprobs=st.sampled_from([None, 0, 3]),
)


@st.composite
def sample_rows(draw):
    drafts = draw(st.lists(token_ids, max_size=4))
    return make_row(
        draw(params),
        seed=draw(st.integers(-(2**70), 2**70)),
        choice_index=draw(st.integers(0, 3)),
        prompt=draw(st.lists(token_ids, min_size=1, max_size=6)),
        output=draw(st.lists(token_ids, max_size=6)),
        drafts=drafts,
        num_drafts=draw(st.integers(0, len(drafts))),
        stop_token_ids=draw(st.frozensets(token_ids, max_size=2)),
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(sample_rows(), min_size=1, max_size=6), st.integers(0, 2**31), st.randoms(use_true_random=False))
def test_every_row_is_the_definition_whatever_the_batch(rows, torch_seed, random):
    generator = torch.Generator().manual_seed(torch_seed)
    # Quarters, so that there are ties.
    logits = (torch.randn(len(rows), VOCAB, generator=generator, dtype=torch.float64) * 8).round() / 4
    untouched = logits.clone()
    sampler = Sampler(VOCAB)
    sampled = sampler.sample(logits, rows)
    assert torch.equal(logits, untouched)
    for i, row in enumerate(rows):
        key = noise_key(row.seed, row.choice_index, row.output_position)
        assert sampled.token_ids[i] == reference_sample(logits[i].tolist(), row, key)
    order = list(range(len(rows)))
    random.shuffle(order)
    order = order[: random.randint(1, len(order))]
    shuffled = sampler.sample(logits[order], [rows[i] for i in order])
    assert shuffled.token_ids == [sampled.token_ids[i] for i in order]
    assert shuffled.logprobs == [sampled.logprobs[i] for i in order]


@pytest.mark.parametrize("temperature", [0.02, 0.7, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_narrowing_never_loses_the_winner(temperature, spread):
    """The draw against a brute-force float64 argmax over every token's score."""
    vocab_size, num_rows = 3_001, 60
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * spread
    rows = [make_row(SamplingParams(temperature=temperature), seed=seed) for seed in range(num_rows)]
    noise = torch.tensor(
        [[reference_gumbel(noise_key(s, 0, 0), t) for t in range(vocab_size)] for s in range(num_rows)],
        dtype=torch.float64,
    )
    expected = (logits.double() / temperature + noise).argmax(-1).tolist()
    assert Sampler(vocab_size).sample(logits, rows).token_ids == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_large_rows_do_not_depend_on_batch_order_or_threads(dtype):
    vocab_size, num_rows = 49_152, 13  # more rows than one chunk holds
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(num_rows, vocab_size, generator=generator) * 3).to(dtype)
    kinds = [
        SamplingParams(logprobs=2),
        SamplingParams(temperature=0.0, logprobs=2),
        SamplingParams(temperature=2.0),
        SamplingParams(top_p=0.9, logprobs=1),
        SamplingParams(top_k=50, top_p=0.5),
        SamplingParams(min_p=0.01),
        SamplingParams(repetition_penalty=1.2, presence_penalty=0.5),
    ]
    rows = [make_row(kinds[i % len(kinds)], seed=i, prompt=range(50)) for i in range(num_rows)]
    sampler = Sampler(vocab_size)
    together = sampler.sample(logits, rows)
    order = torch.randperm(num_rows, generator=generator).tolist()
    permuted = sampler.sample(logits[order], [rows[i] for i in order])
    assert permuted.token_ids == [together.token_ids[i] for i in order]
    assert permuted.logprobs == [together.logprobs[i] for i in order]
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        for i, row in enumerate(rows):
            alone = sampler.sample(logits[i : i + 1], [row])
            assert alone.token_ids == [together.token_ids[i]]
    finally:
        torch.set_num_threads(threads)
    for i, row in enumerate(rows):
        assert sampler.sample(logits[i : i + 1], [row]).logprobs == [together.logprobs[i]]


@pytest.mark.parametrize("vocab_size", [1, 3, 255, 256, 257, 1000, 1024])
def test_first_argmax_takes_the_first_of_equals(vocab_size):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randint(-3, 4, (50, vocab_size), generator=generator).float()
    token_ids, values = first_argmax(logits)
    assert token_ids.tolist() == [row.index(max(row)) for row in logits.tolist()]
    assert values.tolist() == [max(row) for row in logits.tolist()]


def test_lowest_id_wins_ties_when_greedy():
    logits = torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    assert Sampler(3).sample(logits, [make_row(SamplingParams(temperature=0.0))] * 2).token_ids == [1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-30, 1.0, 100.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}, {"frequency_penalty": 0.1}])
def test_broken_logits_never_give_an_impossible_id(temperature, filters):
    nan, inf = math.nan, math.inf
    logits = torch.tensor([[nan, 1.0, -inf, 0.0], [inf, 1.0, nan, inf], [-inf, -inf, 2.0, -inf], [3e38, -3e38, 0, 0]])
    possible = [{1, 3}, {0, 3}, {2}, {0}]
    for seed in range(20):
        rows = [make_row(SamplingParams(temperature=temperature, logprobs=2, **filters), seed=seed)] * 4
        sampled = Sampler(4).sample(logits, rows)
        assert all(token_id in ids for token_id, ids in zip(sampled.token_ids, possible, strict=True))
        assert all(math.isfinite(entry.logprob) for entry in sampled.logprobs)


def test_rows_without_a_usable_logit_are_named_and_the_others_can_be_sampled():
    logits = torch.tensor([[1.0, 0.0], [math.nan, math.nan], [0.0, 1.0], [-math.inf, math.nan]])
    rows = [make_row(SamplingParams(temperature=0.0))] * 4
    with pytest.raises(LogitsError, match=r"rows \[1, 3\]") as caught:
        Sampler(2).sample(logits, rows)
    assert caught.value.rows == [1, 3]
    assert Sampler(2).sample(logits[[0, 2]], rows[:2]).token_ids == [0, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_if_everything_is_forbidden_the_best_original_token_stays(temperature):
    sampling = SamplingParams(temperature=temperature, min_tokens=3)
    row = make_row(sampling, stop_token_ids=frozenset({0, 1, 2}))
    assert Sampler(3).sample(torch.tensor([[0.0, 2.0, 1.0]]), [row]).token_ids == [1]


def test_the_wrong_shape_is_refused_and_no_rows_are_fine():
    with pytest.raises(ValueError, match=r"\(1, 3\), got \(1, 4\)"):
        Sampler(3).sample(torch.zeros(1, 4), [make_row(SamplingParams())])
    assert Sampler(3).sample(torch.zeros(0, 3), []).token_ids == []


@pytest.mark.parametrize("parameter", ["logit_bias", "stop_token_ids"])
@pytest.mark.parametrize("token_id", [-1, 10, 10**12])
def test_ids_outside_the_vocabulary_are_refused_by_name(parameter, token_id):
    sampling = SamplingParams(**{parameter: {token_id: 1.0} if parameter == "logit_bias" else (3, token_id)})
    with pytest.raises(RequestError, match=rf"{parameter} names token id {token_id}.* 0 to 9") as caught:
        check_sampling(sampling, 10)
    assert caught.value.parameter == parameter
    check_sampling(SamplingParams(logit_bias={0: 1.0, 9: 1.0}, stop_token_ids=(0, 9)), 10)


def test_an_unchecked_bias_is_refused_too():
    with pytest.raises(RequestError, match="logit_bias"):
        Sampler(3).sample(torch.zeros(1, 3), [make_row(SamplingParams(logit_bias={-1: 5.0}))])


@pytest.mark.parametrize("penalty", [1e-40, 5e-324, 1e300])
@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 3, "min_p": 0.1}, {"top_p": 0.5}, {"temperature": 0.0}, {"top_k": 1}]
)
def test_penalties_beyond_the_type_never_make_nan(penalty: float, filters: dict[str, float]) -> None:
    """A penalty that takes logits to infinity picks a real token, in this row and in no other."""
    sampling = extreme_penalty(penalty, **filters)
    logits = torch.tensor([[2.0, 1.0, -1.0, 0.5], [0.0, 3.0, 1.0, 0.0]])
    bystander = make_row(SamplingParams(temperature=0.0))
    sampled = Sampler(4).sample(logits, [make_row(sampling, prompt=(0, 2), output=(1,)), bystander])
    assert 0 <= sampled.token_ids[0] < 4
    assert sampled.token_ids[1] == 1


def extreme_penalty(penalty: float, **filters: float) -> SamplingParams:
    """Past the checks of SamplingParams, as a direct caller could do."""
    sampling = SamplingParams(**filters)  # type: ignore[arg-type]
    object.__setattr__(sampling, "repetition_penalty", penalty)
    return sampling
