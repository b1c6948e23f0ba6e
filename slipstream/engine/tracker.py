"""RequestTracker: what a front remembers of its submissions, and how step reports become deltas for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slipstream.engine.backlog import Backlog
from slipstream.engine.listeners import Listeners
from slipstream.engine.messages import StepReport, Submission
from slipstream.engine.output_processor import ChoiceDelta, ChoiceProcessor
from slipstream.engine.request_metrics import MetricsListener, RequestMetrics
from slipstream.engine.vocabulary import Vocabulary
from slipstream.request import FinishReason, RequestOutput

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TrackedRequest:
    """A submission on its way.

    Attributes:
        metrics: one per choice.
        num_open: choices without an ending.
    """

    submission: Submission
    processors: list[ChoiceProcessor]
    metrics: list[RequestMetrics]
    num_open: int
    finished: set[int] = field(default_factory=set)


class RequestTracker:
    """Used by one thread. Outputs of requests it no longer knows (aborted ones) are dropped.

    Attributes:
        backlog: submissions that have not begun to run.
        failed: requests whose outputs could not be read; they ended with an error, and the engine is to be told.
    """

    def __init__(self, vocabulary: Vocabulary, listeners: Sequence[MetricsListener] = ()) -> None:
        self.backlog = Backlog()
        self.failed: list[str] = []
        self._vocabulary = vocabulary
        self._listeners = Listeners(listeners)
        self._requests: dict[str, TrackedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, submission: Submission) -> TrackedRequest:
        sampling = submission.sampling
        num_prompt = len(submission.prompt_token_ids)
        tracked = TrackedRequest(
            submission,
            [
                ChoiceProcessor(self._vocabulary, sampling, index, submission.prompt_token_ids)
                for index in range(sampling.n)
            ],
            [RequestMetrics(submission.arrival_time, num_prompt, submission.seed) for _ in range(sampling.n)],
            sampling.n,
        )
        self._requests[submission.request_id] = tracked
        self.backlog.add(submission)
        return tracked

    def announce(self, tracked: TrackedRequest) -> None:
        """The engine took it: now it counts."""
        self._listeners.on_submitted(tracked.submission.sampling, len(tracked.submission.prompt_token_ids))

    def drop(self, request_id: str, now: float) -> bool:
        """Forget an aborted submission; False when it had ended already."""
        tracked = self._requests.pop(request_id, None)
        if tracked is None:
            return False
        self.backlog.gone(request_id)
        for index, metrics in enumerate(tracked.metrics):
            if index not in tracked.finished:
                self._listeners.on_finished(metrics, tracked.submission.sampling, FinishReason.ABORT, now)
        return True

    def forget(self, request_id: str) -> None:
        """It was rejected: it never was."""
        self._requests.pop(request_id, None)
        self.backlog.gone(request_id)

    def read(self, report: StepReport, now: float) -> Iterable[tuple[str, ChoiceDelta]]:
        """Deltas of a step by request id, in the order of the outputs."""
        for choice_id, time in report.first_scheduled:
            request_id, index = _split(choice_id)
            self.backlog.started(request_id, index)
            if (tracked := self._requests.get(request_id)) is not None:
                tracked.metrics[index].first_scheduled_time = time
        if report.num_tokens:
            self._listeners.on_step(report.num_tokens, report.duration_s)
        deltas: list[tuple[str, ChoiceDelta]] = []
        for output in report.outputs:
            request_id, index = _split(output.request_id)
            tracked = self._requests.get(request_id)
            if tracked is None or index in tracked.finished:
                continue
            try:
                delta = tracked.processors[index].process(output)
            except Exception as error:
                deltas += [(request_id, delta) for delta in self._fail(tracked, error, now)]
                continue
            self._count(tracked, index, output, now)
            deltas.append((request_id, delta))
        return deltas

    def _fail(self, tracked: TrackedRequest, error: Exception, now: float) -> list[ChoiceDelta]:
        """One request's output cannot be read: it ends, the others of the step go on."""
        request_id = tracked.submission.request_id
        logger.exception("the output of request %s could not be read; it ends with an error", request_id)
        message = f"its output could not be read: {type(error).__name__}: {error}"
        open_choices = [index for index in range(len(tracked.metrics)) if index not in tracked.finished]
        for index in open_choices:
            self._finish(tracked, index, FinishReason.ERROR, now)
        self.failed.append(request_id)
        return [ChoiceDelta(index, "", [], finish_reason=FinishReason.ERROR, error=message) for index in open_choices]

    def _count(self, tracked: TrackedRequest, index: int, output: RequestOutput, now: float) -> None:
        metrics = tracked.metrics[index]
        if output.new_token_ids:
            gap = None if metrics.last_token_time is None else now - metrics.last_token_time
            if metrics.first_token_time is None:
                metrics.first_token_time = now
                metrics.num_cached_tokens = output.num_cached_tokens
                self._listeners.on_first_token(metrics, now - metrics.arrival_time)
            metrics.last_token_time = now
            metrics.num_output_tokens += len(output.new_token_ids)
            metrics.num_steps += 1
            self._listeners.on_tokens(len(output.new_token_ids), gap)
        metrics.drafts.add(output)
        metrics.num_drafted_steps += output.num_verified > 0
        if output.finish_reason is not None:
            metrics.num_preemptions = output.num_preemptions
            self._finish(tracked, index, output.finish_reason, now)

    def _finish(self, tracked: TrackedRequest, index: int, reason: FinishReason, now: float) -> None:
        tracked.finished.add(index)
        tracked.num_open -= 1
        self._listeners.on_finished(tracked.metrics[index], tracked.submission.sampling, reason, now)
        if not tracked.num_open:
            self._listeners.on_answered(tracked.metrics)
            del self._requests[tracked.submission.request_id]
            self.backlog.gone(tracked.submission.request_id)


def _split(choice_id: str) -> tuple[str, int]:
    request_id, _, index = choice_id.rpartition("#")
    return request_id, int(index)
