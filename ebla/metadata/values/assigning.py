"""Where tablets are, in METADATA: which servers keep a tablet, which of them leads it, at which epoch. Pure.

    preparing --AssignTablets--> creating --StartTablets--> running --PlaceTablets--> running, on other servers
                                                                    --TakeOver------> the same where there is one
                                                                                      replica (handing_over.py)
        ^                            |
        `-- a new tablet in its place, ReplaceTablets (nobody reported the old one in time)

Every change of the leader or of the replicas raises the tablet's epoch, and names the epoch that it was decided at. So
of two masters that decide at the same time one is refused, and **a tablet has one leader in an epoch**.

A tablet that was replaced stays on record: a server that was told to make it, and answers late, must be told to delete
it. `ForgetReplaced` says that all of its servers have; its id stays all the same, for a server that returns from the
dead with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from ebla.metadata.values.requirements import RequirementFailed, TabletAt, led, named_once
from ebla.metadata.values.table_metadata import ReplacedTablet, Replica, TableMetadata, TabletMetadata

__all__ = [
    "CREATING",
    "PREPARING",
    "Assign",
    "AssignTablets",
    "Assignment",
    "ForgetReplaced",
    "PlaceTablets",
    "ReplaceTablets",
    "Replacement",
    "StartTablets",
    "assign",
]

PREPARING = "preparing"
CREATING = "creating"
_RUNNING = "running"


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """The servers of a tablet, decided when it was at `epoch`.

    Those of one that is to have several are in sync from the start, as the logs that they have: nothing is written yet.
    `log` is then the run that is to lead it.
    """

    tablet: str
    epoch: int
    leader: str
    replicas: tuple[Replica, ...]
    log: str | None = None


class Replacement(msgspec.Struct, frozen=True, array_like=True):
    """A tablet that nobody reported, decided when it was at `epoch`, and the id of the one in its place."""

    tablet: str
    epoch: int
    new: str


class AssignTablets(msgspec.Struct, frozen=True, array_like=True, tag="assign_tablets"):
    """Tablets that are being prepared get servers, which are going to be asked to create them."""

    assignments: tuple[Assignment, ...]


class StartTablets(msgspec.Struct, frozen=True, array_like=True, tag="start_tablets"):
    """The leaders of these tablets have reported that they are there. Those that run already go on running."""

    tablets: tuple[TabletAt, ...]


class ReplaceTablets(msgspec.Struct, frozen=True, array_like=True, tag="replace_tablets"):
    """Tablets that were not created in time give way to new ones, which have to be assigned."""

    replacements: tuple[Replacement, ...]


class PlaceTablets(msgspec.Struct, frozen=True, array_like=True, tag="place_tablets"):
    """Tablets that run get another leader out of those that keep a replica, or one replica elsewhere, or both."""

    assignments: tuple[Assignment, ...]


class ForgetReplaced(msgspec.Struct, frozen=True, array_like=True, tag="forget_replaced"):
    """No server has anything of these replaced tablets any more. Their ids stay on record."""

    tablets: tuple[str, ...]


Assign: TypeAlias = AssignTablets | StartTablets | ReplaceTablets | PlaceTablets | ForgetReplaced


def assign(metadata: TableMetadata, change: Assign) -> TableMetadata:
    """Return the metadata after a change; raise `RequirementFailed` if it does not fit."""
    match change:
        case AssignTablets():
            return metadata.with_tablets(_assigned(metadata, change.assignments))
        case PlaceTablets():
            for at in change.assignments:
                _check_step(led(metadata, at), at)
            return metadata.with_tablets(_placed(metadata, change.assignments, _RUNNING, _RUNNING))
        case StartTablets():
            return metadata.with_tablets(_started(metadata, change))
        case ReplaceTablets():
            return _replace(metadata, change)
        case ForgetReplaced():
            gone = set(change.tablets)
            return metadata.with_replaced(
                tuple(ReplacedTablet(one.tablet) if one.tablet in gone else one for one in metadata.replaced)
            )


def _placed(
    metadata: TableMetadata, assignments: tuple[Assignment, ...], before: str, after: str
) -> Iterable[TabletMetadata]:
    named_once(assignments)
    changed = []
    for at in assignments:
        tablet = _in_state(led(metadata, at), before)
        if at.leader not in [replica.server for replica in at.replicas]:
            raise RequirementFailed("no_replica", f"tablet {tablet.id}: {at.leader} is to lead it and keeps no replica")
        changed.append(
            msgspec.structs.replace(tablet, state=after, epoch=tablet.epoch + 1, leader=at.leader, replicas=at.replicas)
        )
    return changed


def _assigned(metadata: TableMetadata, assignments: tuple[Assignment, ...]) -> Iterable[TabletMetadata]:
    changed = []
    for tablet, at in zip(_placed(metadata, assignments, PREPARING, CREATING), assignments, strict=True):
        if tablet.wanted > 1:
            tablet = msgspec.structs.replace(tablet, number=tablet.number + 1, counted=tablet.wanted, log=at.log)
            leader = tablet.replica_on(at.leader)
            if at.log is None or leader is None or not leader.is_in_sync or len(tablet.in_sync) < tablet.needed:
                reason = f"tablet {tablet.id}: {tablet.needed} servers and a run of the leader are needed"
                raise RequirementFailed("too_few", reason)
        changed.append(tablet)
    return changed


def _check_step(tablet: TabletMetadata, at: Assignment) -> None:
    before, after = set(tablet.replicas), set(at.replicas)
    if len(before - after) > 1 or len(after - before) > 1:
        raise RequirementFailed("two_steps", f"tablet {tablet.id}: one replica changes at a time")
    if at.leader not in [replica.server for replica in tablet.replicas]:
        # It would lead what it does not have yet.
        raise RequirementFailed("empty_leader", f"tablet {tablet.id}: {at.leader} is to lead it and has nothing of it")


def _started(metadata: TableMetadata, change: StartTablets) -> Iterable[TabletMetadata]:
    named_once(change.tablets)
    changed = []
    for at in change.tablets:
        tablet = led(metadata, at)
        if tablet.state != _RUNNING:
            changed.append(msgspec.structs.replace(_in_state(tablet, CREATING), state=_RUNNING))
    return changed


def _replace(metadata: TableMetadata, change: ReplaceTablets) -> TableMetadata:
    named_once(change.replacements)
    swaps, replaced = [], []
    for at in change.replacements:
        tablet = _in_state(led(metadata, at), CREATING)
        replaced.append(ReplacedTablet(tablet.id, tuple(replica.server for replica in tablet.replicas)))
        new = msgspec.structs.replace(tablet, id=at.new, state=PREPARING, epoch=1, leader=None, replicas=())
        if tablet.wanted > 1:
            new = msgspec.structs.replace(new, log=None, number=0, leaving=())
        swaps.append((tablet.id, new))
    return metadata.with_swapped(swaps).with_replaced((*metadata.replaced, *replaced))


def _in_state(tablet: TabletMetadata, state: str) -> TabletMetadata:
    if tablet.state != state:
        raise RequirementFailed("other_state", f"tablet {tablet.id} is {tablet.state}, not {state}")
    return tablet
