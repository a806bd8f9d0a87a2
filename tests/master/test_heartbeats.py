"""Heartbeats, message in and message out: who is heard, what a report means, and what is never done because of one."""

from __future__ import annotations

import msgspec
import pytest

from ebla.errors import UnknownColumn, UnknownTable
from ebla.master.messages import (
    AlterTablet,
    CreateTablet,
    DeleteTablet,
    FullChunk,
    Heartbeat,
    HeartbeatReply,
    RemovedTablet,
    ReportedTablet,
    Requests,
    UpdateTablet,
)
from ebla.master.settings import MasterSettings
from ebla.master.writes import ChangeTable, ChangeTables
from ebla.metadata.values.recutting import BeginSplit, FinishSplit
from ebla.metadata.values.requirements import TabletAt
from ebla.model.schema import decode_hook, encode_hook
from ebla.model.schema_change import Alteration
from tests.master.master_world import MasterWorld, moved_to


def in_service(splits: tuple[bytes, ...] = (), **settings: object) -> MasterWorld:
    """A table whose tablets run on s1."""
    world = MasterWorld(settings=MasterSettings(**settings))  # type: ignore[arg-type]
    world.create("users", splits)
    world.join("s1")
    world.round()
    world.requests()
    world.beat("s1", world.reported("users", "s1"))
    assert {tablet.state for tablet in world.metadata().tablets} == {"running"}
    return world


def other(tablet: str, table: str = "t9", epoch: int = 1) -> ReportedTablet:
    return ReportedTablet(tablet, table, "x1", "running", 1, epoch)


# --- who is heard --------------------------------------------------------------------------------


def test_server_that_is_not_registered_is_told_to_and_its_report_does_not_count() -> None:
    world = in_service()
    reply = world.beat("s2", [other("u1")])
    assert reply == HeartbeatReply(1, needs_register=True)
    assert world.master.servers.get("s2") is None


def test_registered_server_is_asked_for_a_full_report_until_one_is_complete() -> None:
    world = MasterWorld()
    assert world.beat("s1", host="h1", has_report=False).needs_full_report
    assert world.beat("s1", has_report=False).needs_full_report
    assert world.beat("s1", [other("u1")]).needs_full_report, "an incremental report is not enough"
    reply = world.beat("s1", full=True)
    assert not reply.needs_full_report
    assert reply.acknowledged is not None
    assert not world.beat("s1", has_report=False).needs_full_report


def test_report_to_another_cluster_is_refused_before_anything_is_looked_at() -> None:
    world = in_service()
    world.run(world.master.delete_table("users"))
    gone = world.master.catalog.deleted
    reply = world.beat("s1", [other("u1", table=next(iter(gone)))], seqno=9, host="h7", cluster="another")
    assert reply.refusal is not None
    assert reply.refusal.code == "wrong_cluster"
    server = world.master.servers.get("s1")
    assert server is not None
    assert server.instance.seqno == 1
    assert not server.strays


def test_older_run_of_a_server_is_refused() -> None:
    world = MasterWorld()
    world.join("s1", seqno=4)
    for host in (None, "h1"):
        reply = world.beat("s1", seqno=3, host=host, full=True)
        assert reply.refusal is not None
        assert reply.refusal.code == "old_instance"
    assert not world.beat("s1", seqno=4, has_report=False).needs_register


def test_newer_run_registers_again_and_reports_everything_again() -> None:
    world = in_service()
    assert world.beat("s1", seqno=2).needs_register
    assert world.beat("s1", seqno=2, host="h1", has_report=False).needs_full_report
    server = world.master.servers.get("s1")
    assert server is not None
    assert not server.reported
    world.beat("s1", seqno=2, full=True)
    (request,) = world.requests()
    assert isinstance(request[1], CreateTablet), "what it lost over the restart it is asked for again"


def test_late_report_changes_nothing() -> None:
    world = in_service()
    stale = world.reported("users", "s1", epoch=1)
    reply = world.beat("s1", stale, sequence=1)
    assert reply.acknowledged is None
    assert world.requests() == []


