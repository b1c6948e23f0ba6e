"""Reported faults, kind D: KV blocks and prefix cache. The ids are those of tests/cases.toml.

D19, n-gram tables between requests, is in tests/speculation/test_ngram.py.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from random import Random

import numpy as np
import pytest
from case_rig import (
    DRAFTERS,
    EOS,
    VOCAB,
    ContextExecutor,
    NotingDrafter,
    Preempting,
    Rig,
    make_drafter,
    make_rig,
    plain_tokens,
    prompt,
)
from driver import make_request

import slipstream
from slipstream.kv.block_hash import extend_block_hashes
from slipstream.scheduler.layouts import LAYOUTS, LinearRows
from slipstream.simulation.drafters import predict_with
from slipstream.simulation.scripted import HashedLogits, KVGapError, sample_greedily
from slipstream.speculation.ngram import NgramDrafter

EACH_LAYOUT = pytest.mark.parametrize("layout_name", LAYOUTS)
WITH_DRAFT_KV = [name for name, layout in LAYOUTS.items() if layout.carries_target_rows or layout.has_context_rows]
LAGS = pytest.mark.parametrize("lag", [0, 1])
PACKAGE = Path(slipstream.__file__).parent


def noting_rig(layout_name: str, kind: str, most: int, **config) -> Rig:
    """A rig that keeps drafts and the drafter's context of every request."""
    logits = HashedLogits(VOCAB)
    drafter = make_drafter(kind, layout_name, logits, sample_greedily, most)
    assert drafter is not None
    return make_rig(
        NotingDrafter(drafter),
        logits=logits,
        executor_type=ContextExecutor,
        layout_name=layout_name,
        num_speculative_tokens=most,
        **config,
    )


# -- D2: drafter KV stays out of shared blocks ----------------------------------------


