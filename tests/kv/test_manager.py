"""KVManager and block hashes: tables grow, prefixes are found, salts keep users apart."""

from __future__ import annotations

import struct
from hashlib import sha256

from driver import make_request

from slipstream.kv.block_hash import extend_block_hashes, root_hash
from slipstream.kv.manager import KVManager


def computed_request(kv: KVManager, name: str, tokens, salt: str = ""):
    request = make_request(name, tokens, cache_salt=salt)
    assert kv.grow(request, len(request.token_ids)) is not None
    request.num_computed_tokens = len(request.token_ids)
    kv.cache_computed(request)
    return request


def test_hashes_chain_and_salt() -> None:
    tokens = list(range(12))
    hashes: list[bytes] = []
    extend_block_hashes(hashes, tokens, 4, "", 12)
    assert hashes[0] == sha256(root_hash("") + struct.pack("<4q", *tokens[:4])).digest()
    assert hashes[1] == sha256(hashes[0] + struct.pack("<4q", *tokens[4:8])).digest()
    other: list[bytes] = []
    extend_block_hashes(other, [99, *tokens[1:]], 4, "", 12)
    assert not set(hashes) & set(other), "a different first token changes every hash after it"
    salted: list[bytes] = []
    extend_block_hashes(salted, tokens, 4, "tenant", 12)
    assert not set(hashes) & set(salted)
    part: list[bytes] = []
    extend_block_hashes(part, tokens, 4, "", 7)
    extend_block_hashes(part, tokens, 4, "", 12)
    assert part == hashes


def test_at_least_one_token_is_left_to_compute() -> None:
    kv = KVManager(8, 4, True)
    computed_request(kv, "first", range(8))
    assert len(kv.cached_blocks(make_request("same", range(8)))) == 1
    assert len(kv.cached_blocks(make_request("longer", range(9)))) == 2
    assert kv.cached_blocks(make_request("other", range(1, 9))) == []
    assert kv.cached_blocks(make_request("salted", range(9), cache_salt="x")) == []


def test_grow_gives_none_and_takes_nothing_when_blocks_are_short() -> None:
    kv = KVManager(2, 4, True)
    request = make_request("r", range(5))
    assert kv.grow(request, 12) is None
    assert kv.pool.num_free == 2
    assert request.block_ids == []
    assert len(kv.grow(request, 5) or []) == 2
    assert kv.grow(request, 8) == []


def test_free_gives_everything_back_and_keeps_content() -> None:
    kv = KVManager(4, 4, True)
    request = computed_request(kv, "r", range(10))
    kv.free(request)
    assert kv.pool.num_free == 4
    again = make_request("again", range(10))
    blocks = kv.cached_blocks(again)
    kv.attach_cached(again, blocks)
    assert again.num_computed_tokens == 8
    assert (kv.num_query_tokens, kv.num_hit_tokens) == (10, 8)


def test_without_prefix_caching_nothing_is_kept() -> None:
    kv = KVManager(4, 4, False)
    kv.free(computed_request(kv, "r", range(10)))
    assert kv.cached_blocks(make_request("again", range(10))) == []
    assert kv.pool.num_cached == 0
