"""Tablets with several replicas, as a master sees to them: who leads, who keeps them, and what leaders are asked."""

from __future__ import annotations

import msgspec
import pytest

from ebla.errors import RequestError, Unavailable
from ebla.master.messages import (
    CreateTablet,
    DeleteTablet,
    GiveUpTablet,
    RemovedTablet,
    Request,
    Resigned,
    Stuck,
    TakeOutReplica,
    UpdateTablet,
)
from ebla.master.settings import MasterSettings
from ebla.master.writes import ChangeTable, ChangeTables
from ebla.metadata.values.changes import Change
from ebla.metadata.values.replicating import ChangeInSync
from ebla.metadata.values.table_metadata import Replica, TabletMetadata
from tests.master.master_world import MasterWorld

SERVERS = ("s1", "s2", "s3")


def in_service(*others: str, splits: tuple[bytes, ...] = (), **settings: object) -> MasterWorld:
    """Return a cluster of three servers, and others, with a table of three replicas that all three report."""
    chosen = MasterSettings(silent_after_seconds=1000.0, **settings)  # type: ignore[arg-type]
    world = MasterWorld(settings=chosen)
    world.join(*SERVERS)
    world.create("users", splits, replicas=3)
    world.settle("users", SERVERS)
    world.join(*others)
    world.requests()
    return world


def the(world: MasterWorld) -> TabletMetadata:
    return world.metadata().tablets[0]


def leader_of(world: MasterWorld) -> str:
    leader = the(world).leader
    assert leader is not None
    return leader


def followers_of(world: MasterWorld) -> list[str]:
    return [one.server for one in the(world).replicas if one.server != leader_of(world)]


def change(world: MasterWorld, *changes: Change) -> None:
    """Change METADATA as a leader does, and let the master see it."""
    table_id = world.metadata().table_id
    (answer,) = world.durable.write(ChangeTables((ChangeTable(table_id, changes),)))
    assert not isinstance(answer, Exception), answer
    world.run(world.master.refresh_changed())


def asked(world: MasterWorld, kind: type[Request]) -> list[tuple[str, Request]]:
    return [(server, request) for server, request in world.requests() if isinstance(request, kind)]


def put_in_sync(world: MasterWorld, server: str) -> None:
    tablet = the(world)
    learner = tablet.replica_on(server)
    assert learner is not None
    put = msgspec.structs.replace(learner, log_id=f"log-{server}")
    change(world, ChangeInSync(tablet.id, tablet.epoch, tablet.number, put))


def take_out(world: MasterWorld, server: str) -> None:
    tablet = the(world)
    change(world, ChangeInSync(tablet.id, tablet.epoch, tablet.number, out=tablet.replica_on(server)))


# --- creating ------------------------------------------------------------------------------------


def test_a_table_has_its_replicas_on_different_servers_all_in_sync_and_the_run_of_its_leader() -> None:
    world = in_service()
    tablet = the(world)
    assert {one.server for one in tablet.in_sync} == set(SERVERS)
    assert {one.log_id for one in tablet.replicas} == {f"log-{server}" for server in SERVERS}
    assert (tablet.state, tablet.wanted, tablet.log) == ("running", 3, f"{tablet.leader}/1")


def test_every_server_of_a_new_tablet_is_asked_for_its_replica() -> None:
    world = MasterWorld()
    world.join(*SERVERS)
    world.create(replicas=3)
    world.round()
    requests = asked(world, CreateTablet)
    assert sorted(server for server, _ in requests) == list(SERVERS)
    assert all(isinstance(request, CreateTablet) and request.leader == leader_of(world) for _, request in requests)


def test_a_table_is_refused_when_fewer_servers_are_there_than_a_majority_of_its_replicas() -> None:
    world = MasterWorld()
    world.join("s1")
    with pytest.raises(Unavailable, match="3 replicas need at least 2 tablet servers, 1 is alive"):
        world.create(replicas=3)
    for replicas in (0, -1, 10):
        with pytest.raises(RequestError, match="a whole number from 1 to 9"):
            world.create(replicas=replicas)
    world.join("s2")
    world.create(replicas=3)
    world.round()
    assert len(the(world).in_sync) == 2


def test_a_server_without_a_log_for_replicas_gets_none() -> None:
    world = MasterWorld()
    world.join("s1", "s2")
    world.beat("s3", host="h3", full=True, log_id="")
    world.master.servers.get("s3").registration = msgspec.structs.replace(  # type: ignore[union-attr]
        world.master.servers.get("s3").registration,  # type: ignore[union-attr]
        log_id="",
    )
    world.create(replicas=3)
    world.round()
    assert {one.server for one in the(world).replicas} == {"s1", "s2"}


