"""Attention of training blocks: each row sees the context before its anchor, and its own block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.attention.pattern import AttentionPattern
from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.training.blocks import BlockBatch, Span


class BlockAttention:
    """The `Attend` of a batch (speculation/drafter_model.py). One product per dialogue.

    Query heads that share a key head are folded into the query rows, so that keys need no copies.

    Args:
        context: per layer, rotated keys then values of the context, [T, 2 * num_kv_heads, head_dim].
    """

    def __init__(self, config: DrafterConfig, batch: BlockBatch, context: Sequence[Tensor]) -> None:
        self._config = config
        self._batch = batch
        self._context = context
        self._masks = {
            pattern: [self._mask(pattern, span) for span in batch.spans if span.num_blocks]
            for pattern in set(config.patterns)
        }

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """See `Attend`."""
        config = self._config
        kv_heads, group, rows = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.block_size
        outputs = []
        masks = iter(self._masks[config.patterns[layer]])
        for span in self._batch.spans:
            if not span.num_blocks:
                continue
            own = slice(span.row_start, span.row_start + span.num_blocks * rows)
            seen = slice(span.context_start, span.context_start + span.context_length)
            keys, values = torch.cat((self._context[layer][seen], key_value[own])).transpose(0, 1).chunk(2)
            folded = query[own].view(-1, kv_heads, group, config.head_dim).permute(1, 2, 0, 3).flatten(1, 2)
            attended = functional.scaled_dot_product_attention(
                folded[None], keys[None], values[None], attn_mask=next(masks)
            )
            attended = attended[0].view(kv_heads, group, -1, config.head_dim).permute(2, 0, 1, 3)
            outputs.append(attended.flatten(1, 2))
        return torch.cat(outputs)

    def _mask(self, pattern: AttentionPattern, span: Span) -> Tensor:
        """Who sees what, bool [group * rows, context + rows] of one dialogue."""
        config, rows = self._config, self._config.block_size
        first_block = span.row_start // rows
        anchors = self._batch.anchors[first_block : first_block + span.num_blocks].repeat_interleave(rows)[:, None]
        context = torch.arange(span.context_length, device=anchors.device)
        sees_context = context < anchors
        if pattern.window is not None:
            sees_context &= context >= anchors - pattern.window
        row = torch.arange(len(anchors), device=anchors.device)
        sees_rows = row[:, None] // rows == row // rows
        if pattern.is_causal:
            sees_rows &= row <= row[:, None]
        return torch.cat((sees_context, sees_rows), dim=1).repeat(config.num_heads // config.num_kv_heads, 1)
