"""What a server reports to the masters: all that it has, then what changed, each until it is acknowledged. Pure.

    start      registration, full report in chunks --> acknowledged --> what changed, while something did
    a reply    needs register: register with the next; needs full report: begin one anew, as for a new master
    a change   goes into every report until one that has it is acknowledged

Heartbeats are numbered over one run. A report that was not acknowledged is made anew, with what is true by then.
"""

from __future__ import annotations

import msgspec

from ebla.master.messages import (
    FullChunk,
    Heartbeat,
    HeartbeatReply,
    Instance,
    Registration,
    RemovedTablet,
    ReplicaLag,
    ReportedTablet,
    TabletReport,
)
from ebla.replication.messages import Resigned, Stuck

__all__ = ["Reporter"]

CHUNK_TABLETS = 1_000


class Reporter:
    """The replicas of one run of a server, and which of them the master has heard of. One thread at a time."""

    def __init__(self, cluster: str, instance: Instance, registration: Registration) -> None:
        # Set once.
        self._cluster = cluster
        self._instance = instance
        self._registration = registration
        # Changed by every call.
        self.term = 0
        """The highest term of a master that was heard of."""
        self.replicas: dict[str, ReportedTablet] = {}
        """What the server has, by tablet."""
        self._sequence = 0
        self._needs_register = True
        self._full: list[str] | None = []  # tablets of the full report under way; None when one was taken
        self._full_number = 0
        self._chunk = 0
        self._changes = 0
        self._changed: dict[str, int] = {}  # tablet -> number of its latest change
        self._removed: dict[RemovedTablet, int] = {}
        self._sent: tuple[int, int] = (0, 0)  # the last report, and the latest change in it
        self._begin_full()

    # --- what happens here ---

    def has(self, replica: ReportedTablet) -> None:
        """Note a replica as it is now."""
        before = self.replicas.get(replica.tablet)
        if before is not None and before.assignment_id != replica.assignment_id:
            self._removed.pop(RemovedTablet(before.tablet, before.assignment_id), None)
        self.replicas[replica.tablet] = replica
        self._removed.pop(RemovedTablet(replica.tablet, replica.assignment_id), None)
        self.repeat(replica.tablet)

    def repeat(self, tablet: str) -> None:
        """Report a replica again, changed or not: a request for it came again."""
        if tablet in self.replicas:
            self._changes += 1
            self._changed[tablet] = self._changes

    def removed(self, tablet: str, assignment_id: str) -> None:
        """Note that a replica is not here, or not any more."""
        self._changes += 1
        replica = self.replicas.get(tablet)
        if replica is not None and replica.assignment_id == assignment_id:
            del self.replicas[tablet]
            self._changed.pop(tablet, None)
        self._removed[RemovedTablet(tablet, assignment_id)] = self._changes

    def change(self, tablet: str, **fields: object) -> None:
        """Note that a replica has changed; one that is not here is passed over."""
        replica = self.replicas.get(tablet)
        if replica is not None:
            self.has(msgspec.structs.replace(replica, **fields))

    # --- messages ---

    @property
    def has_news(self) -> bool:
        """Whether something is to be told that need not wait for the next heartbeat."""
        return bool(self._full is None and (self._changed or self._removed))

    @property
    def is_full_under_way(self) -> bool:
        """Whether more of a full report is to be sent."""
        return self._full is not None

    def heartbeat(
        self,
        oldest_file_microseconds: int | None = None,
        resigned: tuple[Resigned, ...] = (),
        stuck: tuple[Stuck, ...] = (),
        lags: tuple[ReplicaLag, ...] = (),
    ) -> Heartbeat:
        """Return the next heartbeat, with the time of the oldest file that may yet be named from here."""
        self._sequence += 1
        registration = self._registration if self._needs_register else None
        return Heartbeat(
            self._cluster,
            self._instance,
            registration,
            self._report(),
            oldest_file_microseconds,
            resigned,
            stuck,
            lags,
        )

    def _report(self) -> TabletReport | None:
        if self._full is not None:
            if self._chunk == 0:  # nothing of it was taken yet: it begins with what is here now
                self._full, self._full_number = list(self.replicas), self._sequence
            begin = self._chunk * CHUNK_TABLETS
            tablets = [self.replicas[one] for one in self._full[begin : begin + CHUNK_TABLETS] if one in self.replicas]
            is_last = begin + CHUNK_TABLETS >= len(self._full)
            return TabletReport(self._sequence, tuple(tablets), (), FullChunk(self._full_number, self._chunk, is_last))
        if not self._changed and not self._removed:
            return None
        self._sent = (self._sequence, self._changes)
        return TabletReport(self._sequence, tuple(self.replicas[one] for one in self._changed), tuple(self._removed))

    def take_reply(self, heartbeat: Heartbeat, reply: HeartbeatReply) -> None:
        """Take the answer to a heartbeat of this run."""
        if reply.term < self.term or reply.refusal is not None:
            return
        if reply.term > self.term:
            self.term = reply.term
        if reply.needs_register:
            self._needs_register = True
            return
        if heartbeat.registration is not None:
            self._needs_register = False
        report = heartbeat.report
        if report is not None and reply.acknowledged == report.sequence:
            self._acknowledged(report)
        elif reply.needs_full_report:
            self._begin_full()

    def _begin_full(self) -> None:
        self._full, self._chunk = [], 0

    def _acknowledged(self, report: TabletReport) -> None:
        full = report.full
        if full is not None:
            if self._full is not None and (full.number, full.chunk) == (self._full_number, self._chunk):
                self._chunk += 1
                if full.is_last:
                    self._full = None
            return
        sequence, change = self._sent
        if report.sequence == sequence:
            self._changed = {tablet: number for tablet, number in self._changed.items() if number > change}
            self._removed = {one: number for one, number in self._removed.items() if number > change}
