"""Changes of who keeps a tablet that has several replicas, in METADATA."""

from __future__ import annotations

import msgspec
import pytest

from ebla.metadata.values.assigning import Assignment, AssignTablets, StartTablets
from ebla.metadata.values.changes import Flush, FlushedTablet, TakeLog, update
from ebla.metadata.values.handing_over import Offer, OfferTablets, TakeOver, VacateTablets
from ebla.metadata.values.recutting import BeginSplit, FinishSplit
from ebla.metadata.values.replicating import (
    AddReplica,
    ChangeInSync,
    ChangeLeaders,
    ForgetReplica,
    NewLeader,
    RecoverTablet,
    RemoveReplica,
    SetWanted,
    TabletNumber,
)
from ebla.metadata.values.requirements import RequirementFailed, TabletAt
from ebla.metadata.values.table_metadata import Replica, TableMetadata, TabletMetadata, initial_metadata
from ebla.metadata.values.tablet_metadata import InvalidMetadata, check_tablet
from tests.metadata.metadata_world import SCHEMA

GROUP = SCHEMA.groups[0].id
SERVERS = ("s1", "s2", "s3")


def replica(server: str, log_id: str | None = None, *, is_in_sync: bool = True) -> Replica:
    return Replica(server, f"a-{server}", log_id or f"log-{server}", is_in_sync)


def table_of(tablets: str, state: str = "running") -> TableMetadata:
    return initial_metadata("t1", SCHEMA, [*tablets], [b"m"][: len(tablets) - 1], state=state)


def created(tablets: str = "t", servers: tuple[str, ...] = SERVERS, wanted: int = 3) -> TableMetadata:
    """A table of tablets with several replicas, all of them running, led by the first server."""
    prepared = table_of(tablets, "preparing")
    prepared = prepared.with_tablets(
        [msgspec.structs.replace(one, wanted=wanted, counted=wanted) for one in prepared.tablets]
    )
    assignments = tuple(
        Assignment(one.id, one.epoch, servers[0], tuple(map(replica, servers)), f"{servers[0]}/1")
        for one in prepared.tablets
    )
    assigned = update(prepared, [AssignTablets(assignments)])
    return update(assigned, [StartTablets(tuple(TabletAt(one.id, one.epoch) for one in assigned.tablets))])


def the(metadata: TableMetadata, tablet: str = "t") -> TabletMetadata:
    found = metadata.by_id(tablet)
    assert found is not None
    check_tablet(found, SCHEMA)
    return found


def led_by(metadata: TableMetadata, server: str, *, floor: int = 0, is_old_out: bool = False) -> ChangeLeaders:
    return ChangeLeaders((NewLeader("t", the(metadata).number, replica(server), f"{server}/7", floor, is_old_out),))


def test_all_servers_of_a_new_tablet_are_in_sync_and_the_run_of_its_leader_is_on_record() -> None:
    tablet = the(created())
    assert [one.server for one in tablet.in_sync] == list(SERVERS)
    assert (tablet.state, tablet.epoch, tablet.number, tablet.leader, tablet.log) == ("running", 2, 1, "s1", "s1/1")
    assert (tablet.wanted, tablet.counted, tablet.needed) == (3, 3, 2)
    assert tablet.is_replicated


def test_a_majority_of_servers_is_enough_to_make_a_tablet_and_fewer_are_not() -> None:
    tablet = the(created(servers=("s1", "s2")))
    assert (tablet.counted, tablet.needed, len(tablet.in_sync)) == (3, 2, 2)
    with pytest.raises(RequirementFailed) as caught:
        created(servers=("s1",))
    assert caught.value.code == "too_few"


def test_a_new_leader_has_the_next_epoch_its_run_and_a_floor_that_never_falls() -> None:
    metadata = update(created(), [led_by(created(), "s2", floor=100)])
    tablet = the(metadata)
    assert (tablet.leader, tablet.log, tablet.epoch, tablet.number, tablet.txn_floor) == ("s2", "s2/7", 3, 2, 100)
    assert the(update(metadata, [led_by(metadata, "s3", floor=50)])).txn_floor == 100


