"""Listeners: a MetricsListener made of others, none of which can harm a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slipstream.engine.request_metrics import MetricsListener, RequestMetrics
from slipstream.request import FinishReason, SamplingParams

logger = logging.getLogger(__name__)


class Listeners:
    """Tells each listener in turn. What one of them raises is logged the first time, and goes no further."""

    def __init__(self, listeners: Sequence[MetricsListener]) -> None:
        self._listeners = tuple(listeners)
        self._failed: set[int] = set()

    def on_submitted(self, sampling: SamplingParams, num_prompt_tokens: int) -> None:
        """See MetricsListener."""
        for listener in self._listeners:
            try:
                listener.on_submitted(sampling, num_prompt_tokens)
            except Exception:
                self._note(listener)

    def on_first_token(self, metrics: RequestMetrics, seconds: float) -> None:
        """See MetricsListener."""
        for listener in self._listeners:
            try:
                listener.on_first_token(metrics, seconds)
            except Exception:
                self._note(listener)

    def on_tokens(self, num_tokens: int, gap_s: float | None) -> None:
        """See MetricsListener."""
        for listener in self._listeners:
            try:
                listener.on_tokens(num_tokens, gap_s)
            except Exception:
                self._note(listener)

    def on_step(self, num_tokens: int, duration_s: float) -> None:
        """See MetricsListener."""
        for listener in self._listeners:
            try:
                listener.on_step(num_tokens, duration_s)
            except Exception:
                self._note(listener)

    def on_finished(self, metrics: RequestMetrics, sampling: SamplingParams, reason: FinishReason, now: float) -> None:
        """See MetricsListener."""
        for listener in self._listeners:
            try:
                listener.on_finished(metrics, sampling, reason, now)
            except Exception:
                self._note(listener)

    def on_answered(self, metrics: Sequence[RequestMetrics]) -> None:
        """See MetricsListener."""
        for listener in self._listeners:
            try:
                listener.on_answered(metrics)
            except Exception:
                self._note(listener)

    def _note(self, listener: MetricsListener) -> None:
        if id(listener) not in self._failed:
            self._failed.add(id(listener))
            logger.exception("%s failed; further failures of it are not logged", type(listener).__name__)
