"""Rows written in bulk are the rows that puts would have made, in whatever pieces and order they come."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebla.client.database import Database
from ebla.client.embedded.opening import wire
from ebla.client.table import Table
from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.direct import bulk_writer
from ebla.direct.bulk_writer import BulkWriter
from ebla.errors import InvalidBatch, InvalidKey, RequestError, StoreError, UnknownColumn
from ebla.model.keys import KeyCodec
from ebla.service.job_files import job_of
from ebla.settings import Settings
from ebla.tablet.jobs.bulk import layers_of
from tests.direct.bulk_world import (
    NUMBERS,
    USERS,
    a_by_k,
    commit_of,
    files_of,
    loaded,
    numbers,
    rows_of,
    writer_for,
    written,
)
from tests.support.inside import carry_out, state_of
from tests.support.simulated_files import FaultPlan, SimulatedFiles


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_writer, "SORTED_CHUNK_ROWS", 3)
    monkeypatch.setattr(bulk_writer, "UNSORTED_CHUNK_BYTES", 200)


TYPES = {
    "user": pa.string(),
    "day": pa.int32(),
    "name": pa.string(),
    "age": pa.int64(),
    "score": pa.float64(),
    "tags": pa.list_(pa.string()),
    "click:home": pa.binary(),
    "view": pa.map_(pa.string(), pa.binary()),
}
KEYS = st.tuples(st.sampled_from(["ada", "bob", "b\0b", "", "étienne", "zoe"]), st.integers(-2, 2))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.none() | st.sampled_from(["x", "y", "ß"]),
    "age": st.none() | st.integers(0, 5),
    "score": st.none() | st.sampled_from([0.5, -1.0]),
    "tags": st.none() | st.lists(st.sampled_from(["p", "q"]), max_size=2),
    "click:home": st.none() | st.sampled_from([b"1", b"22"]),
    "view": st.none() | st.dictionaries(st.sampled_from(["m", "n"]), st.sampled_from([b"v", b"w"]), max_size=2),
}


@st.composite
def shapes(draw: st.DrawFn) -> tuple[list[str], list[dict[str, Any]]]:
    """Some columns of the table, and rows that have them."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True))
    rows = draw(st.lists(st.tuples(KEYS, st.tuples(*(VALUES[name] for name in names))), max_size=12))
    return names, [{"user": key[0], "day": key[1], **dict(zip(names, values, strict=True))} for key, values in rows]


def batch_of(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    shape = pa.schema([(name, TYPES[name]) for name in ("user", "day", *names)])
    columns = []
    for field in shape:
        values = [row[field.name] for row in rows]
        if pa.types.is_map(field.type):
            values = [None if value is None else list(value.items()) for value in values]
        columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=shape)


def pieces_of(batch: pa.RecordBatch, cuts: Sequence[int]) -> list[pa.RecordBatch]:
    bounds = sorted({0, batch.num_rows, *(cut for cut in cuts if cut < batch.num_rows)})
    return [batch.slice(begin, end - begin) for begin, end in itertools.pairwise(bounds)]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(before=shapes(), job=shapes(), cuts=st.lists(st.integers(1, 11), max_size=3), data=st.data())
def test_a_bulk_job_does_what_the_same_puts_do(
    small_chunks: None, before: Any, job: Any, cuts: list[int], data: Any
) -> None:
    is_sorted = data.draw(st.booleans(), "sorted")
    replace = data.draw(st.booleans(), "replace")
    with_rows = data.draw(st.booleans(), "encoded rows given")
    clock = ManualClock()
    coordination = MemoryCoordination(MemoryStore(), clock)
    with wire(Path("simulated"), SimulatedFiles(), coordination, clock, Settings(), None) as db:
        put, bulk = (db.create_table(name, USERS, splits=[("b",)]) for name in ("put", "bulk"))
        for table in (put, bulk):
            table.put(batch_of(*before))
        names, rows = job
        if is_sorted:
            rows = sorted(rows, key=lambda row: (row["user"].encode(), row["day"]))
        pieces = pieces_of(batch_of(names, rows), cuts)
        for piece in pieces:
            put.put(piece, replace=replace)
        if with_rows:
            pieces = [_with_rows(piece, put) for piece in pieces]
        loaded(db, bulk, "job", *pieces, is_sorted=is_sorted, replace=replace)
        assert rows_of(bulk) == rows_of(put)
        for row in rows_of(put):
            assert bulk.get((row["user"], row["day"])) == row
        bulk.flush()
        assert rows_of(bulk) == rows_of(put)


