"""Under the textbook rejection rule no draft decides whether it is verified itself."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from counter_example import FIRST_CONFIDENCE, SECOND_CONFIDENCE, TableOfThree, drafting_request, draw_draft, token_of
from driver import make_config

from slipstream.scheduler.acceptance import AcceptanceTracker
from slipstream.scheduler.brains import acceptance_for
from slipstream.scheduler.confidence import ConfidencePlanner
from slipstream.scheduler.costs import StepShape
from slipstream.scheduler.outcome_acceptance import OutcomeTracker
from slipstream.scheduler.scheduler import Scheduler
from slipstream.scheduler.verify_rows import best_verify_rows


def taught(tracker: AcceptanceTracker, confidences: list[float]) -> AcceptanceTracker:
    """After some steps in which the first of three drafts was accepted, and the second every other time."""
    for step in range(40):
        tracker.note_drafts("r", confidences)
        tracker.observe("r", 3, 1 + step % 2)
    tracker.note_drafts("r", confidences)
    return tracker


def test_the_setting_chooses_what_may_be_known() -> None:
    config = make_config(layout_name="dspark", num_speculative_tokens=3)
    assert type(acceptance_for(config)) is AcceptanceTracker
    standard = make_config(layout_name="dspark", num_speculative_tokens=3, rejection_sample_method="standard")
    assert type(Scheduler(standard).acceptance) is OutcomeTracker


def test_a_step_and_the_next_drafts_follow_from_outcomes_alone() -> None:
    found = []
    for confidences in ([0.9, 0.8, 0.7], [0.3, 0.99, 0.01]):
        tracker = taught(OutcomeTracker(3), confidences)
        requests = [drafting_request("r", confidences), drafting_request("s", [0.5, 0.5])]
        found.append(tracker.foreseen(requests, [3, 2], lambda: pytest.fail("looked at the drafts")))
        assert tracker.recent() is None and tracker.is_silent
        assert tracker.survivals(requests, [3, 2])[0] != pytest.approx(found[-1][0]), "these rank, and do look"
    assert (found[0] == found[1]).all()
    assert (found[0] > 0).tolist() == [[True] * 3, [True, True, False]]
    assert (np.diff(found[0][0]) < 0).all()


def test_coupled_sampling_may_look() -> None:
    tracker = taught(AcceptanceTracker(3), [0.9, 0.8, 0.7])
    requests = [drafting_request("r", [0.9, 0.8, 0.7])]
    survivals = tracker.survivals(requests, [3])
    assert tracker.foreseen(requests, [3], lambda: survivals) is survivals
    assert tracker.recent() is not None


def test_probes_are_verified_and_nothing_comes_of_nothing() -> None:
    tracker = OutcomeTracker(3)
    tracker.probing = frozenset({"s"})
    requests = [drafting_request("r", None), drafting_request("s", None)]
    foreseen = tracker.foreseen(requests, [3, 2], lambda: np.zeros((0, 0)))
    assert foreseen[1].tolist() == [1.0, 1.0, 0.0] and 0 < foreseen[0, 2] < foreseen[0, 0] < 1
    assert tracker.foreseen([], [], lambda: np.zeros((0, 0))).shape == (0, 0)


@pytest.mark.parametrize(("kind", "chance_of_a"), [(OutcomeTracker, 0.70), (AcceptanceTracker, 0.85)])
def test_the_papers_counter_example(kind: type[AcceptanceTracker], chance_of_a: float) -> None:
    """One request, two drafts, target (.7, .3) and drafter (.5, .5) over A and B; the second draft's confidence is .9
    after A and 0 after B. Who looks at it verifies the first draft only when it is A (DSpark, Appendix A)."""
    planner, random = ConfidencePlanner(), Random(1)
    tracker = kind(2)
    num_draws, num_a = 4000, 0
    for _ in range(num_draws):
        draft = draw_draft(random)
        requests = [drafting_request("r", [FIRST_CONFIDENCE, SECOND_CONFIDENCE[draft]])]
        survivals = tracker.survivals(requests, [2])
        offer = planner.offer(tracker.foreseen(requests, [2], lambda found=survivals: found))
        choice = best_verify_rows(offer, TableOfThree(), StepShape(1), 2)
        [length] = planner.distribute([2], survivals, choice.num_rows, 0)
        num_a += token_of(random, draft, length) == 0
    assert num_a / num_draws == pytest.approx(chance_of_a, abs=4 * (0.25 / num_draws) ** 0.5)
