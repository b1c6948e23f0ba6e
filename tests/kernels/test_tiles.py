"""Fixed row tiles, and the check that decides how large they may be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipstream.kernels.fast import FastKernels
from slipstream.kernels.invariant import InvariantKernels
from slipstream.kernels.tiles import TILE_ROWS, apply_in_tiles, invariant_tile_rows


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 40])
def test_tiles_are_always_whole_and_padding_never_shows(rows: int) -> None:
    seen = []

    def double(tile: Tensor) -> Tensor:
        seen.append(tile.shape[0])
        return tile * 2

    x = random(rows, 3)
    assert torch.equal(apply_in_tiles(double, x, 16), x * 2)
    assert set(seen) == {16}


def test_a_row_independent_function_gets_whole_tiles() -> None:
    assert invariant_tile_rows(lambda tile: tile.relu() + 1, random(TILE_ROWS, 5)) == TILE_ROWS


def scaled_by_place(tile: Tensor) -> Tensor:
    return tile * (1 + 1e-6 * torch.arange(tile.shape[0])).unsqueeze(1)


def shifted_by_neighbours(tile: Tensor) -> Tensor:
    return tile + 1e-6 * tile.mean()


@pytest.mark.parametrize("function", [scaled_by_place, shifted_by_neighbours])
def test_a_function_that_sees_place_or_neighbours_falls_back_to_single_rows(function: object) -> None:
    assert invariant_tile_rows(function, random(TILE_ROWS, 5)) == 1  # type: ignore[arg-type]


def test_kernels_that_depend_on_the_place_still_come_out_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = InvariantKernels()
    monkeypatch.setattr(FastKernels, "silu_mul", lambda self, x: scaled_by_place(x))
    x = random(5, 8)
    whole = kernels.silu_mul(x)
    assert list(kernels.tile_rows.values()) == [1]
    assert all(torch.equal(kernels.silu_mul(x[i : i + 1])[0], whole[i]) for i in range(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [96, 97, 576])  # 97: the border between vector and scalar code falls in a row
def test_rows_keep_their_bits_in_any_company(dtype: torch.dtype, width: int) -> None:
    kernels = InvariantKernels()
    x, weight, bias = random(50, width, dtype=dtype), random(72, width, seed=1, dtype=dtype), random(72, dtype=dtype)
    norm = random(width, seed=2, dtype=dtype)
    gate_up = random(50, 2 * width, seed=3, dtype=dtype)
    operations = (
        lambda rows: kernels.linear(x[rows], weight, bias),
        lambda rows: kernels.linear(x[rows], weight),
        lambda rows: kernels.rms_norm(x[rows], norm, 1e-6),
        lambda rows: kernels.silu_mul(gate_up[rows]),
    )
    for operation in operations:
        whole = operation(slice(0, 50))
        for rows in (slice(0, 1), slice(7, 8), slice(3, 20), slice(17, 49)):
            assert torch.equal(operation(rows), whole[rows])
    torch.testing.assert_close(kernels.linear(x, weight, bias), FastKernels().linear(x, weight, bias))
