"""Structured output and forced tool calls over the API, with speculation on."""

from __future__ import annotations

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from scripted_chat import MESSAGES, REPLIES, TEMPLATE, ScriptedReplies
from server_helpers import NAME, RunningServer, Starter

from slipstream.request import OutputConstraint
from slipstream.sampling.grammar import GrammarCompiler

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"sky": {"enum": ["blue", "grey"]}, "rain": {"type": "boolean"}},
    "required": ["sky", "rain"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "Outside.", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {"name": "time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
    },
]
ITEMS: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]
NO_SPECULATION = {"speculative": {"enabled": False}}


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    """Its model does not reason; what it says fits no form."""
    return start_server(ScriptedReplies(REPLIES), num_speculative_tokens=5, max_model_len=2048, num_kv_blocks=512)


def post(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{path}", json={"temperature": 0, **body}, timeout=300)


def ask(server: RunningServer, key: str, **options: Any) -> Any:
    """The first choice of a chat completion."""
    answer = post(server, "chat/completions", messages=MESSAGES[key], **{"max_tokens": 400, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def is_valid(text: str, schema: Any = SCHEMA) -> bool:
    return bool(Draft202012Validator(schema).is_valid(json.loads(text)))


@pytest.mark.parametrize("key", ["hello", "weather"])
def test_an_answer_is_held_to_its_schema_with_drafts_and_without(
    server: RunningServer, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What the model would say is no JSON."""
    with caplog.at_level(logging.WARNING):
        choice = ask(server, key, response_format=FORMAT)
    assert choice["finish_reason"] == "stop" and is_valid(choice["message"]["content"])
    plain = ask(server, key, response_format=FORMAT, **NO_SPECULATION)
    assert plain["message"] == choice["message"] and not caplog.records
    assert server.engine.scheduler.statistics.num_accepted_tokens > 0


def test_streamed_and_whole_answers_are_equal(server: RunningServer) -> None:
    client = server.client()
    whole = ask(server, "hello", response_format=FORMAT)["message"]["content"]
    chunks = client.chat.completions.create(
        model=NAME,
        messages=MESSAGES["hello"],
        temperature=0,
        response_format=FORMAT,  # type: ignore[call-overload]
        stream=True,
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


def test_every_choice_is_valid(server: RunningServer) -> None:
    answer = post(
        server,
        "chat/completions",
        messages=MESSAGES["hello"],
        response_format=FORMAT,
        n=6,
        temperature=2.0,
        seed=3,
        max_tokens=400,
    ).json()
    assert len(answer["choices"]) == 6
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop" and is_valid(choice["message"]["content"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ("yes", "no")),
        ({"structured_outputs": {"regex": "(yes|no)!"}}, ("yes!", "no!")),
        ({"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}}, ("yes", "no")),
        ({"guided_choice": ["yes", "no"]}, ("yes", "no")),
        ({"guided_regex": "(yes|no)!"}, ("yes!", "no!")),
        ({"guided_grammar": 'start: "yes" | "no"'}, ("yes", "no")),
    ],
)
def test_vllms_fields(server: RunningServer, fields: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert ask(server, "hello", **fields)["message"]["content"] in expected
    completion = post(server, "completions", prompt="What?", max_tokens=100, **fields).json()["choices"][0]
    assert completion["text"] in expected and completion["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"response_format": FORMAT},
    ],
)
def test_schemas_in_completions(server: RunningServer, fields: dict[str, Any]) -> None:
    choice = post(server, "completions", prompt="What?", max_tokens=200, **fields).json()["choices"][0]
    assert choice["finish_reason"] == "stop" and is_valid(choice["text"])


def test_text_format_of_responses(server: RunningServer) -> None:
    text = {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}}
    answer = post(server, "responses", input="Please hello", text=text, max_output_tokens=400).json()
    assert answer["status"] == "completed" and is_valid(answer["output"][0]["content"][0]["text"])


def test_an_answer_cut_at_its_limit_is_the_beginning_of_a_document(server: RunningServer) -> None:
    whole = ask(server, "hello", response_format=FORMAT)["message"]["content"]
    cut = ask(server, "hello", response_format=FORMAT, max_tokens=9)
    assert cut["finish_reason"] == "length" and whole.startswith(cut["message"]["content"])


def test_S6_one_json_object_while_seven_plain_requests_run(server: RunningServer) -> None:
    def one(number: int) -> httpx.Response:
        options: dict[str, Any] = {"messages": MESSAGES["endless"], "max_tokens": 60}
        if number == 3:
            options = {"messages": MESSAGES["hello"], "response_format": FORMAT, "max_tokens": 400}
        return post(server, "chat/completions", **options)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert is_valid(texts.pop(3)) and set(texts) == {"x" * 60}
    loose = post(
        server, "chat/completions", messages=MESSAGES["hello"], response_format={"type": "json_object"}, max_tokens=40
    )
    assert loose.status_code == 200 and loose.json()["choices"][0]["message"]["content"].startswith("{")


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    found = choice["message"].get("tool_calls") or ()
    return [(call["function"]["name"], call["function"]["arguments"]) for call in found]


@pytest.mark.parametrize("key", ["hello", "sunny", "broken"])
def test_S3_a_forced_call_is_made_and_its_arguments_fit(server: RunningServer, key: str) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice_of_tool in (named, "required"):
        choice = ask(server, key, tools=TOOLS[:1], tool_choice=choice_of_tool, parallel_tool_calls=False)
        ((name, arguments),) = calls_of(choice)
        assert name == "weather" and is_valid(arguments) and choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        plain = ask(
            server, key, tools=TOOLS[:1], tool_choice=choice_of_tool, parallel_tool_calls=False, **NO_SPECULATION
        )
        assert calls_of(plain) == [(name, arguments)]


def test_the_named_function_is_called_and_no_other(server: RunningServer) -> None:
    for name in ("weather", "time"):
        named = {"type": "function", "function": {"name": name}}
        choice = ask(server, "hello", tools=TOOLS, tool_choice=named, parallel_tool_calls=False)
        assert [call[0] for call in calls_of(choice)] == [name]


def test_calls_that_the_model_wants_stay_parallel_where_they_may(server: RunningServer) -> None:
    """The reply has two calls; held to a required one they are still two, held to one they are one."""
    for parallel, most in ((True, 128), (False, 1)):
        choice = ask(server, "weather", tools=TOOLS, tool_choice="required", parallel_tool_calls=parallel)
        calls = calls_of(choice)
        assert 1 <= len(calls) <= most
        for name, arguments in calls if choice["finish_reason"] == "tool_calls" else calls[:-1]:
            assert is_valid(arguments, SCHEMA if name == "weather" else TOOLS[1]["function"]["parameters"])


def test_reasoning_comes_before_a_forced_call(start_server: Starter) -> None:
    own = start_server(
        ScriptedReplies(REPLIES), num_speculative_tokens=5, template=TEMPLATE, max_model_len=2048, num_kv_blocks=512
    )
    choice = ask(own, "both", tools=TOOLS[1:], tool_choice="required", parallel_tool_calls=False)
    assert choice["message"]["reasoning_content"] == "Hm." and calls_of(choice)[0][0] == "time"


def test_forced_calls_in_responses_and_messages(server: RunningServer) -> None:
    answer = post(
        server,
        "responses",
        input="Please hello",
        tools=ITEMS,
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
        max_output_tokens=400,
    ).json()
    (call,) = answer["output"]
    assert call["type"] == "function_call" and call["name"] == "weather" and is_valid(call["arguments"])
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    message = post(
        server,
        "messages",
        messages=MESSAGES["hello"],
        tools=tools,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_tokens=400,
    ).json()
    (block,) = message["content"]
    assert message["stop_reason"] == "tool_use" and block["name"] == "weather"
    assert Draft202012Validator(SCHEMA).is_valid(block["input"])


def test_a_format_leaves_room_for_calls_that_may_be_made(server: RunningServer) -> None:
    choice = ask(server, "hello", tools=TOOLS, response_format=FORMAT, parallel_tool_calls=False)
    calls = calls_of(choice)
    assert bool(calls) != bool(choice["message"]["content"])
    assert is_valid(calls[0][1] if calls else choice["message"]["content"]) or calls[0][0] == "time"


@pytest.mark.parametrize(
    ("fields", "parameter", "reason"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "response_format",
            "x",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format", "missing"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "structural_tag"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "unclosed"),
        ({"structured_outputs": {"grammar": "start: nowhere"}}, "structured_outputs", "nowhere"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "at least 1"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "structural_tag"),
        ({"structured_outputs": {"json": "{oops"}}, "structured_outputs", "JSON schema"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "send one"),
        ({"guided_json": {"type": "object", "dependentSchemas": {"a": {}}}}, "guided_json", "dependentSchemas"),
        ({"response_format": FORMAT, "stop": ["}"]}, "stop", "response_format"),
        ({"structured_outputs": {"regex": "a"}, "tools": TOOLS}, "structured_outputs", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice", "no"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}]}
            | {"tool_choice": "required"},
            "tools",
            "x",
        ),
    ],
)
def test_what_cannot_be_held_to_is_refused_by_name_before_it_is_queued(
    server: RunningServer, fields: dict[str, Any], parameter: str, reason: str
) -> None:
    finished = dict(server.engine.scheduler.statistics.num_finished)
    answer = post(server, "chat/completions", messages=MESSAGES["hello"], max_tokens=5, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == parameter and reason in error["message"]
    assert server.engine.scheduler.statistics.num_finished == finished and not server.engine.load.num_running


def test_compiling_holds_up_nobody_else(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_now, may_go_on = GrammarCompiler._compile, threading.Event()

    def slowly(self: GrammarCompiler, constraint: OutputConstraint) -> Any:
        assert may_go_on.wait(120)
        return compile_now(self, constraint)

    monkeypatch.setattr(GrammarCompiler, "_compile", slowly)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "hello", structured_outputs={"regex": "new [0-9]"})
        time.sleep(0.2)
        assert ask(server, "hello")["message"]["content"] == REPLIES["hello"]
        assert not waiting.done()
        may_go_on.set()
        assert waiting.result()["message"]["content"].startswith("new ")
