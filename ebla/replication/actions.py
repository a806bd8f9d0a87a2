"""What a machine wants done. A driver carries it out, and says what came of it by the next event.

Send           may get lost
Write          append these records to the log, in this order; then sync, and call `synced`
Free           remove a segment of the log
AskLease, Renew, RaiseBound    of the coordination service; then `lease_taken`,
               `lease_refused`, `renewed`, `lease_lost`, `bound_raised`
ReadMetadata, ChangeMetadata   of METADATA; then `metadata_read`, if anything comes back at all
Serve          read what is committed, at this txn; then call `served`
MakeFile       write entries to a file in the shared root; then call `file_made`
ReadLog        read the log of another server in the shared root; then call `log_read`
Answer         tell a client
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ebla.replication.changes import MemberChange
from ebla.replication.configuration import Position
from ebla.replication.messages import Message
from ebla.replication.recut_changes import RecutChange
from ebla.replication.server_log import Record

__all__ = [
    "Action",
    "Answer",
    "AskLease",
    "Change",
    "ChangeMetadata",
    "Free",
    "MakeFile",
    "Outcome",
    "RaiseBound",
    "ReadLog",
    "ReadMetadata",
    "Renew",
    "Send",
    "Serve",
    "TakeLease",
    "Write",
]

Change: TypeAlias = MemberChange | RecutChange

# What a client is told. "retry": nothing happened, ask again, maybe elsewhere. "unknown": it may have happened, or may
# happen yet; ask again with the same id. "refused": the id is too old to tell whether it happened.
Outcome: TypeAlias = Literal["done", "retry", "unknown", "refused"]


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send these parts together."""

    to: str
    parts: tuple[Message, ...]


class Write(msgspec.Struct, frozen=True, gc=False):
    """Append records to a segment of the log; the first has the number `first`."""

    segment: int
    first: int
    records: tuple[Record, ...]


class Free(msgspec.Struct, frozen=True, gc=False):
    """Nothing in this segment is needed any more."""

    segment: int


class AskLease(msgspec.Struct, frozen=True, gc=False):
    """Begin the lease behind the one of number `after`, for this run of the server; refused if that is not the last.

    A copy that arrives late finds another number, and ends no lease that the server goes by.
    """

    start: int
    log_id: str
    after: int
    asked_at: float


class Renew(msgspec.Struct, frozen=True, gc=False):
    """Renew the lease of this number."""

    number: int
    asked_at: float


class RaiseBound(msgspec.Struct, frozen=True, gc=False):
    """Raise the bound of the server's txns, if its lease has this number."""

    number: int
    bound: int


class TakeLease(msgspec.Struct, frozen=True, gc=False):
    """End the lease of a server, if its number and version are still these. (Of a master.)"""

    server: str
    number: int
    version: int


class ReadMetadata(msgspec.Struct, frozen=True, gc=False):
    """Read METADATA."""


class ChangeMetadata(msgspec.Struct, frozen=True, gc=False):
    """Make these changes, each by itself if it fits; it is asked again until METADATA shows what became of them."""

    changes: tuple[Change, ...]


class Serve(msgspec.Struct, frozen=True, gc=False):
    """Read a row of a replica, of entries up to `commit` and files of METADATA as it is held here, at `txn`."""

    tablet: str
    assignment_id: str
    epoch: int
    client: str
    token: int
    row: bytes
    txn: int
    commit: int
    is_follower: bool = False


class MakeFile(msgspec.Struct, frozen=True, gc=False):
    """Write the entries behind `base` up to `upto` to a new file, and sync it."""

    tablet: str
    assignment_id: str
    epoch: int
    base: Position
    upto: Position


class ReadLog(msgspec.Struct, frozen=True, gc=False):
    """Read what the log of another server has of one replica, and note where that log ends."""

    tablet: str
    server: str
    log_id: str
    assignment_id: str


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Tell a client what became of its request, and by which txn. `epoch` and `lease`: under which it is told."""

    client: str
    token: int
    tablet: str
    outcome: Outcome
    txn: int = 0
    epoch: int = 0
    lease: int = 0
    number: int = 0


Action: TypeAlias = (
    Send
    | Write
    | Free
    | AskLease
    | Renew
    | RaiseBound
    | TakeLease
    | ReadMetadata
    | ChangeMetadata
    | Serve
    | MakeFile
    | ReadLog
    | Answer
)
