"""Jobs of a cluster besides scans and loads: exports, changes, SQL, merges, streams, backups, compactions, surveys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import ebla
from ebla.direct.place import Place
from ebla.pipeline import (
    attach,
    backup,
    changes,
    check_backup,
    compact,
    delete,
    export,
    merge,
    mirror,
    presplit,
    restore,
    stats,
    stream_into,
    update,
    verify,
)
from ebla.pipeline.merging.change_rows import ChangeWriting
from ebla.pipeline.streaming.printing import print_changes
from tests.cluster.processes import RealCluster

SCHEMA = ebla.Schema(key={"id": "int64"}, groups=[ebla.Group("g", columns={"n": "int64", "word": "string"})])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    made = RealCluster(tmp_path_factory.mktemp("cluster"), servers=2)
    yield made
    made.close()


def batch(ids: range, word: str = "put") -> pa.Table:
    return pa.table({"id": list(ids), "n": list(ids), "word": [f"{word} {one}" for one in ids]})


def table_of(cluster: RealCluster, name: str) -> ebla.Table:
    """Make a table with tablets on both servers, rows in files and in memory."""
    table = cluster.db.create_table(name, SCHEMA, splits=[250, 500, 750])
    table.put(batch(range(0, 1000, 10)))
    table.flush()
    table.put(batch(range(0, 1000, 100), "again"))
    return table


def place_of(cluster: RealCluster) -> Place:
    return Place.of(cluster.db)


def seen(table: ebla.Table, **options: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan(**options)]


def test_an_export_in_this_process_has_flushed_and_unflushed_rows(cluster: RealCluster, tmp_path: Path) -> None:
    table = table_of(cluster, "exported")
    done = export(cluster.db, "exported", tmp_path / "out", spark=False)
    found = pq.read_table(tmp_path / "out").sort_by("id")
    assert found.to_pylist() == seen(table)
    assert done.rows == 100


def test_changes_between_two_txns_are_those_that_were_made(cluster: RealCluster, spark: SparkSession) -> None:
    table = table_of(cluster, "changed")
    since = table.put({"id": 3, "n": 3, "word": "before"})
    table.put({"id": 3, "n": 4, "word": "updated"})
    table.put({"id": 997, "n": 1, "word": "inserted"})
    until = table.erase(500)
    table.put({"id": 4, "n": 4, "word": "too late"})
    expected = [(3, "update", "updated"), (500, "erase", None), (997, "insert", "inserted")]
    arrow = changes(cluster.db, "changed", since, until, spark=False).read_all()
    assert [(row["id"], row["_change"], row["word"]) for row in arrow.to_pylist()] == expected
    frame = changes(cluster.db, "changed", since, until, spark=spark)
    assert sorted((row.id, row._change, row.word) for row in frame.collect()) == expected
    with cluster.db.snapshot("monday"):
        table.put({"id": 5, "n": 5, "word": "tuesday"})
        found = changes(cluster.db, "changed", "monday", spark=False).read_all()
    assert found.column("id").to_pylist() == [5]


def test_every_query_of_an_attached_cluster_sees_the_newest_rows_of_all_tables(
    cluster: RealCluster, spark: SparkSession
) -> None:
    table = table_of(cluster, "asked")
    table_of(cluster, "other")
    attached = attach(spark, cluster.db, database="remote")
    try:
        query = "SELECT count(*), sum(a.n) FROM remote.asked a JOIN remote.other o ON a.id = o.id"
        assert tuple(spark.sql(query).first() or ()) == (100, sum(range(0, 1000, 10)))
        txn = table.put({"id": 10, "n": 1_000_000, "word": "new"})
        assert spark.sql("SELECT max(n) FROM remote.asked").collect()[0][0] == 1_000_000
        assert spark.sql(f"SELECT max(n) FROM remote.ebla('asked', {txn - 1})").collect()[0][0] == 990
    finally:
        attached.detach()
        spark.sql("DROP DATABASE remote CASCADE")


def test_frames_are_written_by_the_words_of_spark_and_make_their_table(
    cluster: RealCluster, spark: SparkSession
) -> None:
    address = cluster.masters["master-0"].address
    frame = spark.range(0, 1000, 10).selectExpr("id", "id as n", "concat('saved ', id) as word")
    to = frame.write.format("ebla").option("cluster", address).mode("append")
    to.option("key", "id").save("saved")
    assert seen(cluster.db.table("saved"))[1] == {"id": 10, "n": 10, "word": "saved 10"}
    table = table_of(cluster, "both")
    wider = frame.withColumn("more", frame.id * 2)
    wider.write.format("ebla").option("cluster", address).option("mergeSchema", "true").mode("append").save("both")
    assert [row["more"] for row in seen(table)] == [2 * number for number in range(0, 1000, 10)]
    erased = frame.where("id < 500").select("id")
    erased.write.format("ebla").option("cluster", address).option("operation", "erase").mode("append").save("both")
    assert [row["id"] for row in seen(table)] == list(range(500, 1000, 10))


def test_rows_are_updated_and_deleted_by_a_condition_on_all_servers(cluster: RealCluster, spark: SparkSession) -> None:
    table = table_of(cluster, "conditions")
    done = update(cluster.db, "conditions", "n >= 200", {"word": "concat('set ', n)"}, spark=spark)
    assert done.updated == 80
    assert {row["word"] for row in seen(table, start=200)} == {f"set {number}" for number in range(200, 1000, 10)}
    assert delete(cluster.db, "conditions", "n % 20 = 0", spark=spark).deleted == 50
    assert [row["id"] for row in seen(table)] == list(range(10, 1000, 20))


def test_rows_are_merged_by_key_in_this_process_and_by_expressions_on_spark(
    cluster: RealCluster, spark: SparkSession
) -> None:
    table = table_of(cluster, "merged")
    done = merge(cluster.db, "merged", batch(range(0, 1000, 5), "merged"), on="id", spark=False)
    assert (done.updated, done.inserted) == (100, 100)
    assert seen(table) == batch(range(0, 1000, 5), "merged").to_pylist()
    clauses = [("source.n < 500", "delete"), (None, {"word": "concat(target.word, '!')"})]
    done = merge(
        cluster.db, "merged", batch(range(0, 1000, 10)), when_matched=clauses, when_not_matched=None, spark=spark
    )
    assert (done.updated, done.deleted) == (50, 50)
    assert table.get(990) == {"id": 990, "n": 990, "word": "merged 990!"}
    assert table.count() == 150


def test_a_merge_is_refused_when_a_row_changes_meanwhile(cluster: RealCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(cluster, "raced")
    plain, raced = ChangeWriting.run, []

    def run(self: ChangeWriting, *arguments: Any) -> Any:
        written = plain(self, *arguments)
        if not raced:
            raced.append(table.put({"id": 990, "n": 1, "word": "faster"}))
        return written

    monkeypatch.setattr(ChangeWriting, "run", run)
    done = merge(cluster.db, "raced", batch(range(0, 1000, 10), "merged"), on="id", spark=False)
    assert done.attempts == 2
    assert done.txn > raced[0]
    assert table.get(990) == {"id": 990, "n": 990, "word": "merged 990"}


def test_a_compaction_on_spark_leaves_the_same_rows_on_all_servers(cluster: RealCluster, spark: SparkSession) -> None:
    table = table_of(cluster, "compacted")
    for _ in range(2):
        table.put(batch(range(0, 1000, 10), "newest"))
        table.flush()
    before = seen(table)
    done = compact(cluster.db, "compacted", spark=spark)
    assert (done.tablets, done.given_up) == (4, ())
    assert seen(table) == before
    assert compact(cluster.db, "compacted", only_due=True, spark=spark).tablets == 0, "nothing is left to merge"


def test_statistics_tell_records_on_all_servers_and_a_table_is_cut_where_they_are(
    cluster: RealCluster, spark: SparkSession
) -> None:
    table = table_of(cluster, "spread")
    found = stats(cluster.db, "spread", spark=spark)
    assert (found.records, found.unflushed) == (110, 10)
    assert [one.commits for one in found.tablets] == [2, 2, 2, 2]
    before = seen(table)
    wanted = presplit(cluster.db, "spread", tablets=8, dry_run=True, spark=spark)
    assert len(table.tablets()) == 4
    done = presplit(cluster.db, "spread", tablets=8, spark=spark)
    assert done.splits == wanted.splits
    assert len(table.tablets()) == 8
    assert seen(table) == before


def test_a_stream_of_changes_is_written_into_another_table_once(
    cluster: RealCluster, spark: SparkSession, tmp_path: Path
) -> None:
    table = table_of(cluster, "source")
    reflection = cluster.db.create_table("reflection", SCHEMA, splits=[300])
    address = cluster.masters["master-0"].address

    def run() -> None:
        rows = spark.readStream.format("ebla").option("cluster", address).option("since", "snapshot").load("source")
        to = rows.writeStream.format("ebla").option("cluster", address)
        to = to.option("checkpointLocation", str(tmp_path / "checkpoint"))
        to.trigger(availableNow=True).start("reflection").awaitTermination()

    run()
    assert seen(reflection) == seen(table)
    table.put({"id": 10, "n": -1, "word": "changed"})
    table.erase(20)
    run()
    assert seen(reflection) == seen(table)
    with cluster.db.snapshot() as before:
        run()
        assert changes(cluster.db, "reflection", before.txn, spark=False).read_all().num_rows == 0


def test_a_mirror_goes_from_a_cluster_to_a_store_and_back(
    cluster: RealCluster, spark: SparkSession, tmp_path: Path
) -> None:
    table = table_of(cluster, "far")
    done = mirror(cluster.db, "far", tmp_path / "store", checkpoint=tmp_path / "there", spark=spark)
    assert done.rows == 100
    with ebla.open(tmp_path / "store", read_only=True) as store:
        assert seen(store.table("far")) == seen(table)
    mirror(tmp_path / "store", "far", cluster.db, "back", checkpoint=tmp_path / "back", spark=spark)
    assert seen(cluster.db.table("back")) == seen(table)


def test_batches_of_a_stream_go_into_a_table_of_a_cluster_once(cluster: RealCluster, spark: SparkSession) -> None:
    table = cluster.db.create_table("batches", SCHEMA, splits=[500])
    write = stream_into(cluster.db, "batches", app="counted")
    frame = spark.range(0, 1000, 10).selectExpr("id", "id as n", "concat('batch ', id) as word")
    write(frame, 7)
    write(frame.selectExpr("id", "n", "'again' as word"), 7)
    assert seen(table) == batch(range(0, 1000, 10), "batch").to_pylist()


def test_changes_are_followed_from_a_checkpoint_without_spark(cluster: RealCluster, tmp_path: Path) -> None:
    table = table_of(cluster, "followed")
    lines: list[str] = []

    def more() -> list[tuple[int, str]]:
        lines.clear()
        print_changes(cluster.db, "followed", lines.append, since="snapshot", checkpoint=tmp_path / "seen", spark=False)
        return [(row["id"], row["_change"]) for row in map(json.loads, lines)]

    assert more() == [(number, "insert") for number in range(0, 1000, 10)]
    table.erase(990)
    table.put({"id": 1, "n": 1, "word": "new"})
    assert more() == [(1, "insert"), (990, "erase")]
    assert more() == []


def test_a_backup_has_all_tables_at_one_moment_and_builds_on_the_last(cluster: RealCluster, tmp_path: Path) -> None:
    table, other = table_of(cluster, "kept"), table_of(cluster, "kept-too")
    first = backup(cluster.db, ["kept", "kept-too"], tmp_path / "backups", spark=False)
    assert (first.rows, first.kind) == (200, "full")
    expected = seen(table)
    table.put(batch(range(0, 1000, 100), "later"))
    second = backup(cluster.db, ["kept"], tmp_path / "backups", since="last", spark=False)
    assert second.kind == "incremental"
    assert second.new_files < second.files
    with ebla.open(tmp_path / "store") as store:
        restore(tmp_path / "backups", store, "kept", at=first.id)
        restore(tmp_path / "backups", store, "later", of="kept")
        assert seen(store.table("kept")) == expected
        assert seen(store.table("later")) == seen(table)
        with pytest.raises(ebla.RequestError, match="another store"):
            backup(store, ["kept"], tmp_path / "backups", since="last", spark=False)
    check_backup(tmp_path / "backups", spark=False)
    assert other.count() == 100


def test_every_file_of_a_table_is_read_and_damage_is_told(cluster: RealCluster) -> None:
    table = table_of(cluster, "looked-at")
    found = verify(cluster.db, ["looked-at"], spark=False)
    assert (found.findings, found.rows) == ((), 100)
    root = Path(place_of(cluster).root)
    damaged = root / table.files()[0]
    held = damaged.read_bytes()
    damaged.write_bytes(held[:100] + b"x" * 100 + held[200:])
    try:
        (one,) = verify(cluster.db, ["looked-at"], spark=False).findings
        assert one.kind == "damaged"
        assert one.file == table.files()[0]
    finally:
        damaged.write_bytes(held)
