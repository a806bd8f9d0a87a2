"""Tablets moved by hand, while they are read and written."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import ebla
from ebla.cli import main
from ebla.errors import RequestError
from ebla.master_server.catalog_service import describe_stored
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


def leader(db: ebla.Database) -> tuple[str, str]:
    (tablet,) = db.stats()["tables"]["t"]["tablets"]
    return tablet["id"], tablet["leader"]


@pytest.fixture
def table(db: ebla.Database) -> ebla.Table:
    table = db.create_table("t", SCHEMA, if_not_exists=True)
    wait_until(lambda: leader(db)[1] is not None)
    return table


def test_a_tablet_is_led_by_the_server_that_was_named_and_nothing_is_lost(
    cluster: SmallCluster, db: ebla.Database, table: ebla.Table
) -> None:
    stopping = threading.Event()
    written: list[int] = []

    def write() -> None:
        while not stopping.is_set():
            table.put({"k": len(written), "n": 1})
            written.append(len(written))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            tablet, led_by = leader(db)
            other = next(server for server in cluster.servers.values() if server.uuid != led_by)
            db.move_tablet("t", tablet, other.uuid)
            assert leader(db) == (tablet, other.uuid)
            assert tablet in other.led()["t"]
    finally:
        stopping.set()
        writer.join()
    assert table.count() == len(written) > 0
    db.move_tablet("t", tablet[:12], other.address)  # it is there: nothing happens
    assert leader(db) == (tablet, other.uuid)


def test_the_command_moves_a_tablet(
    cluster: SmallCluster, db: ebla.Database, table: ebla.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = [{"role": "master", "address": master.address} for master in cluster.masters.values()]
    (cluster.directory / "cluster.json").write_text(json.dumps({"processes": processes}))
    tablet, led_by = leader(db)
    other = next(server for server in cluster.servers.values() if server.uuid != led_by)
    with pytest.raises(SystemExit) as left:
        main(["move", "t", tablet[:12], other.uuid[:12], "--data", str(cluster.directory)])
    assert left.value.code in (None, 0)
    assert "moved: tablet" in capsys.readouterr().out
    assert leader(db) == (tablet, other.uuid)


@pytest.mark.parametrize(
    ("tablet", "server", "said"),
    [("nowhere", None, "0 tablets"), (None, "nobody", "0 servers"), ("", None, "0 tablets")],
)
def test_what_is_not_there_is_refused_by_name(
    cluster: SmallCluster, db: ebla.Database, table: ebla.Table, tablet: str | None, server: str | None, said: str
) -> None:
    there, led_by = leader(db)
    with pytest.raises(RequestError, match=said):
        db.move_tablet("t", there if tablet is None else tablet, led_by if server is None else server)


def test_a_store_of_one_process_moves_nothing(tmp_path: object) -> None:
    with ebla.open(f"{tmp_path}/store") as store:
        store.create_table("t", SCHEMA)
        with pytest.raises(RequestError, match="connect to a cluster"):
            store.move_tablet("t", "x", "y")


def test_two_tablets_on_two_servers_are_brought_together_and_joined(cluster: SmallCluster, db: ebla.Database) -> None:
    table = db.create_table("apart", SCHEMA, splits=[100])
    table.put([{"k": k, "n": k} for k in (1, 101)])
    first, second = (tablet["id"] for tablet in table.tablets())
    here, there = (server.uuid for server in cluster.servers.values())
    db.move_tablet("apart", first, here)
    db.move_tablet("apart", second, there)
    joined = table.join(tablets=(first, second))
    assert [tablet["id"] for tablet in table.tablets()] == [joined]
    assert [row["n"] for row in table.scan()] == [1, 101]


def test_the_children_of_a_split_are_led_by_different_servers_in_the_end_and_rows_are_read_meanwhile(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with SmallCluster(tmp_path_factory.mktemp("split"), masters=1, servers=2) as cluster, cluster.connect() as db:
        table = db.create_table("cut", SCHEMA)
        table.put([{"k": k, "n": k} for k in range(100)])
        table.split(50)

        def leaders() -> set[str | None]:
            assert [row["n"] for row in table.scan()] == list(range(100))
            return {tablet["leader"] for tablet in db.stats()["tables"]["cut"]["tablets"]}

        wait_until(lambda: leaders() == {server.uuid for server in cluster.servers.values()}, 40)
        table.put([{"k": k, "n": -k} for k in range(100)])
        assert [row["n"] for row in table.scan()] == [-k for k in range(100)]


def test_tablets_that_were_cut_since_the_table_was_located_are_all_described(
    cluster: SmallCluster, db: ebla.Database
) -> None:
    table = db.create_table("cut", SCHEMA, splits=[100, 200, 300])
    table.put([{"k": k, "n": k} for k in range(400)])
    assert [tablet["first"] for tablet in table.tablets()] == [None, 100, 200, 300]
    with cluster.connect() as other:
        other.table("cut").split(150)
        other.table("cut").split(350)
    assert [tablet["first"] for tablet in table.tablets()] == [None, 100, 150, 200, 300, 350]


def test_tablets_whose_servers_are_gone_are_described_from_metadata(cluster: SmallCluster, db: ebla.Database) -> None:
    table = db.create_table("led", SCHEMA, splits=[100])
    info = cluster.masters[cluster.leader]._leading().master.catalog.table("led")
    described = describe_stored(info.metadata, table._service.codec)
    assert [(one["id"], one["first"]) for one in described] == [(one["id"], one["first"]) for one in table.tablets()]
    assert not any(one["is_exact"] for one in described)


def test_a_flush_waits_for_a_tablet_that_is_changing_hands_and_no_longer(db: ebla.Database, table: ebla.Table) -> None:
    remote: Any = table._service
    table.put({"k": 1, "n": 1})
    # As it was when the tablet was on its way: whoever asks where it is was sent to the master.
    remote.route = dataclasses.replace(remote.locate(), servers=(remote.service.master(),))
    flushing = threading.Thread(target=table.flush, daemon=True)
    flushing.start()
    flushing.join(10)
    assert not flushing.is_alive()
    assert remote.route.only_server is not remote.service.master()
