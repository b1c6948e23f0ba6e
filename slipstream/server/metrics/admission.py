"""Requests that were turned away."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from slipstream.server.admission import Rejection


class RejectionCounter:
    """vLLM's counter, which has no label `engine`; its reasons and ours."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        counter = Counter(
            "vllm:admission_rejections",
            "Requests turned away because the server was full.",
            ("model_name", "reason"),
            registry=registry,
        )
        self._by_reason = {reason: counter.labels(model_name, reason.value) for reason in Rejection}

    def __call__(self, reason: Rejection) -> None:
        """One more."""
        self._by_reason[reason].inc()
