"""What steps held, and how full they were."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from slipstream.scheduler.scheduler import Scheduler
from slipstream.server.metrics.families import Families


def step_metrics(scheduler: Scheduler, families: Families) -> Iterator[Metric]:
    """Steps and rows by kind and mode; target budget and draft capacity, and what of them is in use."""
    statistics, config = scheduler.statistics, scheduler.config
    steps = list(statistics.steps.items())
    yield families.counter_by(
        "slipstream:engine_steps",
        "Steps by kind (decode, prefill, mixed) and mode of the target's pass.",
        ("kind", "mode"),
        [((kind, mode), totals.num_steps) for (kind, mode), totals in steps],
    )
    rows: dict[tuple[str, str], int] = {}
    for (_, mode), totals in steps:
        for kind, count in (
            ("prompt", totals.num_prompt_rows),
            ("decode", totals.num_decode_rows),
            ("verify", totals.num_verify_rows),
            ("draft_query", totals.num_draft_query_rows),
            ("padding", totals.num_padding_rows),
        ):
            rows[kind, mode] = rows.get((kind, mode), 0) + count
    yield families.counter_by(
        "slipstream:engine_rows",
        "Rows that ran, by kind and mode of the step: prompt, decode (one per decoding request), verify (drafts), "
        "padding (of captured graphs), all of the target's pass; draft_query, of the drafter's.",
        ("kind", "mode"),
        rows.items(),
    )
    is_busy = scheduler.num_running > 0
    for name, text, limit, used in (
        ("target_budget", "the target's pass", config.max_num_batched_tokens, statistics.last_target_rows),
        ("draft_capacity", "the drafter's pass", config.draft_capacity, statistics.last_draft_query_rows),
    ):
        yield families.gauge(f"slipstream:{name}_rows", f"Rows of {text} at most.", limit)
        yield families.gauge(
            f"slipstream:{name}_rows_used", f"Rows of {text} in the newest step; 0 at rest.", used if is_busy else 0
        )
    yield families.counter(
        "slipstream:stale_results", "Results of requests that had ended or restarted.", statistics.num_stale_results
    )
