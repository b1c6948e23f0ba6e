"""`/tokenize`, `/detokenize` and `/version`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from engine_helpers import EOS, TOKENIZER
from server_helpers import NAME, RunningServer, Starter

from slipstream.version import __version__


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server()


def post(server: RunningServer, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=300)


@pytest.mark.parametrize("text", ["hello world", "日本 👩‍👩‍👧 é", "", "<|start|>hello<|end|>"])
def test_there_and_back(server: RunningServer, text: str) -> None:
    answer = post(server, "/tokenize", {"model": NAME, "prompt": text, "return_token_strs": True}).json()
    assert answer["tokens"] == TOKENIZER.encode(text) and answer["count"] == len(answer["tokens"])
    assert len(answer["token_strs"]) == answer["count"] and answer["max_model_len"] == 256
    assert post(server, "/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": text}


def test_a_conversation_has_the_tokens_that_chat_counts(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answer = post(server, "/tokenize", {"messages": messages}).json()
    chat = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 1}).json()
    assert answer["count"] == chat["usage"]["prompt_tokens"] and answer["token_strs"] is None
    closed = post(server, "/tokenize", {"messages": messages, "add_generation_prompt": False}).json()
    assert closed["tokens"] == answer["tokens"][: closed["count"]] and EOS in closed["tokens"]
    assert closed["count"] < answer["count"]
    roles = [post(server, "/tokenize", {"messages": [{"role": r, "content": "x"}]}) for r in ("developer", "system")]
    assert roles[0].json() == roles[1].json()


@pytest.mark.parametrize(
    ("path", "body", "parameter"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model"),
        ("/tokenize", {"prompt": "x " * 10_000}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
)
def test_refusals_name_the_field(server: RunningServer, path: str, body: Any, parameter: str) -> None:
    answer = post(server, path, body)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == parameter


def test_version(server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/version", timeout=300).json() == {"version": __version__}
