"""Whose tablets are led by others, when, and that nothing is lost on the way."""

from __future__ import annotations

from ebla.master.messages import CreateTablet, DeleteTablet, HandOverTablet, ReportedTablet, UpdateTablet
from ebla.master.settings import MasterSettings
from ebla.master.writes import ChangeTable, ChangeTables
from ebla.metadata.values.changes import Change, TakeLog
from ebla.metadata.values.handing_over import TakeOver, VacateTablets
from ebla.metadata.values.recutting import BeginSplit
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import LogEnd, TabletMetadata
from ebla.model.schema_change import Alteration
from tests.master.master_world import MasterWorld


def in_service(*others: str, **settings: object) -> MasterWorld:
    """Return a cluster with a table of one tablet, led by s1, and other servers."""
    world = MasterWorld(settings=MasterSettings(is_log_shared=True, **settings))  # type: ignore[arg-type]
    world.create()
    world.join("s1")
    world.settle()
    change(world, TakeLog((at(world),), "s1", "s1/1"))
    world.join(*others)
    world.requests()
    return world


def tablet_of(world: MasterWorld) -> TabletMetadata:
    (tablet,) = world.metadata().tablets
    return tablet


def at(world: MasterWorld) -> TabletAt:
    return TabletAt(tablet_of(world).id, tablet_of(world).epoch)


def change(world: MasterWorld, *changes: Change) -> None:
    """Change METADATA as a tablet server does, and let the master see it."""
    table_id = world.metadata().table_id
    (answer,) = world.durable.write(ChangeTables((ChangeTable(table_id, changes),)))
    assert not isinstance(answer, Exception), answer
    world.run(world.master.refresh([table_id]))


def asked(world: MasterWorld) -> list[tuple[str, type]]:
    return [(server, type(request)) for server, request in world.requests()]


def take_over(world: MasterWorld, log: str | None) -> None:
    tablet = tablet_of(world)
    assert tablet.target is not None
    end = None if log is None else LogEnd(log, "1", 0)
    server, assignment_id = tablet.target.server, tablet.target.assignment_id
    change(world, TakeOver(at(world), server, assignment_id, f"{server}/1", end))


def report(world: MasterWorld, state: str = "running") -> ReportedTablet:
    (replica,) = world.reported("users", "s1", state)
    return replica


# --- a lease that is over ------------------------------------------------------------------------


def test_a_tablet_is_led_by_another_seconds_after_its_leader_fell_silent() -> None:
    world = in_service("s2")
    world.master.lease_over("s1")
    world.round()
    tablet = tablet_of(world)
    assert (tablet.leader, tablet.epoch) == (None, 3), "the old leader changes nothing any more"
    assert tablet.target is not None
    assert tablet.target.server == "s2"
    (request,) = [request for server, request in world.requests() if server == "s2"]
    assert isinstance(request, CreateTablet)
    assert request.leader is None, "it is to be taken over"
    take_over(world, "s1/1")
    assert (tablet_of(world).leader, tablet_of(world).epoch) == ("s2", 4)


def test_silence_alone_moves_nothing_for_minutes() -> None:
    world = in_service("s2")
    world.clock.advance(120)
    world.beat("s2", has_report=False)
    world.round()
    assert tablet_of(world).leader == "s1"
    assert world.master.plan_balance() == []


def test_a_lease_is_none_of_the_times_that_people_set() -> None:
    settings = MasterSettings()
    assert settings.silent_after_seconds < settings.assignment_timeout_seconds < settings.replace_after_seconds


def test_a_splitting_tablet_is_led_by_another_as_well() -> None:
    world = in_service("s2")
    change(world, BeginSplit(at(world), b"m", ("left", "right")))
    world.master.lease_over("s1")
    world.round()
    tablet = tablet_of(world)
    assert (tablet.leader, tablet.state, tablet.split) == (None, "running", None)
    take_over(world, "s1/1")
    assert tablet_of(world).leader == "s2"


def test_without_a_shared_log_the_tablet_waits_for_its_server() -> None:
    world = MasterWorld(settings=MasterSettings(is_log_shared=False))
    world.create()
    world.join("s1", "s2")
    world.settle("users", ["s1", "s2"])
    leader = tablet_of(world).leader
    assert leader is not None
    change(world, TakeLog((at(world),), leader, f"{leader}/1"))
    world.master.lease_over(leader)
    world.round()
    assert (tablet_of(world).leader, tablet_of(world).target) == (leader, None)
    world.beat(leader, has_report=False)  # it is back, with another lease
    world.round()
    tablet = tablet_of(world)
    assert tablet.leader is None
    assert tablet.target == tablet.replicas[0], "itself, at a new epoch"


def test_a_server_that_returns_is_not_given_back_what_it_lost_at_the_same_epoch() -> None:
    world = in_service("s2")
    world.master.lease_over("s1")
    world.beat("s1", [report(world)])
    world.round()
    assert (tablet_of(world).leader, tablet_of(world).epoch) == (None, 3)


def test_a_target_that_does_not_take_over_gives_way_to_another() -> None:
    world = in_service("s2", "s3", assignment_timeout_seconds=5.0, silent_after_seconds=100.0)
    world.master.lease_over("s1")
    world.round()
    first = tablet_of(world).target
    world.clock.advance(6)
    world.round()
    second = tablet_of(world).target
    assert first is not None
    assert second is not None
    assert {first.server, second.server} == {"s2", "s3"}


