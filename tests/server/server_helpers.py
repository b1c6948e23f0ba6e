"""A real server on an ephemeral port, in front of the scripted target."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import uvicorn
from engine_helpers import GRAMMARS, TEMPLATE, TOKENIZER, VOCABULARY, make_engine
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from slipstream.config import ResolvedSetting
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.engine import Engine
from slipstream.engine.engine_thread import EngineThread
from slipstream.engine.refit import CostRefitter
from slipstream.engine.statistics_log import StatisticsLog
from slipstream.models.chat_template import ChatTemplate
from slipstream.server.admission import Admission
from slipstream.server.app import create_app
from slipstream.server.http_protocol import HttpProtocol
from slipstream.server.live import LiveView
from slipstream.server.metrics import EngineCollector, FrontCollector, ServerMetrics
from slipstream.server.metrics.admission import RejectionCounter
from slipstream.server.options import ServerOptions
from slipstream.server.serve import bind
from slipstream.server.served_model import ServedModel

NAME = "tiny"
LONGEST_TOKEN = max(map(len, VOCABULARY.token_bytes))


def make_test_app(
    engine: Engine,
    *,
    stuck_step_s: float = 60.0,
    template: ChatTemplate = TEMPLATE,
    options: ServerOptions | None = None,
    report: Sequence[ResolvedSetting] = (),
) -> FastAPI:
    return make_test_server(engine, stuck_step_s=stuck_step_s, template=template, options=options, report=report)[0]


def make_test_server(
    engine: Engine,
    *,
    stuck_step_s: float = 60.0,
    template: ChatTemplate = TEMPLATE,
    options: ServerOptions | None = None,
    refitter: CostRefitter | None = None,
    report: Sequence[ResolvedSetting] = (),
) -> tuple[FastAPI, AsyncEngine]:
    """The application as `serve` puts it together, and its front."""
    options = options or ServerOptions()
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry, NAME, engine.scheduler.config.max_model_len)
    collector = EngineCollector(engine, NAME, refitter)
    registry.register(collector)
    live = LiveView(engine, collector.calibration)
    log = StatisticsLog(engine.scheduler)
    seats = engine.scheduler.config.max_num_seqs
    front = AsyncEngine(
        EngineThread(engine),
        VOCABULARY,
        listeners=(metrics, log, live.requests),
        stuck_step_s=stuck_step_s,
        admission=Admission(options.limits, seats, engine.clock, RejectionCounter(registry, NAME)),
    )
    registry.register(FrontCollector(front, NAME))
    most = engine.scheduler.config.num_speculative_tokens
    model = ServedModel(
        NAME,
        TOKENIZER,
        template,
        engine.scheduler.max_request_tokens,
        0,
        longest_token=LONGEST_TOKEN,
        grammars=GRAMMARS,
        speculation={"method": "oracle", "num_speculative_tokens": most} if most else None,
    )
    app = create_app(front, model, registry=registry, report=report, statistics_log=log, options=options, live=live)
    return app, front


@dataclass
class RunningServer:
    """A server in a thread, and the engine behind it."""

    url: str
    engine: Engine

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300, **options)

    def wait_idle(self, seconds: float = 2.0) -> None:
        """Fail unless nothing runs or waits and every block is free within `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            load = self.engine.load
            if not load.num_running and not load.num_waiting and not load.kv_cache_usage:
                return
            time.sleep(0.01)
        pytest.fail(f"after {seconds} s: {self.engine.load}")


Starter = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def start_server() -> Iterator[Starter]:
    """Starts servers; arguments are make_engine's and make_test_app's. All stop with the module."""
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(
        *args: Any,
        stuck_step_s: float = 60.0,
        template: ChatTemplate = TEMPLATE,
        options: ServerOptions | None = None,
        report: Sequence[ResolvedSetting] = (),
        **kwargs: Any,
    ) -> RunningServer:
        engine = make_engine(*args, **kwargs)
        listener = bind("127.0.0.1", 0)
        app = make_test_app(engine, stuck_step_s=stuck_step_s, template=template, options=options, report=report)
        config = uvicorn.Config(app, http=HttpProtocol, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
        thread.start()
        servers.append((server, thread))
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        return RunningServer(f"http://127.0.0.1:{listener.getsockname()[1]}", engine)

    yield start
    for server, _ in servers:
        server.should_exit = True
    for _, thread in servers:
        thread.join(10)
