"""Reported faults of kinds M, P and V that show in plans and counters. The ids are those of tests/cases.toml."""

from __future__ import annotations

import itertools

import pytest
from case_rig import DRAFTERS, VOCAB, NotingDrafter, Preempting, make_drafter, make_rig, plain_tokens, prompt
from driver import make_request

from slipstream.config import SPECULATIVE_METHODS, SettingError, SpeculativeSettings
from slipstream.scheduler.drafting import DraftingCandidates, DraftingDecision
from slipstream.scheduler.layouts import LAYOUTS, layout_for
from slipstream.scheduler.policy import MixAtOncePolicy
from slipstream.scheduler.protocol import StepKind, StepPlan
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor, sample_greedily
from slipstream.speculation.registry import BUILDERS, open_drafter

EACH_LAYOUT = pytest.mark.parametrize("layout_name", LAYOUTS)
LAGS = pytest.mark.parametrize("lag", [0, 1])


@LAGS
@pytest.mark.parametrize("kind", [*DRAFTERS, "eos"])
def test_M2_M7_tokens_add_up_and_the_rate_stays_within_one(lag: int, kind: str) -> None:
    """Per request: its first token, the accepted drafts, and one bonus token per decoding step."""
    rig = make_rig(kind, layout_name="dspark", num_speculative_tokens=5, max_num_seqs=4, num_kv_blocks=40, block_size=4)
    Preempting(rig, lambda request, step: step in (6, 13) and request.request_id == "r1")
    run = rig.drive([make_request(f"r{i}", prompt(9, i), 20 + i, eos=(3,)) for i in range(8)], lag=lag)
    statistics = rig.scheduler.statistics
    assert 0 <= statistics.num_accepted_tokens <= statistics.num_verified_tokens <= statistics.num_admitted_tokens
    bonuses = 0
    for name in (f"r{i}" for i in range(8)):
        first, *others = [o for o in run.outputs if o.request_id == name]
        assert len(first.new_token_ids) == 1 and first.num_verified == 0
        extra = [len(o.new_token_ids) - o.num_accepted for o in others]
        # Only the last step may lack its bonus token: a stop inside its drafts cut it off.
        assert set(extra[:-1]) <= {1} and extra[-1] in (0, 1)
        bonuses += sum(extra)
        assert all(0 <= o.num_accepted <= o.num_verified for o in others)
    assert statistics.num_output_tokens == 8 + statistics.num_accepted_tokens + bonuses
    assert statistics.num_output_tokens == sum(map(len, run.token_ids.values()))
    assert statistics.num_accepted_tokens == sum(o.num_accepted for o in run.outputs)
    assert statistics.num_verified_tokens == sum(o.num_verified for o in run.outputs)
    assert sum(statistics.verified_per_position()) == statistics.num_verified_tokens


# -- P ---------------------------------------------------------------------------------------------------------------


def test_P5_every_method_goes_through_one_registry_and_one_table() -> None:
    assert set(BUILDERS) == set(SPECULATIVE_METHODS)
    for method in SPECULATIVE_METHODS:
        if method in ("chain", "auto"):
            continue  # the layout is that of what it opens: tests/speculation/test_chain.py, test_choice.py
        names = list(LAYOUTS) if method == "forced" else [None]
        for name in names:
            settings = SpeculativeSettings(method=method, layout=name, acceptance_length=2.0 if name else None)
            assert layout_for(settings) is LAYOUTS[name or method]
    for method in ("eagle3", "pard"):
        with pytest.raises(
            SettingError, match=f"{method}.*choose one of ngram, dflash, dspark, draft_model, chain, forced"
        ):
            open_drafter(SpeculativeSettings(method=method))


@EACH_LAYOUT
@LAGS
def test_P6_the_anchor_row_stands_at_the_last_committed_token(layout_name: str, lag: int) -> None:
    class Watching(ScriptedExecutor):
        def _write_rows(self, rows) -> None:
            known = rows.state.token_ids
            if not rows.scheduled.is_prefill:
                assert rows.first_position == len(known) - 1
                assert rows.token_ids[0] == known[-1]
                assert rows.token_ids[1:] == rows.draft_token_ids
            super()._write_rows(rows)

    for length in (1, 15, 16, 17, 400):
        rig = make_rig(
            "half", executor_type=Watching, layout_name=layout_name, num_speculative_tokens=4, max_model_len=1024,
            max_num_batched_tokens=512, draft_capacity=1024,
        )  # fmt: skip
        run = rig.drive([make_request("r", prompt(length), 30)], lag=lag)
        verified, accepted = run.num_verified, rig.scheduler.statistics.num_accepted_tokens
        assert accepted / verified > 0.4, "acceptance does not fall with the length of the prompt"


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("concurrency", [1, 2, 4, 8])
def test_P17_every_concurrency_finishes(layout_name: str, lag: int, concurrency: int) -> None:
    rig = make_rig("half", layout_name=layout_name, num_speculative_tokens=5, max_num_seqs=concurrency)
    requests = lambda: [make_request(f"r{i}", prompt(7, i), 15) for i in range(12)]  # noqa: E731
    run = rig.drive(requests(), lag=lag)
    assert run.token_ids == plain_tokens(requests())
    assert max(run.num_running) == concurrency
    assert all(any(o.num_verified for o in run.outputs if o.request_id == f"r{i}") for i in range(12))


