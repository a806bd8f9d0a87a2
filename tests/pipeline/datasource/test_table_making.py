"""Saving to a table that is not there yet, or lacks columns; format("ebla") in a session that nobody told of it."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import ebla
from ebla.errors import InvalidKey, RequestError, SchemaError, TableExists, UnknownColumn, UnknownTable
from ebla.pipeline.spark.failures import unwrapped
from ebla.pipeline.spark_format import EblaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def save(frame: DataFrame, root: str, table: str = "made", mode: str = "append", **options: str) -> None:
    frame.write.format("ebla").options(root=root, **options).mode(mode).save(table)


def refused(frame: DataFrame, root: str, **options: str) -> Exception | None:
    with pytest.raises(PySparkException) as caught:
        save(frame, root, **options)
    return unwrapped(caught.value)


def rows(db: ebla.Database) -> list[dict[str, Any]]:
    return [dict(row) for row in db.table("made").scan()]


def test_a_save_makes_its_table_while_the_store_is_open_here(spark: SparkSession, db: ebla.Database, root: str) -> None:
    frame = spark.sql("select 1L as id, date'2026-01-31' as day, 'a' as name, map('x', 'y') as click")
    save(frame, root, key="id,day")
    save(frame.drop("click").selectExpr("id + 1 as id", "day", "'b' as name"), root, key="id,day")
    table = db.table("made")
    assert table.schema.key_names == ("id", "day")
    assert [(row["id"], row["name"], row.get("click:x")) for row in table.scan(columns=["name", "click:x"])] == [
        (1, "a", b"y"),
        (2, "b", None),
    ]


def test_what_happens_to_a_table_that_is_there_can_be_said(spark: SparkSession, db: ebla.Database, root: str) -> None:
    frame = spark.sql("select 1L as id, 'a' as name")
    assert isinstance(refused(frame, root), UnknownTable)
    save(frame, root, key="id", if_exists="error")
    assert isinstance(refused(frame, root, if_exists="error"), TableExists)
    assert isinstance(refused(frame, root, key="name"), RequestError)
    save(spark.sql("select 2L as id, 'b' as name"), root, if_exists="ignore")
    assert rows(db) == [{"id": 1, "name": "a"}]
    save(spark.sql("select 3L as id, 'c' as name"), root, mode="overwrite", key="id")
    assert rows(db) == [{"id": 3, "name": "c"}]


def test_columns_that_the_table_lacks_are_added_if_that_is_said(
    spark: SparkSession, db: ebla.Database, root: str
) -> None:
    save(spark.sql("select 1L as id, 'a' as name"), root, key="id")
    wider = spark.sql("select 2L as id, 7 as age, array('x') as tags")
    assert isinstance(refused(wider, root), UnknownColumn)
    save(wider, root, mergeSchema="true")
    assert rows(db) == [
        {"id": 1, "name": "a", "age": None, "tags": None},
        {"id": 2, "name": None, "age": 7, "tags": ["x"]},
    ]
    cells = spark.sql("select 2L as id, map('a', 'b') as click")
    assert isinstance(refused(cells, root, mergeSchema="true"), SchemaError)


def test_a_save_that_fails_leaves_no_table(spark: SparkSession, db: ebla.Database, root: str) -> None:
    frame = spark.createDataFrame([(1, "a"), (None, "b")], "id long, name string")
    assert isinstance(refused(frame, root, key="id"), InvalidKey)
    assert db.tables() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kye": "id"}, "'kye'"),
        ({"if_exists": "replace"}, "append, error or ignore"),
        ({"mergeSchema": "perhaps"}, "false or true"),
        ({"key": " "}, "key is empty"),
        ({"key": "nope"}, "nope"),
        ({"operation": "erase", "key": "id"}, "leave out key"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    spark: SparkSession, db: ebla.Database, root: str, options: dict[str, str], said: str
) -> None:
    found = refused(spark.sql("select 1L as id"), root, **options)
    assert said in str(found)
    assert db.tables() == []


def test_snapshots_are_read_by_their_names(spark: SparkSession, db: ebla.Database, root: str) -> None:
    save(spark.sql("select 1L as id, 'a' as name"), root, key="id")
    db.snapshot("monday")
    db.table("made").erase(1)
    load = spark.read.format("ebla").option("root", root)
    assert load.load("made").count() == 0
    assert load.option("as_of", "monday").load("made").count() == 1
    with pytest.raises(PySparkException, match="tuesday"):
        load.option("as_of", "tuesday").load("made")


def test_spark_finds_the_format_by_itself(spark: SparkSession, db: ebla.Database, root: str) -> None:
    found = [info.name for info in pkgutil.iter_modules([str(Path(ebla.__file__).parent.parent)])]
    assert "pyspark_ebla" in found
    assert importlib.import_module("pyspark_ebla").DefaultSource is EblaSource
    save(spark.sql("select 1L as id"), root, key="id")
    # What was registered with a session is not known to another one.
    assert spark.newSession().read.format("ebla").option("root", root).load("made").count() == 1
