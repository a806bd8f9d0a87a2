"""Tablets with several replicas, in METADATA: who leads, who is in sync, who is to come and to go. Pure.

    ChangeLeaders   the next epoch of some tablets, each led by a replica that is in sync             master
    ChangeInSync    put a learner in sync, take a replica out, or both                                the leader
    AddReplica      another server gets a replica, and has to learn                                   master
    RemoveReplica   one that is not in sync leaves                                                    master
    ForgetReplica   one that left is deleted: its server said so                                      master
    SetWanted       so many replicas there should be                                                  master
    RecoverTablet   a person gives up what only lost replicas have                                    master

What may become of what is in replica_rules.py, which the simulated machine goes by as well. The epoch of a replicated
tablet is bound to a run of its leader, `log`, as that of any tablet: a run that lost its lease leads nothing.

`ChangeLeaders` leaves out tablets whose configuration is another by now: one that does not fit does not keep the others
from going on. All other changes are refused then, and decided again on what is there.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ebla.metadata.values import replica_rules as rules
from ebla.metadata.values.requirements import RequirementFailed, led
from ebla.metadata.values.table_metadata import Replica, TableMetadata, TabletMetadata

__all__ = [
    "AddReplica",
    "ChangeInSync",
    "ChangeLeaders",
    "ForgetReplica",
    "NewLeader",
    "RecoverTablet",
    "RemoveReplica",
    "Replicate",
    "SetWanted",
    "TabletNumber",
    "replicate",
    "unreplicated",
]

RUNNING = "running"


class NewLeader(msgspec.Struct, frozen=True, array_like=True):
    """Who leads a tablet next, decided at the configuration `number`: this replica, in this log, in this run.

    `txn_floor` is at least the bound of the run that led before. `is_old_out`: the leader before leaves the in-sync
    set, if `needed` remain.
    """

    tablet: str
    number: int
    leader: Replica
    run: str
    txn_floor: int
    is_old_out: bool = False


class TabletNumber(msgspec.Struct, frozen=True, array_like=True):
    """A tablet, and the configuration that a change was decided on."""

    tablet: str
    number: int


class ChangeLeaders(msgspec.Struct, frozen=True, array_like=True, tag="change_leaders"):
    """These tablets begin their next epoch. Those that no longer fit are left out; refused if none does."""

    leaders: tuple[NewLeader, ...]


class ChangeInSync(msgspec.Struct, frozen=True, array_like=True, tag="change_in_sync"):
    """The leader of `epoch` puts a replica in sync, as the log that it named; takes one out; or both."""

    tablet: str
    epoch: int
    number: int
    put: Replica | None = None
    put_start: int = 0  # which run of its server the learner was caught up in: masters look whether it is over
    out: Replica | None = None


class AddReplica(msgspec.Struct, frozen=True, array_like=True, tag="add_replica"):
    """A server gets a replica, which has to learn everything."""

    tablet: str
    number: int
    replica: Replica


class RemoveReplica(msgspec.Struct, frozen=True, array_like=True, tag="remove_replica"):
    """A replica that is not in sync is one no longer. It is deleted later, when others have all that it has."""

    tablet: str
    number: int
    replica: Replica


class ForgetReplica(msgspec.Struct, frozen=True, array_like=True, tag="forget_replica"):
    """A replica that left is deleted: its server said so."""

    tablet: str
    replica: Replica


class SetWanted(msgspec.Struct, frozen=True, array_like=True, tag="set_wanted"):
    """So many replicas these tablets should have. A larger number counts once that many are in sync.

    `logs` names the log ids of servers: one that led a tablet alone is in sync from now on, by the log that it has.
    """

    tablets: tuple[TabletNumber, ...]
    wanted: int
    logs: tuple[tuple[str, str], ...] = ()


class RecoverTablet(msgspec.Struct, frozen=True, array_like=True, tag="recover_tablet"):
    """`leader` leads, with what it has, alone in sync; what only the others had is lost. A person's choice."""

    tablet: str
    number: int
    leader: Replica
    run: str
    txn_floor: int


Replicate: TypeAlias = (
    ChangeLeaders | ChangeInSync | AddReplica | RemoveReplica | ForgetReplica | SetWanted | RecoverTablet
)

_replace = msgspec.structs.replace


def replicate(metadata: TableMetadata, change: Replicate) -> TableMetadata:
    """Return the metadata after a change of replicas; raise `RequirementFailed` if it does not fit."""
    match change:
        case ChangeLeaders():
            return metadata.with_tablets(_change_leaders(metadata, change))
        case ChangeInSync():
            tablet = _based_on(metadata, change.tablet, change.number)
            led(metadata, change)
            return metadata.with_tablets([rules.change_in_sync(tablet, change.put, change.out)])
        case AddReplica():
            tablet = _based_on(metadata, change.tablet, change.number)
            return metadata.with_tablets([rules.with_replica(tablet, change.replica)])
        case RemoveReplica():
            tablet = _based_on(metadata, change.tablet, change.number)
            return metadata.with_tablets([rules.without_replica(tablet, change.replica)])
        case ForgetReplica():
            tablet = _known(metadata, change.tablet)
            leaving = tuple(one for one in tablet.leaving if one.key != change.replica.key)
            return metadata.with_tablets([_replace(tablet, leaving=leaving)])
        case SetWanted():
            return metadata.with_tablets(_set_wanted(metadata, change))
        case RecoverTablet():
            return metadata.with_tablets([_recover(metadata, change)])


