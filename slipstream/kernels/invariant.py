"""Batch-invariant row kernels (design 5): a row's bits depend on the row and the weights alone.

PyTorch picks the blocking of a matrix product, and the border between vector and scalar code of an elementwise loop,
by the tensor's shape. Here each operation runs on tiles of one shape, and a check of that shape shows whether rows are
independent of their place and neighbours in the tile; where they are not, the tile is a single row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from slipstream.kernels.fast import FastKernels
from slipstream.kernels.tiles import TILE_ROWS, apply_in_tiles, invariant_tile_rows

RowFunction = Callable[[Tensor], Tensor]


class InvariantKernels:
    """RowKernels in fixed tiles. Each new shape is checked when first met (`prepare_linear` does it at load).

    Attributes:
        tile_rows: verdict per operation, shape and dtype; kept for reports and tests.
    """

    def __init__(self) -> None:
        self._fast = FastKernels()
        self.tile_rows: dict[tuple[object, ...], int] = {}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        def product(tile: Tensor) -> Tensor:
            return self._fast.linear(tile, weight, bias)

        return self._run(("linear", weight.shape[0], weight.is_mkldnn, bias is None), product, x)

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return self._run(("rms_norm", weight is None), lambda tile: self._fast.rms_norm(tile, weight, eps), x)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self._run(("silu_mul",), self._fast.silu_mul, gate_up)

    def prepare_linear(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Check a weight's shape now rather than at its first product."""
        self.linear(torch.zeros((1, weight.shape[1]), dtype=weight.dtype, device=weight.device), weight, bias)

    def _run(self, operation: tuple[object, ...], function: RowFunction, x: Tensor) -> Tensor:
        key = (*operation, tuple(x.shape[1:]), x.dtype, x.device.type)
        tile_rows = self.tile_rows.get(key)
        if tile_rows is None:
            tile_rows = self.tile_rows[key] = invariant_tile_rows(function, _random_tile(x))
        return apply_in_tiles(function, x, tile_rows)


def _random_tile(like: Tensor) -> Tensor:
    """A seeded random tile, drawn on the CPU so that every device checks the same numbers."""
    generator = torch.Generator().manual_seed(0)
    tile = torch.randn((TILE_ROWS, *like.shape[1:]), generator=generator)
    return tile.to(device=like.device, dtype=like.dtype)
