"""Cells of single rows as blocks: combined, they are what the merge makes of the same records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebla.storage.merge.memory import combine
from ebla.storage.record.cell_block import CellBlock, CellPlan
from ebla.storage.record.records import Block

CELLS = [("", "bare"), ("a", ""), ("a", "x"), ("a", "é"), ("b", "x")]
PUTS = st.lists(
    st.tuples(st.sampled_from([b"", b"a", b"b"]), st.sets(st.sampled_from(CELLS), min_size=1), st.binary(max_size=9)),
    min_size=2,
    max_size=8,
)


def cell_block(row: bytes, cells: set[tuple[str, str]], value: bytes, txn: int) -> CellBlock:
    plan = CellPlan(sorted(cells))
    values = tuple(value + b"%d" % at for at in range(len(cells)))
    return plan.block(row, values, txn, plan.size_bytes(row, values), txn >> 10)


def plain(block: Block) -> Block:
    return Block(block.records, txn=block.txn, unique=True, index=block.index, bytes_known=block.bytes)


@given(PUTS, st.booleans())
def test_many_are_combined_to_the_same_records_as_by_the_merge(
    puts: list[tuple[bytes, set[tuple[str, str]], bytes]], with_others: bool
) -> None:
    blocks: list[Block] = [cell_block(*put, txn=at << 10) for at, put in enumerate(puts, start=1)]
    if with_others:
        blocks[0] = plain(blocks[0])
    together = combine(blocks, is_cells=True)
    expected = combine([plain(block) for block in blocks], is_cells=True)
    assert together.records.equals(expected.records)
    assert together.records.schema.equals(expected.records.schema)
    assert (together.unique, together.index) == (expected.unique, expected.index)
    assert (together.txn_min, together.txn_max) == (expected.txn_min, expected.txn_max)


def test_a_row_is_found_and_nothing_beside_it() -> None:
    block = cell_block(b"row", {("a", "x"), ("b", "x")}, b"v", 1 << 10)
    assert (block.find(b"row"), block.find(b"rox"), len(block), block.cells_per_row) == ((0, 2), (0, 0), 2, 2)
    assert [block.lower_bound(row) for row in (b"", b"row", b"rox")] == [0, 0, 2]
    assert block.records.num_rows == 2
    assert not block.has_erasures
