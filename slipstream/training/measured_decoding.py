"""Real speculative decoding of prompts in this process, with everything that is counted on the way."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.bench.acceptance import Acceptance, acceptance_between
from slipstream.bench.arrivals import closed_loop
from slipstream.bench.in_process import BenchRequest, InProcessLoad
from slipstream.bench.model_systems import ModelFactory
from slipstream.bench.records import RunRecord
from slipstream.bench.systems import System
from slipstream.config import (
    NO_COST_TABLE,
    PROFILE_COSTS,
    ModelSettings,
    SchedulerSettings,
    Settings,
    SpeculativeSettings,
)
from slipstream.execution.executor import TorchExecutor
from slipstream.training.outcomes import OutcomeCollector, Outcomes
from slipstream.training.repetition import loop_start, repeated_share


@dataclass(slots=True)
class Tally:
    """What the answers of some runs add up to.

    Attributes:
        num_tokens, seconds: output tokens, and the time in which they were made.
        num_texts, num_loops, repetition: answers, those that hold a loop, and the sum of their repeated shares.
        failures: requests that ended with an error.
    """

    num_tokens: int = 0
    seconds: float = 0.0
    num_texts: int = 0
    num_loops: int = 0
    repetition: float = 0.0
    failures: int = 0

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens over the time of the runs."""
        return self.num_tokens / self.seconds if self.seconds else None

    def add(self, run: RunRecord) -> None:
        """Count a run."""
        self.seconds += run.duration_s
        for record in run.requests:
            self.failures += record.error is not None
            self.num_tokens += record.num_output_tokens
            ids = np.array(record.token_ids, np.int32)
            self.num_texts += 1
            self.num_loops += loop_start(ids) is not None
            self.repetition += repeated_share(ids)


class Decoding:
    """An engine with one way of drafting.

    Attributes:
        tally: of everything that was served, but for warming up.
    """

    def __init__(self, factory: ModelFactory, settings: Settings) -> None:
        self.system: System = factory.build(settings, {}, 0)
        depth = self.system.engine.scheduler.config.num_speculative_tokens
        self.collector = OutcomeCollector(depth)
        self.system.recorder.on_ran = self.collector.hear
        self.tally = Tally()
        self._before = copy.deepcopy(self.system.engine.scheduler.statistics)

    def warm_up(self, request: BenchRequest) -> None:
        """Serve a request that counts nowhere."""
        self.system.recorder.on_ran = lambda plan, result: None
        InProcessLoad(self.system.engine, self.system.recorder).run([request], closed_loop(1, 1))
        self.system.recorder.on_ran = self.collector.hear
        self._before = copy.deepcopy(self.system.engine.scheduler.statistics)

    def run(self, requests: Sequence[BenchRequest], concurrency: int) -> RunRecord:
        """Serve requests with so many at a time, and count them."""
        load = InProcessLoad(self.system.engine, self.system.recorder)
        record = load.run(requests, closed_loop(len(requests), concurrency))
        self.tally.add(record)
        return record

    def acceptance(self) -> Acceptance | None:
        """Of everything that was served so far, but for warming up; None where no request decoded."""
        return acceptance_between(self._before, self.system.engine.scheduler.statistics)

    def outcomes(self) -> Outcomes:
        """Of all blocks that came with confidences so far."""
        return self.collector.outcomes()

    def draft_failures(self) -> dict[str, int]:
        """The drafter's faults so far, by reason."""
        executor = self.system.recorder.executor
        return dict(executor.draft_failures) if isinstance(executor, TorchExecutor) else {}

    def close(self) -> None:
        """End the engine."""
        self.system.engine.close()


def measuring_settings(
    model: ModelSettings, speculative: SpeculativeSettings | None, concurrency: int, *, verify_all: bool
) -> Settings:
    """Settings of an engine to measure drafts in: no cost table, so all that is decided follows from the requests.

    Args:
        verify_all: verify every draft; what trimming would leave out could not be judged.
    """
    scheduler = SchedulerSettings(
        max_num_seqs=concurrency, cost_table=NO_COST_TABLE, verification="fixed" if verify_all else "confidence"
    )
    return Settings(model=model, scheduler=scheduler, speculative=speculative)


def serving_settings(model: ModelSettings, profile_seconds: float) -> Settings:
    """Settings of `slipstream serve`, without speculation: steps are decided by the costs that are measured here."""
    return Settings(model=model, scheduler=SchedulerSettings(cost_table=PROFILE_COSTS, profile_seconds=profile_seconds))


def slices(requests: Sequence[BenchRequest], size: int) -> list[Sequence[BenchRequest]]:
    """Runs of `size` requests."""
    return [requests[first : first + size] for first in range(0, len(requests), size)]