def test_the_leader_before_leaves_the_set_only_if_enough_remain() -> None:
    metadata = update(created(), [led_by(created(), "s2", is_old_out=True)])
    assert [one.server for one in the(metadata).in_sync] == ["s2", "s3"]
    metadata = update(metadata, [led_by(metadata, "s3", is_old_out=True)])
    assert [one.server for one in the(metadata).in_sync] == ["s2", "s3"]


@pytest.mark.parametrize(
    "leader",
    [replica("s4"), replica("s2", "another log"), Replica("s2", "another assignment", "log-s2", True)],
    ids=["stranger", "other log", "other assignment"],
)
def test_who_is_not_in_sync_in_that_log_does_not_lead_and_the_number_grows_all_the_same(leader: Replica) -> None:
    metadata = created()
    changed = the(update(metadata, [ChangeLeaders((NewLeader("t", 1, leader, "s2/7", 0),))]))
    assert (changed.leader, changed.epoch, changed.number) == ("s1", 2, 2)


def test_tablets_that_no_longer_fit_are_left_out_and_the_others_get_their_leaders() -> None:
    metadata = created("tu")
    leaders = tuple(NewLeader(one, 1, replica("s2"), "s2/7", 0) for one in "tu")
    metadata = update(metadata, [AddReplica("t", 1, Replica("s4", "a-s4"))])
    metadata = update(metadata, [ChangeLeaders(leaders)])
    assert [one.leader for one in metadata.tablets] == ["s1", "s2"]
    with pytest.raises(RequirementFailed) as caught:
        update(metadata, [ChangeLeaders(leaders)])
    assert caught.value.code == "other_number"


def test_a_leader_takes_out_and_puts_in_but_never_goes_below_a_majority() -> None:
    metadata = created()
    metadata = update(metadata, [ChangeInSync("t", 2, 1, out=Replica("s3", "a-s3"))])
    assert [one.server for one in the(metadata).in_sync] == ["s1", "s2"]
    metadata = update(metadata, [ChangeInSync("t", 2, 2, out=Replica("s2", "a-s2"))])
    assert [one.server for one in the(metadata).in_sync] == ["s1", "s2"]
    assert the(metadata).number == 3
    put = replica("s3", "a new log")
    metadata = update(metadata, [ChangeInSync("t", 2, 3, put=put, out=Replica("s2", "a-s2"))])
    assert the(metadata).in_sync == (replica("s1"), put)


@pytest.mark.parametrize(("epoch", "number", "code"), [(2, 0, "other_number"), (1, 1, "stale_epoch")])
def test_a_change_of_the_set_that_was_decided_on_something_else_is_refused(epoch: int, number: int, code: str) -> None:
    with pytest.raises(RequirementFailed) as caught:
        update(created(), [ChangeInSync("t", epoch, number, out=Replica("s3", "a-s3"))])
    assert caught.value.code == code


def test_a_replica_comes_as_a_learner_and_one_that_is_not_in_sync_leaves_until_it_is_deleted() -> None:
    metadata = update(created(), [AddReplica("t", 1, Replica("s4", "a-s4"))])
    assert the(metadata).replica_on("s4") == Replica("s4", "a-s4")
    metadata = update(metadata, [RemoveReplica("t", 2, Replica("s2", "a-s2"))])
    assert the(metadata).replica_on("s2") == replica("s2"), "it is in sync"
    metadata = update(metadata, [RemoveReplica("t", 3, Replica("s4", "a-s4"))])
    assert the(metadata).leaving == (Replica("s4", "a-s4"),)
    assert the(update(metadata, [ForgetReplica("t", Replica("s4", "a-s4"))])).leaving == ()


def test_a_larger_number_counts_when_so_many_are_in_sync_and_a_smaller_one_at_once() -> None:
    metadata = update(created(), [SetWanted((TabletNumber("t", 1),), 5)])
    assert (the(metadata).wanted, the(metadata).counted) == (5, 3)
    for number, server in ((2, "s4"), (4, "s5")):
        metadata = update(metadata, [AddReplica("t", number, Replica(server, f"a-{server}"))])
        metadata = update(metadata, [ChangeInSync("t", 2, number + 1, put=replica(server))])
    assert (the(metadata).counted, the(metadata).needed) == (5, 3)
    metadata = update(metadata, [SetWanted((TabletNumber("t", 6),), 1)])
    assert (the(metadata).counted, len(the(metadata).in_sync)) == (1, 5)


