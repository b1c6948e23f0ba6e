"""A scripted model for tests of the page: steps that take time, and drafts that are right about as often as said."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from slipstream.scheduler.protocol import DraftBlock, Drafter, DraftRequest, Executor, StepPlan, StepResult
from slipstream.simulation.scripted import ScriptedExecutor

STEP_S = 0.002


class UnsureDrafter:
    """Spoils the drafts of one that is always right: each is right with the chance that it is said to have."""

    def __init__(self, knowing: Drafter, seed: int = 0) -> None:
        self.layout = knowing.layout
        self._knowing = knowing
        self._random = np.random.default_rng(seed)

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter."""
        return [self._spoilt(block) for block in self._knowing.propose(requests)]

    def _spoilt(self, block: DraftBlock) -> DraftBlock:
        chances = self._random.uniform(0.35, 1.0, len(block.token_ids))
        is_right = self._random.random(len(block.token_ids)) < chances
        drafts = [
            token if right else 32 + (token - 31) % 95 for token, right in zip(block.token_ids, is_right, strict=True)
        ]
        return replace(block, token_ids=drafts, confidences=chances.tolist())

    def release(self, request_id: str) -> None:
        """See Drafter."""
        self._knowing.release(request_id)


class TimedExecutor:
    """An executor whose steps take at least STEP_S, and say what they took."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor."""
        begin = time.perf_counter()
        time.sleep(STEP_S)
        result = self._executor.execute(plan)
        result.target_ms = (time.perf_counter() - begin) * 1e3
        return result


def timed(drafter: Callable[[Drafter], Drafter] | None = None) -> Callable[[Executor], Executor]:
    """For make_engine's `wrap`: steps are timed, and the drafter, where there is one, is put into another."""

    def wrap(executor: Executor) -> Executor:
        assert isinstance(executor, ScriptedExecutor)
        if drafter is not None and executor.drafter is not None:
            executor.drafter = drafter(executor.drafter)
        return TimedExecutor(executor)

    return wrap
