"""AsyncEngine: the engine beside an asyncio loop, one async iterator per submission."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from slipstream.engine.engine import EngineDeadError, EngineLoad
from slipstream.engine.engine_thread import EngineBackend
from slipstream.engine.messages import Abort, Accepted, EngineDied, Event, Rejected, Shutdown, StepReport, Submission
from slipstream.engine.output_processor import ChoiceDelta
from slipstream.engine.request_metrics import MetricsListener, RequestMetrics
from slipstream.engine.tracker import RequestTracker, TrackedRequest
from slipstream.engine.vocabulary import Vocabulary
from slipstream.request import FinishReason, RequestError, SamplingParams

logger = logging.getLogger(__name__)


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

    def __init__(self, owner: AsyncEngine, tracked: Sequence[TrackedRequest]) -> None:
        self.submissions = [request.submission for request in tracked]
        self.metrics: list[RequestMetrics] = [metrics for request in tracked for metrics in request.metrics]
        self._owner = owner
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
    ) -> None:
        """`seed` makes the seeds of unseeded requests repeatable; a step longer than `stuck_step_s` is unhealthy."""
        self.stuck_step_s = stuck_step_s
        self._seeds = random.Random(seed)
        self._tracker = RequestTracker(vocabulary, listeners)
        self._prompts: dict[str, _Prompt] = {}
        self._backend = backend
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._death: str | None = None
        self._closing = False

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

    async def start(self) -> None:
        self._asyncio_loop = asyncio.get_running_loop()
        self._backend.start(self._post)
        self._watchdog = asyncio.create_task(self._watch())

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
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._backend.put(Shutdown())
        await asyncio.to_thread(self._backend.join, self.stuck_step_s)

    def health(self) -> EngineHealth:
        """Dead or stuck engines are not healthy."""
        if self._death is not None:
            return EngineHealth(False, self._death)
        if self._closing:
            return EngineHealth(False, "the server is shutting down")
        stuck = self._seconds_in_step()
        if stuck > self.stuck_step_s:
            return EngineHealth(False, f"the current step has been running for {stuck:.0f} s")
        if not self._backend.is_alive():
            return EngineHealth(False, "the engine is not running")
        return EngineHealth(True)

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
            RequestError: one of them can never be served as asked. EngineDeadError: nothing can.
        """
        if self._death is not None or self._closing:
            raise EngineDeadError(self._death or "the server is shutting down")
        now = self.clock()
        tracked = []
        for index, prompt in enumerate(prompts):
            seed = sampling.seed if sampling.seed is not None else self._seeds.getrandbits(63)
            name = f"{request_id}/{index}"
            submission = Submission(name, tuple(prompt), sampling, seed, priority, now, cache_salt, max_draft_tokens)
            tracked.append(self._tracker.add(submission))
        generation = Generation(self, tracked)
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
        if self._prompts.pop(request_id, None) is None:
            return
        if self._tracker.drop(request_id, self.clock()):
            self._backend.put(Abort(request_id))

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
            case Accepted(request_id):
                if (prompt := self._prompts.get(request_id)) is not None:
                    self._tracker.announce(prompt.tracked)
                    prompt.generation._accept_one()
            case Rejected(request_id, message, parameter, code):
                self._tracker.forget(request_id)
                if (prompt := self._prompts.pop(request_id, None)) is not None:
                    prompt.generation._refuse(RequestError(message, parameter, code))
            case EngineDied(message):
                self._death = message
                for prompt in list(self._prompts.values()):
                    prompt.generation._refuse(EngineDeadError(message))

    def _seconds_in_step(self) -> float:
        started = self._backend.step_started
        return 0.0 if started is None else self.clock() - started

    async def _watch(self) -> None:
        """Say once per stuck step that it is stuck."""
        reported: float | None = None
        while True:
            await asyncio.sleep(self.stuck_step_s / 4)
            started = self._backend.step_started
            if started is not None and started != reported and self._seconds_in_step() > self.stuck_step_s:
                reported = started
                logger.error(
                    "an engine step has been running for %.0f s with %d requests running; /health answers 503",
                    self._seconds_in_step(),
                    self.load.num_running,
                )
