"""Batch-invariant attention (design 5): a row's bits depend on its request's tokens up to its position alone.

Query rows of one request run in tiles of fixed size against key tiles that lie at fixed absolute positions, every
product of one shape. The softmax takes its maximum over all tiles first (exact, whatever the order) and sums tile by
tile from position 0 up; tiles beyond a row's position add exact zeros, so it does not matter how far others reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.metadata import AttentionMetadata, AttentionRequest
from slipstream.kernels.tiles import TILE_ROWS, invariant_tile_rows

KEY_TILE = 64  # tokens per key tile; a multiple of every vector width, so exp() has no scalar tail


@dataclass(frozen=True, slots=True)
class InvariantStep:
    """StepAttention in fixed tiles, in float32."""

    metadata: AttentionMetadata
    cache: PagedKVCache
    tile_rows: Callable[[int], int]
    block_ids: list[Tensor]

    def attend(self, layer: int, query: Tensor) -> Tensor:
        tile_rows = self.tile_rows(query.shape[1])
        output = torch.empty_like(query)
        for request, block_ids in zip(self.metadata.requests, self.block_ids, strict=True):
            end = request.row_start + request.num_rows
            rows = query[request.row_start : end].float()
            output[request.row_start : end] = self._attend_request(layer, rows, request, block_ids, tile_rows)
        return output

    def _attend_request(
        self, layer: int, query: Tensor, request: AttentionRequest, block_ids: Tensor, tile_rows: int
    ) -> Tensor:
        length = request.kv_length
        num_tiles = -(-length // KEY_TILE)
        gathered = self.cache.gather(layer, block_ids)
        tiled = gathered.new_zeros((num_tiles * KEY_TILE, *gathered.shape[1:]), dtype=torch.float32)
        tiled[:length] = gathered[:length]
        # One contiguous [num_kv_heads, KEY_TILE, head_dim] per tile: strides must not follow the length either.
        keys, values = tiled.view(num_tiles, KEY_TILE, 2, *gathered.shape[2:]).permute(2, 0, 3, 1, 4).contiguous()
        pattern = self.metadata.pattern
        first_key = pattern.first_key(request.first_position)
        outputs = []
        for start in range(0, request.num_rows, tile_rows):
            rows = query[start : start + tile_rows]
            tile = query.new_zeros((tile_rows, *query.shape[1:]))
            tile[: rows.shape[0]] = rows
            first = request.first_position + start
            seen = first + rows.shape[0] if pattern.is_causal else length
            tiles = slice(-(-seen // KEY_TILE))
            end = None if pattern.is_causal else length
            outputs.append(attend_tile(tile, keys[tiles], values[tiles], first, end, first_key)[: rows.shape[0]])
        return torch.cat(outputs)


def attend_tile(
    query: Tensor, keys: Tensor, values: Tensor, first_position: int, end: int | None = None, first_key: int = 0
) -> Tensor:
    """Attention of a tile of rows at consecutive positions.

    Args:
        query: float32 [T, num_heads, head_dim].
        keys, values: float32 [key tiles, num_kv_heads, KEY_TILE, head_dim].
        first_position: position of the tile's first row.
        end: every row sees the tokens before this one; None: each row sees those up to its own.
        first_key: no row sees a token before this one.

    Returns:
        float32 [T, num_heads, head_dim].
    """
    num_rows, num_heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    folded = (query * head_dim**-0.5).view(num_rows, kv_heads, -1, head_dim).transpose(0, 1)
    folded = folded.reshape(kv_heads, -1, head_dim)  # [kv_heads, T * group, head_dim]
    group = num_heads // kv_heads
    positions = torch.arange(first_position, first_position + num_rows, device=query.device)
    last_seen = positions.repeat_interleave(group).unsqueeze(1)
    if end is not None:
        last_seen = torch.full_like(last_seen, end - 1)
    offsets = torch.arange(KEY_TILE, device=query.device)
    scores = []
    for j in range(keys.shape[0]):
        product = torch.matmul(folded, keys[j].transpose(-1, -2))
        if (j + 1) * KEY_TILE > (end or first_position + 1):  # else every row of the tile sees all of these keys
            product.masked_fill_(offsets + j * KEY_TILE > last_seen, float("-inf"))
        if j * KEY_TILE < first_key:
            product.masked_fill_(offsets + j * KEY_TILE < first_key, float("-inf"))
        scores.append(product)
    maximum = scores[0].amax(-1, keepdim=True)
    for product in scores[1:]:
        maximum = torch.maximum(maximum, product.amax(-1, keepdim=True))
    total = torch.zeros_like(maximum)
    output = torch.zeros_like(folded)
    for j, product in enumerate(scores):
        weights = product.sub_(maximum).exp_()
        total += weights.sum(-1, keepdim=True)
        output += torch.matmul(weights, values[j])
    output /= total
    return output.view(kv_heads, num_rows, group, head_dim).transpose(0, 1).reshape(num_rows, num_heads, head_dim)


class InvariantAttention:
    """AttentionBackend whose rows never depend on other rows, chunking, block size or place in the batch."""

    def __init__(self) -> None:
        self._tile_rows: dict[tuple[object, ...], int] = {}

    def begin_step(self, metadata: AttentionMetadata, cache: PagedKVCache) -> InvariantStep:
        block_ids = [
            torch.tensor(metadata.padded_block_ids(r, r.kv_length), device=cache.device) for r in metadata.requests
        ]
        return InvariantStep(metadata, cache, lambda num_heads: self.tile_rows(num_heads, cache), block_ids)

    def tile_rows(self, num_heads: int, cache: PagedKVCache) -> int:
        """The tile's size for this shape: checked once, a single row where rows are not independent of their place."""
        shape = (num_heads, cache.num_kv_heads, cache.head_dim, cache.device.type)
        if shape not in self._tile_rows:
            generator = torch.Generator().manual_seed(0)
            kv = torch.randn((2, 2, cache.num_kv_heads, KEY_TILE, cache.head_dim), generator=generator)
            keys, values = kv.to(cache.device)
            sample = torch.randn((TILE_ROWS, num_heads, cache.head_dim), generator=generator).to(cache.device)
            # All keys in sight, so that a row's result does not change with its position.
            self._tile_rows[shape] = invariant_tile_rows(
                lambda tile: attend_tile(tile, keys, values, 2 * KEY_TILE), sample
            )
        return self._tile_rows[shape]
