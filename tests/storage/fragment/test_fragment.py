"""Fragments: what is written is read back, whole or in part, and damage is called damage."""

from __future__ import annotations

import datetime as dt
import errno
import gc
import io
import threading
import weakref
from bisect import bisect_left
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.errors import Corruption, FormatTooNew, MissingFile
from ebla.model import order
from ebla.model.declaration import Group, Schema
from ebla.model.keys import KeyCodec
from ebla.model.schema import GroupSchema, TableSchema
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.fragment import open_fragments, row_index
from ebla.storage.fragment.bloom import key_hash
from ebla.storage.fragment.fragment_format import FOOTER_KEY, Footer, FragmentInfo, FragmentLayout
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.fragment.fragment_writer import FragmentWriter
from ebla.storage.fragment.open_fragments import OpenFragments
from tests.support.records import Cell, cells_batch
from tests.support.simulated_files import FaultPlan, SimulatedFiles

PATH = "fragments/t/f.parquet"
SIMPLE = Schema(key={"user": "binary"}, columns={"n": "int64"}).number()
CELLS = Schema(key={"user": "string"}, groups=[Group("events", families=["*"])]).number()


class World:
    """A disk with one fragment on it."""

    def __init__(
        self,
        schema: TableSchema,
        records: pa.RecordBatch,
        *,
        rows_per_block: int | None = None,
        unique: bool = False,
        txn: int | None = None,
        cache_bytes: int = 1 << 24,
    ) -> None:
        self.files = SimulatedFiles()
        self.schema = schema
        self.group: GroupSchema = schema.groups[0]
        if rows_per_block is not None:
            row_bytes = max(1, records.nbytes // records.num_rows)
            self.group = msgspec.structs.replace(self.group, block_bytes=rows_per_block * row_bytes)
        layout = FragmentLayout.of(schema, self.group, records)
        self.cache = BlockCache(cache_bytes)
        self.txn = txn
        with FragmentWriter(self.files, PATH, "t", layout, KeyCodec(schema.key), unique=unique) as writer:
            writer.write(records)
            self.info: FragmentInfo = writer.finish(txn)

    def open(self) -> Fragment:
        return Fragment(self.files, PATH, self.cache, self.txn)

    def parquet(self) -> pq.ParquetFile:
        return pq.ParquetFile(io.BytesIO(self.files.read(PATH)))


def simple_records(rows: Sequence[bytes]) -> pa.RecordBatch:
    """One record a line; a row that stands several times has several versions, newest first."""
    txns = [(len(rows) - at) << 10 for at in range(len(rows))]
    return pa.record_batch(
        {"_row": pa.array(rows, pa.binary()), "_txn": pa.array(txns), "2": pa.array(range(len(rows)), pa.int64())}
    )


def numbers(run: Any) -> list[int]:
    return [] if run is None else run.column("2").to_pylist()


# --- whole files ---------------------------------------------------------------------------------

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5)
VALUES: list[tuple[Any, list[Any]]] = [
    (pa.bool_(), [True, None, False]),
    *((kind, [1, None, 100]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((kind, [1, None, 200]) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    *((kind, [1.5, None, float("-inf")]) for kind in (pa.float16(), pa.float32(), pa.float64())),
    (pa.string(), ["", None, "grüße"]),
    (pa.binary(), [b"", None, b"\0\xff"]),
    (pa.binary(3), [b"abc", None, b"\0\0\0"]),
    *((kind, [MOMENT.date(), None, dt.date(1815, 12, 10)]) for kind in (pa.date32(), pa.date64())),
    *((pa.timestamp(unit), [MOMENT, None, dt.datetime(1960, 1, 1)]) for unit in ("s", "ms", "us", "ns")),
    (pa.timestamp("s", "UTC"), [MOMENT.replace(tzinfo=dt.UTC), None, None]),
    (pa.timestamp("us", "Europe/Zurich"), [MOMENT.replace(tzinfo=dt.UTC), None, None]),
    *((pa.time32(unit), [dt.time(1, 2, 3), None, dt.time(0)]) for unit in ("s", "ms")),
    *((pa.time64(unit), [dt.time(1, 2, 3, 4), None, dt.time(0)]) for unit in ("us", "ns")),
    *((pa.duration(unit), [dt.timedelta(seconds=5), None, dt.timedelta(-1)]) for unit in ("s", "ms", "us", "ns")),
    (pa.decimal128(10, 2), [Decimal("1.25"), None, Decimal("-3")]),
    (pa.decimal256(50, 5), [Decimal("1.25"), None, Decimal("-3")]),
    (pa.list_(pa.int32()), [[1, None], None, []]),
    (pa.list_(pa.timestamp("s")), [[MOMENT, None], None, []]),
    (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [0.0, 0.5]]),
    (pa.struct([("x", pa.int32()), ("y", pa.string())]), [{"x": 1, "y": None}, None, {"x": None, "y": "b"}]),
    (pa.list_(pa.struct([("day", pa.date64())])), [[{"day": MOMENT.date()}, None], None, []]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_a_column_of_any_type_comes_back_as_it_was(kind: pa.DataType, values: list[Any]) -> None:
    schema = Schema(key={"row": "binary"}, columns={"v": kind}).number()
    given = pa.array(values, kind)
    records = pa.record_batch({"_row": [b"a", b"b", b"c"], "_txn": [1, 2, 3], "2": given})
    fragment = World(schema, records).open()
    run = fragment.read_range(b"", None, ["_row", "2"])
    assert run is not None
    assert run.column("2").type == kind
    assert run.column("2").equals(given)
    assert fragment.block(0).columns["2"].equals(given)


KEYS: list[tuple[Any, list[Any]]] = [
    (kind, sorted({value for value in values if value is not None}))
    for kind, values in VALUES
    if not pa.types.is_nested(kind)
    and not pa.types.is_decimal(kind)
    and not pa.types.is_duration(kind)
    and kind not in (pa.binary(3), pa.float16())
]


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=[str(kind) for kind, _ in KEYS])
def test_key_columns_of_any_type_stand_in_the_file_under_their_names(kind: pa.DataType, values: list[Any]) -> None:
    schema = Schema(key={"k": kind, "n": "int8"}, columns={"v": "int64"}).number()
    codec = KeyCodec(schema.key)
    keys = [pa.array(values, kind), pa.array([7] * len(values), pa.int8())]
    rows = codec.encode_arrays(keys)
    records = pa.record_batch({"_row": rows, "_txn": [1] * len(rows), "3": list(range(len(rows)))})
    world = World(schema, records)
    run = world.open().read_range(b"", None, ["_row", "key:1", "key:2", "3"])
    assert run is not None
    assert run.column("key:1").equals(keys[0])
    assert run.column("key:2").equals(keys[1])
    assert run.column("_row").equals(rows)
    assert world.parquet().schema_arrow.names == ["k", "n", "_row", "_txn", "v"]


def test_a_simple_key_is_its_own_row_and_stored_once() -> None:
    records = pa.record_batch({"_row": [b"a", b"b"], "_txn": [1, 2], "2": [1, 2]})
    for kind in ("binary", "string"):
        world = World(Schema(key={"user": kind}, columns={"n": "int64"}).number(), records)
        assert world.parquet().schema_arrow.names == ["user", "_txn", "n"]
        run = world.open().read_range(b"", None, ["_row"])
        assert run is not None
        assert run.column("_row").to_pylist() == [b"a", b"b"]
        assert run.column("_row").type == pa.binary()


def test_a_file_says_what_it_is() -> None:
    records = simple_records([b"a", b"a", b"b", b"c"])
    world = World(SIMPLE, records, rows_per_block=2)
    parquet = world.parquet()
    metadata = parquet.metadata
    footer = msgspec.json.decode(metadata.metadata[FOOTER_KEY.encode()], type=Footer)
    assert footer == Footer(
        format_version=1,
        table="t",
        group=SIMPLE.groups[0].id,
        layout="columns",
        rows=4,
        first=b"a",
        last=b"c",
        txn_min=1 << 10,
        txn_max=4 << 10,
        unique=False,
        has_erasures=False,
        has_partial=False,
        columns={"n": 2},
        families=[],
        block_first=[b"a", b"b"],
        block_rows=[2, 2],
    )
    assert world.info == FragmentInfo(
        PATH, 4, len(world.files.read(PATH)), b"a", b"c", 1 << 10, 4 << 10, False, False, False, world.info.tail
    )
    assert metadata.num_row_groups == 2
    sorting = metadata.row_group(0).sorting_columns
    assert [(s.column_index, s.descending) for s in sorting] == [(0, False), (1, True)]
    assert all(metadata.row_group(g).column(0).bloom_filter_length for g in range(2))
    fields = {f.name: (f.metadata or {}).get(b"PARQUET:field_id") for f in parquet.schema_arrow}
    assert (fields["user"], fields["n"]) == (b"1", b"2")


def test_a_cells_file_says_its_families_and_keeps_erasures() -> None:
    cells = [
        Cell(b"a", None, None, 9, 3 << 10, True, None),
        Cell(b"a", "click", "home", 5, 2 << 10, False, b"1"),
        Cell(b"a", "view", None, 9, 3 << 10, True, None),
        Cell(b"b", "click", "", 5, 2 << 10, False, b""),
    ]
    world = World(CELLS, cells_batch(cells))
    assert world.parquet().schema_arrow.names == ["user", "family", "qualifier", "_ts", "_txn", "_erased", "value"]
    fragment = world.open()
    assert fragment.footer.families == ["click", "view"]
    assert fragment.footer.has_erasures
    sorting = world.parquet().metadata.row_group(0).sorting_columns
    assert [(s.column_index, s.descending, s.nulls_first) for s in sorting] == [
        (0, False, False),
        (1, False, True),
        (2, False, True),
        (3, True, False),
        (4, True, False),
    ]
    run = fragment.read_range(b"", None, cells_batch(cells).schema.names)
    assert run is not None
    assert run.records.to_pylist() == cells_batch(cells).to_pylist()


def test_a_file_without_txns_gets_the_one_of_its_reference() -> None:
    records = simple_records([b"a", b"b"]).drop_columns(["_txn"])
    world = World(SIMPLE, records, txn=77 << 10, unique=True)
    assert (world.info.txn_min, world.info.txn_max) == (77 << 10, 77 << 10)
    fragment = world.open()
    assert fragment.footer.txn_min is None
    run = fragment.read_range(b"", None, ["_row", "_txn", "2"])
    assert run is not None
    assert run.txns().tolist() == [77 << 10] * 2
    assert fragment.block(0).txn == 77 << 10


def test_records_may_be_written_in_pieces() -> None:
    records = simple_records([b"%03d" % n for n in range(100)])
    files = SimulatedFiles()
    group = msgspec.structs.replace(SIMPLE.groups[0], block_bytes=1024)
    layout = FragmentLayout.of(SIMPLE, group, records)
    with FragmentWriter(files, PATH, "t", layout, KeyCodec(SIMPLE.key), unique=True) as writer:
        for begin in range(0, 100, 7):
            writer.write(records.slice(begin, 7))
        writer.write(records.slice(0, 0))
        writer.finish()
    fragment = Fragment(files, PATH, BlockCache(1 << 20))
    assert numbers(fragment.read_range(b"", None, ["2"])) == list(range(100))
    assert len(set(fragment.block_rows[:-1])) == 1


# --- parts of files ------------------------------------------------------------------------------

# Runs of equal rows, so that rows have more records than a block holds.
versioned = st.lists(st.tuples(st.sampled_from([b"", b"a", b"a\0", b"b", b"bb", b"c", b"\xff"]), st.integers(1, 6)))
some_rows = versioned.map(lambda drawn: sorted(row for row, count in drawn for _ in range(count))).filter(bool)


@given(some_rows, st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_a_range_is_read_exactly_at_every_boundary(rows: list[bytes], rows_per_block: int) -> None:
    fragment = World(SIMPLE, simple_records(rows), rows_per_block=rows_per_block).open()
    bounds = sorted({b"", *rows, *(row + b"\0" for row in rows)})
    for first in bounds:
        for last in [*bounds, None]:
            expected = [at for at, row in enumerate(rows) if first <= row and (last is None or row < last)]
            assert numbers(fragment.read_range(first, last, ["2"])) == expected
            begin, end = fragment.blocks_of(first, last)
            sliced = [fragment.block(number).slice_range(first, last) for number in range(begin, end)]
            assert [n for run in sliced for n in numbers(run)] == expected
            for number in range(begin, end):
                if fragment.footer.has_wholly(number, first, last):
                    whole = fragment.block(number).rows.to_pylist()
                    assert all(first <= row and (last is None or row < last) for row in whole)


@given(some_rows, st.integers(1, 5), st.booleans())
@settings(deadline=None, max_examples=60)
def test_every_record_of_a_row_is_found_wherever_blocks_begin(
    rows: list[bytes], rows_per_block: int, is_cached: bool
) -> None:
    world = World(SIMPLE, simple_records(rows), rows_per_block=rows_per_block, cache_bytes=1 << 24 if is_cached else 0)
    fragment = world.open()
    for row in {*rows, b"A", b"zz", b"a\0\0"}:
        expected = [at for at, other in enumerate(rows) if other == row]
        found = fragment.find(row, lambda row=row: key_hash(row))
        assert [block.columns["2"][at].as_py() for block, low, high in found for at in range(low, high)] == expected


@given(
    some_rows, st.integers(1, 5), st.sets(st.sampled_from([b"", b"A", b"a", b"a\0", b"b", b"c", b"\xff", b"\xff\0"]))
)
@settings(deadline=None, max_examples=60)
def test_many_rows_are_found_block_by_block(rows: list[bytes], rows_per_block: int, asked: set[bytes]) -> None:
    fragment = World(SIMPLE, simple_records(rows), rows_per_block=rows_per_block).open()
    keys = sorted(asked)
    runs = fragment.find_many(pa.array(keys, pa.binary()))
    assert sorted(n for run in runs for n in numbers(run)) == [at for at, row in enumerate(rows) if row in asked]


@pytest.mark.parametrize("prefix", [b"", b"a-long-common-prefix-"])
@pytest.mark.parametrize("step", [1, 3, 50])
@pytest.mark.parametrize("index_keys_min", [1, 1_000_000])
def test_many_rows_are_found_by_the_index_as_block_by_block(
    prefix: bytes, step: int, index_keys_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_index, "INDEX_KEYS_MIN", index_keys_min)
    # Two rows for each number, equal in more bytes than a word has.
    rows = sorted(prefix + b"%012d%s" % (n, end) for n in range(0, 300, 2) for end in (b"", b"tail"))
    fragment = World(SIMPLE, simple_records(rows), rows_per_block=17, unique=True).open()
    keys = sorted({*rows[::step], b"", b"\xff", *(prefix + b"%012d" % n for n in range(1, 300, 40)), rows[0], rows[-1]})
    runs = fragment.find_many(pa.array(keys, pa.binary()))
    assert [n for run in runs for n in numbers(run)] == [at for at, row in enumerate(rows) if row in keys]
    nothing = [prefix + b"%012d" % n for n in range(1, 300, 2)]
    assert fragment.find_many(pa.array(nothing, pa.binary())) == []
    beyond = [b"\xff", b"\xff\xff"]
    assert fragment.find_many(pa.array(beyond, pa.binary())) == []


@pytest.mark.parametrize("begin", [0, 1, 20, 40, 60])
@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("ties_max", [0, 64])
def test_rows_that_all_share_a_word_are_told_apart(
    begin: int, count: int, ties_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_index, "INDEX_KEYS_MIN", 1)
    monkeypatch.setattr(order, "TIES_SPARED", ties_max)
    monkeypatch.setattr(order, "TIES_MAX", ties_max)
    # As of a text and a number: the words of all rows with one text are the same.
    rows = [b"%s-and-more-%03d" % (text, n) for text in (b"a", b"b") for n in range(40)]
    fragment = World(SIMPLE, simple_records(rows), rows_per_block=17, unique=True).open()
    keys = rows[begin : begin + count]
    runs = fragment.find_many(pa.array(keys, pa.binary()))
    assert [n for run in runs for n in numbers(run)] == [*range(begin, begin + len(keys))]


tied_rows = st.builds(lambda first, rest: first + rest, st.sampled_from([b"", b"12345678"]), st.binary(max_size=2))


@given(
    st.sets(tied_rows, min_size=1, max_size=30),
    st.sets(tied_rows, min_size=1),
    st.integers(1, 30),
    st.sampled_from([0, 64]),
)
@settings(deadline=None, max_examples=100)
def test_many_rows_are_found_by_the_index_whichever_share_words(
    held: set[bytes], asked: set[bytes], rows_per_block: int, ties_max: int
) -> None:
    rows, keys = sorted(held), sorted(asked | set(sorted(held)[::2]))
    fragment = World(SIMPLE, simple_records(rows), rows_per_block=rows_per_block, unique=True).open()
    with (
        patch.multiple(order, TIES_SPARED=ties_max, TIES_MAX=ties_max),
        patch.object(row_index, "INDEX_KEYS_MIN", 1),
    ):
        runs = fragment.find_many(pa.array(keys, pa.binary()))
    assert [n for run in runs for n in numbers(run)] == [at for at, row in enumerate(rows) if row in keys]


def test_a_row_is_found_beside_one_that_shares_its_word_and_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_index, "INDEX_KEYS_MIN", 1)
    rows = [b"a", b"aaaaaaaa1", b"bbbbbbbb1", b"cccccccc1"]
    fragment = World(SIMPLE, simple_records(rows), rows_per_block=17, unique=True).open()
    runs = fragment.find_many(pa.array([b"aaaaaaaa0", b"aaaaaaaa1", b"cccccccc1"], pa.binary()))
    assert [n for run in runs for n in numbers(run)] == [1, 3]


def test_all_records_of_the_last_of_neighbouring_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_index, "INDEX_KEYS_MIN", 1)
    rows = [b"a", b"b", b"c", b"c", b"c", b"d"]  # as of cells: unique by cell, not by row
    fragment = World(SIMPLE, simple_records(rows), rows_per_block=17, unique=True).open()
    for asked in ([b"a", b"b", b"c"], [b"b", b"c"], [b"c"], [b"c", b"d"]):
        runs = fragment.find_many(pa.array(asked, pa.binary()))
        assert [n for run in runs for n in numbers(run)] == [at for at, row in enumerate(rows) if row in asked]


@pytest.mark.parametrize("index_cache_share", [1, 1 << 40], ids=["whole", "part"])
def test_rows_in_a_part_of_a_file_are_found_by_an_index_of_that_part(
    index_cache_share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_index, "INDEX_KEYS_MIN", 1)
    monkeypatch.setattr(row_index, "INDEX_CACHE_SHARE", index_cache_share)
    rows = [b"%06d" % n for n in range(0, 600, 2)]
    world = World(SIMPLE, simple_records(rows), rows_per_block=17, unique=True)
    fragment = world.open()
    for begin, end, step in ((0, 300, 1), (120, 180, 1), (120, 180, 7), (299, 300, 1), (16, 18, 1), (0, 300, 40)):
        keys = rows[begin:end:step]
        runs = fragment.find_many(pa.array([*keys, keys[-1] + b"x"], pa.binary()))
        assert [n for run in runs for n in numbers(run)] == [*range(begin, end, step)]
    assert (world.cache.get((PATH, "rows")) is not None) == (index_cache_share == 1)


def test_the_bloom_filter_keeps_blocks_from_being_read() -> None:
    rows = [b"%04d" % n for n in range(0, 1000, 2)]
    world = World(SIMPLE, simple_records(rows), rows_per_block=100)
    fragment = world.open()
    found = [fragment.find(b"%04d" % n, lambda n=n: key_hash(b"%04d" % n)) for n in range(1, 1000, 2)]
    assert not any(found)
    blocks = [number for number in range(len(fragment.block_rows)) if world.cache.get((PATH, number)) is not None]
    assert len(blocks) < len(fragment.block_rows)


def test_only_the_columns_asked_for_are_read_and_missing_ones_are_left_out() -> None:
    fragment = World(SIMPLE, simple_records([b"a"])).open()
    run = fragment.read_range(b"", None, ["2", "99", "_erased"])
    assert run is not None
    assert run.records.schema.names == ["2"]


def test_columns_are_found_by_id_whatever_they_were_called() -> None:
    schema = Schema(key={"row": "binary"}, columns={"old name": "int64"}).number()
    assert "2" in World(schema, simple_records([b"a"])).open().names


def test_a_column_called_like_one_of_the_store_s_own_is_not_taken_for_it() -> None:
    schema = Schema(key={"k": "binary"}, columns={"value": "int64", "family": "string"}).number()
    records = pa.record_batch({"_row": [b"a"], "_txn": [1], "2": [5], "3": ["x"]})
    run = World(schema, records).open().read_range(b"", None, ["2", "3"])
    assert run is not None
    assert run.records.to_pylist() == [{"2": 5, "3": "x"}]


# --- writing that fails --------------------------------------------------------------------------


def test_a_finished_file_is_synced_before_its_name_is() -> None:
    world = World(SIMPLE, simple_records([b"a"]))
    steps = [(op.kind, op.path) for op in world.files.record() if op.kind in ("sync", "sync_directory")]
    assert steps == [("sync", PATH), ("sync_directory", "fragments/t")]


def write(files: SimulatedFiles, *, finish: bool) -> None:
    records = simple_records([b"%04d" % n for n in range(500)])
    layout = FragmentLayout.of(SIMPLE, SIMPLE.groups[0], records)
    with FragmentWriter(files, PATH, "t", layout, KeyCodec(SIMPLE.key), unique=True) as writer:
        writer.write(records)
        if finish:
            writer.finish()


def test_an_unfinished_file_is_removed() -> None:
    files = SimulatedFiles()
    write(files, finish=False)
    assert not files.exists(PATH)


@pytest.mark.parametrize("kind", ["write", "sync", "sync_directory"])
def test_a_full_disk_fails_the_write_and_leaves_no_file_behind(kind: str) -> None:
    files = SimulatedFiles(FaultPlan.fail_when(lambda operation: operation.kind == kind, errno.ENOSPC))
    with pytest.raises(OSError, match=r"(?i)no space"):
        write(files, finish=True)
    assert not files.exists(PATH)


# --- damage --------------------------------------------------------------------------------------


def damaged(data: bytes) -> Fragment:
    files = SimulatedFiles()
    files.put(PATH, data)
    return Fragment(files, PATH, BlockCache(1 << 20))


@given(st.binary(max_size=300))
def test_random_bytes_are_no_fragment(data: bytes) -> None:
    with pytest.raises(Corruption, match=PATH):
        damaged(data)


@pytest.mark.parametrize("kept", [0, 4, 11, 0.5, 0.95, -1])
def test_a_file_that_was_cut_is_no_fragment(kept: float) -> None:
    data = World(SIMPLE, simple_records([b"%04d" % n for n in range(300)])).files.read(PATH)
    with pytest.raises(Corruption, match=PATH):
        damaged(data[: int(kept * len(data)) if isinstance(kept, float) else kept])


def test_a_flipped_bit_in_any_page_is_found() -> None:
    world = World(SIMPLE, simple_records([b"%06d" % (n * 7919 % 1_000_000) for n in range(400)]))
    data = world.files.read(PATH)
    columns = [world.parquet().metadata.row_group(0).column(n) for n in range(3)]
    for column in columns:
        # The end of the only page: behind its header, before the next column.
        end = column.data_page_offset + column.total_compressed_size
        for position in range(end - 12, end):
            flipped = data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]
            fragment = damaged(flipped)
            with pytest.raises(Corruption, match=PATH) as caught:
                fragment.read_range(b"", None, ["_row", "_txn", "2"])
            assert caught.value.file == PATH
            with pytest.raises(Corruption):
                fragment.block(0)


def test_flipped_bits_never_bring_out_another_kind_of_error() -> None:
    world = World(SIMPLE, simple_records([b"%03d" % n for n in range(60)]), rows_per_block=20)
    data = world.files.read(PATH)
    refused = 0
    for position in range(0, len(data), 5):
        flipped = data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]
        try:
            fragment = damaged(flipped)
            fragment.read_range(b"", None, ["_row", "_txn", "2"])
            fragment.find(b"030", lambda: key_hash(b"030"))
        except (Corruption, FormatTooNew):
            refused += 1
    assert refused > len(data) / 5 / 2


