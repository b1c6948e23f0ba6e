"""Reported faults, kind C: preemption, asynchronous steps, cancel. The ids are those of tests/cases.toml."""

from __future__ import annotations

from random import Random

import pytest
from case_rig import (
    DRAFTERS,
    VOCAB,
    ContextExecutor,
    NotingDrafter,
    Preempting,
    make_drafter,
    make_rig,
    plain_tokens,
    prompt,
    seeded_sampler,
)
from driver import Run, make_request

from slipstream.request import FinishReason, RequestStatus
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.simulation.scripted import HashedLogits, sample_greedily


class EveryThirdStep:
    """Budget rules that pass each request over in every third step of its own."""

    def __init__(self, budget) -> None:
        self._budget = budget
        self._turn = 0

    def fill(self, step) -> None:
        self._turn += 1
        running = step.running
        step.running = [r for r in running if (self._turn + int(r.request_id[1:])) % 3 or r.num_output_tokens == 0]
        self._budget.fill(step)
        step.running = running + [r for r in step.running if r not in running]


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("layout_name", ["ngram", "eagle3", "dspark", "dflash"])
def test_C2_drafts_of_a_skipped_step_are_dropped(lag: int, kind: str, layout_name: str) -> None:
    rig = make_rig(kind, max_num_seqs=6, num_speculative_tokens=3, layout_name=layout_name, draft_capacity=256)
    requests = lambda: [make_request(f"r{i}", prompt(8, i), 40) for i in range(6)]  # noqa: E731
    for request in requests():
        rig.scheduler.add_request(request)
    # The invariants call for a row in every step, which is what is broken here; so the loop is our own.
    run, outstanding, skipped = Run(), [], 0
    while rig.scheduler.has_work():
        if rig.scheduler.num_waiting == 0 and not isinstance(rig.scheduler._budget, EveryThirdStep):
            rig.scheduler._budget = EveryThirdStep(rig.scheduler._budget)
        plan = rig.scheduler.schedule(0.0)
        skipped += len(rig.scheduler.running) - len(plan.requests)
        for entry in plan.requests:
            assert not entry.num_verify_rows or entry.draft_handle == plan.step - 1, "drafts of an older step"
        if plan.requests:
            outstanding.append((plan, rig.executor.execute(plan)))  # raises where an id below 0 reaches the model
        while len(outstanding) > (lag if plan.requests else 0):
            run.note(rig.scheduler.commit(*outstanding.pop(0)))
    assert skipped > 20 and (run.num_verified > 0 or kind == "ngram")
    assert run.token_ids == plain_tokens(requests())


@pytest.mark.parametrize("lag", [0, 1])
def test_C3_aborted_between_schedule_and_result(lag: int) -> None:
    rig = make_rig("half", max_num_seqs=4, num_speculative_tokens=4, layout_name="dspark")
    random = Random(1)
    statistics = rig.scheduler.statistics
    survivors = lambda: [make_request(f"keep{i}", prompt(7, i), 120) for i in range(2)]  # noqa: E731
    run, outstanding, aborted, step = Run(), [], 0, 0
    for request in survivors():
        rig.scheduler.add_request(request)
    while rig.scheduler.has_work():
        if aborted < 100 and step % 2 == 0:
            rig.scheduler.add_request(make_request(f"drop{step}", prompt(random.randrange(1, 30), step), 30))
        plan = rig.scheduler.schedule(0.0)
        outstanding.append((plan, rig.executor.execute(plan)))
        for entry in plan.requests:
            if entry.request_id.startswith("drop") and random.random() < 0.3:
                aborted += rig.scheduler.abort(entry.request_id)
        while len(outstanding) > lag:
            run.note(rig.scheduler.commit(*outstanding.pop(0)))
        assert 0 <= statistics.num_accepted_tokens <= statistics.num_verified_tokens
        assert all(count >= 0 for row in statistics.acceptance_histogram for count in row)
        step += 1
    assert statistics.num_finished[FinishReason.ABORT.value] == aborted > 20
    assert statistics.num_stale_results > 0
    assert all(run.token_ids[name] == tokens for name, tokens in plain_tokens(survivors()).items())
    assert rig.pool.num_free == rig.pool.num_blocks


