"""A table as a DataFrame: the rows of `table.scan`, whatever is in memory, in files, or under way."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ebla
import ebla.pipeline
from ebla.errors import Closed, RequestError, StoreNotFound, UnknownColumn, UnknownTable
from ebla.pipeline.scanning.frame_ends import check_views
from ebla.pipeline.scanning.plan import Limits
from ebla.pipeline.scanning.scan import frame_of, scan, string_bound
from ebla.pipeline.scanning.sections import SectionPlan, plan_scan, read_section
from ebla.pipeline.spark.types import to_spark
from ebla.settings import Settings
from tests.pipeline.scanning.scan_world import MERGE, assert_same_rows, executed, rows_of, scanned_rows
from tests.support.inside import engine_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FINE = Limits(clean_records_min=1, section_records_min=1, overlay_rows_max=0)
POINTS = ebla.Schema(
    key={"id": "string"}, groups=[ebla.Group("g", columns={"n": "int64", "s": "string"}, block_bytes=4096)]
)
PAIRS = ebla.Schema(
    key={"user": "string", "at": "int64"}, groups=[ebla.Group("g", columns={"n": "int64"}, block_bytes=4096)]
)


def points(numbers: object, n: int = 0) -> pa.Table:
    ids = np.asarray(numbers)
    return pa.table({"id": np.char.mod("%06d", ids), "n": ids + n, "s": np.char.mod("text %d", ids)})


def pairs(numbers: object, n: int = 0) -> pa.Table:
    ids = np.asarray(numbers)
    return pa.table({"user": np.char.mod("u%03d", ids // 100), "at": ids % 100 - 50, "n": ids + n})


def clean_numbers(planned: SectionPlan, count: int) -> set[int]:
    """Return the points that Spark reads by itself from the only, and partly clean, file of a plan."""
    (read,) = planned.plan.clean
    return {n for n in range(count) if any(part.contains(b"%06d" % n) for part in read.ranges)}


# --- clean ---------------------------------------------------------------------------------------


def test_a_settled_table_is_read_by_spark_alone_and_without_a_filter(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", POINTS, splits=["000500"])
    table.put(points(range(1000)))
    table.flush()
    table.put(points(range(1000, 1200)))
    table.flush()
    frame = db.spark("t")
    plan = executed(frame)
    assert "FileScan parquet" in plan
    assert MERGE not in plan
    assert "Filter (" not in plan
    assert_same_rows(frame, table.scan(), table)


@pytest.mark.parametrize(("schema", "make", "row"), [(POINTS, points, "id"), (PAIRS, pairs, "_row")])
def test_row_groups_outside_of_the_clean_ranges_are_not_read(
    db: ebla.Database, spark: SparkSession, schema: ebla.Schema, make: object, row: str
) -> None:
    assert callable(make)
    table = db.create_table("t", schema)
    table.put(make(range(4000)))
    table.flush()
    start, stop = ("000200", "000400") if schema is POINTS else (("u002",), ("u004",))
    frame = scan(db, "t", start=start, stop=stop, limits=FINE, spark=spark)
    assert f"GreaterThanOrEqual({row}," in executed(frame)
    assert MERGE not in executed(frame)
    assert_same_rows(frame, table.scan(start, stop), table)
    (handed_on,) = scanned_rows(frame)
    assert 200 <= handed_on < 1000


def test_only_columns_that_are_asked_for_are_read(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", PAIRS)
    table.put(pairs(range(100)))
    table.flush()
    assert "ReadSchema: struct<user:string,at:bigint>" in executed(db.spark("t", columns=[]))
    assert_same_rows(db.spark("t", columns=["user"]), table.scan(columns=["user"]), table)


def test_rows_of_one_group_are_clean_in_a_table_of_several(db: ebla.Database, spark: SparkSession) -> None:
    groups = [
        ebla.Group("a", columns={"x": "int64"}),
        ebla.Group("b", columns={"y": "string"}),
        ebla.Group("c", families=["tag"]),
    ]
    table = db.create_table("t", ebla.Schema(key={"k": "int32"}, groups=groups))
    table.put([{"k": k, "x": k} for k in range(50)])
    table.put([{"k": k, "y": "why"} for k in range(50, 80)])
    table.put([{"k": k, "tag:red": b"1"} for k in range(70, 90)])
    table.flush()
    planned = plan_scan(db, "t", columns=["x", "y", "tag", "tag:red"], limits=FINE)
    assert sorted(bool(read.ranges) for read in planned.plan.clean) == [False, True]
    scanned = table.scan(columns=["x", "y", "tag", "tag:red"])
    assert_same_rows(frame_of(planned, spark), scanned, table)
    assert_same_rows(db.spark("t", columns=[]), table.scan(columns=[]), table)


def test_files_older_than_the_schema_are_read_by_spark_where_names_and_types_are_the_same(
    db: ebla.Database, spark: SparkSession
) -> None:
    groups = [ebla.Group("a", columns={"x": "int32", "y": "string"}), ebla.Group("b", columns={"z": "int64"})]
    table = db.create_table("t", ebla.Schema(key={"k": "int32"}, groups=groups))
    table.put([{"k": k, "x": k, "y": "why", "z": k} for k in range(50)])
    table.flush()
    db.alter_table("t", add_columns={"a": {"w": "string"}}, drop_columns=["y"])
    assert MERGE not in executed(db.spark("t", columns=["x"]))
    for change in (
        {"add_columns": {"a": {"y": "int64"}}},  # not what the file has under that name
        {"rename": {"x": "w", "w": "x"}},
        {"change_types": {"w": "int64"}},
        {"move": {"z": "a"}, "drop_groups": ["b"]},
    ):
        db.alter_table("t", **change)
        assert_same_rows(db.spark("t"), table.scan(), table)
    table.compact()
    assert MERGE not in executed(db.spark("t"))
    assert_same_rows(db.spark("t"), table.scan(), table)


def test_names_that_mean_something_to_spark_are_read_as_they_are(db: ebla.Database, spark: SparkSession) -> None:
    schema = ebla.Schema(key={"the.key": "string"}, columns={"a.b": "int32", "back`tick": "int32", "A": "int8"})
    table = db.create_table("t", schema)
    table.put([{"the.key": f"{k:03}", "a.b": k, "back`tick": -k, "A": 1} for k in range(100)])
    table.flush()
    frame = scan(db, "t", start="050", limits=FINE, spark=spark)
    assert "FileScan parquet" in executed(frame)
    assert_same_rows(frame, table.scan("050"), table)


def test_columns_that_spark_cannot_tell_apart_are_left_to_the_engine(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"a": "int32", "A": "int32"}))
    table.put({"k": "x", "a": 1, "A": 2})
    table.flush()
    assert plan_scan(db, "t").plan.clean == ()
    assert_same_rows(db.spark("t"), table.scan(), table)


def test_a_store_may_lie_in_a_place_with_any_name(tmp_path: Path, spark: SparkSession) -> None:
    with ebla.open(tmp_path / "a [b]{c} d%20e=é*?") as db:
        table = db.create_table("t", POINTS)
        table.put(points(range(10)))
        table.flush()
        table.put(points([3], n=100))
        frame = scan(db, "t", limits=FINE, spark=spark)
        assert "FileScan parquet" in executed(frame)
        assert_same_rows(frame, table.scan(), table)


# --- dirty ---------------------------------------------------------------------------------------


def test_corrections_of_neighbouring_rows_leave_all_others_clean(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", POINTS)
    table.put(points(range(10_000)))
    table.flush()
    table.put(points(range(3_000, 3_100), n=1))
    table.put(points(range(7_000, 7_100), n=1))
    table.flush()
    planned = plan_scan(db, "t", limits=FINE)
    assert sum(section.records for section in planned.sections) < 1_000
    assert clean_numbers(planned, 10_000) == {*range(10_000)} - {*range(3_000, 3_100), *range(7_000, 7_100)}
    frame = frame_of(planned, spark)
    assert "FileScan parquet" in executed(frame)
    assert MERGE in executed(frame)
    assert_same_rows(frame, table.scan(), table)


def test_unflushed_rows_are_there_and_make_only_their_own_ranges_dirty(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", POINTS)
    table.put(points(range(5_000)))
    table.flush()
    table.put(points([17, 4_321], n=1))
    table.put(points(range(6_000, 6_010)))
    planned = plan_scan(db, "t", limits=FINE)
    assert len(planned.plan.clean[0].ranges) == 3
    assert sum(section.records for section in planned.sections) < 500
    assert_same_rows(frame_of(planned, spark), table.scan(), table)


def test_much_that_is_unflushed_is_flushed_first(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", POINTS)
    table.put({"id": "x", "s": "y" * (17 << 20)})
    planned = plan_scan(db, "t")
    assert planned.sections == ()
    assert len(planned.plan.clean) == 1
    assert frame_of(planned, spark).count() == 1


def test_a_dirty_scan_is_divided_among_several_tasks(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", PAIRS)
    table.put(pairs(range(3_000)))
    table.flush()
    table.put(pairs(range(0, 3_000, 7), n=5))
    table.flush()
    frame = scan(db, "t", limits=Limits(section_records=500, overlay_rows_max=0), spark=spark)
    assert frame.rdd.getNumPartitions() > 4
    assert_same_rows(frame, table.scan(), table)


def test_sections_alone_give_every_row_in_key_order(db: ebla.Database) -> None:
    table = db.create_table("t", PAIRS)
    table.put(pairs(range(3_000)))
    table.flush()
    table.put(pairs(range(2_500, 3_500), n=5))
    planned = plan_scan(
        db, "t", start=("u005",), columns=["n"], cores=2, limits=Limits(section_records=300), native=False
    )
    assert planned.plan.clean == ()
    assert len(planned.sections) > 5
    batches = [batch for section in planned.sections for batch in read_section(planned.target, section)]
    assert {batch.schema for batch in batches} == {planned.schema}
    expected = table.scan(("u005",), columns=["n"]).to_arrow()
    assert pa.Table.from_batches(batches).combine_chunks() == to_spark(expected).combine_chunks()


def test_erased_rows_are_gone_and_overwritten_ranges_are_clean(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", POINTS)
    table.put(points(range(1_000)))
    table.flush()
    table.erase("000500")
    table.erase_range("000700", "000800")
    table.flush()
    planned = plan_scan(db, "t", limits=FINE)
    assert clean_numbers(planned, 1_000) == {*range(1_000)} - {500, *range(700, 800)}
    frame = frame_of(planned, spark)
    assert frame.count() == 899
    assert_same_rows(frame, table.scan(), table)


# --- layers --------------------------------------------------------------------------------------

LAYERED = Limits(layer_records_min=1)


def test_whole_rows_put_again_are_left_out_of_the_file_they_were_in_by_spark_alone(
    db: ebla.Database, spark: SparkSession
) -> None:
    table = db.create_table("t", POINTS, splits=["001500"])
    for numbers, more in ((range(3_000), 0), (range(0, 3_000, 7), 1), (range(100, 4_000, 11), 2)):
        table.put(points(numbers, n=more))
        table.flush()
    planned = plan_scan(db, "t", limits=LAYERED)
    assert planned.sections == ()
    assert len(planned.layers.masks) >= 2
    frame = frame_of(planned, spark)
    assert MERGE not in executed(frame)
    assert_same_rows(frame, table.scan(), table)
    assert "ReadSchema: struct<_tmp_metadata_row_index:bigint>" in executed(frame.groupBy().count())
    assert frame.count() == table.scan().to_arrow().num_rows
    assert_same_rows(
        frame.where("n < 1000 and s > 'text 3'"),
        table.scan(where=(pc.field("n") < 1000) & (pc.field("s") > "text 3")),
        table,
    )


def test_files_of_one_size_are_told_apart_by_their_names(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=Settings(background_compaction=False)) as db:
        table = db.create_table("t", POINTS)
        sizes: set[int] = set()
        files: set[Path] = set()
        # They differ by the few bytes that a txn takes, so two are soon alike.
        for first in range(100_000, 200_000, 1_000):
            table.put(points(range(first, first + 500)))
            table.flush()
            (new,) = set(Path(db.path).glob("fragments/*/*")) - files
            if new.stat().st_size in sizes:
                break
            files.add(new)
            sizes.add(new.stat().st_size)
        else:
            pytest.fail("this proves something for equal sizes only")
        table.put(points(range(first, first + 500, 3), n=5))
        table.flush()
        planned = plan_scan(db, "t", limits=LAYERED)
        assert len(planned.layers.masks) == 1
        assert_same_rows(frame_of(planned, spark), table.scan(), table)


def test_partial_erased_and_unflushed_rows_are_merged_one_by_one_over_a_file_that_spark_reads(
    db: ebla.Database, spark: SparkSession
) -> None:
    table = db.create_table("t", PAIRS)
    table.put(pairs(range(3_000)))
    table.flush()
    table.put([{"user": "u001", "at": 3, "n": None}, {"user": "u000", "at": -50, "n": 7}])
    table.erase_many([("u002", at) for at in range(-50, -40)])
    table.flush()
    table.put([{"user": "u029", "at": 49, "n": -1}, {"user": "new", "at": 0, "n": 0}])
    table.erase(("u010", 0))
    planned = plan_scan(db, "t", limits=LAYERED)
    assert [section.records for section in planned.plan.dirty] == [1]  # where the file has no row
    assert sum(section.records for section in planned.layers.sections) == 14
    assert [read.ranges for read in planned.plan.clean] == [()]
    assert_same_rows(frame_of(planned, spark), table.scan(), table)


def test_a_file_that_lacks_a_column_lets_older_values_show_through(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", POINTS)
    table.put(points(range(500)))
    table.flush()
    ebla.pipeline.load(db, "t", spark.createDataFrame([(f"{n:06}", -n) for n in range(100)], "id string, n bigint"))
    for columns in (None, ["n"], ["s"]):
        planned = plan_scan(db, "t", columns=columns, limits=LAYERED)
        assert_same_rows(frame_of(planned, spark), table.scan(columns=columns), table)
    assert plan_scan(db, "t", columns=["n"], limits=LAYERED).sections == ()
    assert plan_scan(db, "t", columns=["s"], limits=LAYERED).sections != ()


def test_rows_whose_keys_differ_late_are_told_apart(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
    names = [f"{'x' * (n % 5)}/long common words/{n // 9:04}/{n % 9}" for n in range(2_000)]
    table.put([{"k": name, "n": 0} for name in names])
    table.flush()
    table.put([{"k": name + more, "n": 1} for name in names[::10] for more in ("", "!")])
    table.flush()
    planned = plan_scan(db, "t", limits=LAYERED)
    (mask,) = planned.layers.masks.values()
    assert np.unpackbits(mask.view(np.uint8)).sum() == 200
    assert_same_rows(frame_of(planned, spark), table.scan(), table)


# --- time ----------------------------------------------------------------------------------------


def test_a_frame_stays_at_its_snapshot_while_the_table_is_written_and_flushed(
    db: ebla.Database, spark: SparkSession
) -> None:
    table = db.create_table("t", POINTS)
    table.put(points(range(1_000)))
    table.flush()
    table.put(points(range(200, 300), n=1))
    txn = db.snapshot().txn
    frame = scan(db, "t", limits=FINE, spark=spark)
    expected = rows_of(to_spark(table.scan(as_of=txn).to_arrow()), ("id",))
    assert rows_of(frame.toArrow(), ("id",)) == expected
    table.put(points(range(0, 1_500, 3), n=2))
    table.erase_range("000250", "000600")
    assert rows_of(frame.toArrow(), ("id",)) == expected
    table.flush()
    assert rows_of(frame.toArrow(), ("id",)) == expected
    assert_same_rows(db.spark("t"), table.scan(), table)


def test_the_past_can_be_read_by_txn_by_time_and_by_snapshot(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", POINTS)
    first = table.put(points(range(100)))
    table.flush()
    snapshot, moment = db.snapshot(), datetime.now(UTC)
    db.snapshot("monday")
    table.put(points(range(50, 150), n=7))
    table.flush()
    for as_of in (first, snapshot, moment, "monday"):
        frame = db.spark("t", as_of=as_of)
        assert MERGE not in executed(frame)  # what is newer does not make the older dirty
        assert_same_rows(frame, table.scan(as_of=as_of), table)
    with pytest.raises(UnknownTable, match="there was no table 't' yet"):
        db.spark("t", as_of=1)
    with pytest.raises(RequestError, match="none of that name"):
        db.spark("t", as_of="yesterday")
    assert ebla.pipeline.changes(db, "t", "monday").count() == 100
    with pytest.raises(RequestError, match="is a system table"):
        db.spark("sys.tables")


def test_ages_are_measured_at_the_snapshot(db: ebla.Database, spark: SparkSession) -> None:
    group = ebla.Group("g", columns={"n": "int32"}, max_age="1h")
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=[group]))
    table.put([{"k": str(k), "n": k} for k in range(10)])
    table.flush()
    assert plan_scan(db, "t").plan.clean == ()
    assert db.spark("t").count() == 10


# --- held ----------------------------------------------------------------------------------------

FORGETFUL = Settings(background_compaction=False, history_seconds=0, garbage_age_seconds=0)


def clean_up(db: ebla.Database, *, is_held: bool = True) -> set[str]:
    """Compact everything, collect garbage until nothing more goes, and return the files that are left."""
    db.table("t").compact()
    gc.collect()
    check_views()
    deadline = time.monotonic() + 10
    while not is_held and db.snapshots() and time.monotonic() < deadline:
        time.sleep(0.01)  # what is held by name is let go by a thread
    for _ in range(3):
        db.gc(dry_run=False)
    return {path.name for path in Path(db.path).glob("fragments/*/*.parquet")}


@pytest.mark.parametrize("is_global", [False, True])
def test_a_temporary_view_keeps_the_snapshot_and_the_files_of_a_frame_that_is_gone(
    root: str, spark: SparkSession, is_global: bool
) -> None:
    with ebla.open(root, settings=FORGETFUL) as db:
        table = db.create_table("t", POINTS)
        table.put(points(range(1_000)))
        table.flush()
        (before,) = {path.name for path in Path(root).glob("fragments/*/*.parquet")}
        frame = db.spark("t").where("n >= 0")
        (frame.createOrReplaceGlobalTempView if is_global else frame.createOrReplaceTempView)("held_points")
        del frame
        table.put(points(range(1_000), n=1))
        table.flush()
        assert before in clean_up(db)
        name = "global_temp.held_points" if is_global else "held_points"
        assert spark.table(name).count() == 1_000
        (spark.catalog.dropGlobalTempView if is_global else spark.catalog.dropTempView)("held_points")
        assert before not in clean_up(db, is_held=False)


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_frame_and_what_is_derived_from_it_keep_their_files_and_their_snapshot(
    root: str, spark: SparkSession, is_elsewhere: bool
) -> None:
    with ebla.open(root, settings=FORGETFUL) as db:
        table = db.create_table("t", POINTS)
        table.put(points(range(1_000)))
        table.flush()
        table.put(points(range(100, 200), n=1))
        (before,) = {path.name for path in Path(root).glob("fragments/*/*.parquet")}
        frame = scan(root if is_elsewhere else db, "t", limits=LAYERED, spark=spark)
        expected = rows_of(to_spark(table.scan().to_arrow()), ("id",))
        for more in (2, 3):
            table.put(points(range(1_000), n=more))
            table.flush()
            assert before in clean_up(db)
        assert rows_of(frame.toArrow(), ("id",)) == expected
        few = frame.where("n < 10").select("id")
        del frame
        assert before in clean_up(db)
        assert few.count() == 10
        del few
        assert before not in clean_up(db, is_held=False)
        assert engine_of(db).pins.oldest() is None


# --- elsewhere -----------------------------------------------------------------------------------

WRITER = """
import sys, ebla
with ebla.open(sys.argv[1]) as db:
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
    table.put([{"k": f"{k:03}", "n": k} for k in range(100)])
    table.flush()
    table.put([{"k": f"{k:03}", "n": -k} for k in range(90, 110)])
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_store_that_another_process_writes_is_read_by_its_root(root: str, spark: SparkSession) -> None:
    command = [sys.executable, "-c", WRITER, root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        frame = scan(root, "t", spark=spark, limits=FINE)
        assert {row.k: row.n for row in frame.collect()} == {f"{k:03}": k if k < 90 else -k for k in range(110)}
        assert scan(Path(root), "t", prefix="10", spark=spark).count() == 10
        writer.communicate("\n")


def test_a_table_made_after_a_worker_opened_the_store_is_found(db: ebla.Database, spark: SparkSession) -> None:
    for name in ("one", "two"):
        table = db.create_table(name, POINTS)
        table.put(points(range(10)))
        assert_same_rows(db.spark(name), table.scan(), table)


def test_a_table_dropped_before_its_rows_are_read_is_an_error_that_says_so(
    db: ebla.Database, spark: SparkSession
) -> None:
    db.create_table("t", POINTS).put(points(range(10)))
    frame = scan(db, "t", limits=FINE, spark=spark)
    db.drop_table("t")
    db.create_table("t", POINTS).put(points(range(20)))
    with pytest.raises(Exception, match="was dropped"):
        frame.count()
    assert db.spark("t").count() == 20


def test_a_table_altered_before_its_rows_are_merged_is_an_error_that_says_so(
    db: ebla.Database, spark: SparkSession
) -> None:
    db.create_table("t", POINTS).put(points(range(10)))
    frame = scan(db, "t", limits=FINE, spark=spark)
    db.alter_table("t", add_columns={"more": "int64"})
    with pytest.raises(Exception, match="the schema of 't' was changed since the scan was planned"):
        frame.count()


def test_a_view_fails_by_the_name_of_a_file_that_is_gone(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=FORGETFUL) as db:
        table = db.create_table("t", POINTS)
        table.put(points(range(1_000)))
        table.flush()
        (before,) = Path(root).glob("fragments/*/*.parquet")
        scan(db, "t", spark=spark).createOrReplaceTempView("outlived")
        before.unlink()  # as where what a session held expired, because its process was stopped for long
        try:
            with pytest.raises(Exception, match=before.name):
                spark.table("outlived").agg({"n": "sum"}).collect()
        finally:
            spark.catalog.dropTempView("outlived")


def test_what_cannot_be_is_refused_before_any_job_runs(db: ebla.Database, root: str, spark: SparkSession) -> None:
    db.create_table("t", POINTS)
    with pytest.raises(StoreNotFound):
        scan(root + "/elsewhere", "t", spark=spark)
    with pytest.raises(UnknownTable):
        db.spark("nothing")
    with pytest.raises(UnknownColumn):
        db.spark("t", columns=["nothing"])
    with pytest.raises(RequestError, match="either prefix"):
        db.spark("t", start="a", prefix="b")
    with pytest.raises(RequestError, match="open database or the path"):
        scan(3, "t", spark=spark)  # type: ignore[arg-type]
    assert db.spark("t").count() == 0
    assert db.spark("t").columns == ["id", "n", "s"]
    with ebla.open(root, read_only=True) as closed:
        pass
    with pytest.raises(Closed):
        closed.spark("t")


def test_a_filter_is_that_of_a_scan_whatever_is_where(db: ebla.Database, root: str, spark: SparkSession) -> None:
    schema = ebla.Schema(
        key={"id": "string"}, groups=[ebla.Group("g", columns={"n": "int64"}), ebla.Group("h", columns={"s": "string"})]
    )
    table = db.create_table("t", schema)
    table.put(points(range(3000)))
    table.flush()
    table.put(points(range(100, 200), n=10_000))
    table.put([{"id": "alone", "n": 7}, {"id": "other", "s": "text 8"}])
    wheres = [
        pc.field("n") >= 9_000,
        pc.field("s").isin(["text 5", "text 150", "text 8"]),
        (pc.field("n") < 10) & pc.field("s").is_null(),
        "n > 9500 or s like 'text 5%'",
    ]
    for where in wheres:
        for columns in (None, ["n"], []):
            wanted = sorted(row["id"] for row in table.scan(columns=columns, where=where))
            frame = db.spark("t", columns=columns, where=where)
            assert sorted(row["id"] for row in frame.collect()) == wanted
            assert frame.columns == table.scan(columns=columns, where=where).to_arrow().schema.names
    assert scan(root, "t", where=wheres[0], start="000150", spark=spark).count() == 50


def test_keywords_that_a_scan_does_not_have_are_refused_by_name(db: ebla.Database, spark: SparkSession) -> None:
    db.create_table("t", POINTS).put(points(range(10)))
    for unknown in ("limit", "wehre", "colums", "reverse"):
        with pytest.raises(TypeError, match=f"'{unknown}'"):
            scan(db, "t", spark=spark, **{unknown: 1})
        with pytest.raises(TypeError, match=f"'{unknown}'"):
            db.spark("t", **{unknown: 1})
        with pytest.raises(TypeError, match=f"'{unknown}'"):
            plan_scan(db, "t", **{unknown: 1})
    with pytest.raises(RequestError, match="where is a filter"):
        scan(db, "t", where=7, spark=spark)
    with pytest.raises(UnknownColumn, match="where names 'nothing'"):
        db.spark("t", where=pc.field("nothing") > 3)


# --- values --------------------------------------------------------------------------------------

TYPES = {
    "bool": [True, None],
    "int8": [-128, 127],
    "uint8": [0, 255],
    "uint16": [65535, None],
    "uint32": [4294967295, 0],
    "uint64": [18446744073709551615, 0],
    "float32": [1.5, float("nan")],
    "float64": [-0.0, float("inf")],
    "string": ["", "žluťoučký 🐎"],
    "binary": [b"", b"\x00\xff"],
    "date32": [date(1, 1, 1), date(9999, 12, 31)],
    "date64": [date(1500, 2, 28), None],
    "timestamp[s]": [datetime(1900, 1, 1), None],
    "timestamp[ms]": [datetime(1969, 12, 31, 23, 59, 59, 999000), None],
    "timestamp[us]": [datetime(1582, 10, 4, 1, 2, 3, 4), datetime(9999, 12, 31)],
    "timestamp[us, tz=UTC]": [datetime(1, 1, 1, tzinfo=UTC), None],
    "timestamp[ms, tz=Europe/Prague]": [datetime(2026, 7, 1, tzinfo=UTC), None],
    "decimal128(10, 2)": [Decimal("-12345678.90"), None],
    "decimal128(38, 10)": [Decimal("9" * 28 + "." + "1" * 10), None],
    "list<string>": [["a", None], []],
    "list<list<int32>>": [[[1], []], None],
    "struct<x: int32, y: list<float64>>": [{"x": 1, "y": [0.5]}, {"x": None, "y": None}],
}
ENGINE_TYPES = {
    "timestamp[ns]": [1, 10**18 + 1],
    "time64[us]": [3, None],
    "duration[us]": [1, None],
    "halffloat": [1.5],
}


def test_values_of_every_type_are_the_same_by_both_ways(db: ebla.Database, spark: SparkSession) -> None:
    names = {f"c{number}": kind for number, kind in enumerate(TYPES)}
    keys = {"a": "string", "b": "timestamp[us]", "c": "int16"}
    table = db.create_table("t", ebla.Schema(key=keys, columns={**names, "fixed": pa.binary(3)}))
    for number in range(3):
        row: dict[str, object] = {
            "a": f"k\0{number}",
            "b": datetime(1500, 1, 1 + number),
            "c": -number,
            "fixed": b"abc",
        }
        row |= {name: TYPES[kind][number] for name, kind in names.items() if number < len(TYPES[kind])}
        table.put(row)
    table.flush()
    native = db.spark("t")
    assert "FileScan parquet" in executed(native)
    assert MERGE not in executed(native)
    assert_same_rows(native, table.scan(), table)
    merged = frame_of(plan_scan(db, "t", native=False), spark)
    assert "FileScan parquet" not in executed(merged)
    assert native.schema == merged.schema
    assert_same_rows(merged, table.scan(), table)


def test_types_that_spark_reads_otherwise_are_left_to_the_engine(db: ebla.Database, spark: SparkSession) -> None:
    names = {f"c{number}": kind for number, kind in enumerate(ENGINE_TYPES)}
    table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns=names))
    arrays = [
        pa.array(values, pa.int64()).cast(kind) if "[" in kind else pa.array(values, pa.float32()).cast("float16")
        for kind, values in ((kind, [*values, None][:2]) for kind, values in ENGINE_TYPES.items())
    ]
    table.put(pa.table({"k": [1, 2], **dict(zip(names, arrays, strict=True))}))
    table.flush()
    assert_same_rows(db.spark("t"), table.scan(), table)


