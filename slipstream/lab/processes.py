"""A pool of processes that ends without a word when the user interrupts the command."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class QuietPool(ProcessPoolExecutor):
    """Processes that an interrupt kills at once. They are spawned, not forked: this one may have threads (a progress
    bar has one)."""

    def __init__(self, processes: int) -> None:
        super().__init__(processes, mp_context=multiprocessing.get_context("spawn"), initializer=_die_by_interrupt)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See Executor. A process that is born here knows no interrupt until it can die of one without a traceback."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self.shutdown(wait=True, cancel_futures=kind is not None)


def _die_by_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