def test_report_of_too_many_tablets_is_refused() -> None:
    world = in_service(report_tablets_max=2)
    reply = world.beat("s1", [other(f"u{number}") for number in range(3)])
    assert reply.refusal is not None
    assert reply.refusal.code == "invalid"


def test_new_term_knows_no_server_and_asks_all_for_full_reports() -> None:
    world = in_service()
    world.restart()
    assert world.beat("s1", has_report=False).needs_register
    assert world.beat("s1", host="h1", has_report=False).needs_full_report


# --- chunks --------------------------------------------------------------------------------------


def test_full_report_counts_when_all_of_its_chunks_came_in_order() -> None:
    world = in_service((b"g", b"p"))
    reported = world.reported("users", "s1")
    world.restart()
    assert world.beat("s1", reported[:1], host="h1", chunk=FullChunk(5, 0, False)).needs_full_report
    again = world.beat("s1", reported[:1], chunk=FullChunk(5, 0, False))
    assert again.acknowledged is not None, "its acknowledgement may have been lost"
    assert world.beat("s1", reported[1:2], chunk=FullChunk(5, 1, False)).acknowledged is not None
    assert world.beat("s1", reported[1:2], chunk=FullChunk(5, 1, False)).acknowledged is not None
    assert not world.beat("s1", reported[2:], chunk=FullChunk(5, 2, True)).needs_full_report
    assert world.requests() == []


@pytest.mark.parametrize("chunk", [FullChunk(5, 2, True), FullChunk(6, 1, True)], ids=["gap", "another report"])
def test_chunk_that_does_not_follow_begins_the_report_again(chunk: FullChunk) -> None:
    world = in_service((b"g", b"p"))
    reported = world.reported("users", "s1")
    world.restart()
    world.beat("s1", reported[:1], host="h1", chunk=FullChunk(5, 0, False))
    reply = world.beat("s1", reported[2:], chunk=chunk)
    assert reply.needs_full_report
    assert reply.acknowledged is None
    assert not world.master.servers.get("s1").is_whole  # type: ignore[union-attr]


def test_rest_of_a_full_report_begun_with_another_master_is_not_taken_as_complete() -> None:
    world = in_service((b"g", b"p"))
    reported = world.reported("users", "s1")
    world.restart()
    reply = world.beat("s1", reported[2:], host="h1", chunk=FullChunk(5, 2, True))
    assert reply.needs_full_report
    assert world.requests() == [], "nobody may think that the first tablets are gone"


# --- what a report means -------------------------------------------------------------------------


def test_tablet_runs_when_its_leader_reports_it_and_not_before() -> None:
    world = MasterWorld(settings=MasterSettings(replication=2))
    world.create()
    world.join("s1", "s2")
    world.round()
    (tablet,) = world.metadata().tablets
    follower = next(server for server in ("s1", "s2") if server != tablet.leader)
    world.beat(follower, world.reported("users", follower))
    assert world.metadata().tablets[0].state == "creating"
    assert tablet.leader is not None
    world.beat(tablet.leader, world.reported("users", tablet.leader, state="creating"))
    assert world.metadata().tablets[0].state == "creating"
    world.beat(tablet.leader, world.reported("users", tablet.leader))
    assert world.metadata().tablets[0].state == "running"


def test_report_of_many_tablets_is_one_write_per_table() -> None:
    world = MasterWorld()
    for name in ("a", "b"):
        world.create(name, [b"g", b"p", b"t"])
    world.join("s1")
    world.round()
    before = world.durable.changes
    world.beat("s1", [*world.reported("a", "s1"), *world.reported("b", "s1")])
    assert world.durable.changes == before + 2
    world.beat("s1", [*world.reported("a", "s1"), *world.reported("b", "s1")])
    assert world.durable.changes == before + 2, "what is as it should be is not written"


def test_tablet_of_an_older_assignment_is_kept_and_the_new_one_asked_for() -> None:
    """Nobody else has it: what its leader has by an older assignment may be all there is."""
    world = in_service()
    world.beat("s1", world.reported("users", "s1", assignment_id="old", epoch=1))
    ((server, request),) = world.requests()
    assert (server, type(request)) == ("s1", CreateTablet)
    assert request.assignment_id != "old"


