"""What every request passes through, from the outside in."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from slipstream.server.access_log import AccessLogMiddleware
from slipstream.server.auth import ApiKeyMiddleware, ApiKeys
from slipstream.server.errors import UnexpectedErrorMiddleware
from slipstream.server.options import ServerOptions
from slipstream.server.request_id import RequestIdMiddleware
from slipstream.server.route_path import RootPathMiddleware
from slipstream.server.tracing import Tracing, TracingMiddleware

EXPOSED_HEADERS = ("X-Request-Id", "Retry-After")


def install_middleware(app: FastAPI, options: ServerOptions, tracing: Tracing | None) -> None:
    """Root path, request id, log line, span, CORS, unexpected errors, API key. CORS stands outside of keys: browsers
    ask whether they may before they send any."""
    if options.api_keys:
        app.add_middleware(ApiKeyMiddleware, keys=ApiKeys(options.api_keys), open_metrics=options.open_metrics)
    app.add_middleware(UnexpectedErrorMiddleware)
    if options.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=list(EXPOSED_HEADERS),
        )
    if tracing is not None:
        app.add_middleware(TracingMiddleware, tracing=tracing)
    if options.access_log:
        app.add_middleware(AccessLogMiddleware)
    app.add_middleware(RequestIdMiddleware)
    if options.root_path:
        app.add_middleware(RootPathMiddleware, root_path=options.root_path)
