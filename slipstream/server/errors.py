"""Errors over HTTP: always `{"error": {"message", "type", "param", "code"}}`, as the OpenAI API has them."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.engine.engine import EngineDeadError
from slipstream.request import RequestError
from slipstream.server.wire.fields import shortened

logger = logging.getLogger(__name__)

MAX_MESSAGE = 1000
INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
ANTHROPIC_ROUTES = "/v1/messages"


class ApiError(Exception):
    """An answer that is an error; the arguments are the body's fields, and headers beside it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        parameter: str | None = None,
        code: str | None = None,
        kind: str = INVALID_REQUEST,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = error_body(message, kind, parameter, code)


def error_body(message: str, kind: str, parameter: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The body of an error answer, or of an error event inside a stream."""
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}


def shaped(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """The body as the route's clients expect it: Anthropic's have a type around the error."""
    return {"type": "error", **body} if request.url.path.startswith(ANTHROPIC_ROUTES) else body


def install_error_handlers(app: FastAPI) -> None:
    """Give every way a request can fail the same shape."""

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(shaped(request, error.body), error.status, headers=error.headers)

    @app.exception_handler(RequestError)
    async def request_error(request: Request, error: RequestError) -> JSONResponse:
        # Messages repeat what clients sent, and templates what they like.
        message = shortened(error.message, MAX_MESSAGE)
        return JSONResponse(shaped(request, error_body(message, INVALID_REQUEST, error.parameter, error.code)), 400)

    @app.exception_handler(RequestValidationError)
    async def bad_parameter(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name = str(first["loc"][-1])
        message = shortened(f"{name}: {first['msg']}, got {first.get('input')!r}", MAX_MESSAGE)
        return JSONResponse(shaped(request, error_body(message, INVALID_REQUEST, name)), 400)

    @app.exception_handler(EngineDeadError)
    async def engine_dead(request: Request, error: EngineDeadError) -> JSONResponse:
        return JSONResponse(shaped(request, error_body(str(error), SERVER_ERROR, code="engine_unavailable")), 503)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code == 404:
            message = f"there is no {shortened(request.url.path)} here; the API is under /v1, its description at /docs"
        elif error.status_code == 405:
            message = f"{shortened(request.method)} is not allowed on {shortened(request.url.path)}"
        body = shaped(request, error_body(message, INVALID_REQUEST))
        return JSONResponse(body, error.status_code, headers=error.headers)


class UnexpectedErrorMiddleware:
    """Turns what no handler knows into an answer 500, below the middleware that completes answers. An answer that has
    begun cannot be taken back: its connection is closed, so that the client notices."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            if scope["type"] != "http":
                raise
            logger.exception("%s %s failed", scope["method"], shortened(scope["path"]))
            if has_begun:
                raise
            body = error_body("the server failed on this request; see its log", SERVER_ERROR)
            await JSONResponse(shaped(Request(scope), body), 500)(scope, receive, send)
