"""Prometheus metrics under vLLM's names and labels, so that existing dashboards work, and some of our own.

Where the two differ: `vllm:spec_decode_num_draft_tokens_total` counts drafts that really ran as target rows, so that
accepted / drafted is a true rate; `slipstream:spec_decode_num_*_tokens_total` count drafted, admitted, verified and
accepted tokens apart. Latency buckets reach below 10 ms, where speculation is.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from slipstream import __version__
from slipstream.engine.engine import Engine
from slipstream.engine.request_metrics import RequestMetrics
from slipstream.request import FinishReason, SamplingParams

LABELS = ("model_name", "engine")
ENGINE = "0"

# fmt: off
LATENCY_BUCKETS = (
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)
FIRST_TOKEN_BUCKETS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
TOKEN_GAP_BUCKETS = (
    0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
# fmt: on
ITERATION_BUCKETS = (1.0, *(float(2**power) for power in range(3, 15)))
CHOICE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)


def token_count_buckets(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, … up to `largest`."""
    buckets = [1.0]
    scale = 1
    while True:
        for digit in (2, 5, 10):
            if digit * scale > largest:
                return tuple(buckets)
            buckets.append(float(digit * scale))
        scale *= 10


class ServerMetrics:
    """Metrics of requests as the front sees them; a MetricsListener."""

    def __init__(self, registry: CollectorRegistry, model_name: str, max_model_len: int) -> None:
        labels = (model_name, ENGINE)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, LABELS, registry=registry).labels(*labels)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, LABELS, buckets=buckets, registry=registry).labels(*labels)

        sizes = token_count_buckets(max_model_len)
        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens processed, cached ones included.")
        self._cached_tokens = counter("vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self._generation_tokens = counter("vllm:generation_tokens", "Tokens generated.")
        by_source = Counter(
            "vllm:prompt_tokens_by_source", "Prompt tokens by source.", (*LABELS, "source"), registry=registry
        )
        self._computed_here = by_source.labels(*labels, "local_compute")
        self._cached_here = by_source.labels(*labels, "local_cache_hit")
        success = Counter(
            "vllm:request_success", "Requests by how they ended.", (*LABELS, "finished_reason"), registry=registry
        )
        self._finished = {reason: success.labels(*labels, reason.value) for reason in FinishReason}
        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token, seconds.", FIRST_TOKEN_BUCKETS
        )
        self._gap = histogram(
            "vllm:inter_token_latency_seconds", "Time between two outputs of a request, seconds.", TOKEN_GAP_BUCKETS
        )
        self._per_token = histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per token after the first, seconds.",
            TOKEN_GAP_BUCKETS,
        )
        self._end_to_end = histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to last token, seconds.", LATENCY_BUCKETS
        )
        self._queue = histogram("vllm:request_queue_time_seconds", "Time spent waiting, seconds.", LATENCY_BUCKETS)
        self._prefill = histogram(
            "vllm:request_prefill_time_seconds", "First scheduled to first token, seconds.", LATENCY_BUCKETS
        )
        self._decode = histogram("vllm:request_decode_time_seconds", "First to last token, seconds.", LATENCY_BUCKETS)
        self._inference = histogram(
            "vllm:request_inference_time_seconds", "First scheduled to last token, seconds.", LATENCY_BUCKETS
        )
        self._request_prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", sizes)
        self._request_output = histogram("vllm:request_generation_tokens", "Output tokens of a request.", sizes)
        self._request_computed = histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were computed.", sizes
        )
        self._params_n = histogram("vllm:request_params_n", "The parameter n.", CHOICE_BUCKETS)
        self._params_max_tokens = histogram("vllm:request_params_max_tokens", "The parameter max_tokens.", sizes)
        self._iteration = histogram("vllm:iteration_tokens_total", "Target rows of a step.", ITERATION_BUCKETS)

    def on_submitted(self, sampling: SamplingParams, num_prompt_tokens: int) -> None:
        """See MetricsListener."""
        self._params_n.observe(sampling.n)
        if sampling.max_tokens is not None:
            self._params_max_tokens.observe(sampling.max_tokens)

    def on_first_token(self, metrics: RequestMetrics, seconds: float) -> None:
        """See MetricsListener."""
        self._first_token.observe(seconds)
        cached = metrics.num_cached_tokens
        self._prompt_tokens.inc(metrics.num_prompt_tokens)
        self._cached_tokens.inc(cached)
        self._cached_here.inc(cached)
        self._computed_here.inc(metrics.num_prompt_tokens - cached)

    def on_tokens(self, num_tokens: int, gap_s: float | None) -> None:
        """See MetricsListener."""
        self._generation_tokens.inc(num_tokens)
        if gap_s is not None:
            self._gap.observe(gap_s)

    def on_step(self, num_tokens: int, duration_s: float) -> None:
        """See MetricsListener."""
        self._iteration.observe(num_tokens)

    def on_finished(self, metrics: RequestMetrics, sampling: SamplingParams, reason: FinishReason, now: float) -> None:
        """See MetricsListener."""
        self._finished[reason].inc()
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        self._end_to_end.observe(now - metrics.arrival_time)
        self._request_prompt.observe(metrics.num_prompt_tokens)
        self._request_output.observe(metrics.num_output_tokens)
        self._request_computed.observe(metrics.num_prompt_tokens - metrics.num_cached_tokens)
        if metrics.time_per_output_token is not None:
            self._per_token.observe(metrics.time_per_output_token)
        scheduled, first, last = metrics.first_scheduled_time, metrics.first_token_time, metrics.last_token_time
        if scheduled is not None and first is not None and last is not None:
            self._queue.observe(scheduled - metrics.arrival_time)
            self._prefill.observe(first - scheduled)
            self._decode.observe(last - first)
            self._inference.observe(last - scheduled)


