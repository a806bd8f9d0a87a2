"""Garbage of a cluster: what no table names goes, what a server may yet name stays; what is gone is never named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ebla
from ebla.client.database import service_of
from ebla.master.messages import Heartbeat, Instance
from ebla.master.settings import MasterSettings
from ebla.master_server.cluster_garbage import file_floor
from ebla.metadata.values.changes import AddFragments, NewFragment, RequirementFailed, TabletAt
from ebla.metadata.values.file_names import file_microseconds, timed_name
from ebla.service.requests import DescribeStore
from ebla.tablet.engine import TabletStore
from tests.master.master_world import CLUSTER, MasterWorld
from tests.master_server.small_cluster import SmallCluster, new_id, wait_until

SCHEMA = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"n": "int64"})])
SETTINGS = ebla.Settings(
    garbage_age_seconds=0.0, garbage_round_seconds=1e6, history_seconds=0.0, background_compaction=False
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    with SmallCluster(tmp_path_factory.mktemp("cluster"), masters=1, servers=2, settings=SETTINGS) as made:
        yield made


@pytest.fixture
def db(cluster: SmallCluster) -> Iterator[ebla.Database]:
    with cluster.connect() as connected:
        yield connected


def there(cluster: SmallCluster) -> set[str]:
    root = cluster.directory / "root"
    return {str(path.relative_to(root)) for path in root.glob("fragments/*/*.parquet")}


def fragmented(db: ebla.Database, name: str) -> ebla.Table:
    """A table on two servers, whose rows were compacted: the files before that are named by nobody."""
    table = db.create_table(name, SCHEMA, splits=["m"])
    for n in range(3):
        table.put([{"k": k, "n": n} for k in "az"])
        table.flush()
    table.compact()
    return table


def tablets_of(db: ebla.Database, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service_of(db).carry_out(DescribeStore())["tables"][name]["tablets"]
    return found


def id_of(db: ebla.Database, name: str) -> str:
    table_id: str = db.stats()["tables"][name]["id"]
    return table_id


def named(cluster: SmallCluster, table_id: str) -> set[str]:
    """The files that METADATA names. Tablets may move meanwhile, and servers know of those that they lead."""
    return set(cluster.masters[cluster.leader]._metadata.refresh(table_id).files())


def swept(db: ebla.Database, cluster: SmallCluster, table_id: str) -> None:
    """Sweep until no garbage is left: servers say once a second which is the oldest file that they may name."""

    def is_swept() -> bool:
        db.gc(dry_run=False)
        return own(cluster, table_id) == named(cluster, table_id)

    wait_until(is_swept)


def own(cluster: SmallCluster, table_id: str) -> set[str]:
    return {path for path in there(cluster) if f"/{table_id}/" in path}


def engine_of(cluster: SmallCluster) -> TabletStore:
    server = next(iter(cluster.servers.values()))
    assert server.run is not None
    return server.run.engine


def test_files_that_no_table_names_go_and_the_others_stay(cluster: SmallCluster, db: ebla.Database) -> None:
    table = fragmented(db, "compacted")
    table_id = id_of(db, "compacted")
    before = own(cluster, table_id)
    assert before - named(cluster, table_id)
    assert db.gc(dry_run=True).removed == ()
    assert before <= there(cluster), "a dry run removes nothing"
    swept(db, cluster, table_id)
    assert before - there(cluster)
    assert [(row["k"], row["n"]) for row in table.scan()] == [("a", 2), ("z", 2)]
    report = db.verify()
    assert report.is_clean, report.findings


def test_tablets_that_change_hands_while_a_table_is_compacted_are_compacted_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_they_are = MasterSettings(is_log_shared=True, imbalance_tolerated=2)  # only the test moves tablets
    with (
        SmallCluster(tmp_path, masters=1, servers=2, settings=SETTINGS, master_settings=as_they_are) as cluster,
        cluster.connect() as db,
    ):
        wait_until(lambda: len(db.stats()["servers"]) == 2)
        table = db.create_table("moving", SCHEMA, splits=["m"])
        for n in range(3):
            table.put([{"k": k, "n": n} for k in "az"])
            table.flush()
        one, other = (server.uuid for server in cluster.servers.values())
        first, second = (tablet["id"] for tablet in tablets_of(db, "moving"))
        db.move_tablet("moving", first, one)
        db.move_tablet("moving", second, other)
        before = named(cluster, id_of(db, "moving"))
        service: Any = service_of(db)
        together = service.together
        moves = [second]

        def moved_in_between(calls: Sequence[Callable[[], object]]) -> list[object]:
            if not moves:
                return together(calls)  # type: ignore[no-any-return]
            done = calls[0]()
            db.move_tablet("moving", moves.pop(), one)
            return [done, calls[1]()]

        monkeypatch.setattr(service, "together", moved_in_between)
        table.compact()
        assert not moves
        assert not before & named(cluster, id_of(db, "moving"))


def test_a_file_that_a_server_may_yet_name_stays(cluster: SmallCluster, db: ebla.Database) -> None:
    table = fragmented(db, "pending")
    engine = engine_of(cluster)
    table_id = id_of(db, "pending")
    begun = engine.pending.new_path(table_id)
    (cluster.directory / "root" / begun).write_bytes(b"being written")
    table.put({"k": "a", "n": 9})
    table.flush()
    before = there(cluster)
    floor = file_microseconds(begun)
    assert floor is not None
    master = cluster.masters[cluster.leader]
    server = next(iter(cluster.servers.values()))
    known = master._leading().master.servers.get(server.uuid)
    assert known is not None
    wait_until(lambda: known.oldest_file_microseconds == floor)
    for _ in range(3):
        report = db.gc(dry_run=False)
        assert report.by_writers >= 1
    assert begun in there(cluster)
    assert {path for path in before if (file_microseconds(path) or 0) >= floor} <= there(cluster)
    engine.pending.let_go([begun])
    swept(db, cluster, table_id)
    assert begun not in there(cluster)


def test_a_file_from_below_the_floor_is_never_named(cluster: SmallCluster, db: ebla.Database) -> None:
    fragmented(db, "late")
    table_id = id_of(db, "late")
    assert own(cluster, table_id) - named(cluster, table_id)
    swept(db, cluster, table_id)
    engines = {one.run.engine.server: one.run.engine for one in cluster.servers.values() if one.run is not None}
    metadata = engine_of(cluster).metadata.refresh(table_id)
    while any(one.log not in engines for one in metadata.tablets):  # changing hands
        metadata = engine_of(cluster).metadata.refresh(table_id)
    tablet = metadata.tablets[0]
    engine = engines[tablet.log or ""]
    floor = engine.metadata.directory.read(table_id)[0].file_floor_microseconds
    assert floor > 0
    (fragment, *_) = tablet.groups[0].fragments

    def adding(microseconds: int) -> AddFragments:

        file = f"fragments/{table_id}/{timed_name(microseconds, new_id())}"
        reference = msgspec.structs.replace(fragment, file=file)
        at = TabletAt(tablet.id, tablet.epoch)
        return AddFragments(tablet.groups[0].group, (NewFragment(reference, (tablet.id,)),), (at,))

    with pytest.raises(RequirementFailed, match="write it anew"):
        engine.metadata.commit(table_id, [adding(floor - 1)])
    engine.pending.pass_by(floor + 10**12)
    assert (file_microseconds(engine.pending.new_path(table_id)) or 0) > floor + 10**12
    engine.pending.let_go(engine.pending.paths())


def test_servers_that_are_away_count_until_others_have_their_tablets() -> None:
    world = MasterWorld()
    world.join("s1", "s2")
    world.create()
    world.settle(servers=("s1", "s2"))
    leader = world.metadata().tablets[0].leader
    other = "s2" if leader == "s1" else "s1"

    def beat(server: str, oldest: int) -> None:
        world.run(world.master.heartbeat(Heartbeat(CLUSTER, Instance(server, 1), oldest_file_microseconds=oldest)))

    assert file_floor(world.master) == 0, "nobody has said anything yet"
    beat(other, 70)
    assert file_floor(world.master) == 0
    assert leader is not None
    beat(leader, 50)
    assert file_floor(world.master) == 50
    world.clock.advance(10.0)
    beat(other, 90)
    assert file_floor(world.master) == 50, "silent, and it leads a tablet"
    world.restart()
    world.join(other)
    beat(other, 90)
    assert file_floor(world.master) == 0, "it was never heard in this term"


def test_logs_of_a_server_that_does_not_return_are_removed(cluster: SmallCluster, db: ebla.Database) -> None:
    cluster.start_server("leaving")
    server = cluster.servers["leaving"]
    wait_until(lambda: server.run is not None)
    assert server.run is not None
    log = cluster.directory / "root" / "log" / server.uuid / str(server.run.start)
    wait_until(log.exists)
    kept = [path for path in (cluster.directory / "root" / "log").glob("*/*") if path != log]
    care = cluster.masters[cluster.leader]._care
    assert care._logs.sweep() == [], "it is alive"
    cluster.stop_server("leaving")
    wait_until(lambda: care._logs.sweep() and not log.exists())
    assert all(path.exists() for path in kept)
