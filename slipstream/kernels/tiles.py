"""Fixed row tiles: every operation always sees the same shape, so a row's bits cannot follow the row count."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TILE_ROWS = 16


def apply_in_tiles(function: Callable[[Tensor], Tensor], x: Tensor, tile_rows: int) -> Tensor:
    """Apply a row-wise function to [N, ...] in tiles of exactly `tile_rows` rows, the last one padded with zeros.

    Each tile is a fresh tensor: libraries may choose another kernel for another memory alignment.
    """
    num_rows = x.shape[0]
    outputs = []
    for start in range(0, num_rows, tile_rows):
        tile = x.new_zeros((tile_rows, *x.shape[1:]))
        rows = x[start : start + tile_rows]
        tile[: rows.shape[0]] = rows
        outputs.append(function(tile)[: rows.shape[0]])
    if not outputs:
        return function(x.new_zeros((tile_rows, *x.shape[1:])))[:0]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def invariant_tile_rows(function: Callable[[Tensor], Tensor], sample: Tensor) -> int:
    """The largest safe tile, TILE_ROWS or 1: whether a row keeps its bits at every place and next to any rows.

    `sample` is a random tile [TILE_ROWS, ...] of what `function` will be given. Its rows change places and neighbours;
    then some of them fill the whole tile (every place at once), and stand alone among zeros.
    """
    expected = function(sample)
    for shift in (1, TILE_ROWS // 2 - 1, TILE_ROWS // 2):
        if not torch.equal(function(sample.roll(shift, 0)), expected.roll(shift, 0)):
            return 1
    if not torch.equal(function(sample.flip(0)), expected.flip(0)):
        return 1
    for place in (0, TILE_ROWS // 2, TILE_ROWS - 1):
        alone = torch.zeros_like(sample)
        alone[place] = sample[place]
        if not torch.equal(function(alone)[place], expected[place]):
            return 1
        copies = sample[place].expand_as(sample).contiguous()
        if not torch.equal(function(copies), expected[place].expand_as(expected)):
            return 1
    return TILE_ROWS
