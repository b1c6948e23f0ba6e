"""Chain hashes of full KV blocks: equal hash means equal tokens from position 0 on, and equal salt."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

# sha256 and not Python's hash(): a user must not be able to make a block that collides with another user's.


def root_hash(cache_salt: str) -> bytes:
    """Parent of a request's first block; requests share blocks only with the same salt."""
    return sha256(b"slipstream-kv" + cache_salt.encode("utf-8", "surrogatepass")).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of a full block with these tokens whose predecessor has hash `parent`."""
    return sha256(parent + array("q", token_ids).tobytes()).digest()


def extend_block_hashes(hashes: list[bytes], token_ids: Sequence[int], block_size: int, salt: str, upto: int) -> None:
    """Append to `hashes` until they cover every full block of the first `upto` tokens."""
    count = len(hashes)
    full = upto // block_size
    if count >= full:
        return
    parent = hashes[-1] if hashes else root_hash(salt)
    for start in range(count * block_size, full * block_size, block_size):
        parent = block_hash(parent, token_ids[start : start + block_size])
        hashes.append(parent)
