"""Bodies made to keep the server busy, and values made to come back whole."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest
from engine_helpers import TEMPLATE, TOKENIZER
from pydantic import ValidationError
from server_helpers import LONGEST_TOKEN, NAME, RunningServer, Starter

from slipstream.config import SettingError
from slipstream.request import RequestError
from slipstream.server.body import MAX_BODY_BYTES, MAX_CONTAINERS, MAX_STRINGS, MAX_VALUES, check_counts
from slipstream.server.serve import bind
from slipstream.server.served_model import VERY_LONG_TEXT, ServedModel
from slipstream.server.wire.chat import ChatRequest
from slipstream.server.wire.completions import CompletionRequest
from slipstream.server.wire.generation import GenerationRequest

MODEL_LEN = 8192
# Far above what is seen (about 0.1 s) and far below what each of these bodies once cost (7 to 110 s).
LONGEST_SILENCE_S = 1.0
DIGITS = "9" * 4300


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(max_model_len=MODEL_LEN, num_kv_blocks=2 * MODEL_LEN // 16)


def filled(before: str, item: str, after: str) -> bytes:
    """A body of almost the largest size, with as many items as fit."""
    return (before + item * ((MAX_BODY_BYTES - len(before) - len(after)) // len(item)) + after).encode()


def numbered(before: str, item: str, count: int, after: str) -> bytes:
    return (before + ",".join(item % index for index in range(count)) + after).encode()[:MAX_BODY_BYTES]


COMPLETION = '{"prompt":"x","max_tokens":2,'
TO_COMPLETIONS = {
    "prompt of objects": filled('{"prompt":[', "{},", "{}]}"),
    "prompt of floats": filled('{"prompt":[', "1.5,", "1.5]}"),
    "prompt of lists of floats": filled('{"prompt":[', "[1.5],", "[1]]}"),
    "prompt of ids, then text": filled('{"prompt":[', "1,", '"x"]}'),
    "prompt of ids": filled('{"prompt":[', "1,", "1]}"),
    "prompt of empty lists": filled('{"prompt":[', "[],", "[1]]}"),
    "prompt of strings": filled('{"prompt":[', '"",', '""]}'),
    "prompt of words": filled('{"prompt":"', "a b ", '"}'),
    "prompt of one word": filled('{"prompt":"', "a", '"}'),
    "prompt of blanks": filled('{"prompt":"', " ", '"}'),
    "stop of integers": filled(COMPLETION + '"stop":[', "1,", "1]}"),
    "stop of strings": filled(COMPLETION + '"stop":[', '"",', '""]}'),
    "stop of one string": filled(COMPLETION + '"stop":["', "a", '"]}'),
    "stop ids": filled(COMPLETION + '"stop_token_ids":[', "1,", "1]}"),
    "stop ids of wrong type": filled(COMPLETION + '"stop_token_ids":[', '"",', '""]}'),
    "biases": numbered(COMPLETION + '"logit_bias":{', '"%d":1', 500_000, "}}"),
    "biases of wrong type": numbered(COMPLETION + '"logit_bias":{', '"%d":[]', 500_000, "}}"),
    "biases of wrong keys": numbered(COMPLETION + '"logit_bias":{', '"x%d":1', 500_000, "}}"),
    "unknown name": filled(COMPLETION + '"', "k", '":1}'),
    "unknown names": numbered(COMPLETION, '"x%d":1', 500_000, "}"),
    "unknown names in stream_options": numbered(COMPLETION + '"stream_options":{', '"x%d":1', 500_000, "}}"),
    "tools": filled(COMPLETION + '"tools":[', "{},", "{}]}"),
    "model": filled(COMPLETION + '"model":"', "m", '"}'),
}
TO_CHAT = {
    "many messages": filled('{"messages":[', '{"role":"u","content":"x"},', '{"role":"u","content":"x"}]}'),
    "messages of wrong type": filled('{"messages":[', "1,", "1]}"),
    "long messages": (
        '{"messages":[' + ",".join([json.dumps({"role": "user", "content": "x " * 900})] * 4096) + "]}"
    ).encode(),
    "parts of wrong type": filled('{"messages":[{"role":"user","content":[', "{},", "{}]}]}"),
    "many parts": filled(
        '{"messages":[{"role":"user","content":[', '{"type":"text","text":""},', '{"type":"text","text":""}]}]}'
    ),
    "part of unknown type": filled('{"messages":[{"role":"user","content":[{"type":"', "t", '"}]}]}'),
    "tool calls": filled('{"messages":[{"role":"user","content":"x","tool_calls":[', "{},", "{}]}]}"),
    "unknown name in a message": filled('{"messages":[{"role":"user","content":"x","', "k", '":1}]}'),
    "unknown names in a message": numbered('{"messages":[{"role":"u","content":"x",', '"x%d":1', 500_000, "}]}"),
}
CALL = '{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"'
TO_CHAT |= {
    "arguments of lists": filled('{"messages":[' + CALL, "[],", '"}}]}]}'),
    "arguments of one word": filled('{"messages":[' + CALL, "a", '"}}]}]}'),
    "tool definitions": filled('{"messages":[{"role":"u","content":"x"}],"tools":[', "{},", "{}]}"),
    "names of tools": filled('{"messages":[{"role":"u","content":"x"}],"tool_choice":"', "t", '"}'),
    "template variables": numbered(
        '{"messages":[{"role":"u","content":"x"}],"chat_template_kwargs":{', '"x%d":1', 500_000, "}}"
    ),
    "bad words": filled('{"messages":[{"role":"u","content":"x"}],"bad_words":[', '"a",', '"a"]}'),
}
TO_RESPONSES = {
    "many items": filled('{"input":[', '{"role":"u","content":"x"},', '{"role":"u","content":"x"}]}'),
    "items of wrong type": filled('{"input":[', "1,", "1]}"),
    "input of one word": filled('{"input":"', "a", '"}'),
    "unknown names in an item": numbered('{"input":[{"role":"u","content":"x",', '"x%d":1', 500_000, "}]}"),
}
TO_MESSAGES = {
    "many blocks": filled(
        '{"max_tokens":2,"messages":[{"role":"user","content":[',
        '{"type":"text","text":""},',
        '{"type":"text","text":""}]}]}',
    ),
    "blocks of wrong type": filled('{"max_tokens":2,"messages":[{"role":"user","content":[', "1,", "1]}]}"),
    "system of one word": filled('{"max_tokens":2,"messages":[{"role":"user","content":"x"}],"system":"', "a", '"}'),
}
TO_TOKENIZE = {"prompt to tokenize": filled('{"prompt":"', "a b ", '"}')}
TO_DETOKENIZE = {"tokens to write out": b'{"tokens":[' + b"65," * 1_000_000 + b"65]}"}
ROUTES = {
    "/v1/completions": TO_COMPLETIONS,
    "/v1/chat/completions": TO_CHAT,
    "/v1/responses": TO_RESPONSES,
    "/v1/messages": TO_MESSAGES,
    "/tokenize": TO_TOKENIZE,
    "/detokenize": TO_DETOKENIZE,
}
BODIES = [(path, name) for path, bodies in ROUTES.items() for name in bodies]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CompletionRequest, {"prompt": [{}] * 1000}),
        (CompletionRequest, {"prompt": [1.5] * 1000}),
        (CompletionRequest, {"prompt": [[1.5] * 1000] * 200}),
        (CompletionRequest, {"prompt": "x", "stop": [1] * 1000}),
        (CompletionRequest, {"prompt": "x", "stop_token_ids": ["x"] * 1000}),
        (CompletionRequest, {"prompt": "x", "logit_bias": dict.fromkeys(map(str, range(1000)), "x")}),
        (CompletionRequest, {"prompt": "x", "stream_options": dict.fromkeys(map(str, range(1000)))}),
        (ChatRequest, {"messages": [1] * 1000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{}] * 1000}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": "x"} | dict.fromkeys(map(str, range(1000)))]}),
        (ChatRequest, {"messages": [{"role": "user", "content": "x", "tool_calls": [{}] * 1000}]}),
    ],
    ids=range(11),
)
def test_checks_stop_at_the_first_fault(kind: type[GenerationRequest], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(json.dumps(fields))
    assert caught.value.error_count() <= 5  # one per branch of a union


@pytest.mark.parametrize(
    ("item", "limit"), [("[],", MAX_CONTAINERS), ("{},", MAX_CONTAINERS), ('"",', MAX_STRINGS), ("1,", MAX_VALUES)]
)
def test_values_are_counted_outside_of_strings_only(item: str, limit: int) -> None:
    check_counts(("[" + item * (limit - 1) + "1]").encode())
    too_many = "[" + item * (limit + 1) + "1]"
    with pytest.raises(RequestError, match=f"more than {limit} "):
        check_counts(too_many.encode())
    for text in (too_many, "\\" + too_many, too_many + '\\"', '\\\\" [' + too_many):
        check_counts(json.dumps({"prompt": text, "stop": ["\\", '"', text]}).encode())


class Watch:
    """Asks /health without pause; `longest_s` is the longest it had to wait."""

    def __init__(self, url: str) -> None:
        self.longest_s = 0.0
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(timeout=120) as client:
            while not self._is_over.wait(0.01):
                begin = time.monotonic()
                assert client.get(f"{self._url}/health").status_code == 200
                self.longest_s = max(self.longest_s, time.monotonic() - begin)


@pytest.mark.timing
@pytest.mark.parametrize(("path", "name"), BODIES, ids=[name for _, name in BODIES])
def test_no_body_keeps_others_waiting(server: RunningServer, path: str, name: str) -> None:
    body = ROUTES[path][name]
    assert 1_000_000 < len(body) <= MAX_BODY_BYTES
    with Watch(server.url) as watch:
        time.sleep(0.05)
        answer = httpx.post(f"{server.url}{path}", content=body, timeout=120)
    assert answer.status_code in (400, 404), answer.text[:1000]
    assert answer.json()["error"]["message"]
    assert len(answer.content) < 2000
    assert watch.longest_s < LONGEST_SILENCE_S


@pytest.mark.timing
def test_a_full_batch_of_short_texts_lets_others_in(server: RunningServer) -> None:
    body = {"prompt": ["ab " * 1333] * 256, "max_tokens": MODEL_LEN}  # each fits, with its output it does not
    with Watch(server.url) as watch:
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "max_tokens"
    assert watch.longest_s < LONGEST_SILENCE_S


def served(max_request_tokens: int) -> ServedModel:
    return ServedModel(NAME, TOKENIZER, TEMPLATE, max_request_tokens, 0, longest_token=LONGEST_TOKEN)


@pytest.mark.parametrize("text", ["hello " * (VERY_LONG_TEXT // 3), "é日 hello" * (VERY_LONG_TEXT // 6)])
def test_long_texts_that_fit_keep_their_ids(text: str) -> None:
    expected = TOKENIZER.encode(text)
    assert len(text.encode()) > VERY_LONG_TEXT
    encode = served(len(expected) + 1).encode(text, add_special_tokens=True)
    assert asyncio.run(encode) == expected
    with pytest.raises(RequestError, match=f"at most {len(expected) // 2} tokens"):
        asyncio.run(served(len(expected) // 2).encode(text, add_special_tokens=True))


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("completions", "n"),
        ("completions", "max_tokens"),
        ("completions", "min_tokens"),
        ("completions", "top_k"),
        ("completions", "logprobs"),
        ("completions", "seed"),
        ("completions", "priority"),
        ("completions", "prompt"),
        ("completions", "stop_token_ids"),
        ("completions", "logit_bias"),
        ("completions", "temperature"),
        ("completions", "repetition_penalty"),
        ("chat/completions", "max_completion_tokens"),
        ("chat/completions", "top_logprobs"),
    ],
)
@pytest.mark.parametrize("digits", [DIGITS, "-" + DIGITS, str(2**64), str(-(2**64))], ids=lambda text: text[:5])
def test_integers_beyond_reason_are_refused_by_name(server: RunningServer, path: str, field: str, digits: str) -> None:
    body: dict[str, Any] = {"max_tokens": 2}
    if path == "completions":
        body["prompt"] = "x"
    else:
        body |= {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
    if field == "max_completion_tokens":
        del body["max_tokens"]
    if field == "seed" and len(digits) < 100:
        digits = str(int(digits) ** 2 * 2)
    value = {"prompt": "[%s]", "stop_token_ids": "[%s]", "logit_bias": '{"1":%s}'}.get(field, "%s") % digits
    text = json.dumps(body | {field: "VALUE"}).replace('"VALUE"', value)
    answer = httpx.post(f"{server.url}/v1/{path}", content=text)
    assert answer.status_code == 400, answer.text[:1000]
    error = answer.json()["error"]
    assert error["param"] == field and field in error["message"]
    assert len(answer.content) < 600


@pytest.mark.parametrize("seed", [2**128, -(2**128), 0])
def test_seeds_of_128_bits(server: RunningServer, seed: int) -> None:
    body = {"prompt": "x", "max_tokens": 2, "seed": seed}
    assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200


def test_priority_has_a_range(server: RunningServer) -> None:
    for priority in (-101, 101, -(2**31)):
        answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "priority": priority})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "priority" and "between -100 and 100" in error["message"]
    for priority in (-100, 100):
        body = {"prompt": "x", "max_tokens": 2, "priority": priority}
        assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200


def test_long_names_are_cut_wherever_they_come_back(server: RunningServer) -> None:
    name = "max_token" + "x" * 50_000
    message = {"role": "user", "content": "x"}
    answers = [
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", name: 1}),
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "logit_bias": {name: 1}}),
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "model": name}),
        httpx.post(f"{server.url}/v1/chat/completions", json={"messages": [{**message, name: 1}]}),
        httpx.post(f"{server.url}/v1/chat/completions", json={"messages": [{**message, "content": [{"type": name}]}]}),
        httpx.get(f"{server.url}/{name[:20_000]}"),
        httpx.request("X" * 20_000, f"{server.url}/v1/completions"),
    ]
    for answer in answers:
        assert 400 <= answer.status_code < 500
        assert answer.json()["error"]["message"]
        assert len(answer.content) < 1000


@pytest.mark.parametrize(
    "sent",
    [b"what is this?\r\n\r\n", b"GET / HTTP/1.1\r\nno colon here\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n"],
)
def test_what_is_no_http_gets_an_error_object(server: RunningServer, sent: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == "invalid_http"


def test_two_servers_that_load_at_once_cannot_share_a_port() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(SettingError, match=f"--port {port} cannot be listened on"):
            bind("127.0.0.1", port)
