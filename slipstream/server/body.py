"""Reading a request body: its size, its shape, its fields. No body may hold up the event loop."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from slipstream.request import RequestError
from slipstream.server.errors import ApiError
from slipstream.server.sse import ClientGoneError
from slipstream.server.wire.objects import OpenObject

MAX_BODY_BYTES = 8 << 20
# Parsing and validation hold Python's lock: up to 6 µs for a list or object, 0.5 µs for a string, 0.1 µs for a number
# (measured). Ids of 128 prompts of 8192 tokens fit, and 4096 messages of one part each.
MAX_CONTAINERS = 1 << 14
MAX_STRINGS = 1 << 17
MAX_VALUES = 1 << 20
# A smaller body cannot take long whatever it holds.
LARGE_BODY = 1 << 16

Body = TypeVar("Body", bound=OpenObject)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """Read and check a JSON body of at most MAX_BODY_BYTES. Raises ApiError, RequestError or ClientGoneError."""
    received = bytearray()
    try:
        async for chunk in request.stream():
            received += chunk
            if len(received) > MAX_BODY_BYTES:
                raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large")
    except ClientDisconnect:
        raise ClientGoneError from None
    body = bytes(received)
    if len(body) > LARGE_BODY:
        await asyncio.to_thread(check_counts, body)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _readable(error) from None


def check_counts(body: bytes) -> None:
    """Refuse JSON of more values than are ever needed, before anything is made of them.

    What strings hold does not count. In bytes that are no JSON the counts are right up to the first fault, where
    parsing ends too.
    """
    if _excess(body, body.count(b'"')) is None:
        return
    # Without escapes, what lies before the first quote, between the second and the third, … is outside of strings.
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_quotes = body.count(b'"')
    outside = b"" if num_quotes > 2 * MAX_STRINGS else b"".join(body.split(b'"')[::2])
    excess = _excess(outside, num_quotes)
    if excess is not None:
        raise RequestError(f"the body holds more than {excess}", None, "body_too_complex")


def _excess(outside: bytes, num_quotes: int) -> str | None:
    if num_quotes > 2 * MAX_STRINGS:
        return f"{MAX_STRINGS} strings"
    if outside.count(b"[") + outside.count(b"{") > MAX_CONTAINERS:
        return f"{MAX_CONTAINERS} lists and objects"
    if outside.count(b",") > MAX_VALUES:
        return f"{MAX_VALUES} values"
    return None


def _readable(error: ValidationError) -> RequestError:
    """The first problem, in words that name the field."""
    problems = error.errors(include_url=False, include_input=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        return RequestError(f"the body is not valid JSON: {first['msg']}", None, "invalid_json")
    field = str(first["loc"][0]) if first["loc"] else None
    if field is None:
        return RequestError(f"the body must be a JSON object: {first['msg']}", None, "invalid_json")
    if first["type"] == "missing":
        return RequestError(f"{field!r} is required", field, "missing_parameter")
    # Beside fields and indices, a location names the branches of unions: `str`, `list[int]`.
    names = [part for part in first["loc"] if isinstance(part, int) or (re.fullmatch(r"\w+", part) and part != "str")]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in names).lstrip(".")
    unique = dict.fromkeys(problem["msg"] for problem in problems if problem["loc"][0] == field)
    return RequestError(f"{where}: {'; or '.join(list(unique)[:3])}", field, "invalid_value")
