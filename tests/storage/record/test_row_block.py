"""Blocks of one row: a block like any other, made without Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.storage.log.log_entry import LogBlock, LogEntry, LogPart, decode_entry, encode_entry
from ebla.storage.merge.memory import combine
from ebla.storage.record.records import ROW, Block
from ebla.storage.record.row_block import Physical, RowBlock, RowPlan, combine_rows, is_plain, plan_of

WIDE = RowPlan({"2": pa.int64(), "3": pa.string(), "4": pa.timestamp("us", "UTC"), "5": pa.bool_()})
NARROW = RowPlan({"3": pa.string()})

values = st.tuples(
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    st.none() | st.text(max_size=9).map(str.encode),
    st.none() | st.integers(-(1 << 62), 1 << 62),
    st.none() | st.booleans(),
)
rows = st.binary(max_size=9)


def row_block(plan: RowPlan, row: bytes, given_values: tuple[Physical, ...], txn: int) -> RowBlock:
    size = plan.size_bytes(row, given_values)
    return RowBlock(plan, row, given_values, txn=txn, size_bytes=size, index=txn)


def plain_block(block: RowBlock) -> Block:
    return Block(block.records, txn=block.txn, unique=True, index=block.index)


@given(rows, values)
def test_the_message_is_what_arrow_would_write(row: bytes, given_values: tuple[Physical, ...]) -> None:
    block = row_block(WIDE, row, given_values, 5)
    assert block.message == block.records.serialize().to_pybytes()


@given(rows, values)
def test_its_cells_are_what_arrow_gives(row: bytes, given_values: tuple[Physical, ...]) -> None:
    number, text, _, flag = given_values
    block = row_block(WIDE, row, (number, text, 1_700_000_000_123_456, flag), 5)
    cells = block.records.to_pylist()[0]
    del cells[ROW]
    assert block.cells == cells
    assert list(map(type, block.cells.values())) == list(map(type, cells.values()))


@given(rows, values, rows)
def test_it_answers_as_any_block_of_one_row_does(row: bytes, given_values: tuple[Physical, ...], asked: bytes) -> None:
    block = row_block(WIDE, row, given_values, 5)
    plain = plain_block(block)
    begin, end = block.find(asked)
    other_begin, other_end = plain.find(asked)
    assert end - begin == other_end - other_begin
    assert block.lower_bound(asked) == plain.lower_bound(asked)
    if asked == row:
        assert (begin, end) == (other_begin, other_end) == (0, 1)
        assert block.find_many(pa.array([asked], pa.binary())).tolist() == [0]
    names = ("first", "last", "txn", "txn_min", "txn_max", "unique", "has_erasures", "has_partial", "index")
    assert [getattr(block, name) for name in names] == [getattr(plain, name) for name in names]
    assert len(block) == len(plain) == 1
    assert block.rows.equals(plain.rows)
    assert block.columns.keys() == plain.columns.keys()
    one, other = block.slice_range(asked, None), plain.slice_range(asked, None)
    assert (one is None) == (other is None)
    assert one is None or other is None or one.records.equals(other.records)


@given(st.lists(st.tuples(rows, values), min_size=1, max_size=12))
def test_rows_are_combined_as_blocks_are(lines: list[tuple[bytes, tuple[Physical, ...]]]) -> None:
    blocks = [row_block(WIDE, row, given_values, txn) for txn, (row, given_values) in enumerate(lines, 1)]
    expected = combine(list(map(plain_block, blocks)), is_cells=False)
    for combined in (combine_rows(blocks), combine_rows(blocks[::-1]), combine(blocks, is_cells=False)):
        assert combined.records.equals(expected.records)
        assert combined.records.schema.equals(expected.records.schema)
        assert (combined.txn_min, combined.txn_max, combined.unique) == (1, len(lines), expected.unique)
        assert combined.index == len(lines)


def test_rows_of_several_shapes_and_larger_blocks_are_combined_together() -> None:
    records = pa.record_batch({"_row": pa.array([b"a", b"d"], pa.binary()), "2": [10, 20]})
    blocks: list[Block] = [
        row_block(WIDE, b"b", (1, b"x", None, True), 1),
        Block(records, txn=2, unique=True, index=2),
        row_block(NARROW, b"b", (b"y",), 3),
        row_block(NARROW, b"a", (None,), 4),
    ]
    expected = combine([plain_block(b) if isinstance(b, RowBlock) else b for b in blocks], is_cells=False)
    combined = combine(blocks, is_cells=False)
    assert combined.records.equals(expected.records)
    assert combined.records["_txn"].to_pylist() == [4, 2, 3, 1, 2]
    assert combined.index == 4


def test_a_row_in_the_log_is_read_back_as_its_records() -> None:
    block = row_block(WIDE, b"key", (1, b"text", 3, None), 5)
    logged = LogBlock(1, 5, 5, 5, WIDE.schema_bytes, None, block.message)
    by_records = LogBlock(1, 5, 5, 5, WIDE.schema_bytes, block.records)

    def payload_of(one: LogBlock) -> bytes:
        return b"".join(bytes(b) for b in encode_entry(LogEntry(5, (LogPart("t", "tablet", 1, 1, 5, 5, 5, (one,)),))))

    payload = payload_of(logged)
    assert payload == payload_of(by_records)
    (found,) = decode_entry(pa.py_buffer(payload)).parts[0].blocks
    assert found.records.equals(block.records)
    assert (logged.rows, logged.has_txn_column) == (by_records.rows, by_records.has_txn_column) == (1, False)


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.float32(), pa.large_string(), pa.list_(pa.int8()), pa.null()])
def test_what_has_no_simple_buffers_or_is_coarser_than_python_is_not_plain(kind: pa.DataType) -> None:
    assert not is_plain(kind)


def test_plans_are_shared() -> None:
    assert plan_of(("2",), (pa.int64(),)) is plan_of(("2",), (pa.int64(),))


def test_a_name_that_no_block_has_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = row_block(NARROW, b"a", (b"b",), 1).nothing
