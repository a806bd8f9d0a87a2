"""What tablet servers and master say to each other. Values, ready for the wire.

    server  --Heartbeat-->       master        who I am, how often I was started, what changed on me
    server  <--HeartbeatReply--  master        register; send a full report; I have seen your report
    server  <--Requests--------  master        create, update, hand over, alter, delete: what a tablet should be
                                               give up, take out: what the leader of one with replicas should do

A server repeats what it has to report until the reply acknowledges it; the master repeats a request until a report
shows the state that it asked for. So either side may lose any message, and gets some of them twice or late:

- Every report has a number that grows with every message of one run of a server: a late one is recognised.
- A full report comes in numbered chunks. One that was begun with another master is not continued with the next.
- Every request names the assignment that it is about, and carries the master's term: a server takes no request of a
  lower term than it has seen, and deletes no replica by a request for another one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ebla.metadata.values.table_metadata import Replica
from ebla.model.schema import TableSchema
from ebla.replication.messages import Resigned, Stuck

__all__ = [
    "AlterTablet",
    "CreateTablet",
    "DeleteTablet",
    "FullChunk",
    "GiveUpTablet",
    "HandOverTablet",
    "Heartbeat",
    "HeartbeatReply",
    "Instance",
    "Refusal",
    "Registration",
    "RemovedTablet",
    "ReplicaLag",
    "ReplicateTablet",
    "ReportedTablet",
    "Request",
    "Requests",
    "Resigned",
    "Stuck",
    "TabletReport",
    "TabletReportState",
    "TakeOutReplica",
    "UpdateTablet",
]

TabletReportState: TypeAlias = Literal["creating", "running", "stopped", "failed"]


class Instance(msgspec.Struct, frozen=True):
    """A server, and which of its runs this is."""

    uuid: str
    seqno: int


class Registration(msgspec.Struct, frozen=True):
    """Where a server is: `host` tells which servers fail together. `log_id` names the log that it keeps replicas in.

    A log that was lost or damaged has another id when it begins anew. "": it can keep none.
    """

    host: str
    address: str
    log_id: str = ""


class ReportedTablet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A replica as its server has it."""

    tablet: str
    table: str
    assignment_id: str
    state: TabletReportState
    schema_version: int
    epoch: int


class RemovedTablet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A replica that its server no longer has."""

    tablet: str
    assignment_id: str


class ReplicaLag(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a replica is behind, as the leader of its tablet sees it. For people."""

    tablet: str
    server: str
    entries: int
    seconds: float


class FullChunk(msgspec.Struct, frozen=True):
    """Which part of which full report this is; chunks count from 0."""

    number: int
    chunk: int
    is_last: bool


class TabletReport(msgspec.Struct, frozen=True):
    """What changed since the last report that was acknowledged, or a part of all there is."""

    sequence: int
    tablets: tuple[ReportedTablet, ...] = ()
    removed: tuple[RemovedTablet, ...] = ()
    full: FullChunk | None = None


class Heartbeat(msgspec.Struct, frozen=True):
    """I am alive."""

    cluster_id: str
    instance: Instance
    registration: Registration | None = None
    report: TabletReport | None = None
    oldest_file_microseconds: int | None = None  # of the names of files that it may yet make METADATA name
    resigned: tuple[Resigned, ...] = ()  # repeated until METADATA has a higher epoch, like `stuck`
    stuck: tuple[Stuck, ...] = ()
    lags: tuple[ReplicaLag, ...] = ()


class Refusal(msgspec.Struct, frozen=True):
    """Why a heartbeat was not taken: the server stops what it does and says so to people."""

    code: Literal["wrong_cluster", "old_instance", "invalid"]
    message: str


class HeartbeatReply(msgspec.Struct, frozen=True):
    """I have heard you."""

    term: int
    needs_register: bool = False
    needs_full_report: bool = False
    acknowledged: int | None = None  # the number of the report that was taken
    refusal: Refusal | None = None


class CreateTablet(msgspec.Struct, frozen=True, tag="create"):
    """Have a replica of this tablet. A server that has this very replica reports it again."""

    tablet: str
    table: str
    assignment_id: str
    first: bytes
    last: bytes | None
    schema: TableSchema
    epoch: int
    leader: str | None  # None: it is offered to this server, which takes it over from whoever led it before
    replicas: tuple[Replica, ...]
    number: int = 0  # of its configuration: METADATA says what there is to know


class UpdateTablet(msgspec.Struct, frozen=True, tag="update"):
    """The epoch, who leads in it, and whether the tablet is served. A lower epoch than is known changes nothing."""

    tablet: str
    assignment_id: str
    epoch: int
    leader: str | None
    replicas: tuple[Replica, ...]
    is_stopped: bool  # the table is deleted: keep everything, serve nothing
    number: int = 0


class HandOverTablet(msgspec.Struct, frozen=True, tag="hand over"):
    """Another server is to lead this tablet: flush it, stop serving it, and resign in METADATA."""

    tablet: str
    assignment_id: str
    epoch: int
    target: Replica


class AlterTablet(msgspec.Struct, frozen=True, tag="alter"):
    """Use this schema. A lower version than is known changes nothing."""

    tablet: str
    assignment_id: str
    schema: TableSchema


class GiveUpTablet(msgspec.Struct, frozen=True, tag="give up"):
    """Lead this tablet no more, if it is at this epoch: answer nothing for it, and report `Resigned`.

    `successor` is to lead it next, if it can.
    """

    tablet: str
    assignment_id: str
    epoch: int
    successor: str | None = None


class ReplicateTablet(msgspec.Struct, frozen=True, tag="replicate"):
    """Have a tablet that you lead alone want so many replicas: flush it, and say so in METADATA while it is paused.

    What is only in the log of a tablet with one replica is nobody else's: so its leader alone begins to have others.
    """

    tablet: str
    assignment_id: str
    epoch: int
    wanted: int


class TakeOutReplica(msgspec.Struct, frozen=True, tag="take out"):
    """Take this replica of a tablet that you lead out of sync when `needed` remain without it: it is to go."""

    tablet: str
    assignment_id: str
    epoch: int
    replica: Replica


class DeleteTablet(msgspec.Struct, frozen=True, tag="delete"):
    """Remove this replica for good."""

    tablet: str
    assignment_id: str


Request: TypeAlias = (
    CreateTablet
    | UpdateTablet
    | HandOverTablet
    | AlterTablet
    | GiveUpTablet
    | TakeOutReplica
    | ReplicateTablet
    | DeleteTablet
)


class Requests(msgspec.Struct, frozen=True):
    """What a master asks of one server at one time."""

    term: int
    server: str
    requests: tuple[Request, ...]
