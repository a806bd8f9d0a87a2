"""Tables of a store in Spark SQL: catalog tables, which show the newest, and views, which are snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import ebla

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = ebla.Schema(key={"n": "int64"}, columns={"v": "string"})


@pytest.fixture
def numbers(db: ebla.Database) -> ebla.Table:
    table = db.create_table("numbers", SCHEMA)
    table.put([{"n": n, "v": "old"} for n in range(10)])
    return table


@pytest.fixture
def in_catalog(spark: SparkSession, root: str, numbers: ebla.Table) -> Iterator[ebla.Table]:
    spark.sql(f"CREATE TABLE sql_numbers USING ebla OPTIONS (root '{root}', table 'numbers')")
    yield numbers
    spark.sql("DROP TABLE sql_numbers")


def count(spark: SparkSession, query: str) -> int:
    return int(spark.sql(query).collect()[0][0])


def test_a_table_of_the_catalog_shows_the_newest_snapshot_to_every_query(
    spark: SparkSession, in_catalog: ebla.Table
) -> None:
    assert count(spark, "SELECT count(*) FROM sql_numbers") == 10
    in_catalog.put({"n": 10, "v": "new"})
    assert count(spark, "SELECT sum(n) FROM sql_numbers WHERE v = 'new'") == 10
    query = spark.table("sql_numbers")
    assert len(query.collect()) == 11
    in_catalog.erase_range()
    assert len(query.collect()) == 11
    assert spark.sql("SELECT * FROM sql_numbers UNION ALL SELECT * FROM sql_numbers").collect() == []


def test_a_table_of_the_catalog_can_be_read_as_of_before(spark: SparkSession, in_catalog: ebla.Table) -> None:
    before = in_catalog.scan().txn
    in_catalog.erase_range()
    assert count(spark, f"SELECT count(*) FROM sql_numbers WITH (as_of = '{before}')") == 10
    assert spark.read.option("as_of", str(before)).table("sql_numbers").count() == 10


def test_options_of_a_table_of_the_catalog_are_kept(spark: SparkSession, root: str, numbers: ebla.Table) -> None:
    spark.sql(f"CREATE TABLE sql_few USING ebla OPTIONS (root '{root}', table 'numbers', start '3', stop '5')")
    try:
        assert [row.n for row in spark.sql("SELECT n FROM sql_few ORDER BY n").collect()] == [3, 4]
    finally:
        spark.sql("DROP TABLE sql_few")
    assert numbers.scan().count() == 10  # what Spark drops is its own entry


def test_an_insert_may_say_where_its_table_is(
    spark: SparkSession, root: str, db: ebla.Database, in_catalog: ebla.Table
) -> None:
    other = db.create_table("other", SCHEMA)
    address = f"WITH (root = '{root}', table = 'other')"
    spark.sql(f"CREATE TABLE sql_other USING ebla OPTIONS (root '{root}', table 'other')")
    try:
        spark.sql(f"INSERT INTO sql_other {address} SELECT * FROM sql_numbers WHERE n < 5")
        assert (other.scan().count(), in_catalog.scan().count()) == (5, 10)
        spark.sql(f"INSERT OVERWRITE sql_other {address} VALUES (7, 'seven')")
        assert other.scan().to_arrow().to_pylist() == [{"n": 7, "v": "seven"}]
    finally:
        spark.sql("DROP TABLE sql_other")


def test_a_list_of_columns_leaves_no_place_for_the_address(spark: SparkSession, root: str, numbers: ebla.Table) -> None:
    spark.sql(f"CREATE TABLE sql_listed (n BIGINT) USING ebla OPTIONS (root '{root}', table 'numbers')")
    try:
        with pytest.raises(PySparkException, match="without a list of columns"):
            spark.sql("SELECT * FROM sql_listed").collect()
    finally:
        spark.sql("DROP TABLE sql_listed")


def test_a_view_is_a_snapshot_and_can_be_inserted_into(spark: SparkSession, root: str, numbers: ebla.Table) -> None:
    make = f"CREATE OR REPLACE TEMPORARY VIEW sql_view USING ebla OPTIONS (root '{root}', table 'numbers')"
    spark.sql(make)
    spark.sql("INSERT INTO sql_view VALUES (100, 'new')")
    assert numbers.get(100) == {"n": 100, "v": "new"}
    assert count(spark, "SELECT count(*) FROM sql_view") == 10
    spark.sql(make)
    assert count(spark, "SELECT count(*) FROM sql_view") == 11
    spark.catalog.dropTempView("sql_view")


def test_a_table_that_is_not_there_is_not_put_into_the_catalog(
    spark: SparkSession, root: str, numbers: ebla.Table
) -> None:
    with pytest.raises(PySparkException, match="UnknownTable: there is no table 'nubmers'"):
        spark.sql(f"CREATE TABLE sql_nubmers USING ebla OPTIONS (root '{root}', table 'nubmers')")
    assert not spark.catalog.tableExists("sql_nubmers")
