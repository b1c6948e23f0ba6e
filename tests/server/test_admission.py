"""Overload: who is turned away, with which status, and how long they are told to wait."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from server_helpers import NAME, RunningServer, Starter
from test_server_faults import Slow, metrics_of

from slipstream.engine.backlog import Backlog
from slipstream.engine.messages import Submission
from slipstream.request import SamplingParams
from slipstream.server.admission import MAX_RETRY_S, Admission, Rejection
from slipstream.server.errors import ApiError
from slipstream.server.options import QueueLimits, ServerOptions
from slipstream.server.request_context import CURRENT_REQUEST, RequestContext
from slipstream.server.throughput import BusyRate


class Desk:
    """An Admission with a clock and a backlog of its own."""

    def __init__(self, num_seats: int = 2, **limits: int) -> None:
        self.now = 0.0
        self.backlog = Backlog()
        self.rejected: list[Rejection] = []
        self.admission = Admission(QueueLimits(**limits), num_seats, lambda: self.now, self.rejected.append)
        self._count = 0

    def ask(self, num_tokens: int = 10, n: int = 1, key: int | None = None) -> Any:
        self._count += 1
        submission = Submission(f"r{self._count}", tuple(range(num_tokens)), SamplingParams(n=n), 0)
        token = CURRENT_REQUEST.set(RequestContext("x", key))
        try:
            admitted = self.admission.admit([submission], self.backlog)
        finally:
            CURRENT_REQUEST.reset(token)
        self.backlog.add(submission)
        return admitted

    def refusal(self, **kwargs: Any) -> ApiError:
        with pytest.raises(ApiError) as refusal:
            self.ask(**kwargs)
        return refusal.value

    def retry_after(self, **kwargs: Any) -> int:
        headers = self.refusal(**kwargs).headers
        assert headers is not None
        return int(headers["Retry-After"])


def test_nothing_is_limited_by_default() -> None:
    desk = Desk()
    for _ in range(1000):
        desk.ask(num_tokens=100)
    assert desk.rejected == []


def test_as_many_as_have_seats_and_may_wait_are_let_in() -> None:
    desk = Desk(max_queued_requests=3)
    admitted = [desk.ask() for _ in range(5)]
    error = desk.refusal()
    assert error.status == 503 and "3 may wait beside 2" in str(error) and error.body["error"]["code"] == "overloaded"
    assert desk.rejected == [Rejection.QUEUED_REQUESTS]
    admitted[0].ended([])
    desk.ask()
    assert desk.refusal(n=2).status == 503, "each choice takes a place"


def test_a_request_that_nothing_waits_before_is_let_in_however_large() -> None:
    desk = Desk(max_queued_requests=0, max_queued_tokens=50)
    first = desk.ask(num_tokens=500, n=9)
    assert desk.refusal().status == 503
    first.ended([])
    desk.backlog.gone("r1")
    desk.ask(num_tokens=500, n=9)


def test_prompt_tokens_that_wait_are_counted_until_they_run() -> None:
    desk = Desk(max_queued_tokens=100)
    desk.ask(num_tokens=60)
    desk.ask(num_tokens=40)
    assert desk.refusal(num_tokens=1).status == 503 and desk.rejected == [Rejection.QUEUED_TOKENS]
    desk.backlog.started("r1", 0)
    desk.ask(num_tokens=60)


def test_one_key_cannot_take_everything() -> None:
    desk = Desk(max_requests_per_key=2)
    first = desk.ask(key=1)
    desk.ask(key=1)
    error = desk.refusal(key=1)
    assert error.status == 429 and error.body["error"]["type"] == "rate_limit_error"
    desk.ask(key=2)
    first.ended([])
    desk.ask(key=1)


def test_retry_after_follows_from_what_was_measured() -> None:
    desk = Desk(max_queued_requests=0)
    waiting = [desk.ask(), desk.ask()]
    assert desk.retry_after() == 1, "nothing is known yet"
    for _ in range(20):  # one request every 4 s
        desk.now += 4.0
        waiting.pop(0).ended([])
        waiting.append(desk.ask())
    assert desk.retry_after() == pytest.approx(4, abs=1)
    assert desk.retry_after(n=3) == pytest.approx(12, abs=2), "three places are needed"
    for admitted in waiting:
        admitted.ended([])
    desk.now += 3600.0  # a night's rest is no slowness
    waiting = [desk.ask(), desk.ask()]
    assert desk.retry_after() == pytest.approx(4, abs=2)


def test_retry_after_of_tokens_and_its_bounds() -> None:
    desk = Desk(num_seats=100, max_queued_tokens=100)
    for number in range(1, 30):  # 10 prompt tokens a second
        desk.ask(num_tokens=10)
        desk.now += 1.0
        desk.backlog.started(f"r{number}", 0)
    desk.ask(num_tokens=100)
    assert desk.retry_after(num_tokens=50) == pytest.approx(5, abs=1)
    desk.now += 1e6
    assert desk.retry_after(num_tokens=100) <= MAX_RETRY_S


def test_busy_rate_forgets_slowly() -> None:
    rate = BusyRate(memory_s=10.0)
    assert rate.per_second is None
    for _ in range(50):
        rate.pass_time(1.0)
        rate.add(3.0)
    assert rate.per_second == pytest.approx(3.0, rel=0.06)
    for _ in range(50):
        rate.pass_time(1.0)
        rate.add(9.0)
    assert rate.per_second == pytest.approx(9.0, rel=0.06)


def test_backlog_counts_choices_once() -> None:
    backlog = Backlog()
    backlog.add(Submission("a", (1, 2, 3), SamplingParams(n=2), 0))
    assert (backlog.num_choices, backlog.num_prompt_tokens) == (2, 3)
    for _ in range(2):
        backlog.started("a", 0)
    assert (backlog.num_choices, backlog.num_prompt_tokens) == (1, 0)
    backlog.started("other", 0)
    for _ in range(2):
        backlog.gone("a")
    assert (backlog.num_choices, backlog.num_prompt_tokens) == (0, 0)


def test_a_full_server_says_so_and_recovers(start_server: Starter) -> None:
    options = ServerOptions(limits=QueueLimits(max_queued_requests=1), api_keys=("k",))
    server: RunningServer = start_server(max_num_seqs=1, wrap=lambda inner: Slow(inner, 0.02), options=options)
    headers = {"Authorization": "Bearer k"}
    body = {"model": NAME, "prompt": "hi", "max_tokens": 60, "ignore_eos": True}
    answers: list[httpx.Response] = []

    def post() -> None:
        answers.append(httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60))

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[:2] == [200, 200] and set(statuses[2:]) == {503}
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert 1 <= int(refused.headers["retry-after"]) <= MAX_RETRY_S and refused.json()["error"]["code"] == "overloaded"
    assert httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60).status_code == 200
    page = httpx.get(f"{server.url}/metrics", headers=headers).text
    assert f'vllm:admission_rejections_total{{model_name="{NAME}",reason="max_num_queued_reqs"}} 6.0' in page


def test_rejections_are_zero_before_the_first(start_server: Starter) -> None:
    samples = metrics_of(start_server())["vllm:admission_rejections_total"]
    assert {labels["reason"]: value for labels, value in samples} == dict.fromkeys(Rejection, 0.0)
