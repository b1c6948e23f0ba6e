"""Who owns which rows of a flat batch, and where their KV lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.pattern import CAUSAL, AttentionPattern


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """The rows of one request: positions `first_position ... first_position + num_rows - 1`.

    Attributes:
        row_start: index of its first row in the batch.
        block_ids: its block table; covers `kv_length` tokens except for rows that have no slot.
    """

    row_start: int
    num_rows: int
    first_position: int
    block_ids: list[int]

    @property
    def kv_length(self) -> int:
        """Tokens its last row may see, itself included."""
        return self.first_position + self.num_rows


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """A step's rows, for every layer alike.

    Attributes:
        requests: in row order, together covering all N rows.
        slots: where each row's KV is written, int64 [N].
        positions: absolute position of each row, int64 [N].
        block_size: tokens per block.
        scratch_block: pads block tables.
        pattern: which tokens the rows see.
    """

    requests: list[AttentionRequest]
    slots: Tensor
    positions: Tensor
    block_size: int
    scratch_block: int
    pattern: AttentionPattern = CAUSAL

    def padded_block_ids(self, request: AttentionRequest, num_tokens: int) -> list[int]:
        """Block ids that cover `num_tokens` tokens; scratch where the request's table ends before."""
        needed = -(-num_tokens // self.block_size)
        block_ids = request.block_ids[:needed]
        return block_ids + [self.scratch_block] * (needed - len(block_ids))


def build_metadata(
    requests: list[AttentionRequest], block_size: int, scratch_block: int, device: torch.device
) -> AttentionMetadata:
    """Slots and positions of all rows; a row past its block table gets a scratch slot, never another's block."""
    slots: list[int] = []
    positions: list[int] = []
    for request in requests:
        block_ids = request.block_ids
        covered = len(block_ids) * block_size
        for position in range(request.first_position, request.kv_length):
            block = block_ids[position // block_size] if position < covered else scratch_block
            slots.append(block * block_size + position % block_size)
        positions.extend(range(request.first_position, request.kv_length))
    placed = torch.tensor([slots, positions], dtype=torch.int64).to(device, non_blocking=True)
    return AttentionMetadata(requests, placed[0], placed[1], block_size, scratch_block)
