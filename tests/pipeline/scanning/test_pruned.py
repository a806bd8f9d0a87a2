"""What a query on a frame makes Spark open: files and tasks of the keys, and columns, that it asks for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import ebla
from ebla.pipeline.scanning.plan import Limits
from ebla.pipeline.scanning.pruned import narrowed
from ebla.pipeline.scanning.scan import frame_of, scan
from ebla.pipeline.scanning.sections import plan_scan
from ebla.pipeline.spark import java_classes
from tests.pipeline.scanning.scan_world import MERGE, executed, opened_files
from tests.support.inside import state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = ebla.Schema(key={"shop": "int32", "day": "string"}, columns={"amount": "int64", "note": "string"})
# Nothing is read by Spark itself, and nothing as the scan is planned.
MERGED = Limits(overlay_rows_max=0, clean_records_min=1 << 40, layer_records_min=1 << 40)


@pytest.fixture
def table(db: ebla.Database) -> ebla.Table:
    """Ten tablets of a hundred rows, each with a file of its own."""
    made = db.create_table("sales", SCHEMA, splits=[(shop,) for shop in range(1, 10)])
    made.put([{"shop": s, "day": f"{d:03}", "amount": s * d, "note": "x" * d} for s in range(10) for d in range(100)])
    made.flush()
    made.compact()
    return made


def dirtied(table: ebla.Table) -> None:
    table.put([{"shop": shop, "day": f"{day:03}", "amount": -1} for shop in range(10) for day in range(0, 100, 2)])
    table.flush()


def tasks(frame: DataFrame) -> int:
    leaves = frame._jdf.queryExecution().sparkPlan().collectLeaves()
    return sum(
        leaves.apply(at).rdd().getNumPartitions()
        for at in range(leaves.size())
        if MERGE in leaves.apply(at).simpleString(100)
    )


@pytest.mark.parametrize(
    ("where", "files", "rows"),
    [
        ("shop = 3", 1, 100),
        ("shop > 7", 2, 200),
        ("shop in (1, 8) and amount >= 0", 2, 200),
        ("shop between 2 and 4 and day = '005'", 3, 3),
        ("shop = 2 or shop = 5", 2, 200),
        ("amount = 4", 10, 3),
        ("shop = 11", 0, 0),
    ],
)
def test_a_filter_on_the_key_opens_only_files_with_such_rows(
    db: ebla.Database, table: ebla.Table, spark: SparkSession, where: str, files: int, rows: int
) -> None:
    frame = db.spark("sales").where(where)
    assert (opened_files(frame), len(frame.collect())) == (files, rows)


@pytest.mark.parametrize("limits", [Limits(), MERGED], ids=["files", "merged"])
def test_filters_on_times_that_python_does_not_know_or_counts_otherwise_leave_all_their_rows(
    db: ebla.Database, spark: SparkSession, limits: Limits
) -> None:
    table = db.create_table("times", ebla.Schema(key={"at": pa.timestamp("us", "UTC")}, columns={"day": "date32"}))
    moments = [datetime(year, 7, 1, 12, tzinfo=UTC) for year in (1, 1000, 1500, 1582, 1600, 1850, 1969, 2026, 9999)]
    table.put([{"at": at, "day": at.date()} for at in moments])
    table.flush()
    frame = scan(db, "times", spark=spark, limits=limits)
    for text in ("0001-01-01", "1500-07-01 12:00:00", "1582-10-10", "1850-07-01 12:00:00", "2000-01-01", "9999-12-31"):
        above = frame.where(f"at >= timestamp'{text}'").count()
        below = frame.where(f"at < timestamp'{text}'").count()
        assert above + below == len(moments), text
    assert frame.where("at >= timestamp'1500-07-01 12:00:00'").count() == 7
    assert frame.where("day >= date'1500-07-01' and at > timestamp'0001-01-01'").count() == 7
    assert frame.where("at < timestamp'9999-12-31 23:59:59' and day > date'-0005-01-01'").count() == len(moments)


def test_filters_of_one_frame_do_not_reach_another(db: ebla.Database, table: ebla.Table, spark: SparkSession) -> None:
    frame = db.spark("sales")
    both = frame.where("shop = 1").union(frame.where("shop = 2"))
    assert both.groupBy("shop").count().orderBy("shop").collect() == [(1, 100), (2, 100)]
    joined = frame.where("shop < 3").alias("a").join(frame.where("shop > 1").alias("b"), ["shop", "day"])
    assert joined.count() == 100


def test_rows_that_are_merged_come_in_the_columns_and_from_the_keys_that_a_query_needs(
    db: ebla.Database, table: ebla.Table, spark: SparkSession
) -> None:
    dirtied(table)
    frame = scan(db, "sales", spark=spark, limits=MERGED)
    sums = frame.where("shop = 4").groupBy("shop").sum("amount")
    plan = executed(sums)
    assert MERGE in plan
    assert "note" not in plan.split(MERGE)[1].split("PushedFilters")[0]
    assert sums.collect() == [(4, sum(-1 if day % 2 == 0 else 4 * day for day in range(100)))]
    assert tasks(frame.where("shop = 11")) == 0
    assert frame.where("shop = 11").count() == 0
    assert frame.count() == 1_000
    assert frame.where("amount = -1 and day < '010'").select("note", "shop").count() == 50
    assert frame.where("shop < 3").union(frame.where("shop > 8")).count() == 400


def test_filters_reach_both_what_spark_reads_and_what_is_merged(
    db: ebla.Database, table: ebla.Table, spark: SparkSession
) -> None:
    table.put([{"shop": 3, "day": f"{day:03}", "amount": -1} for day in range(100)])
    table.flush()
    frame = scan(db, "sales", spark=spark, limits=Limits(overlay_rows_max=0, clean_records_min=1))
    assert MERGE in executed(frame)
    assert opened_files(frame.where("shop = 3")) == 0
    assert frame.where("shop = 3").agg({"amount": "sum"}).collect() == [(-100,)]
    assert tasks(frame.where("shop = 5")) == 0
    assert frame.where("shop = 5").count() == 100


def test_the_size_of_what_is_merged_is_known_to_spark(
    db: ebla.Database, table: ebla.Table, spark: SparkSession
) -> None:
    dirtied(table)
    frame = scan(db, "sales", spark=spark, limits=MERGED)
    bytes_ = frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
    assert 1_000 < bytes_ < 1_000_000


def test_a_small_table_is_broadcast_and_a_large_one_is_not(
    db: ebla.Database, table: ebla.Table, spark: SparkSession
) -> None:
    other = spark.range(10_000_000).selectExpr("cast(id as int) as shop", "id as n")
    dirtied(table)
    small = scan(db, "sales", spark=spark, limits=MERGED)
    assert "BroadcastHashJoin" in executed(db.spark("sales").join(other, "shop"))
    assert "BroadcastHashJoin" in executed(small.join(other, "shop"))
    large = frame_of(replace(plan_scan(db, "sales", limits=MERGED), section_bytes=1 << 30), spark)
    assert "BroadcastHashJoin" not in executed(large.join(other, "shop"))


def test_columns_are_left_out_only_where_the_rows_stay_the_same(db: ebla.Database) -> None:
    groups = [
        ebla.Group("a", columns={"x": "int64", "s": "string"}),
        ebla.Group("b", columns={"y": "string", "z": "int8"}),
    ]
    db.create_table("t", ebla.Schema(key={"k": "int32"}, groups=groups))
    projection = state_of(db.table("t")).projection(None)
    assert narrowed(projection, ["k", "s"]) == ("s", "z")
    assert narrowed(projection, ["k"]) == ("x", "z")
    assert narrowed(projection, ["y", "x"]) == ("x", "y")


def test_rows_of_other_groups_stay_when_their_columns_are_not_asked_for(db: ebla.Database, spark: SparkSession) -> None:
    groups = [ebla.Group("a", columns={"x": "int64"}), ebla.Group("b", columns={"y": "string"})]
    table = db.create_table("t", ebla.Schema(key={"k": "int32"}, groups=groups))
    table.put([{"k": k, "x": k} for k in range(20)])
    table.put([{"k": k, "y": "why"} for k in range(10, 30)])
    frame = scan(db, "t", spark=spark, limits=MERGED)
    assert frame.select("x").count() == frame.count() == 30
    assert frame.where("k >= 20").select("x").collect() == [(None,)] * 10


def test_clean_files_know_between_which_rows_they_are(db: ebla.Database, table: ebla.Table) -> None:
    planned = plan_scan(db, "sales")
    assert set(planned.spans) == {file for read in planned.plan.clean for file in read.files}
    assert len(planned.spans) == 10


def test_a_spark_that_does_not_take_the_classes_reads_the_same_rows(
    db: ebla.Database, table: ebla.Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirtied(table)
    expected = sorted(scan(db, "sales", spark=spark, limits=MERGED).collect())
    monkeypatch.setattr("ebla.pipeline.scanning.pruned.new_java", lambda *_: None)
    assert sorted(scan(db, "sales", spark=spark, limits=MERGED).collect()) == expected
    assert sorted(db.spark("sales").collect()) == expected


def test_a_class_that_the_compiler_refuses_is_told_once_and_done_without(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "Wrong.java").write_text("package ebla; public class Wrong extends NoSuchClass {}")
    monkeypatch.setattr(java_classes, "files", lambda _: tmp_path)
    assert java_classes.new_java(spark, "Wrong") is None
    assert java_classes.new_java(spark, "Wrong") is None
    assert java_classes.java_bytes(spark, "Wrong") == {}
    told = [record.message for record in caplog.records if "Wrong.java" in record.message]
    assert len(told) == 2  # once by each
    assert "NoSuchClass" in told[0]
