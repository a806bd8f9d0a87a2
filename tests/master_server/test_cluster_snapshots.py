"""Snapshots of a cluster: one moment on all servers, kept by all of them, for as long as somebody holds it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ebla
from ebla.client.database import service_of
from ebla.client.remote.held_snapshots import HeldSnapshots
from ebla.clock import ManualClock, txn_at
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.errors import Conflict, HistoryGone, RequestError, Unavailable
from ebla.master_server.cluster_snapshots import ClusterSnapshots
from ebla.service.requests import HoldByName, HoldNewest, LetGo, ListHeld, PassTxn
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.upkeep.horizon import Horizon
from tests.master_server.small_cluster import SmallCluster, wait_until

SCHEMA = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"n": "int64"})])
# Without history, compaction leaves nothing that is not held.
SETTINGS = ebla.Settings(history_seconds=0.0, background_compaction=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    with SmallCluster(tmp_path_factory.mktemp("cluster"), masters=1, servers=2, settings=SETTINGS) as made:
        yield made


@pytest.fixture
def db(cluster: SmallCluster) -> Iterator[ebla.Database]:
    with cluster.connect() as connected:
        yield connected


def on_two_servers(db: ebla.Database, name: str) -> ebla.Table:
    # Who gets a tablet is drawn by chance: of so many, each server has some.
    table = db.create_table(name, SCHEMA, splits=list("bdfhjlnprtvx"))
    wait_until(lambda: len({one["leader"] for one in db.stats()["tables"][name]["tablets"]} - {None}) == 2)
    return table


def numbers(table: ebla.Table, as_of: object = None) -> list[tuple[str, int]]:
    return [(row["k"], row["n"]) for row in table.scan(as_of=as_of)]  # type: ignore[arg-type]


def write(table: ebla.Table, n: int) -> None:
    table.put([{"k": k, "n": n} for k in "az"])
    table.flush()


def is_gone(table: ebla.Table, txn: int) -> bool:
    """Whether compaction has left out what a txn shows; a tablet that changed hands meanwhile has its turn later."""
    write(table, 4)
    table.compact()
    try:
        numbers(table, txn)
    except HistoryGone:
        return True
    return False


def test_a_named_snapshot_is_kept_by_the_compaction_of_every_server(cluster: SmallCluster, db: ebla.Database) -> None:
    table = on_two_servers(db, "named")
    write(table, 1)
    with db.snapshot("monday") as monday:
        pass
    write(table, 2)
    table.compact()
    with cluster.connect() as other:
        assert numbers(other.table("named"), "monday") == [("a", 1), ("z", 1)]
        assert other.snapshot("monday").txn == monday.txn, "a name means one moment"
        assert other.snapshots() == {"monday": monday.txn}
        assert other.snapshot("monday").table("named").get("z") == {"k": "z", "n": 1}
        other.snapshot("monday").release()
    assert db.snapshots() == {}
    write(table, 3)
    table.compact()
    assert numbers(table) == [("a", 3), ("z", 3)]
    wait_until(lambda: is_gone(table, monday.txn))
    with pytest.raises(RequestError, match="monday"):
        numbers(table, "monday")


def test_a_snapshot_without_a_name_is_kept_until_it_is_closed(db: ebla.Database, cluster: SmallCluster) -> None:
    table = on_two_servers(db, "unnamed")
    write(table, 1)
    with db.snapshot() as held:
        write(table, 2)
        table.compact()
        assert numbers(held.table("unnamed")) == [("a", 1), ("z", 1)]
        assert db.snapshots() == {}
        assert len(Pins(cluster.coordination(), cluster.clock).all()) == 1
    assert Pins(cluster.coordination(), cluster.clock).all() == []


def test_what_is_written_after_a_snapshot_is_not_in_it(db: ebla.Database) -> None:
    table = on_two_servers(db, "after")
    table.put({"k": "z", "n": 1})
    for n in range(20):  # the clocks of servers differ by what they have committed
        table.put({"k": "a", "n": n})
    service = service_of(db)
    txn = service.carry_out(HoldNewest())
    assert table.put({"k": "z", "n": 2}) > txn
    assert numbers(table, txn) == [("a", 19), ("z", 1)]
    service.carry_out(LetGo(txn))


def test_what_is_written_after_a_name_was_found_is_not_in_it_though_who_gave_it_died_at_once(
    cluster: SmallCluster, db: ebla.Database
) -> None:
    table = on_two_servers(db, "found")
    # The clocks of these servers are behind that of the one whose newest commit is held.
    txn = txn_at(cluster.clock.microseconds() + 5_000_000)
    ClusterSnapshots(cluster.coordination(), cluster.clock).hold(HoldByName("left", txn))
    found = db.snapshot("left")
    assert found.txn == txn
    assert table.put([{"k": "a", "n": 1}]) > txn
    assert table.put([{"k": "z", "n": 1}]) > txn
    assert numbers(table, "left") == []
    found.release()


def test_a_name_is_found_and_let_go_though_no_server_can_be_told() -> None:
    asked: list[object] = []

    def ask_master(request: object) -> object:
        asked.append(request)
        return {"kept": 6} if isinstance(request, ListHeld) else None

    def ask_servers(request: object) -> list[object]:
        asked.append(request)
        raise Unavailable("no server answers")

    assert HeldSnapshots("c", ask_master, ask_servers).hold_named("kept") == 6
    assert asked == [ListHeld(), PassTxn(6)], "it is still held"


def test_what_a_client_held_that_died_is_let_go_in_its_time() -> None:
    clock = ManualClock()
    coordination = MemoryCoordination(MemoryStore(), clock)
    snapshots, pins = ClusterSnapshots(coordination, clock), Pins(coordination, clock)
    assert snapshots.hold(HoldByName("held.c.1", 5, 60.0)) == 5
    assert snapshots.hold(HoldByName("kept", 6)) == 6
    clock.advance(50)
    snapshots.hold(HoldByName("held.c.1", 5, 60.0))
    clock.advance(50)
    assert pins.oldest() == 5, "it was renewed"
    clock.advance(20)
    assert pins.oldest() == 6
    assert snapshots.by_name() == {"kept": 6}


def test_a_txn_that_compaction_may_have_passed_is_not_held() -> None:
    clock = ManualClock()
    coordination = MemoryCoordination(MemoryStore(), clock)
    snapshots = ClusterSnapshots(coordination, clock)
    Horizon(coordination).raise_to(10)
    with pytest.raises(Conflict):
        snapshots.hold(HoldByName("late", 9))
    assert snapshots.by_name() == {}
    assert snapshots.hold(HoldByName("late", 10)) == 10
    Horizon(coordination).raise_to(20)
    assert snapshots.hold(HoldByName("late", 30)) == 10, "what was held in time stays whole"
