"""WorkerThread: one thread, in order, outcomes as futures."""

from __future__ import annotations

import threading

import pytest

from slipstream.engine.worker import WorkerThread


def test_everything_runs_in_one_thread_in_order() -> None:
    worker = WorkerThread("test-worker")
    seen: list[int] = []

    def note(number: int) -> int:
        seen.append(number)
        return threading.get_ident()

    futures = [worker.submit(lambda number=number: note(number)) for number in range(50)]
    threads = {future.result(5) for future in futures}
    assert seen == list(range(50))
    assert len(threads) == 1 and threads != {threading.get_ident()}
    worker.close(5)
    assert not worker.is_alive()


def test_what_raises_is_told_and_the_worker_goes_on() -> None:
    worker = WorkerThread("test-worker")

    def fail() -> None:
        raise SystemExit("not even this ends it")

    with pytest.raises(SystemExit, match="not even this"):
        worker.submit(fail).result(5)
    assert worker.submit(lambda: 7).result(5) == 7
    worker.close(5)
