"""Saves in every mode, by DataFrames and by SQL, and streams that update."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ebla
from ebla.errors import InvalidKey, RequestError, TableExists, UnknownTable
from ebla.pipeline.spark.failures import unwrapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = ebla.Schema(key={"id": "int64"}, columns={"v": "string"})


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1, "one"), (2, "two")], "id long, v string")


@pytest.fixture
def table(db: ebla.Database) -> ebla.Table:
    made = db.create_table("t", SCHEMA)
    made.put([{"id": 2, "v": "old"}, {"id": 3, "v": "old"}])
    return made


@pytest.fixture
def in_catalog(spark: SparkSession, root: str, table: ebla.Table) -> Iterator[str]:
    spark.sql(f"CREATE TABLE saved_t USING ebla OPTIONS (root '{root}', table 't')")
    yield "saved_t"
    spark.sql("DROP TABLE saved_t")


def values(table: ebla.Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


def test_without_a_mode_a_save_makes_its_table_and_refuses_one_that_is_there(
    db: ebla.Database, root: str, rows: DataFrame
) -> None:
    writer = rows.write.format("ebla").option("root", root).option("key", "id")
    writer.save("made")
    assert values(db.table("made")) == {1: "one", 2: "two"}
    for again in (writer, writer.mode("error"), writer.mode("errorifexists")):
        with pytest.raises(Exception, match="there is a table 'made'") as raised:
            again.save("made")
        assert isinstance(unwrapped(raised.value), TableExists)


def test_a_save_that_ignores_leaves_a_table_alone_and_makes_one_that_is_not_there(
    db: ebla.Database, root: str, rows: DataFrame, table: ebla.Table
) -> None:
    writer = rows.write.format("ebla").option("root", root).option("key", "id").mode("ignore")
    writer.save("t")
    assert values(table) == {2: "old", 3: "old"}
    writer.save("other")
    assert values(db.table("other")) == {1: "one", 2: "two"}


def test_append_upserts_and_overwrite_replaces_all_rows(root: str, rows: DataFrame, table: ebla.Table) -> None:
    writer = rows.write.format("ebla").option("root", root)
    writer.mode("append").save("t")
    assert values(table) == {1: "one", 2: "two", 3: "old"}
    writer.mode("overwrite").save("t")
    assert values(table) == {1: "one", 2: "two"}


def test_schemas_are_merged_by_every_mode_that_writes(
    db: ebla.Database, root: str, rows: DataFrame, table: ebla.Table
) -> None:
    wider = rows.selectExpr("id", "v", "cast(id as double) as score")
    wider.write.format("ebla").options(root=root, mergeSchema="true").mode("append").save("t")
    assert table.get(1)["score"] == 1.0
    other = rows.selectExpr("id", "array(1) as v")
    with pytest.raises(Exception, match="'v'"):
        other.write.format("ebla").options(root=root, mergeSchema="true").mode("append").save("t")
    assert table.get(1)["v"] == "one"


def test_insert_needs_no_address_where_the_table_has_one(
    spark: SparkSession, in_catalog: str, table: ebla.Table, db: ebla.Database, root: str
) -> None:
    spark.sql(f"INSERT INTO {in_catalog} VALUES (4, 'four')")
    assert values(table) == {2: "old", 3: "old", 4: "four"}
    spark.sql(f"INSERT INTO {in_catalog} SELECT id + 10, v FROM {in_catalog} WHERE id < 4")
    assert sorted(values(table)) == [2, 3, 4, 12, 13]
    spark.sql(f"INSERT OVERWRITE {in_catalog} SELECT 7L, 'seven'")
    assert values(table) == {7: "seven"}
    other = db.create_table("other", SCHEMA)
    spark.sql(f"CREATE TABLE saved_other USING ebla OPTIONS (root '{root}', table 'other')")
    try:
        # Rows carry the address of the table that they come from; it is not taken for that of the other one.
        spark.sql(f"INSERT INTO saved_other SELECT * FROM {in_catalog}")
    finally:
        spark.sql("DROP TABLE saved_other")
    assert values(other) == values(table) == {7: "seven"}


def test_a_stream_of_updates_upserts(
    spark: SparkSession, root: str, db: ebla.Database, table: ebla.Table, tmp_path: Path
) -> None:
    counts = db.create_table("counts", ebla.Schema(key={"v": "string"}, columns={"n": "int64"}))
    inputs = tmp_path / "inputs"
    spark.createDataFrame([("a",), ("b",), ("a",)], "v string").write.parquet(str(inputs))
    counted = spark.readStream.schema("v string").parquet(str(inputs)).groupBy("v").count()
    query = (
        counted.selectExpr("v", "count as n")
        .writeStream.format("ebla")
        .outputMode("update")
        .options(root=root, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start("counts")
    )
    query.awaitTermination()
    assert counts.scan().to_arrow().to_pylist() == [{"v": "a", "n": 2}, {"v": "b", "n": 1}]


@pytest.mark.parametrize(
    ("options", "mode", "kind", "said"),
    [
        ({}, "error", UnknownTable, r"\.option\(\"key\", \"id,day\"\)"),
        ({"keys": "id"}, "append", RequestError, "there is no option 'keys'"),
        ({"key": "nr"}, "error", RequestError, "key column 'nr' is missing"),
        ({"key": "id", "if_exists": "append"}, "ignore", RequestError, "mode says 'ignore' and if_exists says"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(
    db: ebla.Database, root: str, rows: DataFrame, options: dict[str, str], mode: str, kind: type, said: str
) -> None:
    with pytest.raises(Exception, match=said) as raised:
        rows.write.format("ebla").options(root=root, **options).mode(mode).save("none")
    assert isinstance(unwrapped(raised.value), kind)
    assert not db.tables()


def test_keys_that_are_null_are_refused_and_nothing_is_made(spark: SparkSession, db: ebla.Database, root: str) -> None:
    rows = spark.createDataFrame([(1, "a"), (None, "b")], "id long, v string")
    with pytest.raises(Exception, match="null") as raised:
        rows.write.format("ebla").options(root=root, key="id").save("none")
    assert unwrapped(raised.value) is not None
    assert isinstance(unwrapped(raised.value), InvalidKey | RequestError)
    assert not db.tables()


def test_a_frame_that_fails_says_why_and_leaves_nothing(spark: SparkSession, db: ebla.Database, root: str) -> None:
    broken = spark.range(3).selectExpr("id", "cast(raise_error('no luck') as string) as v")
    with pytest.raises(Exception, match="no luck"):
        broken.write.format("ebla").options(root=root, key="id").save("none")
    assert not db.tables()