def test_replica_on_a_server_that_is_not_to_have_it_is_deleted() -> None:
    world = in_service()
    world.join("s2")
    world.beat("s2", world.reported("users", "s1", epoch=1))
    assert [(server, type(request)) for server, request in world.requests()] == [("s2", DeleteTablet)]


def test_unknown_tablet_is_left_alone_and_shown() -> None:
    world = in_service()
    world.beat("s1", [other("u1"), other("u2", table=world.metadata().table_id)])
    assert world.requests() == []
    server = world.master.servers.get("s1")
    assert server is not None
    assert [*server.unknown] == ["u1", "u2"]


def test_tablet_of_a_purged_table_is_deleted_also_by_the_next_master() -> None:
    world = in_service(retention_seconds=0.0)
    reported = world.reported("users", "s1")
    world.run(world.master.delete_table("users"))
    world.round()
    world.beat("s1", removed=[RemovedTablet(one.tablet, one.assignment_id) for one in reported])
    world.round()
    assert not world.master.catalog.tables
    for _ in range(2):
        world.join("s9")
        world.beat("s9", reported)
        assert [type(request) for _, request in world.requests()] == [DeleteTablet]
        world.restart()


def test_tablets_of_a_split_that_the_master_has_not_heard_of_are_looked_up() -> None:
    world = in_service()
    (parent,) = world.metadata().tablets
    at = TabletAt(parent.id, parent.epoch)
    change = ChangeTable(world.metadata().table_id, (BeginSplit(at, b"m", ("c1", "c2")), FinishSplit(at, 10, 0)))
    world.durable.write(ChangeTables((change,)))
    world.beat(
        "s1",
        [
            ReportedTablet(child, change.table_id, parent.replicas[0].assignment_id, "running", 1, parent.epoch)
            for child in ("c1", "c2")
        ],
    )
    assert [tablet.id for tablet in world.metadata().tablets] == ["c1", "c2"]
    assert world.requests() == []
    world.beat("s1", [other(parent.id, table=change.table_id)])
    assert [type(request) for _, request in world.requests()] == [DeleteTablet], "the parent is known to be gone"


def test_epoch_that_is_news_makes_the_master_look_again_and_delete_nothing() -> None:
    """Another master has moved the tablet; the one that does not know it yet must not undo that."""
    world = in_service()
    world.join("s2")
    (tablet,) = world.metadata().tablets
    changes = moved_to("s2", tablet)
    world.durable.write(ChangeTables((ChangeTable(world.metadata().table_id, changes),)))
    world.beat("s2", [ReportedTablet(tablet.id, world.metadata().table_id, "new", "running", 1, tablet.epoch + 2)])
    assert world.metadata().tablets[0].leader == "s2"
    ((server, request),) = world.requests()
    assert (server, request.assignment_id) == ("s1", tablet.replicas[0].assignment_id), "only the old one goes"


def test_replica_of_an_older_epoch_is_told_the_new_one() -> None:
    world = in_service()
    world.beat("s1", world.reported("users", "s1", epoch=1))
    ((_, request),) = world.requests()
    assert isinstance(request, UpdateTablet)
    assert request.epoch == 2
    world.beat("s1", world.reported("users", "s1"))
    world.clock.advance(100)
    assert world.requests() == []


def test_deleted_table_is_stopped_and_then_deleted_and_starts_again_if_it_comes_back() -> None:
    world = in_service(retention_seconds=10.0)
    reported = world.reported("users", "s1")
    world.run(world.master.delete_table("users"))
    ((_, request),) = world.requests()
    assert isinstance(request, UpdateTablet)
    assert request.is_stopped
    stopped = [msgspec.structs.replace(one, state="stopped") for one in reported]
    world.beat("s1", stopped)
    world.clock.advance(5)
    assert world.requests() == []
    world.run(world.master.undelete_table("users"))
    ((_, request),) = world.requests()
    assert isinstance(request, UpdateTablet)
    assert not request.is_stopped
    world.beat("s1", reported)
    world.run(world.master.delete_table("users"))
    world.clock.advance(11)
    world.beat("s1", stopped)
    assert world.requests() == []  # not on the strength of a clock alone
    world.round()
    assert [type(request) for _, request in world.requests()] == [DeleteTablet]


