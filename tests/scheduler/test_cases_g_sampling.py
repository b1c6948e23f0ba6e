"""Reported faults, kind G: sampling rules and seeds, from end to end over the scripted target.

The rules themselves are tested in tests/sampling, the API in tests/server. The ids are those of tests/cases.toml.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from case_rig import DRAFTERS, EOS, VOCAB, NotingDrafter, make_drafter, make_rig, plain_tokens, prompt, seeded_sampler
from driver import make_request

from slipstream.request import SamplingParams
from slipstream.sampling.sampler import Sampler
from slipstream.scheduler.executor_state import ExecutorState
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import NewRequest, SampledTokens, SampleRow, ScheduledRequest, StepPlan
from slipstream.simulation.scripted import HashedLogits, Logits

LAGS = pytest.mark.parametrize("lag", [0, 1])
SAMPLER = seeded_sampler()


class WantsEos:
    """A target whose likeliest token is always EOS."""

    def __init__(self) -> None:
        self._logits = HashedLogits(VOCAB)

    def __call__(self, prefix) -> Logits:
        logits = self._logits(prefix).copy()
        logits[EOS] = logits.max() + 1.0
        return logits


@LAGS
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_G9_min_tokens_does_not_switch_drafting_off(lag: int, temperature: float) -> None:
    logits = WantsEos()
    request = lambda: make_request(  # noqa: E731
        "r", prompt(9), 60, eos=(EOS,), min_tokens=50, temperature=temperature, seed=3
    )
    plain = plain_tokens([request()], logits=logits, sampler=SAMPLER)["r"]

    class KnowsTheText(NotingDrafter):
        def propose(self, requests):
            blocks = super().propose(requests)
            for r, block in zip(requests, blocks, strict=True):
                done = len(r.token_ids) - r.num_prompt_tokens
                block.token_ids = plain[done : done + r.num_draft_tokens]
            return blocks

    inner = make_drafter("wrong", "dspark", logits, SAMPLER, 4)
    assert inner is not None
    rig = make_rig(KnowsTheText(inner), logits=logits, sampler=SAMPLER, layout_name="dspark", num_speculative_tokens=4)
    run = rig.drive([request()], lag=lag)
    assert run.token_ids["r"] == plain and len(plain) >= 51
    statistics = rig.scheduler.statistics
    assert statistics.num_accepted_tokens > 30
    passes = [result for result in run.results if result.num_draft_query_rows]
    assert passes and all(r.results[0].num_draft_tokens > 0 for r in passes if not r.num_skipped_drafts)


@LAGS
@pytest.mark.parametrize("most", [0, 3, 7])
@pytest.mark.parametrize(
    ("kind", "layout_name"),
    list(zip(DRAFTERS, ("dspark", "dflash", "eagle3", "draft_model", "ngram"), strict=True)),
)
def test_G13_a_seeded_stream_replays_token_for_token(lag: int, most: int, kind: str, layout_name: str) -> None:
    logits = HashedLogits(VOCAB, window=1, scale=4.0)
    request = lambda: make_request("r", prompt(6) * 2, 200, temperature=1.0, top_p=0.95, seed=7)  # noqa: E731
    plain = long_plain()
    rig = make_rig(
        kind if most else None, logits=logits, sampler=SAMPLER, layout_name=layout_name, num_speculative_tokens=most,
        draft_capacity=512,
    )  # fmt: skip
    run = rig.drive([request()], lag=lag)
    assert run.token_ids["r"] == plain
    assert run.num_verified > 0 or not most


@functools.cache
def long_plain() -> list[int]:
    logits = HashedLogits(VOCAB, window=1, scale=4.0)
    request = make_request("r", prompt(6) * 2, 200, temperature=1.0, top_p=0.95, seed=7)
    plain = plain_tokens([request], logits=logits, sampler=SAMPLER)["r"]
    greedy = plain_tokens([make_request("r", prompt(6) * 2, 200)], logits=logits, sampler=SAMPLER)["r"]
    assert len(plain) == 200 and greedy != plain, "it was really sampled"
    return plain


@LAGS
def test_G11_parallel_seeds_equal_their_solo_runs(lag: int) -> None:
    requests = lambda: [make_request(f"r{i}", prompt(9), 40, temperature=1.0, seed=i) for i in range(8)]  # noqa: E731
    rig = make_rig("half", sampler=SAMPLER, layout_name="dspark", num_speculative_tokens=4)
    run = rig.drive(requests(), lag=lag)
    solo = plain_tokens(requests(), sampler=SAMPLER)
    assert run.token_ids == solo and run.num_verified > 0
    assert len({tuple(tokens) for tokens in solo.values()}) == 8


def row(sampling: SamplingParams, seed: int, tokens: list[int], drafts: list[int], num_drafts: int) -> SampleRow:
    return SampleRow(sampling, seed, 0, frozenset(), tokens, 1, drafts, num_drafts)


@pytest.mark.slow
def test_G14_joint_law_of_two_tokens_is_exact() -> None:
    """A toy Markov target and a drafter of another law: accepted or not, the pair follows the target's law."""
    count, vocab = 40_000, 3
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(vocab, generator=generator, dtype=torch.float64)
    second = torch.randn(vocab, vocab, generator=generator, dtype=torch.float64)
    sampling = SamplingParams(temperature=1.0)
    sampler = Sampler(vocab)
    seeds = range(count)
    # The drafter draws with the same noise from its own, flatter law.
    drafts = sampler.sample((first * 0.4).expand(count, vocab), [row(sampling, s, [0], [], 0) for s in seeds]).token_ids
    verified = sampler.sample(
        torch.cat([first.expand(count, vocab), second[drafts]]),
        [row(sampling, s, [0], [d], 0) for s, d in zip(seeds, drafts, strict=True)]
        + [row(sampling, s, [0], [d], 1) for s, d in zip(seeds, drafts, strict=True)],
    ).token_ids
    tokens, bonus = verified[:count], verified[count:]
    again = sampler.sample(
        second[tokens], [row(sampling, s, [0, t], [], 0) for s, t in zip(seeds, tokens, strict=True)]
    )
    pairs = [
        (token, after if token == draft else late)
        for token, draft, after, late in zip(tokens, drafts, bonus, again.token_ids, strict=True)
    ]
    accepted = sum(t == d for t, d in zip(tokens, drafts, strict=True)) / count
    assert 0.5 < accepted < 0.99, "both branches took part"
    law = first.softmax(0)[:, None] * second.softmax(1)
    distance = sum(
        abs(pairs.count((a, b)) / count - float(law[a, b])) for a, b in itertools.product(range(vocab), repeat=2)
    )
    assert distance / 2 < 0.01


