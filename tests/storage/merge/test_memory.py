"""Memory fragments: values that are replaced, blocks that are combined, and nothing that is lost."""

from __future__ import annotations

import math
import sys
from random import Random
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.storage.merge.memory import (
    COMBINE_BLOCKS_MIN,
    COMBINE_BYTES_MAX,
    ERASURE_BYTES,
    Memory,
    MemoryErasure,
    choose_blocks,
    combine,
)
from ebla.storage.merge.merge import merge_cells, merge_columns
from ebla.storage.merge.rules import Rules
from ebla.storage.record.records import Block, Run
from tests.support.records import (
    COLUMN_TYPES,
    Cell,
    ColumnsRun,
    all_rules,
    cell_runs,
    cells_batch,
    columns_runs,
)


def columns_block(run: ColumnsRun) -> Block:
    return Block(run.batch(), txn=run.txn)


# --- combine -------------------------------------------------------------------------------------


@given(columns_runs())
@settings(deadline=None)
def test_combined_columns_keep_every_record_and_say_what_each_sets(runs: list[ColumnsRun]) -> None:
    combined = combine([columns_block(run) for run in runs], is_cells=False)
    ids = sorted({i for run in runs for i in run.ids})
    found = []
    for record in combined.records.to_pylist():
        named = record.get("_set")
        sets = ids if named is None else [int(text) for text in named.split()]
        values = {i: record[str(i)] for i in sets}
        found.append((record["_row"], -record["_txn"], bool(record.get("_erased")), values))
    expected = [(r.row, -r.txn, r.erased, {i: r.value(i) for i in run.sets(r)}) for run in runs for r in run.records]
    key = lambda r: (r[0], r[1], str(r[3]))  # noqa: E731 - the same record may lie in two runs
    assert [record[:2] for record in found] == sorted(record[:2] for record in expected)
    assert sorted(found, key=key) == sorted(expected, key=key)


@given(cell_runs())
@settings(deadline=None)
def test_combined_cells_keep_every_record_in_order(runs: list[list[Cell]]) -> None:
    combined = combine([Block(cells_batch(run)) for run in runs], is_cells=True)
    expected = sorted((cell for run in runs for cell in run), key=lambda cell: cell.order)
    assert combined.records.num_rows == len(expected)
    erased = any(cell.erased for cell in expected)
    order = ["_row", "family", "qualifier", "_ts", "_txn", *(["_erased"] if erased else []), "value"]
    found = [tuple(r.values()) for r in combined.records.select(order).to_pylist()]
    assert found == [tuple(c) if erased else (*c[:5], c.value) for c in expected]


@given(columns_runs(), all_rules())
@settings(deadline=None)
def test_a_reader_sees_the_same_before_and_after_combining_columns(runs: list[ColumnsRun], rules: Rules) -> None:
    blocks = [columns_block(run) for run in runs]
    before = merge_columns([Run(b.records, b.txn) for b in blocks], COLUMN_TYPES, rules)
    combined = combine(blocks, is_cells=False)
    after = merge_columns([Run(combined.records, combined.txn)], COLUMN_TYPES, rules)
    assert after.rows.equals(before.rows)
    assert {i: c.to_pylist() for i, c in after.columns.items()} == {i: c.to_pylist() for i, c in before.columns.items()}


@given(cell_runs(), all_rules())
@settings(deadline=None)
def test_a_reader_sees_the_same_before_and_after_combining_cells(runs: list[list[Cell]], rules: Rules) -> None:
    blocks = [Block(cells_batch(run)) for run in runs]
    before = merge_cells([Run(b.records, b.txn) for b in blocks], rules)
    after = merge_cells([Run(combine(blocks, is_cells=True).records)], rules)
    for name in ("rows", "family", "qualifier", "timestamp", "txn", "value"):
        assert getattr(after, name).equals(getattr(before, name))


def test_a_combined_block_knows_its_txns_and_the_highest_index() -> None:
    one = Block(_plain(b"a", b"c"), txn=5, unique=True, index=9)
    two = Block(_plain(b"b"), txn=6, unique=True, index=10)
    both = combine([one, two], is_cells=False)
    assert (both.txn, both.txn_min, both.txn_max) == (None, 5, 6)
    assert both.index == 10
    assert both.unique
    assert not combine([one, Block(_plain(b"a"), txn=7)], is_cells=False).unique


