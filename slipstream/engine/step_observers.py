"""StepObservers: who hears of committed steps. Whatever goes wrong in one of them costs no request."""

from __future__ import annotations

import logging
from collections.abc import Callable

from slipstream.scheduler.protocol import StepPlan, StepResult

logger = logging.getLogger(__name__)

StepObserver = Callable[[StepPlan, StepResult], None]


class StepObservers:
    """Calls observers in order. One that raises is said once, and not asked again."""

    def __init__(self, *observers: StepObserver) -> None:
        self._observers = list(observers)

    def add(self, observer: StepObserver) -> None:
        """Let another one hear of the steps from the next one on."""
        self._observers.append(observer)

    def __call__(self, plan: StepPlan, result: StepResult) -> None:
        for observer in tuple(self._observers):
            try:
                observer(plan, result)
            except Exception:
                logger.exception("%r failed on step %d; it hears of no further steps", observer, plan.step)
                self._observers.remove(observer)
