"""Chain hashes of full KV blocks: equal hash means equal tokens from position 0 on, and equal salt."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

# sha256 and not Python's hash(): a user must not be able to make a block that collides with another user's.


def root_hash(cache_salt: str) -> bytes:
    """Parent of a request's first block; requests share blocks only with the same salt."""
    return sha256(b"slipstream-kv" + cache_salt.encode("utf-8", "surrogatepass")).digest()


def extend_block_hashes(hashes: list[bytes], token_ids: Sequence[int], block_size: int, salt: str, upto: int) -> None:
    """Append to `hashes` until they cover every full block of the first `upto` tokens.

    A block's hash is sha256 of its predecessor's hash (`root_hash` for the first) and its tokens as 64-bit integers.
    """
    count = len(hashes)
    full = upto // block_size
    if count >= full:
        return
    parent = hashes[-1] if hashes else root_hash(salt)
    for start in range(count * block_size, full * block_size, block_size):
        parent = sha256(parent + array("q", token_ids[start : start + block_size]).tobytes()).digest()
        hashes.append(parent)
