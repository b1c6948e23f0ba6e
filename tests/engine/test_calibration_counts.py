"""Predicted and observed acceptance: what is counted, in which bin, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from slipstream.engine.calibration_counts import CalibrationCounts
from slipstream.engine.step_times import RATIO_EDGES, StepTimes
from slipstream.scheduler.acceptance import AcceptanceTracker
from slipstream.scheduler.protocol import RequestResult, ScheduledRequest, StepPlan, StepResult

K = 3


class Steps:
    """One request's steps, as an engine would report them."""

    def __init__(self) -> None:
        self.acceptance = AcceptanceTracker(K)
        self.counts = CalibrationCounts(self.acceptance, K)
        self.step = 0

    def run(
        self,
        verified: int,
        accepted: int,
        confidences: Sequence[float] | None,
        *,
        handle: int | None = None,
        released: Sequence[str] = (),
    ) -> None:
        used = self.step - 1 if handle is None else handle
        entry = ScheduledRequest("r", 0, 10, 1 + verified, verified, used, False, True, K, K, ())
        num_drafts = 0 if confidences is None else len(confidences)
        outcome = RequestResult("r", 0, [1] * (accepted + 1), verified, accepted, num_drafts, confidences)
        plan = StepPlan(self.step, [entry], released_request_ids=list(released))
        self.counts(plan, StepResult(self.step, [outcome]))
        self.step += 1


def test_drafts_up_to_the_first_refused_one_are_counted() -> None:
    steps = Steps()
    steps.run(0, 0, [0.95, 0.45, 0.05])
    steps.run(3, 1, [0.91, 0.42, 0.3])  # the third was never looked at
    steps.run(3, 3, [1.0, 0.0, 0.999])
    steps.run(3, 0, None)
    judged = np.zeros((K, 10))
    judged[0, 9], judged[1, 4], judged[2, 3] = 3, 2, 1
    accepted = np.zeros((K, 10))
    accepted[0, 9], accepted[1, 4], accepted[2, 3] = 2, 1, 1
    assert (steps.counts.judged == judged).all() and (steps.counts.accepted == accepted).all()
    assert steps.counts.confidence[0, 9] == pytest.approx(0.95 + 0.91 + 1.0)
    assert steps.counts.confidence[1, 4] == pytest.approx(0.45 + 0.42)


def test_only_the_drafts_of_the_step_before_count() -> None:
    steps = Steps()
    steps.run(0, 0, [0.5, 0.5])
    steps.run(2, 2, [0.5, 0.5], handle=-7)
    steps.run(2, 2, [0.5], released=["r"])  # preempted: what was known is void
    assert not steps.counts.judged.any()


def test_silent_drafters_leave_no_trace() -> None:
    steps = Steps()
    for _ in range(3):
        steps.run(3, 2, None)
    assert not steps.counts.judged.any() and not steps.counts.calibrated.any()


def test_what_the_scheduler_makes_of_confidences_is_summed_beside_them() -> None:
    steps = Steps()
    for _ in range(200):  # the drafter is far too sure of itself
        steps.acceptance.note_drafts("r", [0.9])
        steps.acceptance.observe("r", 1, 0)
    steps.run(0, 0, [0.9])
    steps.run(1, 0, None)
    assert steps.counts.confidence.sum() == pytest.approx(0.9)
    assert 0.0 < steps.counts.calibrated.sum() < 0.5


def test_times_are_summed_by_pass_and_mode() -> None:
    times = StepTimes()
    times.add("target", "eager", 10.0, 9.0)
    times.add("target", "eager", 10.0, 25.0)
    times.add("target", "full_graph", 2.0, 100.0)
    times.add("draft", "", 0.0, 1.0)  # the table knows nothing of it
    assert set(times.passes) == {("target", "eager"), ("target", "full_graph")}
    eager = times.passes["target", "eager"]
    assert (eager.num_passes, eager.predicted_ms, eager.measured_ms) == (2, 20.0, 34.0)
    assert eager.ratio_sum == pytest.approx(3.4)
    assert eager.ratios[RATIO_EDGES.index(0.9)] == 1 and eager.ratios[RATIO_EDGES.index(4.0)] == 1
    assert times.passes["target", "full_graph"].ratios[-1] == 1
