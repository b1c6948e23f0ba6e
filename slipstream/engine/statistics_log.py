"""StatisticsLog: two log lines every ten seconds of work, word for word those that vLLM's users and tools read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.request_metrics import RequestMetrics
from slipstream.request import FinishReason, SamplingParams
from slipstream.scheduler.scheduler import Scheduler
from slipstream.scheduler.statistics import NoDrafts

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0
# Fewer verified drafts in an interval say nothing about their worth.
ENOUGH_DRAFTS = 100


@dataclass(slots=True)
class _Totals:
    """Counters at one moment."""

    time: float
    prompt_tokens: int
    generation_tokens: int
    drafts: int = 0
    verified: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    preemptions: int = 0
    cache_queries: int = 0
    cache_hits: int = 0


class StatisticsLog:
    """Counts tokens as a MetricsListener; the rest is read from the scheduler."""

    def __init__(self, scheduler: Scheduler, *, interval_s: float = INTERVAL_S) -> None:
        self._scheduler = scheduler
        self._interval_s = interval_s
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._warned = False
        self._said: set[NoDrafts] = set()

    def on_submitted(self, sampling: SamplingParams, num_prompt_tokens: int) -> None:
        """See MetricsListener."""

    def on_first_token(self, metrics: RequestMetrics, seconds: float) -> None:
        """See MetricsListener."""
        self._num_prompt_tokens += metrics.num_prompt_tokens

    def on_tokens(self, num_tokens: int, gap_s: float | None) -> None:
        """See MetricsListener."""
        self._num_generation_tokens += num_tokens

    def on_step(self, num_tokens: int, duration_s: float) -> None:
        """See MetricsListener."""

    def on_finished(self, metrics: RequestMetrics, sampling: SamplingParams, reason: FinishReason, now: float) -> None:
        """See MetricsListener."""

    def on_answered(self, metrics: Sequence[RequestMetrics]) -> None:
        """See MetricsListener."""

    async def run(self, engine: AsyncEngine) -> None:
        """Write until cancelled; quiet when nothing happened for two intervals."""
        before = self.totals(engine.clock())
        was_active = False
        while True:
            await asyncio.sleep(self._interval_s)
            now = self.totals(engine.clock())
            load = engine.load
            active = now.generation_tokens != before.generation_tokens or bool(load.num_running + load.num_waiting)
            level = logging.INFO if active or was_active else logging.DEBUG
            for line in self.lines(before, now, load.num_running, load.num_waiting, load.kv_cache_usage):
                logger.log(level, "%s", line)
            self._warn_of_useless_drafts(before, now)
            self._say_why_not_drafting()
            before, was_active = now, active

    def totals(self, time: float) -> _Totals:
        """The counters now."""
        statistics, kv = self._scheduler.statistics, self._scheduler.kv
        return _Totals(
            time,
            self._num_prompt_tokens,
            self._num_generation_tokens,
            sum(map(sum, statistics.acceptance_histogram[1:])),
            statistics.num_verified_tokens,
            statistics.num_accepted_tokens,
            statistics.accepted_per_position(),
            statistics.num_preemptions,
            kv.num_query_tokens,
            kv.num_hit_tokens,
        )

    def lines(
        self, before: _Totals, now: _Totals, num_running: int, num_waiting: int, kv_cache_usage: float
    ) -> list[str]:
        """The throughput line, and the speculation line when drafts were verified."""
        seconds = max(now.time - before.time, 1e-9)
        preempted = f", Preemptions: {now.preemptions}" if now.preemptions else ""
        queries = now.cache_queries - before.cache_queries
        hits = (
            f", Prefix cache hit rate: {100 * (now.cache_hits - before.cache_hits) / queries:.1f}%" if queries else ""
        )
        lines = [
            f"Engine 000: Avg prompt throughput: {(now.prompt_tokens - before.prompt_tokens) / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {(now.generation_tokens - before.generation_tokens) / seconds:.1f} tokens/s, "
            f"Running: {num_running} reqs, Waiting: {num_waiting} reqs{preempted}, "
            f"GPU KV cache usage: {100 * kv_cache_usage:.1f}%{hits}"
        ]
        drafts, verified = now.drafts - before.drafts, now.verified - before.verified
        if drafts:
            accepted = now.accepted - before.accepted
            earlier = before.accepted_per_position + [0] * len(now.accepted_per_position)
            rates = [(count - old) / drafts for count, old in zip(now.accepted_per_position, earlier, strict=False)]
            lines.append(
                f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, "
                f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
                f"Drafted throughput: {verified / seconds:.2f} tokens/s, "
                f"Accepted: {accepted} tokens, Drafted: {verified} tokens, "
                f"Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in rates)}, "
                f"Avg Draft acceptance rate: {100 * accepted / verified:.1f}%"
            )
        return lines

    def _warn_of_useless_drafts(self, before: _Totals, now: _Totals) -> None:
        verified = now.verified - before.verified
        if not self._warned and verified >= ENOUGH_DRAFTS and now.accepted == before.accepted:
            self._warned = True
            logger.warning("speculation gives no gain: none of the last %d drafts was accepted", verified)

    def _say_why_not_drafting(self) -> None:
        """Once per reason: nobody is to wonder why speculation does nothing."""
        for cause, count in self._scheduler.statistics.num_without_drafts.items():
            if count and cause not in self._said:
                self._said.add(cause)
                logger.info(
                    "some requests do not draft (%s); slipstream:spec_disabled_total counts on, this is said once",
                    cause.value,
                )
