"""Faults that users of other engines met (ids of the case collection), at the level of the sampler."""

import math

import pytest
import torch
from sampling_reference import decode, make_row

from slipstream.request import SamplingParams
from slipstream.sampling.sampler import Sampler

GREEDY = SamplingParams(temperature=0.0)


def constant(logits):
    return lambda prefix: logits


def oracle(plain, prompt_length, num_drafts):
    """Drafts that are always right."""
    return lambda prefix: plain[len(prefix) - prompt_length :][:num_drafts]


def ragged(plain, prompt_length, num_drafts):
    """Right drafts, 0 to K of them by turn, the last one wrong every fourth time."""

    def propose(prefix):
        done = len(prefix) - prompt_length
        drafts = plain[done:][: done % (num_drafts + 1)]
        return [*drafts[:-1], (drafts[-1] + 1) % 3] if drafts and done % 4 == 3 else drafts

    return propose


@pytest.mark.parametrize("num_drafts", range(9))
def test_G6_no_token_is_counted_twice_at_draft_positions(num_drafts):
    target, sampling = constant([3.0, 2.75, 1.93]), SamplingParams(temperature=0.0, frequency_penalty=0.4)
    expected = [0, 1, 0, 1, 0, 1, 2, 0, 1, 2]
    for drafter in (oracle, ragged):
        tokens, accepted = decode(target, sampling, 10, propose=drafter(expected, 1, num_drafts))
        assert tokens == expected
        assert accepted > 0 or num_drafts == 0


def test_G6_one_batch_of_draft_rows():
    expected = [0, 1, 0, 1, 0, 1, 2, 0, 1, 2]
    sampling = SamplingParams(temperature=0.0, frequency_penalty=0.4)
    rows = [make_row(sampling, drafts=expected, num_drafts=i) for i in range(10)]
    logits = torch.tensor([[3.0, 2.75, 1.93]], dtype=torch.float64).expand(10, 3)
    assert Sampler(3).sample(logits, rows).token_ids == expected


