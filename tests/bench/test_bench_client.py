"""The HTTP client against a made-up server on a made-up clock (cases N1 to N6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest

from slipstream.bench.arrivals import Arrivals, all_at_once, closed_loop
from slipstream.bench.client import HttpLoad, Target, TargetError, first_model, tells_sources
from slipstream.bench.dataset import Prompt
from slipstream.bench.metrics import BenchResult, chunk_gaps_ms, summarize
from slipstream.bench.records import RunRecord
from slipstream.bench.sse import EventDecoder
from slipstream.request import SamplingParams

Reads = Sequence[tuple[float, bytes]]


class Clock:
    """Time that passes only when somebody sleeps; concurrent sleepers wake in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        self._sleepers.append(until)
        while True:
            for _ in range(50):  # let everybody else get to their own sleep
                await asyncio.sleep(0)
            if min(self._sleepers) == until:
                break
        self.now = max(self.now, until)
        self._sleepers.remove(until)


class FakeServer(httpx.AsyncBaseTransport):
    """Answers with `reads(request number)`: (seconds after the request, bytes)."""

    def __init__(self, clock: Clock, reads: Callable[[int], Reads], status: int = 200) -> None:
        self.clock, self.reads, self.status = clock, reads, status
        self.bodies: list[dict[str, Any]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        number = len(self.bodies)
        self.bodies.append(json.loads(request.content) if request.content else {})
        return httpx.Response(self.status, stream=_Stream(self.clock, self.reads(number)))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, clock: Clock, reads: Reads) -> None:
        self.clock, self.reads = clock, reads

    async def __aiter__(self) -> AsyncIterator[bytes]:
        start = self.clock()
        for at, read in self.reads:
            if start + at > self.clock():
                await self.clock.sleep(start + at - self.clock())
            yield read


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish_reason}])


def ending(completion_tokens: int, finish_reason: str = "length") -> bytes:
    usage = {"prompt_tokens": 7, "completion_tokens": completion_tokens}
    return delta(finish_reason=finish_reason) + event(choices=[], usage=usage) + b"data: [DONE]\n\n"


def run(
    reads: Callable[[int], Reads], count: int = 1, arrivals: Arrivals | None = None, status: int = 200
) -> tuple[RunRecord, BenchResult]:
    clock = Clock()
    load = HttpLoad(Target(base_url="http://server", model="m"), clock, clock.sleep, FakeServer(clock, reads, status))
    prompts = [(Prompt("hello"), SamplingParams(max_tokens=65, temperature=0.0))] * count
    record = asyncio.run(load.run(prompts, arrivals or all_at_once(count)))
    return record, summarize(record)


def steady(chunks: int = 16, start: float = 0.1, gap: float = 0.04, tokens: int = 65, **fields: Any) -> Reads:
    """A role at once, a first token, then chunks at equal gaps."""
    fields = fields or {"content": "abcd"}
    reads = [(0.0, delta(role="assistant", content=""))]
    reads += [(start + gap * i, delta(**fields)) for i in range(chunks + 1)]
    return [*reads, (start + gap * chunks + 0.5, ending(tokens))]


def test_n1_per_token_time_is_not_the_gap_between_chunks() -> None:
    record, result = run(lambda _: steady())
    assert result.ttft_ms is not None and result.ttft_ms.median == pytest.approx(100.0)
    assert result.tpot_ms is not None and result.tpot_ms.median == pytest.approx(10.0)
    assert result.chunk_gap_ms is not None and result.chunk_gap_ms.median == pytest.approx(40.0)
    assert result.tokens_per_chunk == pytest.approx(4.0)
    assert result.total_output_tokens == 65
    assert result.e2e_ms is not None and result.e2e_ms.median == pytest.approx(740.0)  # not the [DONE] half a second on
    assert record.requests[0].coalesced_chunks == 0


