"""Reported faults, kind B: chunked prefill and speculation together. The ids are those of tests/cases.toml.

B4, random traffic, is tests/scheduler/test_random_traffic.py.
"""

from __future__ import annotations

import pytest
from case_rig import DRAFTERS, ContextExecutor, NotingDrafter, Preempting, make_drafter, make_rig, plain_tokens, prompt
from driver import make_request

from slipstream.request import RequestStatus
from slipstream.scheduler.drafting import DraftingCandidates, DraftingDecision
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.simulation.scripted import HashedLogits, KVGapError, ScriptedExecutor, sample_greedily

KEEPING_KV = [name for name, layout in LAYOUTS.items() if layout.carries_target_rows or layout.has_context_rows]
"""Layouts whose drafter has KV of its own, so that chunks can leave holes in it."""


def noting_rig(layout_name: str, kind: str = "half", **config):
    logits = HashedLogits(32)
    drafter = make_drafter(kind, layout_name, logits, sample_greedily, 4)
    assert drafter is not None
    return make_rig(
        NotingDrafter(drafter),
        logits=logits,
        executor_type=ContextExecutor,
        layout_name=layout_name,
        num_speculative_tokens=4,
        draft_capacity=1024,
        max_model_len=512,
        **config,
    )


@pytest.mark.parametrize("layout_name", KEEPING_KV)
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("chunk", [1, 7, 32, 33])
def test_B1_chunks_give_the_drafter_the_same_input(layout_name: str, lag: int, chunk: int) -> None:
    runs = []
    for budget in (256, chunk):
        rig = noting_rig(layout_name, max_num_batched_tokens=budget, max_num_seqs=1)
        run = rig.drive([make_request("r", prompt(96), 200)], lag=lag)
        runs.append((run, rig))
    (whole, whole_rig), (chunked, chunked_rig) = runs
    assert chunked.token_ids == whole.token_ids and len(whole.token_ids["r"]) == 200
    assert chunked_rig.executor.contexts["r"][0] == whole_rig.executor.contexts["r"][0] == prompt(96)
    assert chunked_rig.drafter.asked["r"][0][0] == [*prompt(96), whole.token_ids["r"][0]]
    assert chunked_rig.drafter.drafts["r"][0] == whole_rig.drafter.drafts["r"][0]
    if chunk > 5:  # verify rows are not trimmed, so that whole histories compare
        assert chunked_rig.executor.contexts == whole_rig.executor.contexts
        assert chunked_rig.drafter.asked == whole_rig.drafter.asked
        accepted = [r.scheduler.statistics.num_accepted_tokens for r in (whole_rig, chunked_rig)]
        assert accepted[0] == accepted[1] > 50
    assert whole.num_verified > 0


