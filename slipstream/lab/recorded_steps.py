"""The steps of a recording with their times, and the run as `bench` would have written it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.bench.records import Chunk, RequestRecord, RunRecord, StepRecord
from slipstream.request import FinishReason
from slipstream.scheduler.costs import StepShape, shape_of
from slipstream.simulation.recorded_requests import RecordedPart, RecordedRequest
from slipstream.simulation.recording import Aborted, Added, Committed, Marked, Planned, Recording


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step that ran.

    Attributes:
        duration_s: of the whole cycle, planning and delivery included: until the next step began, or until its commit
            where nothing was left to do.
        is_measured: it belongs to a part of the benchmark whose figures count.
    """

    planned: Planned
    committed: Committed
    duration_s: float
    is_measured: bool

    @property
    def step(self) -> int:
        return self.planned.plan.step

    @property
    def shape(self) -> StepShape:
        """What ran."""
        return shape_of(self.planned.plan, self.committed.result)


def recorded_steps(recording: Recording) -> list[RecordedStep]:
    """In order of their commits; steps whose results are missing are left out.

    With commit lag 1 a step's time is that from one commit to the next, since it runs while others are planned.
    """
    steps: list[RecordedStep] = []
    plans: dict[int, tuple[Planned, bool]] = {}
    live: set[str] = set()
    is_measured, lag, last_commit = True, recording.header.commit_lag, float("-inf")
    events = recording.events
    for place, event in enumerate(events):
        match event:
            case Marked():
                is_measured = event.is_measured
            case Added():
                live.add(event.request_id)
            case Aborted():
                live.discard(event.request_id)
            case Planned():
                plans[event.plan.step] = event, is_measured
            case Committed():
                planned, measured = plans.pop(event.result.step)
                live -= event.ends.keys()
                begin, end = planned.now, event.at
                if lag:
                    begin = max(begin, last_commit)
                elif live and (later := _next_plan(events, place + 1)) is not None:
                    end = later.now
                last_commit = event.at
                steps.append(RecordedStep(planned, event, max(end - begin, 0.0), measured))
            case _:
                pass
    return steps


def _next_plan(events: Sequence[object], place: int) -> Planned | None:
    for event in events[place:]:
        if isinstance(event, Planned):
            return event
        if isinstance(event, Marked):
            return None
    return None


def recorded_run(
    parts: Sequence[RecordedPart], steps: Sequence[RecordedStep], num_running: Mapping[int, int]
) -> RunRecord:
    """The measured parts. `num_running`: by step, as a replay counted them."""
    measured = [part for part in parts if part.is_measured]
    records = [[request_record(request) for request in part.requests] for part in measured]
    duration = sum(max(r.end_time for r in part) - min(r.sent_time for r in part) for part in records)
    return RunRecord(
        [record for part in records for record in part],
        duration,
        [_step_record(step, num_running.get(step.step, 0)) for step in steps if step.is_measured],
    )


def request_record(request: RecordedRequest) -> RequestRecord:
    """A request that its user dropped, that failed, or that the recording does not see end counts as failed."""
    arrival = request.added.arrival_time
    error = request.error
    if request.end is None:
        error = "not ended when the recording ends"
    elif request.end is FinishReason.ABORT:
        error = "aborted"
    return RequestRecord(
        request.index,
        arrival,
        arrival,
        num_prompt_tokens=request.added.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        chunks=[Chunk(time, count) for time, count in request.chunks],
        finish_reason=None if request.end is None else request.end.value,
        error=error,
    )


def _step_record(step: RecordedStep, num_running: int) -> StepRecord:
    plan, result = step.planned.plan, step.committed.result
    return StepRecord(
        kind=plan.kind.value,
        mode=result.mode.value,
        start_time=step.planned.now,
        duration_s=step.duration_s,
        num_running=num_running,
        num_waiting=0,
        num_target_rows=result.num_target_rows,
        num_prefill_rows=plan.num_prefill_rows,
        num_verify_rows=plan.num_verify_rows,
        num_draft_query_rows=result.num_draft_query_rows,
        target_ms=result.target_ms,
        draft_ms=result.draft_ms,
    )
