"""SharedEngine: many generations of one thread on one engine. Whoever steps it, each delta reaches its owner."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence

from slipstream.engine.engine import Engine
from slipstream.engine.messages import Submission
from slipstream.engine.output_processor import ChoiceDelta
from slipstream.engine.tracker import RequestTracker, TrackedRequest
from slipstream.engine.vocabulary import Vocabulary


class GenerationError(RuntimeError):
    """The engine failed while it worked on a request; nothing is wrong with the request."""


class SharedEngine:
    """Submits, steps, and keeps what a step gave until its owner asks."""

    def __init__(self, engine: Engine, vocabulary: Vocabulary) -> None:
        self.engine = engine
        self._tracker = RequestTracker(vocabulary)
        self._inboxes: dict[str, deque[tuple[str, ChoiceDelta]]] = {}
        self._is_busy = False
        self._unwanted: deque[str] = deque()

    def submit(self, submissions: Sequence[Submission]) -> RunningRequests:
        """Queue all of them, or none.

        Raises:
            RequestError: one can never be served as asked. EngineDeadError: nothing can.
        """
        inbox: deque[tuple[str, ChoiceDelta]] = deque()
        tracked: list[TrackedRequest] = []
        added: list[str] = []
        self._is_busy = True
        try:
            for submission in submissions:
                self.engine.add_request(submission)
                added.append(submission.request_id)
                tracked.append(self._tracker.add(submission))
                self._inboxes[submission.request_id] = inbox
        except BaseException:
            self._unwanted += added
            raise
        finally:
            self._rest()
        return RunningRequests(self, tracked, inbox)

    def step(self) -> None:
        """One step of the engine, for everybody. Raises EngineDeadError."""
        self._is_busy = True
        try:
            report = self.engine.step()
            for request_id, delta in self._tracker.read(report, self.engine.clock()):
                self._inboxes[request_id].append((request_id, delta))
            self._unwanted += self._tracker.failed
            self._tracker.failed.clear()
        finally:
            self._rest()

    def release(self, request_ids: Sequence[str]) -> None:
        """Abort what is unfinished. The garbage collector calls this at any moment, also in the middle of a step."""
        self._unwanted += request_ids
        if not self._is_busy:
            self._rest()

    def _rest(self) -> None:
        self._is_busy = False
        while self._unwanted:
            request_id = self._unwanted.popleft()
            self.engine.abort(request_id)
            self._tracker.forget(request_id)
            self._inboxes.pop(request_id, None)


class RunningRequests:
    """Iterates over (request id, delta) until every choice has ended; steps the engine when nothing is waiting.

    `close` aborts what is unfinished, and so does losing the last reference.
    """

    def __init__(
        self, shared: SharedEngine, tracked: Sequence[TrackedRequest], inbox: deque[tuple[str, ChoiceDelta]]
    ) -> None:
        self.tracked = tracked
        self._shared = shared
        self._inbox = inbox
        self._num_open = sum(request.num_open for request in tracked)
        ids = [request.submission.request_id for request in tracked]
        self._release = weakref.finalize(self, shared.release, ids)
        self._release.atexit = False

    def __iter__(self) -> Iterator[tuple[str, ChoiceDelta]]:
        return self

    def __next__(self) -> tuple[str, ChoiceDelta]:
        while not self._inbox:
            if not self._num_open or not self._release.alive:
                self.close()
                raise StopIteration
            if not self._shared.engine.has_work():
                self.close()
                raise GenerationError("the request is no longer in the engine: something else stepped or aborted it")
            self._shared.step()
        request_id, delta = self._inbox.popleft()
        self._num_open -= delta.finish_reason is not None
        return request_id, delta

    def close(self) -> None:
        """Abort what is unfinished and forget what was not fetched."""
        self._inbox.clear()
        self._release()