def _with_rows(batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
    codec = KeyCodec(table.schema.key)
    return batch.append_column("_row", codec.encode_arrays([batch.column("user"), batch.column("day")]))


@pytest.mark.parametrize("is_sorted", [True, False])
def test_erased_keys_are_gone_in_all_groups(db: Database, small_chunks: None, is_sorted: bool) -> None:
    table = db.create_table("t", USERS)
    table.put([{"user": f"u{i}", "day": 0, "name": "x", "score": 1.0, "click:home": b"1"} for i in range(10)])
    writer = writer_for(table, "job", is_sorted=is_sorted)
    for users in (["u1", "u2", "u2"], ["u2", "u7", "u99"]):
        writer.erase(pa.record_batch({"user": users, "day": pa.array([0] * 3, pa.int64())}))
    carry_out(db, commit_of(table, "job", writer.finish()))
    assert [row["user"] for row in table.scan()] == ["u0", "u3", "u4", "u5", "u6", "u8", "u9"]
    assert table.get(("u7", 0)) is None
    assert [row["user"] for row in table.scan(columns=["click"])] == ["u0", "u3", "u4", "u5", "u6", "u8", "u9"]


def test_writes_and_erasures_of_unsorted_rows_follow_each_other(db: Database) -> None:
    table = db.create_table("t", NUMBERS)
    writer = writer_for(table, "job")
    writer.write(numbers([1, 2, 3]))
    writer.erase(pa.record_batch({"k": [3, 2]}))
    writer.write(numbers([2], add=40))
    carry_out(db, commit_of(table, "job", writer.finish()))
    assert a_by_k(table) == {1: 1, 2: 42}


def test_sorted_rows_make_one_layer_and_files_of_the_size_asked_for(db: Database, small_chunks: None) -> None:
    table = db.create_table("t", NUMBERS)
    batches = [numbers(range(begin, begin + 10)) for begin in range(0, 100, 10)]
    commit = written(table, "job", *batches, is_sorted=True, file_bytes_max=1)
    assert len(commit.fragments) > 10
    assert set(layers_of(commit.fragments)) == {0}
    ends = [(one.fragment.first, one.fragment.last) for one in commit.fragments]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    carry_out(db, commit)
    assert a_by_k(table) == {key: key for key in range(100)}


@pytest.mark.parametrize("is_sorted", [True, False])
def test_duplicates_are_counted_over_the_borders_of_batches(db: Database, is_sorted: bool) -> None:
    table = db.create_table("t", NUMBERS)
    writer = writer_for(table, "job", is_sorted=is_sorted)
    for add, keys in enumerate([[1, 2, 2], [2, 2], [2, 3]]):
        writer.write(numbers(keys, add=10 * add))
    carry_out(db, commit_of(table, "job", writer.finish()))
    assert writer.duplicates == 4
    assert writer.rows == 7
    assert a_by_k(table) == {1: 1, 2: 22, 3: 23}


def test_a_key_with_more_rows_than_a_chunk_keeps_the_last(db: Database, small_chunks: None) -> None:
    table = db.create_table("t", USERS)
    writer = writer_for(table, "columns", is_sorted=True)
    for number in range(20):
        writer.write(pa.record_batch({"user": ["ada"], "day": [1], "age": [number]}))
    carry_out(db, commit_of(table, "columns", writer.finish()))
    assert writer.duplicates == 19
    writer = writer_for(table, "cells", is_sorted=True)
    for number in range(20):
        writer.write(pa.record_batch({"user": ["ada"], "day": [1], "click:home": [str(number)]}))
    carry_out(db, commit_of(table, "cells", writer.finish()))
    assert rows_of(table, columns=["age", "click:home"]) == [{"user": "ada", "day": 1, "age": 19, "click:home": b"19"}]


def test_the_files_are_ordinary_parquet_without_txns(db: Database) -> None:
    table = db.create_table("t", USERS)
    commit = written(table, "the-job", batch_of(["name"], [{"user": "ada", "day": 1, "name": "Ada"}]), is_sorted=True)
    (made,) = commit.fragments
    assert made.fragment.file.startswith(f"fragments/{state_of(table).id}/the-job-")
    assert job_of(made.fragment.file) == "the-job"
    content = pq.read_table(db.path / made.fragment.file)
    assert content.column_names == ["user", "day", "_row", "name"]
    assert content.select(["user", "day", "name"]).to_pylist() == [{"user": "ada", "day": 1, "name": "Ada"}]


def test_the_same_rows_make_the_same_bytes(db: Database) -> None:
    table = db.create_table("t", USERS)
    batch = batch_of(["click:home"], [{"user": "ada", "day": 1, "click:home": b"1"}])
    contents = []
    for job in ("one", "two"):
        commit = written(table, job, batch, stamp_microseconds=17)
        contents.append([(db.path / one.fragment.file).read_bytes() for one in commit.fragments])
    assert contents[0] == contents[1]


def test_cells_get_the_time_of_the_job(db: Database) -> None:
    table = db.create_table("t", USERS)
    loaded(
        db,
        table,
        "job",
        batch_of(["click:home"], [{"user": "ada", "day": 1, "click:home": b"1"}]),
        stamp_microseconds=17,
    )
    (row,) = table.scan(columns=["click:home"], versions=2)
    assert [(version.value, version.timestamp.microsecond) for version in row["click:home"]] == [(b"1", 17)]


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (pa.record_batch({"k": pa.array([1, None], pa.int64()), "a": [1, 2]}), InvalidKey),
        (pa.record_batch({"a": [1, 2]}), InvalidBatch),
        (pa.record_batch({"k": [1], "nothing": [2]}), UnknownColumn),
        (pa.record_batch({"k": ["x"], "a": [2]}), RequestError),
        (pa.record_batch({"k": [1], "a": ["x"]}), InvalidBatch),
        (pa.record_batch({"k": [1], "_set": ["x"]}), InvalidBatch),
    ],
)
@pytest.mark.parametrize("is_sorted", [True, False])
def test_rows_that_do_not_fit_are_refused_and_leave_no_file(
    db: Database, batch: pa.RecordBatch, error: type[Exception], is_sorted: bool
) -> None:
    table = db.create_table("t", NUMBERS)
    with pytest.raises(error):
        written(table, "job", batch, is_sorted=is_sorted)
    assert not files_of(table).list(f"fragments/{state_of(table).id}")


