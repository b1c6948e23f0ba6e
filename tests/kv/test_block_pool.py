"""BlockPool: accounting, sharing, eviction order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.kv.block_pool import BlockPool


def test_allocate_and_release_keep_the_total() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    assert len(set(blocks)) == 3
    assert (pool.num_used, pool.num_free) == (3, 1)
    pool.release(blocks)
    assert (pool.num_used, pool.num_free) == (0, 4)


def test_taking_too_many_or_giving_back_twice_is_refused() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="3 KV blocks wanted, 2 of 2"):
        pool.allocate(3)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match="more often"):
        pool.release(blocks)
    with pytest.raises(ValueError, match="at least 1 block"):
        BlockPool(0)


def test_a_freed_block_is_found_by_content_until_its_place_is_needed() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.register(block, b"one")
    pool.release([block])
    assert pool.find([b"one", b"two"]) == [block]
    pool.share([block])
    assert pool.num_used == 1
    pool.release([block])
    pool.allocate(2)
    assert pool.find([b"one"]) == []
    assert pool.num_evictions == 1


def test_empty_blocks_go_before_cached_ones_and_old_ones_before_new() -> None:
    pool = BlockPool(3)
    first, second, third = pool.allocate(3)
    pool.register(first, b"a")
    pool.register(second, b"b")
    pool.release([first])
    pool.release([second])
    pool.release([third])
    assert pool.allocate(1) == [third]
    assert pool.allocate(1) == [first]
    assert pool.find([b"b"]) == [second]


def test_the_end_of_a_table_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(3)
    table = pool.allocate(3)
    for block, key in zip(table, (b"a", b"b", b"c"), strict=True):
        pool.register(block, key)
    pool.release(table)
    assert pool.allocate(1) == [table[2]]
    assert pool.find([b"a", b"b", b"c"]) == table[:2]


def test_the_first_holder_of_a_hash_keeps_it() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.register(first, b"same")
    pool.register(second, b"same")
    pool.release([second])
    pool.allocate(1)
    assert pool.find([b"same"]) == [first]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60))
def test_references_never_go_wrong(actions) -> None:
    pool = BlockPool(6)
    held: list[list[int]] = []
    counter = 0
    for action, number in actions:
        if action == 0 and number <= pool.num_free:
            held.append(pool.allocate(number))
        elif action == 1 and held:
            pool.release(held.pop(number % len(held)))
        elif action == 2 and held:
            table = held[number % len(held)]
            for block in table:
                pool.register(block, counter.to_bytes(4, "big"))
                counter += 1
        elif action == 3 and held:
            table = list(held[number % len(held)])
            pool.share(table)
            held.append(table)
        owned = {block for table in held for block in table}
        assert pool.num_used == len(owned)
        assert pool.num_used + pool.num_free == 6
    for table in held:
        pool.release(table)
    assert pool.num_free == 6
