"""OpenTelemetry: spans below the client's own, with the stages of an answer; a clear word where it is not installed."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from typing import Any

import pytest
from engine_helpers import TEMPLATE, TOKENIZER, VOCABULARY, make_engine
from server_helpers import LONGEST_TOKEN, NAME

from slipstream.config import SettingError
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.engine_thread import EngineThread
from slipstream.server.admission import Admission
from slipstream.server.app import create_app
from slipstream.server.options import QueueLimits
from slipstream.server.served_model import ServedModel
from slipstream.server.tracing import TracedAdmission, Tracing, open_tracing

HAS_SDK = importlib.util.find_spec("opentelemetry") is not None and (
    importlib.util.find_spec("opentelemetry.sdk") is not None
)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry.sdk", "opentelemetry.sdk.trace", "opentelemetry.exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingError, match=r"pip install 'slipstream\[otel\]'"):
        open_tracing("http://localhost:4318/v1/traces", NAME, lambda: 0.0)


@pytest.mark.skipif(not HAS_SDK, reason="opentelemetry-sdk is not installed")
def test_spans_of_a_request() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine = make_engine(num_speculative_tokens=3)
    tracing = Tracing(provider, NAME, engine.clock)
    rule = TracedAdmission(Admission(QueueLimits(), 8, engine.clock, lambda reason: None), tracing)
    front = AsyncEngine(EngineThread(engine), VOCABULARY, admission=rule)
    model = ServedModel(NAME, TOKENIZER, TEMPLATE, 256, 0, longest_token=LONGEST_TOKEN)
    app = create_app(front, model, tracing=tracing)

    async def run() -> None:
        import httpx

        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client,
        ):
            parent = {"traceparent": f"00-{7:032x}-{9:016x}-01", "X-Request-Id": "mine"}
            body = {"model": NAME, "prompt": "hi", "max_tokens": 9, "n": 2, "ignore_eos": True}
            assert (await client.post("/v1/completions", json=body, headers=parent)).status_code == 200
            assert (await client.get("/health")).status_code == 200
            # tracing must not be what a hostile header breaks
            assert (await client.get("/version", headers={"traceparent": "x" * 5000})).status_code == 200

    asyncio.run(run())
    spans: dict[str, list[Any]] = {}
    for span in exporter.get_finished_spans():
        spans.setdefault(span.name, []).append(span)
    assert set(spans) == {"POST /v1/completions", "GET /version", "llm_request", "queue", "prefill", "decode"}
    (request,) = spans["POST /v1/completions"]
    assert request.context.trace_id == 7 and request.parent.span_id == 9
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["slipstream.request.id"] == "mine"
    assert len(spans["llm_request"]) == 2
    for answer in spans["llm_request"]:
        assert answer.parent.span_id == request.context.span_id
        assert answer.attributes["gen_ai.usage.completion_tokens"] == 9
        assert answer.attributes["slipstream.accepted_drafts"] > 0
        stages = [span for name in ("queue", "prefill", "decode") for span in spans[name]]
        own = [span for span in stages if span.parent.span_id == answer.context.span_id]
        assert [span.name for span in sorted(own, key=lambda span: span.start_time)] == ["queue", "prefill", "decode"]
        assert all(span.start_time <= span.end_time <= answer.end_time for span in own)