def test_a_parquet_file_of_somebody_else_is_no_fragment() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"_row": [b"a"]}), sink)
    with pytest.raises(Corruption, match="not a fragment"):
        damaged(sink.getvalue())


def test_a_fragment_of_a_later_format_is_not_guessed_at() -> None:
    world = World(SIMPLE, simple_records([b"a"]))
    footer = msgspec.structs.replace(world.open().footer, format_version=2)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, pa.schema([("user", pa.binary())])) as writer:
        writer.write_table(pa.table({"user": pa.array([b"a"], pa.binary())}))
        writer.add_key_value_metadata({FOOTER_KEY: msgspec.json.encode(footer).decode()})
    with pytest.raises(FormatTooNew, match="newer version"):
        damaged(sink.getvalue())


def test_a_footer_that_does_not_list_the_row_groups_is_damage() -> None:
    world = World(SIMPLE, simple_records([b"a", b"b"]))
    footer = msgspec.structs.replace(world.open().footer, block_rows=[1, 1], block_first=[b"a", b"b"])
    schema = pa.schema([pa.field("user", pa.binary(), metadata={b"PARQUET:field_id": b"1"})])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema) as writer:
        writer.write_table(pa.table({"user": pa.array([b"a", b"b"], pa.binary())}, schema=schema))
        writer.add_key_value_metadata({FOOTER_KEY: msgspec.json.encode(footer).decode()})
    with pytest.raises(Corruption, match="row groups"):
        damaged(sink.getvalue())


