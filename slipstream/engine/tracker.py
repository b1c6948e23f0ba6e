"""RequestTracker: what a front remembers of its submissions, and how step reports become deltas for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slipstream.engine.messages import StepReport, Submission
from slipstream.engine.output_processor import ChoiceDelta, ChoiceProcessor
from slipstream.engine.request_metrics import MetricsListener, RequestMetrics
from slipstream.engine.vocabulary import Vocabulary
from slipstream.request import FinishReason, RequestOutput


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
    """Used by one thread. Outputs of requests it no longer knows (aborted ones) are dropped."""

    def __init__(self, vocabulary: Vocabulary, listeners: Sequence[MetricsListener] = ()) -> None:
        self._vocabulary = vocabulary
        self._listeners = listeners
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
        return tracked

    def announce(self, tracked: TrackedRequest) -> None:
        """The engine took it: now it counts."""
        for listener in self._listeners:
            listener.on_submitted(tracked.submission.sampling, len(tracked.submission.prompt_token_ids))

    def drop(self, request_id: str, now: float) -> bool:
        """Forget an aborted submission; False when it had ended already."""
        tracked = self._requests.pop(request_id, None)
        if tracked is None:
            return False
        for index, metrics in enumerate(tracked.metrics):
            if index not in tracked.finished:
                for listener in self._listeners:
                    listener.on_finished(metrics, tracked.submission.sampling, FinishReason.ABORT, now)
        return True

    def forget(self, request_id: str) -> None:
        """It was rejected: it never was."""
        self._requests.pop(request_id, None)

    def read(self, report: StepReport, now: float) -> Iterable[tuple[str, ChoiceDelta]]:
        """Deltas of a step by request id, in the order of the outputs."""
        for choice_id, time in report.first_scheduled:
            request_id, index = _split(choice_id)
            if (tracked := self._requests.get(request_id)) is not None:
                tracked.metrics[index].first_scheduled_time = time
        if report.num_tokens:
            for listener in self._listeners:
                listener.on_step(report.num_tokens, report.duration_s)
        deltas: list[tuple[str, ChoiceDelta]] = []
        for output in report.outputs:
            request_id, index = _split(output.request_id)
            tracked = self._requests.get(request_id)
            if tracked is None or index in tracked.finished:
                continue
            delta = tracked.processors[index].process(output)
            self._count(tracked, index, output, now)
            deltas.append((request_id, delta))
        return deltas

    def _count(self, tracked: TrackedRequest, index: int, output: RequestOutput, now: float) -> None:
        metrics = tracked.metrics[index]
        if output.new_token_ids:
            gap = None if metrics.last_token_time is None else now - metrics.last_token_time
            if metrics.first_token_time is None:
                metrics.first_token_time = now
                metrics.num_cached_tokens = output.num_cached_tokens
                for listener in self._listeners:
                    listener.on_first_token(metrics, now - metrics.arrival_time)
            metrics.last_token_time = now
            metrics.num_output_tokens += len(output.new_token_ids)
            metrics.num_steps += 1
            for listener in self._listeners:
                listener.on_tokens(len(output.new_token_ids), gap)
        metrics.drafts.add(output)
        if output.finish_reason is not None:
            tracked.finished.add(index)
            tracked.num_open -= 1
            for listener in self._listeners:
                listener.on_finished(metrics, tracked.submission.sampling, output.finish_reason, now)
            if not tracked.num_open:
                del self._requests[tracked.submission.request_id]


def _split(choice_id: str) -> tuple[str, int]:
    request_id, _, index = choice_id.rpartition("#")
    return request_id, int(index)