def test_a_tablet_with_one_replica_is_in_sync_by_the_log_of_its_leader_when_it_is_to_have_more() -> None:
    alone = table_of("t")
    own = msgspec.structs.replace(the(alone), leader="s1", replicas=(Replica("s1", "a-s1"),), log="s1/1")
    own = msgspec.structs.replace(own, target=Replica("s2", "a-s2"))  # it was offered to another a moment before
    alone = alone.with_tablets([own])
    assert not own.is_replicated
    tablet = the(update(alone, [SetWanted((TabletNumber("t", 0),), 3, (("s1", "log-s1"),))]))
    assert (tablet.in_sync, tablet.counted, tablet.number, tablet.log) == ((replica("s1"),), 1, 1, "s1/1")
    assert tablet.target is None
    with pytest.raises(RequirementFailed) as caught:
        update(alone, [SetWanted((TabletNumber("t", 0),), 3)])
    assert caught.value.code == "no_log"


def test_a_tablet_that_is_recovered_is_led_by_one_alone_and_can_commit_again() -> None:
    leader = replica("s3", "what is left")
    metadata = update(created(), [RecoverTablet("t", 1, leader, "s3/4", 9)])
    tablet = the(metadata)
    assert (tablet.leader, tablet.log, tablet.epoch, tablet.txn_floor) == ("s3", "s3/4", 3, 9)
    assert (tablet.in_sync, tablet.needed, tablet.wanted) == ((leader,), 1, 3)
    with pytest.raises(RequirementFailed) as caught:
        update(metadata, [RecoverTablet("t", 2, replica("s9"), "s9/1", 9)])
    assert caught.value.code == "no_replica"


def test_the_point_up_to_which_all_groups_are_flushed_never_goes_back() -> None:
    metadata = update(created(), [Flush(GROUP, (), (FlushedTablet("t", 2, 5, flushed_epoch=2, flushed_index=5),))])
    assert (the(metadata).flushed_epoch, the(metadata).flushed_index) == (2, 5)
    metadata = update(metadata, [Flush(GROUP, (), (FlushedTablet("t", 2, 6),))])
    assert (the(metadata).flushed_epoch, the(metadata).flushed_index) == (2, 5)


@pytest.mark.parametrize(
    "change",
    [
        OfferTablets((Offer("t", 2, Replica("s9", "a")),)),
        VacateTablets((TabletAt("t", 2),), "s1"),
        TakeOver(TabletAt("t", 2), "s2", "a-s2", "s2/7"),
        TakeLog((TabletAt("t", 2),), "s1", "s1/9"),
    ],
    ids=lambda change: type(change).__name__,
)
def test_what_holds_for_one_replica_is_refused_for_several(change: object) -> None:
    with pytest.raises(RequirementFailed) as caught:
        update(created(), [change])  # type: ignore[list-item]
    assert caught.value.code == "replicated"


def test_fewer_in_sync_than_needed_is_no_valid_metadata() -> None:
    tablet = the(created())
    alone = msgspec.structs.replace(tablet, replicas=(replica("s1"), replica("s2", is_in_sync=False)))
    with pytest.raises(InvalidMetadata, match="1 of its replicas are in sync, and 2 are needed"):
        check_tablet(alone, SCHEMA)


def test_the_children_of_a_split_have_the_replicas_of_their_parent_and_begin_at_nothing() -> None:
    flush = Flush(GROUP, (), (FlushedTablet("t", 2, 5, flushed_epoch=2, flushed_index=5),))
    begun = update(created(), [flush, BeginSplit(TabletAt("t", 2), b"m", ("x", "y"))])
    metadata = update(begun, [FinishSplit(TabletAt("t", 2), 7, 1)])
    assert [one.id for one in metadata.tablets] == ["x", "y"]
    for child in metadata.tablets:
        assert child.replicas == the(begun).replicas
        assert (child.epoch, child.leader, child.log) == (2, the(begun).leader, the(begun).log)
        assert (child.flushed_epoch, child.flushed_index) == (0, 0)