# --- leaders -------------------------------------------------------------------------------------


def test_when_the_lease_of_a_leader_is_over_one_that_is_in_sync_leads_in_one_change_for_all_tablets() -> None:
    world = in_service(splits=(b"g", b"m"))
    before = {tablet.id: tablet for tablet in world.metadata().tablets}
    gone = leader_of(world)
    world.durable.bounds[f"{gone}/1"] = 77
    led = [tablet.id for tablet in before.values() if tablet.leader == gone]
    changes = world.durable.changes
    world.master.lease_over(gone)
    world.round()
    assert world.durable.changes == changes + 1
    for tablet in world.metadata().tablets:
        if tablet.id in led:
            assert tablet.leader != gone
            assert (tablet.epoch, tablet.txn_floor, tablet.log) == (3, 77, f"{tablet.leader}/1")
            assert gone not in [one.server for one in tablet.in_sync], "enough remain"
        else:
            assert tablet == before[tablet.id]
    told = {(server, request.tablet) for server, request in asked(world, UpdateTablet)}
    assert told == {(server, tablet) for server in SERVERS for tablet in led if server != gone} | {
        (gone, tablet) for tablet in led
    }


def test_who_is_not_in_sync_or_has_another_log_does_not_lead() -> None:
    world = in_service()
    out, other = followers_of(world)
    take_out(world, out)
    world.beat(other, host=f"host-{other}", log_id="a new one", full=True)
    gone = leader_of(world)
    world.master.lease_over(gone)
    world.round()
    assert leader_of(world) == gone, "it waits for one that has everything"
    world.beat(gone, host=f"host-{gone}", seqno=2, full=True)
    world.round()
    assert (leader_of(world), the(world).log) == (gone, f"{gone}/2"), "it is back, in another run"


def test_a_later_run_of_the_leader_ends_its_epochs_and_need_not_wait_for_a_lease() -> None:
    world = in_service()
    leader = leader_of(world)
    world.beat(leader, world.reported("users", leader), host=f"host-{leader}", seqno=2, full=True)
    world.round()
    tablet = the(world)
    assert tablet.epoch == 3
    assert tablet.leader != leader
    assert len(tablet.in_sync) == 3, "its log is what it was"


def test_a_leader_that_resigned_is_followed_by_the_one_it_names_above_its_bound() -> None:
    world = in_service()
    leader, successor = leader_of(world), followers_of(world)[1]
    resigned = Resigned(the(world).id, the(world).epoch, 99, successor)
    world.beat(leader, has_report=False, resigned=(resigned,))
    world.round()
    tablet = the(world)
    assert (tablet.leader, tablet.epoch, tablet.txn_floor) == (successor, 3, 99)
    assert len(tablet.in_sync) == 3
    world.beat(leader, has_report=False, resigned=(resigned,))
    world.round()
    assert the(world).epoch == 3, "of an epoch that is over"


def test_a_leader_that_does_not_serve_in_time_is_asked_to_give_up_if_another_could() -> None:
    world = in_service()
    world.master.lease_over(leader_of(world))
    world.round()
    world.requests()
    world.clock.advance(2)
    world.round()
    assert asked(world, GiveUpTablet) == []
    world.clock.advance(2)
    world.round()
    ((server, request),) = asked(world, GiveUpTablet)
    assert server == leader_of(world)
    assert isinstance(request, GiveUpTablet)
    assert request.epoch == the(world).epoch


@pytest.mark.parametrize("could", [True, False])
def test_a_leader_that_is_stuck_gives_up_only_if_another_could_lead(could: bool) -> None:
    world = in_service()
    if not could:
        for server in followers_of(world):
            world.master.lease_over(server)
    world.beat(leader_of(world), has_report=False, stuck=(Stuck(the(world).id, the(world).epoch),))
    world.round()
    assert len(asked(world, GiveUpTablet)) == could


# --- replicas ------------------------------------------------------------------------------------


