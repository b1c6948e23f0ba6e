"""Speculation in the API: switched and bounded per request, counted per choice, and told token by token."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from engine_helpers import TOKENIZER
from page_model import UnsureDrafter, timed
from server_helpers import NAME, RunningServer, Starter

K = 4
COUNTS = ("drafted", "admitted", "verified", "accepted")


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(num_speculative_tokens=K)


@pytest.fixture(scope="module")
def unsure(start_server: Starter) -> RunningServer:
    return start_server(num_speculative_tokens=K, wrap=timed(UnsureDrafter))


@pytest.fixture(scope="module")
def plain(start_server: Starter) -> RunningServer:
    return start_server()


def ask(server: RunningServer, **fields: Any) -> dict[str, Any]:
    body = {"model": NAME, "prompt": "hello", "max_tokens": 40, "seed": 1, **fields}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def events(server: RunningServer, path: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": NAME, "max_tokens": 40, "seed": 1, "stream": True, **fields}
    text = httpx.post(f"{server.url}{path}", json=body, timeout=300).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def drafts(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["metrics"]["speculative_decoding"]
    return found


def test_the_report_adds_up(server: RunningServer) -> None:
    answer = ask(server, speculative={"metrics": "detailed"})
    report = drafts(answer)
    accepted, verified = report["per_step_accepted"], report["per_step_drafted"]
    assert len(accepted) == len(verified) == report["num_spec_steps"] > 0
    assert report["num_accepted_draft_tokens"] == sum(accepted) > 10
    assert report["num_draft_tokens"] == report["num_verified_tokens"] == sum(verified)
    assert report["acceptance_histogram"] == [accepted.count(count) for count in range(K + 1)]
    assert report["num_spec_tokens"] == K
    assert report["mean_acceptance_length"] == pytest.approx(1 + sum(accepted) / len(accepted))
    assert report["draft_acceptance_rate"] == pytest.approx(sum(accepted) / sum(verified))
    assert report["num_steps"] + sum(accepted) == 40, "every step gives one token, and each accepted draft one more"
    totals = [report[f"num_{name}_tokens"] for name in COUNTS[:3]] + [report["num_accepted_draft_tokens"]]
    assert totals == sorted(totals, reverse=True)
    for name, total in zip(COUNTS, totals, strict=True):
        assert len(report[f"{name}_per_position"]) == K and sum(report[f"{name}_per_position"]) == total
    times = answer["metrics"]
    assert times["time_to_first_token_ms"] > 0 and times["generation_time_ms"] > 0 and times["queue_time_ms"] >= 0
    assert times["tokens_per_second"] == pytest.approx(1000 / times["mean_itl_ms"])


def test_the_report_agrees_with_the_engines_counters(start_server: Starter) -> None:
    own = start_server(num_speculative_tokens=K)
    reports = [drafts(ask(own, seed=seed, n=2)) for seed in range(4)]
    statistics = own.engine.scheduler.statistics
    assert sum(report["num_accepted_draft_tokens"] for report in reports) == statistics.num_accepted_tokens
    assert sum(report["num_verified_tokens"] for report in reports) == statistics.num_verified_tokens
    assert sum(report["num_drafted_tokens"] for report in reports) == statistics.num_drafted_tokens
    assert sum(report["num_admitted_tokens"] for report in reports) == statistics.num_admitted_tokens


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_each_of_several_choices_has_its_own_report(server: RunningServer, path: str) -> None:
    body: dict[str, Any] = {"model": NAME, "max_tokens": 40, "seed": 1, "n": 3}
    body |= {"prompt": "hello"} if "chat" not in path else {"messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=300).json()
    reports = [drafts(choice) for choice in answer["choices"]]
    for name in ("num_steps", "num_spec_steps", "num_drafted_tokens", "num_accepted_draft_tokens"):
        assert sum(report[name] for report in reports) == drafts(answer)[name] > 0
    assert "time_to_first_token_ms" not in answer["metrics"], "which of the three would it be?"
    del body["max_tokens"], body["seed"], body["model"]
    chunks = events(server, path, **body, stream_options={"include_usage": True})
    streamed = {
        choice["index"]: drafts(choice) for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]
    }
    assert [streamed[number] for number in range(3)] == reports
    assert drafts(chunks[-1]) == drafts(answer)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_drafts_are_bounded_per_request(server: RunningServer, plain: RunningServer, most: int) -> None:
    bounded = ask(server, speculative={"enabled": True, "num_speculative_tokens": most, "metrics": "detailed"})
    report = drafts(bounded)
    assert bounded["choices"][0]["text"] == ask(plain)["choices"][0]["text"]
    assert max(report["per_step_drafted"], default=0) == most == report["num_spec_tokens"]
    assert len(report["acceptance_histogram"]) == most + 1


def test_speculation_is_switched_off_per_request(server: RunningServer) -> None:
    before = server.engine.scheduler.statistics.num_drafted_tokens
    answer = ask(server, speculative={"enabled": False})
    assert server.engine.scheduler.statistics.num_drafted_tokens == before
    assert drafts(answer)["num_drafted_tokens"] == 0 and drafts(answer)["mean_acceptance_length"] == 1.0
    assert answer["choices"][0]["text"] == ask(server)["choices"][0]["text"]
    assert "metrics" not in ask(server, speculative={"metrics": "none"})


def test_a_server_without_drafts_says_so(plain: RunningServer) -> None:
    answer = ask(plain, speculative={"enabled": True})
    assert answer["metrics"]["speculative_decoding"] is None
    assert "makes none" in answer["warnings"][0]
    assert "warnings" not in ask(plain, speculative={"enabled": False})


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_every_chunk_tells_where_its_tokens_came_from(server: RunningServer, path: str) -> None:
    body: dict[str, Any] = {"return_token_ids": True, "stop": ["~~~~"]}
    body |= {"prompt": "hello"} if "chat" not in path else {"messages": [{"role": "user", "content": "hello"}]}
    chunks = events(server, path, **body, stream_options={"include_token_sources": True, "include_usage": True})
    choices = [choice for chunk in chunks for choice in chunk["choices"] if "token_sources" in choice]
    sources = [choice["token_sources"] for choice in choices]
    assert [len(words) for words in sources] == [len(choice["token_ids"]) for choice in choices]
    report = drafts(chunks[-1])
    assert sum(map(len, sources)) == chunks[-1]["usage"]["completion_tokens"] == 40
    assert sum(words.count("draft") for words in sources) == report["num_accepted_draft_tokens"] > 10
    assert len(sources) == report["num_steps"], "a chunk is a step"
    assert all(words == sorted(words) for words in sources), "drafts come first, then the target's own token"
    plain_chunks = events(server, path, **body)
    fields = {"token_sources", "token_texts", "refused_drafts"}
    assert not any(fields & set(choice) for chunk in plain_chunks for choice in chunk["choices"])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("max_tokens", [37, 40])
def test_a_stream_tells_the_text_of_each_token_and_which_drafts_were_refused(
    unsure: RunningServer, path: str, max_tokens: int
) -> None:
    body: dict[str, Any] = {"return_token_ids": True, "max_tokens": max_tokens}
    body |= {"prompt": "hello"} if "chat" not in path else {"messages": [{"role": "user", "content": "hello"}]}
    options = {"include_token_sources": True, "include_token_texts": True, "include_refused_drafts": True}
    chunks = events(unsure, path, **body, stream_options={**options, "include_usage": True})
    choices = [choice for chunk in chunks for choice in chunk["choices"] if "token_texts" in choice]
    assert "".join("".join(choice["token_texts"]) for choice in choices) == "".join(map(text_of, choices))
    assert all(len(choice["token_texts"]) == len(choice["token_ids"]) for choice in choices)
    report = drafts(chunks[-1])
    refused = sum(len(choice["refused_drafts"]) for choice in choices)
    assert refused == report["num_verified_tokens"] - report["num_accepted_draft_tokens"] > 10
    for choice in choices:
        if choice["refused_drafts"]:
            place = choice["token_sources"].index("target")
            first = choice["refused_drafts"][0]
            assert first["id"] != choice["token_ids"][place] and first["text"] == TOKENIZER.decode([first["id"]])


def test_refused_drafts_past_a_stop_are_not_told(unsure: RunningServer) -> None:
    """What stood behind the end of an answer was neither verified nor refused, as far as anybody is told."""
    options = {"include_refused_drafts": True, "include_token_texts": True}
    for seed in range(6):
        text = "".join(
            choice["text"]
            for chunk in events(unsure, "/v1/completions", prompt="hello", seed=seed)
            for choice in chunk["choices"]
        )
        body = {
            "prompt": "hello",
            "seed": seed,
            "stop": [text[9:11]],
            "stream_options": {**options, "include_usage": True},
        }
        chunks = events(unsure, "/v1/completions", **body)
        told = sum(len(choice["refused_drafts"]) for chunk in chunks for choice in chunk["choices"])
        report = drafts(chunks[-1])
        assert told == report["num_verified_tokens"] - report["num_accepted_draft_tokens"]


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["delta"].get("content", ""))
