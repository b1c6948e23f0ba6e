"""`/v1/messages` with the anthropic client."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from scripted_chat import FUNCTIONS, REPLIES, TEMPLATE, ScriptedReplies
from server_helpers import NAME, RunningServer, Starter

anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed (pip install -e '.[dev]')")

TOOLS: list[Any] = [
    {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
    for function in FUNCTIONS
]
# Not every version of the client takes it as an argument.
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(
        ScriptedReplies(REPLIES), num_speculative_tokens=5, template=TEMPLATE, max_model_len=2048, num_kv_blocks=512
    )


def client(server: RunningServer) -> Any:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300)


def create(server: RunningServer, key: str, **options: Any) -> Any:
    options = {"messages": [{"role": "user", "content": f"Please {key}"}], "max_tokens": 300, **options}
    return client(server).messages.create(model=NAME, extra_body=GREEDY, **options)


def streamed(server: RunningServer, key: str, **options: Any) -> tuple[Any, list[Any]]:
    """The message that the client puts together, and the events."""
    options = {"messages": [{"role": "user", "content": f"Please {key}"}], "max_tokens": 300, **options}
    with client(server).messages.stream(model=NAME, extra_body=GREEDY, **options) as stream:
        events = list(stream)
        return stream.get_final_message(), events


def blocks(message: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in block.model_dump(exclude_none=True).items() if k != "id"} for block in message.content]


def test_text_in_text_out(server: RunningServer) -> None:
    message = create(
        server, "hello", system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    )
    assert [block.text for block in message.content] == [REPLIES["hello"]]
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
    assert message.usage.output_tokens == len(REPLIES["hello"].encode()) + 1
    assert message.model_extra["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    again = create(server, "hello", system="Be kind.")
    assert again.usage.cache_read_input_tokens > 0
    total = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == total
    count = client(server).messages.count_tokens(
        model=NAME, system="Be kind.", messages=[{"role": "user", "content": "Please hello"}]
    )
    assert count.input_tokens == total


@pytest.mark.parametrize("key", ["hello", "think", "weather", "both", "broken"])
def test_events_add_up_to_the_whole_answer(server: RunningServer, key: str) -> None:
    whole = create(server, key, tools=TOOLS)
    final, events = streamed(server, key, tools=TOOLS)
    assert blocks(final) == blocks(whole)
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    kinds = [event.type for event in events if event.type.startswith(("message", "content_block_st"))]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(final.content)


def test_tools_go_round(server: RunningServer) -> None:
    message = create(server, "weather", tools=TOOLS)
    text, first, second = message.content
    assert text.text == "I look." and message.stop_reason == "tool_use"
    assert (first.name, first.input) == ("weather", {"city": "Köln", "days": [1, 2]})
    assert (second.name, second.input) == ("time", {})
    results = [
        {"type": "tool_result", "tool_use_id": first.id, "content": "sunny"},
        {"type": "tool_result", "tool_use_id": second.id, "content": [{"type": "text", "text": "sunny, too"}]},
    ]
    history = [
        {"role": "user", "content": "Please weather"},
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
        {"role": "user", "content": results},
    ]
    assert create(server, "", tools=TOOLS, messages=history).content[0].text == "It is sunny."
    one = create(server, "weather", tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.type for block in one.content] == ["text", "tool_use"]
    none = create(server, "weather", tools=TOOLS, tool_choice={"type": "none"})
    assert [block.text for block in none.content] == [REPLIES["weather"]]


def test_thinking_is_a_block_and_bounded(server: RunningServer) -> None:
    message = create(server, "think", thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == "\nA <tool_call> here is no call."
    short = create(server, "think", thinking={"type": "enabled", "budget_tokens": 7})
    assert short.content[0].thinking == "\nA <tool_call> here is no call."[:7]
    off = create(server, "hello", thinking={"type": "disabled"})
    assert [block.type for block in off.content] == ["text"]


def test_stop_sequences_and_limits(server: RunningServer) -> None:
    message = create(server, "hello", stop_sequences=["you"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "you")
    assert message.content[0].text == "Hello "
    final, _ = streamed(server, "hello", stop_sequences=["you"])
    assert (final.stop_reason, final.stop_sequence, final.content[0].text) == ("stop_sequence", "you", "Hello ")
    cut = create(server, "hello", max_tokens=5)
    assert (cut.stop_reason, cut.content[0].text) == ("max_tokens", "Hello")


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "no"}}, "tool_choice"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"thinking": {"type": "deep"}}, "thinking"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    server: RunningServer, fields: dict[str, Any], parameter: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(server, "hello", **fields)
    body = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == parameter, body


def test_errors_without_the_client(server: RunningServer) -> None:
    missing = httpx.post(
        f"{server.url}/v1/messages", json={"messages": [{"role": "user", "content": "x"}]}, timeout=300
    ).json()
    assert missing["type"] == "error" and missing["error"]["param"] == "max_tokens"
    unknown = {"model": "gpt", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    answer = httpx.post(f"{server.url}/v1/messages", json=unknown, timeout=300)
    assert answer.status_code == 404 and answer.json()["type"] == "error"


def test_thinking_of_a_model_that_does_not_is_noted(start_server: Starter) -> None:
    plain = start_server(ScriptedReplies(REPLIES), max_model_len=2048, num_kv_blocks=512)
    message = create(plain, "hello", thinking={"type": "enabled", "budget_tokens": 1024})
    assert "does not reason" in message.model_extra["warnings"][0]
    assert message.content[0].text == REPLIES["hello"]
