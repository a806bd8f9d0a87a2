"""Tables with three replicas on real processes: what is killed, and that reads and writes go on with nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ebla
from ebla.service.requests import DescribeStore
from tests.cluster.processes import RealCluster

SCHEMA = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"n": "int64"})])
ROWS = [f"{letter}{number}" for letter in "adgjmpsvy" for number in range(5)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    made = RealCluster(tmp_path_factory.mktemp("replicated"), servers=3)
    made.db.create_table("kept", SCHEMA, splits=["h", "q"], replicas=3)
    yield made
    made.close()


def tablets(cluster: RealCluster, table: str = "kept") -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = cluster.db._service.carry_out(DescribeStore())["tables"][table]["tablets"]
    return described


def are_whole(cluster: RealCluster, table: str = "kept") -> bool:
    return all(one["is_served"] and len(one["in_sync"]) == one["wanted"] for one in tablets(cluster, table))


def written(table: ebla.Table, number: int) -> dict[str, int]:
    """Write every row anew, one by one, and return what the table has to say from then on."""
    for row in ROWS:
        table.put({"k": row, "n": number})
    return dict.fromkeys(ROWS, number)


def found(table: ebla.Table) -> dict[str, int]:
    return {row["k"]: row["n"] for row in table.scan()}


def test_each_tablet_is_kept_by_three_servers_and_leaders_are_spread(cluster: RealCluster) -> None:
    assert are_whole(cluster)
    servers = {server.uuid for server in cluster.servers.values()}
    assert all(set(one["replicas"]) == servers for one in tablets(cluster))
    assert {one["leader"] for one in tablets(cluster)} == servers
    rows = list(cluster.db.table("sys.tablets").scan(where="table = 'kept'"))
    assert [(len(row["in_sync"]), row["wanted"]) for row in rows] == [(3, 3)] * 3


def test_tablets_with_replicas_are_not_joined_and_that_is_told_at_once(cluster: RealCluster) -> None:
    before = tablets(cluster)
    with pytest.raises(ebla.CannotJoin, match="'kept' has several replicas: tablets that have cannot be joined"):
        cluster.db.table("kept").join("a", "m")
    assert tablets(cluster) == before  # nothing was moved for it either


def test_writes_go_on_when_the_server_of_a_leader_is_killed_and_it_comes_back_in_sync(cluster: RealCluster) -> None:
    table = cluster.db.table("kept")
    expected = written(table, 1)
    leader = tablets(cluster)[0]["leader"]
    name = next(name for name, server in cluster.servers.items() if server.uuid == leader)
    cluster.servers[name].kill()
    expected = written(table, 2)
    assert found(table) == expected
    after = tablets(cluster)
    assert all(one["leader"] != leader for one in after)
    assert after[0]["epoch"] > 2
    cluster.start_again(name)
    cluster.wait_until(lambda: are_whole(cluster))
    assert found(table) == expected


def test_nothing_acknowledged_is_lost_when_all_servers_are_killed_at_once(cluster: RealCluster) -> None:
    table = cluster.db.table("kept")
    expected = written(table, 3)
    for server in cluster.servers.values():
        server.kill()
    for name in [*cluster.servers]:
        cluster.start_again(name)
    cluster.wait_until(lambda: are_whole(cluster))
    assert found(table) == expected
    assert written(table, 4) == found(table), "it goes on"


def test_more_and_fewer_replicas_while_rows_are_written(cluster: RealCluster) -> None:
    table = cluster.db.create_table("grown", SCHEMA, replicas=2)
    written(table, 1)
    cluster.db.alter_table("grown", replicas=3)
    cluster.wait_until(lambda: are_whole(cluster, "grown"))
    assert {len(one["replicas"]) for one in tablets(cluster, "grown")} == {3}
    expected = written(table, 2)
    cluster.db.alter_table("grown", replicas=2)
    cluster.wait_until(lambda: all(len(one["replicas"]) == 2 for one in tablets(cluster, "grown")))
    assert found(table) == expected


def test_a_table_with_one_replica_gets_more_and_a_tablet_is_moved_to_another_of_them(cluster: RealCluster) -> None:
    table = cluster.db.create_table("alone", SCHEMA)
    expected = written(table, 1)
    cluster.db.alter_table("alone", replicas=3)
    cluster.wait_until(lambda: [len(one["in_sync"]) for one in tablets(cluster, "alone")] == [3])
    (tablet,) = tablets(cluster, "alone")
    other = next(server for server in tablet["in_sync"] if server != tablet["leader"])
    cluster.db.move_tablet("alone", tablet["id"], other)
    assert tablets(cluster, "alone")[0]["leader"] == other
    assert found(table) == expected


def test_what_cannot_be_is_refused_with_a_sentence(cluster: RealCluster) -> None:
    with pytest.raises(ebla.EblaError, match="from 1 to 9"):
        cluster.db.create_table("many", SCHEMA, replicas=99)
    tablet = tablets(cluster)[0]["id"]
    with pytest.raises(ebla.RequestError, match="needs no recovery"):
        cluster.db.recover_tablet(tablet)


def refusal(cluster: RealCluster, tablet: str) -> str:
    """Return why a tablet is not recovered without the loss being accepted."""
    with pytest.raises(ebla.RequestError) as caught:
        cluster.db.recover_tablet(tablet)
    return str(caught.value)


def test_a_tablet_that_lost_its_in_sync_replicas_waits_and_goes_on_with_what_is_left(cluster: RealCluster) -> None:
    table = cluster.db.table("kept")
    expected = written(table, 5)
    table.flush()
    left, *gone = cluster.servers
    cluster.servers[left].kill()
    uuid = cluster.servers[left].uuid
    cluster.wait_until(lambda: all(uuid not in one["in_sync"] for one in tablets(cluster)))
    for name in gone:
        cluster.servers[name].kill()
    cluster.start_again(left)
    cluster.wait_until(lambda: all(one.get("is_unavailable") for one in tablets(cluster)))
    for tablet in tablets(cluster):
        cluster.wait_until(lambda: "accept the loss" in refusal(cluster, tablet["id"]))  # noqa: B023
        assert f"goes on from {uuid}" in cluster.db.recover_tablet(tablet["id"], accept_loss=True)
    assert found(table) == expected, "it was in files"
    written(table, 6)
    for name in gone:
        cluster.start_again(name)
    cluster.wait_until(lambda: are_whole(cluster))
    assert found(table) == dict.fromkeys(ROWS, 6)