@pytest.mark.parametrize("num_drafts", [0, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_G4_logit_bias_is_obeyed_at_every_draft_position(num_drafts, temperature):
    logits = [0.5, 3.0, 0.2, 0.1, 0.0, -0.5, 1.0, -2.0]
    banned = SamplingParams(temperature=temperature, logit_bias={1: -100.0})
    plain, _ = decode(constant(logits), banned, 20)
    tokens, _ = decode(constant(logits), banned, 20, propose=lambda prefix: [1] * num_drafts)
    assert 1 not in tokens and tokens == plain
    forced = SamplingParams(temperature=temperature, logit_bias={7: 100.0})
    tokens, accepted = decode(constant(logits), forced, 20, propose=lambda prefix: [7] * num_drafts)
    assert tokens == [7] * 20
    assert accepted > 0 or num_drafts == 0


@pytest.mark.parametrize("penalty", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_G7_penalties_change_the_text_and_drafts_do_not(penalty):
    def target(prefix):
        return [2.0 if token_id == 3 else 1.7 - 0.05 * token_id for token_id in range(6)]

    sampling = SamplingParams(temperature=0.0, **{penalty: 1.3})
    plain, _ = decode(target, sampling, 30)
    assert decode(target, GREEDY, 30)[0] == [3] * 30
    assert plain != [3] * 30
    tokens, accepted = decode(target, sampling, 30, propose=oracle(plain, 1, 5))
    assert tokens == plain and accepted > 0
    assert decode(target, sampling, 30, propose=lambda prefix: [3] * 5)[0] == plain


def test_G7_repetition_covers_the_prompt_and_the_others_do_not():
    logits = torch.tensor([[1.0, 0.9, -1.0]], dtype=torch.float64)
    sampler = Sampler(3)
    repetition = SamplingParams(temperature=0.0, repetition_penalty=1.3)
    assert sampler.sample(logits, [make_row(repetition, prompt=[0])]).token_ids == [1]
    for name in ("frequency_penalty", "presence_penalty"):
        row = make_row(SamplingParams(temperature=0.0, **{name: 1.0}), prompt=[0])
        assert sampler.sample(logits, [row]).token_ids == [0]
    negative = torch.tensor([[-1.0, -1.1]], dtype=torch.float64)  # a negative logit is multiplied, not divided
    assert Sampler(2).sample(negative, [make_row(repetition, prompt=[0])]).token_ids == [1]


@pytest.mark.parametrize("num_drafts", [0, 1, 3, 7])
@pytest.mark.parametrize("drafted", ["eos", "oracle"])
def test_G8_min_tokens_is_exact(num_drafts, drafted):
    eos, logits = 2, [0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 4.0]
    expected = [7, 7, 7, 7, eos]
    propose = oracle(expected, 1, num_drafts) if drafted == "oracle" else lambda prefix: [eos] * num_drafts
    sampling = SamplingParams(temperature=0.0, min_tokens=4)
    tokens, _ = decode(constant(logits), sampling, 10, propose=propose, stop_token_ids=frozenset({eos}))
    assert tokens == expected


def test_G8_rows_of_a_mixed_batch_equal_their_solo_runs():
    stop = frozenset({2})
    penalty = SamplingParams(temperature=0.0, repetition_penalty=1.5)
    late = SamplingParams(temperature=0.0, min_tokens=3)
    rows = [
        make_row(penalty, prompt=[1, 2], output=[2]),
        *(make_row(GREEDY, drafts=[2, 7, 1], num_drafts=i, stop_token_ids=stop) for i in range(4)),
        make_row(late, stop_token_ids=stop),
    ]
    logits = torch.tensor([[0.0, 1.0, 5.0, 0.0, 0.0, 0.0, 0.0, 4.0]], dtype=torch.float64).repeat(6, 1)
    sampler = Sampler(8)
    together = sampler.sample(logits, rows).token_ids
    assert together == [sampler.sample(logits[i : i + 1], [row]).token_ids[0] for i, row in enumerate(rows)]
    assert together == [7, 2, 2, 2, 2, 7]


def test_G10_seeds_are_honoured():
    def target(prefix):
        return [math.sin(3.0 * token_id + len(prefix)) for token_id in range(50)]

    runs = [decode(target, SamplingParams(temperature=2.0), 10, seed=42)[0] for _ in range(5)]
    assert all(run == runs[0] for run in runs)
    others = [decode(target, SamplingParams(temperature=2.0), 10, seed=seed)[0] for seed in range(20)]
    assert len({tuple(run) for run in [*others, runs[0]]}) == 21


def test_G10_choices_and_positions_draw_anew():
    logits = torch.zeros(100, 1000)
    by_choice = Sampler(1000).sample(logits, [make_row(SamplingParams(), choice_index=i) for i in range(100)])
    by_position = Sampler(1000).sample(logits, [make_row(SamplingParams(), output=[0] * i) for i in range(100)])
    assert len(set(by_choice.token_ids)) > 80
    assert len(set(by_position.token_ids)) > 80


def test_G11_parallel_requests_equal_their_solo_runs():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 500, generator=generator) * 2
    rows = [make_row(SamplingParams(temperature=1.5), seed=seed) for seed in range(8)]
    sampler = Sampler(500)
    solo = [sampler.sample(logits[i : i + 1], [row]).token_ids[0] for i, row in enumerate(rows)]
    assert sampler.sample(logits, rows).token_ids == solo


def test_G13_verify_rows_replay_the_plain_stream():
    def target(prefix):
        return [3.0 * math.sin(1.7 * token_id + 0.9 * prefix[-1] + 0.1 * len(prefix)) for token_id in range(40)]

    sampling = SamplingParams(temperature=1.0, top_p=0.95)
    plain, _ = decode(target, sampling, 200, seed=7)
    assert len(set(plain)) > 10
    for num_drafts in (3, 7):
        for propose in (oracle(plain, 1, num_drafts), ragged(plain, 1, num_drafts)):
            tokens, accepted = decode(target, sampling, 200, seed=7, propose=propose)
            assert tokens == plain and accepted > 0


def test_G16_greedy_row_beside_a_top_k_row_gives_the_vocabulary_id():
    logits = torch.tensor([[-8.0, -3.0, -2.0, -1.0, 0.0, 9.0, 1.0, 2.0]]).repeat(3, 1)
    rows = [make_row(SamplingParams(top_k=3), seed=1), make_row(GREEDY), make_row(SamplingParams(top_k=3), seed=2)]
    tokens = Sampler(8).sample(logits, rows).token_ids
    assert tokens[1] == 5
    assert {tokens[0], tokens[2]} <= {5, 6, 7}
    for draft, expected in ((5, 1), (0, 0)):
        accepted = decode(constant(logits[0].tolist()), GREEDY, 2, propose=lambda prefix, d=draft: [d])[1]
        assert accepted == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_L2_logprobs_are_those_of_the_raw_logits_at_draft_rows_too(temperature):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 300, generator=generator, dtype=torch.float64) * 3
    sampling = SamplingParams(temperature=temperature, logprobs=4, top_k=20, logit_bias={5: 4.0})
    sampler = Sampler(300)
    rows = [make_row(sampling, drafts=[1, 2, 3, 4, 5], num_drafts=i) for i in range(6)]
    sampled = sampler.sample(logits, rows)
    expected = torch.log_softmax(logits, dim=-1)
    for i, entry in enumerate(sampled.logprobs):
        token_id = sampled.token_ids[i]
        assert entry.logprob == pytest.approx(float(expected[i, token_id]), abs=1e-12)
        assert entry.rank == 1 + int((logits[i] > logits[i, token_id]).sum())
        best = expected[i].topk(4)
        assert [t for t, _ in entry.top] == best.indices.tolist()
        assert [p for _, p in entry.top] == pytest.approx(best.values.tolist(), abs=1e-12)
        assert sampler.sample(logits[i : i + 1], [rows[i]]).logprobs == [entry]
    assert len({entry.logprob for entry in sampled.logprobs}) == 6


def test_logprobs_order_equals_by_id_and_leave_out_the_impossible():
    logits = torch.tensor([[1.0, 2.0, 2.0, -math.inf, 2.0]])
    entry = Sampler(5).sample(logits, [make_row(SamplingParams(temperature=0.0, logprobs=5))]).logprobs[0]
    assert [token_id for token_id, _ in entry.top] == [1, 2, 4, 0]
    assert entry.rank == 1
    none, zero = (
        Sampler(5)
        .sample(logits.repeat(2, 1), [make_row(GREEDY), make_row(SamplingParams(temperature=0.0, logprobs=0))])
        .logprobs
    )
    assert none is None
    assert zero.top == () and zero.logprob == entry.logprob