def test_rows_out_of_order_are_refused(db: Database, small_chunks: None) -> None:
    table = db.create_table("t", NUMBERS)
    for batches in ([numbers([2, 1])], [numbers([5, 6, 7, 8]), numbers([4, 9, 10])]):
        with pytest.raises(RequestError, match="not in the order of their keys"):
            written(table, "job", *batches, is_sorted=True)
    assert not files_of(table).list(f"fragments/{state_of(table).id}")


def test_sorted_rows_of_another_shape_are_refused(db: Database) -> None:
    writer = writer_for(db.create_table("t", NUMBERS), "job", is_sorted=True)
    writer.write(numbers([1]))
    with pytest.raises(RequestError, match="one shape"):
        writer.write(pa.record_batch({"k": [2], "b": ["x"]}))


def test_only_keys_are_erased(db: Database) -> None:
    writer = writer_for(db.create_table("t", NUMBERS), "job")
    with pytest.raises(InvalidBatch, match="keys alone"):
        writer.erase(numbers([1]))


def test_unsorted_rows_may_change_their_shape(db: Database) -> None:
    table = db.create_table("t", NUMBERS)
    loaded(db, table, "job", numbers([1, 2]), pa.record_batch({"k": [2, 3], "b": ["x", "y"]}))
    assert rows_of(table) == [
        {"k": 1, "a": 1, "b": None},
        {"k": 2, "a": 2, "b": "x"},
        {"k": 3, "a": None, "b": "y"},
    ]


def test_no_rows_make_no_file(db: Database) -> None:
    table = db.create_table("t", NUMBERS)
    commit = written(table, "job", numbers([]), is_sorted=True)
    assert commit.fragments == ()
    assert not carry_out(db, commit).repeated
    assert carry_out(db, commit).repeated


def test_an_abandoned_attempt_leaves_nothing(db: Database, small_chunks: None) -> None:
    table = db.create_table("t", NUMBERS)
    writer = writer_for(table, "job", is_sorted=True, file_bytes_max=1)
    writer.write(numbers(range(50)))
    assert files_of(table).list(f"fragments/{state_of(table).id}")
    writer.abandon()
    assert not files_of(table).list(f"fragments/{state_of(table).id}")


def test_an_attempt_that_failed_does_not_go_on_without_its_first_rows(db: Database) -> None:
    writer = writer_for(db.create_table("t", NUMBERS), "job")
    writer.write(numbers([1]))
    with pytest.raises(InvalidBatch):
        writer.erase(numbers([2]))
    writer.write(pa.record_batch({"k": pa.array([None], pa.int64()), "a": [1]}))
    with pytest.raises(InvalidKey):
        writer.finish()
    for again in (writer.finish, lambda: writer.write(numbers([3]))):
        with pytest.raises(RequestError, match="begin again"):
            again()


def test_a_full_disk_is_told_and_cleaned() -> None:
    files = SimulatedFiles(FaultPlan.fail_when(lambda operation: operation.kind == "sync", 28))
    writer = BulkWriter(files, "t", NUMBERS.number(), "job", 0, stamp_microseconds=1, is_sorted=True)
    writer.write(numbers(range(50)))
    with pytest.raises(StoreError, match="free space"):
        writer.finish()
    assert not files.list("fragments/t")
