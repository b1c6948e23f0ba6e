"""Reported faults that were met with one drafter only: stop strings and log probabilities over every drafter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_helpers import EOS, VOCAB_SIZE, ScriptedText, byte_tokens, make_engine, printable_logits, real_sampler
from test_engine import PROMPT, run, text, tokens

from slipstream.engine.messages import Submission
from slipstream.engine.output_processor import PositionLogprobs
from slipstream.request import FinishReason, SamplingParams
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import Drafter, Executor
from slipstream.simulation.drafters import ConstantDrafter, half, oracle, predict_with, ragged, wrong
from slipstream.simulation.scripted import LogitsFunction, ScriptedExecutor
from slipstream.speculation.ngram import NgramDrafter

K = 7


def drafters(logits: LogitsFunction) -> dict[str, Drafter]:
    predict = predict_with(logits, real_sampler)
    return {
        "oracle": oracle(LAYOUTS["dspark"], predict, VOCAB_SIZE),
        "wrong": wrong(LAYOUTS["dflash"], predict, VOCAB_SIZE),
        "half": half(LAYOUTS["eagle3"], predict, VOCAB_SIZE, 2),
        "ragged": ragged(LAYOUTS["pard"], predict, VOCAB_SIZE, K),
        "eos": ConstantDrafter(LAYOUTS["draft_model"], EOS),
        "ngram": NgramDrafter(1, 3),
    }


KINDS = tuple(drafters(printable_logits()))


def engine_with(kind: str, logits: LogitsFunction, lag: int = 0):
    drafter = drafters(logits)[kind]

    def with_drafter(executor: Executor) -> Executor:
        assert isinstance(executor, ScriptedExecutor)
        executor.drafter = drafter
        return executor

    layout_name = drafter.layout.method
    return make_engine(
        logits, commit_lag=lag, wrap=with_drafter, layout_name=layout_name, num_speculative_tokens=K, draft_capacity=512
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("before", [0, 1, 5, 9])
def test_F8_F6_stop_strings_with_every_drafter(kind: str, lag: int, before: int) -> None:
    said = "ab " * before + "STOP" + "ab " * 10
    engine = engine_with(kind, ScriptedText(len(PROMPT), byte_tokens(said)), lag)
    sampling = SamplingParams(temperature=0.0, max_tokens=60, stop=("STOP", "never"), logprobs=2)
    deltas = run(engine, [Submission("a", PROMPT, sampling, seed=0)])["a", 0]
    assert text(deltas) == "ab " * before
    assert tokens(deltas) == byte_tokens("ab " * before + "STOP")
    assert sum(len(delta.logprobs or ()) for delta in deltas) == len(tokens(deltas))
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "STOP")
    assert engine.scheduler.statistics.num_verified_tokens > 0 or (kind == "ngram" and before < 2)
    engine.close()


def logprob_values(kind: str | None, logits_of: Callable[[], LogitsFunction]) -> list[PositionLogprobs]:
    sampling = SamplingParams(temperature=0.0, max_tokens=30, logprobs=2)
    engine = make_engine(logits_of()) if kind is None else engine_with(kind, logits_of())
    deltas = run(engine, [Submission("a", PROMPT, sampling, seed=0)])["a", 0]
    entries = [entry for delta in deltas for entry in delta.logprobs or ()]
    if kind not in (None, "ngram"):
        statistics = engine.scheduler.statistics
        assert statistics.num_verified_tokens > 0
        assert statistics.num_accepted_tokens > 0 or kind in ("wrong", "eos")
    return entries


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text_kind", ["random", "repeating"])
def test_L4_L3_L2_logprobs_equal_plain_ones_with_every_drafter(kind: str, text_kind: str) -> None:
    said = byte_tokens("abc " * 20)
    logits_of = printable_logits if text_kind == "random" else lambda: ScriptedText(len(PROMPT), said)
    plain = logprob_values(None, logits_of)
    assert len(plain) == 30 and all(entry.chosen.logprob < 0 for entry in plain)
    assert logprob_values(kind, logits_of) == plain
