"""What an executor keeps of drafts between two steps, and for how long."""

from __future__ import annotations

from slipstream.request import SamplingParams
from slipstream.scheduler.executor_state import ExecutorState
from slipstream.scheduler.protocol import (
    DraftBlock,
    DraftDistribution,
    NewRequest,
    SampledTokens,
    ScheduledRequest,
    StepPlan,
)


def new(name: str) -> NewRequest:
    return NewRequest(name, 0, [1, 2, 3], 3, SamplingParams(), 0, 0, 50)


def decode(name: str, position: int, num_verify: int, handle: int) -> ScheduledRequest:
    return ScheduledRequest(name, 0, position, 1 + num_verify, num_verify, handle, False, True, 3, 3, ())


def prompt(name: str) -> ScheduledRequest:
    return ScheduledRequest(name, 0, 0, 3, 0, -1, True, True, 3, 3, (0,))


def drafted(names: list[str]) -> tuple[ExecutorState, list[DraftDistribution]]:
    """A state after step 0, in which all prompts ran and three drafts each were drawn."""
    state = ExecutorState()
    drawn_from = [DraftDistribution() for _ in range(3)]
    plan = StepPlan(0, [prompt(name) for name in names], [new(name) for name in names])
    for index, rows in enumerate(state.begin(plan)):
        result = state.accept(rows, SampledTokens([7] * len(names), [None] * len(names)), index)
        state.keep_drafts(rows, result, DraftBlock([4, 5, 6], distributions=drawn_from), 0)
    return state, drawn_from


def test_each_row_gets_what_its_draft_was_drawn_from_and_the_bonus_row_nothing() -> None:
    state, drawn_from = drafted(["a"])
    [rows] = state.begin(StepPlan(1, [decode("a", 3, 2, 0)]))
    assert [row.draft_distribution for row in rows.sample_rows()] == [drawn_from[0], drawn_from[1], None]
    state.accept(rows, SampledTokens([4, 9, 8], [None] * 3), 0)
    assert state.requests["a"].draft_distributions == ()


def test_nothing_is_kept_past_the_next_step() -> None:
    """Of a request that the next step leaves out, that was aborted or preempted, or whose drafts are of another step:
    a distribution may hold a whole batch's logits."""
    state, _ = drafted(["a", "b", "c", "d"])
    rows = state.begin(StepPlan(1, [decode("a", 3, 3, 0), decode("d", 3, 3, 5)], released_request_ids=["c"]))
    assert "c" not in state.requests
    assert state.requests["b"].draft_distributions == () and state.requests["b"].draft_token_ids == []
    assert rows[1].draft_token_ids == [] and [row.draft_distribution for row in rows[1].sample_rows()] == [None]


def test_drafts_that_say_nothing_have_no_distribution() -> None:
    state, _ = drafted(["a"])
    [rows] = state.begin(StepPlan(1, [decode("a", 3, 1, 0)]))
    result = state.accept(rows, SampledTokens([4, 8], [None] * 2), 0)
    state.keep_drafts(rows, result, DraftBlock([4, 5]), 1)
    [rows] = state.begin(StepPlan(2, [decode("a", 5, 2, 1)]))
    assert [row.draft_distribution for row in rows.sample_rows()] == [None] * 3
