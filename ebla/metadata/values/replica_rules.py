"""What may become of a tablet's replicas: who leads, who is in sync, who is there at all. Pure.

    Configured      what the rules go by: METADATA's tablets are that, and those of the machine in ebla/replication
    based_on        a change names the configuration number that it was decided on, and raises it
    next_leader     the next epoch, led by a replica that is in sync
    change_in_sync  a learner is put in sync, a replica taken out, or both at once
    with_replica, without_replica, with_wanted

**In sync** means: this replica, in the log of this id, has every committed entry on its disk. **No rule leaves fewer
than `needed` in sync**: a step that would is no error, it has no effect. **The number is raised all the same**: a copy
of the change that arrives late finds another number. So who asked for a change, and heard nothing, knows what became of
it once METADATA has a higher number: it happened, or it never will.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from ebla.metadata.values.tablet_metadata import Replica, needed_of

__all__ = [
    "Configured",
    "based_on",
    "change_in_sync",
    "is_in_sync_in",
    "next_leader",
    "with_in_sync",
    "with_replica",
    "with_wanted",
    "without_replica",
]


class Configured(Protocol):
    """A tablet, as far as the rules of its replicas go."""

    @property
    def epoch(self) -> int:
        """Which leader after which: it grows with each."""

    @property
    def number(self) -> int:
        """Of the configuration: it grows with every change of it."""

    @property
    def leader(self) -> str | None:
        """The server that leads."""

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Who keeps the log of the tablet."""

    @property
    def wanted(self) -> int:
        """How many replicas there should be."""

    @property
    def counted(self) -> int:
        """How many there were meant to be when that many were last in sync."""

    @property
    def txn_floor(self) -> int:
        """Every txn of the epoch is greater."""

    @property
    def leaving(self) -> tuple[Replica, ...]:
        """Replicas no longer, and not known to be deleted."""


Tablet = TypeVar("Tablet", bound=Configured)


def _replace(tablet: Tablet, **changes: Any) -> Tablet:
    changed: Tablet = msgspec.structs.replace(tablet, **changes)  # type: ignore[type-var]
    return changed


def based_on(tablet: Tablet, number: int) -> Tablet | None:
    """Return the tablet with the number that a change makes it have; None if the change was decided on another."""
    return _replace(tablet, number=number + 1) if tablet.number == number else None


def with_in_sync(tablet: Tablet, replicas: Sequence[Replica]) -> Tablet:
    """Return the tablet with these replicas, or as it was if fewer than `needed` of them were in sync.

    A smaller wanted number counts at once, a larger one when that many are in sync.
    """
    count = sum(replica.is_in_sync for replica in replicas)
    counted = tablet.wanted if tablet.wanted <= tablet.counted or count >= tablet.wanted else tablet.counted
    return _replace(tablet, replicas=tuple(replicas), counted=counted) if count >= needed_of(counted) else tablet


def is_in_sync_in(tablet: Configured, leader: Replica) -> bool:
    """Tell whether who is to lead is in sync, by this assignment and in this log, in the base of the change."""
    return msgspec.structs.replace(leader, is_in_sync=True) in tablet.replicas


def next_leader(tablet: Tablet, leader: Replica, txn_floor: int, is_old_out: bool) -> Tablet:
    """Return the tablet in its next epoch. The leader before leaves the in-sync set if it is to and `needed` remain."""
    replicas: Sequence[Replica] = tablet.replicas
    if is_old_out and leader.server != tablet.leader:
        replicas = [
            msgspec.structs.replace(one, is_in_sync=False) if one.server == tablet.leader else one for one in replicas
        ]
    tablet = with_in_sync(tablet, replicas)
    floor = max(tablet.txn_floor, txn_floor)
    return _replace(tablet, epoch=tablet.epoch + 1, leader=leader.server, txn_floor=floor)


def change_in_sync(tablet: Tablet, put: Replica | None, out: Replica | None) -> Tablet:
    """Return the tablet with a replica put in sync, as the log that it names, and another one taken out."""
    if put is not None and all(one.key != put.key for one in tablet.replicas):
        return tablet
    if out is not None and out.server == tablet.leader:
        return tablet
    replicas = []
    for one in tablet.replicas:
        if put is not None and one.server == put.server:
            one = msgspec.structs.replace(put, is_in_sync=True)
        elif out is not None and one.key == out.key:
            one = msgspec.structs.replace(one, is_in_sync=False)
        replicas.append(one)
    return with_in_sync(tablet, replicas)


def with_replica(tablet: Tablet, replica: Replica) -> Tablet:
    """Return the tablet with one more replica, which has to learn everything."""
    if any(one.server == replica.server for one in tablet.replicas):
        return tablet
    return _replace(tablet, replicas=(*tablet.replicas, Replica(replica.server, replica.assignment_id)))


def without_replica(tablet: Tablet, replica: Replica) -> Tablet:
    """Return the tablet without a replica that is not in sync; it is leaving until its server has deleted it."""
    found = next((one for one in tablet.replicas if one.key == replica.key), None)
    if found is None or found.is_in_sync:
        return tablet
    kept = tuple(one for one in tablet.replicas if one is not found)
    return _replace(tablet, replicas=kept, leaving=(*tablet.leaving, Replica(*replica.key)))


def with_wanted(tablet: Tablet, wanted: int) -> Tablet:
    """Return the tablet with another number of replicas that there should be."""
    return with_in_sync(_replace(tablet, wanted=wanted), tablet.replicas)
