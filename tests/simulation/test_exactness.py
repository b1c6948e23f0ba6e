"""Design 5 on the scripted executor: the full factorial, 0 differing ids."""

from __future__ import annotations

import pytest
import torch
from factorial import ALL_K, DRAFTERS, FEW, Factorial, Levels, prompts_of_few_letters

from slipstream.sampling.sampler import Sampler
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor

VOCAB = 12
EOS = 11
MAX_MODEL_LEN = 64
LOGITS = HashedLogits(VOCAB, seed=11, window=2, scale=2.0)
SAMPLER = Sampler(VOCAB)


def make_executor(num_kv_blocks, block_size, drafter) -> ScriptedExecutor:
    return ScriptedExecutor(
        LOGITS,
        num_kv_blocks=num_kv_blocks,
        block_size=block_size,
        drafter=drafter,
        sampler=lambda logits, rows: SAMPLER.sample(torch.from_numpy(logits), rows),
        max_model_len=MAX_MODEL_LEN,
    )


FACTORIAL = Factorial(make_executor, VOCAB, EOS, prompts_of_few_letters(EOS), MAX_MODEL_LEN)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("num_speculative_tokens", ALL_K)
def test_speculation_never_changes_the_text(kind: str, num_speculative_tokens: int) -> None:
    print("\n" + FACTORIAL.run(kind, num_speculative_tokens, Levels()))


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 8])
def test_speculation_never_changes_the_text_in_short(kind: str, num_speculative_tokens: int) -> None:
    print("\n" + FACTORIAL.run(kind, num_speculative_tokens, FEW))


@pytest.mark.slow
def test_without_speculation_batching_never_changes_the_text() -> None:
    print("\n" + FACTORIAL.run("none", 0, Levels()))


def test_the_texts_are_worth_comparing() -> None:
    """Greedy and sampled texts differ, and some end by EOS before their limit."""
    greedy, sampled = FACTORIAL.reference(0.0), FACTORIAL.reference(1.0)
    assert greedy != sampled
    lengths = {len(text) for text in (*greedy.values(), *sampled.values())}
    assert min(lengths) < FACTORIAL.output_tokens == max(lengths)
    assert len({tuple(text) for text in greedy.values()}) > 8
