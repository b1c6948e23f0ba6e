"""StepCosts: what a step costs, as the policies ask it (design 4)."""

from __future__ import annotations

from typing import Protocol

from slipstream.scheduler.protocol import StepMode


class StepCosts(Protocol):
    """Milliseconds of the two passes; measured or modelled, injected and versioned."""

    def target_ms(self, num_rows: int, num_kv_tokens: int, mode: StepMode) -> float:
        """The target's pass over `num_rows` rows that read `num_kv_tokens` tokens of KV."""
        ...

    def draft_ms(self, num_requests: int, num_rows: int) -> float:
        """The drafter's pass for `num_requests` requests of `num_rows` rows in total."""
        ...
