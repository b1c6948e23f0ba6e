"""BlockPool: reference-counted KV blocks, and the full ones kept by content until their place is needed (design 6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Hands out block ids `0 … num_blocks - 1`.

    A block is *used* while its reference count is above 0, else *free*; a free block may still hold cached content and
    is then found by its hash. `num_used + num_free == num_blocks` always.

    Attributes:
        num_blocks: size of the pool. num_evictions: cached blocks given to someone else so far.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a KV pool needs at least 1 block, got {num_blocks}")
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        # Next to be given away first: blocks without content, then cached ones, least recently used first.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by content, used or free."""
        return len(self._block_of)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with unknown content. Raises ValueError when fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} KV blocks wanted, {len(self._free)} of {self.num_blocks} are free")
        blocks = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            key = self._hash_of[block]
            if key is not None:
                del self._block_of[key]
                self._hash_of[block] = None
                self.num_evictions += 1
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks holding the longest cached prefix of `hashes`; takes no reference."""
        blocks = []
        for key in hashes:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free now, so that sharing them would use up free blocks."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def share(self, blocks: Iterable[int]) -> None:
        """Take one more reference to each of `blocks`."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give one reference back to each. The end of a table is given away before its beginning, which more share."""
        for block in reversed(blocks):
            count = self._references[block] - 1
            if count < 0:
                raise ValueError(f"KV block {block} is released more often than it was taken")
            self._references[block] = count
            if count == 0:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def register(self, block: int, key: bytes) -> None:
        """Say that `block` now holds the full block with this hash. The first holder of a hash keeps it."""
        if key not in self._block_of and self._hash_of[block] is None:
            self._block_of[key] = block
            self._hash_of[block] = key

    def forget_cached(self) -> None:
        """Drop all cached content; used blocks stay with their requests."""
        self._block_of.clear()
        self._hash_of = [None] * self.num_blocks