@pytest.mark.parametrize(
    ("matches", "accepted"),
    [((0, 1, 0, 0, 0), 0), ((1, 0, 1, 1, 1), 1), ((1, 1, 0, 1, 0), 2), ((1, 1, 1, 1, 1), 5), ((0, 0, 0, 0, 0), 0)],
)
def test_G17_only_the_leading_run_is_accepted(matches: tuple[int, ...], accepted: int) -> None:
    state = ExecutorState()
    new = NewRequest("r", 0, [5], 1, SamplingParams(max_tokens=40), 0, 0, 41)
    state.begin(StepPlan(0, [], new_requests=[new]))
    request = state.requests["r"]
    request.token_ids, request.draft_handle, request.draft_token_ids = [5, 6], 0, [10, 11, 12, 13, 14]
    entry = ScheduledRequest("r", 0, 1, 6, 5, 0, False, True, 0, 0, [0])
    (rows,) = state.begin(StepPlan(1, [entry]))
    sampled = [10 + i if match else 20 + i for i, match in enumerate(matches)] + [15]
    result = state.accept(rows, SampledTokens(sampled, [None] * 6), 0)
    assert result.num_accepted == accepted and result.num_verified == 5
    assert result.token_ids == sampled[: accepted + 1]
    assert request.token_ids == [5, 6, *sampled[: accepted + 1]]
    assert request.num_computed_tokens == len(request.token_ids) - 1


@pytest.mark.parametrize("most", range(1, 13))
@pytest.mark.parametrize(("temperature", "lag"), [(0.0, 0), (1.0, 1)])
def test_P13_every_depth_is_lossless(most: int, temperature: float, lag: int) -> None:
    requests = lambda: [  # noqa: E731
        make_request(f"r{i}", prompt(5 + i, i), 40, temperature=temperature, seed=i) for i in range(3)
    ]
    plain = depth_plain(temperature)
    layouts = itertools.cycle(LAYOUTS)
    for kind, layout_name in zip(
        ("oracle", "half", "ragged", "wrong"), itertools.islice(layouts, most, None), strict=False
    ):
        rig = make_rig(
            kind,
            sampler=SAMPLER,
            layout_name=layout_name,
            num_speculative_tokens=most,
            max_num_seqs=3,
            block_size=4,
            draft_capacity=512,
        )
        run = rig.drive(requests(), lag=lag)
        assert run.token_ids == plain and run.num_verified > 0


@functools.cache
def depth_plain(temperature: float) -> dict[str, list[int]]:
    requests = [make_request(f"r{i}", prompt(5 + i, i), 40, temperature=temperature, seed=i) for i in range(3)]
    return plain_tokens(requests, sampler=SAMPLER)
