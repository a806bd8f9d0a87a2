"""Changes of who keeps a tablet: what must hold, and what is to become. Pure.

    table  --apply(change)-->  table'        or RequirementFailed, and nothing has changed

    ChangeLeader    the next epoch, led by a member that is in sync in the very base of the change     master
    ChangeInSync    put a learner in sync, take a replica out, or swap the two                            leader
    AddReplica, RemoveReplica, ForgetReplica, SetWanted, TakeOver                                           master
    Flush           entries are in a file now                                                              leader
    the rest        recut_changes.py: split, alter, bulk load

**A change that names a number and fits it raises the number even if it turns out to have no effect.** A copy of it that
arrives late then finds another number, so that whoever asked knows for certain what became of it: once METADATA has
a number above the one that was named, nothing of that change is still to come.

**No change leaves fewer than `needed` in sync.**
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ebla.metadata.values.requirements import RequirementFailed
from ebla.metadata.values.tablet_metadata import Replica
from ebla.replication.configuration import Configuration, LogEnd, Member, Position, Table

__all__ = [
    "AddReplica",
    "ChangeInSync",
    "ChangeLeader",
    "Flush",
    "ForgetReplica",
    "MemberChange",
    "RemoveReplica",
    "SetWanted",
    "TakeOver",
    "apply_member_change",
    "based_on",
    "led_at",
    "with_in_sync",
    "with_tablet",
]


class ChangeLeader(msgspec.Struct, frozen=True, tag="change_leader"):
    """The next epoch begins, under a lease of its leader. `txn_floor` is at least the bound of the leader before."""

    tablet: str
    number: int
    leader: Member
    lease: int
    txn_floor: int
    is_old_out: bool  # the leader before leaves the in-sync set, if `needed` remain


class ChangeInSync(msgspec.Struct, frozen=True, tag="change_in_sync"):
    """The leader of `epoch` puts a replica in sync, as the log that it named; takes one out; or both."""

    tablet: str
    epoch: int
    number: int
    put: Member | None = None
    put_start: int = 0  # which run of its server the learner was caught up in: a master refuses another
    out: Replica | None = None


class AddReplica(msgspec.Struct, frozen=True, tag="add_replica"):
    """A server gets a replica, which has to learn everything."""

    tablet: str
    number: int
    replica: Replica


class RemoveReplica(msgspec.Struct, frozen=True, tag="remove_replica"):
    """A replica that is not in sync is no longer a member. It is deleted later, when others have all it has."""

    tablet: str
    number: int
    replica: Replica


class ForgetReplica(msgspec.Struct, frozen=True, tag="forget_replica"):
    """A replica that left is deleted: its server said so."""

    tablet: str
    replica: Replica


class SetWanted(msgspec.Struct, frozen=True, tag="set_wanted"):
    """So many replicas there should be. A larger number counts once that many are in sync."""

    tablet: str
    number: int
    wanted: int


class TakeOver(msgspec.Struct, frozen=True, tag="take_over"):
    """Of a tablet with one replica: another server has read the log of the leader before, up to `end`, and leads."""

    tablet: str
    number: int
    leader: Member
    lease: int
    txn_floor: int
    end: LogEnd


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """What a tablet has from behind `base` up to `flushed` is in `file`; refused if `base` is no longer the point."""

    tablet: str
    epoch: int
    base: Position
    flushed: Position
    file: str


MemberChange: TypeAlias = (
    ChangeLeader | ChangeInSync | AddReplica | RemoveReplica | ForgetReplica | SetWanted | TakeOver | Flush
)

_replace = msgspec.structs.replace


def apply_member_change(table: Table, change: MemberChange) -> Table:
    """Return the table after a change of one tablet; raise `RequirementFailed` if it does not fit."""
    match change:
        case ChangeLeader():
            return with_tablet(table, _change_leader(based_on(table, change), change))
        case ChangeInSync():
            return with_tablet(table, _change_in_sync(led_at(based_on(table, change), change.epoch), change))
        case AddReplica():
            return with_tablet(table, _add(based_on(table, change), change.replica))
        case RemoveReplica():
            return with_tablet(table, _remove(based_on(table, change), change.replica))
        case SetWanted():
            tablet = _replace(based_on(table, change), wanted=change.wanted)
            return with_tablet(table, with_in_sync(tablet, tablet.members))
        case ForgetReplica():
            tablet = known(table, change.tablet)
            return with_tablet(
                table, _replace(tablet, leaving=tuple(one for one in tablet.leaving if one != change.replica))
            )
        case TakeOver():
            return with_tablet(table, _take_over(based_on(table, change), change))
        case Flush():
            return with_tablet(table, _flush(led_at(known(table, change.tablet), change.epoch), change))


def known(table: Table, tablet: str) -> Configuration:
    """Return a tablet, or refuse."""
    found = table.tablets.get(tablet)
    if found is None:
        raise RequirementFailed("unknown_tablet", f"there is no tablet {tablet} (any more)")
    return found


def based_on(table: Table, change: msgspec.Struct) -> Configuration:
    """Return the tablet that a change was decided on, with the number that the change makes it have; else refuse."""
    tablet = known(table, change.tablet)  # type: ignore[attr-defined]
    number: int = change.number  # type: ignore[attr-defined]
    if tablet.number != number:
        reason = f"tablet {tablet.tablet} has configuration {tablet.number}: the change was decided on {number}"
        raise RequirementFailed("other_number", reason)
    return _replace(tablet, number=number + 1)


def led_at(tablet: Configuration, epoch: int) -> Configuration:
    """Return the tablet if it is at that epoch; else refuse."""
    if tablet.epoch != epoch:
        reason = f"tablet {tablet.tablet} is at epoch {tablet.epoch}: the sender led it at {epoch}"
        raise RequirementFailed("stale_epoch", reason)
    return tablet


def with_tablet(table: Table, tablet: Configuration) -> Table:
    """Return the next version of the table, with one tablet replaced."""
    return _replace(table, version=table.version + 1, tablets={**table.tablets, tablet.tablet: tablet})


def with_in_sync(tablet: Configuration, members: tuple[Member, ...]) -> Configuration:
    """Return the tablet with these members, or as it was if fewer than `needed` of them were in sync.

    A smaller wanted number counts at once, a larger one when that many are in sync.
    """
    count = sum(member.is_in_sync for member in members)
    counted = tablet.wanted if tablet.wanted <= tablet.counted or count >= tablet.wanted else tablet.counted
    changed = _replace(tablet, members=members, counted=counted)
    return changed if count >= changed.needed else tablet


def _change_leader(tablet: Configuration, change: ChangeLeader) -> Configuration:
    if not is_in_sync_in(tablet, change.leader):
        return tablet
    members = tablet.members
    if change.is_old_out and change.leader.server != tablet.leader:
        members = tuple(
            _replace(member, is_in_sync=False) if member.server == tablet.leader else member for member in members
        )
    tablet = with_in_sync(tablet, members)
    return _replace(
        tablet,
        epoch=tablet.epoch + 1,
        leader=change.leader.server,
        lease=change.lease,
        txn_floor=max(tablet.txn_floor, change.txn_floor),
    )


def is_in_sync_in(tablet: Configuration, leader: Member) -> bool:
    """Tell whether who is to lead is in sync, by this assignment and in this log, in the base of the change."""
    return _replace(leader, is_in_sync=True) in tablet.members


def _change_in_sync(tablet: Configuration, change: ChangeInSync) -> Configuration:
    put, out = change.put, change.out
    if put is not None and all(
        (one.server, one.assignment_id) != (put.server, put.assignment_id) for one in tablet.members
    ):
        return tablet
    if out is not None and out.server == tablet.leader:
        return tablet
    members = []
    for member in tablet.members:
        if put is not None and member.server == put.server:
            member = _replace(put, is_in_sync=True)
        elif out is not None and (member.server, member.assignment_id) == (out.server, out.assignment_id):
            member = _replace(member, is_in_sync=False)
        members.append(member)
    return with_in_sync(tablet, tuple(members))


def _add(tablet: Configuration, replica: Replica) -> Configuration:
    if tablet.member(replica.server) is not None:
        return tablet
    return _replace(tablet, members=(*tablet.members, Member(replica.server, replica.assignment_id)))


def _remove(tablet: Configuration, replica: Replica) -> Configuration:
    member = tablet.member(replica.server)
    if member is None or member.assignment_id != replica.assignment_id or member.is_in_sync:
        return tablet
    return _replace(
        tablet,
        members=tuple(one for one in tablet.members if one is not member),
        leaving=(*tablet.leaving, replica),
    )


def _take_over(tablet: Configuration, change: TakeOver) -> Configuration:
    if len(tablet.in_sync) != 1 or tablet.in_sync[0].log_id != change.end.log_id:
        return tablet
    gone = tuple(Replica(member.server, member.assignment_id) for member in tablet.members)
    return _replace(
        tablet,
        epoch=tablet.epoch + 1,
        leader=change.leader.server,
        lease=change.lease,
        txn_floor=max(tablet.txn_floor, change.txn_floor),
        members=(_replace(change.leader, is_in_sync=True),),
        leaving=(*tablet.leaving, *gone),
        log_ends=(*tablet.log_ends, change.end),
    )


def _flush(tablet: Configuration, change: Flush) -> Configuration:
    if tablet.flushed != change.base:
        raise RequirementFailed("flushed_meanwhile", f"tablet {tablet.tablet} is flushed to {tablet.flushed} by now")
    return _replace(tablet, flushed=change.flushed, files=(*tablet.files, change.file))
