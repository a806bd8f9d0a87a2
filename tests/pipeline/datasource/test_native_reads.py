"""Reads through format("ebla") are planned as those of db.spark: same rows, same plans, one snapshot a query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import ebla
from ebla.direct.freshness import newest_txn
from tests.pipeline.scanning.scan_world import executed, opened_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = ebla.Schema(key={"n": "int64"}, columns={"v": "string", "w": "int64"})
PYTHON = "BatchScan"


@pytest.fixture
def numbers(db: ebla.Database) -> ebla.Table:
    table = db.create_table("numbers", SCHEMA, splits=[25, 50, 75])
    table.put([{"n": n, "v": f"v{n}", "w": n % 3} for n in range(100)])
    table.flush()
    table.compact()
    return table


@pytest.fixture
def load(spark: SparkSession, root: str, numbers: ebla.Table) -> DataFrame:
    return spark.read.format("ebla").option("root", root).load("numbers")


@pytest.fixture
def in_catalog(spark: SparkSession, root: str, numbers: ebla.Table) -> Iterator[str]:
    spark.sql(f"CREATE TABLE native_numbers USING ebla OPTIONS (root '{root}', table 'numbers')")
    yield "native_numbers"
    spark.sql("DROP TABLE native_numbers")


def test_a_load_is_read_by_spark_itself_with_pruned_columns_and_pushed_filters(load: DataFrame) -> None:
    asked = load.where("n >= 80 and w = 1").select("v")
    plan = executed(asked)
    assert "FileScan parquet [n#" in plan
    assert PYTHON not in plan
    assert "ReadSchema: struct<n:bigint,v:string,w:bigint>" in plan
    assert "GreaterThanOrEqual(n,80)" in plan
    assert opened_files(asked) == 1
    assert sorted(row.v for row in asked.collect()) == sorted(f"v{n}" for n in range(80, 100) if n % 3 == 1)


def test_frames_of_one_load_have_filters_of_their_own(load: DataFrame) -> None:
    low, high = load.where("n < 10"), load.where("n >= 95")
    assert low.union(high).count() == 15
    assert high.union(low).agg({"n": "sum"}).collect() == [(45 + sum(range(95, 100)),)]
    assert load.count() == 100
    joined = low.alias("a").join(load.alias("b"), "w").where("b.n > 90")
    assert joined.count() == sum(1 for a in range(10) for b in range(91, 100) if a % 3 == b % 3)


def test_a_load_keeps_its_snapshot_and_shows_what_is_in_memory(load: DataFrame, root: str, numbers: ebla.Table) -> None:
    numbers.put({"n": 1_000, "v": "late", "w": 0})
    numbers.erase(3)
    assert load.count() == 100
    assert load.where("n = 3").count() == 1
    again = load.sparkSession.read.format("ebla").option("root", root).load("numbers")
    assert again.where("n >= 99 or n = 3").orderBy("n").select("v").collect() == [("v99",), ("late",)]
    assert PYTHON not in executed(again)


def test_options_of_a_load_count_there_too(spark: SparkSession, root: str, numbers: ebla.Table) -> None:
    reader = spark.read.format("ebla").option("root", root)
    before = numbers.scan().txn
    numbers.erase_range(start=50)
    assert reader.option("as_of", str(before)).load("numbers").count() == 100
    part = spark.read.format("ebla").options(root=root, start="10", stop="20", columns="w").load("numbers")
    assert part.columns == ["n", "w"]
    assert (part.count(), PYTHON in executed(part)) == (10, False)
    given = spark.read.format("ebla").option("root", root).schema("w long, n long").load("numbers")
    assert given.where("n = 7").collect() == [(1, 7)]
    assert PYTHON not in executed(given)


def test_subqueries_and_unions_of_a_table_of_the_catalog_see_one_snapshot(
    spark: SparkSession, in_catalog: str, numbers: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = iter(range(1_000, 1_100))

    def newest(store: Any) -> int:
        found = newest_txn(store)
        numbers.put({"n": next(writes), "v": "meanwhile", "w": 0})
        return found

    monkeypatch.setattr("ebla.pipeline.datasource.native_reads.newest_txn", newest)
    query = f"""select (select count(*) from {in_catalog}) - count(*) from {in_catalog}
                where n <= (select max(n) from {in_catalog})"""
    assert spark.sql(query).collect() == [(0,)]
    assert next(writes) == 1_001, "asked once for all three"
    assert spark.sql(f"select count(*) from {in_catalog}").first()[0] == 101


def test_a_table_of_the_catalog_is_read_by_spark_itself(spark: SparkSession, in_catalog: str) -> None:
    asked = spark.sql(f"select w from {in_catalog} where n < 25")
    assert PYTHON not in executed(asked)
    assert opened_files(asked) == 1
    assert sum(row.w for row in asked.collect()) == sum(n % 3 for n in range(25))


def test_what_is_wrong_with_a_load_is_said_as_before(load: DataFrame, db: ebla.Database) -> None:
    db.drop_table("numbers")
    db.create_table("numbers", SCHEMA)
    with pytest.raises(Exception, match=r"UnknownTable|HistoryGone|there was no table"):
        load.count()


def test_a_load_without_the_rule_reads_the_same(spark: SparkSession, load: DataFrame) -> None:
    with_rule = sorted(load.collect())
    experimental = spark._jsparkSession.experimental()
    rules = experimental.extraOptimizations()
    getattr(experimental, "extraOptimizations_$eq")(rules.take(0))
    try:
        plain = load.where("n >= 0")
        assert PYTHON in executed(plain)
        assert sorted(plain.collect()) == with_rule
    finally:
        getattr(experimental, "extraOptimizations_$eq")(rules)
