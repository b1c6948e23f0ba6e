"""The FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry
from starlette.responses import Response

from slipstream.config import ResolvedSetting
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.statistics_log import StatisticsLog
from slipstream.server.chat import chat_routes
from slipstream.server.completions import completion_routes
from slipstream.server.description import DescribedApi
from slipstream.server.errors import install_error_handlers
from slipstream.server.info import info_routes
from slipstream.server.live import LiveView, live_routes
from slipstream.server.messages import message_routes
from slipstream.server.middleware import install_middleware
from slipstream.server.options import ServerOptions
from slipstream.server.page_files import page_routes
from slipstream.server.responses import response_routes
from slipstream.server.served_model import ServedModel
from slipstream.server.service import Service
from slipstream.server.sse import ClientGoneError
from slipstream.server.tokenization import tokenization_routes
from slipstream.server.tracing import Tracing
from slipstream.version import __version__

CLIENT_CLOSED_REQUEST = 499


def create_app(
    engine: AsyncEngine,
    model: ServedModel,
    *,
    registry: CollectorRegistry | None = None,
    report: Sequence[ResolvedSetting] = (),
    statistics_log: StatisticsLog | None = None,
    options: ServerOptions | None = None,
    tracing: Tracing | None = None,
    live: LiveView | None = None,
) -> FastAPI:
    """Serve one engine over HTTP. The application's lifespan starts and stops it.

    Args:
        registry: what `/metrics` shows. report: what `/v1/config` shows.
        statistics_log: writes its lines while the application runs.
        options: what the server was started with; the defaults where None. tracing: None makes no spans.
        live: what the page at `/` shows; without it neither is served.
    """
    options = options or ServerOptions()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        writer = asyncio.create_task(statistics_log.run(engine)) if statistics_log is not None else None
        try:
            yield
        finally:
            if writer is not None:
                writer.cancel()
            await engine.stop()
            if tracing is not None:
                await asyncio.to_thread(tracing.close)

    app = DescribedApi(title="Slipstream", version=__version__, lifespan=lifespan)
    install_error_handlers(app)
    install_middleware(app, options, tracing)

    @app.exception_handler(ClientGoneError)
    async def client_gone(_request: Request, _error: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    service = Service(engine, model, options.strict)
    for routes in (chat_routes, completion_routes, response_routes, message_routes, tokenization_routes):
        app.include_router(routes(service))
    if live is not None:
        app.include_router(live_routes(live))
        app.include_router(page_routes())
    app.include_router(info_routes(engine, model, report, registry or CollectorRegistry()))
    return app
