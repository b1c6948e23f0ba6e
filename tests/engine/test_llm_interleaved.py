"""Generations of one LLM that run at the same time: nothing lost, nothing endless, nothing left behind."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from engine_helpers import GRAMMARS, TEMPLATE, TOKENIZER, VOCABULARY, make_engine

from slipstream.engine.build import BuiltEngine
from slipstream.engine.llm import LLM, GenerationError
from slipstream.models.loading import ModelSource
from slipstream.request import FinishReason, RequestError, SamplingParams

PROMPT = tuple(TOKENIZER.encode("hello"))
LONG = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=4, temperature=0)


@pytest.fixture(params=[0, 1], ids=["lag 0", "lag 1"])
def llm(request: pytest.FixtureRequest) -> LLM:
    source = ModelSource("tiny", None, TOKENIZER, TEMPLATE, lambda: iter(()), lambda: iter(()))  # type: ignore[arg-type]
    engine = make_engine(commit_lag=request.param)
    return LLM.from_engine(BuiltEngine(engine, source, VOCABULARY, None, GRAMMARS))  # type: ignore[arg-type]


def is_empty(llm: LLM) -> bool:
    engine = llm.built.engine
    while engine.has_work():  # a step in flight at lag 1 still has to end
        assert engine.scheduler.num_running == engine.scheduler.num_waiting == 0
        engine.step()
    pool = engine.scheduler.kv.pool
    kept = (llm._shared._inboxes, llm._shared._tracker._requests, engine._submissions, engine._requests)
    return pool.num_free == pool.num_blocks and not any(kept)


def tokens_of(llm: LLM, sampling: SamplingParams) -> list[int]:
    return llm.generate([PROMPT], sampling)[0].choices[0].token_ids


@pytest.mark.timeout(20)
@pytest.mark.parametrize("length", [4, 60])
def test_generate_in_the_middle_of_a_stream_loses_nothing(llm: LLM, length: int) -> None:
    expected = tokens_of(llm, LONG)
    stream = iter(llm.start(PROMPT, LONG))
    got = next(stream).token_ids
    llm.generate("other", SamplingParams(max_tokens=length, temperature=0, ignore_eos=True))
    rest = list(stream)
    got = got + [token for delta in rest for token in delta.token_ids]
    assert got == expected and rest[-1].finish_reason is FinishReason.LENGTH
    assert is_empty(llm)


@pytest.mark.timeout(20)
def test_streams_read_in_turns_or_one_after_the_other_are_whole(llm: LLM) -> None:
    expected = tokens_of(llm, LONG)
    streams = [llm.start(PROMPT, LONG) for _ in range(3)]
    got: list[list[int]] = [[], [], []]
    for _ in range(5):
        for mine, stream in zip(got, streams, strict=True):
            mine += next(stream).token_ids
    for mine, stream in reversed(list(zip(got, streams, strict=True))):
        for delta in stream:
            mine += delta.token_ids
    assert got == [expected] * 3
    assert streams[0].metrics.num_output_tokens == 30
    with pytest.raises(StopIteration):
        next(streams[0])
    assert is_empty(llm)


def test_a_stream_nobody_reads_is_released(llm: LLM) -> None:
    running = llm.start(PROMPT, LONG)
    assert llm.built.engine.has_work()
    del running
    gc.collect()
    assert is_empty(llm)
    with llm.start(PROMPT, LONG):
        pass
    assert is_empty(llm)
    started = llm.start(PROMPT, LONG)
    next(iter(started))
    del started
    gc.collect()
    assert is_empty(llm)


def test_a_closed_stream_is_over(llm: LLM) -> None:
    stream = llm.start(PROMPT, LONG)
    next(stream)
    stream.close()
    stream.close()
    assert list(stream) == [] and is_empty(llm)


def test_a_stream_in_a_loop_of_references_may_be_collected_within_a_step(llm: LLM) -> None:
    engine, original = llm.built.engine, llm.built.engine.scheduler.schedule
    lost: list[Any] = [llm.start(PROMPT, LONG)]
    lost.append(lost)

    def collecting(now: float) -> Any:
        nonlocal lost
        plan = original(now)
        lost = []
        gc.collect()
        return plan

    engine.scheduler.schedule = collecting  # type: ignore[method-assign]
    assert len(tokens_of(llm, LONG)) == 30
    engine.scheduler.schedule = original  # type: ignore[method-assign]
    assert is_empty(llm)


@pytest.mark.timeout(20)
def test_a_request_aborted_behind_the_back_ends_with_an_error(llm: LLM) -> None:
    stream = llm.start(PROMPT, LONG)
    next(stream)
    llm.built.engine.abort("llm-0")
    with pytest.raises(GenerationError, match="no longer in the engine"):
        list(stream)


BAD_PROMPTS: list[Any] = [
    None, 5, b"abc", ["a", None], ["a", 1], [1, "a"], [[1.5, 2]], [[True]], [["a"]], {"a": 1}, "\ud800", [[]],
    ["a", "b" * 900],
]  # fmt: skip


@pytest.mark.parametrize("prompts", BAD_PROMPTS, ids=lambda value: repr(value)[:20])
def test_bad_prompts_are_refused_whole(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError):
        llm.generate(prompts, SHORT)
    assert is_empty(llm)


BAD_MESSAGES: list[Any] = [
    None, "hi", [], [[]], ["hi"], [{"content": "x"}], [{"role": "user"}], [{"role": "user", "content": None}],
    [{"role": 5, "content": "x"}], [[{"role": "user", "content": "x"}], []], [{"role": "user", "content": "\ud800"}],
]  # fmt: skip


@pytest.mark.parametrize("messages", BAD_MESSAGES, ids=lambda value: repr(value)[:30])
def test_bad_conversations_are_refused_whole(llm: LLM, messages: Any) -> None:
    if messages == []:
        assert llm.chat(messages, SHORT) == []  # no conversation, no answer
        return
    with pytest.raises(RequestError):
        llm.chat(messages, SHORT)
    assert is_empty(llm)


@pytest.mark.parametrize("sampling", [[SHORT, None], [None, SHORT], [SHORT], "ab", 5, {}])
def test_bad_sampling_is_refused_whole(llm: LLM, sampling: Any) -> None:
    with pytest.raises(RequestError):
        llm.generate(["a", "b"], sampling)
    assert is_empty(llm)


def test_start_checks_as_generate_does(llm: LLM) -> None:
    for prompt in ("hello", None, [1.5], [True], [10**6], []):
        with pytest.raises(RequestError):
            llm.start(prompt, SHORT)  # type: ignore[arg-type]
    with pytest.raises(RequestError):
        llm.start(PROMPT, "greedy")  # type: ignore[arg-type]
    assert is_empty(llm)


def test_any_failure_while_submitting_leaves_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, original = llm.built.engine, llm.built.engine.add_request

    def failing(submission: Any) -> None:
        if submission.request_id.endswith("1"):
            raise MemoryError
        original(submission)

    monkeypatch.setattr(engine, "add_request", failing)
    with pytest.raises(MemoryError):
        llm.generate(["a", "b"], SHORT)
    assert is_empty(llm)
