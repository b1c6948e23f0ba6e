"""Server-sent events, and noticing that nobody listens any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
# Proxies and clients give up on silent connections; comments are no events.
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0


class ClientGoneError(Exception):
    """The client closed the connection before its answer was ready."""


def event(payload: dict[str, Any]) -> bytes:
    """One `data:` event."""
    return b"data: " + json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named_event(name: str, payload: dict[str, Any]) -> bytes:
    """One event whose name also stands in an `event:` line."""
    return b"event: " + name.encode() + b"\n" + event(payload)


class EventStream(StreamingResponse):
    """Sends events until they end or the client is gone; `close` runs in every case, also before the first event."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], close: Callable[[], None], *, keep_alive_s: float = KEEP_ALIVE_S
    ) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._close = close
        self._keep_alive_s = keep_alive_s
        self._num_sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            self._num_sent += 1
            await send(message)

        sending = asyncio.create_task(self.stream_response(counted))
        gone = asyncio.create_task(self.listen_for_disconnect(receive))
        keep_alive = asyncio.create_task(self._keep_alive(send))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not isinstance(sending.exception(), OSError):
                sending.result()
        finally:
            self._close()
            for task in (keep_alive, sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, keep_alive, return_exceptions=True)

    async def _keep_alive(self, send: Send) -> None:
        """Send a comment whenever nothing was sent for a while."""
        while True:
            before = self._num_sent
            await asyncio.sleep(self._keep_alive_s)
            if before == self._num_sent and before:
                await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})


async def unless_client_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; cancel it and raise ClientGoneError when the client leaves first. The body must have been read."""
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