def test_a_file_that_is_not_there_is_missing_and_not_damaged() -> None:
    with pytest.raises(MissingFile, match=PATH):
        Fragment(SimulatedFiles(), PATH, BlockCache(1))


# --- open files ----------------------------------------------------------------------------------


def test_open_fragments_are_kept_and_the_least_recently_used_is_closed() -> None:
    files = SimulatedFiles()
    data = World(SIMPLE, simple_records([b"a"])).files.read(PATH)
    for name in "abc":
        files.put(f"fragments/t/{name}.parquet", data)
    opened = OpenFragments(files, BlockCache(1 << 20), open_max=2)
    a, b = opened.get("fragments/t/a.parquet"), opened.get("fragments/t/b.parquet")
    assert opened.get("fragments/t/a.parquet") is a
    opened.get("fragments/t/c.parquet")
    assert opened.get("fragments/t/a.parquet") is a
    assert opened.get("fragments/t/b.parquet") is not b
    assert numbers(b.read_range(b"", None, ["2"])) == [0]  # whoever holds it reads on


def test_blocks_are_decoded_once_and_kept_in_the_cache() -> None:
    world = World(SIMPLE, simple_records([b"%02d" % n for n in range(20)]), rows_per_block=5)
    fragment = world.open()
    assert fragment.block(1) is fragment.block(1)
    assert fragment.block(1).first == b"05"
    assert bisect_left(list(fragment.first_rows), b"07") - 1 == 1


