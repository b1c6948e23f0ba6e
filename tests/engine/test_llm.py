"""LLM in one process: order, streaming, refusals, aborts; and the async front by itself."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from engine_helpers import GRAMMARS, TEMPLATE, TOKENIZER, VOCABULARY, ScriptedText, byte_tokens, make_engine

from slipstream.config import SettingError, SpeculativeSettings
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.build import BuiltEngine
from slipstream.engine.engine import Engine
from slipstream.engine.engine_thread import EngineThread
from slipstream.engine.flat_settings import settings_from_flat
from slipstream.engine.llm import LLM
from slipstream.engine.statistics_log import StatisticsLog
from slipstream.models.loading import ModelSource
from slipstream.request import FinishReason, RequestError, SamplingParams


def make_llm(engine: Engine, seed: int | None = None) -> LLM:
    source = ModelSource("tiny", None, TOKENIZER, TEMPLATE, lambda: iter(()), lambda: iter(()))  # type: ignore[arg-type]
    return LLM.from_engine(BuiltEngine(engine, source, VOCABULARY, None, GRAMMARS), seed=seed)  # type: ignore[arg-type]


def test_results_come_in_the_order_of_the_prompts() -> None:
    llm = make_llm(make_engine(num_speculative_tokens=3))
    sampling = [SamplingParams(max_tokens=20 - 3 * index, temperature=0, logprobs=1) for index in range(5)]
    prompts = [f"hello {index}" for index in range(5)]
    results = llm.generate(prompts, sampling)
    for prompt, parameters, result in zip(prompts, sampling, results, strict=True):
        choice = result.choices[0]
        assert list(result.prompt_token_ids) == TOKENIZER.encode(prompt)
        assert len(choice.token_ids) == parameters.max_tokens == len(choice.logprobs or ())
        assert choice.text == TOKENIZER.decode(choice.token_ids) == result.text
        alone = make_llm(make_engine()).generate(prompt, parameters)[0].choices[0]
        assert choice.token_ids == alone.token_ids
        metrics = choice.metrics
        assert metrics is not None and metrics.num_output_tokens == parameters.max_tokens
        assert metrics.num_accepted > 0 and (metrics.mean_acceptance_length or 0) > 2
        assert metrics.first_scheduled_time is not None and metrics.time_to_first_token is not None
        assert metrics.time_per_output_token is not None and metrics.time_per_output_token >= 0


def test_chat_takes_one_conversation_or_many() -> None:
    llm = make_llm(make_engine())
    conversation = [{"role": "user", "content": "hello"}]
    greedy = SamplingParams(max_tokens=5, temperature=0)
    one = llm.chat(conversation, greedy)
    assert [result.text for result in llm.chat([conversation, conversation], greedy)] == [one[0].text] * 2
    assert one[0].prompt_token_ids == llm.encode_chat(conversation)


def test_G10_drawn_seeds_are_recorded_and_reproduce() -> None:
    llm = make_llm(make_engine(), seed=1)
    first = llm.generate("hello", SamplingParams(n=2, max_tokens=15))[0]
    metrics = first.choices[0].metrics
    assert metrics is not None
    again = llm.generate("hello", SamplingParams(n=2, max_tokens=15, seed=metrics.seed))[0]
    assert [choice.token_ids for choice in again.choices] == [choice.token_ids for choice in first.choices]
    other = llm.generate("hello", SamplingParams(n=2, max_tokens=15))[0]
    assert other.choices[0].token_ids != first.choices[0].token_ids
    repeated = make_llm(make_engine(), seed=1).generate("hello", SamplingParams(n=2, max_tokens=15))[0]
    assert repeated.choices[0].token_ids == first.choices[0].token_ids


def test_one_refused_prompt_refuses_all_and_leaves_nothing() -> None:
    llm = make_llm(make_engine())
    with pytest.raises(RequestError):
        llm.generate(["hello", [10**6]])
    with pytest.raises(RequestError, match="2 prompts need 2"):
        llm.generate(["a", "b"], [SamplingParams()])
    assert not llm.built.engine.has_work()


def test_closing_a_stream_aborts() -> None:
    llm = make_llm(make_engine())
    running = llm.start(TOKENIZER.encode("hello"), SamplingParams(max_tokens=100))
    next(running)
    running.close()
    pool = llm.built.engine.scheduler.kv.pool
    assert not llm.built.engine.has_work() and pool.num_free == pool.num_blocks


def test_settings_by_flat_name() -> None:
    settings = settings_from_flat({"max_num_seqs": 3, "speculative_config": {"method": "ngram"}, "dtype": "float32"})
    assert settings.scheduler.max_num_seqs == 3 and settings.model.dtype == "float32"
    assert settings_from_flat({}).speculative == settings_from_flat({"speculative_config": "auto"}).speculative
    assert settings_from_flat({}).speculative == SpeculativeSettings(method="auto")
    assert settings_from_flat({"speculative_config": None}).speculative is None
    with pytest.raises(SettingError, match="did you mean 'max_num_seqs'"):
        settings_from_flat({"max_num_seq": 3})


def test_async_front_sleeps_when_idle_and_aborts_on_close() -> None:
    async def main() -> None:
        engine = make_engine(max_model_len=4096, num_kv_blocks=2048)
        front = AsyncEngine(EngineThread(engine), VOCABULARY)
        await front.start()
        prompt = TOKENIZER.encode("hello")
        generation = await front.submit("a", [prompt, prompt], SamplingParams(max_tokens=3000, n=2))
        async for number, delta in generation:
            assert 0 <= number < 4 and delta.finish_reason is None
            break
        generation.close()
        with pytest.raises(RequestError):
            await front.submit("b", [prompt, []], SamplingParams())
        deadline = time.monotonic() + 2
        while engine.has_work() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert not engine.has_work() and front.num_unfinished == 0
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.1
        await front.stop()
        assert not front.health().ok

    asyncio.run(main())


def test_log_lines_are_word_for_word(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        said = byte_tokens("x" * 31)
        engine = make_engine(ScriptedText(5, said), num_speculative_tokens=2)
        log = StatisticsLog(engine.scheduler, interval_s=0.2)
        front = AsyncEngine(EngineThread(engine), VOCABULARY, listeners=[log])
        await front.start()
        writer = asyncio.create_task(log.run(front))
        await asyncio.sleep(0)
        generation = await front.submit("a", [byte_tokens("hello")], SamplingParams(max_tokens=31, temperature=0))
        async for _, delta in generation:
            assert delta.finish_reason in (None, FinishReason.LENGTH)
        await asyncio.sleep(0.3)
        writer.cancel()
        await front.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    lines = [record.message for record in caplog.records if record.name.endswith("statistics_log")]
    throughput, speculation = lines[:2]
    assert throughput.startswith("Engine 000: Avg prompt throughput: ")
    assert throughput.endswith(
        " tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%"
    )
    assert ", Avg generation throughput: " in throughput
    # 1 token from the prompt, then ten steps of two accepted drafts and one more token.
    assert speculation.startswith("SpecDecoding metrics: Mean acceptance length: 3.00, Accepted throughput: ")
    assert speculation.endswith(
        "Accepted: 20 tokens, Drafted: 20 tokens, Per-position acceptance rate: 1.000, 1.000, "
        "Avg Draft acceptance rate: 100.0%"
    )


def test_M10_useless_drafts_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(num_speculative_tokens=2)
    log = StatisticsLog(engine.scheduler)
    before = log.totals(0.0)
    engine.scheduler.statistics.acceptance_histogram[2][0] += 60
    now = log.totals(10.0)
    for _ in range(2):
        log._warn_of_useless_drafts(before, now)
    assert sum("speculation gives no gain" in record.message for record in caplog.records) == 1
    assert "Mean acceptance length: 1.00" in log.lines(before, now, 1, 0, 0.5)[1]
