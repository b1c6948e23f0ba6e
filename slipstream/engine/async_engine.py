"""AsyncEngine: the engine beside an asyncio loop, one async iterator per submission."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from slipstream.engine.admission import AdmissionRule, AdmittedRequest
from slipstream.engine.backlog import Backlog
from slipstream.engine.engine import EngineDeadError, EngineLoad
from slipstream.engine.engine_thread import EngineBackend
from slipstream.engine.messages import Abort, Accepted, EngineDied, Event, Rejected, Shutdown, StepReport, Submission
from slipstream.engine.output_processor import ChoiceDelta
from slipstream.engine.request_metrics import MetricsListener, RequestMetrics
from slipstream.engine.tracker import RequestTracker, TrackedRequest
from slipstream.engine.vocabulary import Vocabulary
from slipstream.engine.watchdog import StepWatchdog
from slipstream.request import FinishReason, RequestError, SamplingParams

logger = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether requests can be served; `reason` in words when not."""

    ok: bool
    reason: str = ""


class Generation:
    """A running request of one or more prompts: iterate for the deltas of all its choices, in the order they are made.

    Leave early only through `close` (or by cancelling the iteration): then the engine stops working on it.

    Attributes:
        submissions: one per prompt.
        metrics: one per choice, growing; choice c of prompt p is number `p * n + c`.
    """

    def __init__(
        self, owner: AsyncEngine, tracked: Sequence[TrackedRequest], admitted: AdmittedRequest | None = None
    ) -> None:
        self.submissions = [request.submission for request in tracked]
        self.metrics: list[RequestMetrics] = [metrics for request in tracked for metrics in request.metrics]
        self._owner = owner
        self._admitted = admitted
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_unanswered = len(tracked)
        self._deltas: asyncio.Queue[tuple[int, ChoiceDelta]] = asyncio.Queue()
        self._num_open = len(self.metrics)

    async def __aiter__(self) -> AsyncIterator[tuple[int, ChoiceDelta]]:
        """(choice number, delta) until every choice has ended."""
        try:
            while self._num_open:
                number, delta = await self._deltas.get()
                if delta.finish_reason is not None:
                    self._num_open -= 1
                yield number, delta
        finally:
            self.close()

    def close(self) -> None:
        """Abort what has not ended; no-op afterwards."""
        for submission in self.submissions:
            self._owner._abort(submission.request_id)
        admitted, self._admitted = self._admitted, None
        if admitted is not None:
            try:
                admitted.ended(self.metrics)
            except Exception:
                logger.exception("the end of request %s could not be noted", self.submissions[0].request_id)

    async def _wait_accepted(self) -> None:
        await self._accepted

    def _accept_one(self) -> None:
        self._num_unanswered -= 1
        if not self._num_unanswered and not self._accepted.done():
            self._accepted.set_result(None)

    def _refuse(self, error: Exception) -> None:
        if not self._accepted.done():
            self._accepted.set_exception(error)

    def _end(self, message: str) -> None:
        """End every choice with an error; what still comes from the engine is not waited for."""
        self._refuse(EngineDeadError(message))
        for number in range(len(self.metrics)):
            index = number % self.submissions[0].sampling.n
            self._deltas.put_nowait(
                (number, ChoiceDelta(index, "", [], finish_reason=FinishReason.ERROR, error=message))
            )

    def _put(self, prompt_index: int, delta: ChoiceDelta) -> None:
        number = prompt_index * self.submissions[prompt_index].sampling.n + delta.choice_index
        self._deltas.put_nowait((number, delta))


@dataclass(slots=True)
class _Prompt:
    """One prompt of a generation, as the engine's answers find it."""

    generation: Generation
    prompt_index: int
    tracked: TrackedRequest


