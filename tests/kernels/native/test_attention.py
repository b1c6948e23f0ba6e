"""Native attention against softmax in float64; the same bits in any chunk, batch or blocks, on any threads and path."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from slipstream.kernels.native.library import InstructionPath, NativeLibrary, Workers


@dataclass(frozen=True)
class Rows:
    """Rows of one request: positions `first ... first + count - 1`, which see keys from `first_key` on."""

    first: int
    count: int
    blocks: tuple[int, ...]
    first_key: int = 0


@dataclass(frozen=True)
class Case:
    """A step; `cache` is [blocks, block_size, 2, kv heads, head_dim], `query` [N, heads, head_dim]."""

    requests: tuple[Rows, ...]
    query: Tensor
    cache: Tensor
    is_causal: bool = True

    @property
    def block_size(self) -> int:
        return self.cache.shape[1]


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_case(
    spans: list[tuple[int, int]],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 32,
    block_size: int = 16,
    window: int | None = None,
    is_causal: bool = True,
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
) -> Case:
    """Requests of (first position, rows) whose blocks lie in a scattered order."""
    needed = [-(-(first + count) // block_size) for first, count in spans]
    order = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(seed)).tolist()
    requests = []
    for (first, count), blocks in zip(spans, needed, strict=True):
        table = tuple(order.pop() for _ in range(blocks))
        requests.append(Rows(first, count, table, 0 if window is None else max(0, first - window)))
    num_rows = sum(count for _, count in spans)
    cache = random((sum(needed) + 3, block_size, 2, heads[1], head_dim), seed + 1).to(dtype)
    return Case(tuple(requests), random((num_rows, heads[0], head_dim), seed + 2), cache, is_causal)


def attend(workers: Workers, path: InstructionPath, case: Case, *, gap: int = 0) -> Tensor:
    """Run the kernel; `gap` floats lie between one row of the query and the next. What it may not write is checked."""
    numbers, block_ids, row = [], [], 0
    for request in case.requests:
        numbers.append((row, request.count, request.first, request.first_key, len(block_ids)))
        block_ids += request.blocks
        row += request.count
    num_rows, num_heads, head_dim = case.query.shape
    width = num_heads * head_dim
    query = torch.full((num_rows, width + gap), math.nan)
    query[:, :width] = case.query.view(num_rows, width)
    guarded = torch.full((num_rows + 2, width), 12345.0)
    workers.library.call(
        "attend",
        workers.handle,
        path,
        torch.tensor(numbers, dtype=torch.int32).view(-1, 5),
        len(numbers),
        torch.tensor(block_ids, dtype=torch.int32),
        case.block_size,
        num_heads,
        case.cache.shape[3],
        head_dim,
        case.is_causal,
        case.cache,
        case.cache.dtype == torch.bfloat16,
        query,
        width + gap,
        guarded[1:],
    )
    assert (guarded[[0, -1]] == 12345.0).all()
    return guarded[1:-1].view(case.query.shape)


def oracle(case: Case) -> Tensor:
    """By the definition, in float64, row by row and head by head."""
    output = torch.empty(case.query.shape, dtype=torch.float64)
    num_heads, head_dim = case.query.shape[1:]
    group = num_heads // case.cache.shape[3]
    row = 0
    for request in case.requests:
        pairs = case.cache[list(request.blocks)].double().flatten(0, 1)  # [tokens, 2, kv heads, head_dim]
        for i in range(request.count):
            end = request.first + (i + 1 if case.is_causal else request.count)
            for head in range(num_heads):
                keys, values = pairs[request.first_key : end, :, head // group].unbind(1)
                scores = keys @ case.query[row, head].double() / math.sqrt(head_dim)
                output[row, head] = scores.softmax(0) @ values
            row += 1
    return output


EDGES = [(0, 1), (7, 1), (8, 1), (6, 3), (0, 8), (0, 9), (15, 18), (63, 2), (130, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "block"])
@pytest.mark.parametrize("window", [None, 0, 1, 5, 8, 29], ids=lambda window: f"window_{window}")
def test_mixed_lengths(
    workers: Workers, path: InstructionPath, dtype: torch.dtype, is_causal: bool, window: int | None
) -> None:
    case = make_case(EDGES, window=window, is_causal=is_causal, dtype=dtype)
    assert (attend(workers, path, case).double() - oracle(case)).abs().max() < 5e-6


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (9, 3), (8, 8), (14, 2)], ids=str)
@pytest.mark.parametrize(("head_dim", "block_size"), [(16, 1), (64, 4), (80, 7), (128, 32), (256, 16)])
def test_shapes(
    workers: Workers, path: InstructionPath, heads: tuple[int, int], head_dim: int, block_size: int
) -> None:
    case = make_case([(0, 17), (40, 1), (21, 9)], heads=heads, head_dim=head_dim, block_size=block_size)
    assert (attend(workers, path, case, gap=24).double() - oracle(case)).abs().max() < 5e-6


@pytest.mark.parametrize("spread", [1e-20, 30.0, 1e4])
def test_flat_and_sharp_rows(workers: Workers, path: InstructionPath, spread: float) -> None:
    """Scores far apart, up to thousands: a key that is far below the best weighs nothing, and nothing overflows."""
    case = make_case(EDGES)
    case = replace(case, query=case.query * spread)
    # A score's own rounding grows with it, and so does what it does to the weights.
    bound = 5e-6 * max(1.0, spread)
    found, expected = attend(workers, path, case), oracle(case)
    assert found.isfinite().all()
    close = (found.double() - expected).abs() < bound
    assert close.all() if spread < 1e3 else close.float().mean() > 0.99


def test_rising_scores_scale_what_was_added_before(workers: Workers, path: InstructionPath) -> None:
    """Every eight keys bring a new largest score."""
    case = make_case([(99, 1)], heads=(1, 1))
    cache = case.cache.clone()
    for position in range(100):
        block = case.requests[0].blocks[position // case.block_size]
        cache[block, position % case.block_size, 0, 0] = 0.05 * position
    case = replace(case, cache=cache, query=torch.ones_like(case.query))
    assert (attend(workers, path, case).double() - oracle(case)).abs().max() < 5e-6


@pytest.fixture(scope="module")
def long_case() -> Case:
    return make_case([(0, 75)], heads=(6, 2), dtype=torch.bfloat16, seed=11)


@pytest.fixture(scope="module")
def long_bits(library: NativeLibrary, long_case: Case) -> Tensor:
    return attend(Workers(library, 1), InstructionPath.PLAIN, long_case)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 8, 9, 16, 31, 64, 75])
def test_bits_do_not_follow_chunks(
    workers: Workers, path: InstructionPath, long_case: Case, long_bits: Tensor, chunk: int
) -> None:
    (whole,) = long_case.requests
    parts = []
    for first in range(0, 75, chunk):
        count = min(chunk, 75 - first)
        part = replace(long_case, requests=(replace(whole, first=first, count=count),))
        parts.append(attend(workers, path, replace(part, query=long_case.query[first : first + count].contiguous())))
    assert torch.equal(torch.cat(parts), long_bits)


def test_bits_do_not_follow_company_or_order(
    workers: Workers, path: InstructionPath, long_case: Case, long_bits: Tensor
) -> None:
    """All 75 rows as requests of their own, which share the blocks, in two orders, and among others."""
    (whole,) = long_case.requests
    for seed, size in ((1, 75), (2, 70), (3, 2), (4, 33)):
        order = torch.randperm(75, generator=torch.Generator().manual_seed(seed))[:size].tolist()
        requests = tuple(replace(whole, first=row, count=1) for row in order)
        case = replace(long_case, requests=requests, query=long_case.query[order])
        assert torch.equal(attend(workers, path, case), long_bits[order])


@pytest.mark.parametrize("block_size", [1, 3, 8, 32])
def test_bits_do_not_follow_blocks(
    workers: Workers, path: InstructionPath, long_case: Case, long_bits: Tensor, block_size: int
) -> None:
    tokens = long_case.cache[list(long_case.requests[0].blocks)].flatten(0, 1)[:75]
    num_blocks = -(-75 // block_size)
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(block_size))
    cache = torch.zeros((num_blocks, block_size, *tokens.shape[1:]), dtype=tokens.dtype)
    for position in range(75):
        cache[order[position // block_size], position % block_size] = tokens[position]
    case = replace(long_case, cache=cache, requests=(Rows(0, 75, tuple(order.tolist())),))
    assert torch.equal(attend(workers, path, case), long_bits)


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "block"])
def test_all_paths_give_the_same_bits(library: NativeLibrary, is_causal: bool) -> None:
    case = make_case(EDGES, heads=(9, 3), head_dim=64, window=29, is_causal=is_causal, dtype=torch.bfloat16, seed=5)
    expected = attend(Workers(library, 1), InstructionPath.PLAIN, case)
    for path in InstructionPath:
        if path <= library.best_path:
            assert torch.equal(attend(Workers(library, 3), path, case), expected)


def test_a_row_sees_nothing_of_later_rows(workers: Workers, path: InstructionPath) -> None:
    """Not even a value that is no number: it must not pass through a weight of zero."""
    case = make_case([(3, 12)], heads=(2, 1))
    clean = attend(workers, path, case)
    for bad in (math.nan, math.inf, -math.inf, 1e38):
        cache = case.cache.clone()
        cache[case.requests[0].blocks[0], 10:] = bad
        found = attend(workers, path, replace(case, cache=cache))
        assert torch.equal(found[:7], clean[:7])  # positions 3 to 9
        assert not torch.equal(found[7:].nan_to_num(), clean[7:])


def test_what_no_row_sees_is_not_read(workers: Workers, path: InstructionPath) -> None:
    """Slots past the last row, blocks of others and context before the window hold whatever was there before."""
    case = make_case([(50, 3)], window=21)
    (request,) = case.requests
    cache = torch.full_like(case.cache, math.nan)
    for position in range(29, 53):
        at = request.blocks[position // case.block_size], position % case.block_size
        cache[at] = case.cache[at]
    lost = replace(request, blocks=(2**30, *request.blocks[1:]))  # given back: its keys lie before the window
    found = attend(workers, path, replace(case, cache=cache, requests=(lost,)))
    assert torch.equal(found, attend(workers, path, case))


def test_broken_numbers_stay_in_their_head(workers: Workers, path: InstructionPath) -> None:
    case = make_case([(20, 2), (5, 1)], heads=(4, 2))
    clean = attend(workers, path, case)
    query = case.query.clone()
    query[0, 1], query[1, 2, 0] = math.nan, math.inf
    found = attend(workers, path, replace(case, query=query))
    assert found[0, 1].isnan().all()
    kept = torch.ones((3, 4), dtype=torch.bool)
    kept[0, 1] = kept[1, 2] = False
    assert torch.equal(found[kept], clean[kept])


def test_no_requests_and_requests_without_rows(workers: Workers, path: InstructionPath) -> None:
    none = Case((), torch.empty((0, 4, 32)), random((1, 16, 2, 2, 32), 1))
    assert attend(workers, path, none).shape == (0, 4, 32)
    case = make_case([(5, 2)])
    with_empty = replace(case, requests=(Rows(9, 0, (0,)), *case.requests, Rows(0, 0, ())))
    assert torch.equal(attend(workers, path, with_empty), attend(workers, path, case))
