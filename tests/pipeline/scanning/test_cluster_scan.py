"""Tables of a cluster as DataFrames: files from the shared root, what is in memory from whoever leads the tablet."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import ebla
from ebla.clock import SystemClock
from ebla.coordination.address import open_coordination
from ebla.pipeline.scanning.plan import Limits
from ebla.pipeline.scanning.scan import scan
from ebla.tablet.garbage.pins import Pins
from tests.cluster.processes import RealCluster

# Nothing is merged as it is planned: tasks do.
IN_TASKS = Limits(overlay_rows_max=0)
SCHEMA = ebla.Schema(
    key={"id": "int64"},
    groups=[ebla.Group("a", columns={"n": "int64", "word": "string"}), ebla.Group("b", columns={"x": "float64"})],
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    made = RealCluster(tmp_path_factory.mktemp("cluster"), servers=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def numbers(cluster: RealCluster) -> ebla.Table:
    """A table with tablets on both servers: flushed rows, some updated, erased or added since, in memory."""
    table = cluster.db.create_table("numbers", SCHEMA, splits=[1000, 2000, 3000])
    cluster.wait_until(lambda: len(set(cluster.leaders().values())) == 2)
    table.put(batch(range(4000)))
    table.flush()
    table.put(batch(range(500, 700), word="updated"))
    table.put([{"id": number, "x": 0.5} for number in range(3500, 3510)])
    table.erase_many([1, 2, 3999])
    table.erase_range(2500, 2600)
    table.put(batch(range(4000, 4100)))
    return table


def batch(ids: range, word: str = "word") -> pa.Table:
    return pa.table({"id": list(ids), "n": [3 * one for one in ids], "word": [f"{word} {one}" for one in ids]})


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"])


def seen(table: ebla.Table, **options: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan(**options)]


def test_a_frame_of_a_cluster_has_the_rows_of_a_scan(
    cluster: RealCluster, numbers: ebla.Table, spark: SparkSession
) -> None:
    assert rows(cluster.db.spark("numbers", spark=spark)) == seen(numbers)


def test_tasks_fetch_what_is_in_memory_from_both_servers_and_nothing_is_flushed(
    cluster: RealCluster, numbers: ebla.Table, spark: SparkSession
) -> None:
    files = numbers.files()
    frame = scan(cluster.db, "numbers", spark=spark, limits=IN_TASKS)
    assert rows(frame) == seen(numbers)
    assert numbers.files() == files


def test_format_ebla_reads_a_cluster_by_its_address(
    cluster: RealCluster, numbers: ebla.Table, spark: SparkSession
) -> None:
    address = cluster.masters["master-0"].address
    load = spark.read.format("ebla").option("cluster", address)
    assert rows(load.load("numbers")) == seen(numbers)
    assert rows(load.option("start", "990").option("stop", "1010").option("columns", "x,n").load("numbers")) == seen(
        numbers, start=990, stop=1010, columns=["x", "n"]
    )


def test_a_frame_stays_at_its_txn_whatever_is_written_flushed_and_compacted_since(
    cluster: RealCluster, numbers: ebla.Table, spark: SparkSession
) -> None:
    frame = scan(cluster.db, "numbers", spark=spark, limits=IN_TASKS)
    before = seen(numbers)
    numbers.put(batch(range(4200), word="later"))
    numbers.flush()
    numbers.compact()
    assert rows(frame) == before
    assert rows(cluster.db.spark("numbers", spark=spark)) == seen(numbers) != before


def test_a_scan_as_of_a_txn_a_range_and_a_filter_are_those_of_the_table(
    cluster: RealCluster, numbers: ebla.Table, spark: SparkSession
) -> None:
    txn = numbers.put(batch(range(100, 110), word="as of"))
    numbers.put(batch(range(100, 120), word="after"))
    asked = {"start": 90, "stop": 1100, "as_of": txn, "where": "n > 300"}
    assert rows(cluster.db.spark("numbers", spark=spark, **asked)) == seen(numbers, **asked)


def test_a_table_that_expires_is_read_at_the_moment_of_its_servers(cluster: RealCluster, spark: SparkSession) -> None:
    group = ebla.Group("g", columns={"n": "int64"}, max_age=timedelta(hours=1))
    table = cluster.db.create_table("passing", ebla.Schema(key={"id": "int64"}, groups=[group]), splits=[50])
    table.put([{"id": number, "n": number} for number in range(100)])
    assert rows(cluster.db.spark("passing", spark=spark)) == seen(table)


def test_a_frame_holds_its_txn_in_the_cluster_until_it_is_gone(
    cluster: RealCluster, numbers: ebla.Table, spark: SparkSession
) -> None:
    others = pins(cluster)  # of loads by format("ebla"), until Java clears them away
    frame = cluster.db.spark("numbers", spark=spark)
    own = pins(cluster) - others
    assert [pin for pin in own if pin.startswith("scan-numbers-")]
    del frame
    gc.collect()
    cluster.wait_until(lambda: not own & pins(cluster))


def pins(cluster: RealCluster) -> set[str]:
    clock = SystemClock()
    with open_coordination(str(cluster.path / "coordination.sqlite"), clock) as coordination:
        return {pin.name for pin in Pins(coordination, clock).all()}


def test_what_a_scan_would_refuse_is_refused_before_any_job_runs(
    cluster: RealCluster, numbers: ebla.Table, spark: SparkSession
) -> None:
    with pytest.raises(ebla.UnknownTable):
        cluster.db.spark("nowhere", spark=spark)
    with pytest.raises(ebla.UnknownColumn):
        cluster.db.spark("numbers", columns=["nothing"], spark=spark)
    load = spark.read.format("ebla").option("cluster", "127.0.0.1:1").option("root", str(cluster.path))
    with pytest.raises(AnalysisException, match="either the option root"):
        load.load("numbers")
