"""A tablet server at work: it leads what it is given, reports it, loses it and gets it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ebla.coordination.lease import LeaseRecord, decode_lease, encode_lease
from ebla.coordination.server_lease import lease_path
from ebla.coordination.service import CoordinationService
from ebla.errors import OutcomeUnknown, RequestError, SchemaError, StaleRoute, Unavailable
from ebla.master.messages import DeleteTablet, Refusal, UpdateTablet
from ebla.metadata.values.changes import AlterSchema, FlushedTablet
from ebla.model.schema_change import Alteration, altered
from ebla.rpc.channel import Channel
from ebla.rpc.wire.messages import GetRow
from ebla.service.requests import Flush, Put, ReadRows, ScanRows, Split
from ebla.service.service import TableService
from ebla.settings import Settings
from ebla.tablet_server import server_run
from ebla.tablet_server.replicas import peers
from ebla.tablet_server.server import SERVER_METHODS, TabletServer, server_settings
from tests.tablet_server.servers import Cluster, wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.stop_all()


def table(server: TabletServer) -> TableService:
    assert server.run is not None
    return server.run.service.table("t")


def put(server: TabletServer, *keys: int) -> int:
    return table(server).write(Put([{"k": key, "v": str(key)} for key in keys]))


def value(server: TabletServer, key: int) -> object:
    row = table(server).get((key,))
    return None if row is None else row["v"]


def test_it_registers_reports_what_it_was_given_and_serves_it(cluster: Cluster) -> None:
    a = cluster.start("a")
    cluster.create(a)
    assert cluster.registered[a.uuid].address == a.address
    put(a, 1, 101)
    assert [value(a, key) for key in (1, 101)] == ["1", "101"]
    assert cluster.reported[a.uuid]["t0"].state == "running"
    with Channel(SERVER_METHODS, a.address) as channel:
        answer = channel.call(GetRow(cluster.table_id, table(a).codec.encode((1,))), timeout_seconds=5)
    assert answer.row is not None


def test_a_tablet_moves_by_hand_and_the_rest_stays(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    cluster.create(a)
    put(a, 1, 101)
    cluster.move(b, "t1")
    assert value(b, 101) == "101"
    put(b, 102)
    with pytest.raises(StaleRoute):
        value(a, 101)
    assert value(a, 1) == "1"
    wait_until(lambda: cluster.reported[b.uuid].get("t1") is not None)
    assert cluster.tablet("t1").leader == b.uuid


def test_rows_of_tablets_that_lie_apart_are_read_together(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    cluster.create(a, splits=2)
    put(a, 1, 101, 201)
    cluster.move(b, "t1")
    keys = [table(a).codec.encode((key,)) for key in (201, 1)]
    rows = table(a).read_rows(ReadRows(pa.array(keys, pa.binary())))
    assert rows.column("v").to_pylist() == ["201", "1"]
    with pytest.raises(StaleRoute):
        list(table(a).scan(ScanRows()).tables(whole=True))


def test_a_killed_server_is_replaced_and_its_successor_takes_its_own_back(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    cluster.create(a)
    put(a, 1, 101)
    assert a.run is not None
    a.run.lease.abandon()  # as a kill: nothing is renewed, flushed or handed over
    cluster.bury(a.uuid)
    cluster.move(b, "t0", "t1")
    assert [value(b, key) for key in (1, 101)] == ["1", "101"]


def test_a_server_cut_off_from_coordination_ends_its_run_and_begins_another(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    cluster.create(a)
    put(a, 1, 101)
    held = table(a)
    assert a.run is not None
    first = a.run.start
    cluster.cut_off.add("a")
    wait_until(lambda: a.run is None or a.run.start > first)
    with pytest.raises((StaleRoute, OutcomeUnknown, Unavailable)):
        held.write(Put({"k": 1, "v": "late"}))
    with pytest.raises((StaleRoute, Unavailable)):
        held.get((1,))
    cluster.bury(a.uuid)
    cluster.move(b, "t0")
    cluster.cut_off.clear()
    wait_until(lambda: a.run is not None and a.run.start > first)
    cluster.move(a, "t1")
    assert value(b, 1) == "1"
    assert value(a, 101) == "101"
    assert cluster.tablet("t1").log == f"{a.uuid}/{a.run.start}"


def test_a_server_that_was_stopped_cleanly_leaves_nothing_to_replay(cluster: Cluster) -> None:
    a = cluster.start("a")
    cluster.create(a)
    put(a, 1, 101)
    cluster.stop("a")
    assert [one.log for one in cluster.read().tablets] == [None, None]
    assert cluster.watch.is_over(a.uuid)
    b = cluster.start("b")
    cluster.move(b, "t0", "t1")
    assert [value(b, key) for key in (1, 101)] == ["1", "101"]


def test_a_server_that_cannot_hand_over_stops_all_the_same_and_loses_nothing(cluster: Cluster) -> None:
    a = cluster.start("a")
    cluster.create(a)
    put(a, 1, 101)
    cluster.cut_off.add("a")
    cluster.stop("a")
    cluster.bury(a.uuid)
    b = cluster.start("b")
    cluster.move(b, "t0", "t1")
    assert [value(b, key) for key in (1, 101)] == ["1", "101"]


def test_a_server_started_again_finds_its_own_tablets(cluster: Cluster) -> None:
    a = cluster.start("a")
    cluster.create(a)
    put(a, 1, 101)
    run = a.run
    assert run is not None
    run.lease.abandon()
    run.end()
    a._directory.release()
    again = cluster.start("a")
    assert again.uuid == a.uuid
    wait_until(lambda: set(again.led().get("t", ())) == {"t0", "t1"})
    assert [value(again, key) for key in (1, 101)] == ["1", "101"]
    wait_until(lambda: {one.epoch for one in cluster.reported[a.uuid].values()} == {cluster.tablet("t0").epoch})


def test_children_of_a_split_are_reported_and_their_parent_is_not(cluster: Cluster) -> None:
    a = cluster.start("a")
    cluster.create(a, splits=0)
    put(a, *range(100))
    table(a).carry_out(Flush())
    children = table(a).carry_out(Split(row=table(a).codec.encode((50,))))
    wait_until(lambda: set(cluster.reported[a.uuid]) == set(children))
    put(a, 10, 90)
    assert value(a, 90) == "90"


def test_a_table_that_is_deleted_is_not_served_until_it_is_back(cluster: Cluster) -> None:
    a = cluster.start("a")
    cluster.create(a, splits=0)
    put(a, 1)
    tablet = cluster.tablet("t0")
    own = tablet.replicas[0].assignment_id
    cluster.send(a, UpdateTablet("t0", own, tablet.epoch, a.uuid, tablet.replicas, is_stopped=True))
    wait_until(lambda: cluster.reported[a.uuid]["t0"].state == "stopped")
    with pytest.raises(StaleRoute):
        value(a, 1)
    cluster.send(a, UpdateTablet("t0", own, tablet.epoch, a.uuid, tablet.replicas, is_stopped=False))
    wait_until(lambda: cluster.reported[a.uuid]["t0"].state == "running")
    assert value(a, 1) == "1"


def test_a_replica_is_deleted_by_its_own_assignment_only(cluster: Cluster) -> None:
    a = cluster.start("a")
    cluster.create(a, splits=0)
    put(a, 1)
    cluster.send(a, DeleteTablet("t0", "another assignment"))
    put(a, 2)
    assert value(a, 1) == "1"
    cluster.send(a, DeleteTablet("t0", cluster.tablet("t0").replicas[0].assignment_id))
    wait_until(lambda: "t0" not in cluster.reported[a.uuid])
    with pytest.raises(StaleRoute):
        value(a, 1)


def test_a_server_that_a_master_refuses_stops_and_says_why(cluster: Cluster) -> None:
    cluster.refusal = Refusal("wrong_cluster", "this is another cluster")
    server = TabletServer(
        files=cluster.files,
        coordination=cluster.coordination,
        metadata=lambda uuid: cluster.metadata,
        send=cluster.heartbeat,
        clock=cluster.clock,
        settings=Settings(background_compaction=False),
        cluster="cluster",
        directory=cluster.path / "x",
        new_id=lambda: "0b8e7a5e-7f0c-4a51-9a5e-0c8f6a1b2c3d",
    )
    with pytest.raises(RequestError, match="another cluster"):
        server.serve()


def test_a_server_whose_lease_ends_while_a_run_fails_to_begin_begins_another(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[str] = []

    def announce(coordination: CoordinationService, server: str, address: str) -> None:
        attempts.append(server)
        if len(attempts) > 1:
            peers.announce(coordination, server, address)
            return
        path = lease_path(server)
        node = cluster.coordination.read(path)
        assert node is not None
        taken = encode_lease(LeaseRecord("", decode_lease(path, node.value).epoch, 0))
        cluster.coordination.compare_and_set(path, taken, node.version)
        wait_until(lambda: "the lease of this server is over: it leads nothing any more" in caplog.messages)
        raise Unavailable("the coordination service went away as well")

    monkeypatch.setattr(server_run, "announce", announce)
    a = cluster.start("a")
    assert len(attempts) == 2
    cluster.create(a)
    put(a, 1)
    assert a.run is not None
    assert a.run.start == 2, "the end of the first was not taken for that of the second"
    assert value(a, 1) == "1"


def alter(cluster: Cluster) -> None:
    """Change the schema as a master does: at once, and without asking the tablets' leaders."""
    metadata = cluster.read()
    schema = altered(metadata.schema, Alteration(add_columns={"g": {"w": "string"}}))
    tablets = tuple(FlushedTablet(one.id, one.epoch, 0) for one in metadata.tablets)
    cluster.metadata.commit(cluster.table_id, [AlterSchema(metadata.schema.version, schema, tablets, is_late=True)])


