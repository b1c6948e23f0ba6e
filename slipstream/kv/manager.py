"""KVManager: the block tables of requests, and what the prefix cache can give them (design 6)."""

from __future__ import annotations

from slipstream.kv.block_hash import extend_block_hashes
from slipstream.kv.block_pool import BlockPool
from slipstream.request import Request


class KVManager:
    """Grows and frees requests' block tables. Drafter KV lives under the same block ids, so it has no table here.

    Attributes:
        pool: the blocks. block_size: tokens per block. enable_prefix_caching: whether full blocks are kept by content.
        num_query_tokens, num_hit_tokens: prompt tokens asked of the prefix cache, and found there.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_query_tokens = 0
        self.num_hit_tokens = 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def cached_blocks(self, request: Request) -> list[int]:
        """Blocks of the longest cached prefix of the request's tokens; at least one token is left to compute."""
        if not self.enable_prefix_caching:
            return []
        if not request.reads_prefix_cache and not request.num_output_tokens:
            return []
        size = self.block_size
        usable = (len(request.token_ids) - 1) // size
        extend_block_hashes(request.block_hashes, request.token_ids, size, request.cache_salt, usable * size)
        return self.pool.find(request.block_hashes[:usable])

    def attach_cached(self, request: Request, blocks: list[int]) -> None:
        """Start the request's block table with cached blocks, whose tokens count as computed."""
        self.pool.share(blocks)
        request.block_ids = list(blocks)
        request.num_hashed_blocks = len(blocks)
        request.num_computed_tokens = len(blocks) * self.block_size
        if self.enable_prefix_caching:
            self.num_query_tokens += len(request.token_ids)
            self.num_hit_tokens += request.num_computed_tokens

    def grow(self, request: Request, num_tokens: int) -> list[int] | None:
        """Let the table cover `num_tokens` tokens; gives the new blocks, or None where too few are free."""
        missing = self.blocks_for(num_tokens) - len(request.block_ids)
        if missing <= 0:
            return []
        if missing > self.pool.num_free:
            return None
        blocks = self.pool.allocate(missing)
        request.block_ids += blocks
        return blocks

    def cache_computed(self, request: Request) -> None:
        """Offer the full blocks of committed, computed tokens to the prefix cache."""
        full = request.num_computed_tokens // self.block_size
        done = request.num_hashed_blocks
        if full <= done or not self.enable_prefix_caching:
            return
        hashes = request.block_hashes
        extend_block_hashes(hashes, request.token_ids, self.block_size, request.cache_salt, full * self.block_size)
        for index in range(done, full):
            self.pool.register(request.block_ids[index], hashes[index])
        request.num_hashed_blocks = full

    def free(self, request: Request) -> None:
        """Give the request's blocks back."""
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.num_hashed_blocks = 0
        request.num_planned_blocks = 0