def _plain(*rows: bytes) -> pa.RecordBatch:
    return pa.record_batch({"_row": pa.array(rows, pa.binary()), "3": pa.array([1] * len(rows))})


# --- the value -----------------------------------------------------------------------------------


def memory_of(*blocks: Block) -> Memory:
    memory = Memory()
    for block in blocks:
        memory = memory.with_block(block)
    return memory


def block_at(txn: int, size: int = 1) -> Block:
    return Block(_plain(*(b"%06d" % n for n in range(size))), txn=txn)


@given(st.lists(st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=3), max_size=6))
def test_blocks_are_found_by_the_rows_between_their_ends(several: list[list[bytes]]) -> None:
    memory = Memory()
    for rows in several:
        memory.blocks_around(b"a")  # what it has made of fewer blocks is not what it says of more
        memory = memory.with_block(Block(_plain(*sorted(set(rows))), txn=1))
    for row in (b"a", b"bb", b"c", b"e"):
        around = [block for block in memory.blocks if block.first <= row <= block.last]
        assert sorted(map(id, memory.blocks_around(row))) == sorted(map(id, around))


ERASURE = MemoryErasure(b"a", None, 4, 3)


class TestMemory:
    def test_a_former_value_finds_its_own_blocks_alone(self) -> None:
        values = [memory_of(block_at(1))]
        row = values[0].blocks[0].first
        assert len(values[0].blocks_around(row)) == 1  # makes the index, which those after it share
        for txn in (2, 3, 4):
            values.append(values[-1].with_block(block_at(txn)))
        for count, value in enumerate(values, start=1):
            assert list(value.blocks_around(row)) == list(value.blocks)[:count]

    def test_adding_leaves_the_former_value_alone(self) -> None:
        before = memory_of(block_at(1))
        after = before.with_block(block_at(2)).with_erasure(ERASURE)
        assert len(before.blocks) == 1
        assert (len(after.blocks), after.erasures) == (2, (ERASURE,))
        assert after.bytes == sum(block.bytes for block in after.blocks) + ERASURE_BYTES
        assert (Memory().txn_min, before.txn_min, after.txn_min) == (None, 1, 1)
        assert Memory().with_erasure(ERASURE).txn_min == 4

    def test_two_successors_of_one_memory_do_not_see_each_other(self) -> None:
        one, two, three, four = (block_at(txn) for txn in (1, 2, 3, 4))
        base = Memory().with_block(one)
        left = base.with_block(two)
        right = base.with_block(three)
        longer = left.with_block(four)
        assert (base.blocks, left.blocks) == ((one,), (one, two))
        assert (right.blocks, longer.blocks) == ((one, three), (one, two, four))
        assert [memory.count for memory in (base, left, right, longer)] == [1, 2, 2, 3]
        assert longer.bytes == one.bytes + two.bytes + four.bytes
        assert longer == Memory((one, two, four), bytes=longer.bytes)
        assert longer != right

    def test_the_empty_memory_does_not_keep_what_others_add_to_it(self) -> None:
        empty = Memory()
        block = block_at(1)
        references = sys.getrefcount(block)
        memory = empty.with_block(block)
        assert memory.blocks == (block,)
        del memory
        assert sys.getrefcount(block) == references
        assert empty.blocks == ()

    def test_blocks_are_replaced_where_the_first_of_them_stood(self) -> None:
        one, two, three, four = (block_at(n) for n in (1, 2, 3, 4))
        combined = combine([two, four], is_cells=False)
        memory = memory_of(one, two, three, four).with_erasure(ERASURE).replace([two, four], combined)
        assert memory.blocks == (one, combined, three)
        assert memory.erasures == (ERASURE,)
        assert memory.bytes == one.bytes + combined.bytes + three.bytes + ERASURE_BYTES

    def test_nothing_is_replaced_if_one_of_the_blocks_was_flushed_meanwhile(self) -> None:
        one, two = block_at(1), block_at(2)
        memory = memory_of(two)
        assert memory.replace([one, two], combine([one, two], is_cells=False)) is memory

    def test_a_flush_takes_out_what_it_took_and_nothing_that_looks_like_it(self) -> None:
        one, same, later = block_at(1), block_at(1), block_at(5)
        twin = MemoryErasure(b"a", None, 4, 3)
        memory = memory_of(one, same, later).with_erasure(ERASURE).with_erasure(twin)
        left = memory.without([one], [ERASURE])
        assert left.blocks == (same, later)
        assert left.erasures[0] is twin
        assert left.bytes == same.bytes + later.bytes + ERASURE_BYTES
        assert left.without(left.blocks, left.erasures) == Memory()

    def test_committed_is_what_lies_wholly_at_or_below_a_txn(self) -> None:
        one, five = block_at(1), block_at(5)
        mixed = combine([block_at(2), block_at(6)], is_cells=False)
        memory = memory_of(one, mixed, five).with_erasure(ERASURE)
        assert memory.committed(5) == ((one, five), (ERASURE,))
        assert memory.committed(3) == ((one,), ())
        assert memory.committed(6)[0] == (one, mixed, five)