def test_cells_come_as_maps_and_single_cells_as_bytes(db: ebla.Database, spark: SparkSession) -> None:
    groups = [
        ebla.Group("a", columns={"x": "int64"}),
        ebla.Group("c", families=["tag"]),
        ebla.Group("d", families=["*"]),
    ]
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=groups))
    table.put({"k": "a", "x": 1, "tag:red": b"1", "tag:é": b"2", "other:x": b"3", "bare": b"4"})
    table.flush()
    table.put({"k": "b", "tag:red": b"5"})
    assert_same_rows(db.spark("t"), table.scan(), table)
    frame = db.spark("t", columns=["tag:red", "other:", "bare"])
    assert frame.schema.simpleString() == "struct<k:string,tag:red:binary,other:map<string,binary>,bare:binary>"
    assert_same_rows(frame, table.scan(columns=["tag:red", "other:", "bare"]), table)


# --- keys ----------------------------------------------------------------------------------------

EDGES = ["", "\0", "a", "a\0", "ab", "b", "\x7f", "\x80", "é", "߿", "\ud7ff", "\ue000", "￿", "𝄞", "\U0010ffff"]


def test_ranges_that_end_between_strings_hold_the_same_rows(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
    table.put([{"k": key + more, "n": 1} for key in EDGES for more in ("", "x", "\U0010ffff")])
    table.flush()
    for prefix in ("a", "\x7f", "é", "\ud7ff", "\U0010ffff"):
        frame = scan(db, "t", prefix=prefix, limits=FINE, spark=spark)
        assert MERGE not in executed(frame)
        assert_same_rows(frame, table.scan(prefix=prefix), table)


@pytest.mark.parametrize("last", [b"\x80", b"\xc0", b"\xc3", b"\xed\xa0", b"\xf4\x8f\xbf\xc0", b"\xf5", b"\xff"])
def test_the_smallest_string_not_below_a_bound_divides_strings_as_the_bound_does(last: bytes) -> None:
    for first in (b"", b"a", "\U0010ffff".encode(), "a\U0010ffff".encode(), "\ud7ff".encode()):
        bound = string_bound(first + last)
        below = {text for text in EDGES if text.encode() < first + last}
        assert below == (set(EDGES) if bound is None else {text for text in EDGES if text < bound})
        assert bound is None or bound.encode() > first + last
