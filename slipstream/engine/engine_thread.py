"""EngineThread: the engine loop in a thread of the front's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from slipstream.engine.engine import Engine, EngineLoad
from slipstream.engine.loop import EngineLoop, QueueInbox
from slipstream.engine.messages import Event, Message
from slipstream.engine.worker import WorkerThread


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

    def __init__(self, engine: Engine, worker: WorkerThread | None = None) -> None:
        """`worker`: the thread that loaded the model; a new one when None."""
        self._engine = engine
        self._inbox = QueueInbox()
        self._worker = worker or WorkerThread("slipstream-engine")
        self._loop: EngineLoop | None = None

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
        self._running = self._worker.submit(self._loop.run)

    def put(self, message: Message) -> None:
        self._inbox.put(message)

    def is_alive(self) -> bool:
        return self._loop is not None and not self._running.done()

    def join(self, timeout_s: float) -> None:
        if self._loop is not None:
            self._worker.close(timeout_s)