def test_n6_time_to_first_token_is_no_gap() -> None:
    record, _ = run(lambda _: steady())
    gaps = chunk_gaps_ms(record.requests[0])
    assert len(gaps) == 16
    assert gaps == pytest.approx([40.0] * 16)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_n2_reasoning_counts_for_the_first_token(name: str) -> None:
    def reads(_: int) -> Reads:
        thinking = [(0.1 * i, delta(**{name: "hm"})) for i in range(1, 4)]
        return [*thinking, (0.9, delta(content="42")), (0.9, ending(4, "stop"))]

    _, result = run(reads)
    assert result.ttft_ms is not None and result.ttft_ms.median == pytest.approx(100.0)


def test_n4_buffered_tool_calls_are_counted_by_usage() -> None:
    call = [{"index": 0, "function": {"arguments": "x" * 600}}]
    _, result = run(lambda _: steady(chunks=31, tokens=6400, tool_calls=call))
    assert result.total_output_tokens == 6400
    assert result.tokens_per_chunk == pytest.approx(6399 / 31)


def test_n4_a_server_without_usage_is_a_failure_not_a_guess() -> None:
    record, result = run(
        lambda _: [(0.1, delta(content="a")), (0.2, delta(finish_reason="stop") + b"data: [DONE]\n\n")]
    )
    assert result.completed == 0
    assert "usage" in (record.requests[0].error or "")


def test_n5_one_step_is_one_chunk_even_when_reads_are_cut_anywhere() -> None:
    whole = b"".join(read for _, read in steady(content="halb € ganz"))

    def reads(_: int) -> Reads:
        return [(0.001 * i, whole[i : i + 1]) for i in range(len(whole))]

    record, result = run(reads)
    assert len(record.requests[0].chunks) == 17
    assert record.requests[0].text == "halb € ganz" * 17
    assert result.completed == 1


def test_events_that_share_a_read_are_all_kept_and_told() -> None:
    record, _ = run(lambda _: [(0.1, delta(content="a") + delta(content="b")), (0.2, delta(content="c") + ending(3))])
    assert [chunk.time for chunk in record.requests[0].chunks] == pytest.approx([0.1, 0.1, 0.2])
    assert record.requests[0].coalesced_chunks == 1


@pytest.mark.parametrize(
    ("reads", "status", "message"),
    [
        ([(0.1, b'{"error": {"message": "too long", "code": 400}}')], 400, "HTTP 400: too long"),
        ([(0.1, b'{"error":"Unauthorized"}')], 401, "HTTP 401: Unauthorized"),
        ([(0.1, delta(content="a")), (0.2, event(error={"message": "engine died"}))], 200, "engine died"),
        ([(0.1, b"data: {broken\n\n")], 200, "not JSON"),
        ([(0.1, b"data: " + b"[" * 100_000 + b"\n\n")], 200, "not JSON"),
        ([(0.1, b"data: [1]\n\n")], 200, "another shape"),
        ([(0.1, b'data: {"choices": [5]}\n\n')], 200, "another shape"),
        ([(0.1, b'data: {"choices": [], "usage": {"completion_tokens": "x"}}\n\n')], 200, "another shape"),
        ([(0.1, delta(content="a")), (0.2, event(choices=[], usage={"completion_tokens": 1}))], 200, "finish_reason"),
    ],
)
def test_failures_are_recorded_and_the_run_goes_on(reads: Reads, status: int, message: str) -> None:
    if status == 200:
        record, result = run(lambda number: reads if number == 0 else steady(), count=2)
        assert (result.completed, result.failed) == (1, 1)
    else:
        record, result = run(lambda _: reads, status=status)
        assert result.failed == 1
    assert message in (record.requests[0].error or "")


def test_a_server_that_is_not_there() -> None:
    load = HttpLoad(Target(base_url="http://127.0.0.1:9", model="m", timeout_s=5.0))
    record = asyncio.run(load.run([(Prompt("x"), SamplingParams())], all_at_once(1)))
    assert record.requests[0].error
    with pytest.raises(TargetError, match="is the server up"):
        asyncio.run(first_model(load))


