"""RecentSteps: what the last steps held and took, for whoever looks on."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from slipstream.scheduler.protocol import StepPlan, StepResult

NUM_KEPT = 400


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One committed step.

    Attributes:
        step: its number. kind, mode: words of StepKind and StepMode.
        num_decode_rows, num_verify_rows, num_prompt_rows: rows of the target's pass that ran.
        target_ms, draft_ms: what the two passes took.
    """

    step: int
    kind: str
    mode: str
    num_decode_rows: int
    num_verify_rows: int
    num_prompt_rows: int
    target_ms: float
    draft_ms: float


class RecentSteps:
    """A StepObserver that remembers the last `num_kept` steps. Written by the engine's thread, read by any."""

    def __init__(self, num_kept: int = NUM_KEPT) -> None:
        self._steps: deque[StepRecord] = deque(maxlen=num_kept)
        self._lock = threading.Lock()

    def __call__(self, plan: StepPlan, result: StepResult) -> None:
        """See StepObserver."""
        num_decodes = sum([not entry.is_prefill for entry in plan.requests])
        record = StepRecord(
            plan.step,
            plan.kind.value,
            result.mode.value,
            num_decodes,
            result.num_target_rows - plan.num_prefill_rows - num_decodes,
            plan.num_prefill_rows,
            result.target_ms,
            result.draft_ms,
        )
        with self._lock:
            self._steps.append(record)

    def after(self, step: int) -> list[StepRecord]:
        """Steps with a higher number, oldest first; all that are remembered for -1."""
        with self._lock:
            steps = list(self._steps)
        return [record for record in steps if record.step > step]