def test_a_new_schema_is_noticed_and_what_was_written_under_the_old_one_is_kept(cluster: Cluster) -> None:
    a = cluster.start("a")
    cluster.create(a)
    put(a, 1, 101)
    alter(cluster)
    wait_until(lambda: {one.schema_version for one in cluster.reported[a.uuid].values()} == {2})
    table(a).write(Put({"k": 2, "w": "new"}))
    assert table(a).get((1,)) == {"k": 1, "v": "1", "w": None}
    assert table(a).get((2,)) == {"k": 2, "v": None, "w": "new"}


def test_what_a_dead_server_logged_under_the_old_schema_is_taken_over_under_the_new_one(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    cluster.create(a)
    put(a, 1, 101)
    assert a.run is not None
    a.run._work.stop()  # it does not notice any more
    alter(cluster)
    put(a, 2)
    a.run.lease.abandon()
    cluster.bury(a.uuid)
    cluster.move(b, "t0", "t1")
    assert [value(b, key) for key in (1, 2, 101)] == ["1", "2", "101"]
    assert table(b).get((1,)) == {"k": 1, "v": "1", "w": None}


def test_an_impossible_schema_is_ignored_and_the_last_one_stays_in_force(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = cluster.start("a")
    cluster.create(a)
    put(a, 1)
    assert a.run is not None

    def refuse(table_id: str) -> None:
        raise SchemaError("a column in two groups")

    monkeypatch.setattr(a.run.engine.metadata, "refresh", refuse)
    a.run._here.look_at(cluster.table_id)
    monkeypatch.undo()
    state = a.run.engine.table("t")
    assert "two groups" in str(state.invalid_schema)
    put(a, 2)
    assert [value(a, key) for key in (1, 2)] == ["1", "2"]


def test_lookup_files_of_a_server_are_in_its_own_directory_unless_it_is_told() -> None:
    assert server_settings(Settings(), Path("/own")).lookup_directory == "/own"
    assert server_settings(Settings(lookup_directory="/fast"), Path("/own")).lookup_directory == "/fast"
