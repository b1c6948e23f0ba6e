"""Latency and throughput, each word with one meaning (times in milliseconds unless named otherwise):

* TTFT: sending to the first output of any kind, reasoning included.
* E2E: sending to the last output (not the closing `[DONE]`).
* TPOT: (E2E - TTFT) / (output tokens - 1), one value per request with at least two tokens.
* chunk gap: time between two chunks of a request. A chunk holds a step's tokens, so it grows with acceptance.
* token time: a chunk's gap divided by its tokens, once per token; known only where each chunk's tokens are counted.
* in flight: sent and not answered to the end, as the client sees it. running: seated in the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from slipstream.bench.acceptance import Acceptance
from slipstream.bench.records import RequestRecord, RunRecord, StepRecord


@dataclass(frozen=True, slots=True)
class Distribution:
    """A sample in short; percentiles interpolate linearly."""

    count: int
    mean: float
    median: float
    std: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution | None:
        """None for an empty sample."""
        sample = np.fromiter(values, dtype=np.float64)
        if not sample.size:
            return None
        median, p90, p99 = np.percentile(sample, (50, 90, 99)).tolist()
        return cls(sample.size, float(sample.mean()), median, float(sample.std()), p90, p99)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many at once: the exact peak, and the mean over time."""

    peak: int
    mean: float


