"""The fast and the invariant backend against the reference, over random mixed batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from slipstream.attention.cache import PagedKVCache, kv_bytes_per_token
from slipstream.attention.invariant import InvariantAttention
from slipstream.attention.metadata import AttentionMetadata, AttentionRequest, build_metadata
from slipstream.attention.paged import PagedAttention, PagedStep
from slipstream.attention.pattern import AttentionPattern
from slipstream.attention.protocol import AttentionBackend
from slipstream.attention.reference import ReferenceAttention

CPU = torch.device("cpu")

# (first position, rows) per request: what a step may hold.
BATCHES = {
    "one decode row": [(40, 1)],
    "decode rows of one length": [(17, 1), (17, 1), (17, 1)],
    "decode rows of any length": [(0, 1), (33, 1), (200, 1), (1, 1)],
    "lengths too far apart for one group": [(900, 1), (3, 1), (800, 1), (7, 1)],
    "verify rows": [(20, 6), (50, 3), (9, 1)],
    "a whole prompt": [(0, 65)],
    "a later chunk": [(33, 40)],
    "everything": [(70, 1), (12, 4), (5, 1), (0, 30), (64, 17), (0, 3)],
}


def filled_cache(block_size: int, dtype: torch.dtype, kv_heads: int = 2, head_dim: int = 16) -> PagedKVCache:
    """Random everywhere, so that a look at a wrong slot shows."""
    cache = PagedKVCache(2, 2048 // block_size, block_size, kv_heads, head_dim, dtype=dtype, device=CPU)
    generator = torch.Generator().manual_seed(0)
    for layer in cache.layers:
        layer.copy_(torch.randn(layer.shape, generator=generator))
    return cache


def batch_of(rows: list[tuple[int, int]], cache: PagedKVCache) -> AttentionMetadata:
    """Requests with scattered block tables."""
    free = torch.randperm(cache.num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    requests, start = [], 0
    for first, count in rows:
        needed = -(-(first + count) // cache.block_size)
        requests.append(AttentionRequest(start, count, first, [free.pop() for _ in range(needed)]))
        start += count
    return build_metadata(requests, cache.block_size, cache.scratch_block, CPU)


@pytest.mark.parametrize("backend", [PagedAttention(), InvariantAttention()], ids=["paged", "invariant"])
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_reference(backend: AttentionBackend, name: str, block_size: int, dtype: torch.dtype) -> None:
    cache = filled_cache(block_size, dtype)
    metadata = batch_of(BATCHES[name], cache)
    num_rows = int(metadata.positions.shape[0])
    query = torch.randn((num_rows, 6, 16), generator=torch.Generator().manual_seed(2)).to(dtype)
    expected = ReferenceAttention().begin_step(metadata, cache).attend(1, query)
    actual = backend.begin_step(metadata, cache).attend(1, query)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", [PagedAttention(), InvariantAttention()], ids=["paged", "invariant"])
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 24, 100])
def test_block_patterns_equal_reference(
    backend: AttentionBackend, name: str, is_causal: bool, window: int | None
) -> None:
    cache = filled_cache(16, torch.float32)
    plain = batch_of(BATCHES[name], cache)
    metadata = replace(plain, pattern=AttentionPattern(is_causal, window))
    query = torch.randn((int(metadata.positions.shape[0]), 6, 16), generator=torch.Generator().manual_seed(2))
    expected = ReferenceAttention().begin_step(metadata, cache).attend(1, query)
    actual = backend.begin_step(metadata, cache).attend(1, query)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_the_reference_sees_what_the_pattern_says() -> None:
    """By hand: uniform weights (query 0) give the mean of the visible values."""
    cache = PagedKVCache(1, 4, 4, 1, 2, dtype=torch.float32, device=CPU)
    metadata = build_metadata([AttentionRequest(0, 3, 6, [0, 1, 2])], 4, cache.scratch_block, CPU)
    for position in range(9):
        cache.values(0).view(-1, 1, 2)[position] = position
    seen = {
        AttentionPattern(True, None): [range(7), range(8), range(9)],
        AttentionPattern(False, None): [range(9)] * 3,
        AttentionPattern(True, 2): [range(4, 7), range(4, 8), range(4, 9)],
        AttentionPattern(False, 2): [range(4, 9)] * 3,
    }
    for pattern, ranges in seen.items():
        step = ReferenceAttention().begin_step(replace(metadata, pattern=pattern), cache)
        means = step.attend(0, torch.zeros(3, 1, 2))[:, 0, 0].tolist()
        assert means == pytest.approx([sum(r) / len(r) for r in ranges])


def test_lengths_far_apart_are_grouped_apart() -> None:
    cache = filled_cache(16, torch.float32)
    metadata = batch_of(BATCHES["lengths too far apart for one group"], cache)
    step = PagedAttention().begin_step(metadata, cache)
    assert isinstance(step, PagedStep)
    assert [group.rows.tolist() for group in step.groups] == [[1, 3], [2, 0]]


def test_rows_without_a_slot_write_to_scratch_only() -> None:
    cache = PagedKVCache(1, 3, 4, 1, 2, dtype=torch.float32, device=CPU)
    metadata = build_metadata([AttentionRequest(0, 6, 2, [1])], 4, cache.scratch_block, CPU)
    assert metadata.slots.tolist() == [6, 7, 12, 13, 14, 15]
    cache.write(0, torch.ones(6, 2, 2), metadata.slots)
    assert [int(cache.keys(0)[b].sum()) for b in range(4)] == [0, 4, 0, 8]
    assert [int(cache.values(0)[b].sum()) for b in range(4)] == [0, 4, 0, 8]


def test_written_keys_and_values_come_back_in_order() -> None:
    cache = PagedKVCache(1, 4, 4, 2, 3, dtype=torch.float32, device=CPU)
    key_value = torch.arange(6 * 4 * 3, dtype=torch.float32).view(6, 4, 3)
    metadata = build_metadata([AttentionRequest(0, 6, 0, [3, 1])], 4, cache.scratch_block, CPU)
    cache.write(0, key_value, metadata.slots)
    assert torch.equal(cache.gather(0, torch.tensor([3, 1]))[:6].flatten(1, 2), key_value)


def test_kv_bytes_per_token_is_what_the_cache_takes() -> None:
    cache = PagedKVCache(3, 7, 16, 2, 8, dtype=torch.bfloat16, device=CPU)
    total = sum(layer.nbytes for layer in cache.layers)
    assert total == kv_bytes_per_token(3, 2, 8, torch.bfloat16) * 16 * 8
