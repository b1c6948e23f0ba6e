"""`slipstream serve`: from settings to a listening server, and what it says on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import socket
import ssl
import time

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, ProcessCollector
from rich.console import Console
from rich.table import Table

from slipstream.config import Resolution, SettingError, Settings
from slipstream.engine.admission import AdmissionRule
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.build import BuiltEngine, build_engine
from slipstream.engine.engine_thread import EngineThread
from slipstream.engine.statistics_log import StatisticsLog
from slipstream.engine.worker import WorkerThread
from slipstream.server.admission import Admission
from slipstream.server.app import create_app
from slipstream.server.drain import DrainingServer
from slipstream.server.http_protocol import HttpProtocol
from slipstream.server.live import LiveView
from slipstream.server.metrics import EngineCollector, FrontCollector, ServerMetrics
from slipstream.server.metrics.admission import RejectionCounter
from slipstream.server.options import ServerOptions
from slipstream.server.served_model import ServedModel
from slipstream.server.tracing import TracedAdmission, check_tracing, open_tracing
from slipstream.simulation.record_to import RecordTo

logger = logging.getLogger(__name__)

SHUTDOWN_S = 5
BACKLOG = 2048
LOG_WIDTH = 120
ANY_HOST = ("0.0.0.0", "::", "")


def serve(settings: Settings, options: ServerOptions, *, record: RecordTo | None = None) -> None:
    """Serve until SIGINT or SIGTERM; `record`: where to record every step.

    Raises:
        SettingError, ModelLoadError: before any weight is loaded.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    is_text = options.log_format == "text"
    check_tls(options)
    if options.otlp_traces_endpoint is not None:
        check_tracing()
    listener = bind(options.host, options.port)
    with contextlib.closing(listener):
        url = url_of(options, listener.getsockname()[1])
        worker = WorkerThread("slipstream-engine")

        def announce(found: Resolution) -> None:
            if is_text:
                print_report(console, found)
            else:
                rows = [dataclasses.asdict(row) for row in found.report]
                logger.info("settings", extra={"settings": rows})

        built = worker.submit(
            lambda: build_engine(settings, progress=is_text, announce=announce, record=record)
        ).result()
        logger.info("%s", speculation_line(built.resolution))
        app, front = make_app(built, worker, options)
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_S,
            lifespan="on",
            ssl_certfile=options.ssl_certfile,
            ssl_keyfile=options.ssl_keyfile,
        )

        def say_ready() -> None:
            if is_text:
                _print_ready(console, options, url, built.served_name)
            else:
                logger.info("ready", extra={"url": url, "model": built.served_name})

        server = DrainingServer(config, front, options.shutdown_timeout_s, say_ready)
        server.run(sockets=[listener])
    if not server.started:
        raise SettingError("the server could not start; see the log above")


def make_app(built: BuiltEngine, worker: WorkerThread, options: ServerOptions) -> tuple[FastAPI, AsyncEngine]:
    """The application, and its front, around an engine that was built in `worker` and will run there.

    Raises:
        SettingError: spans are asked for and OpenTelemetry is not installed.
    """
    engine, resolution, name = built.engine, built.resolution, built.served_name
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = ServerMetrics(registry, name, resolution.scheduler.max_model_len)
    collector = EngineCollector(engine, name, built.refitter)
    registry.register(collector)
    live = LiveView(engine, collector.calibration)
    statistics_log = StatisticsLog(engine.scheduler)
    tracing = None
    if options.otlp_traces_endpoint is not None:
        tracing = open_tracing(options.otlp_traces_endpoint, name, engine.clock)
    seats = engine.scheduler.config.max_num_seqs
    admission: AdmissionRule = Admission(options.limits, seats, engine.clock, RejectionCounter(registry, name))
    front = AsyncEngine(
        EngineThread(engine, worker),
        built.vocabulary,
        listeners=(metrics, statistics_log, live.requests),
        seed=options.seed,
        stuck_step_s=options.stuck_step_s,
        admission=admission if tracing is None else TracedAdmission(admission, tracing),
    )
    registry.register(FrontCollector(front, name))
    speculative = resolution.settings.speculative
    model = ServedModel(
        name=name,
        tokenizer=built.source.tokenizer,
        chat_template=built.source.chat_template,
        max_request_tokens=engine.scheduler.max_request_tokens,
        longest_token=max(map(len, built.vocabulary.token_bytes)),
        created=int(time.time()),
        grammars=built.grammars,
        speculation=None
        if speculative is None
        else {"method": speculative.method, "num_speculative_tokens": speculative.num_drafts},
    )
    app = create_app(
        front,
        model,
        registry=registry,
        report=resolution.report,
        statistics_log=statistics_log,
        options=options,
        tracing=tracing,
        live=live,
    )
    return app, front


def check_tls(options: ServerOptions) -> None:
    """Refuse TLS files that cannot be used, before anything is loaded. Raises SettingError."""
    if options.ssl_certfile is None or options.ssl_keyfile is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingError(
            f"--ssl-certfile {options.ssl_certfile} and --ssl-keyfile {options.ssl_keyfile} cannot be used: {error}"
        ) from None


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


def url_of(options: ServerOptions, port: int) -> str:
    """Where clients of this machine reach the server."""
    host = options.host
    shown = "127.0.0.1" if host in ANY_HOST else f"[{host}]" if ":" in host else host
    return f"{'http' if options.ssl_certfile is None else 'https'}://{shown}:{port}"


def _print_ready(console: Console, options: ServerOptions, url: str, name: str) -> None:
    if options.host not in ANY_HOST:
        is_local = options.host == "127.0.0.1"
        reach = "reachable from this machine only; --host 0.0.0.0 opens it" if is_local else ""
    else:
        reach = "reachable from the network" + ("" if options.api_keys else "; anybody may use it, see --api-key")
    body = json.dumps({"model": name, "temperature": 0, "messages": [{"role": "user", "content": "Hello!"}]})
    key = " -H 'Authorization: Bearer …'" if options.api_keys else ""
    console.print(f"Ready: {url} {f'({reach})' if reach else ''}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
