"""The paged KV cache: one tensor per layer, addressed by slots."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor


class PagedKVCache:
    """Keys and values of every layer in blocks of `block_size` tokens.

    A slot is `block_id * block_size + offset`. Keys and values of a slot lie side by side, so that writing and
    gathering cost one operation, not two. The last block is scratch: rows without a slot write there, and nobody reads
    it unmasked.

    Attributes:
        layers: per layer [num_blocks + 1, block_size, 2, num_kv_heads, head_dim]; index 0 of the third is the key.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        shape = (num_blocks + 1, block_size, 2, num_kv_heads, head_dim)
        self.layers = [_zeros(shape, dtype, device) for _ in range(num_layers)]
        width = 2 * num_kv_heads * head_dim
        self._slots = [layer.view(-1, width) for layer in self.layers]
        self._blocks = [layer.view(-1, block_size * width) for layer in self.layers]
        self._gathered = torch.empty(0, dtype=dtype, device=device)

    @property
    def scratch_block(self) -> int:
        """Id of the block that belongs to nobody."""
        return self.num_blocks

    @property
    def device(self) -> torch.device:
        return self.layers[0].device

    def keys(self, layer: int) -> Tensor:
        """[num_blocks + 1, block_size, num_kv_heads, head_dim], a view."""
        return self.layers[layer][:, :, 0]

    def values(self, layer: int) -> Tensor:
        """[num_blocks + 1, block_size, num_kv_heads, head_dim], a view."""
        return self.layers[layer][:, :, 1]

    def write(self, layer: int, key_value: Tensor, slots: Tensor) -> None:
        """Store [N, 2 * num_kv_heads, head_dim] (keys, then values) at slots [N]."""
        self._slots[layer].index_copy_(0, slots, key_value.reshape(key_value.shape[0], -1))

    def gather(self, layer: int, block_ids: Tensor) -> Tensor:
        """Copy blocks [n] out in order: [n * block_size, 2, num_kv_heads, head_dim].

        The next call, of any layer, writes over them: fresh memory for every copy would cost a page fault for each of
        its pages, several times the copying.
        """
        shape = (len(block_ids), self._blocks[layer].shape[1])
        size = math.prod(shape)
        if self._gathered.numel() < size:
            with torch.inference_mode(False):
                self._gathered = self._gathered.new_empty(size)
        blocks = self._gathered[:size].view(shape)
        torch.index_select(self._blocks[layer], 0, block_ids, out=blocks)
        return blocks.view(-1, 2, self.num_kv_heads, self.head_dim)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take memory on a CPU only where they are written: a pool is large, and mostly unused at first."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Not from malloc: it may be told to keep freed memory (execution/host_memory.py), which it would have to clear.
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of KV one token takes: a key and a value in every layer."""
    return num_layers * 2 * num_kv_heads * head_dim * dtype.itemsize
