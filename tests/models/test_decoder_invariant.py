"""The batch-invariant mode (design 5): the same tokens give the same bits, however the batch looks."""

from __future__ import annotations

import pytest
import torch
from models.decoder_helpers import Sequences, random_tokens, tiny_decoder

from slipstream.models.decoder import Decoder

SHAPES = ("llama", "llama_untied", "qwen2", "qwen3")
TOKENS = random_tokens(150, seed=11)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=SHAPES)
def decoder(request: pytest.FixtureRequest, dtype: torch.dtype) -> Decoder:
    return tiny_decoder(request.param, invariant=True, dtype=dtype)


@pytest.fixture(scope="module")
def whole(decoder: Decoder) -> Sequences:
    """All tokens in one pass, alone."""
    sequences = Sequences(decoder)
    sequences.step({"a": TOKENS})
    return sequences


def assert_same_bits(sequences: Sequences, whole: Sequences, name: str = "a") -> None:
    assert torch.equal(sequences.key_values(name), whole.key_values("a"))
    assert torch.equal(sequences.all_logits(name), whole.all_logits("a"))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, 17, 33, 63, 64])
def test_chunks(decoder: Decoder, whole: Sequences, chunk: int) -> None:
    sequences = Sequences(decoder)
    for start in range(0, len(TOKENS), chunk):
        sequences.step({"a": TOKENS[start : start + chunk]})
    assert_same_bits(sequences, whole)


@pytest.mark.parametrize("block_size", [4, 64])
def test_block_sizes(decoder: Decoder, whole: Sequences, block_size: int) -> None:
    sequences = Sequences(decoder, block_size=block_size, num_blocks=256)
    for start in range(0, len(TOKENS), 41):
        sequences.step({"a": TOKENS[start : start + 41]})
    assert_same_bits(sequences, whole)


def test_company(decoder: Decoder, whole: Sequences) -> None:
    """Prompts, decode rows and another copy of the text before, between and after, a different mix each step."""
    sequences = Sequences(decoder, block_size=4, num_blocks=512)
    sizes = [5, 1, 29, 64, 2, 17, 31, 1]
    assert sum(sizes) == len(TOKENS)
    start = 0
    for step, size in enumerate(sizes):
        rows = {
            "x": random_tokens(1 + 7 * step % 20, seed=step),
            "a": TOKENS[start : start + size],
            f"new{step}": random_tokens(3 + step * 5, seed=100 + step),
            "b": TOKENS[start : start + size],
        }
        if step % 3 == 1:
            del rows["x"]
        sequences.step(rows)
        start += size
    assert_same_bits(sequences, whole, "a")
    assert_same_bits(sequences, whole, "b")


@pytest.mark.parametrize("num_right", [0, 2, 5])
def test_verify_rows_right_or_wrong(decoder: Decoder, whole: Sequences, num_right: int) -> None:
    """Each step runs five drafts behind the anchor, of which the first `num_right` are kept."""
    sequences = Sequences(decoder)
    sequences.step({"a": TOKENS[:90]})
    step = 0
    while sequences.computed["a"] < len(TOKENS):
        start = sequences.computed["a"]
        rows = TOKENS[start : start + 6]
        kept = min(num_right + 1, len(rows))
        wrong = random_tokens(len(rows) - kept, seed=step)
        sequences.step({"a": [*rows[:kept], *wrong], f"other{step % 3}": [step]}, keep={"a": kept})
        step += 1
    assert_same_bits(sequences, whole)


def test_the_fast_mode_is_not_invariant_here() -> None:
    """Shows that the checks above can fail: PyTorch's own blocking changes a row's bits with the row count."""
    decoder = tiny_decoder("llama")
    whole, chunked = Sequences(decoder), Sequences(decoder)
    whole.step({"a": TOKENS})
    for token in TOKENS:
        chunked.step({"a": [token]})
    assert not torch.equal(whole.all_logits("a"), chunked.all_logits("a"))
