"""`/v1/responses` with the openai client: whole, as events, and through the client's own accumulator."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from scripted_chat import FUNCTIONS, REPLIES, TEMPLATE, ScriptedReplies
from server_helpers import NAME, RunningServer, Starter

TOOLS: list[Any] = [{"type": "function", "strict": False, **function} for function in FUNCTIONS]
ARGUMENTS = '{"city": "Köln", "days": [1, 2]}'


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(
        ScriptedReplies(REPLIES), num_speculative_tokens=5, template=TEMPLATE, max_model_len=2048, num_kv_blocks=512
    )


def create(server: RunningServer, text: Any, **options: Any) -> Any:
    return server.client().responses.create(model=NAME, input=text, temperature=0, **options)


def test_text_in_text_out(server: RunningServer) -> None:
    include: Any = ["reasoning.encrypted_content"]
    response = create(server, "Please hello", instructions="Be kind.", max_output_tokens=200, include=include)
    assert "reasoning.encrypted_content" in response.model_extra["warnings"][0]
    assert response.status == "completed" and response.output_text == REPLIES["hello"]
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert response.usage.output_tokens == len(REPLIES["hello"].encode()) + 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.model_extra["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    assert response.store is False and response.max_output_tokens == 200


def test_a_cut_answer_is_incomplete(server: RunningServer) -> None:
    response = create(server, "Please hello", max_output_tokens=5)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "Hello" and response.output[0].status == "incomplete"
    events = list(create(server, "Please hello", max_output_tokens=5, stream=True))
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == "Hello"


@pytest.mark.parametrize("key", ["hello", "think", "weather", "both", "broken"])
def test_events_add_up_to_the_whole_answer(server: RunningServer, key: str) -> None:
    whole = create(server, f"Please {key}", tools=TOOLS)
    events = list(create(server, f"Please {key}", tools=TOOLS, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0].response.output == [] and events[-1].type == "response.completed"
    final = events[-1].response

    def shape(response: Any) -> list[dict[str, Any]]:
        drawn = ("id", "call_id")
        return [{k: v for k, v in item.model_dump().items() if k not in drawn} for item in response.output]

    assert shape(final) == shape(whole)
    assert final.usage.total_tokens == whole.usage.total_tokens
    assert final.usage.output_tokens_details == whole.usage.output_tokens_details
    texts: dict[int, str] = {}
    opened: list[str] = []
    for event in events:
        if event.type == "response.output_item.added":
            assert event.output_index == len(opened)
            opened.append(event.item.type)
        elif event.type.endswith(".delta"):
            texts[event.output_index] = texts.get(event.output_index, "") + event.delta
        elif event.type in ("response.output_text.done", "response.reasoning_text.done"):
            assert texts[event.output_index] == event.text
        elif event.type == "response.function_call_arguments.done":
            assert texts[event.output_index] == event.arguments
    assert opened == [item.type for item in final.output]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump() for item in done] == [item.model_dump() for item in final.output]


def test_function_calls_go_round(server: RunningServer) -> None:
    response = create(server, "Please weather", tools=TOOLS)
    message, first, second = response.output
    assert (message.type, response.output_text) == ("message", "I look.")
    assert (first.name, first.arguments, second.name, second.arguments) == ("weather", ARGUMENTS, "time", "{}")
    history: list[Any] = [{"role": "user", "content": "Please weather"}]
    history += [item.model_dump(exclude_none=True) for item in response.output]
    history += [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in (first, second)
    ]
    assert create(server, history, tools=TOOLS).output_text == "It is sunny."
    only = create(server, "Please weather", tools=TOOLS, parallel_tool_calls=False)
    assert [item.type for item in only.output] == ["message", "function_call"]


def test_reasoning_is_an_item_of_its_own(server: RunningServer) -> None:
    response = create(server, "Please think")
    reasoning, message = response.output
    assert reasoning.type == "reasoning" and reasoning.content[0].text == "\nA <tool_call> here is no call."
    assert message.content[0].text == "\n\nAnswer: 42."
    assert response.usage.output_tokens_details.reasoning_tokens == len(reasoning.content[0].text)
    history: list[Any] = [item.model_dump(exclude_none=True) for item in response.output]
    follow_up = [{"role": "user", "content": "x"}, *history, {"role": "user", "content": "hello"}]
    assert create(server, follow_up).output_text == REPLIES["hello"]


def test_the_clients_own_accumulator(server: RunningServer) -> None:
    with server.client().responses.stream(model=NAME, input="Please weather", tools=TOOLS, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == "I look." and [item.type for item in final.output][1:] == ["function_call"] * 2


def test_logprobs(server: RunningServer) -> None:
    response = create(server, "Please hello", top_logprobs=2)
    entries = response.output[0].content[0].logprobs
    assert len(entries) == response.usage.output_tokens and all(len(entry.top_logprobs) == 2 for entry in entries)
    events = list(create(server, "Please hello", top_logprobs=2, stream=True))
    streamed = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in entries][: len(streamed)]


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"max_output_tokens": 0}, "max_tokens"),
        ({"temperature": 1000}, "temperature"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    server: RunningServer, fields: dict[str, Any], parameter: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().responses.create(**{"model": NAME, "input": "Please hello", **fields})
    assert caught.value.param == parameter, caught.value.message


def test_a_stream_that_its_client_leaves_ends(start_server: Starter) -> None:
    own = start_server(num_speculative_tokens=2, max_model_len=4096, num_kv_blocks=512)
    for path, fields in (
        ("/v1/responses", {"input": "hello", "max_output_tokens": 3000}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3000}),
    ):
        with httpx.stream("POST", f"{own.url}{path}", json={**fields, "stream": True}, timeout=60) as response:
            next(response.iter_bytes())
        own.wait_idle(20.0)
