"""What people ask of replicas: other numbers of them, and going on with what is left."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ebla.errors import RequestError, Unavailable
from ebla.master.messages import CreateTablet, ReplicateTablet
from ebla.master.writes import ReadBounds
from ebla.metadata.values.replicating import SetWanted, TabletNumber
from tests.master.master_world import MasterWorld
from tests.master.test_replicas import SERVERS, asked, change, followers_of, in_service, leader_of, take_out, the


def test_a_larger_number_is_wanted_at_once_and_learned_by_others() -> None:
    world = in_service("s4", "s5")
    world.run(world.master.set_replicas("users", 5))
    assert (the(world).wanted, the(world).counted) == (5, 3)
    for expected in (4, 5, 5):
        world.round()
        assert len(the(world).replicas) == expected
    assert {server for server, _ in asked(world, CreateTablet)} == {"s4", "s5"}


def test_more_replicas_than_servers_for_a_majority_are_refused() -> None:
    world = in_service()
    refusal = "7 replicas need at least 4 tablet servers, 3 are alive"
    with pytest.raises(Unavailable, match=refusal):  # others may not have been heard yet
        world.run(world.master.set_replicas("users", 7))
    world.clock.advance(world.master.settings.silent_after_seconds + 1)
    for server in SERVERS:
        world.beat(server)
    with pytest.raises(RequestError, match=refusal):  # once and for all
        world.run(world.master.set_replicas("users", 7))
    assert the(world).wanted == 3


def test_more_replicas_than_there_are_servers_are_refused_and_not_for_one_that_is_away() -> None:
    world = in_service("s4")
    world.clock.advance(world.master.settings.silent_after_seconds + 1)
    for server in SERVERS:
        world.beat(server)
    with pytest.raises(
        RequestError, match="5 replicas need as many tablet servers that keep some, and this cluster has 4"
    ):
        world.run(world.master.set_replicas("users", 5))
    assert the(world).wanted == 3
    world.run(world.master.set_replicas("users", 4))  # s4 is silent, and may come back
    assert the(world).wanted == 4


def test_the_leader_of_a_tablet_with_one_replica_is_asked_to_want_more_until_metadata_says_so() -> None:
    world = MasterWorld()
    world.join(*SERVERS)
    world.create(replicas=1)
    world.settle("users", SERVERS)
    world.requests()
    world.run(world.master.set_replicas("users", 3))
    assert not the(world).is_replicated
    world.round()
    ((leader, request),) = asked(world, ReplicateTablet)
    assert (leader, isinstance(request, ReplicateTablet) and request.wanted) == (leader_of(world), 3)
    change(world, SetWanted((TabletNumber(the(world).id, 0),), 3, ((leader, f"log-{leader}"),)))
    assert [one.server for one in the(world).in_sync] == [leader]
    world.round()
    assert len(the(world).replicas) == 2
    assert asked(world, ReplicateTablet) == []


def test_the_children_of_a_tablet_that_was_to_have_more_replicas_are_to_have_them() -> None:
    world = MasterWorld()
    world.join(*SERVERS)
    world.create(replicas=1)
    world.settle("users", SERVERS)
    world.requests()
    world.run(world.master.set_replicas("users", 3))
    metadata = world.master.catalog.table("users").metadata
    child = replace(metadata.tablets[0], id="child")  # as METADATA has it once the split is known to the master
    world.master.catalog.install_metadata(
        replace(metadata, tablets=(child,), txnid="split", sequence=metadata.sequence + 1)
    )
    assert world.master.care.ask_to_replicate() == [(child.leader, "child")]


def silence(world: MasterWorld, *alive: str) -> None:
    """Let time pass in which these servers alone are heard."""
    world.clock.advance(world.master.settings.silent_after_seconds + 1)
    for server in alive:
        world.beat(server)


def left_out(world: MasterWorld) -> tuple[str, list[str]]:
    """Take a follower out of sync; return it, and those that are in sync."""
    left = followers_of(world)[0]
    take_out(world, left)
    return left, [server for server in SERVERS if server != left]


def test_a_tablet_whose_in_sync_replicas_are_gone_is_recovered_only_if_the_loss_is_accepted() -> None:
    world = in_service()
    left = followers_of(world)[0]
    gone = [server for server in SERVERS if server != left]
    tablet = the(world)
    with pytest.raises(RequestError, match="needs no recovery"):
        world.run(world.master.recover_tablet(tablet.id, None, accept_loss=True))
    take_out(world, left)
    silence(world, left)
    for server in gone:
        world.master.lease_over(server)
    world.round()
    assert leader_of(world) == tablet.leader, "nobody that is in sync is there"
    with pytest.raises(RequestError, match=f"can be gone on with from {left}.*is lost.*accept the loss"):
        world.run(world.master.recover_tablet(tablet.id[:2], None, accept_loss=False))
    told = world.run(world.master.recover_tablet(tablet.id, None, accept_loss=True))
    assert f"goes on from {left}" in told
    after = the(world)
    assert (after.leader, after.log, after.epoch) == (left, f"{left}/1", tablet.epoch + 1)
    assert [one.server for one in after.in_sync] == [left]


def test_what_cannot_be_recovered_is_refused() -> None:
    world = in_service()
    with pytest.raises(RequestError, match="0 tablets are called 'nothing'"):
        world.run(world.master.recover_tablet("nothing", None, accept_loss=True))
    silence(world)
    for server in SERVERS:
        world.master.lease_over(server)
    with pytest.raises(RequestError, match=r"no replica of tablet .* is left on a server that is alive"):
        world.run(world.master.recover_tablet(the(world).id, None, accept_loss=True))


def test_a_replica_that_reports_first_to_a_new_master_does_not_depose_leaders_that_report_a_moment_later() -> None:
    world = in_service()
    left, others = left_out(world)
    tablet = the(world)
    world.restart()
    world.beat(left, world.reported("users", left), host=f"host-{left}", full=True)
    with pytest.raises(Unavailable, match=r"may not have reported to it.*wait so long, then try again"):
        world.run(world.master.recover_tablet(tablet.id, None, accept_loss=True))
    for server in others:
        world.beat(server, world.reported("users", server), host=f"host-{server}", full=True)
    with pytest.raises(RequestError, match="needs no recovery"):
        world.run(world.master.recover_tablet(tablet.id, None, accept_loss=True))
    assert the(world) == tablet


def test_servers_that_were_never_heard_in_a_term_are_not_gone_before_their_leases_are_seen_to_be_over() -> None:
    world = in_service()
    left, others = left_out(world)
    world.restart()
    world.beat(left, world.reported("users", left), host=f"host-{left}", full=True)
    silence(world, left)
    with pytest.raises(Unavailable, match="may be alive"):
        world.run(world.master.recover_tablet(the(world).id, None, accept_loss=True))
    for server in others:
        world.master.lease_over(server)
    assert "goes on from" in world.run(world.master.recover_tablet(the(world).id, None, accept_loss=True))


def test_a_tablet_is_not_recovered_while_a_replica_in_sync_holds_its_lease_and_cannot_reach_the_master() -> None:
    world = in_service()
    left, others = left_out(world)
    tablet = the(world)
    silence(world, left)
    for accept_loss in (False, True):
        with pytest.raises(Unavailable, match=r"in sync that may be alive .*mend that, or stop them"):
            world.run(world.master.recover_tablet(tablet.id, None, accept_loss=accept_loss))
    assert {*others} <= {*world.master.watched_leases()}, "followers too: they may have what nobody else has"
    world.master.lease_over(others[0])
    with pytest.raises(Unavailable, match=rf"may be alive \({others[1]}\)"):
        world.run(world.master.recover_tablet(tablet.id, None, accept_loss=True))
    world.master.lease_over(others[1])
    world.master.lease_held(others[0])  # its next run began, and does not reach the master
    with pytest.raises(Unavailable, match=rf"may be alive \({others[0]}\)"):
        world.run(world.master.recover_tablet(tablet.id, None, accept_loss=True))
    assert the(world) == tablet


def test_a_replica_in_sync_that_is_heard_while_a_recovery_is_under_way_ends_it() -> None:
    world = in_service()
    left, others = left_out(world)
    tablet = the(world)
    silence(world, left)
    for server in others:
        world.master.lease_over(server)
    recovery = world.master.recover_tablet(tablet.id, None, accept_loss=True)
    assert isinstance(next(recovery), ReadBounds)
    world.beat(others[0])
    with pytest.raises(Unavailable, match=rf"may be alive \({others[0]}\)"):
        recovery.send({})
    assert the(world) == tablet


def test_a_replica_whose_server_came_back_with_another_log_keeps_nobody_from_recovering() -> None:
    world = in_service()
    left, (wiped, gone) = left_out(world)
    silence(world, left)
    world.beat(wiped, seqno=2, host=f"host-{wiped}", full=True, log_id="another")
    world.master.lease_over(gone)
    told = world.run(world.master.recover_tablet(the(world).id, left, accept_loss=True))
    assert f"goes on from {left}" in told