@pytest.mark.parametrize("layout_name", [*KEEPING_KV, "ngram"])
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("cache", [True, False])
def test_B2_chunk_edges_inside_the_output_after_preemption(layout_name: str, lag: int, cache: bool) -> None:
    plain = plain_tokens([make_request("r", prompt(40), 60)])["r"]
    rig = noting_rig(layout_name, max_num_batched_tokens=16, max_num_seqs=1, block_size=4, enable_prefix_caching=cache)
    done: list[int] = []

    def once_at_thirty(request, step: int) -> bool:
        if not done and request.num_output_tokens >= 30:
            done.append(request.num_output_tokens)
            rig.scheduler.kv.pool.forget_cached()
            return True
        return False

    Preempting(rig, once_at_thirty)
    run = rig.drive([make_request("r", prompt(40), 60)], lag=lag)
    assert run.token_ids["r"] == plain
    resumed = next(i for i, plan in enumerate(run.plans) if plan.new_requests and i > 0)
    chunks = [entry for plan in run.plans[resumed:] for entry in plan.requests if entry.is_prefill]
    edges = [entry.num_computed_tokens + entry.num_target_rows for entry in chunks]
    assert edges[:4] == [16, 32, 48, 64] and edges[-1] == 40 + done[0]
    assert [entry.emits for entry in chunks] == [False] * (len(chunks) - 1) + [True]
    text = prompt(40) + plain
    drafter = rig.drafter
    assert isinstance(drafter, NotingDrafter)
    for known, _ in drafter.asked["r"]:
        assert known == text[: len(known)], "the drafter is given what was generated, never a guess"
    for context in rig.executor.contexts.get("r", []):
        assert context == text[: len(context)] or layout_name == "ngram"
    assert run.num_verified > 0


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("period", [2, 3, 5])
def test_B3_no_drafts_in_a_prefill_of_a_request_that_held_some(lag: int, kind: str, period: int) -> None:
    requests = lambda: [make_request(f"r{i}", prompt(9 + i, i), 24) for i in range(4)]  # noqa: E731
    rig = make_rig(
        kind, max_num_batched_tokens=40, max_num_seqs=4, num_speculative_tokens=4, layout_name="dspark", block_size=4
    )
    holding: list[int] = []

    def victims(request, step: int) -> bool:
        if step % period == 0 and step < 60 and int(request.request_id[1:]) % period == (step // period) % period:
            holding.append(request.num_draft_tokens)
            return True
        return False

    Preempting(rig, victims)
    seen: list[bool] = []

    def watch(step: int) -> None:
        for request in rig.scheduler.waiting:
            seen.append(request.num_preemptions > 0)
            assert request.num_draft_tokens == 0 and request.draft_handle == -1

    run = rig.drive(requests(), lag=lag, before_step=watch)
    assert sum(holding) > 0 or kind == "ngram", "preempted right after drafting"
    assert any(seen)
    for plan, result in zip(run.plans, run.results, strict=True):
        for entry, outcome in zip(plan.requests, result.results, strict=True):
            if entry.is_prefill:
                assert entry.num_verify_rows == 0 and entry.draft_handle == -1 and outcome.num_verified == 0
    assert run.token_ids == plain_tokens(requests())


@pytest.mark.parametrize("layout_name", KEEPING_KV)
@pytest.mark.parametrize("lag", [0, 1])
def test_B5_the_context_is_the_whole_prompt_not_the_last_chunk(layout_name: str, lag: int) -> None:
    rig = noting_rig(layout_name, max_num_batched_tokens=21, max_num_seqs=1)
    run = rig.drive([make_request("r", prompt(100), 8)], lag=lag)
    chunks = [entry for plan in run.plans for entry in plan.requests if entry.is_prefill]
    assert len(chunks) == 5
    assert rig.executor.contexts["r"][0] == prompt(100)
    layout = LAYOUTS[layout_name]
    carried = sum(entry.num_draft_query_rows for entry in chunks) - layout.draft_query_rows(0, 4)
    assert sum(layout.context_rows(e.num_target_rows) for e in chunks) + carried == 100


class ForgetfulExecutor(ScriptedExecutor):
    """Leaves out the drafter's context rows of one step, as an engine does that writes them only when it drafts."""

    def _write_rows(self, rows) -> None:
        before = self._draft_kv.copy()
        super()._write_rows(rows)
        if rows.first_position == 16:
            self._draft_kv[:] = before


@pytest.mark.parametrize("layout_name", KEEPING_KV)
def test_B6_a_gap_in_the_drafters_context_is_found(layout_name: str) -> None:
    rig = make_rig(
        "oracle",
        executor_type=ForgetfulExecutor,
        layout_name=layout_name,
        num_speculative_tokens=4,
        max_num_batched_tokens=16,
        max_num_seqs=1,
        draft_capacity=64,
    )
    with pytest.raises(KVGapError, match="the drafter's KV differs from the committed tokens"):
        rig.drive([make_request("r", prompt(48), 8)])


@pytest.mark.parametrize("layout_name", KEEPING_KV)
@pytest.mark.parametrize("lag", [0, 1])
def test_B6_context_is_kept_in_steps_that_do_not_draft(layout_name: str, lag: int) -> None:
    """Drafting switched off and on again by turns: the executor checks the whole context before each draft."""

    class OnAndOff:
        def decide(self, candidates: DraftingCandidates, costs: object) -> DraftingDecision:
            return DraftingDecision(candidates.most if candidates.step // 3 % 2 else 0)

    rig = make_rig(
        "half",
        layout_name=layout_name,
        num_speculative_tokens=4,
        scheduler_parts={"drafting": OnAndOff()},
        max_num_seqs=3,
    )
    requests = lambda: [make_request(f"r{i}", prompt(20, i), 60) for i in range(5)]  # noqa: E731
    run = rig.drive(requests(), lag=lag)
    assert run.num_verified > 20
    assert run.token_ids == plain_tokens(requests())
    assert all(request.status is not RequestStatus.RUNNING for request in rig.scheduler.running)
