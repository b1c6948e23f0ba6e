"""The plain step policy, the turn-by-turn planner, the waiting queue and token stops."""

from __future__ import annotations

from collections import Counter

import pytest
from driver import make_request
from hypothesis import given
from hypothesis import strategies as st

from slipstream.request import FinishReason
from slipstream.scheduler.policy import MixAtOncePolicy, StepCandidates
from slipstream.scheduler.queue import WaitingQueue
from slipstream.scheduler.stopping import TokenStopChecker
from slipstream.scheduler.verification import TurnByTurnPlanner


@pytest.mark.parametrize(
    ("drafts", "prompts", "left", "promised", "expected"),
    [
        (40, 0, 56, 8, (0, 40)),  # nobody waits: all drafts
        (40, 100, 56, 8, (16, 40)),  # prompts take what drafts leave
        (60, 100, 56, 8, (8, 48)),  # drafts yield the promised rows
        (60, 3, 56, 8, (3, 53)),  # a short prompt needs no more than its rows
        (60, 100, 4, 8, (4, 0)),  # the promise is bounded by what is left
        (0, 100, 56, 8, (56, 0)),
    ],
)
def test_mix_at_once(drafts: int, prompts: int, left: int, promised: int, expected: tuple[int, int]) -> None:
    candidates = StepCandidates(8, drafts, min(prompts, left), left, promised, 1)
    composition = MixAtOncePolicy().compose(candidates, None, 0.0)
    assert (composition.num_prompt_rows, composition.num_verify_rows) == expected


@given(st.lists(st.integers(0, 8), max_size=12), st.integers(0, 60), st.integers(0, 100))
def test_turn_by_turn_uses_every_row_it_can_and_is_even(drafts: list[int], rows: int, turn: int) -> None:
    counts = TurnByTurnPlanner().distribute(drafts, None, rows, turn)
    assert all(0 <= count <= most for count, most in zip(counts, drafts, strict=True))
    assert sum(counts) == min(rows, sum(drafts))
    short = [count for count, most in zip(counts, drafts, strict=True) if count < most]
    if short:
        assert max(counts) <= min(short) + 1, "nobody is two drafts ahead of one who wants more"


def test_nobody_is_last_for_ever() -> None:
    total: Counter[int] = Counter()
    for turn in range(100):
        counts = TurnByTurnPlanner().distribute([4] * 8, None, 3, turn)
        total.update(dict(enumerate(counts)))
    assert max(total.values()) - min(total.values()) <= 3


def test_the_queue_orders_by_priority_and_waiting_time() -> None:
    queue = WaitingQueue(priority_ageing_s=10.0)
    for name, priority, arrival in (("late", 0, 30.0), ("low", 1, 0.0), ("urgent", -1, 31.0), ("first", 0, 0.0)):
        queue.add(make_request(name, [1], priority=priority, arrival_time=arrival))
    # One priority step is worth ten seconds: "low" arrived thirty seconds before "late" and has overtaken it.
    assert [request.request_id for request in queue] == ["first", "low", "urgent", "late"]
    first = queue.pop_first()
    queue.put_back(first)
    assert next(iter(queue)) is first
    queue.remove(first)
    assert len(queue) == 3


def test_equal_urgency_is_first_come_first_served() -> None:
    queue = WaitingQueue(30.0)
    for index in range(5):
        queue.add(make_request(str(index), [1]))
    assert [request.request_id for request in queue] == list("01234")


def stop_request(**kwargs):
    request = make_request("r", [1, 2, 3], 10, eos=(0,), **kwargs)
    request.max_total_tokens = 13
    return request


def test_stops_are_judged_token_by_token() -> None:
    checker = TokenStopChecker()
    assert checker.check(stop_request(), [5, 6]) is None
    verdict = checker.check(stop_request(), [5, 0, 6])
    assert verdict is not None
    assert (verdict.num_kept_tokens, verdict.finish_reason, verdict.stop_reason) == (2, FinishReason.STOP, None)
    verdict = checker.check(stop_request(stop_token_ids=(6,)), [5, 6, 0])
    assert verdict is not None
    assert (verdict.num_kept_tokens, verdict.stop_reason) == (2, 6)


def test_length_ends_after_the_last_allowed_token_and_eos_there_is_a_stop() -> None:
    checker = TokenStopChecker()
    request = stop_request()
    request.token_ids += [5] * 8
    verdict = checker.check(request, [5, 5, 5])
    assert verdict is not None
    assert (verdict.num_kept_tokens, verdict.finish_reason) == (2, FinishReason.LENGTH)
    verdict = checker.check(request, [5, 0, 5])
    assert verdict is not None
    assert (verdict.num_kept_tokens, verdict.finish_reason) == (2, FinishReason.STOP)


def test_ignored_eos_and_min_tokens_go_on() -> None:
    checker = TokenStopChecker()
    assert checker.check(stop_request(ignore_eos=True), [0, 0]) is None
    assert checker.check(stop_request(min_tokens=3), [0, 0]) is None
    assert checker.check(stop_request(min_tokens=2), [0, 0, 0]) is not None
