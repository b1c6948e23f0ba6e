"""Load on an engine in this process, where every step, row and draft can be counted exactly."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.bench.acceptance import acceptance_between
from slipstream.bench.arrivals import Arrivals
from slipstream.bench.records import Chunk, RequestRecord, RunRecord, StepRecord
from slipstream.engine.engine import Engine
from slipstream.engine.messages import Submission
from slipstream.request import FinishReason, RequestError, SamplingParams
from slipstream.scheduler.protocol import Executor, StepPlan, StepResult
from slipstream.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request of a workload; its place in the workload is its index in every run."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Ran:
    plan: StepPlan
    result: StepResult
    num_running: int
    num_waiting: int


class RecordingExecutor:
    """An Executor that passes plans on and keeps what ran, until it is taken.

    Attributes:
        executor: what runs the plans.
        on_ran: told of each step that ran; for what is counted beside the steps themselves.
    """

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self.executor = executor
        self._scheduler = scheduler
        self._ran: list[_Ran] = []
        self.on_ran: Callable[[StepPlan, StepResult], None] = lambda plan, result: None

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor."""
        num_running, num_waiting = self._scheduler.num_running, self._scheduler.num_waiting
        result = self.executor.execute(plan)
        if plan.requests:
            self._ran.append(_Ran(plan, result, num_running, num_waiting))
            self.on_ran(plan, result)
        return result

    def take(self, start_time: float, duration_s: float) -> list[StepRecord]:
        """Steps that ended since the last call, as records; at lag 1 that may be none."""
        ran, self._ran = self._ran, []
        return [
            StepRecord(
                kind=step.plan.kind.value,
                mode=step.result.mode.value,
                start_time=start_time,
                duration_s=duration_s / len(ran),
                num_running=step.num_running,
                num_waiting=step.num_waiting,
                num_target_rows=step.result.num_target_rows,
                num_prefill_rows=step.plan.num_prefill_rows,
                num_verify_rows=step.plan.num_verify_rows,
                num_draft_query_rows=step.result.num_draft_query_rows,
                target_ms=step.result.target_ms,
                draft_ms=step.result.draft_ms,
            )
            for step in ran
        ]


def request_id_of(index: int) -> str:
    """The same index has the same id in every run, so that known texts can be looked up."""
    return f"bench-{index}"


def choice_id_of(index: int) -> str:
    """The id under which executors and drafters know it."""
    return f"{request_id_of(index)}#0"


@dataclass(frozen=True, slots=True)
class InProcessLoad:
    """Drives an engine through a workload.

    Attributes:
        engine: its executor is `recorder`; nobody else may use it meanwhile.
        clock: seconds. sleep: waits that many of them.
        on_tokens: told how many tokens each step gave; on_done: of each ended request.
    """

    engine: Engine
    recorder: RecordingExecutor
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    on_tokens: Callable[[int], None] = field(default=lambda count: None)
    on_done: Callable[[RequestRecord], None] = field(default=lambda record: None)

    def run(self, workload: Sequence[BenchRequest], arrivals: Arrivals) -> RunRecord:
        """Serve everything, beginning with an empty prefix cache; a failed request becomes a record with its error.

        In the open loop a request counts as sent when it was released, though the engine sees it after the step at
        hand: its user waits from then on.
        """
        self.engine.scheduler.forget_cached()
        run = _Run(self, workload, arrivals)
        before = copy.deepcopy(self.engine.scheduler.statistics)
        while not run.is_done():
            run.release()
            if not self.engine.has_work():
                self.sleep(max(run.seconds_to_next_release(), 0.0))
                continue
            run.step()
        records = run.records
        sent = min((record.sent_time for record in records), default=0.0)
        ended = max((record.end_time for record in records), default=0.0)
        acceptance = acceptance_between(before, self.engine.scheduler.statistics)
        return RunRecord(records, ended - sent, run.steps, acceptance)


class _Run:
    """The state of one run."""

    def __init__(self, load: InProcessLoad, workload: Sequence[BenchRequest], arrivals: Arrivals) -> None:
        self.records: list[RequestRecord] = []
        self.steps: list[StepRecord] = []
        self._load = load
        self._workload = workload
        self._arrivals = arrivals
        self._in_flight: dict[str, RequestRecord] = {}
        self._start = load.clock()

    def _now(self) -> float:
        return self._load.clock() - self._start

    def is_done(self) -> bool:
        return len(self.records) == len(self._workload) and not self._in_flight

    def seconds_to_next_release(self) -> float:
        left = len(self.records) < len(self._workload)
        return self._arrivals.times[len(self.records)] - self._now() if left else 0.0

    def release(self) -> None:
        """Hand the engine every request whose time has come and who finds a place in flight."""
        limit = self._arrivals.max_concurrency or len(self._workload)
        while len(self.records) < len(self._workload) and len(self._in_flight) < limit:
            index = len(self.records)
            released, now = self._arrivals.times[index], self._now()
            if released > now:
                return
            request = self._workload[index]
            sent = released if self._arrivals.is_open_loop else now
            record = RequestRecord(index, released, sent, num_prompt_tokens=len(request.prompt_token_ids))
            self.records.append(record)
            submission = Submission(
                request_id_of(index),
                request.prompt_token_ids,
                request.sampling,
                request.seed,
                arrival_time=self._load.engine.clock(),
            )
            try:
                self._load.engine.add_request(submission)
            except RequestError as error:
                record.error = error.message
                self._load.on_done(record)
            else:
                self._in_flight[choice_id_of(index)] = record

    def step(self) -> None:
        start = self._now()
        report = self._load.engine.step()
        now = self._now()
        self.steps += self._load.recorder.take(start, now - start)
        num_tokens = 0
        for output in report.outputs:
            record = self._in_flight[output.request_id]
            if output.new_token_ids:
                record.chunks.append(Chunk(now, len(output.new_token_ids)))
                record.token_ids += output.new_token_ids
                record.num_output_tokens = len(record.token_ids)
                num_tokens += len(output.new_token_ids)
            if output.finish_reason is not None:
                record.finish_reason = output.finish_reason.value
                if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                    record.error = output.error or output.finish_reason.value
                del self._in_flight[output.request_id]
                self._load.on_done(record)
        self._load.on_tokens(num_tokens)
