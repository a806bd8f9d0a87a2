"""Blocks: sorted records that can be searched by row."""

from __future__ import annotations

from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.model import order
from ebla.storage.record.records import Block, Run, value_names

row = st.builds(
    lambda prefix, rest: prefix + rest,
    st.sampled_from([b"", b"12345678", b"long-prefix-"]),
    st.lists(st.sampled_from([0x00, 0x61, 0xFF]), max_size=4).map(bytes),
)
some_rows = st.lists(row, min_size=1, max_size=25).map(sorted)


def block_of(rows: list[bytes]) -> Block:
    return Block(pa.record_batch({"_row": pa.array(rows, pa.binary()), "3": list(range(len(rows)))}), txn=7)


@given(some_rows, row)
def test_find_returns_exactly_the_records_of_a_row(rows: list[bytes], asked: bytes) -> None:
    block = block_of(rows)
    for one in {asked, *rows}:
        begin, end = block.find(one)
        assert list(range(begin, end)) == [at for at, row in enumerate(rows) if row == one]


@given(some_rows, st.sets(row, max_size=10), st.sampled_from([0, order.TIES_SPARED]))
@settings(deadline=None)
def test_find_many_returns_the_records_of_all_rows_in_order(
    rows: list[bytes], asked: set[bytes], ties_spared: int
) -> None:
    block = block_of(rows)
    within = sorted(one for one in asked | set(rows[::2]) if rows[0] <= one <= rows[-1])
    with patch.multiple(order, TIES_SPARED=ties_spared, TIES_MAX=0):
        places = block.find_many(pa.array(within, pa.binary()))
    assert places.tolist() == [at for at, row in enumerate(rows) if row in within]


@given(some_rows, row)
def test_lower_bound_is_the_first_row_that_is_not_less(rows: list[bytes], bound: bytes) -> None:
    for one in {bound, *rows}:
        assert block_of(rows).lower_bound(one) == sum(row < one for row in rows)


@given(some_rows, row, st.none() | row)
def test_a_slice_holds_the_rows_of_its_range(rows: list[bytes], first: bytes, last: bytes | None) -> None:
    run = block_of(rows).slice_range(first, last)
    found = [] if run is None else run.records.column("_row").to_pylist()
    assert found == [row for row in rows if first <= row and (last is None or row < last)]
    assert run is None or run.txn == 7


def test_a_block_knows_its_ends_its_txns_and_what_is_special_about_it() -> None:
    batch = pa.record_batch(
        {
            "_row": pa.array([b"a", b"b"], pa.binary()),
            "_txn": pa.array([9, 4], pa.int64()),
            "_erased": pa.array([None, True]),
            "_set": pa.array(["3", None]),
            "3": pa.array([1, None]),
        }
    )
    block = Block(batch)
    assert (block.first, block.last, len(block)) == (b"a", b"b", 2)
    assert (block.txn, block.txn_min, block.txn_max) == (None, 4, 9)
    assert block.has_erasures
    assert block.has_partial
    assert list(block.columns) == batch.schema.names
    assert value_names(batch) == ["3"]
    plain = block_of([b"a"])
    assert (plain.txn_min, plain.txn_max) == (7, 7)
    assert not plain.has_erasures
    assert not plain.has_partial


def test_a_block_holds_at_least_one_record() -> None:
    with pytest.raises(AssertionError):
        block_of([])


def test_a_run_gives_its_txn_to_every_record() -> None:
    batch = pa.record_batch({"_row": pa.array([b"a", b"b"], pa.binary())})
    assert Run(batch, 5).txns().tolist() == [5, 5]
    assert Run(batch.append_column("_txn", pa.array([3, 2]))).txns().tolist() == [3, 2]


def test_a_run_joins_the_chunks_of_a_table() -> None:
    table = pa.concat_tables([pa.table({"3": [1]}), pa.table({"3": [2]})])
    column = Run(table, 1).column("3")
    assert isinstance(column, pa.Array)
    assert column.to_pylist() == [1, 2]
    assert Run(table, 1).column("4") is None


@pytest.mark.parametrize("around", [[], [b"\0cold"]], ids=["alone", "among others"])
def test_the_records_of_a_hot_row_are_found_without_a_look_at_each(
    around: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    block = block_of([*around, *[b"hot"] * 5_000])
    looked: list[int] = []
    row_at = Block.row_at
    monkeypatch.setattr(Block, "row_at", lambda self, place: looked.append(place) or row_at(self, place))
    assert block.find(b"hot") == (len(around), len(block))
    assert block.lower_bound(b"hot") == len(around)
    assert len(looked) <= 3