def unreplicated(tablet: TabletMetadata, why: str = "one of them is to lead") -> TabletMetadata:
    """Return a tablet if it has one replica; else refuse what is done otherwise, or not at all, where are several."""
    if tablet.is_replicated:
        raise RequirementFailed("replicated", f"tablet {tablet.id} has several replicas: {why}")
    return tablet


def _known(metadata: TableMetadata, tablet_id: str) -> TabletMetadata:
    tablet = metadata.by_id(tablet_id)
    if tablet is None:
        raise RequirementFailed("unknown_tablet", f"the table has no tablet {tablet_id} (any more)")
    return tablet


def _based_on(metadata: TableMetadata, tablet_id: str, number: int) -> TabletMetadata:
    tablet = _known(metadata, tablet_id)
    if not tablet.is_replicated:
        raise RequirementFailed("not_replicated", f"tablet {tablet_id} has one replica, and is to have no other")
    return _at_number(tablet, number)


def _at_number(tablet: TabletMetadata, number: int) -> TabletMetadata:
    based = rules.based_on(tablet, number)
    if based is None:
        reason = f"tablet {tablet.id} has configuration {tablet.number}: the change was decided on {number}"
        raise RequirementFailed("other_number", reason)
    return based


def _change_leaders(metadata: TableMetadata, change: ChangeLeaders) -> list[TabletMetadata]:
    changed: dict[str, TabletMetadata] = {}
    refused: RequirementFailed | None = None
    for new in change.leaders:
        try:
            tablet = _based_on(metadata, new.tablet, new.number)
        except RequirementFailed as error:
            refused = error
            continue
        changed.setdefault(tablet.id, tablet)
        if not rules.is_in_sync_in(tablet, new.leader):
            continue
        for other in () if tablet.join is None else (tablet.join.left, tablet.join.right):
            neighbour = changed.get(other) or metadata.by_id(other)
            if neighbour is not None:
                changed[other] = _replace(neighbour, state=RUNNING, join=None)
        tablet = rules.next_leader(tablet, new.leader, new.txn_floor, new.is_old_out)
        changed[tablet.id] = _led_by(tablet, new.run)
    if not changed and refused is not None:
        raise refused
    return [*changed.values()]


def _led_by(tablet: TabletMetadata, run: str) -> TabletMetadata:
    """Return a tablet led by a run; what the leader before was about to do is undone."""
    if tablet.split is None and tablet.join is None:
        return _replace(tablet, log=run)
    return _replace(tablet, log=run, state=RUNNING, split=None, join=None)


def _set_wanted(metadata: TableMetadata, change: SetWanted) -> list[TabletMetadata]:
    if change.wanted < 1:
        raise RequirementFailed("no_replica", "a tablet has one replica at least")
    logs = dict(change.logs)
    changed = []
    for at in change.tablets:
        tablet = _known(metadata, at.tablet)
        tablet = _at_number(tablet, at.number)
        if change.wanted > 1 and tablet.leader is not None and not tablet.in_sync:
            log_id = logs.get(tablet.leader, "")
            if not log_id:
                raise RequirementFailed("no_log", f"tablet {tablet.id}: the log of {tablet.leader} is not known")
            own = next(one for one in tablet.replicas if one.server == tablet.leader)
            # Nobody takes it over any more to whom it was offered while it had one replica.
            tablet = _replace(tablet, replicas=(_replace(own, log_id=log_id, is_in_sync=True),), target=None)
        changed.append(rules.with_wanted(tablet, change.wanted))
    return changed


def _recover(metadata: TableMetadata, change: RecoverTablet) -> TabletMetadata:
    tablet = _based_on(metadata, change.tablet, change.number)
    if all(one.key != change.leader.key for one in tablet.replicas):
        reason = f"{change.leader.server} keeps no replica of tablet {tablet.id}: choose one that does"
        raise RequirementFailed("no_replica", reason)
    replicas = tuple(
        _replace(change.leader, is_in_sync=True) if one.key == change.leader.key else _replace(one, is_in_sync=False)
        for one in tablet.replicas
    )
    # It counts as one that is wanted once, until others are level: else it could never commit again.
    tablet = _replace(
        tablet,
        replicas=replicas,
        counted=1,
        epoch=tablet.epoch + 1,
        leader=change.leader.server,
        txn_floor=max(tablet.txn_floor, change.txn_floor),
    )
    return _led_by(tablet, change.run)
