"""Drafts: made, admitted, verified, accepted; how sure the drafter was; and why there were none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from slipstream.engine.calibration_counts import NUM_BINS, CalibrationCounts
from slipstream.engine.engine import Engine
from slipstream.server.metrics.families import Families, by_position

DRAFTER_FAILED = "drafter_failed"


def speculation_metrics(engine: Engine, calibration: CalibrationCounts, families: Families) -> Iterator[Metric]:
    """All of it; asked only where speculation is on."""
    statistics = engine.scheduler.statistics
    drafts = sum(map(sum, statistics.acceptance_histogram[1:]))
    accepted, verified = statistics.accepted_per_position(), statistics.verified_per_position()
    yield families.counter("vllm:spec_decode_num_drafts", "Decode steps of requests that verified drafts.", drafts)
    yield families.counter("vllm:spec_decode_num_draft_tokens", "Drafts verified by the target.", sum(verified))
    yield families.counter("vllm:spec_decode_num_accepted_tokens", "Drafts accepted.", sum(accepted))
    yield families.counter_by(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Drafts accepted by position in their block.",
        ("position",),
        by_position(accepted),
    )
    for name, counts in (
        ("drafted", statistics.drafted_per_position()),
        ("admitted", statistics.admitted_per_position()),
        ("verified", verified),
        ("accepted", accepted),
    ):
        yield families.counter(f"slipstream:spec_decode_num_{name}_tokens", f"Drafts {name}.", sum(counts))
        yield families.counter_by(
            f"slipstream:spec_decode_num_{name}_tokens_per_pos",
            f"Drafts {name} by position in their block.",
            ("position",),
            by_position(counts),
        )
    yield families.counter(
        "slipstream:spec_decode_num_skipped_drafts",
        "Requests that were to draft but had just ended.",
        statistics.num_skipped_drafts,
    )
    if drafts:
        yield families.gauge(
            "slipstream:spec_decode_mean_acceptance_length",
            "1 + accepted / steps that verified drafts, since the start.",
            1 + sum(accepted) / drafts,
        )
    yield from _switch_offs(engine, families)
    yield from _calibration(calibration, families)


def _switch_offs(engine: Engine, families: Families) -> Iterator[Metric]:
    failures: Mapping[str, int] = getattr(engine.executor, "draft_failures", {})
    causes = {cause.value: count for cause, count in engine.scheduler.statistics.num_without_drafts.items()}
    yield families.counter_by(
        "slipstream:spec_disabled",
        "Steps of requests that could have drafted and did not, by reason; calls of the drafter that failed.",
        ("reason",),
        [((reason,), count) for reason, count in {**causes, DRAFTER_FAILED: sum(failures.values())}.items()],
    )
    if failures:
        yield families.counter_by(
            "slipstream:drafter_failures",
            "Faults of the drafter by what they were; each costs drafts, never an answer.",
            ("reason",),
            [((reason,), count) for reason, count in list(failures.items())],
        )


def _calibration(calibration: CalibrationCounts, families: Families) -> Iterator[Metric]:
    """Only bins that drafts fell into: most of 10 K stay empty."""
    judged = calibration.judged
    filled = [(p, b) for p in range(judged.shape[0]) for b in range(NUM_BINS) if judged[p, b]]
    for name, text, values in (
        ("judged", "Drafts that the target judged", judged),
        ("accepted", "Of them accepted", calibration.accepted),
        ("confidence", "Sum of what the drafter thought their chances were", calibration.confidence),
        ("calibrated", "Sum of what the scheduler made of these chances", calibration.calibrated),
    ):
        yield families.counter_by(
            f"slipstream:spec_calibration_{name}",
            f"{text}, by position and by the drafter's confidence (lower end of a tenth).",
            ("position", "bin"),
            [((str(p), f"{b / NUM_BINS:.1f}"), float(values[p, b])) for p, b in filled],
        )
