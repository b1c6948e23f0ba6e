"""What the cost table says of steps, and what they take."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from slipstream.engine.refit import CostRefitter
from slipstream.engine.step_times import RATIO_EDGES
from slipstream.scheduler.scheduler import Scheduler
from slipstream.server.metrics.families import Families


def cost_metrics(scheduler: Scheduler, refitter: CostRefitter | None, families: Families) -> Iterator[Metric]:
    """The table's version; predicted and measured time of the passes it was asked about."""
    if scheduler.costs is not None:
        yield families.gauge(
            "slipstream:cost_table_version", "Of the table in use; grows with each refit.", scheduler.costs.version
        )
    if refitter is None:
        return
    yield families.counter("slipstream:cost_table_refits", "Corrections of the table by live steps.", refitter.refits)
    passes = list(refitter.times.passes.items())
    labels = ("pass", "mode")
    for name, text, values in (
        ("passes", "Passes that were predicted and measured.", [times.num_passes for _, times in passes]),
        ("pass_predicted_seconds", "What the table said they take.", [t.predicted_ms / 1e3 for _, t in passes]),
        ("pass_measured_seconds", "What they took.", [t.measured_ms / 1e3 for _, t in passes]),
    ):
        yield families.counter_by(
            f"slipstream:{name}", text, labels, [(keys, value) for (keys, _), value in zip(passes, values, strict=True)]
        )
    yield families.histogram_by(
        "slipstream:pass_time_ratio",
        "Measured over predicted time of a pass.",
        labels,
        RATIO_EDGES,
        [(keys, times.ratios, times.ratio_sum) for keys, times in passes],
    )
