"""The full factorial of issue and design 5 on the scripted executor: speculation never changes the text.

One pytest row per (K, drafter); inside it every chunk size, block size, cache setting, pool, batch size, lag and
temperature. The reference of each request is one plain run on its own: no speculation, no batching, no chunking.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from driver import drive, make_config, make_request

from slipstream.request import Request
from slipstream.sampling.sampler import Sampler
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import Drafter, DraftRequest
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation import drafters
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor
from slipstream.speculation.ngram import NgramDrafter

VOCAB = 12
EOS = 11
MAX_MODEL_LEN = 64
OUTPUT_TOKENS = 9
LOGITS = HashedLogits(VOCAB, seed=11, window=2, scale=2.0)
SAMPLER = Sampler(VOCAB)
BATCH_SIZES = (1, 5, 16)
CHUNKS = (1, 7, 64)
BLOCK_SIZES = (4, 16, 64)
LAYOUT_OF = {"oracle": "dspark", "wrong": "dflash", "half": "draft_model", "eos": "pard", "ragged": "p_eagle"}


def sample(logits, rows):
    return SAMPLER.sample(torch.from_numpy(logits), rows)


def prompts() -> list[list[int]]:
    """Sixteen prompts; half share a prefix. The even ones hold every token, so that n-grams are always found."""
    shared = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
    everything = [0, 10, 1, 9, 2, 8, 3, 7, 4, 6, 5]
    result = []
    for index in range(16):
        tail = [(index * 7 + j * j) % (VOCAB - 1) for j in range(1 + index % 5)]
        result.append(shared + tail if index % 2 else tail + everything[index % 3 :] + everything[: index % 3])
    return result


def request(index: int, temperature: float) -> Request:
    return make_request(
        f"r{index}", prompts()[index], OUTPUT_TOKENS, eos=(EOS,), temperature=temperature, seed=index, choice_index=0
    )


@cache
def reference(temperature: float) -> dict[str, list[int]]:
    """Each request alone: K = 0, one big chunk, no cache."""
    texts = {}
    for index in range(16):
        config = make_config(
            max_num_seqs=1, enable_prefix_caching=False, num_kv_blocks=8, max_model_len=MAX_MODEL_LEN
        )
        executor = ScriptedExecutor(LOGITS, num_kv_blocks=8, block_size=16, sampler=sample)
        texts.update(drive(Scheduler(config), executor, [request(index, temperature)]).token_ids)
    return texts


def make_drafter(kind: str, num_speculative_tokens: int, temperature: float) -> Drafter:
    if kind == "ngram":
        return NgramDrafter(prompt_lookup_min=1, prompt_lookup_max=3)
    layout = LAYOUTS[LAYOUT_OF[kind]]
    if kind == "eos":
        return drafters.ConstantDrafter(layout, EOS)
    texts = reference(temperature)

    def predict(draft_request: DraftRequest, prefix: list[int]) -> int:
        text = texts[draft_request.request_id]
        position = len(prefix) - draft_request.num_prompt_tokens
        return text[position] if position < len(text) else 0

    if kind == "ragged":
        return drafters.ragged(layout, predict, VOCAB, num_speculative_tokens)
    if kind == "half":
        return drafters.half(layout, predict, VOCAB, max(num_speculative_tokens // 2, 1))
    return drafters.oracle(layout, predict, VOCAB) if kind == "oracle" else drafters.wrong(layout, predict, VOCAB)


def run_grid(kind: str, num_speculative_tokens: int) -> tuple[int, int]:
    """Every other factor; gives (runs, verified drafts) and fails at the first differing text."""
    num_runs = num_verified = 0
    grid = itertools.product((0.0, 1.0), BATCH_SIZES, CHUNKS, BLOCK_SIZES, (True, False), (False, True), (0, 1))
    for temperature, batch, chunk, block_size, caching, preempt, lag in grid:
        row = (kind, num_speculative_tokens, temperature, batch, chunk, block_size, caching, preempt, lag)
        # A pool for one request and a half makes the others give way, again and again.
        num_kv_blocks = (MAX_MODEL_LEN * 3 // 2) // block_size if preempt else 16 * MAX_MODEL_LEN // block_size
        drafter = make_drafter(kind, num_speculative_tokens, temperature) if num_speculative_tokens else None
        config = make_config(
            max_num_batched_tokens=64,
            max_num_seqs=batch,
            max_model_len=MAX_MODEL_LEN,
            block_size=block_size,
            num_kv_blocks=num_kv_blocks,
            layout_name=drafter.layout.method if drafter else "ngram",
            num_speculative_tokens=num_speculative_tokens,
            enable_prefix_caching=caching,
            long_prefill_token_threshold=chunk,
        )
        executor = ScriptedExecutor(
            LOGITS,
            num_kv_blocks=num_kv_blocks,
            block_size=block_size,
            drafter=drafter,
            sampler=sample,
            max_model_len=MAX_MODEL_LEN,
        )
        scheduler = Scheduler(config)
        run = drive(scheduler, executor, [request(index, temperature) for index in range(batch)], lag=lag)
        expected = {name: text for name, text in reference(temperature).items() if name in run.token_ids}
        assert run.token_ids == expected, row
        assert len(run.token_ids) == batch
        assert scheduler.kv.pool.num_used == 0, row
        if num_speculative_tokens:
            assert run.num_verified > 0, f"nothing was verified in {row}"
        num_runs += 1
        num_verified += run.num_verified
    return num_runs, num_verified


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*LAYOUT_OF, "ngram"])
@pytest.mark.parametrize("num_speculative_tokens", range(1, 9))
def test_speculation_never_changes_the_text(kind: str, num_speculative_tokens: int) -> None:
    num_runs, num_verified = run_grid(kind, num_speculative_tokens)
    print(f"\n{kind} K={num_speculative_tokens}: {num_runs} runs, {num_verified} drafts verified, 0 ids differ")


def test_without_speculation_batching_never_changes_the_text() -> None:
    num_runs, num_verified = run_grid("none", 0)
    assert num_verified == 0
    assert num_runs == 2 * 3 * 3 * 3 * 2 * 2 * 2


def test_the_texts_are_worth_comparing() -> None:
    """Greedy and sampled texts differ, and some end by EOS before their limit."""
    greedy, sampled = reference(0.0), reference(1.0)
    assert greedy != sampled
    assert any(len(text) < OUTPUT_TOKENS for text in (greedy | sampled).values())
    assert len({tuple(text) for text in greedy.values()}) > 12
