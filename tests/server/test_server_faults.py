"""What clients do wrong, what goes wrong behind the server, and clients that vanish."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from engine_helpers import TOKENIZER
from prometheus_client.parser import text_string_to_metric_families
from server_helpers import NAME, RunningServer, Starter

from slipstream.scheduler.protocol import Executor, StepPlan, StepResult
from slipstream.server.body import MAX_BODY_BYTES
from slipstream.server.options import ServerOptions

LIMIT = 256


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(num_speculative_tokens=3)


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **fields}


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": NAME, "prompt": "hi", "max_tokens": 2, **fields}


def check_error(response: httpx.Response, parameter: str | None = None, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert error["param"] == parameter, error
    return error


def post(server: RunningServer, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode("utf-8", "surrogatepass")
    return httpx.post(f"{server.url}{path}", content=content, timeout=30)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        (chat(temperature=-1), "temperature"),
        (chat(temperature="warm"), "temperature"),
        (chat(temperature=float("nan")), "temperature"),
        (chat(temperature=float("inf")), "temperature"),
        (chat(top_p=0), "top_p"),
        (chat(top_k=2**40), "top_k"),
        (chat(n=0), "n"),
        (chat(n=10**30), "n"),
        (chat(n=True), "n"),
        (chat(max_tokens=0), "max_tokens"),
        (chat(max_tokens=10**30), "max_tokens"),
        (chat(max_tokens=2.5), "max_tokens"),
        (chat(max_completion_tokens=3), "max_tokens"),
        (chat(min_tokens=3), "min_tokens"),
        (chat(stop=["a"] * 99), "stop"),
        (chat(stop=[""]), "stop"),
        (chat(stop=3), "stop"),
        (chat(stop_token_ids=[10**9]), "stop_token_ids"),
        (chat(logit_bias={"x": 1}), "logit_bias"),
        (chat(logit_bias={"99999": 1}), "logit_bias"),
        (chat(logit_bias={"1": 1000}), "logit_bias"),
        (chat(logit_bias={"1": float("nan")}), "logit_bias"),
        (chat(top_logprobs=2), "top_logprobs"),
        (chat(logprobs=True, top_logprobs=99), "logprobs"),
        (chat(frequency_penalty=3), "frequency_penalty"),
        (chat(repetition_penalty=0), "repetition_penalty"),
        (chat(stream_options={"include_usage": True}), "stream_options"),
        (chat(stream=True, stream_options={"include_usage": 1}), "stream_options"),
        (chat(messages=[]), "messages"),
        (chat(messages="hi"), "messages"),
        (chat(messages=[{"role": "user"}]), "messages[0].content"),
        (chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content"),
        (chat(messages=[{"role": "user", "content": "hi", "tool_calls": [{}]}]), "messages"),
        (chat(messages=[{"content": "hi"}]), "messages"),
        (chat(seed=1.5), "seed"),
        (chat(priority=2**40), "priority"),
        (chat(tools=[{"type": "function"}]), "tools"),
        (chat(tools=[{"type": "web_search"}]), "tools"),
        (chat(tools=[TOOL, TOOL]), "tools"),
        (chat(tools=[{"type": "function", "function": {"name": "a b"}}]), "tools"),
        (chat(tool_choice="required"), "tool_choice"),
        (chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}), "tool_choice"),
        (chat(tools=[TOOL], tool_choice="always"), "tool_choice"),
        (chat(reasoning_effort="high"), "reasoning_effort"),
        (chat(thinking_token_budget=3), "thinking_token_budget"),
        (chat(chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
        (chat(speculative={"num_speculative_tokens": 4}), "speculative"),
        (chat(speculative={"num_speculative_tokens": -1}), "speculative"),
        (chat(speculative={"enabled": "yes"}), "speculative"),
        (chat(speculative=True), "speculative"),
        (chat(prompt_logprobs=21), "prompt_logprobs"),
        (chat(prompt_logprobs=1, stream=True), "prompt_logprobs"),
        (chat(allowed_token_ids=[]), "allowed_token_ids"),
        (chat(allowed_token_ids=[10**6]), "allowed_token_ids"),
        (chat(bad_words=[""]), "bad_words"),
        (chat(use_beam_search=True), "use_beam_search"),
        (chat(structured_outputs={"regex": "(a"}), "structured_outputs"),
        (chat(response_format={"type": "xml"}), "response_format"),
        (completion(best_of=3), "best_of"),
        (completion(echo="yes"), "echo"),
        (completion(max_tokens=0), "max_tokens"),
        (completion(suffix="x"), "suffix"),
        (completion(prompt=""), "prompt"),
        (completion(prompt=[]), "prompt"),
        (completion(prompt=[[]]), "prompt"),
        (completion(prompt=[[1], []]), "prompt"),
        (completion(prompt=["a", 1]), "prompt"),
        (completion(prompt=[-1]), "prompt"),
        (completion(prompt=[10**30]), "prompt"),
        (completion(prompt=[True]), "prompt"),
        (completion(prompt=None), "prompt"),
        (completion(prompt=["a"] * 257), "prompt"),
        (completion(prompt=["a"] * 20, n=100), "n"),
        (completion(logprobs=True), "logprobs"),
        ({"model": NAME}, "prompt"),
        (completion(prompt="x" * LIMIT), "prompt"),
        (completion(prompt=[1] * (LIMIT - 1), max_tokens=2), "max_tokens"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_bad_request_is_refused_by_name(server: RunningServer, body: dict[str, Any], parameter: str) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    check_error(post(server, path, body), parameter)
    server.wait_idle()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
    ],
    ids=range(9),
)
def test_malformed_body(server: RunningServer, body: bytes) -> None:
    check_error(post(server, "/v1/completions", body))


def test_ten_megabytes(server: RunningServer) -> None:
    error = check_error(post(server, "/v1/completions", completion(prompt="x" * (10 << 20))), status=413)
    assert str(MAX_BODY_BYTES) in error["message"]
    # A body within the limit whose prompt is far too long is refused like any other prompt.
    check_error(post(server, "/v1/completions", completion(prompt="word " * 400_000)), "prompt")


def test_unknown_fields_are_named_and_suggest_the_nearest(server: RunningServer) -> None:
    message = {"role": "user", "content": "hi", "colour": "red"}
    body = chat(max_token=3, messages=[message, message], speculative={"enable": False})
    answer = post(server, "/v1/chat/completions", body)
    assert answer.status_code == 200 and sorted(answer.json()["warnings"]) == [
        "unknown parameter 'max_token' is ignored; did you mean 'max_tokens'?",
        "unknown parameter 'messages[0].colour' is ignored",
        "unknown parameter 'speculative.enable' is ignored; did you mean 'enabled'?",
    ]
    streamed = post(server, "/v1/completions", completion(max_token=3, stream=True)).text.split("\n\n")
    assert "max_token" in json.loads(streamed[0].removeprefix("data: "))["warnings"][0]
    assert "warnings" not in json.loads(streamed[1].removeprefix("data: "))
    too_many = post(server, "/v1/completions", completion(**{f"x{index}": 1 for index in range(99)}))
    assert too_many.status_code == 400 and "more than 64 unknown fields" in too_many.json()["error"]["message"]


def test_a_strict_server_refuses_what_it_would_only_note(start_server: Starter) -> None:
    server = start_server(options=ServerOptions(strict=True))
    error = check_error(post(server, "/v1/chat/completions", chat(max_token=3)), "max_token")
    assert "did you mean 'max_tokens'" in error["message"] and error["code"] == "unknown_parameter"
    message = {"role": "user", "content": "hi", "colour": "red"}
    check_error(post(server, "/v1/chat/completions", chat(messages=[message])), "messages[0].colour")
    check_error(post(server, "/v1/chat/completions", chat(speculative={"enabled": True})), "speculative")
    check_error(post(server, "/v1/completions", completion(max_token=3)), "max_token")
    check_error(post(server, "/tokenize", {"prompt": "hi", "max_token": 3}), "max_token")
    strict_tool = {"type": "function", "function": {"name": "f", "strict": True}}
    check_error(post(server, "/v1/chat/completions", chat(tools=[strict_tool])), "tools")
    assert post(server, "/v1/chat/completions", chat()).status_code == 200


def test_wrong_model_path_and_method(server: RunningServer) -> None:
    error = check_error(post(server, "/v1/chat/completions", chat(model="gpt-4")), "model", 404)
    assert error["code"] == "model_not_found" and NAME in error["message"]
    check_error(httpx.get(f"{server.url}/v1/nothing"), status=404)
    check_error(httpx.get(f"{server.url}/v1/completions"), status=405)


def test_values_that_ask_for_nothing_are_taken(server: RunningServer) -> None:
    body = chat(
        tools=None, response_format={"type": "text"}, user="me", store=False, n=None, temperature=None, stop=None
    )
    assert post(server, "/v1/chat/completions", body).status_code == 200
    body = completion(echo=False, suffix=None, best_of=1, logit_bias={}, top_k=-1)
    assert post(server, "/v1/completions", body).status_code == 200
    body = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 2, "seed": -(10**30)}
    assert post(server, "/v1/chat/completions", body).status_code == 200


@pytest.mark.parametrize("length", range(LIMIT, LIMIT + 6))
def test_E2_prompts_over_the_limit_name_it(server: RunningServer, length: int) -> None:
    error = check_error(post(server, "/v1/completions", completion(prompt=[1] * length, max_tokens=None)), "prompt")
    assert str(LIMIT) in error["message"] and error["code"] == "context_length_exceeded"


def test_E5_the_limit_itself_works(server: RunningServer) -> None:
    answer = post(server, "/v1/completions", completion(prompt=[40] * (LIMIT - 5), max_tokens=5)).json()
    assert answer["usage"]["completion_tokens"] == 5
    answer = post(server, "/v1/completions", completion(prompt=[40] * (LIMIT - 1), max_tokens=None)).json()
    assert answer["usage"]["completion_tokens"] == 1
    unlimited = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    answer = post(server, "/v1/chat/completions", unlimited).json()
    assert answer["usage"]["total_tokens"] == LIMIT and answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.timing
def test_A16_prompt_larger_than_the_pool(start_server: Starter) -> None:
    server = start_server(num_kv_blocks=20, max_model_len=4096)
    begin = time.monotonic()
    error = check_error(post(server, "/v1/completions", completion(prompt=[1] * 400)), "prompt")
    assert time.monotonic() - begin < 1 and "320" in error["message"]
    assert post(server, "/v1/completions", completion()).status_code == 200


def test_A15_forty_at_once_on_four_seats(start_server: Starter) -> None:
    server = start_server(max_num_seqs=4, num_speculative_tokens=3)
    peak = 0

    async def main() -> list[int]:
        nonlocal peak
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=40)) as client:

            async def one(index: int) -> int:
                body = completion(max_tokens=30, seed=index)
                return (await client.post(f"{server.url}/v1/completions", json=body)).status_code

            tasks = [asyncio.create_task(one(index)) for index in range(40)]
            while not all(task.done() for task in tasks):
                peak = max(peak, server.engine.load.num_running)
                await asyncio.sleep(0.002)
            return [task.result() for task in tasks]

    assert asyncio.run(main()) == [200] * 40
    assert 1 < peak <= 4


class Slow:
    """Makes every step take time."""

    def __init__(self, executor: Executor, seconds: float) -> None:
        self._executor = executor
        self._seconds = seconds

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(self._seconds)
        return self._executor.execute(plan)


@pytest.mark.timing
@pytest.mark.parametrize("lag", [0, 1])
def test_C5_half_of_a_hundred_streams_vanish(start_server: Starter, lag: int) -> None:
    server = start_server(
        max_num_seqs=16,
        max_model_len=4096,
        num_kv_blocks=4096,
        commit_lag=lag,
        num_speculative_tokens=3,
        wrap=lambda inner: Slow(inner, 0.01),
    )
    address = server.url.removeprefix("http://").split(":")
    chance = random.Random(0)
    sockets: list[socket.socket] = []
    for index in range(100):
        is_to_vanish = index % 2 == 0
        tokens = 3000 if is_to_vanish else 8
        body = json.dumps(completion(max_tokens=tokens, stream=chance.random() < 0.7, ignore_eos=True)).encode()
        connection = socket.create_connection((address[0], int(address[1])))
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        sockets.append(connection)
    time.sleep(0.3)
    vanishing = sockets[::2]
    chance.shuffle(vanishing)
    for connection in vanishing:
        connection.close()
    for connection in sockets[1::2]:
        connection.settimeout(20)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        assert received.startswith(b"HTTP/1.1 200") and (b"[DONE]" in received or b'"length"' in received)
    server.wait_idle(2.0)
    assert post(server, "/v1/completions", completion()).status_code == 200
    page = httpx.get(f"{server.url}/metrics").text
    aborted = [line for line in page.splitlines() if 'finished_reason="abort"' in line and "_total" in line]
    assert float(aborted[0].split()[-1]) == 50


class Failing:
    """Raises while `broken` is set."""

    def __init__(self, executor: Executor, broken: threading.Event) -> None:
        self._executor = executor
        self._broken = broken

    def execute(self, plan: StepPlan) -> StepResult:
        if self._broken.is_set():
            raise RuntimeError("out of luck")
        return self._executor.execute(plan)


def test_failing_executor_gives_errors_then_503(start_server: Starter) -> None:
    broken = threading.Event()
    server = start_server(wrap=lambda inner: Failing(inner, broken))
    assert httpx.get(f"{server.url}/health").status_code == 200
    broken.set()
    error = check_error(post(server, "/v1/completions", completion()), status=500)
    assert "out of luck" in error["message"] and error["type"] == "server_error"
    broken.clear()
    assert post(server, "/v1/completions", completion()).status_code == 200
    broken.set()
    raw = post(server, "/v1/completions", completion(stream=True)).text
    assert '"error"' in raw and "out of luck" in raw and raw.endswith("data: [DONE]\n\n")
    for _ in range(2):
        post(server, "/v1/completions", completion())
    for path in ("/health", "/ready"):
        check_error(httpx.get(server.url + path), status=503)
    check_error(post(server, "/v1/completions", completion()), status=503)


def test_C6_stuck_step_is_said_and_unhealthy(start_server: Starter, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    class Stuck:
        def __init__(self, executor: Executor) -> None:
            self._executor = executor

        def execute(self, plan: StepPlan) -> StepResult:
            release.wait(20)
            return self._executor.execute(plan)

    server = start_server(wrap=Stuck, stuck_step_s=0.2)
    waiting = threading.Thread(target=lambda: post(server, "/v1/completions", completion()))
    waiting.start()
    time.sleep(0.5)
    check_error(httpx.get(f"{server.url}/health"), status=503)
    assert any("step has been running" in record.message for record in caplog.records)
    release.set()
    waiting.join(10)
    assert httpx.get(f"{server.url}/health").status_code == 200


VLLM_NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "cache_config_info",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "prompt_tokens_by_source_total",
    "prompt_tokens_cached_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "request_success_total",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "request_time_per_output_token_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_queue_time_seconds_bucket",
    "request_prefill_time_seconds_bucket",
    "request_decode_time_seconds_bucket",
    "request_inference_time_seconds_bucket",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "request_params_n_bucket",
    "request_params_max_tokens_bucket",
    "request_prefill_kv_computed_tokens_bucket",
    "iteration_tokens_total_bucket",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
)


def metrics_of(server: RunningServer) -> dict[str, list[tuple[dict[str, str], float]]]:
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def test_M8_metrics_parse_under_known_names_and_add_up(start_server: Starter) -> None:
    server = start_server(num_speculative_tokens=3)
    for seed in range(3):
        post(server, "/v1/completions", completion(prompt="hello world", max_tokens=21, seed=seed))
    samples = metrics_of(server)
    assert [name for name in VLLM_NAMES if f"vllm:{name}" not in samples] == []
    labels, generated = samples["vllm:generation_tokens_total"][0]
    assert (labels, generated) == ({"model_name": NAME, "engine": "0"}, 63)
    prompt_tokens = 3 * len(TOKENIZER.encode("hello world"))
    assert samples["vllm:prompt_tokens_total"][0][1] == prompt_tokens
    assert sum(value for _, value in samples["vllm:prompt_tokens_by_source_total"]) == prompt_tokens
    accepted = samples["vllm:spec_decode_num_accepted_tokens_total"][0][1]
    verified = samples["vllm:spec_decode_num_draft_tokens_total"][0][1]
    by_position = samples["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert [labels["position"] for labels, _ in by_position] == ["0", "1", "2"]
    assert 0 < accepted == sum(value for _, value in by_position) <= verified
    assert samples["slipstream:spec_decode_num_verified_tokens_total"][0][1] == verified
    assert sum(value for _, value in samples["slipstream:spec_decode_num_verified_tokens_per_pos_total"]) == verified
    # M7: every token is a request's first, an accepted draft, or the one after them.
    steps = {labels["kind"]: value for labels, value in samples["slipstream:engine_steps_total"]}
    assert generated == 3 + accepted + steps["decode"]
    assert samples["vllm:request_success_total"]
    assert samples["vllm:time_to_first_token_seconds_count"][0][1] == 3


def test_spec_metrics_are_absent_without_speculation(start_server: Starter) -> None:
    samples = metrics_of(start_server())
    assert not [name for name in samples if "spec_decode" in name]


def test_information_pages(server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/version").json() == {"version": "0.1.0"}
    assert httpx.get(f"{server.url}/v1/config").json()["settings"] == []
    assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
    assert httpx.get(f"{server.url}/ready").status_code == 200


def test_hostile_requests_leave_others_alone(server: RunningServer) -> None:
    expected = post(server, "/v1/completions", completion(max_tokens=200, seed=4)).json()["choices"][0]["text"]
    texts: list[str] = []
    good = threading.Thread(
        target=lambda: texts.append(
            post(server, "/v1/completions", completion(max_tokens=200, seed=4)).json()["choices"][0]["text"]
        )
    )
    good.start()
    hostile: list[Callable[[], httpx.Response]] = [
        lambda: post(server, "/v1/completions", b"[" * 10_000),
        lambda: post(server, "/v1/completions", completion(prompt="x" * 3_000_000)),
        lambda: post(server, "/v1/chat/completions", chat(messages=[{"role": "\ud800", "content": "x"}])),
        lambda: post(server, "/v1/completions", completion(n=128, max_tokens=10**9)),
    ]
    for attack in hostile:
        assert 400 <= attack().status_code < 500
    good.join(30)
    assert texts == [expected]
    server.wait_idle()


def test_clients_that_leave_while_they_send_are_no_failure(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    address, port = server.url.removeprefix("http://").split(":")
    for _ in range(5):
        with socket.create_connection((address, int(port))) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b'{"pro')
    time.sleep(0.3)
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
