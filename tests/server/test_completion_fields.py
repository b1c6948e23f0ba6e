"""Parameters of `/v1/completions` and chat that say something of the prompt, or restrict the tokens."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from engine_helpers import TOKENIZER
from server_helpers import NAME, RunningServer, Starter

PROMPT = [ord(character) for character in "the quick brown fox jumps over the lazy dog, " * 3][:100]


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(num_speculative_tokens=4)


@pytest.fixture(scope="module")
def plain(start_server: Starter) -> RunningServer:
    return start_server()


def ask(server: RunningServer, path: str = "/v1/completions", **fields: Any) -> dict[str, Any]:
    body = {"model": NAME, "max_tokens": 12, "temperature": 0, **fields}
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_L5_echo_with_logprobs_of_a_chunked_prompt(server: RunningServer, plain: RunningServer) -> None:
    """100 prompt tokens in chunks of at most 64 rows."""
    options: dict[str, Any] = {"prompt": PROMPT, "echo": True, "logprobs": 1}
    choice = ask(server, **options)["choices"][0]
    logprobs = choice["logprobs"]
    assert choice == ask(plain, **options)["choices"][0]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 112
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:100])
    assert "".join(logprobs["tokens"]) == choice["text"] and choice["text"].startswith(TOKENIZER.decode(PROMPT))
    assert logprobs["text_offset"] == list(range(112))
    assert len(set(logprobs["token_logprobs"])) > 50


def test_logprobs_of_a_prompt_are_those_of_its_tokens_when_generated(server: RunningServer) -> None:
    """What the model said with log probabilities, put back as a prompt, has the same ones."""
    first = ask(server, prompt=PROMPT, logprobs=2, return_token_ids=True)["choices"][0]
    again = ask(server, prompt=PROMPT + first["token_ids"], prompt_logprobs=2, max_tokens=1)["choices"][0]
    entries = again["prompt_logprobs"]
    assert entries[0] is None and len(entries) == 112
    for token_id, value, entry in zip(
        first["token_ids"], first["logprobs"]["token_logprobs"], entries[100:], strict=True
    ):
        own = entry[str(token_id)]
        assert own["logprob"] == pytest.approx(value, abs=1e-12) and own["rank"] == 1
        assert len(entry) == 2 and own["decoded_token"] == chr(token_id)


def test_prompt_logprobs_do_not_depend_on_what_is_cached(server: RunningServer) -> None:
    options: dict[str, Any] = {"prompt": PROMPT, "prompt_logprobs": 0, "n": 2, "seed": 3, "temperature": 1}
    first, second = ask(server, **options), ask(server, **options)
    assert first["choices"][0]["prompt_logprobs"] == second["choices"][1]["prompt_logprobs"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert ask(server, prompt=PROMPT)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_chat_has_prompt_logprobs_and_token_ids(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answer = ask(server, "/v1/chat/completions", messages=messages, prompt_logprobs=1, return_token_ids=True)
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert TOKENIZER.decode(answer["choices"][0]["token_ids"]) == answer["choices"][0]["message"]["content"]


def test_echo_alone_generates_nothing(server: RunningServer) -> None:
    answer = ask(server, prompt="hello wo", echo=True, max_tokens=0, logprobs=0)
    choice = answer["choices"][0]
    assert choice["text"] == "hello wo" and choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("fields", [{}, {"logprobs": 1}, {"max_tokens": 0}, {"max_tokens": 0, "logprobs": 1}])
def test_F11_echo_is_equal_streamed_and_whole(server: RunningServer, fields: dict[str, Any]) -> None:
    options: dict[str, Any] = {"prompt": ["hello", "wo"], "n": 2, "seed": 1, "temperature": 1, "echo": True, **fields}
    whole = ask(server, **options, return_token_ids=True)
    body = {"model": NAME, "max_tokens": 12, **options, "stream": True, "return_token_ids": True}
    text = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    for number, choice in enumerate(whole["choices"]):
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == number]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
        assert parts[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"] == "length"
        if "logprobs" in fields:
            for name, values in choice["logprobs"].items():
                assert [value for part in parts for value in part["logprobs"][name]] == values


def test_tokens_as_ids(server: RunningServer) -> None:
    as_ids = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    choice = ask(server, prompt="hello", logprobs=1, **as_ids)["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    chat = ask(
        server,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "hello"}],
        logprobs=True,
        return_tokens_as_token_ids=True,
    )
    entries = chat["choices"][0]["logprobs"]["content"]
    assert all(entry["token"].removeprefix("token_id:").isdigit() for entry in entries)


@pytest.mark.parametrize("temperature", [0, 1])
def test_G20_allowed_tokens_and_bad_words(server: RunningServer, plain: RunningServer, temperature: float) -> None:
    def text(where: RunningServer, **fields: Any) -> str:
        options = {"prompt": "hello", "seed": 2, "temperature": temperature, "max_tokens": 60, **fields}
        found: str = ask(where, **options)["choices"][0]["text"]
        return found

    allowed = [ord("a"), ord("b"), ord("c")]
    assert set(text(server, allowed_token_ids=allowed)) <= set("abc")
    assert text(server, allowed_token_ids=allowed) == text(plain, allowed_token_ids=allowed)
    likes = {str(ord("Q")): 20, str(ord("Z")): 20}
    pairs = text(server, logit_bias=likes)
    bad = pairs[:2]
    without = text(server, logit_bias=likes, bad_words=[bad])
    assert bad in pairs and bad not in without and without != pairs
    assert without == text(plain, logit_bias=likes, bad_words=[bad])


def test_every_step_of_a_restricted_answer_still_verifies_drafts(server: RunningServer) -> None:
    answer = ask(server, prompt="hello", max_tokens=40, allowed_token_ids=[ord("a"), ord("b")], prompt_logprobs=0)
    assert answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
