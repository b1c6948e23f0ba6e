"""Reported faults, kind E: length limits. The ids are those of tests/cases.toml.

E5 and E7 are in tests/engine/test_engine.py, E9 (sliding windows are refused) in tests/models/test_hf_loading.py.
"""

from __future__ import annotations

import pytest
from case_rig import DRAFTERS, EOS, VOCAB, NotingDrafter, counting, make_drafter, make_rig, plain_tokens, prompt
from driver import make_request

from slipstream.request import FinishReason, RequestError
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftBlock
from slipstream.simulation.drafters import predict_with
from slipstream.simulation.scripted import HashedLogits, sample_greedily

EACH_LAYOUT = pytest.mark.parametrize("layout_name", LAYOUTS)
LAGS = pytest.mark.parametrize("lag", [0, 1])


def noting(kind: str, layout_name: str, logits, most: int) -> NotingDrafter:
    drafter = make_drafter(kind, layout_name, logits, sample_greedily, most)
    assert drafter is not None
    return NotingDrafter(drafter)


@EACH_LAYOUT
@LAGS
def test_E1_a_drafter_with_a_shorter_context_stops_drafting(layout_name: str, lag: int) -> None:
    logits, most, limit = HashedLogits(VOCAB), 5, 64
    drafter = noting("half", layout_name, logits, most)
    rig = make_rig(
        drafter, logits=logits, layout_name=layout_name, num_speculative_tokens=most, max_model_len=256,
        draft_max_model_len=limit, draft_capacity=512,
    )  # fmt: skip
    requests = lambda: [make_request("a", prompt(60), 100), make_request("b", prompt(10, 1), 45)]  # noqa: E731
    run = rig.drive(requests(), lag=lag)
    assert run.token_ids == plain_tokens(requests(), logits=logits)
    assert len(run.token_ids["a"]) == 100
    for calls in drafter.asked.values():
        for known, wanted in calls:
            assert len(known) - 1 + wanted < limit, "a draft past the drafter's last position"
    assert not drafter.asked.get("a"), "position 60 and 5 drafts reach past 63"
    asked = len(drafter.asked["b"])
    steps = sum(e.request_id == "b" and e.emits for plan in run.plans for e in plan.requests)
    assert asked >= steps - 4 - 2 * lag, "b drafts all the time, but for its last steps"


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("start", [50, 55, 58, 59, 62, 63, 64])
def test_E1_drafting_ends_exactly_at_the_drafters_limit(layout_name: str, lag: int, start: int) -> None:
    logits = HashedLogits(VOCAB)
    drafter = noting("wrong", layout_name, logits, 4)
    rig = make_rig(
        drafter, logits=logits, layout_name=layout_name, num_speculative_tokens=4, draft_max_model_len=64,
        draft_capacity=512,
    )  # fmt: skip
    run = rig.drive([make_request("r", prompt(start), 30)], lag=lag)
    ends = [len(known) - 1 + wanted for known, wanted in drafter.asked.get("r", [])]
    assert all(end < 64 for end in ends)
    if start + 4 < 64 and lag == 0:
        assert ends and max(ends) >= 64 - 1 - 5, "as long as a whole block fits, it drafts"
    assert len(run.token_ids["r"]) == 30


@LAGS
@pytest.mark.parametrize("layout_name", ["ngram", "dspark"])
def test_E2_prompts_over_the_limit_are_refused_and_name_it(lag: int, layout_name: str) -> None:
    limit, most = 96, 5
    rig = make_rig("oracle", layout_name=layout_name, num_speculative_tokens=most, max_model_len=limit)
    for length in range(limit, limit + most + 4):
        with pytest.raises(RequestError) as caught:
            rig.scheduler.add_request(make_request("r", prompt(length)))
        message = caught.value.message
        assert str(length) in message and f"max_model_len is {limit}" in message and str(limit - 1) in message
        assert caught.value.code == "context_length_exceeded" and caught.value.parameter == "prompt"
    run = rig.drive([make_request("longest", prompt(limit - 1), None), make_request("ok", prompt(5), 9)], lag=lag)
    assert len(run.token_ids["longest"]) == 1 and len(run.token_ids["ok"]) == 9


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("most", [7, 15])
@pytest.mark.parametrize("kind", ["oracle", "half", "wrong"])
def test_E3_no_row_past_the_last_position(layout_name: str, lag: int, most: int, kind: str) -> None:
    logits = HashedLogits(VOCAB)
    for length, tokens in ((120, 8), (126, 2), (127, 1)):
        drafter = noting(kind, layout_name, logits, most)
        rig = make_rig(
            drafter, logits=logits, layout_name=layout_name, num_speculative_tokens=most, max_model_len=128,
            max_num_batched_tokens=256, draft_capacity=1024,
        )  # fmt: skip
        # The executor raises on any row at a position of max_model_len or more; the driver checks the plans.
        run = rig.drive([make_request("r", prompt(length), 100)], lag=lag)
        assert len(run.token_ids["r"]) == tokens
        assert run.finish_reasons["r"] is FinishReason.LENGTH
        assert run.token_ids == plain_tokens([make_request("r", prompt(length), tokens)], logits=logits)
        if lag == 0:
            last = max(e.num_computed_tokens + e.num_target_rows for p in run.plans for e in p.requests) - 1
            assert last <= 126, "the last token needs no row"
        if tokens < 3:
            assert not drafter.asked and run.num_verified == 0
        handles = [e.draft_handle for plan in run.plans for e in plan.requests if e.num_verify_rows]
        assert len(set(handles)) == len(handles), "no drafts are offered twice"
        assert all(e.draft_handle in (-1, plan.step - 1) for plan in run.plans for e in plan.requests)


