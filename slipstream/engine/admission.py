"""AdmissionRule: who may ask the engine at all, and who hears how it went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.engine.backlog import Backlog
from slipstream.engine.messages import Submission
from slipstream.engine.request_metrics import RequestMetrics


class AdmittedRequest(Protocol):
    """A request that was let in."""

    def ended(self, metrics: Sequence[RequestMetrics]) -> None:
        """It is over, well or not; one entry per choice. Called once."""
        ...


class AdmissionRule(Protocol):
    """Asked by a front before a request's prompts go to the engine, in the context of whoever submits."""

    def admit(self, submissions: Sequence[Submission], backlog: Backlog) -> AdmittedRequest:
        """Let a request of one or more prompts in. Raises whatever tells the client why not.

        Args:
            backlog: what was let in before and has not begun to run.
        """
        ...
