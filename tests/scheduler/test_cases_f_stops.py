"""Reported faults, kind F: stop conditions inside an accepted block. The ids are those of tests/cases.toml.

Stop strings, and what text, ids and log probabilities are given out, are in tests/engine and tests/server.
"""

from __future__ import annotations

import pytest
from case_rig import DRAFTERS, EOS, VOCAB, make_rig, plain_tokens, prompt, seeded_sampler
from driver import make_request

from slipstream.request import FinishReason
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.simulation.scripted import HashedLogits, Logits

EACH_LAYOUT = pytest.mark.parametrize("layout_name", LAYOUTS)
LAGS = pytest.mark.parametrize("lag", [0, 1])
LOOPING = HashedLogits(VOCAB, window=1, scale=6.0)
"""For prompt lookup; the position takes part, so texts differ."""


def stopping_text(offset: int) -> tuple[list[int], list[int]]:
    """A prompt, and its plain output of 40 tokens whose token number `offset` (from 0) has not occurred before."""
    for seed in range(100):
        text = prompt(12, seed)
        output = plain_tokens([make_request("r", text, 40)])["r"]
        if output[offset] not in output[:offset]:
            return text, output
    raise AssertionError("no such text")


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("offset", range(10))
@pytest.mark.parametrize("by", ["eos", "stop_token_ids"])
def test_F1_eos_anywhere_in_a_block_ends_the_output(layout_name: str, lag: int, offset: int, by: str) -> None:
    """Prefill emits token 0; the block of 7 drafts and the bonus token are tokens 1 to 8, token 9 is the next block."""
    text, plain = stopping_text(offset)
    stop = {"eos": (plain[offset],)} if by == "eos" else {"stop_token_ids": (plain[offset],)}
    rig = make_rig("oracle", layout_name=layout_name, num_speculative_tokens=7, draft_capacity=512)
    run = rig.drive([make_request("r", text, 40, **stop)], lag=lag)
    assert run.token_ids["r"] == plain[: offset + 1]
    assert run.finish_reasons["r"] is FinishReason.STOP
    assert run.stop_reasons["r"] == (None if by == "eos" else plain[offset])
    assert run.num_verified > 0 or offset == 0
    if lag == 0:
        assert run.num_verified <= 8 + offset % 8, "drafts past the stop count as neither verified nor accepted"
    statistics = rig.scheduler.statistics
    assert statistics.num_output_tokens == offset + 1
    assert statistics.num_accepted_tokens <= offset
    assert statistics.num_decode_tokens == offset, "an accepted draft that ends the output has no token after it"


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("kind", DRAFTERS)
def test_F6_every_drafter_obeys_every_stop(layout_name: str, lag: int, kind: str) -> None:
    logits = LOOPING if kind == "ngram" else HashedLogits(VOCAB)
    verified = 0
    for seed in range(4):
        text = prompt(8, seed) * 3
        plain = plain_tokens([make_request("r", text, 40)], logits=logits)["r"]
        for stop in {plain[4], plain[11], plain[20]}:
            expected = plain[: plain.index(stop) + 1]
            rig = make_rig(kind, logits=logits, layout_name=layout_name, num_speculative_tokens=7, draft_capacity=512)
            run = rig.drive([make_request("r", text, 40, eos=(stop,))], lag=lag)
            assert run.token_ids["r"] == expected
            assert run.finish_reasons["r"] is FinishReason.STOP
            verified += run.num_verified
    assert verified > 0


@LAGS
@pytest.mark.parametrize("most", [0, 3, 7])
@pytest.mark.parametrize("cut", range(2, 9))
def test_F7_a_cut_block_takes_no_random_draws_with_it(lag: int, most: int, cut: int) -> None:
    sampler = seeded_sampler()
    kwargs = {"temperature": 1.0, "seed": 5}
    both = [make_request(f"c{i}", prompt(9), 40, choice_index=i, **kwargs) for i in range(2)]
    plain = plain_tokens(both, sampler=sampler)
    stop = plain["c0"][cut]
    expected = {
        name: tokens[: tokens.index(stop) + 1] if name == "c0" and stop in tokens else tokens
        for name, tokens in plain.items()
    }
    rig = make_rig("oracle" if most else None, sampler=sampler, layout_name="dspark", num_speculative_tokens=most)
    requests = [
        make_request("c0", prompt(9), 40, choice_index=0, eos=(stop,), **kwargs),
        make_request("c1", prompt(9), 40, choice_index=1, **kwargs),
    ]
    run = rig.drive(requests, lag=lag)
    assert run.token_ids == expected
    assert plain["c0"] != plain["c1"]
    assert run.num_verified > 0 or not most


class WithoutEos:
    """A target that never emits EOS."""

    def __init__(self) -> None:
        self._logits = HashedLogits(VOCAB)

    def __call__(self, prefix) -> Logits:
        logits = self._logits(prefix).copy()
        logits[EOS] = -1e9
        return logits


@EACH_LAYOUT
@LAGS
def test_F9_a_drafted_eos_ends_nothing(layout_name: str, lag: int) -> None:
    rig = make_rig("eos", logits=WithoutEos(), layout_name=layout_name, num_speculative_tokens=5, draft_capacity=512)
    run = rig.drive([make_request("r", prompt(9), 50, eos=(EOS,))], lag=lag)
    assert len(run.token_ids["r"]) == 50 and run.finish_reasons["r"] is FinishReason.LENGTH
    statistics = rig.scheduler.statistics
    assert statistics.num_verified_tokens > 100 and statistics.num_accepted_tokens == 0


class EosAt:
    """A target whose own argmax is EOS at one position."""

    def __init__(self, position: int) -> None:
        self._logits = WithoutEos()
        self._position = position

    def __call__(self, prefix) -> Logits:
        logits = self._logits(prefix).copy()
        if len(prefix) == self._position:
            logits[EOS] = 1e3
        return logits


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("kind", ["eos", "oracle", "half", "wrong"])
def test_F10_the_targets_own_eos_ends_it_at_a_draft_position(layout_name: str, lag: int, kind: str) -> None:
    for offset in range(1, 9):
        logits = EosAt(9 + offset)
        plain = plain_tokens([make_request("r", prompt(9), 50, eos=(EOS,))], logits=logits)["r"]
        assert len(plain) == offset + 1 and plain[-1] == EOS
        rig = make_rig(kind, logits=logits, layout_name=layout_name, num_speculative_tokens=7, draft_capacity=512)
        run = rig.drive([make_request("r", prompt(9), 50, eos=(EOS,))], lag=lag)
        assert run.token_ids["r"] == plain and run.finish_reasons["r"] is FinishReason.STOP
        assert run.num_verified > 0