def concurrency_of(intervals: Sequence[tuple[float, float]]) -> Concurrency:
    """From events, not from buckets: an end and a start at the same instant do not overlap."""
    if not intervals:
        return Concurrency(0, 0.0)
    events = sorted([(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals])
    current = peak = 0
    for _, change in events:
        current += change
        peak = max(peak, current)
    span = events[-1][0] - events[0][0]
    busy = sum(end - start for start, end in intervals)
    return Concurrency(peak, busy / span if span > 0 else float(peak))


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Engine steps by kind. `mixed` and `prefill` steps hold prompt rows; `decode` steps are pure.

    Attributes:
        counts, total_ms: by kind; a server's counters give no times.
        running: peak, and mean weighted by each step's duration.
        rows_per_step: mean rows of the target's pass.
    """

    counts: Mapping[str, int]
    total_ms: Mapping[str, float] = field(default_factory=dict)
    running: Concurrency | None = None
    rows_per_step: float | None = None

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def share(self, kind: str) -> float:
        """Part of all steps that are of this kind."""
        return self.counts.get(kind, 0) / self.total if self.total else 0.0

    def mean_ms(self, kind: str) -> float | None:
        return self.total_ms[kind] / self.counts[kind] if kind in self.total_ms else None


def summarize_steps(steps: Sequence[StepRecord]) -> StepSummary | None:
    """None where no steps were seen."""
    if not steps:
        return None
    counts = Counter(step.kind for step in steps)
    total_ms = {kind: 1e3 * sum(step.duration_s for step in steps if step.kind == kind) for kind in counts}
    elapsed = sum(step.duration_s for step in steps)
    weighted = sum(step.num_running * step.duration_s for step in steps)
    running = Concurrency(max(step.num_running for step in steps), weighted / elapsed if elapsed else 0.0)
    rows = sum(step.num_target_rows for step in steps) / len(steps)
    return StepSummary(dict(counts), total_ms, running, rows)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One run in numbers; `to_json` documents the names.

    Attributes:
        failures: error message -> how many requests ended with it.
        tokens_per_chunk: over the chunks after each request's first.
    """

    duration_s: float
    completed: int
    failures: dict[str, int]
    total_input_tokens: int
    total_output_tokens: int
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    e2e_ms: Distribution | None
    chunk_gap_ms: Distribution | None
    token_time_ms: Distribution | None
    client_queue_ms: Distribution | None
    tokens_per_chunk: float | None
    coalesced_chunks: int
    in_flight: Concurrency
    steps: StepSummary | None
    acceptance: Acceptance | None

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    def _per_second(self, count: int) -> float:
        return count / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def request_throughput(self) -> float:
        """Completed requests per second."""
        return self._per_second(self.completed)

    @property
    def output_throughput(self) -> float:
        """Output tokens of completed requests per second."""
        return self._per_second(self.total_output_tokens)

    @property
    def total_token_throughput(self) -> float:
        """Prompt and output tokens of completed requests per second."""
        return self._per_second(self.total_input_tokens + self.total_output_tokens)

    def to_json(self) -> dict[str, Any]:
        """Flat keys, as `vllm bench serve` names them where the meaning is the same.

        Its `itl` is what is called `chunk_gap` here; its `max_concurrent_requests` counts one-second buckets, where
        `peak_in_flight` is exact. Times end in `_ms` (or `_s`), `None` means not known in this run.
        """
        result: dict[str, Any] = {
            "duration": self.duration_s,
            "completed": self.completed,
            "failed": self.failed,
            "errors": self.failures,
            "total_input_tokens": self.total_input_tokens,
            "total_output_tokens": self.total_output_tokens,
            "request_throughput": self.request_throughput,
            "output_throughput": self.output_throughput,
            "total_token_throughput": self.total_token_throughput,
            "tokens_per_chunk": self.tokens_per_chunk,
            "coalesced_chunks": self.coalesced_chunks,
            "peak_in_flight": self.in_flight.peak,
            "mean_in_flight": self.in_flight.mean,
        }
        for name, values in (
            ("ttft", self.ttft_ms),
            ("tpot", self.tpot_ms),
            ("e2el", self.e2e_ms),
            ("chunk_gap", self.chunk_gap_ms),
            ("token_time", self.token_time_ms),
            ("client_queue_time", self.client_queue_ms),
        ):
            for statistic in ("mean", "median", "std", "p90", "p99"):
                result[f"{statistic}_{name}_ms"] = None if values is None else getattr(values, statistic)
        if self.steps is not None:
            running = self.steps.running
            result |= {
                "peak_running": None if running is None else running.peak,
                "mean_running": None if running is None else running.mean,
                "mean_rows_per_step": self.steps.rows_per_step,
                "num_steps": self.steps.total,
            }
            for kind in ("decode", "mixed", "prefill"):
                result[f"{kind}_steps"] = self.steps.counts.get(kind, 0)
                result[f"{kind}_step_share"] = self.steps.share(kind)
                result[f"mean_{kind}_step_ms"] = self.steps.mean_ms(kind)
        if self.acceptance is not None:
            result |= self.acceptance.to_json()
        return result


def summarize(run: RunRecord) -> BenchResult:
    """Turn what was written down into numbers.

    Failed requests are in no latency and no throughput, and are counted beside them.
    """
    served = [request for request in run.requests if request.error is None]
    return BenchResult(
        duration_s=run.duration_s,
        completed=len(served),
        failures=dict(Counter(request.error for request in run.requests if request.error is not None)),
        total_input_tokens=sum(request.num_prompt_tokens for request in served),
        total_output_tokens=sum(request.num_output_tokens for request in served),
        ttft_ms=Distribution.of(_ttft_ms(request) for request in served if request.chunks),
        tpot_ms=Distribution.of(tpot for request in served if (tpot := tpot_ms(request)) is not None),
        e2e_ms=Distribution.of(1e3 * (request.end_time - request.sent_time) for request in served if request.chunks),
        chunk_gap_ms=Distribution.of(gap for request in served for gap in chunk_gaps_ms(request)),
        token_time_ms=_token_times(served),
        client_queue_ms=Distribution.of(1e3 * (request.sent_time - request.scheduled_time) for request in served),
        tokens_per_chunk=_tokens_per_chunk(served),
        coalesced_chunks=sum(request.coalesced_chunks for request in served),
        in_flight=concurrency_of([(request.sent_time, request.end_time) for request in served]),
        steps=StepSummary(run.step_counts) if run.step_counts else summarize_steps(run.steps),
        acceptance=run.acceptance,
    )


def _ttft_ms(request: RequestRecord) -> float:
    return 1e3 * (request.chunks[0].time - request.sent_time)


def tpot_ms(request: RequestRecord) -> float | None:
    """Mean milliseconds per token after the first; None for a request of one token."""
    if request.num_output_tokens < 2 or len(request.chunks) < 2:
        return None
    return 1e3 * (request.end_time - request.chunks[0].time) / (request.num_output_tokens - 1)


def chunk_gaps_ms(request: RequestRecord) -> list[float]:
    """One fewer than the chunks: the time to the first one is TTFT and no gap."""
    return [1e3 * (after.time - before.time) for before, after in pairwise(request.chunks)]


def _token_times(requests: Sequence[RequestRecord]) -> Distribution | None:
    times: list[float] = []
    for request in requests:
        for gap, chunk in zip(chunk_gaps_ms(request), request.chunks[1:], strict=True):
            if chunk.num_tokens is None:
                return None
            times += [gap / chunk.num_tokens] * chunk.num_tokens
    return Distribution.of(times)


def _tokens_per_chunk(requests: Sequence[RequestRecord]) -> float | None:
    """Where chunks are not counted, each first chunk is taken to hold one token, as TPOT does."""
    tokens = chunks = 0
    for request in requests:
        if len(request.chunks) > 1:
            tokens += request.num_output_tokens - (request.chunks[0].num_tokens or 1)
            chunks += len(request.chunks) - 1
    return tokens / chunks if chunks else None
