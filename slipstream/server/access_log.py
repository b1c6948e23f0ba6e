"""AccessLog: a line per answered request."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.server.auth import METRICS_PATH, PROBE_PATHS
from slipstream.server.live import LIVE_PATH
from slipstream.server.request_context import CURRENT_REQUEST
from slipstream.server.route_path import route_path
from slipstream.server.wire.fields import shortened

logger = logging.getLogger(__name__)

QUIET_PATHS = PROBE_PATHS | {METRICS_PATH, LIVE_PATH}
NO_ANSWER = 499


class AccessLogMiddleware:
    """Method, path, status, milliseconds until the answer was sent, and the key's number. What clients wrote is quoted,
    so that it cannot pass for a line of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        begin = time.monotonic()
        status = NO_ANSWER

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            milliseconds = (time.monotonic() - begin) * 1e3
            method, path = shortened(scope["method"]), shortened(scope["path"])
            context = CURRENT_REQUEST.get()
            key_number = None if context is None else context.key_number
            logger.info(
                "%s %r %d, %.1f ms%s",
                method if method.isalpha() else repr(method),
                path,
                status,
                milliseconds,
                "" if key_number is None else f", key {key_number}",
                extra={
                    "method": method,
                    "path": path,
                    "status": status,
                    "duration_ms": round(milliseconds, 1),
                    "key_number": key_number,
                },
            )