@pytest.mark.parametrize("lag", [0, 1])
def test_C7_cancel_of_a_request_that_never_ran(lag: int) -> None:
    rig = make_rig("oracle", max_num_seqs=1, num_speculative_tokens=3)
    a, b = make_request("a", prompt(9), 40), make_request("b", prompt(9, 1), 40)

    def cancel(step: int) -> None:
        if step == 4:
            assert b.status is RequestStatus.WAITING and rig.scheduler.abort("b")
            assert not rig.scheduler.abort("b"), "a second time there is nothing to cancel"

    run = rig.drive([a, b], lag=lag, before_step=cancel)
    assert run.token_ids == plain_tokens([make_request("a", prompt(9), 40)])
    assert all("b" not in plan.released_request_ids for plan in run.plans)


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("layout_name", ["ngram", "eagle3", "draft_model", "dspark", "dflash"])
def test_C8_late_commit_gives_a_preempted_request_nothing(kind: str, layout_name: str) -> None:
    """(a) A result that arrives after the preemption must not give drafts, tokens or KV back to the request."""
    requests = lambda: [make_request(f"r{i}", prompt(9, i), 40) for i in range(4)]  # noqa: E731
    rig = make_rig(
        kind, max_num_seqs=4, num_speculative_tokens=3, layout_name=layout_name, block_size=4, draft_capacity=256
    )
    Preempting(rig, lambda request, step: step % 4 == 3 and step < 80 and int(request.request_id[1:]) == step // 4 % 4)

    def watch(step: int) -> None:
        for request in rig.scheduler.waiting:
            assert request.num_draft_tokens == request.in_flight_rows == request.num_computed_tokens == 0
            assert request.draft_handle == -1 and request.draft_confidences is None and not request.block_ids

    run = rig.drive(requests(), lag=1, before_step=watch)
    assert rig.scheduler.statistics.num_stale_results > 3
    assert run.num_verified > 0
    assert run.token_ids == plain_tokens(requests())


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("layout_name", ["ngram", "eagle3", "draft_model", "dspark", "dflash"])
def test_C8_rows_move_up_when_the_first_request_ends_in_between(kind: str, layout_name: str) -> None:
    """(b), (c) Row 0 ends by EOS between submit and commit; everybody keeps their own drafts and lengths."""
    logits = HashedLogits(VOCAB)
    ends = [plain_tokens([make_request("r", prompt(6, i), 60)], logits=logits)["r"][3 + 2 * i] for i in range(6)]
    requests = lambda: [  # noqa: E731
        make_request(f"r{i}", prompt(6, i), 30 + 5 * i, eos=() if i == 5 else (ends[i],)) for i in range(6)
    ]
    runs = {}
    for lag in (0, 1):
        drafter = make_drafter(kind, layout_name, logits, sample_greedily, 3)
        assert drafter is not None
        rig = make_rig(
            NotingDrafter(drafter),
            logits=logits,
            max_num_seqs=6,
            num_speculative_tokens=3,
            layout_name=layout_name,
            draft_capacity=256,
        )
        runs[lag] = run = rig.drive(requests(), lag=lag)
        assert isinstance(rig.drafter, NotingDrafter)
        for name, calls in rig.drafter.asked.items():
            text = prompt(6, int(name[1:])) + run.token_ids[name]
            for known, _ in calls:
                assert known == text[: len(known)], "drafts were made for somebody else's text"
        for plan, result in zip(run.plans, run.results, strict=True):
            assert [e.request_id for e in plan.requests] == [r.request_id for r in result.results]
    assert runs[1].token_ids == runs[0].token_ids == plain_tokens(requests(), logits=logits)
    assert runs[1].finish_reasons == runs[0].finish_reasons
    assert set(runs[0].finish_reasons.values()) == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("layout_name", [name for name in LAYOUTS if LAYOUTS[name].lookahead_slots(5)])
@pytest.mark.parametrize("lag", [0, 1])
def test_C9_all_rejected_at_temperature_one(layout_name: str, lag: int) -> None:
    sampler = seeded_sampler()
    requests = lambda: [make_request(f"r{i}", prompt(6, i), 60, temperature=1.0, seed=i) for i in range(3)]  # noqa: E731
    rig = make_rig(
        "wrong",
        sampler=sampler,
        executor_type=ContextExecutor,
        layout_name=layout_name,
        num_speculative_tokens=5,
        block_size=4,
        max_num_seqs=3,
    )
    run = rig.drive(requests(), lag=lag)
    plain = plain_tokens(requests(), sampler=sampler)
    assert run.token_ids == plain
    assert plain != plain_tokens([make_request(f"r{i}", prompt(6, i), 60) for i in range(3)]), "it was really sampled"
    statistics = rig.scheduler.statistics
    assert statistics.num_accepted_tokens == 0 and statistics.num_verified_tokens > 100
    for name, contexts in rig.executor.contexts.items():
        text = prompt(6, int(name[1:])) + plain[name]
        assert [len(context) for context in contexts] == list(range(6, 6 + len(contexts))), "one token per step"
        assert all(context == text[: len(context)] for context in contexts)
