"""Tables of a cluster as a whole: cloned, brought from backups, taken offline and back, while others read and write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.errors import RequestError, TableExists, TableUnloaded, UnknownTable
from ebla.pipeline import backup, restore
from tests.master_server.small_cluster import SmallCluster, wait_until

SCHEMA = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"n": "int64"})])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    with SmallCluster(tmp_path_factory.mktemp("cluster"), masters=1, servers=2) as made:
        yield made


@pytest.fixture
def db(cluster: SmallCluster) -> Iterator[ebla.Database]:
    with cluster.connect() as connected:
        yield connected


@pytest.fixture
def table(db: ebla.Database, request: pytest.FixtureRequest) -> ebla.Table:
    table = db.create_table(request.node.name[:100].replace("[", "-").replace("]", ""), SCHEMA, splits=[100, 200, 300])
    table.put([{"k": k, "n": k} for k in range(0, 400, 10)])
    table.flush()
    table.put([{"k": k, "n": -k} for k in range(0, 400, 50)])
    return table


def rows(table: ebla.Table, **options: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan(**options)]


# --- the past ---


def test_a_table_is_unknown_at_moments_before_it_was_made(db: ebla.Database, table: ebla.Table) -> None:
    first = table.put({"k": 1, "n": 1})
    clone = db.clone_table(table.name, "clone-with-a-past")
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    for one in (table, clone):
        for as_of in (5, an_hour_ago):
            with pytest.raises(UnknownTable, match="there was no table"):
                one.get(1, as_of=as_of)
            with pytest.raises(UnknownTable, match="there was no table"):
                one.scan(as_of=as_of).count()
    assert table.get(1, as_of=first)["n"] == 1


def test_a_server_whose_clock_is_behind_writes_no_rows_before_their_table_was_made(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, masters=1, servers=0) as cluster:
        cluster.hours_ahead = {"late": -0.01}
        for name in ("late", "right"):
            cluster.start_server(name)
        with cluster.connect() as db:
            table = db.create_table("t", SCHEMA, splits=[100, 200, 300])
            assert table.count() == 0
            for k in range(0, 400, 50):
                txn = table.put({"k": k, "n": k})
                assert table.get(k, as_of=txn)["n"] == k
            with db.snapshot() as snapshot:
                assert snapshot.table("t").count() == table.count() == 8


# --- clones ---


def test_a_clone_has_what_is_in_files_and_in_memory_and_lives_on_its_own(db: ebla.Database, table: ebla.Table) -> None:
    before = rows(table)
    clone = db.clone_table(table.name, "clone-of-its-own")
    assert rows(clone) == before
    table.put({"k": 0, "n": 7})
    clone.put({"k": 10, "n": 8})
    assert (table.get(10)["n"], clone.get(0)["n"]) == (10, 0)
    clone.compact()
    db.drop_table(table.name)
    assert [row["n"] for row in rows(clone, stop=20)] == [0, 8]


def test_a_clone_reads_as_its_origin_did_before(db: ebla.Database, table: ebla.Table) -> None:
    txn = table.put({"k": 0, "n": 1})
    table.put({"k": 0, "n": 2})
    clone = db.clone_table(table.name, "clone-with-history")
    assert clone.get(0, as_of=txn)["n"] == 1
    assert clone.get(0)["n"] == 2


def test_a_clone_under_writes_to_all_servers_is_of_one_moment(db: ebla.Database, table: ebla.Table) -> None:
    """Writer i counts up two rows on two servers, the first one first: a clone never has the second one ahead."""
    stopping, failures = threading.Event(), []

    def count() -> None:
        try:
            number = 0
            while not stopping.is_set():
                number += 1
                table.put({"k": 1, "n": number})
                table.put({"k": 399, "n": number})
        except Exception as error:
            failures.append(error)

    writer = threading.Thread(target=count)
    writer.start()
    try:
        wait_until(lambda: table.get(399) is not None)
        for number in range(5):
            clone = db.clone_table(table.name, f"moment-{number}")
            first, second = clone.get(1)["n"], clone.get(399)["n"]
            assert second <= first <= second + 1
    finally:
        stopping.set()
        writer.join()
    assert not failures


def test_a_name_that_is_taken_and_an_origin_that_is_not_there_are_refused(db: ebla.Database, table: ebla.Table) -> None:
    with pytest.raises(TableExists):
        db.clone_table(table.name, table.name)
    with pytest.raises(UnknownTable):
        db.clone_table("nowhere", "somewhere")
    assert "somewhere" not in db.tables()


def test_a_clone_of_a_table_with_replicas_gets_as_many(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("replicated")
    with SmallCluster(directory, masters=1, servers=3) as cluster, cluster.connect() as db:
        origin = db.create_table("origin", SCHEMA, replicas=3)
        origin.put([{"k": k, "n": k} for k in range(100)])
        clone = db.clone_table("origin", "copy")
        assert rows(clone) == rows(origin)
        clone.put({"k": 0, "n": 7})

        def in_sync() -> list[int]:
            info = cluster.masters[cluster.leader]._leading().master.catalog.table("copy")
            return [len(tablet.in_sync) for tablet in info.metadata.tablets]

        wait_until(lambda: in_sync() == [3], 60)
        clone.put({"k": 1, "n": 8})
        assert [row["n"] for row in rows(clone, stop=2)] == [7, 8]
        assert origin.get(0)["n"] == 0
        with pytest.raises(RequestError, match="replicas"):
            db.unload_table("origin")


# --- offline ---


def test_a_table_that_was_unloaded_says_so_at_once_and_is_whole_when_it_is_loaded(
    db: ebla.Database, table: ebla.Table, cluster: SmallCluster
) -> None:
    before = rows(table)
    db.unload_table(table.name)
    for ask in (
        lambda: table.get(10),
        lambda: rows(table),
        lambda: table.put({"k": 1, "n": 1}),
        lambda: table.count(),
        lambda: table.increment(10, "n"),
        lambda: table.get_many([10, 390]),
        lambda: db.alter_table(table.name, add_columns={"more": "int64"}),
    ):
        with pytest.raises(TableUnloaded):
            ask()
    assert not any(table.name in server.led() and server.led()[table.name] for server in cluster.servers.values())
    assert {one["state"] for one in table.tablets()} == {"unloaded"}
    assert not any(table.name in problem for problem in db.stats()["problems"])
    db.unload_table(table.name)
    db.load_table(table.name)
    assert rows(table) == before
    assert table.increment(10, "n") == 11


def test_one_tablet_is_unloaded_and_loaded_by_call_and_others_are_served(db: ebla.Database, table: ebla.Table) -> None:
    tablet = table.tablets()[1]
    db.unload_table(table.name, tablet=tablet["id"][:13])
    assert table.get(10)["n"] == 10
    assert len(rows(table, start=200)) == 20
    table.put({"k": 250, "n": 1})
    with pytest.raises(TableUnloaded):
        table.get(150)
    with pytest.raises(TableUnloaded):
        rows(table)
    assert [one["state"] for one in table.tablets()] == ["running", "unloaded", "running", "running"]
    db.load_table(table.name, tablet=tablet["id"])
    assert table.get(150)["n"] == -150
    assert table.count() == 40
    with pytest.raises(RequestError, match="0 tablets"):
        db.unload_table(table.name, tablet="nowhere")


def test_a_table_stays_offline_over_the_restart_of_a_server(
    db: ebla.Database, table: ebla.Table, cluster: SmallCluster
) -> None:
    before = rows(table)
    db.unload_table(table.name)
    cluster.stop_server("server-1")
    cluster.start_server("server-1")
    with pytest.raises(TableUnloaded):
        table.get(10)
    db.load_table(table.name)
    assert rows(table) == before


def test_a_table_that_is_offline_can_be_cloned_and_dropped(db: ebla.Database, table: ebla.Table) -> None:
    before = rows(table)
    db.unload_table(table.name)
    assert rows(db.clone_table(table.name, "from-offline")) == before
    name = table.name
    db.drop_table(name)
    assert name not in db.tables()


def test_a_request_that_is_repeated_after_a_reload_happens_once(db: ebla.Database, table: ebla.Table) -> None:
    from ebla.client.database import service_of
    from ebla.rpc.wire.messages import ModifyRow
    from ebla.rpc.wire.values import packed

    remote: Any = service_of(db)
    served = remote.table(table.name)
    row = served.codec.encode(10)
    message = ModifyRow(served.id, row, "n", "increment", packed(1), "durable", ("a-client", 1))
    assert served._ask_about(row, message) == 11
    db.unload_table(table.name)
    db.load_table(table.name)
    served.locate()
    assert served._ask_about(row, message) == 11
    assert table.get(10)["n"] == 11


def test_a_store_of_one_process_refuses_a_tablet(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "store") as store:
        store.create_table("t", SCHEMA)
        with pytest.raises(RequestError, match="as a whole"):
            store.unload_table("t", tablet="x")
        with pytest.raises(RequestError, match="as a whole"):
            store.load_table("t", tablet="x")


# --- from a backup ---


def test_a_table_comes_back_from_a_backup_by_another_name_and_in_its_own_place(
    db: ebla.Database, table: ebla.Table, tmp_path: Path
) -> None:
    before, name = rows(table), table.name
    backup(db, [name], tmp_path / "backups", spark=False)
    table.erase(10)
    table.put({"k": 0, "n": 1_000})
    done = restore(tmp_path / "backups", db, "brought-back", of=name, spark=False)
    assert (done.rows, done.in_place) == (40, False)
    back = db.table("brought-back")
    assert rows(back) == before
    assert back.put({"k": 0, "n": 1}) > done.txn
    assert back.get(0)["n"] == 1
    with pytest.raises(TableExists):
        restore(tmp_path / "backups", db, name, spark=False)
    done = restore(tmp_path / "backups", db, name, in_place=True, spark=False)
    again = db.table(name)
    assert rows(again) == before
    assert again.put({"k": 10, "n": 5}) > done.txn
    assert db.gc(dry_run=True).unknown_tables == ()
