"""`metrics` of an answer: times, and what became of the drafts, under the field names of vLLM's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.engine.async_engine import Generation
from slipstream.engine.draft_history import DraftHistory, per_position
from slipstream.engine.request_metrics import RequestMetrics
from slipstream.server.wire.generation import GenerationRequest


class SpeculationReport:
    """What one request wants to know, of a server that makes at most `most` drafts per step (0: it makes none)."""

    def __init__(self, body: GenerationRequest, most: int) -> None:
        wish = body.speculative
        self._level = (wish.metrics if wish is not None else None) or "summary"
        limit = wish.num_speculative_tokens if wish is not None else None
        self._most = most if limit is None else min(limit, most)
        if wish is not None and wish.enabled is False:
            self._most = 0
        self._speculates = most > 0

    def of_answer(self, generation: Generation) -> dict[str, Any]:
        """The answer's `metrics` field; drafts of all choices together, times only where there is one choice."""
        return self._fields(generation.metrics)

    def of_choice(self, generation: Generation, number: int) -> dict[str, Any]:
        """A choice's own `metrics` field, where there are several."""
        return self._fields([generation.metrics[number]]) if len(generation.metrics) > 1 else {}

    def _fields(self, choices: Sequence[RequestMetrics]) -> dict[str, Any]:
        if self._level == "none":
            return {}
        metrics = _times(choices[0]) if len(choices) == 1 else {}
        metrics["speculative_decoding"] = self._drafts(choices) if self._speculates else None
        return {"metrics": metrics}

    def _drafts(self, choices: Sequence[RequestMetrics]) -> dict[str, Any]:
        history = DraftHistory.sum(metrics.drafts for metrics in choices)
        most = self._most
        report: dict[str, Any] = {
            "mean_acceptance_length": history.mean_acceptance_length or 1.0,
            "draft_acceptance_rate": history.acceptance_rate or 0.0,
            "acceptance_histogram": history.acceptance_histogram(most),
            "num_spec_steps": history.num_steps,
            "num_accepted_draft_tokens": sum(history.accepted),
            "num_draft_tokens": sum(history.verified),
            "num_spec_tokens": self._most,
            "num_steps": sum(metrics.num_steps for metrics in choices),
            "num_drafted_tokens": sum(history.drafted),
            "num_admitted_tokens": sum(history.admitted),
            "num_verified_tokens": sum(history.verified),
            "drafted_per_position": per_position(history.drafted, most),
            "admitted_per_position": per_position(history.admitted, most),
            "verified_per_position": per_position(history.verified, most),
            "accepted_per_position": per_position(history.accepted, most),
        }
        if self._level == "detailed":
            report |= {"per_step_accepted": history.accepted, "per_step_drafted": history.verified}
        return report


def _times(metrics: RequestMetrics) -> dict[str, Any]:
    """Milliseconds of one choice; None where it did not come so far."""
    scheduled, first, last = metrics.first_scheduled_time, metrics.first_token_time, metrics.last_token_time
    per_token = metrics.time_per_output_token
    generation_s = None if first is None or last is None else last - first
    return {
        "time_to_first_token_ms": _ms(metrics.time_to_first_token),
        "generation_time_ms": _ms(generation_s),
        "queue_time_ms": None if scheduled is None else _ms(scheduled - metrics.arrival_time),
        "mean_itl_ms": _ms(per_token),
        "tokens_per_second": 1.0 / per_token if per_token else None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
