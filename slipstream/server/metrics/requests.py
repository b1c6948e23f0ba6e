"""ServerMetrics: metrics of requests, as the front sees them."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from slipstream.engine.request_metrics import RequestMetrics
from slipstream.request import FinishReason, SamplingParams
from slipstream.server.metrics import buckets
from slipstream.server.metrics.families import ENGINE, LABELS


class ServerMetrics:
    """Metrics of requests as the front sees them; a MetricsListener."""

    def __init__(self, registry: CollectorRegistry, model_name: str, max_model_len: int) -> None:
        labels = (model_name, ENGINE)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, LABELS, registry=registry).labels(*labels)

        def histogram(name: str, text: str, edges: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, LABELS, buckets=edges, registry=registry).labels(*labels)

        sizes = buckets.token_counts(max_model_len)
        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens processed, cached ones included.")
        self._cached_tokens = counter("vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self._generation_tokens = counter("vllm:generation_tokens", "Tokens generated.")
        by_source = Counter(
            "vllm:prompt_tokens_by_source", "Prompt tokens by source.", (*LABELS, "source"), registry=registry
        )
        self._computed_here = by_source.labels(*labels, "local_compute")
        self._cached_here = by_source.labels(*labels, "local_cache_hit")
        by_source.labels(*labels, "external_kv_transfer")
        cached_by_source = Counter(
            "vllm:prompt_tokens_cached_by_source",
            "Cached prompt tokens by where they were.",
            (*LABELS, "source"),
            registry=registry,
        )
        self._cached_on_device = cached_by_source.labels(*labels, "device")
        success = Counter(
            "vllm:request_success", "Requests by how they ended.", (*LABELS, "finished_reason"), registry=registry
        )
        self._finished = {reason: success.labels(*labels, reason.value) for reason in FinishReason}
        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token, seconds.", buckets.FIRST_TOKEN
        )
        self._gap = histogram(
            "vllm:inter_token_latency_seconds", "Time between two outputs of a request, seconds.", buckets.TOKEN_GAP
        )
        self._per_token = histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per token after the first, seconds.",
            buckets.TOKEN_GAP,
        )
        self._end_to_end = histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to last token, seconds.", buckets.LATENCY
        )
        self._queue = histogram("vllm:request_queue_time_seconds", "Time spent waiting, seconds.", buckets.LATENCY)
        self._prefill = histogram(
            "vllm:request_prefill_time_seconds", "First scheduled to first token, seconds.", buckets.LATENCY
        )
        self._decode = histogram("vllm:request_decode_time_seconds", "First to last token, seconds.", buckets.LATENCY)
        self._inference = histogram(
            "vllm:request_inference_time_seconds", "First scheduled to last token, seconds.", buckets.LATENCY
        )
        self._request_prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", sizes)
        self._request_output = histogram("vllm:request_generation_tokens", "Output tokens of a request.", sizes)
        self._request_computed = histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were computed.", sizes
        )
        self._params_n = histogram("vllm:request_params_n", "The parameter n.", buckets.CHOICES)
        self._params_max_tokens = histogram("vllm:request_params_max_tokens", "The parameter max_tokens.", sizes)
        self._longest_choice = histogram(
            "vllm:request_max_num_generation_tokens", "Output tokens of a request's longest choice.", sizes
        )
        self._preemptions = histogram(
            "vllm:request_num_preemptions", "How often a request lost its KV.", buckets.PREEMPTIONS
        )
        self._iteration = histogram("vllm:iteration_tokens_total", "Target rows of a step.", buckets.ITERATION)
        self._step_time = histogram(
            "slipstream:step_duration_seconds",
            "A step from planning to commit, seconds; with commit lag 1 without the wait for its own pass.",
            buckets.STEP,
        )

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
        self._cached_on_device.inc(cached)
        self._computed_here.inc(metrics.num_prompt_tokens - cached)

    def on_tokens(self, num_tokens: int, gap_s: float | None) -> None:
        """See MetricsListener."""
        self._generation_tokens.inc(num_tokens)
        if gap_s is not None:
            self._gap.observe(gap_s)

    def on_step(self, num_tokens: int, duration_s: float) -> None:
        """See MetricsListener."""
        self._iteration.observe(num_tokens)
        self._step_time.observe(duration_s)

    def on_finished(self, metrics: RequestMetrics, sampling: SamplingParams, reason: FinishReason, now: float) -> None:
        """See MetricsListener."""
        self._finished[reason].inc()
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        self._end_to_end.observe(now - metrics.arrival_time)
        self._request_prompt.observe(metrics.num_prompt_tokens)
        self._request_output.observe(metrics.num_output_tokens)
        self._preemptions.observe(metrics.num_preemptions)
        self._request_computed.observe(metrics.num_prompt_tokens - metrics.num_cached_tokens)
        if metrics.time_per_output_token is not None:
            self._per_token.observe(metrics.time_per_output_token)
        scheduled, first, last = metrics.first_scheduled_time, metrics.first_token_time, metrics.last_token_time
        if scheduled is not None and first is not None and last is not None:
            self._queue.observe(scheduled - metrics.arrival_time)
            self._prefill.observe(first - scheduled)
            self._decode.observe(last - first)
            self._inference.observe(last - scheduled)

    def on_answered(self, metrics: Sequence[RequestMetrics]) -> None:
        """See MetricsListener."""
        self._longest_choice.observe(max([choice.num_output_tokens for choice in metrics]))
