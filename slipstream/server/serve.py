"""`slipstream serve`: from settings to a listening server, and what it says on the way."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.table import Table

from slipstream.config import Resolution, SettingError, Settings
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.build import BuiltEngine, build_engine
from slipstream.engine.engine_thread import EngineThread
from slipstream.engine.statistics_log import StatisticsLog
from slipstream.engine.worker import WorkerThread
from slipstream.server.app import create_app
from slipstream.server.http_protocol import HttpProtocol
from slipstream.server.metrics import EngineCollector, ServerMetrics
from slipstream.server.served_model import ServedModel
from slipstream.simulation.record_to import RecordTo

logger = logging.getLogger(__name__)

SHUTDOWN_S = 5
BACKLOG = 2048
LOG_WIDTH = 120
ANY_HOST = ("0.0.0.0", "::", "")


def serve(
    settings: Settings,
    *,
    host: str,
    port: int,
    seed: int | None = None,
    stuck_step_s: float = 60.0,
    record: RecordTo | None = None,
    strict: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM; `record`: where to record every step; `strict`: see `create_app`.

    Raises:
        SettingError, ModelLoadError: before any weight is loaded.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    listener = bind(host, port)
    with contextlib.closing(listener):
        port = listener.getsockname()[1]
        worker = WorkerThread("slipstream-engine")
        built = worker.submit(
            lambda: build_engine(
                settings, progress=True, announce=lambda found: print_report(console, found), record=record
            )
        ).result()
        logger.info("%s", speculation_line(built.resolution))
        app, front = make_app(built, worker, seed=seed, stuck_step_s=stuck_step_s, strict=strict)
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_S,
            lifespan="on",
        )
        server = _Server(
            config,
            on_ready=lambda: _print_ready(console, host, port, built.served_name),
            on_stop=lambda: front.end_all("the server is shutting down"),
        )
        server.run(sockets=[listener])
    if not server.started:
        raise SettingError("the server could not start; see the log above")


def make_app(
    built: BuiltEngine,
    worker: WorkerThread,
    *,
    seed: int | None = None,
    stuck_step_s: float = 60.0,
    strict: bool = False,
) -> tuple[FastAPI, AsyncEngine]:
    """The application, and its front, around an engine that was built in `worker` and will run there."""
    engine, resolution = built.engine, built.resolution
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry, built.served_name, resolution.scheduler.max_model_len)
    registry.register(EngineCollector(engine, built.served_name))
    statistics_log = StatisticsLog(engine.scheduler)
    front = AsyncEngine(
        EngineThread(engine, worker),
        built.vocabulary,
        listeners=(metrics, statistics_log),
        seed=seed,
        stuck_step_s=stuck_step_s,
    )
    speculative = resolution.settings.speculative
    model = ServedModel(
        name=built.served_name,
        tokenizer=built.source.tokenizer,
        chat_template=built.source.chat_template,
        max_request_tokens=engine.scheduler.max_request_tokens,
        longest_token=max(map(len, built.vocabulary.token_bytes)),
        created=int(time.time()),
        speculation=None
        if speculative is None
        else {"method": speculative.method, "num_speculative_tokens": speculative.num_drafts},
    )
    app = create_app(
        front, model, registry=registry, report=resolution.report, statistics_log=statistics_log, strict=strict
    )
    return app, front


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything costly is done. Raises SettingError when the address cannot be had.

    Linux lets two sockets with SO_REUSEADDR share a port until one listens, so two servers that load at once could
    both have it. Clients that connect while the model loads wait until it has.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise SettingError(
            f"--host {host} --port {port} cannot be listened on: {error}. "
            "Stop what uses it, or choose another --port (0 takes any free one)"
        ) from None
    return listener


def speculation_line(resolution: Resolution) -> str:
    """One line: method, K, on or off and why."""
    speculative = resolution.settings.speculative
    if speculative is None:
        why = next((row.reason for row in resolution.report if row.name == "speculative_config"), "")
        return f"Speculation: off because {why or '--speculative-config is none'}"
    return (
        f"Speculation: on, method {speculative.method}, K = {speculative.num_drafts}, "
        f"draft budget {resolution.settings.scheduler.draft_budget}"
    )


def print_report(console: Console, resolution: Resolution) -> None:
    """The resolution report as a table."""
    table = Table(title="Settings", title_justify="left", box=None, pad_edge=False)
    for column in ("setting", "value", "from", "why"):
        table.add_column(column, no_wrap=column != "why")
    for row in resolution.report:
        table.add_row(row.name, str(row.value), row.source, row.reason)
    console.print(table)


def _print_ready(console: Console, host: str, port: int, name: str) -> None:
    shown = "127.0.0.1" if host in ANY_HOST else f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    if host not in ANY_HOST:
        reach = "reachable from this machine only; --host 0.0.0.0 opens it" if shown == "127.0.0.1" else ""
    else:
        reach = "reachable from the network"
    body = json.dumps({"model": name, "temperature": 0, "messages": [{"role": "user", "content": "Hello!"}]})
    console.print(f"Ready: {url} {f'({reach})' if reach else ''}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


class _Server(uvicorn.Server):
    """Says when it is ready, ends open answers when told to stop, and returns instead of raising the signal again."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        wanted = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
