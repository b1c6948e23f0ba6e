"""The openai client against a real server: both endpoints, streaming, logprobs, n, stop, seeds."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from engine_helpers import EOS, TOKENIZER, ScriptedText, byte_tokens
from server_helpers import NAME, RunningServer, Starter

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(num_speculative_tokens=4)


@pytest.fixture(scope="module")
def plain(start_server: Starter) -> RunningServer:
    return start_server()


def test_chat_answers_and_counts(server: RunningServer) -> None:
    answer = server.client().chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=10, seed=3)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and len(choice.message.content or "") == 10
    assert choice.finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 10
    assert server.engine.scheduler.statistics.num_accepted_tokens > 0


def test_F11_streamed_and_whole_answers_are_equal(server: RunningServer) -> None:
    client = server.client()
    options: dict[str, Any] = {"model": NAME, "messages": MESSAGES, "max_tokens": 40, "seed": 5, "logprobs": True}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 40
    entries = [entry for c in chunks if c.choices and c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
    assert whole.choices[0].logprobs is not None
    assert entries == whole.choices[0].logprobs.content and len(entries) == 40
    assert len(chunks) < 40  # several tokens per step, so drafts were accepted


def test_include_usage_is_off_by_default(server: RunningServer) -> None:
    stream = server.client().chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=5, stream=True)
    assert all(chunk.usage is None and chunk.choices for chunk in stream)


def test_N4_continuous_usage_counts_tokens_per_chunk(server: RunningServer) -> None:
    stream = server.client().chat.completions.create(
        model=NAME,
        messages=MESSAGES,
        max_tokens=20,
        stream=True,
        extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    )
    counts = [chunk.usage.completion_tokens for chunk in stream if chunk.usage is not None]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 20


@pytest.mark.parametrize("seed", [0, 7])
def test_G13_text_depends_on_the_seed_not_on_speculation(
    server: RunningServer, plain: RunningServer, seed: int
) -> None:
    def text(where: RunningServer, used: int) -> str:
        answer = where.client().completions.create(model=NAME, prompt="hello", max_tokens=50, seed=used, top_p=0.95)
        return answer.choices[0].text

    assert text(server, seed) == text(plain, seed) == text(server, seed)
    assert text(server, seed) != text(server, seed + 1)


def test_G19_n_choices_are_indexed_and_counted(server: RunningServer, plain: RunningServer) -> None:
    def answers(where: RunningServer) -> list[str]:
        answer = where.client().chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=12, n=3, seed=1)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage is not None and answer.usage.completion_tokens == 36
        return [choice.message.content or "" for choice in answer.choices]

    assert answers(server) == answers(plain)
    assert len(set(answers(server))) == 3
    chunks = server.client().chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=12, n=3, seed=1, stream=True
    )
    streamed = ["", "", ""]
    for chunk in chunks:
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == answers(server)


def test_completion_prompts_in_all_four_shapes(server: RunningServer) -> None:
    client = server.client()
    ids = TOKENIZER.encode("hello world")
    options: dict[str, Any] = {"model": NAME, "max_tokens": 8, "temperature": 0}
    text = client.completions.create(prompt="hello world", **options)
    assert client.completions.create(prompt=ids, **options).choices[0].text == text.choices[0].text
    several = client.completions.create(prompt=["hello world", "other"], n=2, seed=1, max_tokens=4, model=NAME)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    lists = client.completions.create(prompt=[ids, TOKENIZER.encode("other")], n=2, seed=1, max_tokens=4, model=NAME)
    assert [choice.text for choice in lists.choices] == [choice.text for choice in several.choices]
    assert several.usage is not None and several.usage.completion_tokens == 16
    assert several.usage.prompt_tokens == len(ids) + len(TOKENIZER.encode("other"))


def test_P12_every_one_of_ten_requests_drafts(start_server: Starter) -> None:
    own = start_server(num_speculative_tokens=4)
    statistics = own.engine.scheduler.statistics
    for seed in range(10):
        before = statistics.num_accepted_tokens
        own.client().completions.create(model=NAME, prompt="hello", max_tokens=12, seed=seed)
        assert statistics.num_accepted_tokens > before


def test_completion_default_is_16_tokens(server: RunningServer) -> None:
    answer = server.client().completions.create(model=NAME, prompt="hello")
    assert answer.usage is not None and answer.usage.completion_tokens == 16


def test_completion_logprobs_shape(server: RunningServer) -> None:
    answer = server.client().completions.create(model=NAME, prompt="hello", max_tokens=6, logprobs=2, seed=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None and logprobs.top_logprobs is not None
    assert "".join(logprobs.tokens) == answer.choices[0].text
    assert logprobs.text_offset == [0, 1, 2, 3, 4, 5]
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs or [], logprobs.top_logprobs, strict=True):
        assert top[token] == value <= 0 and 2 <= len(top) <= 3


def test_L2_chat_logprobs_equal_with_and_without_speculation(server: RunningServer, plain: RunningServer) -> None:
    def entries(where: RunningServer) -> list[tuple[str, float, list[str]]]:
        answer = where.client().chat.completions.create(
            model=NAME, messages=MESSAGES, max_tokens=30, temperature=0, logprobs=True, top_logprobs=3
        )
        content = answer.choices[0].logprobs.content if answer.choices[0].logprobs else None
        assert content is not None
        return [(entry.token, entry.logprob, [top.token for top in entry.top_logprobs]) for entry in content]

    assert entries(server) == entries(plain) and len(entries(server)) == 30
    assert all(len(top) == 3 for _, _, top in entries(server))
    assert any(value < 0 for _, value, _ in entries(server))


def test_L6_stream_of_split_characters(start_server: Starter) -> None:
    said = "日本 👩‍👩‍👧 é"
    prompt = TOKENIZER.encode("hello")
    server = start_server(ScriptedText(len(prompt), byte_tokens(said)), num_speculative_tokens=2)
    stream = server.client().completions.create(model=NAME, prompt=prompt, max_tokens=99, temperature=0, stream=True)
    pieces = [chunk.choices[0].text for chunk in stream]
    assert "".join(pieces) == said and not any("\ufffd" in piece for piece in pieces) and len(pieces) > 3


@pytest.mark.parametrize("stream", [False, True])
def test_F5_stop_string_cuts_text_ids_and_logprobs(start_server: Starter, stream: bool) -> None:
    prompt = TOKENIZER.encode("hello")
    server = start_server(ScriptedText(len(prompt), byte_tokens("ha ha ha ha ha")), num_speculative_tokens=7)
    answer = server.client().completions.create(
        model=NAME, prompt=prompt, max_tokens=50, temperature=0, stop=[" ha ha ha"], logprobs=0, stream=stream
    )
    chunks = list(answer) if stream else [answer]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "ha"
    tokens = [token for chunk in chunks for token in (chunk.choices[0].logprobs.tokens or [])]
    assert "".join(tokens) == "ha ha ha ha"
    last = chunks[-1].choices[0]
    assert last.finish_reason == "stop" and last.stop_reason == " ha ha ha"
    if not stream:
        assert answer.usage.completion_tokens == len(tokens)


def test_stop_token_and_eos(start_server: Starter) -> None:
    prompt = TOKENIZER.encode("hello")
    server = start_server(ScriptedText(len(prompt), byte_tokens("abc")))
    client = server.client()
    by_eos = client.completions.create(model=NAME, prompt=prompt, max_tokens=50, temperature=0)
    assert (by_eos.choices[0].text, by_eos.choices[0].finish_reason) == ("abc", "stop")
    by_id = client.completions.create(
        model=NAME, prompt=prompt, max_tokens=50, temperature=0, extra_body={"stop_token_ids": [ord("b")]}
    )
    assert (by_id.choices[0].text, by_id.choices[0].model_extra) == ("a", {"stop_reason": ord("b")})
    on = client.completions.create(
        model=NAME, prompt=prompt, max_tokens=6, temperature=0, extra_body={"ignore_eos": True}
    )
    assert on.usage is not None and on.usage.completion_tokens == 6 and on.choices[0].finish_reason == "length"


def test_G20_every_parameter_changes_the_answer(server: RunningServer) -> None:
    client = server.client()

    def text(**options: Any) -> str:
        options = {"seed": 1, "max_tokens": 30, **options}
        return client.completions.create(model=NAME, prompt="hello", **options).choices[0].text

    base = text()
    assert text(temperature=0.1) != base
    assert text(top_p=0.3) != base
    assert text(seed=2) != base
    likes_q = {str(ord("Q")): 6}
    repeats = text(logit_bias=likes_q)
    assert repeats.count("Q") > 3
    assert text(logit_bias=likes_q, presence_penalty=2.0) != repeats
    assert text(logit_bias=likes_q, frequency_penalty=2.0).count("Q") < repeats.count("Q")
    assert text(logit_bias=likes_q, extra_body={"repetition_penalty": 3.0}).count("Q") < repeats.count("Q")
    assert text(logit_bias={str(ord("Q")): 100}) == "Q" * 30
    assert text(extra_body={"top_k": 1}) == text(temperature=0)
    assert text(extra_body={"min_p": 1.0}) == text(temperature=0)
    assert text(stop=[base[5]]) == base[: base.index(base[5])]
    assert text(stop=[base[5]], extra_body={"min_tokens": 25})[:24] == base[:24]
    assert text(extra_body={"include_stop_str_in_output": True}, stop=[base[5]]) == base[: base.index(base[5]) + 1]


def test_D4_cached_tokens_grow_over_a_chat(server: RunningServer) -> None:
    client = server.client()
    messages: list[Any] = [{"role": "user", "content": "a prompt of its own, long enough for blocks"}]
    before = 0
    for turn in range(3):
        answer = client.chat.completions.create(model=NAME, messages=messages, max_tokens=10, seed=turn)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert cached is not None and (cached >= before // 16 * 16 - 16 if turn else cached == 0)
        before = answer.usage.total_tokens
        messages += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": "and on"},
        ]
    assert cached > 0
    salted = client.chat.completions.create(
        model=NAME, messages=messages, max_tokens=1, extra_body={"cache_salt": "mine", "priority": -1}
    )
    assert salted.usage is not None and salted.usage.prompt_tokens_details is not None
    assert salted.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_content_as_parts_and_echoed_assistant_message(server: RunningServer) -> None:
    client = server.client()
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    options: dict[str, Any] = {"model": NAME, "max_tokens": 5, "temperature": 0}
    by_parts = client.chat.completions.create(messages=parts, **options)
    answer = client.chat.completions.create(messages=MESSAGES, **options)
    assert by_parts.choices[0].message.content == answer.choices[0].message.content
    echoed: Any = [*MESSAGES, answer.choices[0].message.model_dump(), {"role": "user", "content": "more"}]
    assert client.chat.completions.create(messages=echoed, **options).choices[0].finish_reason == "length"


def test_models_and_events_on_the_wire(server: RunningServer) -> None:
    assert [model.id for model in server.client().models.list()] == [NAME]
    assert server.client().models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        server.client().models.retrieve("other")
    body = {"model": NAME, "prompt": "hello", "max_tokens": 3, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = b"".join(response.iter_bytes()).decode()
    events = raw.split("\n\n")
    assert events[-1] == "" and events[-2] == "data: [DONE]"
    assert all(json.loads(event.removeprefix("data: "))["object"] == "text_completion" for event in events[:-2])


def test_eos_is_not_in_a_chat_answer(start_server: Starter) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    prompt = "<|start|>user\nx<|end|>\n<|start|>assistant\n"
    number = len(TOKENIZER.encode(prompt, add_special_tokens=False))
    server = start_server(ScriptedText(number, [*byte_tokens("fine"), EOS]))
    answer = server.client().chat.completions.create(model=NAME, messages=messages, temperature=0)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("fine", "stop")
