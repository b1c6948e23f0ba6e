"""OpenTelemetry spans: one for each HTTP request, and below it one for each answer with its stages.

OpenTelemetry is an optional dependency; nothing of it is imported unless spans are asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.config import SettingError
from slipstream.engine.admission import AdmissionRule, AdmittedRequest
from slipstream.engine.backlog import Backlog
from slipstream.engine.messages import Submission
from slipstream.engine.request_metrics import RequestMetrics
from slipstream.server.auth import METRICS_PATH, OPEN_PATHS
from slipstream.server.live import LIVE_PATH
from slipstream.server.request_context import CURRENT_REQUEST
from slipstream.server.route_path import route_path
from slipstream.version import __version__

UNTRACED_PATHS = OPEN_PATHS | {METRICS_PATH, LIVE_PATH}


class Tracing:
    """Makes spans and hands them to a provider's exporters.

    Args:
        provider: an `opentelemetry.sdk.trace.TracerProvider`.
        clock: the engine's, whose times request metrics hold.
    """

    def __init__(self, provider: Any, model_name: str, clock: Callable[[], float]) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("slipstream", __version__)
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name
        self._clock = clock

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def request_span(self, scope: Scope) -> Any:
        """Context manager: the span of an HTTP request, under the client's own where it sent a `traceparent`."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        context = CURRENT_REQUEST.get()
        attributes = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "slipstream.request.id": "" if context is None else context.request_id,
        }
        return self._tracer.start_as_current_span(
            f"{scope['method']} {route_path(scope)}",
            context=self._propagator.extract(carrier),
            kind=self._trace.SpanKind.SERVER,
            attributes=attributes,
        )

    def current_context(self) -> Any:
        """What spans that are made later belong under."""
        return self._trace.set_span_in_context(self._trace.get_current_span())

    def answer_spans(self, context: Any, submissions: Sequence[Submission], metrics: Sequence[RequestMetrics]) -> None:
        """The spans of a request's choices, made after the fact; metrics hold one entry per choice."""
        offset = time.time() - self._clock()
        now = self._clock()
        for number, choice in enumerate(metrics):
            submission = submissions[number // submissions[0].sampling.n]
            self._answer_span(context, submission, choice, now, offset)

    def _answer_span(
        self, context: Any, submission: Submission, metrics: RequestMetrics, now: float, offset: float
    ) -> None:
        sampling = submission.sampling
        scheduled, first, last = metrics.first_scheduled_time, metrics.first_token_time, metrics.last_token_time
        stages = (
            ("queue", metrics.arrival_time, scheduled),
            ("prefill", scheduled, first),
            ("decode", first, last),
        )
        attributes: dict[str, Any] = {
            "gen_ai.response.model": self._model_name,
            "gen_ai.request.id": submission.request_id,
            "gen_ai.request.n": sampling.n,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.usage.prompt_tokens": metrics.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": metrics.num_output_tokens,
            "slipstream.cached_tokens": metrics.num_cached_tokens,
            "slipstream.verified_drafts": metrics.num_verified,
            "slipstream.accepted_drafts": metrics.num_accepted,
        }
        if sampling.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = sampling.max_tokens
        if scheduled is not None:
            attributes["gen_ai.latency.time_in_queue"] = scheduled - metrics.arrival_time
        if metrics.time_to_first_token is not None:
            attributes["gen_ai.latency.time_to_first_token"] = metrics.time_to_first_token
        end = now if last is None else last
        attributes["gen_ai.latency.e2e"] = end - metrics.arrival_time
        span = self._tracer.start_span(
            "llm_request",
            context=context,
            attributes=attributes,
            start_time=_nanoseconds(metrics.arrival_time + offset),
        )
        below = self._trace.set_span_in_context(span)
        for name, begin, finish in stages:
            if begin is not None and finish is not None:
                stage = self._tracer.start_span(name, context=below, start_time=_nanoseconds(begin + offset))
                stage.end(_nanoseconds(finish + offset))
        span.end(_nanoseconds(end + offset))


class TracingMiddleware:
    """Wraps each request but probes and metrics in a span."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) in UNTRACED_PATHS:
            await self._app(scope, receive, send)
            return
        with self._tracing.request_span(scope) as span:

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._app(scope, receive, noting)


class TracedAdmission:
    """An AdmissionRule that lets another one decide, and makes the spans of what was let in."""

    def __init__(self, rule: AdmissionRule, tracing: Tracing) -> None:
        self._rule = rule
        self._tracing = tracing

    def admit(self, submissions: Sequence[Submission], backlog: Backlog) -> AdmittedRequest:
        """See AdmissionRule."""
        return _TracedRequest(self._rule.admit(submissions, backlog), self._tracing, submissions)


class _TracedRequest:
    def __init__(self, admitted: AdmittedRequest, tracing: Tracing, submissions: Sequence[Submission]) -> None:
        self._admitted = admitted
        self._tracing = tracing
        self._submissions = submissions
        self._context = tracing.current_context()

    def ended(self, metrics: Sequence[RequestMetrics]) -> None:
        self._admitted.ended(metrics)
        self._tracing.answer_spans(self._context, self._submissions, metrics)


def check_tracing() -> None:
    """Raises SettingError where OpenTelemetry is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace.export  # noqa: F401 (only whether it is there)
    except ImportError as error:
        raise SettingError(
            f"--otlp-traces-endpoint needs OpenTelemetry, which is not installed ({error}); "
            "install it with: pip install 'slipstream[otel]'"
        ) from None


def open_tracing(endpoint: str, model_name: str, clock: Callable[[], float]) -> Tracing:
    """Spans that go to an OTLP collector over HTTP. Raises SettingError where OpenTelemetry is not installed."""
    check_tracing()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "slipstream", "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Tracing(provider, model_name, clock)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
