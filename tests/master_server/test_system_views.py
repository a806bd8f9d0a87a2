"""META and the other system tables of a cluster: what its masters know, read over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from tests.master_server.small_cluster import SmallCluster, wait_until

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"v": "string"})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with SmallCluster(tmp_path, masters=1, servers=2) as made:
        yield made


def test_meta_tells_where_tablets_are_and_whose_log_they_are_in(cluster: SmallCluster) -> None:
    with cluster.connect() as db:
        table = db.create_table("t", SCHEMA, splits=[100])
        table.put([{"k": 1, "v": "1"}, {"k": 101, "v": "101"}])
        servers = {row["server"]: row["address"] for row in db.table("sys.servers").scan()}
        assert all(address for address in servers.values())
        rows = {row["row"]: row for row in db.table("META").scan()}
        tablets = [row for name, row in rows.items() if name != b"t"]
        assert len(tablets) == 2
        for tablet in tablets:
            leader = tablet["location:"].decode()
            assert leader in servers
            assert tablet["log:"].decode().startswith(f"log/{leader}/")
        assert db.table("META").get(b"t!")["first:"]  # type: ignore[index]
        found = [(row["leader"], row["state"]) for row in db.table("sys.tablets").scan()]
        assert [state for _, state in found] == ["running", "running"]
        assert {leader for leader, _ in found} <= set(servers)


def test_a_system_table_shows_the_moment_when_it_was_asked_for(cluster: SmallCluster) -> None:
    with cluster.connect() as db:
        db.create_table("a", SCHEMA)
        before = db.table("sys.tables")
        db.create_table("b", SCHEMA)
        assert [row["name"] for row in before.scan()] == ["a"]
        assert [row["name"] for row in db.table("sys.tables").scan()] == ["a", "b"]
        with pytest.raises(ebla.ReadOnly):
            before.put({"name": "c"})


def test_what_servers_change_in_metadata_is_shown_soon(cluster: SmallCluster) -> None:
    with cluster.connect() as db:
        table = db.create_table("t", SCHEMA)
        table.put({"k": 1, "v": "1"})
        table.flush()
        wait_until(lambda: [row["fragments"] for row in db.table("sys.tablets").scan()] == [1])
