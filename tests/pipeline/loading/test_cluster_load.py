"""Loads into tables of a cluster: files by tasks, one commit over all servers or nothing; order of txns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import ebla
from ebla.client.database import service_of
from ebla.client.remote.remote_service import RemoteService
from ebla.direct.bulk_writer import BulkWriter
from ebla.direct.files import LocalFiles
from ebla.pipeline import load
from ebla.service.job_orders import BulkCommit
from ebla.service.requests import BeginJob, EndJob
from tests.cluster.processes import RealCluster

SCHEMA = ebla.Schema(key={"id": "int64"}, groups=[ebla.Group("g", columns={"n": "int64", "word": "string"})])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    made = RealCluster(tmp_path_factory.mktemp("cluster"), servers=2)
    yield made
    made.close()


def table_on_both(cluster: RealCluster, name: str) -> ebla.Table:
    """Make a table with tablets on both servers, and some rows in memory and in files."""
    cluster.wait_until_even()
    table = cluster.db.create_table(name, SCHEMA, splits=[250, 500, 750])
    table.put(batch(range(0, 1000, 10)))
    table.flush()
    table.put(batch(range(5, 1000, 100)))
    servers = {tablet["leader"] for tablet in cluster.describe()["tables"][name]["tablets"]}
    assert len(servers) == 2
    return table


def batch(ids: range, word: str = "put") -> pa.Table:
    return pa.table({"id": list(ids), "n": list(ids), "word": [f"{word} {one}" for one in ids]})


def rows(table: ebla.Table, **options: Any) -> dict[int, str]:
    return {row["id"]: row["word"] for row in table.scan(**options)}


def fragments(cluster: RealCluster) -> set[Path]:
    return set((cluster.path / "root" / "fragments").glob("*/*.parquet"))


def test_a_frame_is_loaded_into_all_tablets_in_one_commit(cluster: RealCluster, spark: SparkSession) -> None:
    table = table_on_both(cluster, "frames")
    before = rows(table)
    frame = spark.range(0, 1000, 5).selectExpr("id", "id as n", "concat('loaded ', id) as word")
    done = load(cluster.db, "frames", frame)
    assert (done.rows, done.repeated) == (200, False)
    loaded = {number: f"loaded {number}" for number in range(0, 1000, 5)}
    assert rows(table) == {**before, **loaded}
    assert rows(table, as_of=done.txn) == {**before, **loaded}
    assert rows(table, as_of=done.txn - 1) == before, "it was seen at no earlier txn, on no server"
    txn = table.put({"id": 0, "n": 0, "word": "after"})
    assert txn > done.txn
    assert rows(table)[0] == "after"


def test_a_table_is_made_for_arrow_that_is_loaded_and_a_job_happens_once(cluster: RealCluster) -> None:
    done = load(cluster.db, "made", batch(range(100), "one"), key="id", splits=[50], job="first", spark=False)
    assert done.created
    assert done.rows == 100
    table = cluster.db.table("made")
    table.put(batch(range(10), "two"))
    again = load(cluster.db, "made", batch(range(100), "one"), job="first", spark=False)
    assert again.repeated
    assert again.txn == done.txn
    assert rows(table)[5] == "two 5"
    replaced = load(cluster.db, "made", batch(range(40, 60), "three"), mode="overwrite", spark=False)
    assert rows(table) == {number: f"three {number}" for number in range(40, 60)}
    assert rows(table, as_of=replaced.txn - 1)[5] == "two 5"


def test_what_is_refused_by_one_server_is_seen_on_none_and_all_go_on(cluster: RealCluster) -> None:
    table = table_on_both(cluster, "refused")
    service = service_of(cluster.db)
    job = "stale"
    read_at = table.put({"id": 1, "n": 1, "word": "read"})
    table.put({"id": 999, "n": 1, "word": "changed by another"})
    before = rows(table)
    table_id = service.carry_out(BeginJob(job, "refused", 600.0))
    schema = table.schema
    writer = BulkWriter(
        LocalFiles(cluster.path / "root"), table_id, schema, job, 0, stamp_microseconds=1, is_sorted=True
    )
    writer.write(batch(range(1000), "bulk").to_batches()[0])
    written = tuple(writer.finish())
    files = {cluster.path / "root" / one.fragment.file for one in written}
    commit = BulkCommit(job, table_id, schema.version, written, unchanged_since=read_at)
    with pytest.raises(ebla.Conflict, match="999"):
        service.carry_out(commit)
    assert rows(table) == before
    assert table.put({"id": 2, "n": 2, "word": "goes on"}) > read_at
    assert table.put({"id": 998, "n": 2, "word": "here, too"}) > read_at
    assert files
    assert files <= fragments(cluster), "an intent holds them until the job ends"
    service.carry_out(EndJob(job))
    assert not files & fragments(cluster)


def test_a_load_that_fails_leaves_no_table_and_no_file(cluster: RealCluster) -> None:
    files = fragments(cluster)
    wrong = pa.table({"id": [1, None], "n": [1, 2], "word": ["a", "b"]})
    with pytest.raises(ebla.InvalidBatch):
        load(cluster.db, "never", wrong, key="id", spark=False)
    assert "never" not in cluster.db.tables()
    assert fragments(cluster) == files


def test_what_a_client_writes_comes_after_all_that_it_was_told_by_any_server(cluster: RealCluster) -> None:
    table = table_on_both(cluster, "ordered")
    ahead = table.put({"id": 1, "n": 1}) + (5_000_000 << 10)  # of a server whose clock is ahead
    service = service_of(cluster.db)
    assert isinstance(service, RemoteService)
    service.saw(ahead)
    for number in (1, 999):
        txn = table.put({"id": number, "n": 2})
        assert txn > ahead
        ahead = txn
    assert table.increment(500, "n", 1) == 501
    row = table.get(500)
    assert row is not None
    assert row.txn > ahead
