"""Three servers keep a table together: what one acknowledges, all in sync have; another goes on where one ended."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from ebla.errors import OutcomeUnknown, StaleRoute, Unavailable
from ebla.master.messages import GiveUpTablet, ReplicateTablet
from ebla.metadata.values.assigning import Assignment, AssignTablets, StartTablets
from ebla.metadata.values.changes import AlterSchema, FlushedTablet
from ebla.metadata.values.late import ForgetSchemas
from ebla.metadata.values.replicating import AddReplica, ChangeLeaders, NewLeader
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import Replica, initial_metadata
from ebla.metadata_rpc.in_sync_check import newest_start
from ebla.model.ranges import KeyRange
from ebla.model.schema_change import Alteration, altered
from ebla.replication.leader import Leader
from ebla.replication.messages import Resigned
from ebla.service.requests import EraseRange, Flush, Put, ReadRows, ScanRows, Split
from ebla.service.service import TableService
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.flush import flusher
from ebla.tablet.lead.run import run_name
from ebla.tablet.life.late_schema import LateSchemas
from ebla.tablet.recovery.server_record import read_bound
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write import commit_log
from ebla.tablet_server import server_run
from ebla.tablet_server.replicas import here
from ebla.tablet_server.server import TabletServer
from tests.tablet_server.servers import SCHEMA, Cluster, new_id, wait_until


class Replicated(Cluster):
    """A cluster with tables that several servers keep."""

    def create_replicated(self, servers: Sequence[TabletServer], wanted: int = 3, name: str = "t") -> None:
        """Create a table of one tablet that these servers keep; the first leads."""
        wait_until(lambda: all(one.uuid in self.registered for one in servers))
        initial = initial_metadata(new_id(), SCHEMA, ["t0"], [], state="preparing")
        initial = initial.with_tablets([replace(initial.tablets[0], wanted=wanted)])
        self.table_id = initial.table_id
        self.metadata.create_table(name, initial.table_id, initial)
        replicas = tuple(Replica(one.uuid, new_id(), self.registered[one.uuid].log_id, True) for one in servers)
        leader = servers[0]
        assert leader.run is not None
        run = run_name(leader.uuid, leader.run.start)
        made = self.metadata.commit(self.table_id, [AssignTablets((Assignment("t0", 1, leader.uuid, replicas, run),))])
        for server in servers:
            self.send(server, self._creation(made.tablets[0]))
        wait_until(lambda: all(self.state_on(one) == "running" for one in servers))
        self.metadata.commit(self.table_id, [StartTablets((TabletAt("t0", 2),))])

    def state_on(self, server: TabletServer, tablet: str = "t0") -> str | None:
        known = self.reported.get(server.uuid, {}).get(tablet)
        return None if known is None or known.epoch != self.tablet(tablet).epoch else known.state

    def lead(self, server: TabletServer, tablets: Sequence[str] = ("t0",)) -> None:
        """Make a replica the leader, as a master does when the one before has lost its lease."""
        leaders = []
        for one in tablets:
            tablet = self.tablet(one)
            replica = tablet.replica_on(server.uuid)
            assert replica is not None
            assert server.run is not None
            assert tablet.log is not None
            floor = read_bound(self.coordination, tablet.log)
            leaders.append(NewLeader(one, tablet.number, replica, run_name(server.uuid, server.run.start), floor))
        self.metadata.commit(self.table_id, [ChangeLeaders(tuple(leaders))])
        for one in tablets:
            wait_until(lambda one=one: self.state_on(server, one) == "running")  # type: ignore[misc]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicated]:
    monkeypatch.setattr(server_run, "HAND_OVER_SECONDS", 0.1)  # no master is there to change the leader at a stop
    made = Replicated(tmp_path)
    yield made
    made.stop_all()


@pytest.fixture
def servers(cluster: Replicated) -> list[TabletServer]:
    made = [cluster.start(name) for name in "abc"]
    cluster.create_replicated(made)
    return made


def table(server: TabletServer) -> TableService:
    assert server.run is not None
    return server.run.service.table("t")


def put(server: TabletServer, *keys: int, value: str = "") -> int:
    """Put rows, as a client does: again while the tablet is about to be led there."""
    txns: list[int] = []

    def is_put() -> bool:
        with contextlib.suppress(StaleRoute):
            txns.append(table(server).write(Put([{"k": key, "v": value or str(key)} for key in keys])))
        return bool(txns)

    wait_until(is_put)
    return txns[0]


def value(server: TabletServer, key: int) -> object:
    row = table(server).get((key,))
    return None if row is None else row["v"]


def kill(cluster: Replicated, name: str) -> None:
    """Have a server stop renewing its lease, and wait until it is over."""
    server = cluster.servers[name]
    cluster.cut_off.add(name)
    wait_until(lambda: cluster.watch.is_over(server.uuid))


def test_what_is_acknowledged_is_in_the_logs_of_all(cluster: Replicated, servers: list[TabletServer]) -> None:
    a, b, c = servers
    put(a, 1, 2, 3)
    assert value(a, 2) == "2"
    for server in (b, c):
        assert server.run is not None
        assert [part.index for part in server.run.replicas.tail(cluster.table_id, "t0")][-1] == 2


def test_another_replica_goes_on_where_the_leader_ended(cluster: Replicated, servers: list[TabletServer]) -> None:
    a, b, _c = servers
    put(a, *range(100))
    put(a, 7, value="seven")
    kill(cluster, "a")
    cluster.lead(b)
    assert [value(b, key) for key in (0, 7, 99)] == ["0", "seven", "99"]


def test_a_replica_that_is_silent_is_taken_out_and_commits_go_on(
    cluster: Replicated, servers: list[TabletServer]
) -> None:
    a, b, _c = servers
    cluster.stop("c")
    put(a, 1)
    assert {one.server for one in cluster.tablet("t0").in_sync} == {a.uuid, b.uuid}


def test_a_replica_that_comes_back_catches_up_and_is_in_sync_again(
    cluster: Replicated, servers: list[TabletServer]
) -> None:
    a, _b, c = servers
    put(a, 1)
    cluster.stop("c")
    put(a, 2)
    back = cluster.start("c")
    wait_until(lambda: len(cluster.tablet("t0").in_sync) == 3)
    put(a, 3)
    assert back.run is not None
    assert back.uuid == c.uuid
    assert [part.index for part in back.run.replicas.tail(cluster.table_id, "t0")] == [1, 2, 3, 4]


def test_followers_let_go_of_what_is_flushed(cluster: Replicated, servers: list[TabletServer]) -> None:
    a, _b, _c = servers
    put(a, *range(10))
    table(a).carry_out(Flush())
    put(a, 11)
    for server in servers:
        assert server.run is not None
        replicas = server.run.replicas
        wait_until(lambda replicas=replicas: len(replicas.tail(cluster.table_id, "t0")) == 1)  # type: ignore[misc]
    assert [value(a, key) for key in (3, 11)] == ["3", "11"]


def restart(cluster: Replicated, *names: str) -> None:
    """Have servers lose their leases, all at once, and begin other runs: what they had in memory is gone."""
    before = {name: cluster.servers[name].run for name in names}
    cluster.cut_off.update(names)
    for name in names:
        wait_until(lambda name=name: cluster.watch.is_over(cluster.servers[name].uuid))  # type: ignore[misc]
        wait_until(lambda name=name: cluster.servers[name].run is None)  # type: ignore[misc]
    cluster.cut_off.clear()
    for name in names:
        wait_until(lambda name=name: cluster.servers[name].run not in (None, before[name]))  # type: ignore[misc]


def test_all_servers_restarted_at_once_have_everything_that_was_acknowledged(
    cluster: Replicated, servers: list[TabletServer]
) -> None:
    a, b, c = servers
    put(a, *range(50))
    table(a).carry_out(Flush())
    put(a, *range(25, 75), value="new")
    restart(cluster, "a", "b", "c")
    cluster.lead(c)
    assert [value(c, key) for key in (0, 24, 25, 74)] == ["0", "24", "new", "new"]
    put(c, 100)
    restart(cluster, "a", "b", "c")
    cluster.lead(a)
    assert [value(a, key) for key in (0, 74, 100)] == ["0", "new", "100"]
    assert len(cluster.tablet("t0").in_sync) == 3
    assert b.run is not None


def test_all_servers_stopped_and_started_have_everything_however_long_their_logs_are(
    cluster: Replicated, servers: list[TabletServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "REST_SHARE", 1 << 40)  # no log is short: one that nobody needs is begun anew
    put(servers[0], *range(50))
    cluster.stop_all()
    _a, b, _c = [cluster.start(name) for name in "abc"]
    wait_until(lambda: all(one.run is not None for one in cluster.servers.values()))
    cluster.lead(b)
    assert [value(b, key) for key in (0, 49)] == ["0", "49"]


def test_a_request_is_carried_out_once_whoever_leads(cluster: Replicated, servers: list[TabletServer]) -> None:
    a, b, _c = servers
    once = Put([{"k": 1, "v": "one"}], request_id=("client", 1))
    txn = table(a).write(once)
    put(a, 1, value="two")
    table(a).carry_out(Flush())  # the part of the log that has the reply is flushed: it was logged again
    kill(cluster, "a")
    cluster.lead(b)
    assert table(b).write(once) == txn
    assert value(b, 1) == "two"


def test_a_server_that_lost_its_log_learns_anew(cluster: Replicated, servers: list[TabletServer]) -> None:
    a, _b, c = servers
    put(a, 1, 2)
    before = cluster.registered[c.uuid].log_id
    cluster.stop("c")
    shutil.rmtree(cluster.path / "root" / "log" / c.uuid)
    cluster.files = LocalFiles(cluster.path / "root")  # a process that starts knows of no directory
    back = cluster.start("c")
    wait_until(lambda: cluster.registered[c.uuid].log_id != before)
    put(a, 3)

    def is_in_sync() -> bool:
        replica = cluster.tablet("t0").replica_on(back.uuid)
        return replica is not None and replica.is_in_sync and replica.log_id == cluster.registered[back.uuid].log_id

    wait_until(is_in_sync)
    assert back.run is not None
    assert len(back.run.replicas.tail(cluster.table_id, "t0")) == 3


def test_a_tablet_that_waits_for_its_replicas_holds_up_no_other_and_is_read_as_it_was(
    cluster: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = (cluster.start(name) for name in "abc")
    cluster.create(a)
    cluster.create_replicated([a, b, c], name="replicated")
    wait_until(lambda: a.led().get("replicated"))  # the tablets of both tables have the same name in reports here
    assert a.run is not None
    held = a.run.service.table("replicated")
    held.write(Put([{"k": 1, "v": "before"}]))
    cluster.stop("b")
    wait_until(lambda: len(cluster.tablet("t0").in_sync) == 2)
    cluster.stop("c")
    with monkeypatch.context() as patched:
        patched.setattr(commit_log, "REPLICAS_SECONDS", 1.0)
        with pytest.raises(OutcomeUnknown, match="not every replica"):
            held.write(Put([{"k": 1, "v": "after"}]))
    wait_until(lambda: held_tablets(a, "replicated"))
    assert put(a, 1, 101)  # of the table that has one replica
    row = held.get((1,))
    assert row is not None
    assert row["v"] == "before"
    assert held.read_rows(ReadRows(pa.array([held.codec.encode((1,))]))).column("v").to_pylist() == ["before"]
    assert held.scan(ScanRows()).count() == 1
    assert [one.column("v").to_pylist() for one in held.scan(ScanRows()).tables(whole=True)] == [["before"]]
    assert cluster.start("c").uuid == c.uuid
    wait_until(lambda: not held_tablets(a, "replicated"))
    row = held.get((1,))
    assert row is not None
    assert row["v"] == "after"
    assert b.uuid not in {one.server for one in cluster.tablet("t0").in_sync}


def test_a_tablet_is_served_when_all_that_it_has_is_seen_by_reads_though_others_wait_for_replicas(
    cluster: Replicated,
) -> None:
    a, b, c = (cluster.start(name) for name in "abc")
    cluster.create_replicated([b, a, c], name="other")
    cluster.create_replicated([a, b], wanted=2, name="t")
    put(a, 1)
    assert b.run is not None
    other = b.run.service.table("other")
    cluster.stop("c")
    waiting = threading.Thread(target=lambda: other.write(Put([{"k": 1, "v": "waits for c"}])))
    waiting.start()
    log = b.run.engine.state.writable_log()
    wait_until(lambda: log._groups)  # it is in the log of b, and commits of b are shown in their order
    tablet = cluster.tablet("t0")
    replica = tablet.replica_on(b.uuid)
    assert replica is not None
    assert tablet.log is not None
    new = NewLeader(
        "t0", tablet.number, replica, run_name(b.uuid, b.run.start), read_bound(cluster.coordination, tablet.log)
    )
    cluster.metadata.commit(cluster.table_id, [ChangeLeaders((new,))])
    seen = []

    def is_read() -> bool:
        with contextlib.suppress(StaleRoute):
            seen.append(value(b, 1))
        return bool(seen)

    wait_until(is_read)
    assert seen == ["1"]
    waiting.join()


def test_commits_of_an_epoch_that_ended_before_they_were_committed_have_an_unknown_outcome_and_harm_no_other(
    cluster: Replicated, servers: list[TabletServer]
) -> None:
    a, b, _ = servers
    put(a, 1)
    assert a.run is not None
    engine, replicas = a.run.engine, a.run.replicas
    replicas.resign(engine.table("t").id, "t0", engine.txn_clock.last, b.uuid)  # behind the back of the engine
    with pytest.raises(OutcomeUnknown, match="not every replica"):
        table(a).write(Put([{"k": 1, "v": "lost"}]))
    assert engine.state.writable_log().failure is None
    cluster.lead(b)
    assert value(b, 1) == "1"
    put(b, 2)
    cluster.lead(a)
    assert (value(a, 1), value(a, 2)) == ("1", "2")
    put(a, 3)
    assert value(a, 3) == "3"


def test_replicas_are_asked_for_a_heartbeat_while_the_run_can_be_noticed(
    cluster: Replicated, servers: list[TabletServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = servers[0].run
    assert run is not None
    asked = threading.Event()
    resigned = run.replicas.resigned

    def asked_under_their_lock() -> tuple[Resigned, ...]:
        # Replicas call `notice` under their lock, which `resigned` takes: it must find the run's own lock free.
        noticing = threading.Thread(target=run.notice, args=(cluster.table_id,), daemon=True)
        noticing.start()
        noticing.join(10)
        assert not noticing.is_alive()
        asked.set()
        return resigned()

    monkeypatch.setattr(run.replicas, "resigned", asked_under_their_lock)
    run._beat.wake()
    assert asked.wait(30)


def test_masters_are_told_for_how_long_a_replica_that_acknowledges_nothing_is_behind(
    cluster: Replicated, servers: list[TabletServer]
) -> None:
    a, b, c = servers
    put(a, 1)
    wait_until(lambda: not cluster.lags[a.uuid])
    cluster.stop("c")
    put(a, 2)
    put(a, 3)
    wait_until(lambda: cluster.lags[a.uuid])
    (first,) = cluster.lags[a.uuid]
    assert (first.tablet, first.server) == ("t0", c.uuid)
    assert first.seconds > 0

    def grown() -> bool:
        (lag,) = cluster.lags[a.uuid]
        return lag.seconds > first.seconds + 1 and lag.entries == 2

    wait_until(grown)
    assert not cluster.lags[b.uuid], "who leads tells of those who follow"
    cluster.start("c")
    wait_until(lambda: not cluster.lags[a.uuid])


def test_masters_are_told_of_a_lag_no_more_by_who_gave_the_tablet_up(
    cluster: Replicated, servers: list[TabletServer]
) -> None:
    a, b, _c = servers
    cluster.stop("c")
    put(a, 1)
    wait_until(lambda: cluster.lags[a.uuid])
    own = cluster.tablet("t0").replica_on(a.uuid)
    assert own is not None
    cluster.send(a, GiveUpTablet("t0", own.assignment_id, cluster.tablet("t0").epoch, b.uuid))
    wait_until(lambda: not cluster.lags[a.uuid])


def test_a_heartbeat_has_the_longest_lags_and_none_of_what_is_on_its_way(
    cluster: Replicated, servers: list[TabletServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = servers[0].run
    assert run is not None
    monkeypatch.setattr(Leader, "behind", lambda leader, now: [("b", 1, 3.0), ("c", 1, 0.01), ("d", 1, 5.0)])
    assert {lag.server for lag in run.replicas.lags()} == {"b", "d"}
    monkeypatch.setattr(here, "LAGS_MAX", 1)
    assert [lag.server for lag in run.replicas.lags()] == ["d"]


def held_tablets(server: TabletServer, name: str) -> frozenset[str]:
    assert server.run is not None
    return server.run.engine.table(name).held


def test_a_tablet_with_one_replica_comes_to_have_several_with_all_that_it_has(cluster: Replicated) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    wait_until(lambda: {a.uuid, b.uuid} <= cluster.registered.keys())
    cluster.create(a, splits=0)
    once = Put([{"k": 1, "v": "one"}], request_id=("client", 1))
    txn = table(a).write(once)
    put(a, 2, 3)
    tablet = cluster.tablet("t0")
    cluster.send(a, ReplicateTablet("t0", tablet.replicas[0].assignment_id, tablet.epoch, 2))
    wait_until(lambda: cluster.tablet("t0").is_replicated and cluster.state_on(a) == "running")
    put(a, 4)
    cluster.metadata.commit(
        cluster.table_id, [AddReplica("t0", cluster.tablet("t0").number, Replica(b.uuid, new_id()))]
    )
    cluster.send(b, cluster._creation(cluster.tablet("t0")))
    wait_until(lambda: len(cluster.tablet("t0").in_sync) == 2)
    put(a, 5)
    kill(cluster, "a")
    new = NewLeader(
        "t0",
        cluster.tablet("t0").number,
        cluster.tablet("t0").replica_on(b.uuid),  # type: ignore[arg-type]
        run_name(b.uuid, b.run.start),  # type: ignore[union-attr]
        read_bound(cluster.coordination, cluster.tablet("t0").log or ""),
    )
    cluster.metadata.commit(cluster.table_id, [ChangeLeaders((new,))])
    cluster.cut_off.clear()  # the one that led is back, as two are needed
    wait_until(lambda: cluster.state_on(b) == "running")
    assert [value(b, key) for key in range(1, 6)] == ["one", "2", "3", "4", "5"]
    assert table(b).write(once) == txn


def test_the_children_of_a_split_are_kept_by_the_replicas_of_their_parent(
    cluster: Replicated, servers: list[TabletServer]
) -> None:
    a, b, _c = servers
    once = Put([{"k": 1, "v": "one"}], request_id=("client", 1))
    txn = table(a).write(once)
    put(a, *range(2, 100))
    table(a).carry_out(Split(table(a).codec.encode((50,))))
    children = [one.id for one in cluster.read().tablets]
    assert len(children) == 2
    wait_until(lambda: set(children) <= set(a.led().get("t", ())))
    put(a, 1, 60, value="after")
    for child in children:
        tablet = cluster.tablet(child)
        assert len(tablet.in_sync) == 3
    kill(cluster, "a")
    cluster.lead(b, children)
    assert [value(b, key) for key in (1, 49, 50, 60, 99)] == ["after", "49", "50", "after", "99"]
    assert table(b).write(once) == txn
    assert value(b, 1) == "after"


def test_logs_on_disks_of_their_own_are_kept_over_a_restart_and_by_others_when_one_is_lost(
    cluster: Replicated, tmp_path: Path
) -> None:
    cluster.logs = {name: LocalFiles(tmp_path / f"disk-{name}") for name in "abc"}
    a, b, c = (cluster.start(name) for name in "abc")
    cluster.create_replicated([a, b, c])
    put(a, 1, 2, 3)
    assert not (cluster.path / "root" / "log").exists()
    restart(cluster, "a", "b", "c")
    cluster.lead(b)
    assert value(b, 2) == "2"
    cluster.stop("a")
    shutil.rmtree(tmp_path / "disk-a")
    cluster.logs["a"] = LocalFiles(tmp_path / "disk-a")
    put(b, 4)
    back = cluster.start("a")
    wait_until(lambda: len(cluster.tablet("t0").in_sync) == 3)
    assert back.run is not None
    assert back.run.replicas.tail(cluster.table_id, "t0")


def test_a_run_that_keeps_replicas_is_on_record_by_the_time_that_it_is_put_in_sync_with_an_empty_log_too(
    cluster: Replicated, tmp_path: Path
) -> None:
    cluster.logs = {name: LocalFiles(tmp_path / f"disk-{name}") for name in "abc"}
    servers = [cluster.start(name) for name in "abc"]
    cluster.create_replicated(servers)
    for server in servers:
        assert server.run is not None
        assert newest_start(cluster.coordination, server.uuid) == server.run.start
    former = {one.log_id for one in cluster.tablet("t0").in_sync}
    cluster.stop("c")
    shutil.rmtree(tmp_path / "disk-c")
    cluster.logs["c"] = LocalFiles(tmp_path / "disk-c")
    put(servers[0], 1)
    back = cluster.start("c")
    wait_until(lambda: {one.log_id for one in cluster.tablet("t0").in_sync} - former)
    assert back.run is not None
    assert newest_start(cluster.coordination, back.uuid) == back.run.start


def alter(cluster: Replicated, server: TabletServer | None = None, **parts: Any) -> None:
    """Change the schema, as a master does; if a server leads, wait until it has put the new one in force."""
    found = cluster.read()
    schema = altered(found.schema, Alteration(**parts), dropped_at=0)
    tablets = tuple(FlushedTablet(one.id, one.epoch, 0) for one in found.tablets)
    cluster.metadata.commit(cluster.table_id, [AlterSchema(found.schema.version, schema, tablets, is_late=True)])
    if server is not None:
        wait_until(lambda: version_on(cluster, server) == schema.version)


def version_on(cluster: Replicated, server: TabletServer) -> int:
    """Return which schema a server says it has in force for the tablet."""
    known = cluster.reported[server.uuid]["t0"]
    return known.schema_version if known.epoch == cluster.tablet("t0").epoch else 0


def rows(server: TabletServer) -> list[dict[str, object]]:
    return [row for one in table(server).scan(ScanRows()).tables(whole=True) for row in one.to_pylist()]


def test_the_leader_flushes_what_it_has_under_the_schema_before(
    cluster: Replicated, servers: list[TabletServer]
) -> None:
    a, b, c = servers
    put(a, 1, 2)
    alter(cluster, a, add_columns={"w": "int64"})
    table(a).write(Put([{"k": 3, "v": "3", "w": 3}]))
    alter(cluster, a, rename={"v": "name"})
    table(a).write(Put([{"k": 4, "name": "4", "w": 4}]))
    alter(cluster, a, drop_columns=["w"])
    table(a).write(Put([{"k": 5, "name": "5"}]))
    wanted = [{"k": key, "name": str(key)} for key in range(1, 6)]
    assert rows(a) == wanted
    cluster.metadata.commit(cluster.table_id, [ForgetSchemas(cluster.read().schema.version)])
    kill(cluster, "a")
    cluster.lead(b)  # after the flush: what its log has of former schemas is in files
    assert rows(b) == wanted
    assert version_on(cluster, b) == 4
    table(b).write(Put([{"k": 6, "name": "6"}]))
    assert len(rows(b)) == 6
    assert c.run is not None


@pytest.mark.parametrize("is_restarted", [False, True], ids=["failover", "restart of all"])
def test_another_leader_flushes_what_its_log_has_under_former_schemas(
    cluster: Replicated, servers: list[TabletServer], monkeypatch: pytest.MonkeyPatch, *, is_restarted: bool
) -> None:
    a, b, _c = servers
    put(a, 1, 2)
    table(a).carry_out(Flush())
    once = Put([{"k": 2, "v": "two"}], request_id=("client", 1))
    txn = table(a).write(once)
    encode = table(a).codec.encode
    table(a).write(EraseRange(KeyRange(encode((1,)), encode((2,)))))
    put(a, 3)
    # The leader ends before it has flushed anything under the schema before.
    monkeypatch.setattr(LateSchemas, "switch", refuse)
    alter(cluster, add_columns={"w": "int64"})
    alter(cluster, rename={"v": "name"})
    if is_restarted:
        restart(cluster, "a", "b", "c")
    else:
        kill(cluster, "a")
    monkeypatch.undo()
    cluster.lead(b)
    wanted: list[dict[str, object]] = [{"k": 2, "name": "two", "w": None}, {"k": 3, "name": "3", "w": None}]
    assert rows(b) == wanted
    assert version_on(cluster, b) == 3
    table(b).write(Put([{"k": 4, "name": "4", "w": 4}]))
    assert table(b).write(Put([{"k": 2, "name": "two"}], request_id=("client", 1))) == txn
    cluster.cut_off.clear()
    if not is_restarted:
        wait_until(lambda: a.run is not None and len(cluster.tablet("t0").in_sync) == 3)
    cluster.metadata.commit(cluster.table_id, [ForgetSchemas(3)])
    restart(cluster, "a", "b", "c")
    cluster.lead(a)
    assert rows(a) == [*wanted, {"k": 4, "name": "4", "w": 4}]
    files = [one for group in cluster.tablet("t0").groups for one in group.fragments]
    assert len(files) == 2, "nothing is flushed twice"


def refuse(_: LateSchemas, table: TableState) -> None:
    if table.later is not None:
        raise Unavailable("not now")


def test_a_tablet_that_waits_for_its_replicas_keeps_its_schema_until_it_has_them(
    cluster: Replicated, servers: list[TabletServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _b, _c = servers
    put(a, 1)
    cluster.stop("b")
    wait_until(lambda: len(cluster.tablet("t0").in_sync) == 2)
    cluster.stop("c")
    with monkeypatch.context() as patched:
        patched.setattr(commit_log, "REPLICAS_SECONDS", 1.0)
        with pytest.raises(OutcomeUnknown):
            put(a, 2)
    wait_until(lambda: held_tablets(a, "t"))
    alter(cluster, rename={"v": "name"})
    assert a.run is not None
    engine = a.run.engine
    wait_until(lambda: engine.table("t").later is not None)
    with pytest.raises(Unavailable, match="have enough replicas"):
        engine.late_schemas.switch(engine.table("t"))
    assert version_on(cluster, a) == 1
    cluster.start("c")
    wait_until(lambda: not held_tablets(a, "t"))
    wait_until(lambda: version_on(cluster, a) == 2)
    assert rows(a) == [{"k": 1, "name": "1"}, {"k": 2, "name": "2"}]
