"""Attention in the plainest way: one row at a time, in float32. The oracle of the others; slow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """StepAttention by the definition: softmax(q k / sqrt(head_dim)) v over the tokens that a row sees."""

    metadata: AttentionMetadata
    cache: PagedKVCache

    def attend(self, layer: int, query: Tensor) -> Tensor:
        num_heads, head_dim = query.shape[1:]
        group = num_heads // self.cache.num_kv_heads
        keys, values = self.cache.keys(layer), self.cache.values(layer)
        output = torch.zeros_like(query)
        pattern = self.metadata.pattern
        for request in self.metadata.requests:
            start = pattern.first_key(request.first_position)
            for i in range(request.num_rows):
                length = request.first_position + i + 1 if pattern.is_causal else request.kv_length
                block_ids = self.metadata.padded_block_ids(request, length)
                seen_keys = torch.cat([keys[b] for b in block_ids])[start:length].float()
                seen_values = torch.cat([values[b] for b in block_ids])[start:length].float()
                row = request.row_start + i
                for head in range(num_heads):
                    scores = seen_keys[:, head // group] @ query[row, head].float() / head_dim**0.5
                    weights = torch.softmax(scores, dim=0)
                    output[row, head] = (weights @ seen_values[:, head // group]).to(query.dtype)
        return output


class ReferenceAttention:
    """AttentionBackend of the oracle."""

    def begin_step(self, metadata: AttentionMetadata, cache: PagedKVCache) -> ReferenceStep:
        return ReferenceStep(metadata, cache)
