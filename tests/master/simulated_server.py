"""A tablet server as far as a master can tell: it has replicas, does as it is asked, and reports until it is heard."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from ebla.master.messages import (
    AlterTablet,
    CreateTablet,
    DeleteTablet,
    FullChunk,
    Heartbeat,
    HeartbeatReply,
    Instance,
    Registration,
    RemovedTablet,
    ReportedTablet,
    Request,
    Requests,
    TabletReport,
    UpdateTablet,
)

CHUNK_TABLETS = 2  # small, so that most full reports have several chunks


class SimulatedReplica:
    """What a server keeps of a tablet on its disk."""

    __slots__ = ("assignment_id", "epoch", "leader", "state", "table", "tablet", "version")

    def __init__(self, request: CreateTablet) -> None:
        self.tablet = request.tablet
        self.table = request.table
        self.assignment_id = request.assignment_id
        self.epoch = request.epoch
        self.leader = request.leader
        self.version = request.schema.version
        self.state = "running"

    def report(self) -> ReportedTablet:
        return ReportedTablet(self.tablet, self.table, self.assignment_id, self.state, self.version, self.epoch)


class SimulatedServer:
    """One server. Its replicas outlive its crashes; what it has to report does not need to."""

    def __init__(
        self,
        uuid: str,
        host: str,
        cluster_id: str,
        on_lead: Callable[[str, str, int], None],
        on_delete: Callable[[str, SimulatedReplica], None],
    ) -> None:
        self.uuid = uuid
        self.replicas: dict[str, SimulatedReplica] = {}
        self.seqno = 0
        self.is_up = False
        self.is_failing = False  # creates nothing, as with a full disk
        self._registration = Registration(host, f"{host}:7070")
        self._cluster_id = cluster_id
        self._on_lead = on_lead
        self._on_delete = on_delete
        self.start()

    def start(self) -> None:
        self.is_up = True
        self.seqno += 1
        self._term = 0
        self._sequence = 0
        self._needs_register = True
        self._needs_full = True
        self._full: list[ReportedTablet] | None = None
        self._full_number = 0
        self._chunk = 0
        self._changed: dict[str, int] = {}  # tablet -> number of its latest change
        self._removed: dict[tuple[str, str], int] = {}
        self._changes = 0
        self._sent: dict[int, int] = {}  # report -> the latest change in it
        for replica in self.replicas.values():
            self._lead(replica)

    def crash(self) -> None:
        self.is_up = False

    def _lead(self, replica: SimulatedReplica) -> None:
        if replica.leader == self.uuid and replica.state == "running":
            self._on_lead(replica.tablet, self.uuid, replica.epoch)

    # --- reporting ---

    def heartbeat(self) -> Heartbeat:
        self._sequence += 1
        report = None
        if self._needs_full:
            if self._full is None:
                self._full = [replica.report() for replica in self.replicas.values()]
                self._full_number, self._chunk = self._sequence, 0
            begin = self._chunk * CHUNK_TABLETS
            tablets = self._full[begin : begin + CHUNK_TABLETS]
            is_last = begin + CHUNK_TABLETS >= len(self._full)
            chunk = FullChunk(self._full_number, self._chunk, is_last)
            report = TabletReport(self._sequence, tuple(tablets), (), chunk)
        elif self._changed or self._removed:
            tablets = [self.replicas[tablet].report() for tablet in self._changed if tablet in self.replicas]
            removed = tuple(RemovedTablet(*key) for key in self._removed)
            report = TabletReport(self._sequence, tuple(tablets), removed)
            self._sent[self._sequence] = self._changes
        registration = self._registration if self._needs_register else None
        return Heartbeat(self._cluster_id, Instance(self.uuid, self.seqno), registration, report)

    def take_reply(self, heartbeat: Heartbeat, reply: HeartbeatReply) -> None:
        if heartbeat.instance.seqno != self.seqno or reply.term < self._term or reply.refusal is not None:
            return
        self._term = reply.term
        report = heartbeat.report
        if heartbeat.registration is not None:
            self._needs_register = False
        if reply.needs_register:
            self._needs_register = True
            return
        if report is not None and reply.acknowledged == report.sequence:
            if report.full is None:
                self._acknowledged(self._sent.get(report.sequence, 0))
            elif self._full is not None and (report.full.number, report.full.chunk) == (self._full_number, self._chunk):
                self._chunk += 1
                if report.full.is_last:
                    self._needs_full, self._full = False, None
        elif reply.needs_full_report:
            self._needs_full, self._full = True, None

    def _acknowledged(self, change: int) -> None:
        self._changed = {tablet: number for tablet, number in self._changed.items() if number > change}
        self._removed = {key: number for key, number in self._removed.items() if number > change}

    def _change(self, tablet: str) -> None:
        self._changes += 1
        self._changed[tablet] = self._changes

    # --- splitting by itself ---

    def split(self, parent: str, children: tuple[str, str]) -> None:
        """Have two replicas in the place of one, as METADATA has it already."""
        whole = self.replicas.pop(parent)
        self._changes += 1
        self._removed[(parent, whole.assignment_id)] = self._changes
        self._changed.pop(parent, None)
        for child in children:
            half = self.replicas[child] = copy(whole)
            half.tablet = child
            self._lead(half)
            self._change(child)

    # --- doing as it is asked ---

    def take_requests(self, requests: Requests) -> None:
        if requests.term < self._term:
            return  # of a master that is none any more
        self._term = requests.term
        for request in requests.requests:
            self._take(request)

    def _take(self, request: Request) -> None:
        replica = self.replicas.get(request.tablet)
        if isinstance(request, CreateTablet):
            if replica is None:
                if self.is_failing:
                    return
                replica = self.replicas[request.tablet] = SimulatedReplica(request)
                self._removed.pop((replica.tablet, replica.assignment_id), None)
                self._lead(replica)
            self._change(request.tablet)
            return
        if replica is None or replica.assignment_id != request.assignment_id:
            if isinstance(request, DeleteTablet):
                self._changes += 1
                self._removed[(request.tablet, request.assignment_id)] = self._changes
                if replica is not None:
                    self._change(request.tablet)
            return
        match request:
            case UpdateTablet():
                if request.epoch >= replica.epoch:
                    replica.epoch, replica.leader = request.epoch, request.leader
                    replica.state = "stopped" if request.is_stopped else "running"
                    self._lead(replica)
            case AlterTablet():
                replica.version = max(replica.version, request.schema.version)
            case DeleteTablet():
                self._on_delete(self.uuid, replica)
                del self.replicas[request.tablet]
                self._changes += 1
                self._removed[(request.tablet, request.assignment_id)] = self._changes
                self._changed.pop(request.tablet, None)
                return
        self._change(request.tablet)
