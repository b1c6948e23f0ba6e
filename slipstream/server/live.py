"""`/v1/live`: what the engine is doing now, for the page at `/`, which asks again and again from the last step on."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from slipstream.engine.calibration_counts import NUM_BINS, CalibrationCounts
from slipstream.engine.engine import Engine
from slipstream.engine.recent_steps import RecentSteps, StepRecord
from slipstream.server.answers import new_id
from slipstream.server.recent_requests import WINDOW_S, RecentRequests

LIVE_PATH = "/v1/live"
STEP_COLUMNS = ("step", "kind", "mode", "decode_rows", "verify_rows", "prompt_rows", "target_ms", "draft_ms")


class LiveView:
    """Looks on at an engine: load, speed, drafts, steps. What it gives is plain JSON.

    Attributes:
        requests: to be told of what fronts learn; a MetricsListener.
    """

    def __init__(self, engine: Engine, calibration: CalibrationCounts | None = None) -> None:
        """`calibration`: an observer of the same engine; None where the server makes no drafts."""
        self.requests = RecentRequests(engine.clock)
        self._engine = engine
        self._calibration = calibration
        self._steps = RecentSteps()
        self._instance = new_id("engine")
        engine.observers.add(self._steps)

    def since(self, step: int) -> dict[str, Any]:
        """Everything now, with the steps after number `step`, as far as they are remembered (all for -1)."""
        return {
            "instance": self._instance,
            "load": self._load(),
            "speed": self._speed(),
            "speculation": self._speculation(),
            "steps": {"columns": STEP_COLUMNS, "rows": [_row(record) for record in self._steps.after(step)]},
        }

    def _load(self) -> dict[str, Any]:
        load, config = self._engine.load, self._engine.scheduler.config
        return {
            "running": load.num_running,
            "waiting": load.num_waiting,
            "kv_usage": load.kv_cache_usage,
            "kv_tokens": config.num_kv_blocks * config.block_size,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
        }

    def _speed(self) -> dict[str, Any]:
        requests, now = self.requests, self._engine.clock()
        return {
            "window_s": WINDOW_S,
            "output_tokens_per_s": requests.output_tokens.rate(now),
            "prompt_tokens_per_s": requests.prompt_tokens.rate(now),
            "first_token_ms": requests.first_token_ms,
            "per_token_ms": requests.per_token_ms,
            "num_measured": requests.num_measured,
        }

    def _speculation(self) -> dict[str, Any] | None:
        scheduler = self._engine.scheduler
        if not scheduler.config.num_speculative_tokens:
            return None
        statistics = scheduler.statistics
        num_steps = sum(map(sum, statistics.acceptance_histogram[1:]))
        return {
            "num_speculative_tokens": scheduler.config.num_speculative_tokens,
            "num_steps": num_steps,
            "mean_acceptance_length": 1 + statistics.num_accepted_tokens / num_steps if num_steps else None,
            "verified_per_position": statistics.verified_per_position(),
            "accepted_per_position": statistics.accepted_per_position(),
            "calibration": [] if self._calibration is None else _bins(self._calibration),
        }


def live_routes(view: LiveView) -> APIRouter:
    router = APIRouter()

    @router.get(LIVE_PATH)
    async def live(after: int = -1) -> dict[str, Any]:
        """Load, speed, drafts and the steps after number `after`."""
        return view.since(after)

    return router


def _row(record: StepRecord) -> list[Any]:
    return [
        record.step,
        record.kind,
        record.mode,
        record.num_decode_rows,
        record.num_verify_rows,
        record.num_prompt_rows,
        round(record.target_ms, 3),
        round(record.draft_ms, 3),
    ]


def _bins(calibration: CalibrationCounts) -> list[dict[str, float]]:
    """By the drafter's confidence, all positions together; only bins that drafts fell into. Chances are means."""
    judged = calibration.judged.sum(axis=0)
    said, calibrated = calibration.confidence.sum(axis=0), calibration.calibrated.sum(axis=0)
    accepted = calibration.accepted.sum(axis=0)
    return [
        {
            "judged": float(judged[b]),
            "said": float(said[b] / judged[b]),
            "calibrated": float(calibrated[b] / judged[b]),
            "accepted": float(accepted[b] / judged[b]),
        }
        for b in range(NUM_BINS)
        if judged[b]
    ]
