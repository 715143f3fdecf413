from __future__ import annotations

import pytest

from backend.sched.blocks import BlockKey, BlockPool, BlockTable, PrefixIndex


def key(*token_ids: int, parent: BlockKey | None = None, image: str | None = None) -> BlockKey:
    images = ((0, len(token_ids), image, 0),) if image else ()
    return BlockKey(parent.digest if parent else b"", token_ids, images)


def filled(pool: BlockPool, *keys: BlockKey) -> BlockTable:
    """A table of full blocks that the index knows."""
    table = BlockTable(pool)
    table.grow_to(len(keys) * pool.block_size)
    table.publish(keys)
    return table


@pytest.mark.parametrize(("num_tokens", "expected"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_for(num_tokens: int, expected: int) -> None:
    assert BlockPool(10, 4).blocks_for(num_tokens) == expected


def test_all_blocks_of_the_pool_can_be_used() -> None:
    pool = BlockPool(3, 4)
    table = BlockTable(pool)
    table.grow_to(12)
    assert sorted(table.block_ids) == [0, 1, 2]
    assert (pool.num_free, pool.num_used, table.room) == (0, 3, 12)
    with pytest.raises(AssertionError, match="1 blocks wanted, 0 free"):
        table.grow_to(13)
    table.release()
    assert pool.num_free == 3
    pool.check([table])


def test_a_table_grows_only_at_its_end() -> None:
    pool = BlockPool(4, 4)
    table = BlockTable(pool)
    table.grow_to(5)
    before = table.block_ids
    table.grow_to(3)
    assert table.block_ids == before
    table.grow_to(9)
    assert table.block_ids[:2] == before
    with pytest.raises(AssertionError, match="beginning only"):
        table.share([3])


def test_a_block_released_twice_is_noticed() -> None:
    pool = BlockPool(2, 4)
    taken = pool.take(1)
    pool.release(taken)
    with pytest.raises(AssertionError, match="nobody holds it"):
        pool.release(taken)


def test_shared_blocks_are_free_when_the_last_holder_lets_go() -> None:
    pool = BlockPool(4, 2)
    first = filled(pool, key(1, 2))
    second = BlockTable(pool)
    second.share(first.block_ids)
    assert pool.num_used == 1
    assert pool.num_freed_by([first]) == 0
    assert pool.num_freed_by([first, second]) == 1
    first.release()
    assert pool.num_used == 1
    second.release()
    assert pool.num_used == 0
    pool.check([first, second])


def test_released_blocks_stay_known_until_they_are_taken_oldest_first_and_tail_first() -> None:
    pool = BlockPool(4, 2)
    a, b = key(1, 2), key(3, 4, parent=key(1, 2))
    old, new = filled(pool, a, b), filled(pool, key(5, 6))
    old.release()
    new.release()
    assert pool.num_free == 4
    assert len(pool.index.find([a, b])) == 2

    BlockTable(pool).grow_to(2)  # the fourth block, which holds nothing
    assert len(pool.index.find([a, b])) == 2
    BlockTable(pool).grow_to(2)  # then the tail of the older
    assert len(pool.index.find([a, b])) == 1
    BlockTable(pool).grow_to(2)
    assert pool.index.find([a, b]) == []
    assert len(pool.index.find([key(5, 6)])) == 1


def test_a_hit_makes_a_cached_block_the_youngest_again() -> None:
    pool = BlockPool(2, 2)
    first, second = filled(pool, key(1, 2)), filled(pool, key(3, 4))
    first.release()
    second.release()
    hit = BlockTable(pool)
    hit.share(pool.index.find([key(1, 2)]))
    hit.release()
    pool.take(1)
    assert pool.index.find([key(3, 4)]) == []
    assert len(pool.index.find([key(1, 2)])) == 1


def test_index_finds_the_longest_known_run() -> None:
    index = PrefixIndex()
    a, b, c = key(1), key(2, parent=key(1)), key(3)
    index.add(7, a)
    index.add(8, c)
    assert index.find([a, b]) == [7]
    assert index.find([b, a]) == []
    assert index.find([]) == []


def test_the_first_block_of_a_prefix_keeps_the_name() -> None:
    index = PrefixIndex()
    index.add(7, key(1))
    index.add(8, key(1))
    assert index.find([key(1)]) == [7]
    assert 8 not in index
    index.check()


def test_a_hash_collision_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal hashes of unequal contents: the index compares contents."""
    monkeypatch.setattr(BlockKey, "__hash__", lambda _: 1)
    index = PrefixIndex()
    index.add(7, key(1, 2, image="cat"))
    assert index.find([key(1, 2, image="dog")]) == []
    assert index.find([key(1, 2, image="cat")]) == [7]


def test_check_notices_a_lost_block() -> None:
    pool = BlockPool(2, 2)
    pool.take(1)
    with pytest.raises(AssertionError, match="references without holders"):
        pool.check([])