# -- V ---------------------------------------------------------------------------------------------------------------


class Granting(MixAtOncePolicy):
    """Grants a fixed number of verify rows, as a cost table would."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def compose(self, candidates, costs, now):
        composition = super().compose(candidates, costs, now)
        composition.num_verify_rows = min(composition.num_verify_rows, self.num_rows)
        return composition


def test_V2_a_partial_budget_is_what_runs() -> None:
    rig = make_rig(
        "half", layout_name="dspark", num_speculative_tokens=6, max_num_seqs=4, scheduler_parts={"policy": Granting(10)}
    )
    run = rig.drive([make_request(f"r{i}", prompt(5, i), 80) for i in range(4)])
    full = [
        (plan, result)
        for plan, result in zip(run.plans, run.results, strict=True)
        if plan.kind is StepKind.DECODE and "14 of 24 drafts yielded" in plan.reason
    ]
    assert len(full) > 10
    for plan, result in full:
        assert plan.num_verify_rows == 10 and plan.num_target_rows == 14
        assert result.num_target_rows == 14 and sum(r.num_verified for r in result.results) == 10


@LAGS
def test_V3_acceptance_holds_while_the_batch_drains(lag: int) -> None:
    rig = make_rig(
        "half", layout_name="dspark", num_speculative_tokens=4, max_num_seqs=256, max_num_batched_tokens=2048,
        num_kv_blocks=2048,
    )  # fmt: skip
    run = rig.drive([make_request(f"r{i}", prompt(4, i), 30 + i // 4) for i in range(256)], lag=lag)
    assert len(run.finish_reasons) == 256

    def rate(names: range) -> float:
        outputs = [o for o in run.outputs if int(o.request_id[1:]) in names]
        return sum(o.num_accepted for o in outputs) / sum(o.num_verified for o in outputs)

    assert abs(rate(range(246, 256)) - rate(range(10))) < 0.1


class ByConcurrency:
    """K falls as more requests run, and is another in nearly every step."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def decide(self, candidates: DraftingCandidates, costs: object) -> DraftingDecision:
        count = min(candidates.most, (7, 5, 3, 0, 1, 6)[candidates.step % 6])
        self.seen.add(count)
        return DraftingDecision(count)


@EACH_LAYOUT
@LAGS
def test_V5_K_may_change_from_step_to_step(layout_name: str, lag: int) -> None:
    policy = ByConcurrency()
    rig = make_rig(
        "half" if lag else "ragged", layout_name=layout_name, num_speculative_tokens=7, max_num_seqs=20, block_size=4,
        max_num_batched_tokens=160, scheduler_parts={"drafting": policy},
    )  # fmt: skip
    arrivals = {0: 4, 6: 4, 9: 12, 30: 1}
    numbers = itertools.count()

    def arrive(step: int) -> None:
        for _ in range(arrivals.get(step, 0)):
            index = next(numbers)
            rig.scheduler.add_request(make_request(f"r{index}", prompt(6, index), 60))

    rig.scheduler.add_request(make_request("r99", prompt(6, 99), 150))
    run = rig.drive(before_step=arrive, lag=lag)
    assert policy.seen >= {0, 1, 3, 5, 6, 7} and max(run.num_running) == 20
    names = {int(name[1:]) for name in run.token_ids}
    assert names == {*range(21), 99}
    expected = [make_request(f"r{i}", prompt(6, i), 150 if i == 99 else 60) for i in sorted(names)]
    assert run.token_ids == plain_tokens(expected)


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("most", [2, 8])
def test_V11_draft_rows_run_are_draft_rows_asked(layout_name: str, lag: int, most: int) -> None:
    logits, layout = HashedLogits(VOCAB), LAYOUTS[layout_name]
    inner = make_drafter("half", layout_name, logits, sample_greedily, most)
    assert inner is not None
    drafter = NotingDrafter(inner)
    rig = make_rig(drafter, logits=logits, layout_name=layout_name, num_speculative_tokens=most, max_num_seqs=3)
    run = rig.drive([make_request(f"r{i}", prompt(9, i), 40) for i in range(3)], lag=lag)
    assert {wanted for calls in drafter.asked.values() for _, wanted in calls} <= set(range(1, most + 1))

    def asked(plan: StepPlan) -> int:
        return sum(layout.draft_query_rows(e.num_target_rows, e.num_draft_tokens) for e in plan.requests)

    for plan, result in zip(run.plans, run.results, strict=True):
        assert plan.num_draft_query_rows == asked(plan)
        assert result.num_draft_query_rows <= plan.num_draft_query_rows
        reduced = any(e.num_computed_tokens + e.num_target_rows + most + 1 >= 49 - 8 for e in plan.requests)
        if lag == 0 and not reduced:
            assert result.num_draft_query_rows == plan.num_draft_query_rows
