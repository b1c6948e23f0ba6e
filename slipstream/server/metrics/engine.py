"""EngineCollector: metrics read from the engine when `/metrics` is asked for, so that counting costs a step nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from slipstream.engine.calibration_counts import CalibrationCounts
from slipstream.engine.engine import Engine
from slipstream.engine.refit import CostRefitter
from slipstream.server.metrics.costs import cost_metrics
from slipstream.server.metrics.families import ENGINE, Families
from slipstream.server.metrics.speculation import speculation_metrics
from slipstream.server.metrics.steps import step_metrics
from slipstream.version import __version__

logger = logging.getLogger(__name__)


class EngineCollector(Collector):
    """A prometheus_client Collector. A subject that cannot be read costs its own metrics only.

    Args:
        refitter: of the engine's cost table; None without one.

    Attributes:
        calibration: counted from now on; None where the engine makes no drafts.
    """

    def __init__(self, engine: Engine, model_name: str, refitter: CostRefitter | None = None) -> None:
        families = Families(model_name)
        scheduler = engine.scheduler
        most = scheduler.config.num_speculative_tokens
        self._subjects: list[Callable[[], Iterable[Metric]]] = [
            lambda: load_metrics(engine, families),
            lambda: step_metrics(scheduler, families),
            lambda: cost_metrics(scheduler, refitter, families),
        ]
        self.calibration: CalibrationCounts | None = None
        if most:
            self.calibration = calibration = CalibrationCounts(scheduler.acceptance, most)
            engine.observers.add(calibration)
            self._subjects.append(lambda: speculation_metrics(engine, calibration, families))

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        for subject in self._subjects:
            try:
                yield from subject()
            except Exception:
                logger.exception("some metrics could not be read")


def load_metrics(engine: Engine, families: Families) -> Iterator[Metric]:
    """Requests, KV blocks, prefix cache, version."""
    scheduler, load = engine.scheduler, engine.load
    statistics, config, kv = scheduler.statistics, scheduler.config, scheduler.kv
    yield families.gauge("vllm:num_requests_running", "Requests with a seat.", load.num_running)
    yield families.gauge("vllm:num_requests_waiting", "Requests without one.", load.num_waiting)
    yield families.gauge_by(
        "vllm:num_requests_waiting_by_reason",
        "Waiting requests by reason; nothing here is ever deferred.",
        "reason",
        {"capacity": load.num_waiting, "deferred": 0},
    )
    yield families.gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", load.kv_cache_usage)
    cache = {
        "engine": ENGINE,
        "block_size": config.block_size,
        "num_gpu_blocks": config.num_kv_blocks,
        "kv_cache_size_tokens": config.num_kv_blocks * config.block_size,
        "enable_prefix_caching": config.enable_prefix_caching,
    }
    info = GaugeMetricFamily("vllm:cache_config_info", "How the KV cache is set up.", labels=list(cache))
    info.add_metric([str(value) for value in cache.values()], 1)
    yield info
    yield families.counter("vllm:num_preemptions", "Requests that lost their KV.", statistics.num_preemptions)
    yield families.counter("vllm:prefix_cache_queries", "Tokens looked up.", kv.num_query_tokens)
    yield families.counter("vllm:prefix_cache_hits", "Tokens found.", kv.num_hit_tokens)
    yield families.counter("slipstream:kv_evictions", "Cached KV blocks given to others.", kv.pool.num_evictions)
    yield families.gauge("slipstream:kv_blocks_cached", "KV blocks found by content.", kv.pool.num_cached)
    build = InfoMetricFamily("slipstream:build", "Version.")
    build.add_metric([], {"version": __version__})
    yield build
