"""Real speculative decoding of prompts in this process, with everything that is counted on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.bench.acceptance import Acceptance
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
from slipstream.training.outcomes import OutcomeCollector, Outcomes
from slipstream.training.repetition import loop_start, repeated_share


@dataclass(slots=True)
class Tally:
    """What some runs add up to.

    Attributes:
        num_tokens, seconds: output tokens, and the time in which they were made.
        num_steps: decode steps of requests that verified drafts, and all of them (`num_decode_steps`).
        accepted: drafts. outcomes: blocks that came with confidences.
        num_texts, num_loops, repetition: answers, those that hold a loop, and the sum of their repeated shares.
        failures: requests that ended with an error.
    """

    num_tokens: int = 0
    seconds: float = 0.0
    num_steps: int = 0
    num_decode_steps: int = 0
    accepted: int = 0
    verified_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    num_texts: int = 0
    num_loops: int = 0
    repetition: float = 0.0
    failures: int = 0

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens of a decode step; steps without drafts count as 1."""
        return 1.0 + self.accepted / self.num_decode_steps if self.num_decode_steps else None

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
        if run.acceptance is not None:
            self._add_acceptance(run.acceptance)

    def _add_acceptance(self, found: Acceptance) -> None:
        self.num_steps += found.num_steps_verified
        self.num_decode_steps += found.num_decode_steps or 0
        self.accepted += found.accepted
        verified = [
            sum(sum(counts) for length, counts in (found.histogram or {}).items() if length > position)
            for position in range(len(found.accepted_by_position))
        ]
        for mine, other in (
            (self.verified_by_position, verified),
            (self.accepted_by_position, found.accepted_by_position),
        ):
            mine += [0] * (len(other) - len(mine))
            for position, count in enumerate(other):
                mine[position] += count

    def conditional_acceptance(self) -> list[float | None]:
        """By position: share of verified drafts accepted, of those whose predecessors all were."""
        shares: list[float | None] = []
        for position, accepted in enumerate(self.accepted_by_position):
            # A block that verified this position and had all before accepted.
            reached = self.verified_by_position[0] if position == 0 else self.accepted_by_position[position - 1]
            reached = min(reached, self.verified_by_position[position])
            shares.append(accepted / reached if reached else None)
        return shares

    def cumulative_acceptance(self) -> list[float | None]:
        """By position: share of blocks that verified it which had all drafts up to it accepted."""
        return [
            accepted / verified if verified else None
            for accepted, verified in zip(self.accepted_by_position, self.verified_by_position, strict=True)
        ]


class Decoding:
    """An engine with one way of drafting."""

    def __init__(self, factory: ModelFactory, settings: Settings) -> None:
        self.system: System = factory.build(settings, {}, 0)
        depth = self.system.engine.scheduler.config.num_speculative_tokens
        self.collector = OutcomeCollector(depth)
        self.system.recorder.on_ran = self.collector.hear
        self.tally = Tally()

    def warm_up(self, request: BenchRequest) -> None:
        """Serve a request that counts nowhere."""
        self.system.recorder.on_ran = lambda plan, result: None
        InProcessLoad(self.system.engine, self.system.recorder).run([request], closed_loop(1, 1))
        self.system.recorder.on_ran = self.collector.hear

    def run(self, requests: Sequence[BenchRequest], concurrency: int) -> RunRecord:
        """Serve requests with so many at a time, and count them."""
        load = InProcessLoad(self.system.engine, self.system.recorder)
        record = load.run(requests, closed_loop(len(requests), concurrency))
        self.tally.add(record)
        return record

    def outcomes(self) -> Outcomes:
        """Of all blocks that came with confidences so far."""
        return self.collector.outcomes()


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