class AsyncEngine:
    """Owns a backend, the engine elsewhere; all methods belong to one asyncio loop.

    The backend talks back through `call_soon_threadsafe`; nothing polls, and an idle engine sleeps.
    """

    def __init__(
        self,
        backend: EngineBackend,
        vocabulary: Vocabulary,
        *,
        listeners: Sequence[MetricsListener] = (),
        seed: int | None = None,
        stuck_step_s: float = 60.0,
        admission: AdmissionRule | None = None,
    ) -> None:
        """`seed` makes the seeds of unseeded requests repeatable; a step longer than `stuck_step_s` is unhealthy.
        `admission` may refuse requests before the engine hears of them."""
        self.watchdog = StepWatchdog(backend, stuck_step_s)
        self._admission = admission
        self._seeds = random.Random(seed)
        self._tracker = RequestTracker(vocabulary, listeners)
        self._prompts: dict[str, _Prompt] = {}
        self._backend = backend
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._death: str | None = None
        self._closing = False
        self._draining = False

    def clock(self) -> float:
        """Seconds on the engine's clock."""
        return self._backend.clock()

    @property
    def load(self) -> EngineLoad:
        return self._backend.load

    @property
    def num_unfinished(self) -> int:
        """Prompts whose answers nobody has read to the end yet."""
        return len(self._prompts)

    @property
    def backlog(self) -> Backlog:
        """What was submitted and has not begun to run."""
        return self._tracker.backlog

    async def start(self) -> None:
        self._asyncio_loop = asyncio.get_running_loop()
        self._backend.start(self._post)
        self._watching = asyncio.create_task(self.watchdog.run())

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests and wait until every answer has been read; False when some were not in time."""
        self._draining = True
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._prompts:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), deadline - asyncio.get_running_loop().time())
            except TimeoutError:
                return False
        return True

    def end_all(self, message: str) -> None:
        """Take no more requests, and end every unfinished answer now, with an error that says why."""
        self._closing = True
        for generation in {id(prompt.generation): prompt.generation for prompt in self._prompts.values()}.values():
            generation._end(message)

    async def stop(self) -> None:
        """Abort everything and wait for the step in flight."""
        self._closing = True
        for prompt in list(self._prompts.values()):
            prompt.generation.close()
        if self._watching is not None:
            self._watching.cancel()
        self._backend.put(Shutdown())
        await asyncio.to_thread(self._backend.join, self.watchdog.stuck_step_s)

    def health(self) -> EngineHealth:
        """Dead or stuck engines are not healthy."""
        if self._death is not None:
            return EngineHealth(False, self._death)
        if self._closing:
            return EngineHealth(False, SHUTTING_DOWN)
        complaint = self.watchdog.complaint
        if complaint is not None:
            return EngineHealth(False, complaint)
        if not self._backend.is_alive():
            return EngineHealth(False, "the engine is not running")
        return EngineHealth(True)

    def readiness(self) -> EngineHealth:
        """Whether a request that comes now would be served; a healthy server that drains would not."""
        health = self.health()
        return EngineHealth(False, SHUTTING_DOWN) if health.ok and self._draining else health

    async def submit(
        self,
        request_id: str,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        max_draft_tokens: int | None = None,
    ) -> Generation:
        """Hand prompts (token ids) to the engine and wait until it has taken all of them, or none.

        Raises:
            RequestError: one of them can never be served as asked. EngineDeadError: nothing can. What the admission
            rule raises.
        """
        readiness = self.readiness()
        if not readiness.ok:
            raise EngineDeadError(readiness.reason)
        now = self.clock()
        submissions = []
        for index, prompt in enumerate(prompts):
            seed = sampling.seed if sampling.seed is not None else self._seeds.getrandbits(63)
            name = f"{request_id}/{index}"
            submissions.append(
                Submission(name, tuple(prompt), sampling, seed, priority, now, cache_salt, max_draft_tokens)
            )
        admitted = None if self._admission is None else self._admission.admit(submissions, self.backlog)
        tracked = [self._tracker.add(submission) for submission in submissions]
        generation = Generation(self, tracked, admitted)
        for index, request in enumerate(tracked):
            self._prompts[request.submission.request_id] = _Prompt(generation, index, request)
            self._backend.put(request.submission)
        try:
            await generation._wait_accepted()
        except BaseException:
            generation.close()
            raise
        return generation

    def _abort(self, request_id: str) -> None:
        if self._forget(request_id) is None:
            return
        if self._tracker.drop(request_id, self.clock()):
            self._backend.put(Abort(request_id))

    def _forget(self, request_id: str) -> _Prompt | None:
        prompt = self._prompts.pop(request_id, None)
        if not self._prompts:
            self._idle.set()
        return prompt

    def _post(self, event: Event) -> None:
        """Called by another thread."""
        if self._asyncio_loop is not None and not self._asyncio_loop.is_closed():
            try:
                self._asyncio_loop.call_soon_threadsafe(self._receive, event)
            except RuntimeError:  # closed between the question and the call
                logger.debug("the asyncio loop is gone; an engine event was dropped")

    def _receive(self, event: Event) -> None:
        match event:
            case StepReport():
                for request_id, delta in self._tracker.read(event, self.clock()):
                    if (prompt := self._prompts.get(request_id)) is not None:
                        prompt.generation._put(prompt.prompt_index, delta)
                for request_id in self._tracker.failed:
                    self._backend.put(Abort(request_id))
                self._tracker.failed.clear()
            case Accepted(request_id):
                if (prompt := self._prompts.get(request_id)) is not None:
                    self._tracker.announce(prompt.tracked)
                    prompt.generation._accept_one()
            case Rejected(request_id, message, parameter, code):
                self._tracker.forget(request_id)
                if (prompt := self._forget(request_id)) is not None:
                    prompt.generation._refuse(RequestError(message, parameter, code))
            case EngineDied(message):
                self._death = message
                for prompt in list(self._prompts.values()):
                    prompt.generation._refuse(EngineDeadError(message))
