"""What servers, masters and clients say to each other about a tablet. Values only.

    client   Put, Read, FollowerRead  -->  server  -->  Answer (actions.py)
    leader   Push, DropConfirmed, ChildStart   <->   Ack, Outdated, MayDrop, ChildReady   follower, learner
    server   Resigned, Stuck, Deleted   <->   GiveUp, TakeOut, Adopt   master
    job      CloseGate, Advance  -->  leader  -->  Answer

Any message may be lost, late, doubled or overtaken; none is trusted to be news. All that go from one server to another
at one time go together: one stream for each pair of servers, with the parts of many tablets.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ebla.metadata.values.tablet_metadata import Replica
from ebla.model.ranges import KeyRange
from ebla.replication.configuration import Position

__all__ = [
    "Ack",
    "Adopt",
    "Advance",
    "BetweenServers",
    "ChildReady",
    "ChildStart",
    "CloseGate",
    "Deleted",
    "DropConfirmed",
    "Entry",
    "EntryKind",
    "FollowerRead",
    "GiveUp",
    "MayDrop",
    "Message",
    "Outdated",
    "Push",
    "Put",
    "Read",
    "Remembered",
    "RequestId",
    "Resigned",
    "Rows",
    "Runs",
    "Stuck",
    "TakeOut",
]

# What is done to which rows. Behind RPC this is a block of records, cut by ranges of rows; the machine looks at nothing
# but the rows.
Rows: TypeAlias = tuple[tuple[bytes, Any], ...]

# A log in brief: the point that it begins behind, then for each epoch the last index that it has of it.
Runs: TypeAlias = tuple[Position, ...]

EntryKind: TypeAlias = Literal["write", "empty", "window"]


class RequestId(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A client's request. The client has one under way at a time, and saw the txn `seen` before it first sent this."""

    client: str
    sequence: int
    seen: int


class Remembered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last request of a client that was carried out, for the rows in these ranges."""

    request: RequestId
    txn: int
    index: int
    ranges: tuple[KeyRange, ...]


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of a tablet's log. `window` has the replies that stand in no entry behind it.

    Behind RPC an entry is a group commit of the tablet: `part` has it as bytes, and it takes all indices from
    `index_min` on (0: `index` alone).
    """

    epoch: int
    index: int
    txn: int
    kind: EntryKind
    request: RequestId | None = None
    rows: Rows = ()
    schema_version: int = 1
    window: tuple[Remembered, ...] = ()
    forgotten_txn: int = 0
    index_min: int = 0
    part: bytes = b""

    @property
    def first(self) -> int:
        """The first index that it takes."""
        return self.index_min or self.index


# --- between replicas ----------------------------------------------------------------------------


class Push(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """Entries behind `prev`, for one replica; how far they are committed; and what it may read.

    `safe_txn` and `echo` are given only under the lease of the epoch, else 0 and -1. `version` is the METADATA that the
    leader holds: who holds less may lack a file that `safe_txn` covers.
    """

    tablet: str
    assignment_id: str
    epoch: int
    version: int
    prev: Position
    entries: tuple[Entry, ...]
    commit: int
    safe_txn: int
    echo: float


class Ack(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """What the leader of `epoch` pushed is on my disk, up to `index`. With `runs`: that is what I have, go on there."""

    tablet: str
    assignment_id: str
    log_id: str
    start: int
    epoch: int
    index: int
    stamp: float
    runs: Runs | None = None


class Outdated(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=3):
    """I am at a higher epoch than you."""

    tablet: str
    epoch: int


class MayDrop(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=4):
    """I am no longer a member, and have entries up to here: do all members have them?"""

    tablet: str
    assignment_id: str
    last: Position


class DropConfirmed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=5):
    """All members have what that replica had, or it is in files: it may be deleted."""

    tablet: str
    assignment_id: str


class ChildStart(msgspec.Struct, frozen=True, gc=False):
    """Have a replica of a tablet that a split is going to make, with the window of replies as its first entry."""

    parent: str
    epoch: int
    child: str
    assignment_id: str
    entry: Entry


class ChildReady(msgspec.Struct, frozen=True, gc=False):
    """It is on my disk."""

    parent: str
    epoch: int
    child: str
    assignment_id: str
    log_id: str


# --- with masters --------------------------------------------------------------------------------


class Resigned(msgspec.Struct, frozen=True, gc=False):
    """I answer nothing for the tablet in this epoch any more; no txn that I gave out for it is above `bound`."""

    tablet: str
    epoch: int
    bound: int
    successor: str | None


class Stuck(msgspec.Struct, frozen=True, gc=False):
    """I cannot commit what waits. Is there another who could?"""

    tablet: str
    epoch: int


class Deleted(msgspec.Struct, frozen=True, gc=False):
    """I have deleted this replica."""

    tablet: str
    replica: Replica


class GiveUp(msgspec.Struct, frozen=True, gc=False):
    """Resign, please."""

    tablet: str
    epoch: int
    successor: str | None = None


class TakeOut(msgspec.Struct, frozen=True, gc=False):
    """Take this replica out of sync, please: it is to go."""

    tablet: str
    epoch: int
    replica: Replica


class Adopt(msgspec.Struct, frozen=True, gc=False):
    """Take over this tablet from a log in the shared root, as this assignment; its leader's lease is over."""

    tablet: str
    number: int
    assignment_id: str
    txn_floor: int


# --- with clients and jobs -----------------------------------------------------------------------


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write these rows, once."""

    tablet: str
    request: RequestId
    rows: Rows


class Read(msgspec.Struct, frozen=True, gc=False):
    """Read at the safe txn, or at `txn`. `token` tells the question from others of the same client."""

    tablet: str
    client: str
    token: int
    row: bytes
    txn: int | None = None
    deadline_seconds: float = 1.0


class FollowerRead(msgspec.Struct, frozen=True, gc=False):
    """Read from whatever replica, at the safe txn that it knows, if that is not staler than this."""

    tablet: str
    client: str
    token: int
    row: bytes
    staleness_seconds_max: float


class CloseGate(msgspec.Struct, frozen=True, gc=False):
    """Stop commits of the tablet for a bulk load, and reserve a txn for it."""

    tablet: str
    client: str
    job: str


class Advance(msgspec.Struct, frozen=True, gc=False):
    """The bulk load is going to be at this txn: give out none up to it."""

    tablet: str
    client: str
    job: str
    txn: int


# What servers send each other, as it is on the wire.
BetweenServers: TypeAlias = Push | Ack | Outdated | MayDrop | DropConfirmed

Message: TypeAlias = (
    Push
    | Ack
    | Outdated
    | MayDrop
    | DropConfirmed
    | ChildStart
    | ChildReady
    | Resigned
    | Stuck
    | Deleted
    | GiveUp
    | TakeOut
    | Adopt
    | Put
    | Read
    | FollowerRead
    | CloseGate
    | Advance
)
