"""WorkerThread: one thread that runs what it is given, in order.

PyTorch's CPU threads belong to the thread that first ran a parallel operation. When another thread runs one too, there
are two sets for the same cores, and OpenMP stops spinning at its barriers: each operation then waits for a wake-up. So
the thread that runs a model is the thread that loads it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class WorkerThread:
    """A daemon thread: it does not keep the process alive, even when what it runs hangs."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` after everything given before; its outcome is the future's."""
        future: Future[T] = Future()

        def task() -> None:
            try:
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._tasks.put(task)
        return future

    def close(self, timeout_s: float | None = None) -> None:
        """End after what was given so far; waits for it, `timeout_s` seconds at most."""
        self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
