"""Attention of training blocks: each row sees the context before its anchor, and its own block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.attention.pattern import AttentionPattern
from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.training.blocks import BlockBatch, Span


class BlockAttention:
    """The `Attend` of a batch (speculation/drafter_model.py), a dialogue at a time.

    Scores of the context are one product for all blocks; those of a block's own rows are small products of their own,
    so that no row meets the rows of another block. One softmax over both. Query heads that share a key head are folded
    into the query rows, so that keys need no copies.

    Args:
        context: per layer, rotated keys then values of the context, [T, 2 * num_kv_heads, head_dim].
    """

    def __init__(self, config: DrafterConfig, batch: BlockBatch, context: Sequence[Tensor]) -> None:
        self._config = config
        self._spans = [span for span in batch.spans if span.num_blocks]
        self._context = context
        self._hidden = {
            pattern: [self._hidden_context(pattern, batch, span) for span in self._spans]
            for pattern in set(config.patterns)
        }

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """See `Attend`."""
        pattern = self._config.patterns[layer]
        return torch.cat(
            [
                self._attend(span, hidden, pattern, self._context[layer], query, key_value)
                for span, hidden in zip(self._spans, self._hidden[pattern], strict=True)
            ]
        )

    def _attend(
        self, span: Span, hidden: Tensor, pattern: AttentionPattern, context: Tensor, query: Tensor, key_value: Tensor
    ) -> Tensor:
        """Of one dialogue. Below: H key heads, G query heads for each, A blocks of R rows, S tokens, width D."""
        config, rows, blocks = self._config, self._config.block_size, span.num_blocks
        heads, width = config.num_kv_heads, config.head_dim
        group = config.num_heads // heads
        own = slice(span.row_start, span.row_start + blocks * rows)
        seen = slice(span.context_start, span.context_start + span.context_length)
        keys, values = context[seen].transpose(0, 1).chunk(2)  # [H, S, D]
        of_blocks = key_value[own].view(blocks, rows, 2 * heads, width).permute(2, 0, 1, 3)
        own_keys, own_values = of_blocks.chunk(2)  # [H, A, R, D]
        asked = (query[own] * width**-0.5).view(blocks, rows, heads, group, width)
        asked = asked.permute(2, 0, 3, 1, 4).flatten(2, 3)  # [H, A, G * R, D]
        of_context = (asked.flatten(1, 2) @ keys.transpose(1, 2)).view(heads, blocks, group * rows, -1)
        of_context = of_context.masked_fill(hidden, -torch.inf)
        of_own = asked @ own_keys.transpose(2, 3)  # [H, A, G * R, R]
        if pattern.is_causal:
            later = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu(1).repeat(group, 1)
            of_own = of_own.masked_fill(later, -torch.inf)
        chances = torch.cat((of_context, of_own), dim=-1).softmax(dim=-1, dtype=torch.float32).to(values.dtype)
        of_context, of_own = chances[..., : span.context_length], chances[..., span.context_length :]
        attended = (of_context.flatten(1, 2) @ values).view(heads, blocks, group * rows, width) + of_own @ own_values
        attended = attended.view(heads, blocks, group, rows, width).permute(1, 3, 0, 2, 4)  # [A, R, H, G, D]
        return attended.reshape(blocks * rows, config.num_heads, width)

    def _hidden_context(self, pattern: AttentionPattern, batch: BlockBatch, span: Span) -> Tensor:
        """Context tokens that a block does not see, bool [A, 1, S]."""
        first = span.row_start // self._config.block_size
        anchors = batch.anchors[first : first + span.num_blocks, None, None]
        tokens = torch.arange(span.context_length, device=anchors.device)
        hidden = tokens >= anchors
        if pattern.window is not None:
            hidden |= tokens < anchors - pattern.window
        return hidden