class EngineCollector(Collector):
    """Metrics read from the scheduler when `/metrics` is asked for, so that counting costs a step nothing."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._labels = [model_name, ENGINE]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | InfoMetricFamily]:
        """See prometheus_client."""
        scheduler, load = self._engine.scheduler, self._engine.load
        statistics, config = scheduler.statistics, scheduler.config
        yield self._gauge("vllm:num_requests_running", "Requests with a seat.", load.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests without one.", load.num_waiting)
        reasons = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", labels=[*LABELS, "reason"]
        )
        reasons.add_metric([*self._labels, "capacity"], load.num_waiting)
        reasons.add_metric([*self._labels, "deferred"], 0)
        yield reasons
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", load.kv_cache_usage)
        cache = GaugeMetricFamily(
            "vllm:cache_config_info",
            "How the KV cache is set up.",
            labels=["engine", "block_size", "num_gpu_blocks", "enable_prefix_caching"],
        )
        cache.add_metric(
            [ENGINE, str(config.block_size), str(config.num_kv_blocks), str(config.enable_prefix_caching)], 1
        )
        yield cache
        yield self._counter("vllm:num_preemptions", "Requests that lost their KV.", statistics.num_preemptions)
        yield self._counter("vllm:prefix_cache_queries", "Tokens looked up.", scheduler.kv.num_query_tokens)
        yield self._counter("vllm:prefix_cache_hits", "Tokens found.", scheduler.kv.num_hit_tokens)
        yield self._by("slipstream:engine_steps", "Steps by kind.", "kind", statistics.num_steps)
        yield self._by(
            "slipstream:engine_rows",
            "Rows by kind: target (all), prefill and verify (planned, parts of target), draft_query (the drafter's).",
            "kind",
            {
                "target": statistics.num_target_rows,
                "prefill": statistics.num_prefill_rows,
                "verify": statistics.num_verify_rows,
                "draft_query": statistics.num_draft_query_rows,
            },
        )
        yield self._counter(
            "slipstream:stale_results", "Results of requests that had ended or restarted.", statistics.num_stale_results
        )
        if scheduler.costs is not None:
            version = scheduler.costs.version
            yield self._gauge("slipstream:cost_table_version", "Of the table in use; grows with each refit.", version)
        build = InfoMetricFamily("slipstream:build", "Version.")
        build.add_metric([], {"version": __version__})
        yield build
        if config.num_speculative_tokens:
            yield from self._speculation(config.num_speculative_tokens)

    def _speculation(self, num_speculative_tokens: int) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        statistics = self._engine.scheduler.statistics
        drafts = sum(map(sum, statistics.acceptance_histogram[1:]))
        yield self._counter("vllm:spec_decode_num_drafts", "Decode steps of requests that verified drafts.", drafts)
        yield self._counter(
            "vllm:spec_decode_num_draft_tokens", "Drafts verified by the target.", statistics.num_verified_tokens
        )
        yield self._counter("vllm:spec_decode_num_accepted_tokens", "Drafts accepted.", statistics.num_accepted_tokens)
        for name, text, counts in (
            ("vllm:spec_decode_num_accepted_tokens_per_pos", "accepted", statistics.accepted_per_position()),
            ("slipstream:spec_decode_num_verified_tokens_per_pos", "verified", statistics.verified_per_position()),
        ):
            padded = counts + [0] * (num_speculative_tokens - len(counts))
            by_position = {str(position): count for position, count in enumerate(padded)}
            yield self._by(name, f"Drafts {text} by position in their block.", "position", by_position)
        for name, count in (
            ("drafted", statistics.num_drafted_tokens),
            ("admitted", statistics.num_admitted_tokens),
            ("verified", statistics.num_verified_tokens),
            ("accepted", statistics.num_accepted_tokens),
        ):
            yield self._counter(f"slipstream:spec_decode_num_{name}_tokens", f"Drafts {name}.", count)
        yield self._counter(
            "slipstream:spec_decode_num_skipped_drafts",
            "Requests that were to draft but had just ended.",
            statistics.num_skipped_drafts,
        )
        if drafts:
            yield self._gauge(
                "slipstream:spec_decode_mean_acceptance_length",
                "1 + accepted / steps that verified drafts, since the start.",
                1 + statistics.num_accepted_tokens / drafts,
            )

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _by(self, name: str, text: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=[*LABELS, label])
        for key, value in list(values.items()):
            family.add_metric([*self._labels, key], value)
        return family
