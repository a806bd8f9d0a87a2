"""Load and bad input: errors are Ebla's own, on the driver, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import ebla
from ebla.direct.fragments import pack_schema
from ebla.pipeline import load
from ebla.pipeline.loading.load_task import LoadTask
from ebla.settings import Settings
from tests.pipeline.loading.test_load import fragments, rows_of
from tests.support.inside import coordination_of, engine_of

SCHEMA = ebla.Schema(
    key={"k": "string"},
    groups=[ebla.Group("a", columns={"n": "int32", "l": "list<int32>"}), ebla.Group("c", families=["f"])],
)


@pytest.fixture
def table(db: ebla.Database) -> ebla.Table:
    return db.create_table("t", SCHEMA)


@pytest.mark.parametrize(
    ("query", "error", "said"),
    [
        ("SELECT 1 AS n", ebla.RequestError, "key column 'k' is missing: the rows have n"),
        ("SELECT 'a' AS k, 1 AS other", ebla.UnknownColumn, "no column 'other': the table has n, l, f:"),
        ("SELECT 'a' AS k, 1 AS `g:x`", ebla.UnknownColumn, "no column 'g:x'"),
        ("SELECT 'a' AS k, 1 AS `f:x`", ebla.InvalidBatch, "'f:x' holds cells: give binary, string"),
        ("SELECT 'a' AS k, '1' AS f", ebla.InvalidBatch, "'f' is a family"),
        ("SELECT 'a' AS k, DATE'2026-01-01' AS n", ebla.RequestError, "column 'n' is int32 and does not take date"),
        ("SELECT 'a' AS k, '[1]' AS l", ebla.RequestError, "column 'l' is list<item: int32> and does not take text"),
        ("SELECT 'a' AS k, 1 AS _x", ebla.InvalidBatch, "'_x': names that begin with '_' belong to the store"),
        ("SELECT 'a' AS k, 1 AS n, 2 AS n", ebla.InvalidBatch, "column 'n' is given more than once"),
        ("SELECT 1 AS k", ebla.RequestError, "column 'k' is string and does not take int"),
        (
            "SELECT 'a' AS k, make_interval(1) AS n",
            ebla.RequestError,
            "column 'n' is interval, which a table cannot hold",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_runs(
    spark: SparkSession, db: ebla.Database, table: ebla.Table, query: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as failed:
        load(db, "t", spark.sql(query))
    assert said in str(failed.value)


def test_a_new_table_needs_a_key_that_is_there(spark: SparkSession, db: ebla.Database) -> None:
    with pytest.raises(ebla.UnknownTable, match="there is no table 'u': name its key columns"):
        load(db, "u", spark.range(1))
    with pytest.raises(ebla.RequestError, match="key column 'x' is missing: the rows have id"):
        load(db, "u", spark.range(1), key="x")
    with pytest.raises(ebla.SchemaError, match="table name"):
        load(db, "no/name", spark.range(1), key="id")
    assert db.tables() == []


def test_wishes_that_make_no_sense_are_refused(spark: SparkSession, db: ebla.Database, table: ebla.Table) -> None:
    frame = spark.createDataFrame([("a", 1)], "k string, n int")
    for wishes, said in [
        ({"mode": "merge"}, "mode is one of upsert"),
        ({"on_duplicate": "first"}, "on_duplicate is"),
        ({"partitions": 0}, "at least one partition"),
        ({"key": "n"}, "the key of 't' is k, not n"),
        ({"splits": ["b"]}, "splits are for a new table"),
        ({"job": "../x"}, "cannot be the id of a job"),
    ]:
        with pytest.raises(ebla.RequestError) as failed:
            load(db, "t", frame, **wishes)  # type: ignore[arg-type]
        assert said in str(failed.value)


def test_a_store_that_is_not_there_is_not_made(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ebla.StoreNotFound, match="there is no store at"):
        load(tmp_path / "nowhere", "t", spark.range(1), key="id")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(ebla.RequestError, match="give an open database or the directory"):
        load(3, "t", spark.range(1), key="id")  # type: ignore[arg-type]


def test_what_gives_no_rows_is_refused_and_frames_are_loaded_without_spark(
    spark: SparkSession, db: ebla.Database
) -> None:
    with pytest.raises(ebla.RequestError, match=r"a load takes a DataFrame of a Spark session.*not list"):
        load(db, "t", [{"k": 1}], key="k")
    with pytest.raises(ebla.RequestError, match=r"not pandas\.Index: put other rows with table\.put"):
        load(db, "t", pd.Index([1]), key="k")
    with pytest.raises(ebla.RequestError, match="is loaded by Spark"):
        load(db, "t", spark.range(1), key="id", spark=False)
    assert load(db, "t", pd.DataFrame({"k": [1], "s": ["x"]}), key="k").rows == 1
    assert db.table("t").get(1) == {"k": 1, "s": "x"}


def test_a_closed_database_says_so(spark: SparkSession, root: str) -> None:
    db = ebla.open(root)
    db.close()
    with pytest.raises(ebla.Closed):
        load(db, "t", spark.range(1), key="id")


def test_a_rejects_place_that_is_a_file_is_refused(spark: SparkSession, db: ebla.Database, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ebla.StoreError, match="cannot be a directory for rejects"):
        load(db, "t", spark.range(1), key="id", rejects=tmp_path / "taken")
    assert db.tables() == []


def test_an_error_in_the_users_own_code_is_told_without_java(spark: SparkSession, db: ebla.Database) -> None:
    @F.udf("int")
    def broken(_: int) -> int:
        raise ValueError("the user's own mistake")

    with pytest.raises(ebla.RequestError) as failed:
        load(db, "t", spark.range(3).select("id", broken("id").alias("n")), key="id")
    assert "the user's own mistake" in str(failed.value)
    assert "at org.apache" not in str(failed.value)
    assert db.tables() == []


def test_an_input_file_that_vanished_is_told_without_java(
    spark: SparkSession, db: ebla.Database, tmp_path: Path
) -> None:
    spark.range(10).write.parquet(str(tmp_path / "in"))
    frame = spark.read.parquet(str(tmp_path / "in"))
    for file in (tmp_path / "in").glob("*.parquet"):
        file.unlink()
    with pytest.raises(ebla.RequestError, match="Spark could not compute the rows") as failed:
        load(db, "t", frame, key="id")
    assert "at org.apache" not in str(failed.value)


# --- the last line of defence: what tasks check ---------------------------------------------------


def task_of(db: ebla.Database, tmp_path: Path, cuts: tuple[bytes, ...] = ()) -> LoadTask:
    state = engine_of(db).table("t")
    return LoadTask(
        root=str(db.path), table_id=state.id, schema=pack_schema(state.view.schema), job="j", names=("k", "n"),
        cuts=cuts, stamp_microseconds=1, replace=False, shows_duplicates=False, rejects=None, settings=Settings(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("partition", "k", "reason", "said"),
    [
        (0, "z", None, "partition 0 got rows of another"),
        (1, "a", None, "partition 1 got rows of another"),
        (0, "a", "bad", "a rejected row was sent to be written"),
        (2, "a", None, "a row that fits was sent to the rejects"),
    ],
)
def test_a_task_refuses_rows_of_another_partition(
    db: ebla.Database, table: ebla.Table, tmp_path: Path, partition: int, k: str, reason: str | None, said: str
) -> None:
    import pyarrow as pa

    from ebla.storage.files.local_files import LocalFiles

    batch = pa.record_batch(
        {
            "c0": [k],
            "c1": pa.array([1], pa.int32()),
            "_reason": pa.array([reason], pa.string()),
            "_rejected": pa.array([None], pa.string()),
        }
    )
    with pytest.raises(ebla.StoreError, match=said):
        task_of(db, tmp_path, (b"m",)).run(partition, iter([batch]), LocalFiles(db.path))
    assert fragments(db) == []


def test_null_keys_never_reach_the_first_partition(
    spark: SparkSession, db: ebla.Database, table: ebla.Table, tmp_path: Path
) -> None:
    # Spark sends a row with a null partition id to partition 0 without a word.
    nulls = spark.range(1_000).selectExpr("CASE WHEN id % 2 = 0 THEN concat('k', id) END AS k", "int(id) AS n")
    done = load(db, "t", nulls, rejects=tmp_path / "r", partitions=4)
    assert (done.rows, done.rejected) == (500, 500)
    assert {row["n"] % 2 for row in rows_of(db, "t")} == {0}  # type: ignore[operator]


# --- what fails in between -----------------------------------------------------------------------


def frame_of(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", 1), ("b", 2)], "k string, n int")


def leftovers(db: ebla.Database) -> list[str]:
    left = [str(path.relative_to(db.path)) for path in (db.path / "fragments").rglob("*.parquet")]
    left += (
        [str(path.relative_to(db.path)) for path in (db.path / "bulk").rglob("*")]
        if (db.path / "bulk").exists()
        else []
    )
    return left + list(coordination_of(db).list("intents"))


def test_a_table_dropped_in_the_middle_of_a_load_fails_it(
    spark: SparkSession, db: ebla.Database, table: ebla.Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ebla.direct.place import Place

    commit = Place.commit

    def drop_first(self, made):  # type: ignore[no-untyped-def]
        db.drop_table("t")
        return commit(self, made)

    monkeypatch.setattr(Place, "commit", drop_first)
    with pytest.raises(ebla.UnknownTable, match="dropped"):
        load(db, "t", frame_of(spark), rejects=tmp_path / "r", job="j")
    assert leftovers(db) == []
    assert list((tmp_path / "r").iterdir()) == []


def test_a_table_made_anew_in_the_middle_of_a_load_is_not_touched(
    spark: SparkSession, db: ebla.Database, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebla.direct.place import Place

    begin = Place.begin

    def make_anew_first(self, job, name):  # type: ignore[no-untyped-def]
        db.drop_table("t")
        db.create_table("t", SCHEMA)
        return begin(self, job, name)

    monkeypatch.setattr(Place, "begin", make_anew_first)
    with pytest.raises(ebla.UnknownTable, match="made anew"):
        load(db, "t", frame_of(spark))
    assert rows_of(db, "t") == []
    assert leftovers(db) == []


def test_a_schema_changed_between_plan_and_commit_fails_the_load(
    spark: SparkSession, db: ebla.Database, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    from ebla.direct.place import Place

    metadata = Place.metadata

    def as_of_another_version(self, name):  # type: ignore[no-untyped-def]
        found = metadata(self, name)
        return msgspec.structs.replace(found, schema=msgspec.structs.replace(found.schema, version=7))

    monkeypatch.setattr(Place, "metadata", as_of_another_version)
    with pytest.raises(ebla.EblaError, match="schema") as failed:
        load(db, "t", frame_of(spark))
    assert not isinstance(failed.value, ebla.OutcomeUnknown)
    monkeypatch.undo()
    assert rows_of(db, "t") == []
    assert leftovers(db) == []


def test_an_unknown_outcome_leaves_the_files_for_the_next_try(
    spark: SparkSession, db: ebla.Database, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebla.direct.place import Place

    commit = Place.commit

    def lose_the_answer(self, made):  # type: ignore[no-untyped-def]
        commit(self, made)
        raise ebla.OutcomeUnknown("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Place, "commit", lose_the_answer)
        with pytest.raises(ebla.OutcomeUnknown):
            load(db, "t", frame_of(spark), job="j")
    assert [row["k"] for row in rows_of(db, "t")] == ["a", "b"]
    assert load(db, "t", frame_of(spark), job="j").repeated
    assert [row["k"] for row in rows_of(db, "t")] == ["a", "b"]
    assert coordination_of(db).list("intents") == []


def test_a_job_runs_once_at_a_time(spark: SparkSession, db: ebla.Database, table: ebla.Table) -> None:
    from ebla.direct.place import Place

    with Place.of(db).alone("j"), pytest.raises(ebla.Unavailable, match="job j is running in another process"):
        load(db, "t", frame_of(spark), job="j")
    assert load(db, "t", frame_of(spark), job="j").rows == 2
    assert not os.path.exists(db.path / "bulk" / "j.lock")
