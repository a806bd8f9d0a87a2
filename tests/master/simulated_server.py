"""A tablet server as far as a master can tell: it has replicas, does as it is asked, and reports until it is heard."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Protocol

import msgspec

from ebla.master.messages import (
    AlterTablet,
    CreateTablet,
    DeleteTablet,
    FullChunk,
    GiveUpTablet,
    HandOverTablet,
    Heartbeat,
    HeartbeatReply,
    Instance,
    Registration,
    RemovedTablet,
    ReportedTablet,
    Request,
    Requests,
    Resigned,
    TabletReport,
    TakeOutReplica,
    UpdateTablet,
)
from ebla.metadata.values.runs import run_name
from ebla.metadata.values.table_metadata import Replica, TabletMetadata

CHUNK_TABLETS = 2  # small, so that most full reports have several chunks


class SimulatedReplica:
    """What a server keeps of a tablet on its disk."""

    __slots__ = ("assignment_id", "epoch", "has_resigned", "leader", "state", "table", "tablet", "version")

    def __init__(self, request: CreateTablet) -> None:
        self.tablet = request.tablet
        self.table = request.table
        self.assignment_id = request.assignment_id
        self.epoch = request.epoch
        self.leader = request.leader
        self.version = request.schema.version
        self.state = "running"
        self.has_resigned = False

    def report(self) -> ReportedTablet:
        return ReportedTablet(self.tablet, self.table, self.assignment_id, self.state, self.version, self.epoch)


class Hands(Protocol):
    """How servers change METADATA when a tablet changes hands."""

    is_single: bool  # tablets have one replica

    def take_over(self, server: str, request: CreateTablet) -> int | None:
        """Have a tablet that nobody leads; return the epoch that it is led at, None if METADATA refuses."""

    def take_own_again(self, server: str, replica: SimulatedReplica) -> int | None:
        """Lead a tablet again after a restart."""

    def resign(self, server: str, replica: SimulatedReplica) -> bool:
        """Lead a tablet no more."""

    def tablet_of(self, replica: SimulatedReplica) -> TabletMetadata | None:
        """Read METADATA of a tablet."""

    def keep_in_sync(self, server: SimulatedServer, replica: SimulatedReplica, out: Replica | None) -> None:
        """Do what the leader of a replicated tablet does about its in-sync set."""


class SimulatedServer:
    """One server. Its replicas outlive its crashes; what it has to report does not need to."""

    def __init__(
        self,
        uuid: str,
        host: str,
        cluster_id: str,
        on_lead: Callable[[str, str, int], None],
        on_delete: Callable[[str, SimulatedReplica], None],
        hands: Hands,
    ) -> None:
        self.uuid = uuid
        self.replicas: dict[str, SimulatedReplica] = {}
        self.seqno = 0
        self.is_up = False
        self.is_failing = False  # creates nothing, as with a full disk
        self._host = host
        self.disks = 1
        self._cluster_id = cluster_id
        self._on_lead = on_lead
        self._on_delete = on_delete
        self._hands = hands
        self.start()

    @property
    def log_id(self) -> str:
        return f"{self.uuid}-log{self.disks}"

    @property
    def run(self) -> str:
        return run_name(self.uuid, self.seqno)

    def wipe(self) -> None:
        """Lose the disk, while it is down."""
        self.disks += 1
        self.replicas.clear()

    def start(self) -> None:
        self.is_up = True
        self.seqno += 1
        self._term = 0
        self._sequence = 0
        self._lost_beats: int | None = None  # heartbeats since the lease was lost
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
            self._take_own_again(replica)
            self._lead(replica)

    def lose_lease(self) -> None:
        """What was led is never led at that epoch again, and the master is told."""
        self._lost_beats = 0
        for replica in self.replicas.values():
            if replica.leader == self.uuid and replica.state == "running":
                replica.state = "failed"
                self._change(replica.tablet)

    def _take_own_again(self, replica: SimulatedReplica) -> None:
        """After a restart a server leads at a new epoch, or not at all."""
        if not self._hands.is_single:
            replica.has_resigned = replica.leader == self.uuid  # of the run before: it is none of this one's epochs
            return
        if replica.leader != self.uuid:
            return
        epoch = self._hands.take_own_again(self.uuid, replica)
        replica.leader = None if epoch is None else self.uuid
        replica.epoch = epoch or replica.epoch
        replica.state = "stopped" if epoch is None else "running"

    def crash(self) -> None:
        self.is_up = False

    def _lead(self, replica: SimulatedReplica) -> None:
        if replica.leader == self.uuid and replica.state == "running" and not replica.has_resigned:
            self._on_lead(replica.tablet, self.uuid, replica.epoch)

    # --- reporting ---

    def heartbeat(self) -> Heartbeat:
        self._sequence += 1
        if self._lost_beats is not None:
            self._lost_beats += 1
            if self._lost_beats == 3:  # it has a lease again: what nobody else was given meanwhile, it leads again
                self._lost_beats = None
                for replica in self.replicas.values():
                    if replica.state == "failed":
                        self._take_own_again(replica)
                        self._lead(replica)
                        self._change(replica.tablet)
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
        registration = Registration(self._host, f"{self._host}:7070", self.log_id) if self._needs_register else None
        resigned = tuple(Resigned(*one, 7, None) for one in self._look_at_replicated())
        instance = Instance(self.uuid, self.seqno)
        return Heartbeat(self._cluster_id, instance, registration, report, resigned=resigned)

    def _look_at_replicated(self) -> list[tuple[str, int]]:
        """See to what is led here of tablets with several replicas; return what was resigned, while it is news."""
        resigned = []
        for replica in self.replicas.values():
            tablet = self._hands.tablet_of(replica)
            if tablet is None or not tablet.is_replicated or (tablet.leader, tablet.log) != (self.uuid, self.run):
                continue
            if replica.epoch == tablet.epoch and replica.has_resigned:
                resigned.append((replica.tablet, replica.epoch))
            elif replica.epoch == tablet.epoch and replica.state == "running":
                self._hands.keep_in_sync(self, replica, None)
        return resigned

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
            if self.is_failing:
                return
            if request.leader is None:
                epoch = self._hands.take_over(self.uuid, request)
                if epoch is None:
                    return
                request = msgspec.structs.replace(request, leader=self.uuid, epoch=epoch)
                replica = None
            if replica is not None and replica.assignment_id != request.assignment_id:
                replica = None  # it goes on with what it has, by the new assignment
            if replica is None:
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
                replica.has_resigned &= request.epoch <= replica.epoch
                if request.epoch > replica.epoch or (request.epoch == replica.epoch and replica.state != "failed"):
                    replica.epoch, replica.leader = request.epoch, request.leader
                    is_back = replica.state == "stopped" and not request.is_stopped
                    replica.state = "stopped" if request.is_stopped else "running"
                    if is_back:
                        self._take_own_again(replica)
                    self._lead(replica)
            case HandOverTablet():
                if request.epoch == replica.epoch and self._hands.resign(self.uuid, replica):
                    replica.leader, replica.epoch = None, replica.epoch + 1
            case GiveUpTablet():
                replica.has_resigned |= request.epoch == replica.epoch and replica.leader == self.uuid
            case TakeOutReplica():
                if request.epoch == replica.epoch and replica.leader == self.uuid and not replica.has_resigned:
                    self._hands.keep_in_sync(self, replica, request.replica)
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
