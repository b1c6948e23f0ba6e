"""A recorded workload on the simulated machine: the same arrivals, lengths and luck, perhaps under other settings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.bench.records import Chunk, RequestRecord, RunRecord, StepRecord
from slipstream.config import SchedulerConfig
from slipstream.request import FinishReason, Request, RequestError, RequestOutput
from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import StepPlan, StepResult, StopVerdict
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.clock import VirtualClock
from slipstream.simulation.recorded_requests import RecordedPart, RecordedRequest
from slipstream.simulation.replay import hashes_for, request_of
from slipstream.simulation.simulated import SimulatedExecutor
from slipstream.simulation.trace_acceptance import TraceAcceptance, TraceFate


@dataclass(frozen=True, slots=True)
class Model:
    """What the recorded workload is put to.

    Attributes:
        config, commit_lag: the scheduler. recorded_config: the one that block hashes were recorded with.
        machine: what steps cost. costs: what the scheduler believes they cost; None decides without.
        acceptance: the fate of drafts.
    """

    config: SchedulerConfig
    recorded_config: SchedulerConfig
    machine: StepCosts
    costs: StepCosts | None
    acceptance: TraceAcceptance
    commit_lag: int = 0


def run_model(model: Model, parts: Sequence[RecordedPart], *, on_done: Callable[[], None] = lambda: None) -> RunRecord:
    """All parts in turn, each as soon as the one before has ended; the record holds the measured ones.

    A request arrives as it did: at its time after its part began, or, in a closed loop, when a place is free. It ends
    after as many tokens as it did then, its text being its own. One that was dropped by its user is dropped after the
    same time.
    """
    run = _ModelledRun(model, on_done)
    for part in parts:
        run.serve(part)
    return RunRecord(run.records, run.duration_s, run.steps)


class _RecordedLengths:
    """A StopChecker: a request ends after as many tokens as it did when it was recorded."""

    def __init__(self) -> None:
        self.requests: dict[str, RecordedRequest] = {}

    def check(self, request: Request, new_token_ids: list[int]) -> StopVerdict | None:
        """See StopChecker."""
        known, new = request.num_output_tokens, len(new_token_ids)
        room = request.max_total_tokens - request.num_prompt_tokens
        recorded = self.requests[request.request_id]
        length, reason = room, FinishReason.LENGTH
        if recorded.end is not FinishReason.ABORT:
            length = min(max(recorded.num_output_tokens, 1), room)
            if recorded.end is FinishReason.STOP:
                reason = FinishReason.STOP
        return StopVerdict(length - known, reason) if known + new >= length else None


@dataclass(slots=True)
class _ModelledRun:
    model: Model
    on_done: Callable[[], None]
    clock: VirtualClock = field(default_factory=VirtualClock)
    records: list[RequestRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    duration_s: float = 0.0
    is_measured: bool = True
    live: dict[str, RequestRecord] = field(default_factory=dict)
    drops: list[tuple[float, str]] = field(default_factory=list)
    stops: _RecordedLengths = field(default_factory=_RecordedLengths)
    fates: dict[str, TraceFate] = field(default_factory=dict)
    scheduler: Scheduler = field(init=False)
    executor: SimulatedExecutor = field(init=False)

    def __post_init__(self) -> None:
        model = self.model
        self.scheduler = Scheduler(model.config, stop_checker=self.stops, costs=model.costs)
        self.executor = SimulatedExecutor(
            model.machine,
            self.fates.__getitem__,
            LAYOUTS[model.config.layout_name],
            self.clock,
            lambda request_id, position, asked: self.fates[request_id].num_offered(position, asked),
        )

    def serve(self, part: RecordedPart) -> None:
        """Run one part to its end."""
        if part.forgets_cache:
            self.scheduler.forget_cached()
        self.is_measured = part.is_measured
        begin, num_before = self.clock.now, len(self.records)
        waiting = deque(sorted(part.requests, key=lambda request: request.added.arrival_time))
        shift = begin - waiting[0].added.arrival_time
        limit = None if part.mark is None else part.mark.max_concurrency
        if part.first_planned is not None:  # what came before the first step was planned came together
            self.clock.advance(part.first_planned + shift - begin)
        lag, planning = self.model.commit_lag, self.clock.now
        outstanding: deque[tuple[StepPlan, StepResult, float, int]] = deque()
        while waiting or self.live or outstanding:
            self._release(waiting, shift, limit, planning)
            plan = self.scheduler.schedule(planning)
            if not plan.requests and not outstanding:
                self._wait(waiting, shift, planning)
                planning = self.clock.now
                continue
            start = self.clock.now
            if plan.requests:
                num_running = self.scheduler.num_running
                outstanding.append((plan, self.executor.execute(plan), start, num_running))
            while len(outstanding) > (lag if plan.requests else 0):
                self._commit(*outstanding.popleft())
            planning = start if outstanding else self.clock.now
        if part.is_measured and len(self.records) > num_before:
            new = self.records[num_before:]
            self.duration_s += max(r.end_time for r in new) - min(r.sent_time for r in new)

    def _release(self, waiting: deque[RecordedRequest], shift: float, limit: int | None, now: float) -> None:
        while waiting and (limit is None or len(self.live) < limit):
            recorded = waiting[0]
            due = now if limit is not None else recorded.added.arrival_time + shift
            if due > now:
                break
            waiting.popleft()
            self._add(recorded, due)
        for drop in [drop for drop in self.drops if drop[0] <= now]:
            self.drops.remove(drop)
            if (record := self.live.pop(drop[1], None)) is not None:
                self.scheduler.abort(drop[1])
                record.error = "aborted"
                self.on_done()

    def _add(self, recorded: RecordedRequest, due: float) -> None:
        added = recorded.added
        record = RequestRecord(recorded.index, due, due, num_prompt_tokens=added.num_prompt_tokens)
        if self.is_measured:
            self.records.append(record)
        request = request_of(added)
        request.arrival_time = due
        request.block_hashes = hashes_for(recorded.block_hashes, self.model.recorded_config, self.model.config)
        try:
            self.scheduler.add_request(request)
        except RequestError as error:
            record.error = error.message
            self.on_done()
            return
        self.live[added.request_id] = record
        self.stops.requests[added.request_id] = recorded
        self.fates[added.request_id] = self.model.acceptance.request(
            recorded.index, request.max_total_tokens - request.num_prompt_tokens
        )
        if recorded.end is FinishReason.ABORT and recorded.end_time is not None:
            self.drops.append((due + recorded.end_time - added.arrival_time, added.request_id))

    def _wait(self, waiting: deque[RecordedRequest], shift: float, now: float) -> None:
        """Nothing can run: on to the next event, or a moment later."""
        later = [time for time, _ in self.drops if time > now]
        if waiting:
            later.append(waiting[0].added.arrival_time + shift)
        self.clock.advance(max(min(later, default=now) - self.clock.now, 1e-3))

    def _commit(self, plan: StepPlan, result: StepResult, start: float, num_running: int) -> None:
        end = start + (result.target_ms + result.draft_ms) / 1e3
        if self.is_measured:
            self.steps.append(
                StepRecord(
                    kind=plan.kind.value,
                    mode=result.mode.value,
                    start_time=start,
                    duration_s=end - start,
                    num_running=num_running,
                    num_waiting=self.scheduler.num_waiting,
                    num_target_rows=result.num_target_rows,
                    num_prefill_rows=plan.num_prefill_rows,
                    num_verify_rows=plan.num_verify_rows,
                    num_draft_query_rows=result.num_draft_query_rows,
                    target_ms=result.target_ms,
                    draft_ms=result.draft_ms,
                )
            )
        self._note(self.scheduler.commit(plan, result), end)

    def _note(self, outputs: Sequence[RequestOutput], now: float) -> None:
        for output in outputs:
            record = self.live[output.request_id]
            count = len(output.new_token_ids)
            if count:
                record.chunks.append(Chunk(now, count))
                record.num_output_tokens += count
            if output.finish_reason is not None:
                record.finish_reason = output.finish_reason.value
                del self.live[output.request_id]
                self.on_done()
