"""A store attached to a session: views that are fresh for every query, one snapshot a query, held while it is used."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import ebla
import ebla.pipeline
from ebla.errors import RequestError, UnknownTable
from ebla.pipeline.spark.failures import unwrapped
from tests.support.inside import engine_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = ebla.Schema(key={"id": "int64"}, columns={"n": "int64", "name": "string"})


@pytest.fixture
def orders(db: ebla.Database) -> ebla.Table:
    table = db.create_table("orders", SCHEMA)
    table.put([{"id": key, "n": key, "name": "x"} for key in range(10)])
    table.flush()
    return table


@pytest.fixture
def shop(spark: SparkSession, db: ebla.Database, orders: ebla.Table) -> Iterator[ebla.pipeline.Attachment]:
    attached = ebla.pipeline.attach(spark, db, database="shop")
    yield attached
    attached.detach()


def total(spark: SparkSession, query: str = "select sum(n) from shop.orders") -> int:
    return spark.sql(query).collect()[0][0]


def test_every_query_sees_the_newest_rows_and_a_frame_its_own(
    spark: SparkSession, shop: ebla.pipeline.Attachment, orders: ebla.Table
) -> None:
    assert shop.tables == ("orders",)
    assert total(spark) == 45
    before = spark.table("shop.orders")
    orders.put({"id": 100, "n": 1_000})
    assert total(spark) == 1_045
    assert before.count() == 10
    assert (
        spark.sql("show tables in shop").where("not isTemporary").count() == 1
    )  # others' temporary views are shown, too


def test_a_table_that_occurs_twice_is_read_at_one_snapshot(
    spark: SparkSession, shop: ebla.pipeline.Attachment, orders: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = type(shop._plans)._made
    writes = iter(range(200, 300))

    def made(self: object, table: str, as_of: object, seen: object) -> object:
        found = original(shop._plans, table, as_of, seen)
        orders.put({"id": next(writes), "n": 1})  # somebody writes while the query is analysed
        return found

    monkeypatch.setattr(type(shop._plans), "_made", made)
    query = (
        "select count(*) from shop.orders a full join shop.orders b on a.id = b.id where a.id is null or b.id is null"
    )
    orders.put({"id": 150, "n": 1})  # so that it must be planned anew
    assert total(spark, query) == 0
    assert next(writes) > 201, "planned twice, at one txn"
    assert total(spark, "select count(*) from shop.orders") > 10


def test_the_plan_is_that_of_db_spark(spark: SparkSession, shop: ebla.pipeline.Attachment) -> None:
    plan = spark.sql("select name from shop.orders where n > 7")._jdf.queryExecution().executedPlan().toString()
    assert "FileScan parquet" in plan
    assert "GreaterThan(n,7)" in plan
    assert "id" not in plan.partition("ReadSchema:")[2].partition("\n")[0]


def test_a_table_that_nobody_wrote_is_not_planned_again(
    spark: SparkSession, shop: ebla.pipeline.Attachment, orders: ebla.Table
) -> None:
    for _ in range(3):
        total(spark)
    assert shop.held == 1
    orders.put({"id": 100, "n": 1})
    total(spark)
    assert shop.held <= 2


def test_what_a_frame_reads_is_held_until_spark_cannot_use_it(
    spark: SparkSession, shop: ebla.pipeline.Attachment, orders: ebla.Table
) -> None:
    spark.table("shop.orders").createOrReplaceTempView("then")
    files = set(orders.files())
    orders.put([{"id": key, "n": 0} for key in range(10)])
    orders.compact()
    assert total(spark) == 0
    gc.collect()
    spark._jvm.java.lang.System.gc()
    assert shop.held == 2
    held = engine_of(orders).files
    assert all(held.size(file) for file in files)
    assert total(spark, "select sum(n) from then") == 45
    spark.catalog.dropTempView("then")
    for _ in range(20):
        gc.collect()
        spark._jvm.java.lang.System.gc()
        if shop.held == 1:
            break
        time.sleep(0.1)
    assert shop.held == 1


def test_the_past_is_reached_by_txn_time_and_name(
    spark: SparkSession, db: ebla.Database, shop: ebla.pipeline.Attachment, orders: ebla.Table
) -> None:
    txn = orders.put({"id": 100, "n": 1})
    db.snapshot("monday")
    orders.put({"id": 101, "n": 1})
    assert total(spark, f"select count(*) from shop.ebla('orders', {txn - 1})") == 10
    assert total(spark, "select count(*) from shop.ebla('orders', 'monday')") == 11
    assert total(spark, "select count(*) from shop.ebla('orders', current_timestamp())") == 12


def test_what_is_refused_is_told_by_spark(
    spark: SparkSession, db: ebla.Database, shop: ebla.pipeline.Attachment
) -> None:
    from pyspark.errors import AnalysisException

    db.drop_table("orders")
    for query in ("select * from shop.orders", "select * from shop.ebla('nowhere')"):
        with pytest.raises(AnalysisException) as caught:
            spark.sql(query)
        assert isinstance(unwrapped(caught.value), UnknownTable)
    with pytest.raises(AnalysisException, match=r"write shop\.ebla"):
        spark.sql("select * from shop.ebla()")
    shop.refresh()
    assert shop.tables == ()


def test_columns_and_tables_that_come_later_are_there(
    spark: SparkSession, db: ebla.Database, shop: ebla.pipeline.Attachment
) -> None:
    db.alter_table("orders", add_columns={"more": "int64"})
    assert spark.table("shop.orders").columns == ["id", "n", "name", "more"]
    db.create_table("users", SCHEMA)
    db.create_table("two-words", SCHEMA)
    shop.refresh()
    assert shop.tables == ("orders", "users")
    assert shop.left_out == ("two-words",)
    assert total(spark, "select count(*) from shop.ebla('two-words')") == 0


def test_a_store_that_another_process_may_have_open_is_attached_by_its_root(spark: SparkSession, root: str) -> None:
    with ebla.open(root) as db:
        db.create_table("orders", SCHEMA).put({"id": 1, "n": 7})
    attached = ebla.pipeline.attach(spark, root, database="elsewhere")
    assert total(spark, "select sum(n) from elsewhere.orders") == 7
    with ebla.open(root) as db:
        db.table("orders").put({"id": 2, "n": 3})
        assert total(spark, "select sum(n) from elsewhere.orders") == 10
    attached.detach()


def test_bad_arguments_are_refused(spark: SparkSession, db: ebla.Database) -> None:
    with pytest.raises(RequestError, match="named by letters"):
        ebla.pipeline.attach(spark, db, database="my shop")
    with pytest.raises(RequestError, match="SparkSession"):
        ebla.pipeline.attach(None, db)
