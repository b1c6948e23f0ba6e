"""Request ids: taken from the client where they are sane, made here otherwise, given back with every answer."""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.server.request_context import CURRENT_REQUEST, RequestContext

HEADER = b"x-request-id"
_SANE = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/=+@-]{0,127}")


def request_id_of(headers: list[tuple[bytes, bytes]]) -> str:
    """The client's id where it sent one that is harmless in logs and headers, else a new one."""
    sent = [value for name, value in headers if name == HEADER]
    if len(sent) == 1 and _SANE.fullmatch(sent[0]):
        return sent[0].decode("ascii")
    return uuid.uuid4().hex


class RequestIdMiddleware:
    """Sets the RequestContext, and adds `X-Request-Id` to the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id.encode("ascii"))]
            await send(message)

        token = CURRENT_REQUEST.set(RequestContext(request_id))
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            CURRENT_REQUEST.reset(token)