def test_every_damage_behind_the_pages_is_noticed_when_the_file_is_opened() -> None:
    world = World(SIMPLE, simple_records([b"%03d" % n for n in range(20)]))
    data = world.files.read(PATH)
    tail = world.info.tail
    assert 8 < tail.size < len(data)
    Fragment(world.files, PATH, BlockCache(1), None, tail)
    for at in range(len(data) - tail.size, len(data)):
        damaged = SimulatedFiles()
        damaged.put(PATH, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(Corruption, match=PATH):
            Fragment(damaged, PATH, BlockCache(1), None, tail)
    shorter = SimulatedFiles()
    shorter.put(PATH, data[-tail.size + 1 :])
    with pytest.raises(Corruption, match=PATH):
        Fragment(shorter, PATH, BlockCache(1), None, tail)


def test_a_fragment_that_nobody_needs_is_gone_at_once_whatever_of_it_is_cached() -> None:
    world = World(SIMPLE, simple_records([b"%04d" % n for n in range(400)]), rows_per_block=50, unique=True)
    opened = OpenFragments(world.files, world.cache, 4)
    fragment = opened.get(PATH)
    fragment.block(3)
    fragment.find_many(pa.array([b"%04d" % n for n in range(0, 400, 3)], pa.binary()))
    fragment.txn_span(1)
    assert world.cache.stats()["entries"] >= 2
    is_there = weakref.ref(fragment)
    footer = weakref.ref(fragment._file._metadata)
    gc.disable()  # what is left to the collector stays for minutes, with a footer of megabytes and an open file
    try:
        opened.forget([PATH])
        del fragment
        assert is_there() is None
        assert footer() is None
    finally:
        gc.enable()


def test_whoever_reads_a_block_reads_the_file_himself() -> None:
    world = World(SIMPLE, simple_records([b"%04d" % n for n in range(500)]), rows_per_block=50)
    readers = set()

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            readers.add(threading.get_ident())
            return super().read(size)

    with patch.object(world.files, "open_input", lambda path: pa.PythonFile(Watched(world.files.read(path)), "r")):
        fragment = world.open()
    fragment.block(3)
    assert fragment.read_blocks(0, 10, ["_row", "2"]).num_rows == 500
    assert readers == {threading.get_ident()}


def test_files_whose_footers_take_much_are_closed_and_their_room_goes_back_to_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(SIMPLE, simple_records([b"%04d" % n for n in range(500)]), rows_per_block=50)
    names = [f"f{n}.parquet" for n in range(12)]
    for name in names:
        with world.files.create(name) as copy:
            copy.write(world.files.read(PATH))
    cache = BlockCache(1 << 20)
    opened = OpenFragments(world.files, cache, open_max=100)
    each = opened.get(names[0]).footer_bytes
    assert each > 10 * 650
    assert cache.room == cache.bytes_max - each
    monkeypatch.setattr(open_fragments, "FOOTER_BYTES_MAX", 9 * each)
    monkeypatch.setattr(cache, "_bytes_max", 10 * each)
    for name in names:
        opened.get(name)
    assert [opened.find(name) is not None for name in names] == [False] * 3 + [True] * 9
    opened.forget(names)
    assert cache.room == cache.bytes_max
