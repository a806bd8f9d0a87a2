"""Changes of who keeps a tablet: what must hold, and what is to become. Pure.

    table  --apply(change)-->  table'        or RequirementFailed, and nothing has changed

    ChangeLeader    the next epoch, led by a member that is in sync in the very base of the change     master
    ChangeInSync    put a learner in sync, take a replica out, or swap the two                            leader
    AddReplica, RemoveReplica, ForgetReplica, SetWanted, TakeOver                                           master
    Flush           entries are in a file now                                                              leader
    the rest        recut_changes.py: split, alter, bulk load

What may become of the replicas is METADATA's own (metadata/values/replica_rules.py): one set of rules, which the
simulation meets and the cluster goes by.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ebla.metadata.values import replica_rules as rules
from ebla.metadata.values.replicating import AddReplica, ChangeInSync, ForgetReplica, RemoveReplica
from ebla.metadata.values.requirements import RequirementFailed
from ebla.metadata.values.tablet_metadata import Replica
from ebla.replication.configuration import Configuration, LogEnd, Position, Table

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
    "with_tablet",
]


class ChangeLeader(msgspec.Struct, frozen=True, tag="change_leader"):
    """The next epoch begins, under a lease of its leader. `txn_floor` is at least the bound of the leader before."""

    tablet: str
    number: int
    leader: Replica
    lease: int
    txn_floor: int
    is_old_out: bool  # the leader before leaves the in-sync set, if `needed` remain


class SetWanted(msgspec.Struct, frozen=True, tag="set_wanted"):
    """So many replicas there should be. A larger number counts once that many are in sync."""

    tablet: str
    number: int
    wanted: int


class TakeOver(msgspec.Struct, frozen=True, tag="take_over"):
    """Of a tablet with one replica: another server has read the log of the leader before, up to `end`, and leads."""

    tablet: str
    number: int
    leader: Replica
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
            tablet = led_at(based_on(table, change), change.epoch)
            return with_tablet(table, rules.change_in_sync(tablet, change.put, change.out))
        case AddReplica():
            return with_tablet(table, rules.with_replica(based_on(table, change), change.replica))
        case RemoveReplica():
            return with_tablet(table, rules.without_replica(based_on(table, change), change.replica))
        case SetWanted():
            return with_tablet(table, rules.with_wanted(based_on(table, change), change.wanted))
        case ForgetReplica():
            tablet = known(table, change.tablet)
            return with_tablet(
                table, _replace(tablet, leaving=tuple(one for one in tablet.leaving if one.key != change.replica.key))
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
    based = rules.based_on(tablet, number)
    if based is None:
        reason = f"tablet {tablet.tablet} has configuration {tablet.number}: the change was decided on {number}"
        raise RequirementFailed("other_number", reason)
    return based


def led_at(tablet: Configuration, epoch: int) -> Configuration:
    """Return the tablet if it is at that epoch; else refuse."""
    if tablet.epoch != epoch:
        reason = f"tablet {tablet.tablet} is at epoch {tablet.epoch}: the sender led it at {epoch}"
        raise RequirementFailed("stale_epoch", reason)
    return tablet


def with_tablet(table: Table, tablet: Configuration) -> Table:
    """Return the next version of the table, with one tablet replaced."""
    return _replace(table, version=table.version + 1, tablets={**table.tablets, tablet.tablet: tablet})


def _change_leader(tablet: Configuration, change: ChangeLeader) -> Configuration:
    if not rules.is_in_sync_in(tablet, change.leader):
        return tablet
    return _replace(rules.next_leader(tablet, change.leader, change.txn_floor, change.is_old_out), lease=change.lease)


def _take_over(tablet: Configuration, change: TakeOver) -> Configuration:
    if len(tablet.in_sync) != 1 or tablet.in_sync[0].log_id != change.end.log_id:
        return tablet
    gone = tuple(Replica(member.server, member.assignment_id) for member in tablet.replicas)
    return _replace(
        tablet,
        epoch=tablet.epoch + 1,
        leader=change.leader.server,
        lease=change.lease,
        txn_floor=max(tablet.txn_floor, change.txn_floor),
        replicas=(_replace(change.leader, is_in_sync=True),),
        leaving=(*tablet.leaving, *gone),
        log_ends=(*tablet.log_ends, change.end),
    )


def _flush(tablet: Configuration, change: Flush) -> Configuration:
    if tablet.flushed != change.base:
        raise RequirementFailed("flushed_meanwhile", f"tablet {tablet.tablet} is flushed to {tablet.flushed} by now")
    return _replace(tablet, flushed=change.flushed, files=(*tablet.files, change.file))