# --- which blocks -------------------------------------------------------------------------------------


class _Sized:
    """As much of a block as the choice looks at. `moves` counts how often its records were moved."""

    def __init__(self, length: int, moves: int = 0, size_bytes: int = 0) -> None:
        self.length = length
        self.moves = moves
        self.bytes = size_bytes

    def __len__(self) -> int:
        return self.length


def combined(blocks: list[Any]) -> list[Any]:
    """Fold until nothing is chosen any more."""
    while chosen := choose_blocks(blocks):
        assert len(chosen) > 1
        at = blocks.index(chosen[0])
        size_bytes = sum(block.bytes for block in chosen)
        assert size_bytes <= 2 * COMBINE_BYTES_MAX
        made = _Sized(
            sum(len(block) for block in chosen),
            1 + max(block.moves for block in cast(list[_Sized], chosen)),
            size_bytes,
        )
        blocks = [block for block in blocks if block not in chosen]
        blocks.insert(at, made)
    return blocks


@given(st.lists(st.integers(1, 1 << 20), max_size=200))
def test_combining_leaves_a_handful_of_blocks_whatever_their_sizes(sizes: list[int]) -> None:
    left = combined([_Sized(size) for size in sizes])
    assert sum(map(len, left)) == sum(sizes)
    assert len(left) < COMBINE_BLOCKS_MIN or len(left) <= 1 + math.log(sum(sizes), 3)


@pytest.mark.parametrize("largest", [1, 100])
def test_a_record_is_moved_a_logarithmic_number_of_times(largest: int) -> None:
    blocks: list[Any] = []
    dice = Random(0)
    for _ in range(20_000):
        blocks = combined([*blocks, _Sized(dice.randint(1, largest))])
        assert max(block.moves for block in blocks) <= 1 + math.log(sum(map(len, blocks)), 1.5)
    assert max(block.moves for block in blocks) > 1


def test_blocks_that_differ_too_much_are_left_alone_however_many_they_are() -> None:
    assert choose_blocks([_Sized(4**n) for n in range(COMBINE_BLOCKS_MIN + 2)]) == []


def test_a_large_block_is_not_rewritten_for_a_few_small_ones() -> None:
    blocks = [_Sized(1_000_000), *(_Sized(10) for _ in range(COMBINE_BLOCKS_MIN))]
    chosen = choose_blocks(blocks)
    assert blocks[0] not in chosen
    assert len(chosen) == COMBINE_BLOCKS_MIN


@given(st.lists(st.integers(1, 3 * COMBINE_BYTES_MAX), max_size=200))
def test_combining_large_blocks_takes_a_bounded_number_of_bytes_and_leaves_no_more_than_needed(
    sizes: list[int],
) -> None:
    left = combined([_Sized(size // 100 + 1, size_bytes=size) for size in sizes])
    assert sum(block.bytes for block in left) == sum(sizes)
    small = [block for block in left if block.bytes < COMBINE_BYTES_MAX]
    assert len(left) < COMBINE_BLOCKS_MIN or len(small) <= 2 + math.log(COMBINE_BYTES_MAX, 3)


def test_few_blocks_are_left_alone() -> None:
    assert choose_blocks([_Sized(1) for _ in range(COMBINE_BLOCKS_MIN - 1)]) == []
