"""RequestContext: what everything that happens within one HTTP request may know of it, such as its log lines."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class RequestContext:
    """Travels with the asyncio tasks that work on a request.

    Attributes:
        request_id: the client's own, or a new one.
        key_number: which API key it came with, counted from 1; None where nobody is asked.
    """

    request_id: str
    key_number: int | None = None


CURRENT_REQUEST: ContextVar[RequestContext | None] = ContextVar("CURRENT_REQUEST", default=None)
