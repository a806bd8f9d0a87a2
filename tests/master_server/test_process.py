"""Masters with their addresses: one leads, servers report to it, clients find tables through it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from ebla.errors import RequestError, TableExists, Unavailable, UnknownTable
from ebla.master.master import MasterStopped
from ebla.master_server.catalog_service import CatalogService
from ebla.master_server.process import MasterProcess
from ebla.rpc.channel import Channel
from ebla.rpc.wire.messages import SERVICE_METHODS, ListTables
from tests.master_server.small_cluster import SmallCluster, wait_until

SCHEMA = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"n": "int64"})])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    with SmallCluster(tmp_path_factory.mktemp("cluster"), masters=3, servers=2) as made:
        yield made


@pytest.fixture
def db(cluster: SmallCluster) -> Iterator[ebla.Database]:
    with cluster.connect() as connected:
        yield connected


def leaders(db: ebla.Database, table: str) -> list[str | None]:
    return [tablet["leader"] for tablet in db.stats()["tables"][table]["tablets"]]


def test_a_table_is_served_when_its_creation_returns(db: ebla.Database) -> None:
    users = db.create_table("users", SCHEMA, splits=["g", "p"])
    users.put([{"k": k, "n": n} for n, k in enumerate("ahz")])
    assert [dict(row) for row in users.scan()] == [{"k": "a", "n": 0}, {"k": "h", "n": 1}, {"k": "z", "n": 2}]
    assert users.get("h") == {"k": "h", "n": 1}
    assert db.tables() == ["users"]
    with pytest.raises(TableExists):
        db.create_table("users", SCHEMA)
    assert None not in leaders(db, "users")


def test_tables_are_renamed_dropped_and_brought_back(db: ebla.Database) -> None:
    db.create_table("one", SCHEMA).put({"k": "a", "n": 1})
    db.rename_table("one", "two")
    assert db.table("two").get("a") == {"k": "a", "n": 1}
    with pytest.raises(UnknownTable):
        db.table("one")
    db.drop_table("two")
    assert "two" not in db.tables()
    assert [dropped.name for dropped in db.dropped_tables()] == ["two"]
    db.undelete_table("two")
    assert db.table("two").get("a") == {"k": "a", "n": 1}


def test_a_schema_is_changed_while_rows_are_in_memory(db: ebla.Database) -> None:
    groups = [ebla.Group("g", columns={"n": "int64", "m": "int64"}), ebla.Group("h", columns={"t": "string"})]
    table = db.create_table("altered", ebla.Schema(key={"k": "string"}, groups=groups), splits=["b"])
    table.put([{"k": "a", "n": 1, "m": 5, "t": "old"}, {"k": "b", "n": 2, "m": 6, "t": "old"}])
    db.alter_table("altered", add_columns={"g": {"s": "string"}}, move={"m": "h"})
    table = db.table("altered")
    table.put({"k": "c", "n": 3, "m": 7, "t": "new", "s": "new"})
    assert [(row["k"], row["n"], row["m"], row["t"], row["s"]) for row in table.scan()] == [
        ("a", 1, 5, "old", None),
        ("b", 2, 6, "old", None),
        ("c", 3, 7, "new", "new"),
    ]


def test_a_master_that_does_not_lead_says_who_does(cluster: SmallCluster) -> None:
    leader = cluster.leader
    follower = next(master for name, master in cluster.masters.items() if name != leader)
    with (
        Channel(SERVICE_METHODS, follower.address) as channel,
        pytest.raises(Unavailable, match=cluster.masters[leader].address),
    ):
        channel.call(ListTables(), timeout_seconds=5)


def test_the_reason_of_the_leading_master_is_told_and_not_that_others_do_not_lead(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refused(self: CatalogService) -> list[str]:
        self._leading()
        asked.append("the one that leads")
        raise Unavailable("there is too much to do")

    monkeypatch.setattr(CatalogService, "tables", refused)
    with cluster.connect() as db:
        for _ in range(3):  # whichever was asked last
            with pytest.raises(Unavailable, match="there is too much to do"):
                db._service.ask_master(ListTables(), timeout_seconds=0.3)  # type: ignore[attr-defined]
    assert asked


def test_another_master_leads_when_the_first_one_leaves(cluster: SmallCluster, db: ebla.Database) -> None:
    table = db.create_table("kept", SCHEMA)
    table.put({"k": "a", "n": 1})
    former = cluster.leader
    cluster.masters.pop(former).close()
    assert db.table("kept").get("a") == {"k": "a", "n": 1}
    db.create_table("made by the next".replace(" ", "-"), SCHEMA).put({"k": "b", "n": 2})
    assert cluster.leader != former
    cluster.start_master(former)
    wait_until(lambda: cluster.masters[former].is_leading or cluster.leader)
    assert "kept" in db.tables()


def test_tablets_of_a_server_that_leaves_are_served_by_the_other(cluster: SmallCluster, db: ebla.Database) -> None:
    table = db.create_table("moving", SCHEMA, splits=["g", "p"])
    table.put([{"k": k, "n": n} for n, k in enumerate("ahz")])
    cluster.stop_server("server-1")
    assert sorted(row["k"] for row in table.scan()) == ["a", "h", "z"]
    table.put({"k": "new", "n": 9})
    cluster.start_server("server-1")
    wait_until(lambda: _is_even(db))
    assert table.scan().count() == 4


def _is_even(db: ebla.Database) -> bool:
    """Whether a server that came back has its share."""
    counts = [server["leads"] for server in db.stats()["servers"].values() if server["is_alive"]]
    return len(counts) == 2 and max(counts) - min(counts) <= 1


def test_a_term_whose_lease_is_lost_in_the_middle_of_a_write_is_over(cluster: SmallCluster) -> None:
    master = cluster.masters[cluster.leader]
    term = master._leading()
    operation = term.master.create_table("never", SCHEMA.number())
    term._lease.release()
    with pytest.raises(MasterStopped):
        term.run(operation)
    assert not term.master.catalog.names.get("never")
    assert term.is_over
    with cluster.connect() as db:
        assert "never" not in db.tables()


def test_a_table_that_is_purged_cannot_be_brought_back_and_its_name_is_free(db: ebla.Database) -> None:
    table = db.create_table("purged", SCHEMA)
    table.put({"k": "h", "n": 1})
    db.drop_table("purged", purge=True)
    assert "purged" not in [one.name for one in db.dropped_tables()]
    with pytest.raises(UnknownTable):
        db.undelete_table("purged")
    assert db.create_table("purged", SCHEMA).get("h") is None


def test_a_master_is_not_started_with_the_directory_of_another_cluster(cluster: SmallCluster, tmp_path: Path) -> None:
    with SmallCluster(tmp_path, masters=1, servers=0):
        pass
    with pytest.raises(RequestError, match="belongs to the cluster"):
        MasterProcess(cluster.coordination(), tmp_path / "master-1", tmp_path / "root")