def test_what_a_server_kept_that_is_gone_for_minutes_is_learned_by_another() -> None:
    world = in_service("s4", replace_after_seconds=300.0)
    gone = followers_of(world)[0]
    alive = [server for server in (*SERVERS, "s4") if server != gone]
    take_out(world, gone)
    for seconds, is_replaced in ((200, False), (200, True)):
        world.clock.advance(seconds)
        for server in alive:
            world.beat(server, has_report=False)
        world.round()
        assert (the(world).replica_on("s4") is not None) == is_replaced
    assert [server for server, request in asked(world, CreateTablet)] == ["s4"]
    put_in_sync(world, "s4")
    world.beat("s4", world.reported("users", "s4"))
    world.round()
    assert the(world).replica_on(gone) is None
    assert [one.server for one in the(world).leaving] == [gone]


def test_a_replica_that_left_is_deleted_by_its_assignment_and_forgotten_when_its_server_says_so() -> None:
    world = in_service("s4", replace_after_seconds=300.0)
    out = followers_of(world)[0]
    assignment = the(world).replica_on(out)
    assert assignment is not None
    world.master.care.moving[the(world).id] = (out, "s4")
    world.round()
    assert the(world).replica_on("s4") == Replica("s4", the(world).replicas[-1].assignment_id)
    put_in_sync(world, "s4")
    world.beat("s4", world.reported("users", "s4"))
    world.round()
    ((leader, request),) = asked(world, TakeOutReplica)
    assert leader == leader_of(world)
    assert isinstance(request, TakeOutReplica)
    assert request.replica.key == assignment.key
    take_out(world, out)
    world.round()
    assert the(world).leaving == (Replica(*assignment.key),)
    ((server, delete),) = asked(world, DeleteTablet)
    assert (server, delete) == (out, DeleteTablet(the(world).id, assignment.assignment_id))
    world.round()
    assert the(world).leaving, "its server has not said that it is gone"
    world.beat(out, removed=[RemovedTablet(the(world).id, assignment.assignment_id)])
    world.round()
    assert the(world).leaving == ()
    assert {one.server for one in the(world).in_sync} == {leader_of(world), "s4", *followers_of(world)}


def test_leaders_are_spread_over_servers_and_moved_back_by_asking_them() -> None:
    world = in_service(splits=(b"c", b"g", b"m", b"q", b"t"))
    for server in SERVERS[1:]:
        world.master.lease_over(server)
    world.round()
    for server in SERVERS:
        world.beat(server, world.reported("users", server))
    assert {tablet.leader for tablet in world.metadata().tablets} == {"s1"}
    world.run(world.master.refresh([world.metadata().table_id]))
    for _ in range(3):
        for tablet in world.metadata().tablets:
            for replica in tablet.replicas:
                if not replica.is_in_sync:
                    now = world.metadata().by_id(tablet.id)
                    assert now is not None
                    put = Replica(*replica.key, f"log-{replica.server}")
                    change(world, ChangeInSync(now.id, now.epoch, now.number, put))
    world.round()
    successors = [request.successor for _, request in asked(world, GiveUpTablet) if isinstance(request, GiveUpTablet)]
    assert sorted(filter(None, successors)) == ["s2", "s2", "s3", "s3"]


def test_a_tablet_that_is_moved_by_hand_is_led_by_the_replica_there_or_learned_first() -> None:
    world = in_service("s4")
    tablet, leader, follower = the(world), leader_of(world), followers_of(world)[0]
    world.run(world.master.move_tablet("users", tablet.id, follower))
    world.round()
    ((asked_leader, request),) = asked(world, GiveUpTablet)
    assert (asked_leader, isinstance(request, GiveUpTablet) and request.successor) == (leader, follower)
    world.beat(leader, has_report=False, resigned=(Resigned(tablet.id, tablet.epoch, 9, follower),))
    world.round()
    for server in SERVERS:
        world.beat(server, world.reported("users", server))
    world.round()
    assert (leader_of(world), len(the(world).replicas), world.master.care.moving) == (follower, 3, {})
    world.run(world.master.move_tablet("users", tablet.id, "s4"))
    world.round()
    assert the(world).replica_on("s4") is not None
    put_in_sync(world, "s4")
    world.beat("s4", world.reported("users", "s4"))
    world.round()
    ((_, request),) = asked(world, GiveUpTablet)
    assert isinstance(request, GiveUpTablet)
    assert request.successor == "s4"
    world.beat(follower, has_report=False, resigned=(Resigned(tablet.id, the(world).epoch, 10, "s4"),))
    world.round()
    for server in (*SERVERS, "s4"):
        world.beat(server, world.reported("users", server))
    world.round()
    assert leader_of(world) == "s4"
    ((_, out),) = asked(world, TakeOutReplica)
    assert isinstance(out, TakeOutReplica)
    assert out.replica.server == follower, "the one that it was moved from"
