"""df.write.format("ebla"): files of tasks, and one commit of those that won."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import types as T  # noqa: N812 - as everybody calls them

import ebla
from ebla.errors import Conflict, InvalidBatch, RequestError, UnknownColumn, UnknownTable
from ebla.pipeline.datasource.datasource_options import WriteOptions
from ebla.pipeline.datasource.datasource_writer import EblaWriter
from ebla.tablet.garbage.job_intents import list_intents
from tests.pipeline.tables import EVERYTHING, expected, fill, fragment_files, register_watched
from tests.support.inside import coordination_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLAIN = ebla.Schema(key={"n": "int64"}, columns={"v": "string", "age": "int32"})
PLAIN_SPARK = T.StructType(
    [T.StructField("n", T.LongType()), T.StructField("v", T.StringType()), T.StructField("age", T.IntegerType())]
)


@pytest.fixture
def plain(db: ebla.Database) -> ebla.Table:
    table = db.create_table("plain", PLAIN, splits=[(5,)])
    table.put([{"n": n, "v": "old", "age": n} for n in range(10)])
    return table


@pytest.fixture(autouse=True)
def _tell_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # put back what errors in this process set


def save(frame: DataFrame, root: str, table: str = "plain", mode: str = "append", **options: str) -> None:
    frame.write.format("ebla").options(root=root, **options).mode(mode).save(table)


def values(table: ebla.Table, column: str = "v") -> dict[int, Any]:
    return {row["n"]: row[column] for row in table.scan(columns=[column])}


def assert_nothing_is_left(db: ebla.Database, root: str, table: ebla.Table) -> None:
    """No file that METADATA does not name, no job under way, no request in the mail."""
    assert fragment_files(root, table) == set(table.files())
    assert list_intents(coordination_of(db)) == []
    assert coordination_of(db).list("bulk") == []


# --- what is written ---------------------------------------------------------------------------------


def test_append_puts_rows_in_any_order_and_leaves_other_columns(
    spark: SparkSession, root: str, db: ebla.Database, plain: ebla.Table
) -> None:
    frame = spark.createDataFrame([(12, "new"), (3, "new"), (7, None), (-1, "new")], "n long, v string").repartition(2)
    before = plain.scan().txn
    save(frame, root)
    assert values(plain) == dict.fromkeys(range(10), "old") | {12: "new", 3: "new", 7: None, -1: "new"}
    assert values(plain, "age") == {n: n for n in range(10)} | {12: None, -1: None}
    assert {row["v"] for row in plain.scan(as_of=before)} == {"old"}
    assert plain.get(3)["v"] == "new"  # type: ignore[index]
    assert_nothing_is_left(db, root, plain)


def test_a_table_with_everything_can_be_copied(spark: SparkSession, root: str, db: ebla.Database) -> None:
    one, other = (db.create_table(name, EVERYTHING, splits=[("u020",)]) for name in ("one", "other"))
    fill(one)
    save(spark.read.format("ebla").options(root=root).load("one"), root, "other")
    assert other.scan().count() > 60
    assert expected(other) == expected(one)


def test_overwrite_replaces_the_whole_table_in_one_step(
    spark: SparkSession, root: str, db: ebla.Database, plain: ebla.Table
) -> None:
    before = plain.scan().txn
    save(spark.createDataFrame([(3, "new"), (20, "new")], "n long, v string"), root, mode="overwrite")
    assert plain.scan().to_arrow().to_pylist() == [{"n": n, "v": "new", "age": None} for n in (3, 20)]
    assert plain.scan(as_of=before).count() == 10
    save(spark.createDataFrame([], "n long"), root, mode="overwrite")
    assert plain.scan().count() == 0
    assert_nothing_is_left(db, root, plain)


def test_a_table_can_be_overwritten_with_its_own_rows(spark: SparkSession, root: str, plain: ebla.Table) -> None:
    rows = spark.read.format("ebla").options(root=root).load("plain")
    save(rows.where("n % 2 = 0").selectExpr("n", "upper(v) as v", "age"), root, mode="overwrite")
    assert values(plain) == dict.fromkeys(range(0, 10, 2), "OLD")


def test_replace_writes_whole_rows(spark: SparkSession, root: str, plain: ebla.Table) -> None:
    save(spark.createDataFrame([(3, "new")], "n long, v string"), root, operation="replace")
    assert plain.get(3) == {"n": 3, "v": "new", "age": None}
    assert plain.get(4) == {"n": 4, "v": "old", "age": 4}


def test_erase_takes_keys(spark: SparkSession, root: str, db: ebla.Database, plain: ebla.Table) -> None:
    save(spark.range(3, 100).selectExpr("id as n"), root, operation="erase")
    assert sorted(values(plain)) == [0, 1, 2]
    plain.put({"n": 5, "v": "again"})
    assert sorted(values(plain)) == [0, 1, 2, 5]
    assert_nothing_is_left(db, root, plain)


def test_of_rows_with_one_key_the_last_wins(spark: SparkSession, root: str, plain: ebla.Table) -> None:
    frame = spark.createDataFrame([(n % 3, f"{n:02}") for n in range(30)], "n long, v string").coalesce(1)
    save(frame, root)
    assert [plain.get(n)["v"] for n in range(3)] == ["27", "28", "29"]  # type: ignore[index]


def test_a_job_is_applied_once(spark: SparkSession, root: str, db: ebla.Database, plain: ebla.Table) -> None:
    save(spark.createDataFrame([(1, "first")], "n long, v string"), root, job="nightly-1")
    plain.put({"n": 1, "v": "corrected"})
    files = plain.files()
    save(spark.createDataFrame([(1, "second")], "n long, v string"), root, job="nightly-1")
    assert values(plain)[1] == "corrected"
    assert plain.files() == files
    assert_nothing_is_left(db, root, plain)


def test_the_store_is_opened_for_the_commit_if_nobody_has_it_open(spark: SparkSession, root: str) -> None:
    with ebla.open(root) as db:
        db.create_table("plain", PLAIN)
    save(spark.range(5).selectExpr("id as n"), root)
    with ebla.open(root) as db:
        assert sorted(values(db.table("plain"))) == [0, 1, 2, 3, 4]


# --- attempts ----------------------------------------------------------------------------------------


def test_an_attempt_that_was_killed_after_writing_is_not_committed_and_cleaned(
    spark: SparkSession, root: str, db: ebla.Database, plain: ebla.Table, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    register_watched(spark)
    frame = spark.range(0, 20, 1, 2).selectExpr("id as n", "'new' as v")
    frame.write.format("watched").options(root=root, table=f"plain|{log}|lose").mode("append").save()
    steps = [line.split()[0] for line in log.read_text().splitlines()]
    assert {"writer", "write-0-0", "write-0-1", "write-1-0", "commit"} <= set(steps)
    assert values(plain) == dict.fromkeys(range(20), "new")
    assert plain.stats()["groups"]["default"]["fragment_records"] == 20
    assert_nothing_is_left(db, root, plain)


def test_a_disk_that_is_full_is_said_and_nothing_stays(
    spark: SparkSession, root: str, db: ebla.Database, plain: ebla.Table, tmp_path: Path
) -> None:
    register_watched(spark)
    frame = spark.range(0, 2000, 1, 1).selectExpr("id as n", "sha2(string(id), 256) as v")
    with pytest.raises(PySparkException, match=r"StoreError: cannot write a fragment: .*; free space"):
        frame.write.format("watched").options(root=root, table=f"plain|{tmp_path / 'log'}|full").mode("append").save()
    assert values(plain) == dict.fromkeys(range(10), "old")
    assert_nothing_is_left(db, root, plain)


def test_one_row_that_does_not_fit_fails_the_save_and_nothing_of_it_stays(
    spark: SparkSession, root: str, db: ebla.Database, plain: ebla.Table
) -> None:
    frame = spark.range(0, 10, 1, 2).selectExpr("if(id = 9, null, id) as n", "'new' as v")
    with pytest.raises(PySparkException) as raised:
        save(frame, root)
    message = str(raised.value).splitlines()
    assert message[1].startswith("ebla.errors.InvalidKey: key column 'n' has 1 nulls")
    assert "Traceback" not in str(raised.value)
    assert values(plain) == dict.fromkeys(range(10), "old")
    assert_nothing_is_left(db, root, plain)


# --- what is refused before anything is written ------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("id as n, 1 as color", {}, "UnknownColumn: .*'color'"),
        ("id as n, 'x' as age", {}, "InvalidBatch: column 'age'"),
        ("'v' as v", {}, "InvalidBatch: key column 'n' is missing"),
        (
            "id as n, 'v' as v",
            {"operation": "erase"},
            "InvalidBatch: rows are erased by their keys: select n and nothing",
        ),
        ("id as n", {"operation": "delete"}, "RequestError: operation is put, replace or erase"),
        ("id as n", {"job": "no/slashes"}, "RequestError: 'no/slashes' cannot be the id of a job"),
        ("id as n", {"table": "plian"}, "UnknownTable: there is no table 'plian' .*: say which columns"),
    ],
)
def test_what_cannot_be_written_is_said_at_once(
    spark: SparkSession, root: str, db: ebla.Database, plain: ebla.Table, columns: str, options: Any, said: str
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))
    target = {"table": "plain"} | options
    with pytest.raises(PySparkException, match=f"ebla.errors.{said}") as raised:
        frame.write.format("ebla").options(root=root, **target).mode("append").save()
    assert "Failed to initialize Python data source writer: ebla.errors." in str(raised.value).splitlines()[0]
    assert_nothing_is_left(db, root, plain)


def test_a_store_that_is_not_there_is_not_made(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="StoreNotFound: there is no store at"):
        save(spark.range(1).selectExpr("id as n"), str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


# --- step by step, in this process -------------------------------------------------------------------


def started(root: str, *, overwrite: bool = False, schema: T.StructType = PLAIN_SPARK, **options: str) -> EblaWriter:
    given = {"root": root, "table": "plain"} | options
    return EblaWriter.start(WriteOptions.of(given), schema, overwrite=overwrite)


def batches(*rows: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist(
        list(rows), pa.schema([("n", pa.int64()), ("v", pa.string()), ("age", pa.int32())])
    )


def test_a_table_that_is_dropped_before_the_commit_refuses_it_and_the_files_go(
    root: str, db: ebla.Database, plain: ebla.Table
) -> None:
    writer = started(root)
    message = writer.write(batches({"n": 1, "v": "new"}))
    assert fragment_files(root, plain)
    db.drop_table("plain")
    with pytest.raises(UnknownTable):
        writer.commit([message])
    writer.abort([message])  # as Spark does
    assert fragment_files(root, plain) == set()
    assert list_intents(coordination_of(db)) == []


def test_an_abort_removes_what_tasks_wrote(root: str, db: ebla.Database, plain: ebla.Table) -> None:
    writer = started(root)
    message = writer.write(batches({"n": 1, "v": "new"}))
    lost = writer.write(batches({"n": 2, "v": "new"}))
    assert len(fragment_files(root, plain)) == 2
    assert lost is not None
    writer.abort([message, None])
    assert values(plain)[1] == "old"
    assert_nothing_is_left(db, root, plain)


def test_an_abort_after_a_commit_removes_nothing(root: str, db: ebla.Database, plain: ebla.Table) -> None:
    writer = started(root)
    message = writer.write(batches({"n": 1, "v": "new"}))
    writer.commit([message])
    writer.abort([message])  # the answer to the commit was lost on the way to Spark
    assert values(plain)[1] == "new"
    assert_nothing_is_left(db, root, plain)


def test_an_aborted_run_of_a_job_keeps_the_files_of_another_run(
    root: str, db: ebla.Database, plain: ebla.Table
) -> None:
    one, other = started(root, job="job"), started(root, job="job")
    first = one.write(batches({"n": 1, "v": "one"}))
    second = other.write(batches({"n": 1, "v": "other"}))
    other.abort([second, None])
    one.commit([first])
    assert values(plain)[1] == "one"
    assert_nothing_is_left(db, root, plain)


def test_an_attempt_that_fails_removes_its_own_files(root: str, db: ebla.Database, plain: ebla.Table) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches({"n": 1, "v": "new"})
        raise InvalidBatch("no more")

    writer = started(root)
    with pytest.raises(InvalidBatch, match="no more"):
        writer.write(rows())
    assert fragment_files(root, plain) == set(plain.files())


def test_to_overwrite_with_erasures_is_refused(root: str, plain: ebla.Table) -> None:
    with pytest.raises(RequestError, match="use mode"):
        started(root, overwrite=True, schema=T.StructType([PLAIN_SPARK["n"]]), operation="erase")


def test_a_column_of_many_families_is_refused_by_a_table_that_has_only_its_own(root: str, db: ebla.Database) -> None:
    db.create_table("narrow", ebla.Schema(key={"n": "int64"}, groups=[ebla.Group("cells", families=["tag"])]))
    cells = T.MapType(T.StringType(), T.BinaryType())
    schema = T.StructType([T.StructField("n", T.LongType()), T.StructField("*", cells)])
    with pytest.raises(UnknownColumn, match="one column for each family"):
        started(root, schema=schema, table="narrow")


def test_dates_and_key_types_are_cast_as_put_does(root: str, db: ebla.Database) -> None:
    table = db.create_table("days", ebla.Schema(key={"day": "date32", "n": "int16"}, columns={"at": "time32[s]"}))
    schema = T.StructType(
        [T.StructField("n", T.LongType()), T.StructField("day", T.DateType()), T.StructField("at", T.LongType())]
    )
    writer = started(root, schema=schema, table="days")
    arrow = pa.schema([("n", pa.int64()), ("day", pa.date32()), ("at", pa.int64())])
    good = pa.RecordBatch.from_pylist([{"n": 1, "day": date(2026, 1, 1), "at": 61}], arrow)
    writer.commit([writer.write(iter([good]))])
    assert str(table.get((date(2026, 1, 1), 1))["at"]) == "00:01:01"  # type: ignore[index]
    bad = pa.RecordBatch.from_pylist([{"n": 70_000, "day": date(2026, 1, 1), "at": 61}], arrow)
    with pytest.raises(InvalidBatch, match="70000"):
        started(root, schema=schema, table="days").write(iter([bad]))


def test_messages_of_no_rows_commit_nothing_but_the_job(root: str, db: ebla.Database, plain: ebla.Table) -> None:
    writer = started(root, job="empty")
    writer.commit([writer.write(iter([]))])
    assert values(plain) == dict.fromkeys(range(10), "old")
    assert state_of(plain).view.metadata.job_txn("empty") is not None
    with pytest.raises(Conflict):
        plain.put({"n": 1}, if_unchanged_since=0)
