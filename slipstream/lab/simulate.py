"""Runs a workload through the scheduler in front of a simulated machine, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.bench.acceptance import acceptance_between
from slipstream.bench.arrivals import Arrivals
from slipstream.bench.records import Chunk, RequestRecord, RunRecord, StepRecord
from slipstream.config import SchedulerConfig
from slipstream.request import Request, RequestOutput, SamplingParams
from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import StepPlan, StepResult
from slipstream.scheduler.scheduler import Scheduler
from slipstream.scheduler.statistics import SchedulerStatistics
from slipstream.simulation.acceptance import AcceptanceModel, RequestAcceptance
from slipstream.simulation.clock import VirtualClock
from slipstream.simulation.simulated import TOKEN_ID, SimulatedExecutor


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request of a simulated workload: lengths in tokens. All of its output is made; nothing stops it earlier."""

    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """What to run.

    Attributes:
        config: the scheduler's sizes and rules.
        machine: what steps cost. costs: what the scheduler believes they cost; None decides without.
        acceptance: the fate of drafts.
        workload: place in it is the request's index. arrivals: when they come.
    """

    config: SchedulerConfig
    machine: StepCosts
    acceptance: AcceptanceModel
    workload: Sequence[SimulatedRequest]
    arrivals: Arrivals
    costs: StepCosts | None = None


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What came out; `record` has the form of a measured run. `scheduler` is as the run left it."""

    record: RunRecord
    scheduler: Scheduler


def simulate(simulation: Simulation, *, on_done: Callable[[RequestRecord], None] | None = None) -> SimulatedRun:
    """Serve everything; deterministic."""
    return _Run(simulation, on_done).run()


@dataclass(slots=True)
class _Run:
    """The state of one run."""

    simulation: Simulation
    on_done: Callable[[RequestRecord], None] | None
    clock: VirtualClock = field(default_factory=VirtualClock)
    records: list[RequestRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    in_flight: dict[str, RequestRecord] = field(default_factory=dict)

    def run(self) -> SimulatedRun:
        simulation = self.simulation
        config = simulation.config
        scheduler = Scheduler(config, costs=simulation.costs)
        executor = SimulatedExecutor(simulation.machine, self._fate_of, LAYOUTS[config.layout_name], self.clock)
        while len(self.records) < len(simulation.workload) or self.in_flight:
            self._release(scheduler)
            start = self.clock.now
            plan = scheduler.schedule(start)
            if not plan.requests:
                self._wait()
                continue
            result = executor.execute(plan)
            self._note_step(plan, result, scheduler, start)
            self._note_outputs(scheduler.commit(plan, result))
        sent = min((record.sent_time for record in self.records), default=0.0)
        ended = max((record.end_time for record in self.records), default=0.0)
        before = SchedulerStatistics.for_drafts(config.num_speculative_tokens)
        acceptance = acceptance_between(before, scheduler.statistics)
        return SimulatedRun(RunRecord(self.records, ended - sent, self.steps, acceptance), scheduler)

    def _fate_of(self, request_id: str) -> RequestAcceptance:
        index = int(request_id)
        return self.simulation.acceptance.request(index, self.simulation.workload[index].num_output_tokens)

    def _release(self, scheduler: Scheduler) -> None:
        workload, arrivals = self.simulation.workload, self.simulation.arrivals
        limit = arrivals.max_concurrency or len(workload)
        while len(self.records) < len(workload) and len(self.in_flight) < limit:
            index = len(self.records)
            released, now = arrivals.times[index], self.clock.now
            if released > now:
                return
            request = workload[index]
            sent = released if arrivals.is_open_loop else now
            record = RequestRecord(index, released, sent, num_prompt_tokens=request.num_prompt_tokens)
            self.records.append(record)
            sampling = SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True)
            scheduler.add_request(
                Request(str(index), [TOKEN_ID] * request.num_prompt_tokens, sampling, arrival_time=now)
            )
            self.in_flight[str(index)] = record

    def _wait(self) -> None:
        """Nothing can run: on to the next arrival, or a moment later."""
        index, now = len(self.records), self.clock.now
        arrival = self.simulation.arrivals.times[index] if index < len(self.simulation.workload) else now
        self.clock.advance(max(arrival - now, 1e-3))

    def _note_step(self, plan: StepPlan, result: StepResult, scheduler: Scheduler, start: float) -> None:
        self.steps.append(
            StepRecord(
                kind=plan.kind.value,
                mode=result.mode.value,
                start_time=start,
                duration_s=self.clock.now - start,
                num_running=scheduler.num_running,
                num_waiting=scheduler.num_waiting,
                num_target_rows=result.num_target_rows,
                num_prefill_rows=plan.num_prefill_rows,
                num_verify_rows=plan.num_verify_rows,
                num_draft_query_rows=result.num_draft_query_rows,
                target_ms=result.target_ms,
                draft_ms=result.draft_ms,
                num_requests=len(plan.requests),
            )
        )

    def _note_outputs(self, outputs: Sequence[RequestOutput]) -> None:
        now, in_flight = self.clock.now, self.in_flight
        chunks: dict[int, Chunk] = {}  # requests of a step share equal ones
        for output in outputs:
            record = in_flight[output.request_id]
            count = len(output.new_token_ids)
            if count:
                chunk = chunks.get(count)
                if chunk is None:
                    chunk = chunks[count] = Chunk(now, count)
                record.chunks.append(chunk)
                record.num_output_tokens += count
            if output.finish_reason is not None:
                record.finish_reason = output.finish_reason.value
                del in_flight[output.request_id]
                if self.on_done is not None:
                    self.on_done(record)
