"""FrontCollector: how the server itself is, as its front knows."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from slipstream.engine.async_engine import AsyncEngine
from slipstream.server.metrics.families import Families


class FrontCollector(Collector):
    """A prometheus_client Collector."""

    def __init__(self, front: AsyncEngine, model_name: str) -> None:
        self._front = front
        self._families = Families(model_name)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        front, families = self._front, self._families
        yield families.gauge("slipstream:healthy", "What /health says: 1 or 0.", front.health().ok)
        yield families.gauge("slipstream:ready", "What /ready says: 1 or 0.", front.readiness().ok)
        yield families.gauge(
            "slipstream:step_running_seconds",
            "How long the current step has been running; 0 between steps.",
            front.watchdog.seconds_in_step,
        )
        backlog = front.backlog
        yield families.gauge("slipstream:backlog_requests", "Choices that never ran yet.", backlog.num_choices)
        yield families.gauge("slipstream:backlog_tokens", "Prompt tokens of such.", backlog.num_prompt_tokens)
