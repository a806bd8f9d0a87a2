"""Who keeps a tablet, as METADATA has it for replication. Values; what may become of them is in changes.py.

    Table            version; schema version; tablets; what became of bulk loads; tablets that are gone
    `-- Configuration     one tablet: epoch, leader, lease, number, replicas, flushed point, ...
        `-- Replica       METADATA's own: server, assignment id, log id, in sync or learning

The **configuration number** grows with every change of leader, replicas or wanted number, and every such change names
the number that it was decided on. The epoch alone does not guard the set of replicas.

**In sync** means: this replica, in the log of this id, has every committed entry on its disk. `needed` of the in-sync
replicas are there at any time, so that the loss of fewer than that many loses nothing.
"""

from __future__ import annotations

import msgspec

from ebla.metadata.values.tablet_metadata import Replica, needed_of
from ebla.model.ranges import KeyRange

__all__ = ["NOWHERE", "Configuration", "LogEnd", "Plan", "Position", "Replica", "Retired", "Table", "needed_of"]


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of a tablet, by the epoch of the leader that gave it its index, and that index."""

    epoch: int
    index: int


NOWHERE = Position(0, 0)


class Plan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A split that was begun: the row, and for each child its id and its replicas, which are yet to be made."""

    row: bytes
    children: tuple[str, str]
    replicas: tuple[tuple[Replica, ...], tuple[Replica, ...]]


class LogEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of this assignment, in the log of this id, nothing behind the record `sequence` counts, whatever is there."""

    assignment_id: str
    log_id: str
    sequence: int


class Configuration(msgspec.Struct, frozen=True, gc=False):
    """A tablet as replication sees it."""

    tablet: str
    first: bytes
    last: bytes | None
    epoch: int
    number: int
    leader: str
    lease: int  # the number of the leader's lease that the epoch is bound to
    replicas: tuple[Replica, ...]
    wanted: int  # how many replicas there should be
    counted: int  # how many there were meant to be when that many were last in sync: `needed` is of these
    txn_floor: int = 0  # every txn of this epoch is greater; never falls
    flushed: Position = NOWHERE  # what is in files: up to this entry, for all groups
    files: tuple[str, ...] = ()
    schema_version: int = 1  # entries of the log that are not flushed were written under it
    plan: Plan | None = None
    leaving: tuple[Replica, ...] = ()  # replicas no longer, and not known to be deleted
    log_ends: tuple[LogEnd, ...] = ()

    @property
    def range(self) -> KeyRange:
        """The rows of the tablet."""
        return KeyRange(self.first, self.last)

    @property
    def needed(self) -> int:
        """How many have to be in sync at any time."""
        return needed_of(self.counted)

    @property
    def in_sync(self) -> tuple[Replica, ...]:
        """The replicas that are in sync."""
        return tuple(replica for replica in self.replicas if replica.is_in_sync)

    def replica_on(self, server: str) -> Replica | None:
        """Return the replica on a server, if there is one."""
        for replica in self.replicas:
            if replica.server == server:
                return replica
        return None


class Retired(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tablet that is gone, and those that have its rows; none if it never had any."""

    tablet: str
    children: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True, gc=False):
    """What METADATA says of a table, at one version."""

    version: int
    tablets: dict[str, Configuration]
    schema_version: int = 1
    jobs: dict[str, str] = {}  # bulk loads: "done" or "aborted"
    retired: dict[str, Retired] = {}
