"""Engine: the loop's body. Takes submissions, plans and runs steps, gives tokens; knows no text and no transport."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass

from slipstream.engine.messages import StepReport, Submission
from slipstream.engine.step_observers import StepObserver, StepObservers
from slipstream.engine.worker import WorkerThread
from slipstream.request import FinishReason, Request, RequestError, RequestOutput
from slipstream.scheduler.protocol import Executor, RequestResult, StepPlan, StepResult
from slipstream.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3


class EngineDeadError(RuntimeError):
    """The engine cannot go on; every unfinished request has failed and no new one is taken."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy the engine is, between two steps.

    Attributes:
        kv_cache_usage: share of KV blocks in use by requests, 0 to 1.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float


class Engine:
    """Synchronous core: `add_request`, `abort`, and `step` again and again while `has_work()`.

    With `commit_lag` 1 a step runs in a worker thread while the next one is planned and the one before is
    committed. An executor that raises fails the requests of its step, with the reason, and no others; after
    MAX_CONSECUTIVE_FAILURES such steps in a row the engine is dead.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        clock: Callable[[], float],
        eos_token_ids: tuple[int, ...] = (),
        commit_lag: int = 0,
        worker: WorkerThread | None = None,
        check_sampling: Callable[[Submission], None] | None = None,
        forget: Callable[[str], None] | None = None,
        on_close: Callable[[], None] | None = None,
        on_step: StepObserver | None = None,
    ) -> None:
        """`worker` (for lag 1) is the thread that loaded the executor's model; `check_sampling` raises RequestError for
        what the model cannot serve; `forget` hears of ended choices, `on_close` of the engine's end, `on_step` of each
        committed step that did not fail, as do `observers` that are added later."""
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.death: str | None = None
        self._eos_token_ids = eos_token_ids
        self._check_sampling = check_sampling
        self._forget = forget
        self._on_close = on_close
        self.observers = StepObservers() if on_step is None else StepObservers(on_step)
        self._worker = (worker or WorkerThread("slipstream-executor")) if commit_lag else None
        self._outstanding: tuple[StepPlan, Future[StepResult]] | None = None
        self._submissions: dict[str, Submission] = {}
        self._requests: dict[str, Request] = {}
        self._never_ran: dict[str, Request] = {}
        self._num_failures = 0
        self._last_counted_failure = -2

    @property
    def load(self) -> EngineLoad:
        scheduler, pool = self.scheduler, self.scheduler.kv.pool
        return EngineLoad(scheduler.num_running, scheduler.num_waiting, pool.num_used / pool.num_blocks)

    def has_work(self) -> bool:
        return self.scheduler.has_work() or self._outstanding is not None

    def add_request(self, submission: Submission) -> None:
        """Queue every choice of a submission, or none.

        Raises:
            RequestError: it can never be served as asked. EngineDeadError: nothing can.
        """
        if self.death is not None:
            raise EngineDeadError(self.death)
        if submission.request_id in self._submissions:
            raise RequestError(f"request id {submission.request_id!r} is already in use", "request_id")
        self._check_length(submission)
        if self._check_sampling is not None:
            self._check_sampling(submission)
        added: list[Request] = []
        try:
            for choice_index in range(submission.sampling.n):
                request = self._choice(submission, choice_index)
                self.scheduler.add_request(request)
                added.append(request)
        except Exception:
            for request in added:
                self.scheduler.abort(request.request_id)
            raise
        self._submissions[submission.request_id] = submission
        for request in added:
            self._requests[request.request_id] = self._never_ran[request.request_id] = request

    def abort(self, request_id: str) -> None:
        """Drop every unfinished choice; an unknown or finished submission is no error (the two may cross)."""
        submission = self._submissions.pop(request_id, None)
        if submission is None:
            return
        for choice_id in submission.choice_ids():
            if choice_id in self._requests:
                self.scheduler.abort(choice_id)
                self._drop(choice_id)

    def step(self) -> StepReport:
        """Plan and run one step and commit what is due.

        Raises:
            EngineDeadError: a part that must not fail did, or the executor failed again and again.
        """
        if self.death is not None:
            raise EngineDeadError(self.death)
        begin = self.clock()
        had_outstanding = self._outstanding is not None
        try:
            plan, outputs = self._advance(begin)
        except Exception as error:
            logger.exception("the engine failed outside the executor")
            self.death = f"the engine failed: {type(error).__name__}: {error}"
            raise EngineDeadError(self.death) from error
        first = self._first_scheduled(plan, begin)
        for output in outputs:
            if output.finish_reason is not None:
                self._finish(output.request_id)
        if self._num_failures >= MAX_CONSECUTIVE_FAILURES:
            self.death = f"the executor failed in {self._num_failures} steps in a row; see the log"
        idle = not plan.requests and not had_outstanding
        return StepReport(outputs, first, plan.num_target_rows, self.clock() - begin, idle)

    def fail_all(self, message: str) -> list[RequestOutput]:
        """End every unfinished choice with an error; what is left to do for a dead engine."""
        outputs = [
            RequestOutput(request_id, [], FinishReason.ERROR, error=message) for request_id in list(self._requests)
        ]
        self._submissions.clear()
        self._never_ran.clear()
        for output in outputs:
            self._drop(output.request_id)
        return outputs

    def close(self) -> None:
        """Wait for a step in flight and end the worker thread."""
        if self._worker is not None:
            self._worker.close()
        if self._on_close is not None:
            self._on_close()

    def _advance(self, now: float) -> tuple[StepPlan, list[RequestOutput]]:
        plan = self.scheduler.schedule(now)
        if self._worker is None:
            return plan, self._commit(plan, lambda: self.executor.execute(plan)) if plan.requests else []
        previous, self._outstanding = self._outstanding, None
        if previous is not None:
            wait([previous[1]])
        if plan.requests:
            self._outstanding = (plan, self._worker.submit(lambda: self.executor.execute(plan)))
        return plan, self._commit(previous[0], previous[1].result) if previous is not None else []

    def _commit(self, plan: StepPlan, obtain: Callable[[], StepResult]) -> list[RequestOutput]:
        result = self._result(plan, obtain)
        outputs = self.scheduler.commit(plan, result)
        if not self._num_failures:
            self.observers(plan, result)
        return outputs

    def _result(self, plan: StepPlan, obtain: Callable[[], StepResult]) -> StepResult:
        try:
            result = obtain()
        except Exception as error:
            logger.exception("step %d failed; its %d requests end with an error", plan.step, len(plan.requests))
            # At lag 1 the step after a failed one was planned with the same requests: one cause, counted once.
            if self._worker is None or plan.step != self._last_counted_failure + 1:
                self._num_failures += 1
                self._last_counted_failure = plan.step
            message = f"the model failed in this step: {type(error).__name__}: {error}"
            failed = [RequestResult(item.request_id, item.epoch, [], error=message) for item in plan.requests]
            return StepResult(plan.step, failed)
        self._num_failures = 0
        return result

    def _check_length(self, submission: Submission) -> None:
        """Output that was asked for by number must fit; the scheduler refuses prompts that leave no room at all."""
        length, wanted = len(submission.prompt_token_ids), submission.sampling.max_tokens
        limit = self.scheduler.max_request_tokens
        if wanted is not None and length < limit < length + wanted:
            raise RequestError(
                f"max_tokens {wanted} and the prompt's {length} tokens are {length + wanted} together, but this server "
                f"holds at most {limit} tokens of one request; the largest max_tokens here is {limit - length}",
                "max_tokens",
                "context_length_exceeded",
            )

    def _choice(self, submission: Submission, choice_index: int) -> Request:
        return Request(
            submission.choice_id(choice_index),
            submission.prompt_token_ids,
            submission.sampling,
            seed=submission.seed,
            choice_index=choice_index,
            eos_token_ids=self._eos_token_ids,
            priority=submission.priority,
            arrival_time=submission.arrival_time,
            cache_salt=submission.cache_salt,
            max_draft_tokens=submission.max_draft_tokens,
            reads_prefix_cache=submission.sampling.prompt_logprobs is None,
        )

    def _first_scheduled(self, plan: StepPlan, now: float) -> list[tuple[str, float]]:
        if not self._never_ran:
            return []
        return [
            (item.request_id, now) for item in plan.requests if self._never_ran.pop(item.request_id, None) is not None
        ]

    def _finish(self, choice_id: str) -> None:
        self._drop(choice_id)
        request_id = choice_id.rpartition("#")[0]
        submission = self._submissions.get(request_id)
        if submission is not None and not any(other in self._requests for other in submission.choice_ids()):
            del self._submissions[request_id]

    def _drop(self, choice_id: str) -> None:
        self._requests.pop(choice_id, None)
        self._never_ran.pop(choice_id, None)
        if self._forget is not None:
            self._forget(choice_id)
