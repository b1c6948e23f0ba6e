"""DrainingServer: uvicorn's server, which on SIGTERM lets answers come to their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from slipstream.engine.async_engine import SHUTTING_DOWN, AsyncEngine
from slipstream.server.systemd import READY, STOPPING, SystemdNotifier

logger = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """SIGTERM: new requests get 503, those that run go on, `timeout_s` seconds at most; what is left then, and at once
    on SIGINT or a second signal, ends with an error. Returns instead of raising the signal again.

    Args:
        on_ready: called once requests are served.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        front: AsyncEngine,
        timeout_s: float,
        on_ready: Callable[[], None],
        notifier: SystemdNotifier | None = None,
    ) -> None:
        super().__init__(config)
        self._front = front
        self._timeout_s = timeout_s
        self._on_ready = on_ready
        self._notifier = notifier or SystemdNotifier()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_draining = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._loop = asyncio.get_running_loop()
            self._tasks.append(asyncio.create_task(self._notifier.watch(lambda: self._front.health().ok)))
            self._notifier.say(READY)
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._tasks:
            task.cancel()
        self._notifier.say(STOPPING)
        self._front.end_all(SHUTTING_DOWN)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the interpreter when a signal comes."""
        if sig == signal.SIGTERM and self._timeout_s > 0 and self._loop is not None and not self._is_draining:
            self._is_draining = True
            self._loop.call_soon_threadsafe(self._start_draining)
        else:
            super().handle_exit(sig, frame)

    def _start_draining(self) -> None:
        self._tasks.append(asyncio.create_task(self._drain()))

    async def _drain(self) -> None:
        self._notifier.say(STOPPING)
        if self._front.num_unfinished:
            logger.info(
                "shutting down: %d requests have up to %g s to end", self._front.num_unfinished, self._timeout_s
            )
        if not await self._front.drain(self._timeout_s):
            logger.warning("shutting down: %d requests did not end in time", self._front.num_unfinished)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        wanted = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
