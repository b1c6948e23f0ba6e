"""StepWatchdog: notices a step that hangs."""

from __future__ import annotations

import asyncio
import logging

from slipstream.engine.engine_thread import EngineBackend

logger = logging.getLogger(__name__)


class StepWatchdog:
    """Looks at the step that a backend is in from outside; what hangs cannot say so itself.

    Attributes:
        stuck_step_s: a step that takes longer counts as stuck.
    """

    def __init__(self, backend: EngineBackend, stuck_step_s: float) -> None:
        self.stuck_step_s = stuck_step_s
        self._backend = backend

    @property
    def seconds_in_step(self) -> float:
        """How long the current step has been running; 0 between steps."""
        started = self._backend.step_started
        return 0.0 if started is None else self._backend.clock() - started

    @property
    def complaint(self) -> str | None:
        """What is wrong with the current step, in words; None when nothing is."""
        seconds = self.seconds_in_step
        if seconds <= self.stuck_step_s:
            return None
        return f"the current step has been running for {seconds:.0f} s"

    async def run(self) -> None:
        """Say once per stuck step that it is stuck; until cancelled."""
        reported: float | None = None
        while True:
            await asyncio.sleep(self.stuck_step_s / 4)
            started = self._backend.step_started
            if started is not None and started != reported and self.complaint is not None:
                reported = started
                logger.error(
                    "an engine step has been running for %.0f s with %d requests running; /health answers 503",
                    self.seconds_in_step,
                    self._backend.load.num_running,
                )
