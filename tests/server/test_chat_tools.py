"""Tools and reasoning over `/v1/chat/completions` with the openai client: streamed and whole answers say the same."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from engine_helpers import EOS
from scripted_chat import CALLS, MESSAGES, OPEN_TEMPLATE, REPLIES, TEMPLATE, TOOLS, ScriptedReplies
from server_helpers import NAME, RunningServer, Starter

ARGUMENTS = '{"city": "Köln", "days": [1, 2]}'


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(
        ScriptedReplies(REPLIES), num_speculative_tokens=5, template=TEMPLATE, max_model_len=2048, num_kv_blocks=512
    )


def ask(server: RunningServer, key: str, **options: Any) -> Any:
    options = {"temperature": 0, "messages": MESSAGES[key], **options}
    return server.client().chat.completions.create(model=NAME, **options).choices[0]


def streamed(server: RunningServer, key: str, **options: Any) -> dict[str, Any]:
    """The message that the chunks add up to, and the finish reason."""
    options = {"temperature": 0, "messages": MESSAGES[key], **options}
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in server.client().chat.completions.create(model=NAME, stream=True, **options):
        choice = chunk.choices[0]
        message["content"] += choice.delta.content or ""
        message["reasoning_content"] += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                assert call.type == "function" and call.index == len(message["tool_calls"])
                message["tool_calls"].append([call.function.name, ""])
            message["tool_calls"][call.index][1] += call.function.arguments
        message["finish_reason"] = choice.finish_reason or message.get("finish_reason")
    return message


def test_S3_S9_parallel_calls_are_equal_streamed_and_whole(server: RunningServer) -> None:
    choice = ask(server, "weather", tools=TOOLS)
    assert choice.finish_reason == "tool_calls" and choice.message.content == "I look."
    calls = [[call.function.name, call.function.arguments] for call in choice.message.tool_calls]
    assert calls == [["weather", ARGUMENTS], ["time", "{}"]]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    chunks = streamed(server, "weather", tools=TOOLS)
    assert chunks["tool_calls"] == calls and chunks["content"] == "I look."
    assert chunks["finish_reason"] == "tool_calls"
    assert server.engine.scheduler.statistics.num_accepted_tokens > 0


def test_only_one_call_where_parallel_ones_are_not_wanted(server: RunningServer) -> None:
    choice = ask(server, "weather", tools=TOOLS, parallel_tool_calls=False)
    assert [call.function.name for call in choice.message.tool_calls] == ["weather"]
    assert streamed(server, "weather", tools=TOOLS, parallel_tool_calls=False)["tool_calls"] == [["weather", ARGUMENTS]]


@pytest.mark.parametrize("options", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_calls_are_text(server: RunningServer, options: dict[str, Any]) -> None:
    choice = ask(server, "weather", **options)
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALLS, None, "stop")
    assert streamed(server, "weather", **options)["content"] == CALLS


def test_a_conversation_goes_on_after_a_call(server: RunningServer) -> None:
    message = ask(server, "weather", tools=TOOLS).message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"sunny {index}"}
        for index, call in enumerate(message.tool_calls)
    ]
    after = ask(server, "weather", tools=TOOLS, messages=[*MESSAGES["weather"], message.model_dump(), *results])
    assert after.message.content == "It is sunny." and after.finish_reason == "stop"


def test_what_is_no_call_is_text(server: RunningServer) -> None:
    choice = ask(server, "broken", tools=TOOLS)
    assert choice.message.content == REPLIES["broken"] and choice.finish_reason == "stop"
    assert streamed(server, "broken", tools=TOOLS)["content"] == REPLIES["broken"]


def test_S7_L8_reasoning_is_split_off(server: RunningServer) -> None:
    client = server.client()
    answer = client.chat.completions.create(model=NAME, messages=MESSAGES["think"], temperature=0, tools=TOOLS)
    message = answer.choices[0].message
    assert message.content == "\n\nAnswer: 42." and message.tool_calls is None
    assert message.model_extra is not None
    reasoning = message.model_extra["reasoning_content"]
    assert reasoning == "\nA <tool_call> here is no call."
    assert f"<think>{reasoning}</think>{message.content}" == REPLIES["think"]
    chunks = streamed(server, "think", tools=TOOLS)
    assert (chunks["reasoning_content"], chunks["content"]) == (reasoning, message.content)
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(reasoning)  # a token a character here
    quiet = ask(server, "think", extra_body={"include_reasoning": False})
    assert "reasoning_content" not in quiet.message.model_extra and quiet.message.content == "\n\nAnswer: 42."


def test_reasoning_before_a_call(server: RunningServer) -> None:
    choice = ask(server, "both", tools=TOOLS)
    assert choice.message.model_extra["reasoning_content"] == "Hm." and choice.message.content is None
    assert [call.function.arguments for call in choice.message.tool_calls] == ['{"zone": "UTC"}']


@pytest.mark.parametrize(
    "options", [{"reasoning_effort": "none"}, {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}]
)
def test_thinking_is_switched_off_by_the_template(server: RunningServer, options: dict[str, Any]) -> None:
    choice = ask(server, "hello", **options)
    assert choice.message.content == REPLIES["hello"]
    body = {"messages": MESSAGES["hello"], "chat_template_kwargs": {"enable_thinking": False}}
    written = httpx.post(f"{server.url}/tokenize", json=body, timeout=300).json()
    assert bytes(written["tokens"][-len("<think></think>") :]) == b"<think></think>"


@pytest.mark.parametrize("budget", [0, 3, 10, 500])
def test_S8_the_thinking_budget_is_exact_in_mid_block(server: RunningServer, budget: int) -> None:
    """The reply goes on after the forced marker with what it would have said there."""
    client = server.client()

    def ids(**speculative: Any) -> list[int]:
        answer = client.chat.completions.create(
            model=NAME,
            messages=MESSAGES["think"],
            temperature=0,
            max_tokens=70,
            extra_body={"thinking_token_budget": budget, "return_token_ids": True, "speculative": speculative},
        )
        assert answer.choices[0].model_extra is not None
        found: list[int] = answer.choices[0].model_extra["token_ids"]
        return found

    tokens = ids()
    assert tokens == ids(enabled=False)
    text = bytes(token for token in tokens if token != EOS).decode()
    thought = REPLIES["think"].removeprefix("<think>").partition("</think>")[0]
    assert text.startswith(f"<think>{thought[:budget]}</think>")


def test_M9_reasoning_tokens_are_never_more_than_all(start_server: Starter) -> None:
    """Twelve answers that end inside of the reasoning, which the prompt has opened."""
    own = start_server(
        ScriptedReplies(REPLIES), num_speculative_tokens=5, template=OPEN_TEMPLATE, max_model_len=512, num_kv_blocks=512
    )
    answer = own.client().chat.completions.create(
        model=NAME, messages=MESSAGES["endless"], max_tokens=64, n=12, temperature=0
    )
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 12 * 64 == answer.usage.completion_tokens
    for choice in answer.choices:
        assert choice.message.content == "" and choice.message.model_extra is not None
        assert len(choice.message.model_extra["reasoning_content"]) == 64


def test_tools_of_a_model_whose_template_has_none_are_written_as_text(start_server: Starter) -> None:
    plain = start_server(ScriptedReplies(REPLIES), num_speculative_tokens=3, max_model_len=2048, num_kv_blocks=512)
    choice = ask(plain, "weather", tools=TOOLS)
    assert [call.function.name for call in choice.message.tool_calls] == ["weather", "time"]
    written = httpx.post(
        f"{plain.url}/tokenize", json={"messages": MESSAGES["hello"], "tools": TOOLS}, timeout=300
    ).json()
    text = httpx.post(f"{plain.url}/detokenize", json={"tokens": written["tokens"]}, timeout=300).json()
    described = text["prompt"].split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line)["function"]["name"] for line in described] == ["weather", "time"]


def test_bad_arguments_of_an_earlier_call_are_refused_by_place(server: RunningServer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "time", "arguments": "{oops"}}
    messages: list[Any] = [*MESSAGES["weather"], {"role": "assistant", "content": None, "tool_calls": [call]}]
    with pytest.raises(openai.BadRequestError, match=r"messages\[1\].tool_calls\[0\].function.arguments"):
        ask(server, "weather", messages=messages)