def test_full_report_without_a_replica_makes_the_master_ask_for_it() -> None:
    world = in_service((b"m",))
    reported = world.reported("users", "s1")
    world.beat("s1", reported[1:], full=True)
    ((_, request),) = world.requests()
    assert isinstance(request, CreateTablet)
    assert request.tablet == reported[0].tablet


def test_replica_that_was_removed_by_mistake_is_asked_for_again() -> None:
    world = in_service()
    (one,) = world.reported("users", "s1")
    world.beat("s1", removed=[RemovedTablet(one.tablet, "another assignment")])
    assert world.requests() == []
    world.beat("s1", removed=[RemovedTablet(one.tablet, one.assignment_id)])
    assert [type(request) for _, request in world.requests()] == [CreateTablet]


# --- alter ---------------------------------------------------------------------------------------


def _add_city(world: MasterWorld) -> None:
    world.run(world.master.alter_table("users", Alteration(add_columns={"city": "string"})))


def test_altered_table_has_its_servers_told_until_they_report_the_version() -> None:
    world = in_service((b"m",))
    before = world.reported("users", "s1")
    _add_city(world)
    asked = world.requests()
    assert [type(request) for _, request in asked] == [AlterTablet, AlterTablet]
    assert {request.schema.version for _, request in asked if isinstance(request, AlterTablet)} == {2}
    world.beat("s1", before)  # it has not done it yet
    world.clock.advance(100)
    world.beat("s1", has_report=False)
    assert len(world.requests()) == 2
    world.beat("s1", world.reported("users", "s1"))
    world.clock.advance(100)
    world.beat("s1", has_report=False)
    assert world.requests() == []


def test_server_that_was_away_during_an_alteration_is_told_when_it_reports_the_old_version() -> None:
    world = in_service()
    before = world.reported("users", "s1")
    _add_city(world)
    world.restart()
    world.beat("s1", before, seqno=2, host="h1", full=True)
    assert [type(request) for _, request in world.requests()] == [AlterTablet]


def test_alteration_starts_again_on_what_a_split_left() -> None:
    world = in_service()
    (parent,) = world.metadata().tablets
    at = TabletAt(parent.id, parent.epoch)
    split = ChangeTable(world.metadata().table_id, (BeginSplit(at, b"m", ("c1", "c2")), FinishSplit(at, 10, 0)))
    operation = world.master.alter_table("users", Alteration(add_columns={"city": "string"}))
    write = next(operation)
    world.durable.write(ChangeTables((split,)))
    read = operation.send(world.durable.write(write))  # refused: look again
    again = operation.send(world.durable.write(read))
    with pytest.raises(StopIteration):
        operation.send(world.durable.write(again))
    assert world.metadata().schema.version == 2
    assert [tablet.id for tablet in world.metadata().tablets] == ["c1", "c2"]


def test_alteration_that_cannot_be_is_refused_and_lets_the_table_go() -> None:
    world = in_service()
    with pytest.raises(UnknownColumn):
        world.run(world.master.alter_table("users", Alteration(drop_columns=["nothing"])))
    with pytest.raises(UnknownTable):
        world.run(world.master.alter_table("nobody", Alteration(drop_columns=["name"])))
    _add_city(world)


# --- the wire ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Heartbeat, HeartbeatReply, Requests])
def test_messages_go_over_the_wire_and_back(kind: type) -> None:
    world = in_service()
    (tablet,) = world.metadata().tablets
    world.beat("s1", full=True)
    (requests,) = world.master.requests()
    found = {
        Requests: requests,
        HeartbeatReply: world.beat("s1", cluster="another"),
        Heartbeat: Heartbeat("c", world.master.servers.get("s1").instance),  # type: ignore[union-attr]
    }[kind]
    raw = msgspec.msgpack.encode(found, enc_hook=encode_hook)
    assert msgspec.msgpack.decode(raw, type=kind, dec_hook=decode_hook) == found
    assert tablet.id in str(requests)