def test_closed_loop_holds_requests_back_and_says_for_how_long() -> None:
    record, result = run(
        lambda _: [(0.1, delta(content="a")), (1.0, delta(content="b") + ending(2))], 4, closed_loop(4, 2)
    )
    assert result.in_flight.peak == 2
    assert [request.sent_time for request in record.requests] == pytest.approx([0.0, 0.0, 1.0, 1.0])
    assert result.client_queue_ms is not None and result.client_queue_ms.mean == pytest.approx(500.0)
    assert result.ttft_ms is not None and result.ttft_ms.p99 == pytest.approx(100.0)
    assert record.duration_s == pytest.approx(2.0)


def test_open_loop_sends_on_time_whatever_is_in_flight() -> None:
    arrivals = Arrivals("", [0.5, 0.75, 1.0])
    record, result = run(lambda _: [(0.1, delta(content="a")), (5.0, delta(content="b") + ending(2))], 3, arrivals)
    assert [request.sent_time for request in record.requests] == pytest.approx([0.5, 0.75, 1.0])
    assert result.in_flight.peak == 3
    assert record.duration_s == pytest.approx(5.5)


def test_N4_a_server_that_tells_sources_is_counted_by_tokens() -> None:
    def chunk(content: str, *sources: str) -> bytes:
        choice = {"index": 0, "delta": {"content": content}, "finish_reason": None, "token_sources": sources}
        return event(choices=[choice])

    reads = [
        (0.0, delta(role="assistant", content="")),
        (0.1, chunk("a", "target")),
        (0.2, chunk("", "draft", "draft", "target")),  # text that is held back is no reason not to count its tokens
        (0.3, chunk("bcde", "draft", "target")),
        (0.3, ending(6)),
    ]
    record, result = run(lambda _: reads)
    chunks = record.requests[0].chunks
    assert [(chunk.num_tokens, chunk.num_drafted) for chunk in chunks] == [(1, 0), (3, 2), (2, 1)]
    assert result.tokens_per_chunk == pytest.approx(2.5)
    sampling = SamplingParams(max_tokens=9, temperature=0.0)
    body = Target(base_url="http://a", model="m", tells_sources=True).body(Prompt("hi"), sampling)
    assert body["stream_options"] == {"include_usage": True, "include_token_sources": True}


@pytest.mark.parametrize(("owner", "tells"), [("slipstream", True), ("vllm", False), (None, False)])
def test_only_a_slipstream_server_is_asked_for_sources(owner: str | None, tells: bool) -> None:
    clock = Clock()
    models = json.dumps({"data": [{"id": "m", "owned_by": owner}] if owner else "none"}).encode()
    server = FakeServer(clock, lambda _: [(0.0, models)])
    load = HttpLoad(Target(base_url="http://server"), clock, clock.sleep, server)
    assert asyncio.run(tells_sources(load)) is tells


def test_body_asks_for_usage_and_leaves_out_what_was_not_asked_for() -> None:
    sampling = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True, seed=4)
    body = Target(base_url="http://a/v1/", model="m").body(Prompt("hi"), sampling)
    assert body["stream_options"] == {"include_usage": True}
    assert (body["max_tokens"], body["seed"], body["ignore_eos"]) == (9, 4, True)
    assert "top_p" not in body
    assert Target(base_url="http://a/v1/").url == "http://a/v1/chat/completions"
    ids = Prompt(token_ids=(1, 2))
    assert Target(base_url="http://a", chat=False).body(ids, sampling)["prompt"] == [1, 2]
    with pytest.raises(TargetError, match="completions"):
        Target(base_url="http://a").body(ids, sampling)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("cut", [1, 2, 3, 1000])
def test_events_survive_any_line_end_and_any_cut(newline: str, cut: int) -> None:
    text = newline.join(
        ["\ufeff: ping"[1:], "data: a", "data:b", "", "event: x", "id: 3", "data: ü", "", "", "data: last"]
    )
    raw = text.encode()
    decoder = EventDecoder()
    events = [event for i in range(0, len(raw), cut) for event in decoder.feed(raw[i : i + cut])]
    assert [*events, *decoder.close()] == ["a\nb", "ü", "last"]
