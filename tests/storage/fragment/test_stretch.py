"""Stretches: rows are found and taken at their places, whatever of the file is cached, and nothing is cached twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.fragment.row_index import neighbours_at, places_of
from ebla.storage.fragment.stretch import STRETCH_BYTES, Stretches, is_worth_making
from ebla.storage.record.records import Block

FILE = "fragments/t/f.parquet"
# As if a block had so many bytes that four of them make a stretch.
FOUR_BLOCKS = STRETCH_BYTES // 4


class World:
    """A file of blocks that is only in memory, and a note of every decoding."""

    def __init__(self, block_rows: list[int], cache_bytes: int = 1 << 30, block_bytes: int = FOUR_BLOCKS) -> None:
        count = sum(block_rows)
        rows = [b"%06d" % at for at in range(count)]
        self.records = pa.record_batch(
            {"_row": pa.array(rows, pa.binary()), "2": pa.array(range(count), pa.int64()), "3": pa.array(rows)}
        )
        self.ends = np.cumsum([0, *block_rows]).tolist()
        self.decoded: list[tuple[int, int]] = []
        self.cache = BlockCache(cache_bytes)
        self.stretches = Stretches((FILE,), self.cache, block_rows, block_bytes, self._decode, self._of_block)

    def _decode(self, begin: int, end: int) -> pa.RecordBatch:
        self.decoded.append((begin, end))
        return self.records.slice(self.ends[begin], self.ends[end] - self.ends[begin])

    def _of_block(self, records: pa.RecordBatch, bytes_known: int | None) -> Block:
        return Block(records, txn=7, unique=True, bytes_known=bytes_known)

    def take(self, places: list[int], columns: list[str] | None = None) -> pa.RecordBatch:
        return self.stretches.take(np.array(places, dtype=np.int64), columns)

    def blocks_cached(self) -> list[int]:
        return [number for number in range(len(self.ends) - 1) if self.cache.peek((FILE, number)) is not None]


@given(st.data())
def test_records_are_taken_at_their_places_whatever_is_cached(data: st.DataObject) -> None:
    block_rows = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=14))
    world = World(block_rows, cache_bytes=data.draw(st.sampled_from([0, 2_000, 1 << 30])))
    columns = data.draw(st.sampled_from([None, ["2"], ["3", "_row"]]))
    for number in data.draw(st.sets(st.integers(0, len(block_rows) - 1))):
        world.stretches.block(number)
    for _ in range(3):
        places = sorted(data.draw(st.lists(st.integers(0, sum(block_rows) - 1), min_size=1)))
        expected = world.records.take(pa.array(places))
        assert world.take(places, columns).equals(expected if columns is None else expected.select(columns))
        begin, end = places[0], places[-1] + 1
        sliced = world.records.slice(begin, end - begin)
        assert world.stretches.slice(begin, end, columns).equals(sliced if columns is None else sliced.select(columns))
    for number in range(len(block_rows)):
        begin, end = world.ends[number : number + 2]
        assert world.stretches.block(number).records.equals(world.records.slice(begin, end - begin))


def test_a_stretch_takes_the_place_of_its_blocks_in_the_cache() -> None:
    world = World([10] * 8)
    world.stretches.block(1)
    world.stretches.block(5)
    world.take([0, 10, 20, 35])
    assert world.blocks_cached() == [5]
    assert world.decoded == [(1, 2), (5, 6), (0, 1), (2, 4)]
    world.decoded.clear()
    world.take([3, 12, 31])
    assert world.stretches.block(1) is world.stretches.block(1)
    assert world.blocks_cached() == [5]
    assert world.decoded == []


def test_a_look_up_of_few_blocks_makes_no_stretch() -> None:
    world = World([10] * 8, block_bytes=STRETCH_BYTES // 8)
    for number in range(8):
        world.stretches.block(number)
    world.take([15, 17])
    assert world.blocks_cached() == list(range(8))


def test_a_stretch_is_small_beside_the_cache() -> None:
    world = World([10] * 8, cache_bytes=8 * FOUR_BLOCKS)
    world.take([0, 10, 20, 30])
    assert world.blocks_cached() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("blocks", "touched", "at_hand", "worth"),
    [
        (1, 1, 1, False),
        (16, 4, 16, True),
        (16, 3, 16, False),
        (16, 4, 12, True),
        (16, 4, 11, False),
    ],
)
def test_a_stretch_is_made_where_much_is_touched_and_little_wasted(
    blocks: int, touched: int, at_hand: int, worth: bool
) -> None:
    assert is_worth_making(blocks, touched, at_hand) == worth


words = st.lists(st.integers(0, 40), min_size=1, max_size=40).map(lambda some: np.array(sorted(some), dtype=np.uint64))


@given(words, words)
def test_every_place_of_a_word_is_found(held: np.ndarray, asked: np.ndarray) -> None:
    asked = np.unique(asked)
    found = places_of(held, asked)
    assert found is not None
    which, places = found
    expected = [(at, place) for at, word in enumerate(asked) for place in np.flatnonzero(held == word)]
    named = np.arange(len(asked)) if which is None else which
    assert list(zip(named.tolist(), places.tolist(), strict=True)) == expected


def test_rows_are_not_looked_for_by_words_that_most_of_them_share() -> None:
    held, asked = np.ones(10_000, dtype=np.uint64), np.ones(1_000, dtype=np.uint64)
    assert places_of(held, asked) is None
    assert places_of(held[:60], asked) is not None
    assert places_of(held, asked + 1) is not None


@given(words, words, st.integers(0, 40), st.integers(1, 40))
def test_neighbours_stand_one_after_the_other(held: np.ndarray, asked: np.ndarray, begin: int, count: int) -> None:
    for some in (asked, held[begin : begin + count]):
        if len(some):
            at = neighbours_at(held, some)
            starts = [s for s in range(len(held)) if np.array_equal(held[s : s + len(some)], some)]
            ends_there = [s for s in starts if s + len(some) == len(held) or held[s + len(some)] != some[-1]]
            assert (at in ends_there) if at is not None else (not ends_there or held[ends_there[0] - 1] == some[0])
