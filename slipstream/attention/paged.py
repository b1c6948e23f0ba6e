"""Paged attention in PyTorch operations, for any device: short requests together, each prompt chunk alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.metadata import AttentionMetadata, AttentionRequest

MAX_BATCHED_ROWS = 16  # requests with more rows than this run alone
LENGTH_SLACK = 256  # tokens of padding that are cheaper than one more group


class RowGroup(Protocol):
    """Some rows of the batch whose attention is one product. `rows`: their indices, int64 [n]."""

    @property
    def rows(self) -> Tensor: ...

    def attend(self, layer: int, query: Tensor, cache: PagedKVCache) -> Tensor:
        """Query of the whole batch [N, num_heads, head_dim] to the group's output [n, num_heads, head_dim]."""
        ...


@dataclass(frozen=True, slots=True)
class BatchedGroup:
    """Decode and verify rows of R requests, padded to the longest KV and the most rows.

    The heads that share a key head are folded into the query rows, so keys and values need no copies per query head.

    Attributes:
        padded_rows: row index per request and padded query row, int64 [R * num_rows]; padding repeats the last row.
        kept: which of the padded rows are real, int64 [n]; None when all are.
        block_ids: int64 [R * blocks].
        mask: what is added to the scores, [R, 1, num_rows (or 1), L]; None when every row sees all L tokens.
    """

    rows: Tensor
    padded_rows: Tensor
    kept: Tensor | None
    num_requests: int
    num_rows: int
    kv_length: int
    block_ids: Tensor
    mask: Tensor | None

    def attend(self, layer: int, query: Tensor, cache: PagedKVCache) -> Tensor:
        num_heads, head_dim = query.shape[1:]
        kv_heads = cache.num_kv_heads
        group = num_heads // kv_heads
        gathered = cache.gather(layer, self.block_ids).view(self.num_requests, -1, 2, kv_heads, head_dim)
        keys, values = gathered[:, : self.kv_length].permute(2, 0, 3, 1, 4)
        folded = query.index_select(0, self.padded_rows).view(self.num_requests, self.num_rows, kv_heads, -1, head_dim)
        folded = folded.permute(0, 2, 1, 3, 4).reshape(self.num_requests, kv_heads, -1, head_dim)
        mask = self.mask
        if mask is not None and self.num_rows > 1:
            mask = mask.unsqueeze(3).expand(-1, -1, -1, group, -1).reshape(self.num_requests, 1, -1, self.kv_length)
        output = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
        output = output.view(self.num_requests, kv_heads, self.num_rows, group, head_dim)
        output = output.permute(0, 2, 1, 3, 4).reshape(-1, num_heads, head_dim)
        return output if self.kept is None else output.index_select(0, self.kept)


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Many rows of one request. mask: [num_rows, L]; None when they start the request and are plainly causal."""

    rows: Tensor
    row_start: int
    num_rows: int
    kv_length: int
    block_ids: Tensor
    mask: Tensor | None

    def attend(self, layer: int, query: Tensor, cache: PagedKVCache) -> Tensor:
        group = query.shape[1] // cache.num_kv_heads
        gathered = cache.gather(layer, self.block_ids)[: self.kv_length]
        keys, values = gathered.repeat_interleave(group, dim=2).permute(1, 2, 0, 3).unsqueeze(1)
        own = query[self.row_start : self.row_start + self.num_rows].transpose(0, 1).unsqueeze(0)
        output = functional.scaled_dot_product_attention(
            own, keys, values, attn_mask=self.mask, is_causal=self.mask is None
        )
        return output[0].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class PagedStep:
    """StepAttention over row groups that together cover the batch."""

    groups: list[RowGroup]
    cache: PagedKVCache
    is_whole: bool  # one group, whose rows are the batch in order

    def attend(self, layer: int, query: Tensor) -> Tensor:
        if self.is_whole:
            return self.groups[0].attend(layer, query, self.cache)
        output = torch.empty_like(query)
        for group in self.groups:
            output.index_copy_(0, group.rows, group.attend(layer, query, self.cache))
        return output


class PagedAttention:
    """AttentionBackend for every device that PyTorch has scaled-dot-product attention for."""

    def begin_step(self, metadata: AttentionMetadata, cache: PagedKVCache) -> PagedStep:
        groups: list[RowGroup] = []
        single = [r for r in metadata.requests if r.num_rows == 1]
        several = [r for r in metadata.requests if 1 < r.num_rows <= MAX_BATCHED_ROWS]
        for requests in (single, several):
            groups += [_batched_group(part, metadata, cache) for part in _split_by_length(requests)]
        groups += [_prompt_group(r, metadata, cache) for r in metadata.requests if r.num_rows > MAX_BATCHED_ROWS]
        in_order = len(groups) == 1 and isinstance(groups[0], PromptGroup)
        if len(groups) == 1 and not in_order:
            starts = [r.row_start for r in metadata.requests]
            in_order = starts == sorted(starts)
        return PagedStep(groups, cache, in_order)


def _split_by_length(requests: list[AttentionRequest]) -> list[list[AttentionRequest]]:
    """Parts in which padding to the longest KV costs less than about as much again."""
    if not requests:
        return []
    lengths = [r.kv_length for r in requests]
    if max(lengths) <= 2 * min(lengths) + LENGTH_SLACK:
        return [requests]
    parts: list[list[AttentionRequest]] = []
    for request in sorted(requests, key=lambda r: r.kv_length):
        if not parts or request.kv_length > 2 * parts[-1][0].kv_length + LENGTH_SLACK:
            parts.append([])
        parts[-1].append(request)
    return parts


def _batched_group(requests: list[AttentionRequest], metadata: AttentionMetadata, cache: PagedKVCache) -> BatchedGroup:
    device = cache.device
    num_rows = max(r.num_rows for r in requests)
    kv_length = max(r.kv_length for r in requests)
    padded_rows = [r.row_start + min(i, r.num_rows - 1) for r in requests for i in range(num_rows)]
    kept = [j * num_rows + i for j, r in enumerate(requests) for i in range(r.num_rows)]
    rows = [r.row_start + i for r in requests for i in range(r.num_rows)]
    block_ids = [b for r in requests for b in metadata.padded_block_ids(r, kv_length)]
    padded = torch.tensor(padded_rows, device=device)
    pattern = metadata.pattern
    mask = None
    if (
        (pattern.is_causal and num_rows > 1)
        or any(r.kv_length != kv_length for r in requests)
        or any(pattern.first_key(r.first_position) for r in requests)
    ):
        mask = _mask(requests, num_rows, metadata.positions[padded], kv_length, metadata, cache)
        mask = mask.view(len(requests), 1, num_rows, kv_length)
    return BatchedGroup(
        torch.tensor(rows, device=device),
        padded,
        None if len(kept) == len(padded_rows) else torch.tensor(kept, device=device),
        len(requests),
        num_rows,
        kv_length,
        torch.tensor(block_ids, device=device),
        mask,
    )


def _prompt_group(request: AttentionRequest, metadata: AttentionMetadata, cache: PagedKVCache) -> PromptGroup:
    end = request.row_start + request.num_rows
    mask = None
    if request.first_position or not metadata.pattern.is_causal:
        positions = metadata.positions[request.row_start : end]
        mask = _mask([request], request.num_rows, positions, request.kv_length, metadata, cache)
    return PromptGroup(
        torch.arange(request.row_start, end, device=cache.device),
        request.row_start,
        request.num_rows,
        request.kv_length,
        torch.tensor(metadata.padded_block_ids(request, request.kv_length), device=cache.device),
        mask,
    )


def _mask(
    requests: list[AttentionRequest],
    num_rows: int,
    positions: Tensor,
    kv_length: int,
    metadata: AttentionMetadata,
    cache: PagedKVCache,
) -> Tensor:
    """0 where a row may look, -inf where not: [n, kv_length], in the cache's dtype.

    The rows are n = len(requests) * num_rows, request by request, at `positions` [n].
    """
    pattern = metadata.pattern
    keys = torch.arange(kv_length, device=positions.device)
    last_seen = positions
    if not pattern.is_causal:
        ends = torch.tensor([r.kv_length - 1 for r in requests], device=positions.device)
        last_seen = ends.repeat_interleave(num_rows)
    hidden = keys > last_seen.unsqueeze(1)
    if pattern.window is not None:
        starts = torch.tensor([pattern.first_key(r.first_position) for r in requests], device=positions.device)
        hidden |= keys < starts.repeat_interleave(num_rows).unsqueeze(1)
    mask = torch.zeros(hidden.shape, dtype=cache.layers[0].dtype, device=positions.device)
    return mask.masked_fill_(hidden, float("-inf"))
