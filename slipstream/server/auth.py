"""API keys: asked for on every route that generates or reveals anything."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from slipstream.server.errors import INVALID_REQUEST, error_body
from slipstream.server.page_files import PAGE_PATHS
from slipstream.server.request_context import CURRENT_REQUEST
from slipstream.server.route_path import route_path

PROBE_PATHS = frozenset({"/health", "/ready"})
# The page itself says nothing of this server; what it shows it asks for with a key.
OPEN_PATHS = PROBE_PATHS.union(PAGE_PATHS)
METRICS_PATH = "/metrics"


class ApiKeys:
    """The keys, as digests. Every comparison takes the same time whatever was sent."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode("ascii")) for key in keys]

    def number_of(self, sent: bytes) -> int | None:
        """Which key this is, counted from 1; None for none of them."""
        digest = _digest(sent)
        found = None
        for number, known in enumerate(self._digests, start=1):  # to the end, also when found
            if hmac.compare_digest(digest, known):
                found = number
        return found


class ApiKeyMiddleware:
    """Answers 401 to whoever sends no key of ours, as `Authorization: Bearer KEY` or `X-Api-Key: KEY`.

    Whatever is not named here as open is closed: a new route cannot be forgotten.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, *, open_metrics: bool = False) -> None:
        self._app = app
        self._keys = keys
        self._open = OPEN_PATHS | {METRICS_PATH} if open_metrics else OPEN_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and route_path(scope) not in self._open:
            sent = sent_keys(scope["headers"])
            number = self._keys.number_of(sent[0]) if len(sent) == 1 else None
            if number is None:
                await _refusal(len(sent))(scope, receive, send)
                return
            context = CURRENT_REQUEST.get()
            if context is not None:
                context.key_number = number
        await self._app(scope, receive, send)


def sent_keys(headers: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """The different keys that a request came with; more than one is nobody's."""
    sent: dict[bytes, None] = {}
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            sent[key.strip() if scheme.lower() == b"bearer" else b""] = None
        elif name == b"x-api-key":
            sent[value.strip()] = None
    return list(sent)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _refusal(num_sent: int) -> JSONResponse:
    if num_sent:
        message = "this API key is not known here" if num_sent == 1 else "the request holds several API keys; send one"
    else:
        message = "this server asks for an API key; send it as 'Authorization: Bearer KEY'"
    body = error_body(message, INVALID_REQUEST, code="invalid_api_key")
    return JSONResponse(body, 401, headers={"WWW-Authenticate": "Bearer"})
