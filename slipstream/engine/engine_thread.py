"""EngineThread: the engine loop in a thread of the front's process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from slipstream.engine.engine import Engine, EngineLoad
from slipstream.engine.loop import EngineLoop, QueueInbox
from slipstream.engine.messages import Event, Message


class EngineBackend(Protocol):
    """Where an engine loop runs, as its front sees it."""

    def clock(self) -> float:
        """Seconds on the engine's clock."""
        ...

    @property
    def load(self) -> EngineLoad:
        """How busy the engine is."""
        ...

    @property
    def step_started(self) -> float | None:
        """When the step now running began; None between steps."""
        ...

    def start(self, deliver: Callable[[Event], None]) -> None:
        """Begin; `deliver` is called from another thread, in order."""
        ...

    def put(self, message: Message) -> None:
        """Hand over a message; never waits."""
        ...

    def is_alive(self) -> bool: ...

    def join(self, timeout_s: float) -> None:
        """Wait for the end after a Shutdown."""
        ...


class EngineThread:
    """See EngineBackend. Messages are passed, not copied; the thread does not keep the process alive."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox = QueueInbox()
        self._loop: EngineLoop | None = None
        self._thread: threading.Thread | None = None

    def clock(self) -> float:
        return self._engine.clock()

    @property
    def load(self) -> EngineLoad:
        return self._engine.load

    @property
    def step_started(self) -> float | None:
        return None if self._loop is None else self._loop.step_started

    def start(self, deliver: Callable[[Event], None]) -> None:
        self._loop = EngineLoop(self._engine, self._inbox, deliver)
        self._thread = threading.Thread(target=self._loop.run, name="slipstream-engine", daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        self._inbox.put(message)

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)