def test_what_was_being_made_on_a_server_that_is_gone_is_made_elsewhere_at_once() -> None:
    world = MasterWorld()
    world.create()
    world.join("s1")
    world.round()
    world.join("s2")
    world.master.lease_over("s1")
    world.round()
    assert (tablet_of(world).leader, tablet_of(world).state) == ("s2", "creating")


# --- moves ---------------------------------------------------------------------------------------


def test_a_move_asks_the_leader_to_resign_before_the_target_leads() -> None:
    world = MasterWorld(settings=MasterSettings(is_log_shared=True))
    world.create("users", [b"g", b"m"])
    world.join("s1")
    world.settle()
    world.join("s2")
    world.requests()
    world.round()
    (offered,) = [tablet for tablet in world.metadata().tablets if tablet.target is not None]
    assert (offered.leader, offered.epoch) == ("s1", 2)
    ((server, request),) = world.requests()
    assert (server, request) == (
        "s1",
        HandOverTablet(offered.id, offered.replicas[0].assignment_id, 2, offered.target),  # type: ignore[arg-type]
    )
    change(world, VacateTablets((TabletAt(offered.id, 2),), "s1", is_flushed=True))
    assert ("s2", CreateTablet) in asked(world)


def test_a_move_that_a_former_master_began_goes_on_when_the_leader_reports_to_the_next() -> None:
    world = MasterWorld(settings=MasterSettings(is_log_shared=True))
    world.create("users", [b"g", b"m"])
    world.join("s1")
    world.settle()
    world.join("s2")
    world.round()
    (offered,) = [tablet for tablet in world.metadata().tablets if tablet.target is not None]
    world.restart()
    world.join("s2")
    world.beat("s1", world.reported("users", "s1"), host="host-s1", full=True)
    assert ("s1", HandOverTablet) in asked(world)
    assert world.metadata().by_id(offered.id) == offered


def test_a_replica_is_deleted_only_after_the_new_leader_said_that_it_serves() -> None:
    world = in_service("s2")
    old = report(world)
    world.master.lease_over("s1")
    world.round()
    world.beat("s1", [old])
    assert ("s1", DeleteTablet) not in asked(world)
    take_over(world, "s1/1")
    world.beat("s1", [old])
    world.round()
    assert ("s1", DeleteTablet) not in asked(world), "METADATA alone is not enough"
    world.beat("s2", world.reported("users", "s2"))
    world.round()
    deletes = [request for server, request in world.requests() if server == "s1" and isinstance(request, DeleteTablet)]
    assert [request.assignment_id for request in deletes] == [old.assignment_id]


# --- failed --------------------------------------------------------------------------------------


def test_a_replica_that_reports_itself_failed_is_given_to_another() -> None:
    world = in_service("s2")
    world.beat("s1", [report(world, "failed")])
    world.round()
    tablet = tablet_of(world)
    assert tablet.leader == "s1", "it has a lease: it resigns itself"
    assert tablet.target is not None
    assert tablet.target.server == "s2"
    assert ("s1", HandOverTablet) in asked(world)


def test_a_failed_replica_that_reports_itself_well_again_is_left_alone() -> None:
    world = in_service("s2")
    world.beat("s1", [report(world, "failed")])
    world.beat("s1", [report(world)])
    world.round()
    assert tablet_of(world).target is None


def test_a_new_tablet_that_its_leader_cannot_make_is_replaced_at_once() -> None:
    world = MasterWorld()
    world.create()
    world.join("s1", "s2")
    world.round()
    before = tablet_of(world)
    assert before.leader is not None
    world.beat(before.leader, world.reported("users", before.leader, "failed"))
    world.round()
    assert tablet_of(world).id != before.id


# --- alter ---------------------------------------------------------------------------------------


def test_an_alteration_keeps_the_former_schema_until_every_leader_reports_the_new_one() -> None:
    world = in_service()
    world.run(world.master.alter_table("users", Alteration(add_columns={"more": "int32"})))
    assert [schema.version for schema in world.metadata().former] == [1]
    (old,) = world.reported("users", "s1", schema_version=1)
    world.beat("s1", [old])
    world.round()
    assert world.metadata().former, "its leader still flushes under the former version"
    world.beat("s1", [report(world)])
    world.round()
    assert world.metadata().former == ()


def test_followers_are_told_of_a_new_leader() -> None:
    world = MasterWorld(settings=MasterSettings(replication=3))
    world.create("users")
    world.join("s1", "s2", "s3")
    world.settle("users", ["s1", "s2", "s3"])
    tablet = tablet_of(world)
    world.requests()
    assert tablet.leader is not None
    alive = [server for server in ("s1", "s2", "s3") if server != tablet.leader]
    world.master.lease_over(tablet.leader)
    world.round()
    after = tablet_of(world)
    assert after.leader in alive
    assert after.epoch == tablet.epoch + 1
    told = [(server, kind) for server, kind in asked(world) if server in alive]
    assert told == [(server, UpdateTablet) for server in alive]