class Overeager(NotingDrafter):
    """Gives 16 drafts whatever it is asked for."""

    def propose(self, requests):
        asked = [request.num_draft_tokens for request in requests]
        for request in requests:
            request.num_draft_tokens = 16
        blocks = super().propose(requests)
        for request, count in zip(requests, asked, strict=True):
            request.num_draft_tokens = count
        return blocks


@EACH_LAYOUT
@LAGS
def test_E4_more_drafts_than_the_context_holds(layout_name: str, lag: int) -> None:
    logits = HashedLogits(VOCAB)
    inner = make_drafter("oracle", layout_name, logits, sample_greedily, 16)
    assert inner is not None
    rig = make_rig(
        Overeager(inner), logits=logits, layout_name=layout_name, num_speculative_tokens=16, max_model_len=64,
        max_num_batched_tokens=128, draft_capacity=1024,
    )  # fmt: skip
    run = rig.drive([make_request("r", prompt(56), None)], lag=lag)
    assert len(run.token_ids["r"]) == 8 and run.num_verified > 0
    assert all(len(drafts) == 16 for drafts in rig.drafter.drafts["r"]), "the drafter went too far"


@LAGS
@pytest.mark.parametrize("max_tokens", range(1, 21))
def test_E6_the_limit_counts_tokens_not_steps(lag: int, max_tokens: int) -> None:
    for kind in DRAFTERS:
        for layout_name in ("ngram", "dflash"):
            rig = make_rig(kind, layout_name=layout_name, num_speculative_tokens=7, draft_capacity=512, logits=counting)
            run = rig.drive([make_request("r", prompt(6), max_tokens)], lag=lag)
            assert len(run.token_ids["r"]) == max_tokens
            assert run.finish_reasons["r"] is FinishReason.LENGTH
            assert rig.scheduler.statistics.num_output_tokens == max_tokens
            if kind == "oracle" and max_tokens > 2:
                assert run.num_verified > 0 and len(run.plans) <= 1 + lag + -(-max_tokens // 8) + 1


@LAGS
@pytest.mark.parametrize("kind", [None, *DRAFTERS])
def test_E8_the_first_token_is_kept_and_judged(lag: int, kind: str | None) -> None:
    first = plain_tokens([make_request("r", prompt(9), 5)])["r"]
    rig = make_rig(kind, num_speculative_tokens=4 if kind else 0, layout_name="dspark")
    run = rig.drive([make_request("stops", prompt(9), 5, eos=(first[0],)), make_request("goes", prompt(9), 5)], lag=lag)
    assert run.token_ids == {"stops": first[:1], "goes": first}
    assert run.finish_reasons == {"stops": FinishReason.STOP, "goes": FinishReason.LENGTH}


@LAGS
def test_E10_prompt_lookup_has_no_default_context(lag: int) -> None:
    """Drafts go on to the end of a long context; only `draft_max_model_len` ends them, and it is off by default."""
    rig = make_rig("ngram", logits=counting, num_speculative_tokens=5, max_model_len=8192, num_kv_blocks=520)
    run = rig.drive([make_request("r", [2, 3, 4], None)], lag=lag)
    assert len(run.token_ids["r"]) == 8189
    late = run.outputs[-20:]
    assert sum(output.num_accepted for output in late) >= 5 * 20 - 10


def test_the_drafts_of_this_file_are_no_eos() -> None:
    """An EOS among the texts would hide a limit."""
    assert EOS not in plain_tokens([make_request("r", prompt(6), 20)], logits=counting)["r"]
    assert DraftBlock([]).token_ids == [] and predict_with(counting) is not None
