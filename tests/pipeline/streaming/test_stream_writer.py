"""The sink of a stream without Spark around it: a batch is written once, whoever repeats it, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

import ebla
from ebla.direct import place
from ebla.direct.jobs_at import order_at
from ebla.errors import Conflict, InvalidBatch, RequestError, SchemaChanged, UnknownTable
from ebla.pipeline.datasource.datasource_options import WriteOptions
from ebla.pipeline.streaming.stream_options import StreamWriteOptions
from ebla.pipeline.streaming.stream_writer import BatchWritten, EblaStreamWriter
from ebla.service.job_orders import BulkCommit, BulkResult
from ebla.settings import Settings
from ebla.tablet.garbage.job_intents import list_intents
from tests.support.inside import coordination_of, engine_of

SCHEMA = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"n": "int64", "s": "string"})])
TYPES: dict[str, DataType] = {"n": LongType(), "more": IntegerType()}


def columns(*names: str) -> StructType:
    return StructType([StructField(name, TYPES.get(name, StringType())) for name in names])


PLAIN = columns("k", "n")
CHANGED = columns("k", "n", "s", "_change")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "store", settings=Settings(background_compaction=False)) as opened:
        opened.create_table("t", SCHEMA)
        yield opened


class Query:
    """A query that writes into the table, as Spark runs it: tasks, then a commit by another writer."""

    def __init__(
        self, root: Path, given: StructType = PLAIN, app: str = "query", table: str = "t", **options: str
    ) -> None:
        self.options = StreamWriteOptions.of({"root": str(root), "path": table, "checkpointLocation": "x", **options})
        self.columns, self.app = given, app

    def writer(self, *, overwrite: bool = False) -> EblaStreamWriter:
        return EblaStreamWriter(self.options, self.columns, overwrite=overwrite)

    def task(self, batch: int, rows: list[tuple[Any, ...]], partition: int = 0) -> BatchWritten:
        writer = self.writer()
        writer._who = lambda: (self.options.app or self.app, batch, partition)  # type: ignore[method-assign]
        arrays = [pa.array(column) for column in zip(*rows, strict=True)] or [[] for _ in self.columns.names]
        made = writer.write(iter([pa.record_batch(arrays, names=self.columns.names)] if rows else []))
        assert isinstance(made, BatchWritten)
        return made

    def run(self, batch: int, *tasks: list[tuple[Any, ...]], overwrite: bool = False) -> None:
        made = [self.task(batch, rows, partition) for partition, rows in enumerate(tasks)]
        self.writer(overwrite=overwrite).commit(made, batch)


def found(db: ebla.Database) -> dict[str, tuple[Any, Any]]:
    return {row["k"]: (row["n"], row["s"]) for row in db.table("t").scan()}


def files(db: ebla.Database) -> int:
    return len(list(db.path.glob("fragments/*/*.parquet")))


def test_a_batch_is_written_once_and_no_earlier_one_after_it(db: ebla.Database) -> None:
    query = Query(db.path)
    query.run(0, [("a", 1)], [("b", 1)])
    query.run(0, [("a", 9)], [("c", 9)])
    assert found(db) == {"a": (1, None), "b": (1, None)}
    query.run(3, [("a", 3)])
    query.run(2, [("a", 2)])  # a driver that was thought dead
    assert found(db)["a"] == (3, None)
    Query(db.path, app="another").run(0, [("a", 7)])
    assert found(db)["a"] == (7, None)
    Query(db.path, app="query").run(4, [("a", 8)])
    assert found(db)["a"] == (8, None)
    metadata = engine_of(db).table("t").view.metadata
    assert [(known.app, known.batch) for known in metadata.streams] == [("another", 0), ("query", 4)]
    assert list_intents(coordination_of(db)) == []


def test_a_batch_that_two_drivers_write_at_once_is_written_once(db: ebla.Database) -> None:
    first, second = (Query(db.path).task(0, [("a", n), ("b", n)]) for n in (1, 2))
    started = threading.Barrier(2)

    def commit(message: BatchWritten) -> None:
        started.wait()
        Query(db.path).writer().commit([message], 0)

    threads = [threading.Thread(target=commit, args=(message,)) for message in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found(db) in ({"a": (1, None), "b": (1, None)}, {"a": (2, None), "b": (2, None)})
    assert files(db) == 1


def test_a_batch_of_a_driver_that_died_leaves_nothing_behind(db: ebla.Database) -> None:
    query = Query(db.path)
    query.task(0, [("a", 5)])
    assert len(list_intents(coordination_of(db))) == 1
    query.run(0, [("a", 1)])
    assert found(db) == {"a": (1, None)}
    assert (files(db), list_intents(coordination_of(db))) == (1, [])
    lost = query.task(1, [("a", 2)])
    query.writer().abort([lost, None], 1)
    assert files(db) == 1
    made = query.task(1, [("a", 3)])
    query.writer().abort([made], 1)  # after a commit whose outcome it does not know
    query.writer().commit([made], 1)
    assert found(db) == {"a": (3, None)}


def test_a_batch_goes_to_several_tables_whatever_became_of_the_first(db: ebla.Database) -> None:
    db.create_table("u", SCHEMA)
    made = Query(db.path).task(0, [("a", 1)])
    other = Query(db.path, table="u")
    other.run(0, [("b", 2)])  # the first one is still under way, or its driver was killed
    Query(db.path).writer().commit([made], 0)
    assert found(db) == {"a": (1, None)}
    assert [row["k"] for row in db.table("u").scan()] == ["b"]


def test_files_that_a_compaction_replaces_at_once_stay_for_those_who_read_them(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_and_compact(root: str, commit: BulkCommit, timeout_seconds: float) -> BulkResult:
        done = order_at(root, commit, timeout_seconds)
        db.table("t").compact()
        return done

    monkeypatch.setattr(place, "order_at", commit_and_compact)
    lost = Query(db.path).task(0, [("a", 1)])
    Query(db.path).run(0, [("a", 1)], [("b", 1)])
    assert not (db.path / lost.fragments[0].fragment.file).exists()
    assert (len(db.table("t").files()), files(db)) == (1, 3)


def test_change_rows_say_what_becomes_of_them(db: ebla.Database) -> None:
    query = Query(db.path, CHANGED)
    query.run(0, [("a", 1, "x", "insert"), ("b", 1, "x", "insert"), ("c", 1, "x", "insert")])
    query.run(
        1,
        [("a", 2, None, "update"), ("b", None, None, "erase"), ("c", None, None, "erase"), ("c", 3, None, "insert")],
        [("d", 4, "x", "insert"), ("d", None, None, "erase")],
    )
    assert found(db) == {"a": (2, None), "c": (3, None)}
    Query(db.path, CHANGED, app="other", operation="put").run(0, [("a", 5, "y", "update")])
    assert found(db)["a"] == (5, "y")
    for kind in ("delete", None):
        with pytest.raises(InvalidBatch, match="insert, update or erase"):
            query.run(2, [("a", 1, "x", "insert"), ("a", 1, "x", kind)])
    with pytest.raises(RequestError, match="leave the operation out"):
        Query(db.path, CHANGED, operation="erase").writer()
    with pytest.raises(InvalidBatch, match="string"):
        Query(db.path, StructType([StructField("k", StringType()), StructField("_change", IntegerType())])).writer()


def test_rows_are_erased_and_whole_results_replace_each_other(db: ebla.Database) -> None:
    db.table("t").put([{"k": key, "n": 1, "s": "x"} for key in "abc"])
    Query(db.path, columns("k"), operation="erase").run(0, [("a",)])
    assert sorted(found(db)) == ["b", "c"]
    whole = Query(db.path, app="counts")
    whole.run(0, [("b", 2)], overwrite=True)
    assert found(db) == {"b": (2, None)}
    whole.run(1, [], overwrite=True)
    assert found(db) == {}
    with pytest.raises(RequestError, match="would erase all"):
        Query(db.path, operation="erase").writer(overwrite=True)


def test_a_batch_without_rows_is_no_commit(db: ebla.Database) -> None:
    before = engine_of(db).table("t").view.metadata.txnid
    Query(db.path).run(0, [], [])
    Query(db.path).writer().commit([], 1)
    assert engine_of(db).table("t").view.metadata.txnid == before


def test_what_does_not_fit_the_table_is_told(db: ebla.Database) -> None:
    query = Query(db.path)
    with pytest.raises(RequestError, match="more"):
        Query(db.path, columns("k", "more")).run(0, [("a", 1)])
    made = query.task(0, [("a", 1)])
    db.alter_table("t", add_columns={"more": "int32"})
    with pytest.raises(Conflict, match="schema"):
        query.writer().commit([made], 0)
    later = query.task(0, [("b", 1)], 1)
    with pytest.raises(SchemaChanged, match="start the query again"):
        query.writer().commit([made, later], 0)
    assert (found(db), files(db)) == ({}, 0)
    query.run(0, [("a", 1)], [("b", 1)])
    assert len(found(db)) == 2
    db.drop_table("t")
    with pytest.raises(UnknownTable, match="create it"):
        query.run(1, [("a", 1)])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"opp": "put"}, "no option 'opp'"),
        ({"operation": "upsert"}, "put, replace or erase"),
        ({"app": "a b"}, "a b"),
        ({"app": "a" * 101}, "up to 100"),
        ({"since": "now"}, "no option 'since'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        StreamWriteOptions.of({"root": "x", "table": "t", **options})


@pytest.mark.parametrize("options", [{"app": "a"}, {"batch": "1"}, {"app": "a", "batch": "1", "job": "j"}])
def test_a_batch_is_named_by_both_of_its_parts(options: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="app and batch"):
        WriteOptions.of({"root": "x", "table": "t", **options})
    with pytest.raises(RequestError, match="is a number"):
        WriteOptions.of({"root": "x", "table": "t", "app": "a", "batch": "x"})