@EACH_LAYOUT
@LAGS
def test_D2_drafter_slots_are_the_owners_own(layout_name: str, lag: int) -> None:
    layout = LAYOUTS[layout_name]
    rig = make_rig("wrong", layout_name=layout_name, num_speculative_tokens=4, max_num_seqs=4, draft_capacity=512)
    shared = prompt(16)
    owner = make_request("owner", shared, 40)
    rig.scheduler.add_request(owner)
    plan = rig.scheduler.schedule(0.0)
    assert plan.requests[0].num_draft_tokens == 4
    assert len(owner.block_ids) == -(-(16 + layout.lookahead_slots(4)) // 16)
    if layout_name == "dflash":
        assert len(owner.block_ids) == 2, "ceil(21 / 16)"
    block = owner.block_ids[0]
    rig.scheduler.commit(plan, rig.executor.execute(plan))
    kv = [rig.executor._target_kv, rig.executor._draft_kv]
    before = [tensor[block * 16 : (block + 1) * 16].copy() for tensor in kv]
    assert before[0].tolist() == shared
    requests = lambda: [make_request(f"r{i}", shared + prompt(1 + i % 16, i), 5 + i % 9) for i in range(50)]  # noqa: E731
    run = rig.drive(requests(), lag=lag)
    assert run.num_verified > 50
    assert all(output.num_cached_tokens == 16 for output in run.outputs if output.request_id != "owner")
    for tensor, content in zip(kv, before, strict=True):
        assert tensor[block * 16 : (block + 1) * 16].tolist() == content.tolist()
    assert {name: run.token_ids[name] for name in run.token_ids if name != "owner"} == plain_tokens(requests())


@pytest.mark.parametrize("layout_name", [name for name in WITH_DRAFT_KV if LAYOUTS[name].lookahead_slots(4)])
def test_D2_missing_lookahead_blocks_are_found(layout_name: str) -> None:
    """The fixture can fail: a scheduler that forgets the lookahead makes the drafter write where it must not."""
    rig = make_rig("wrong", layout_name=layout_name, num_speculative_tokens=4, block_size=1, max_num_seqs=2)
    costs = rig.scheduler._draft_costs
    rig.scheduler._draft_costs = dataclasses.replace(costs, lookahead_slots=(0,) * len(costs.lookahead_slots))
    with pytest.raises(KVGapError):
        rig.drive([make_request(f"r{i}", prompt(16, i), 20) for i in range(2)])


# -- D3, D4, D18, D20: a drafter vetoes no cache hit ----------------------------------------


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("kind", [None, "half"])
def test_D3_a_repeated_prompt_is_cached_with_and_without_drafter(layout_name: str, lag: int, kind: str | None) -> None:
    rig = make_rig(
        kind, layout_name=layout_name, num_speculative_tokens=5 if kind else 0, max_model_len=2048,
        max_num_batched_tokens=128, draft_capacity=1024,
    )  # fmt: skip
    first = rig.drive([make_request("a", prompt(1025), 8)], lag=lag)
    second = rig.drive([make_request("b", prompt(1025), 8)], lag=lag)
    assert first.outputs[0].num_cached_tokens == 0
    assert second.outputs[0].num_cached_tokens == 1024
    assert second.token_ids["b"] == first.token_ids["a"]
    steps = [next(i for i, r in enumerate(run.results) if r.results[0].token_ids) + 1 for run in (first, second)]
    assert steps == [9, 1], "steps to the first token"


@EACH_LAYOUT
@LAGS
def test_D4_every_turn_of_a_chat_hits_what_came_before(layout_name: str, lag: int) -> None:
    rig = make_rig("half", layout_name=layout_name, num_speculative_tokens=5, max_model_len=1024, draft_capacity=512)
    text = prompt(37)
    known = 0
    for turn in range(5):
        run = rig.drive([make_request(f"turn{turn}", text, 23)], lag=lag)
        cached = run.outputs[0].num_cached_tokens
        assert cached >= known // 16 * 16 - 16
        assert turn == 0 or cached > 0
        known = len(text) + 23
        text = text + run.token_ids[f"turn{turn}"] + prompt(11, 100 + turn)


@pytest.mark.parametrize("layout_name", ["dflash", "dspark", "eagle3"])
def test_D18_long_prompts_of_many_sessions_hit_in_the_second_round(layout_name: str) -> None:
    rig = make_rig("half", layout_name=layout_name, num_speculative_tokens=5, max_model_len=512, draft_capacity=512)
    rounds = [rig.drive([make_request(f"{n}{i}", prompt(256, i), 4) for i in range(8)]) for n in ("a", "b")]
    hits = {output.request_id: output.num_cached_tokens for output in rounds[1].outputs}
    assert len(hits) == 8 and set(hits.values()) == {240}


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("kind", ["oracle", "half", "ragged"])
def test_D20_drafting_goes_on_after_a_cache_hit(layout_name: str, lag: int, kind: str) -> None:
    rig = make_rig(kind, layout_name=layout_name, num_speculative_tokens=5, draft_capacity=512)
    verified = [rig.drive([make_request(name, prompt(70), 40)], lag=lag).num_verified for name in "ab"]
    assert verified[0] > 0 and verified[1] >= 0.9 * verified[0]


# -- D5, D7: what is cached is what was committed ----------------------------------------


def cached_hashes(rig: Rig) -> set[bytes]:
    return set(rig.pool._block_of)


def chain(tokens: list[int], block_size: int) -> list[bytes]:
    hashes: list[bytes] = []
    extend_block_hashes(hashes, tokens, block_size, "", len(tokens))
    return hashes


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("stop", ["length", "eos"])
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_D5_nothing_past_the_stop_is_cached(layout_name: str, lag: int, stop: str, max_tokens: int) -> None:
    for length in range(12, 17):
        text = prompt(length)
        answer = plain_tokens([make_request("r", text, max_tokens)])["r"]
        request = make_request("r", text, max_tokens)
        if stop == "eos":
            answer = answer[: answer.index(answer[-1]) + 1]
            request = make_request("r", text, 60, eos=(answer[-1],))
        rig = make_rig(
            "oracle", block_size=4, layout_name=layout_name, num_speculative_tokens=7, draft_capacity=512,
            max_num_batched_tokens=64,
        )  # fmt: skip
        run = rig.drive([request], lag=lag)
        assert run.token_ids["r"] == answer
        assert run.num_verified > 0 or len(answer) <= 2
        computed = length + len(answer) - 1
        # An EOS that was an accepted draft has run as a row, so its KV is there; any other last token has not.
        num_cached = len(cached_hashes(rig))
        assert num_cached in {computed // 4, (computed + (stop == "eos")) // 4}
        assert cached_hashes(rig) == set(chain(text + answer, 4)[:num_cached]), "tokens past the end"
        turn = text + answer + prompt(9, 5)
        second = rig.drive([make_request("next", turn, 4)], lag=lag)
        assert second.outputs[0].num_cached_tokens == num_cached * 4
        assert second.token_ids == plain_tokens([make_request("next", turn, 4)])


@EACH_LAYOUT
@LAGS
def test_D7_trimmed_verification_caches_every_committed_block(layout_name: str, lag: int) -> None:
    rig = make_rig(
        "oracle", block_size=4, layout_name=layout_name, num_speculative_tokens=8, max_num_batched_tokens=3,
        max_num_seqs=1, draft_capacity=64,
    )  # fmt: skip
    run = rig.drive([make_request("r", prompt(10), 64)], lag=lag)
    verified = [e.num_verify_rows for plan in run.plans for e in plan.requests if not e.is_prefill]
    assert max(verified) == 2 and run.num_verified > 30
    assert cached_hashes(rig) == set(chain(prompt(10) + run.token_ids["r"], 4)[: 74 // 4])


# -- D6, D16: the drafter's context after cache hits ----------------------------------------


@pytest.mark.parametrize("layout_name", WITH_DRAFT_KV)
@LAGS
def test_D6_equal_prompts_in_a_batch_get_equal_drafts(layout_name: str, lag: int) -> None:
    texts = {"a0": 0, "b": 1, "a1": 0, "c": 2, "a2": 0}
    requests = lambda: [make_request(name, prompt(37, seed), 24) for name, seed in texts.items()]  # noqa: E731
    alone = noting_rig(layout_name, "half", 4, enable_prefix_caching=False, max_num_seqs=1)
    alone.drive([make_request("a", prompt(37), 24)])
    rig = noting_rig(layout_name, "half", 4, max_num_batched_tokens=200, max_num_seqs=5)
    rig.drive([make_request("earlier", prompt(37), 3)], lag=lag)
    run = rig.drive(requests(), lag=lag)
    assert {output.num_cached_tokens for output in run.outputs if output.request_id[0] == "a"} == {32}
    assert alone.drafter.drafts["a"]
    for name in ("a0", "a1", "a2"):
        assert rig.executor.contexts[name][0] == alone.executor.contexts["a"][0] == prompt(37)
        if lag == 0:
            assert rig.executor.contexts[name] == alone.executor.contexts["a"]
            assert rig.drafter.drafts[name] == alone.drafter.drafts["a"]
    assert run.token_ids == plain_tokens(requests())


@pytest.mark.parametrize("layout_name", WITH_DRAFT_KV)
@LAGS
def test_D16_context_after_a_hit_equals_a_cold_run(layout_name: str, lag: int) -> None:
    shared = prompt(32, 50)
    y = shared + prompt(13, 51)
    cold = noting_rig(layout_name, "half", 4, max_num_seqs=1)
    cold.drive([make_request("y", y, 20)], lag=lag)
    rig = noting_rig(layout_name, "half", 4, max_num_seqs=1)
    third, x = make_request("third", shared + prompt(5, 52), 9), make_request("x", prompt(61, 53), 9)
    run = rig.drive([third, x, make_request("y", y, 20)], lag=lag)
    assert next(output.num_cached_tokens for output in run.outputs if output.request_id == "y") == 32
    assert len(rig.executor.contexts["y"][0]) == len(y)
    assert rig.executor.contexts["y"] == cold.executor.contexts["y"]
    assert rig.drafter.drafts["y"] == cold.drafter.drafts["y"]


# -- D8, D9: one rule for lookahead ----------------------------------------


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("prompt_tokens", [15, 16, 17, 32])
def test_D8_lookahead_blocks_never_count_as_computed(layout_name: str, lag: int, prompt_tokens: int) -> None:
    """KV is given up and restored by recomputing here; what is kept for it are the computed blocks, no more."""
    rig = make_rig("half", layout_name=layout_name, num_speculative_tokens=4, max_num_seqs=1, draft_capacity=512)
    request = make_request("r", prompt(prompt_tokens), 40)
    kept: list[int] = []

    def once(victim, step: int) -> bool:
        if not kept and victim.num_output_tokens >= 1:
            kept.append(victim.num_computed_tokens)
            assert victim.num_hashed_blocks == victim.num_computed_tokens // 16
            return True
        return False

    Preempting(rig, once)
    run = rig.drive([request], lag=lag)
    resumed = [e for plan in run.plans[1:] for e in plan.requests if e.is_prefill]
    assert resumed[0].num_computed_tokens == kept[0] // 16 * 16
    assert len(resumed[0].new_block_ids) >= kept[0] // 16
    assert run.token_ids["r"] == plain_tokens([make_request("r", prompt(prompt_tokens), 40)])["r"]


def test_D9_lookahead_is_asked_of_the_layout_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rule in the layout changes blocks in scheduler and executor alike."""
    blocks = {}
    for slots in (LinearRows(1, 1), LinearRows(3, 2)):
        monkeypatch.setitem(LAYOUTS, "dflash", dataclasses.replace(LAYOUTS["dflash"], lookahead=slots))
        rig = make_rig("half", layout_name="dflash", num_speculative_tokens=5, block_size=1, max_num_seqs=1)
        request = make_request("r", prompt(20), 30)
        rig.scheduler.add_request(request)
        plan = rig.scheduler.schedule(0.0)
        blocks[slots(5)] = len(request.block_ids)
        rig.executor.execute(plan)
        ahead = rig.executor._draft_kv[request.block_ids[20:]]
        assert len(ahead) == slots(5) and set(ahead.tolist()) == {-2}, "the drafter wrote exactly those slots"
    assert blocks == {6: 26, 17: 37}


def test_D9_no_second_copy_of_the_rule() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "lookahead" in path.read_text(encoding="utf-8")
    }
    assert "scheduler/layouts.py" in users and "scheduler/step_builder.py" in users
    for name in users - {"scheduler/layouts.py"}:
        tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
        defined = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and "lookahead" in n.name]
        assert not defined, f"{name} defines {defined}; layouts.py is the place for that"


# -- D12 to D15: nothing leaks ----------------------------------------


@pytest.mark.parametrize(("lag", "layout_name"), [(0, "ngram"), (0, "dspark"), (1, "dflash"), (1, "draft_model")])
def test_D12_a_thousand_requests_leave_every_block_free(lag: int, layout_name: str) -> None:
    rig = make_rig(
        "half", layout_name=layout_name, num_speculative_tokens=7, num_kv_blocks=64, enable_prefix_caching=False,
        max_num_seqs=16, max_num_batched_tokens=128,
    )  # fmt: skip
    random = Random(2)
    for hundred in range(10):
        run = rig.drive(
            [make_request(f"{hundred}.{i}", prompt(random.randrange(1, 40), i), 20) for i in range(100)], lag=lag
        )
        assert len(run.finish_reasons) == 100
        assert rig.pool.num_free == 64 and rig.pool.num_cached == 0
        assert len(rig.executor.state.requests) <= 16, "those that ended last are released with the next plan"


@EACH_LAYOUT
@LAGS
@pytest.mark.parametrize("kind", DRAFTERS)
def test_D13_one_request_leaves_nothing(layout_name: str, lag: int, kind: str) -> None:
    rig = make_rig(kind, layout_name=layout_name, num_speculative_tokens=4, num_kv_blocks=32, draft_capacity=512)
    rig.drive([make_request("r", prompt(10), 10)], lag=lag)
    assert rig.pool.num_free == rig.pool.num_blocks == 32
    assert set(rig.pool._references) == {0}


@pytest.mark.slow
@LAGS
@pytest.mark.parametrize("layout_name", ["ngram", "dspark"])
def test_D14_accounting_holds_over_a_long_run(lag: int, layout_name: str) -> None:
    """Pages of 4 tokens under constant pressure; the driver checks used + free = total and counters at every step."""
    rig = make_rig(
        "ragged", layout_name=layout_name, num_speculative_tokens=5, block_size=4, num_kv_blocks=60, max_num_seqs=8,
        max_model_len=128, max_num_batched_tokens=32,
    )  # fmt: skip
    random = Random(4)
    shared = prompt(40, 99)
    live: list[str] = []

    def traffic(step: int) -> None:
        pool = rig.pool
        uncached = sum(key is None for key in pool._hash_of)
        assert pool.num_cached + uncached == pool.num_blocks == 60
        if step < 3000 and rig.scheduler.num_waiting < 4:
            name = f"r{step}"
            text = shared[: random.choice((0, 8, 17, 40))] + prompt(random.randrange(1, 30), step)
            rig.scheduler.add_request(make_request(name, text, random.randrange(1, 50), arrival_time=float(step)))
            live.append(name)
        if live and random.random() < 0.05:
            rig.scheduler.abort(live.pop(random.randrange(len(live))))

    rig.drive(lag=lag, before_step=traffic)
    assert rig.scheduler.statistics.num_preemptions > 50
    assert rig.pool.num_evictions > 500
    assert rig.pool.num_free == 60 and set(rig.pool._references) == {0}


def test_D15_no_event_waits_for_an_exact_multiple() -> None:
    """Steps of several tokens jump over multiples, so no code may test a count with `% n == 0`."""
    found = []
    for room in ("kv", "scheduler", "engine", "execution", "speculation", "server"):
        for path in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                compared = isinstance(node, ast.Compare) and isinstance(node.left, ast.BinOp)
                negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
                operand = node.left if compared else node.operand if negated else None
                if isinstance(operand, ast.BinOp) and isinstance(operand.op, ast.Mod):
                    found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    allowed = {"speculation", "kernels"}
    assert not [place for place in found if place.split("/")[0] not in allowed], found


# -- D17: a drafter that loses its state ----------------------------------------


@LAGS
def test_D17_an_index_dropped_in_mid_request_costs_drafts_only(lag: int) -> None:
    class Forgetful(NotingDrafter):
        def propose(self, requests):
            for request in requests:
                if 20 <= len(request.token_ids) < 40:
                    self.release(request.request_id)
            return super().propose(requests)

    logits = HashedLogits(VOCAB, window=1, scale=9.0)
    text = prompt(6) * 3
    plain = plain_tokens([make_request("r", text, 80)], logits=logits)
    rig = make_rig(Forgetful(NgramDrafter(1, 3)), logits=logits, num_speculative_tokens=4)
    assert rig.drive([make_request("r", text, 80)], lag=lag).token_ids == plain
    assert isinstance(rig.drafter, Forgetful)
    late = [drafts for (known, _), drafts in zip(rig.drafter.asked["r"], rig.drafter.drafts["r"], strict=True)]
    assert any(late[len(late) // 2 :])


@pytest.mark.parametrize("layout_name", WITH_DRAFT_KV)
@LAGS
def test_D17_drafts_stop_and_come_back(layout_name: str, lag: int) -> None:
    logits = HashedLogits(VOCAB)
    predict = predict_with(logits)

    class Interrupted(NotingDrafter):
        """Has nothing to say between 20 and 40 known tokens."""

        def propose(self, requests):
            blocks = super().propose(requests)
            for request, block in zip(requests, blocks, strict=True):
                if 20 <= len(request.token_ids) < 40:
                    block.token_ids = []
            return blocks

    inner = make_drafter("oracle", layout_name, logits, sample_greedily, 4)
    assert inner is not None and predict is not None
    rig = make_rig(Interrupted(inner), logits=logits, layout_name=layout_name, num_speculative_tokens=4)
    run = rig.drive([make_request("r", prompt(8), 80)], lag=lag)
    assert run.token_ids == plain_tokens([make_request("r", prompt(8), 80)])
    position, verified = 8, {"silent": 0, "late": 0}
    for output in run.outputs:
        if 26 <= position < 40:
            verified["silent"] += output.num_verified
        if position >= 46:
            verified["late"] += output.num_verified
        position += len(output.new_token_ids)
    assert verified["silent"] == 0 and verified["late"] > 10


def test_the_answers_here_are_no_single_token() -> None:
    """The texts compared above are worth comparing."""
    answer = plain_tokens([make_request("r", prompt(20), 60)])["r"]
    assert len(set(answer)) > 10 and EOS < VOCAB and np.ptp(answer) > 5
