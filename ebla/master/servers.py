"""The tablet servers that a master has heard of in its term (TSManager). In memory only: servers register again.

    unknown --registration--> registered --all chunks of a full report--> known whole --silence--> dead
                                  ^                                            |                     |
                                  `---------------- a higher seqno: restarted -'---- heard again ----'

A server is its permanent uuid; the seqno counts its starts. A heartbeat of an older run than the newest one heard is a
message from the past and is refused. Until a server has sent a full report in this term, nobody can tell what it does
*not* have.

What a server reported is kept lean: for a replica that METADATA assigns to it, one shared value (epoch, schema version,
state) under the catalog's own copy of the tablet's id. Everything else it reports is a *stray*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ebla.master.messages import Instance, Registration, ReplicaLag, ReportedTablet, Resigned, Stuck

__all__ = ["ReplicaState", "Server", "Servers", "StaleInstance"]


class StaleInstance(Exception):
    """A message of an older run of a server."""


class ReplicaState(NamedTuple):
    """What a server said last about a replica that it is to have."""

    epoch: int
    schema_version: int
    state: str


@dataclass(slots=True)
class Server:
    """One run of a server."""

    instance: Instance
    registration: Registration
    heard_seconds: float
    reported: dict[str, ReplicaState] = field(default_factory=dict)
    strays: dict[str, ReportedTablet] = field(default_factory=dict)  # replicas that it should not have
    unknown: dict[str, ReportedTablet] = field(default_factory=dict)  # tablets nobody knows: left alone, and shown
    sequence: int = -1  # of the newest report
    is_whole: bool = False  # a full report was taken, so that what is not in `reported` is not there
    full_number: int | None = None  # the full report that is being received
    full_chunk: int = 0  # the chunk that is expected next
    full_seen: dict[str, None] = field(default_factory=dict)
    oldest_file_microseconds: int | None = None  # of the names of files that it may yet make METADATA name
    lags: tuple[ReplicaLag, ...] = ()  # replicas of what it leads that are behind

    @property
    def uuid(self) -> str:
        """The permanent name of the server."""
        return self.instance.uuid

    def has_nothing_of(self, tablet: str) -> bool:
        """Whether it is certain that the server has no replica of a tablet."""
        return self.is_whole and tablet not in self.reported and tablet not in self.strays


class Servers:
    """All servers of a term."""

    def __init__(self, started_seconds: float) -> None:
        self._started_seconds = started_seconds
        self._servers: dict[str, Server] = {}
        self._states: dict[tuple[int, int, str], ReplicaState] = {}  # one copy of each value
        self._forgotten: dict[str, None] = {}  # removed by people: nobody waits for them
        self._over: dict[str, None] = {}  # servers whose lease was taken away, and that were not heard since
        self._unheld: dict[str, None] = {}  # the same, until one of their runs is seen to hold a lease again
        self.orphans: dict[str, tuple[str, int]] = {}
        """Tablets whose leader lost its lease: the leader, and the epoch that it can never lead at again."""
        self.failed: dict[str, str] = {}
        """Tablets that their server has reported as failed."""
        self.resigned: dict[tuple[str, int], Resigned] = {}
        """What leaders of replicated tablets said when they resigned, by tablet and epoch."""
        self.stuck: dict[tuple[str, int], None] = {}
        """Replicated tablets whose leader cannot commit, and asks whether another could."""

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers.values())

    def get(self, uuid: str) -> Server | None:
        """Return a server that is registered."""
        return self._servers.get(uuid)

    def register(self, instance: Instance, registration: Registration, now: float) -> Server:
        """Take a registration; of a new run it is a server that nothing is known of. `StaleInstance` of an old run."""
        known = self._servers.get(instance.uuid)
        if known is not None and known.instance.seqno > instance.seqno:
            raise StaleInstance
        if known is not None and known.instance.seqno == instance.seqno:
            known.registration = registration
            return known
        server = self._servers[instance.uuid] = Server(instance, registration, now)
        self._forgotten.pop(instance.uuid, None)
        return server

    def of(self, instance: Instance) -> Server | None:
        """Return the server of this run; None if this run has to register. `StaleInstance` of an old run."""
        server = self._servers.get(instance.uuid)
        if server is None or server.instance.seqno < instance.seqno:
            return None
        if server.instance.seqno > instance.seqno:
            raise StaleInstance
        return server

    def is_dead(self, uuid: str, now: float, timeout_seconds: float) -> bool:
        """Whether a server was not heard for so long; one that never was counts from the start of the term."""
        server = self._servers.get(uuid)
        heard = self._started_seconds if server is None else server.heard_seconds
        return now - heard > timeout_seconds

    def may_be_coming(self, now: float, timeout_seconds: float) -> bool:
        """Whether the term is so young that servers which are alive may not have been heard in it yet."""
        return now - self._started_seconds <= timeout_seconds

    def live(self, now: float, timeout_seconds: float) -> list[Server]:
        """Return the servers that can be given tablets: heard lately, and known whole."""
        return [
            server
            for server in self
            if server.is_whole and now - server.heard_seconds <= timeout_seconds and server.uuid not in self._over
        ]

    def lease_over(self, uuid: str, led: Iterable[tuple[str, int]]) -> None:
        """Take note that a server's lease was taken away: it leads these tablets, at these epochs, never again."""
        self._over[uuid] = self._unheld[uuid] = None
        self.orphans.update((tablet, (uuid, epoch)) for tablet, epoch in led)

    def lease_held(self, uuid: str) -> None:
        """Take note that a server holds its lease: it runs, whether it was heard or not.

        What its run before led stays lost, and nobody chooses it before it was heard.
        """
        self._unheld.pop(uuid, None)

    def told(self, server: Server, resigned: Iterable[Resigned], stuck: Iterable[Stuck]) -> None:
        """Take note of what a leader of replicated tablets says. Who is heard no more is stuck no more."""
        self.resigned.update(((one.tablet, one.epoch), one) for one in resigned)
        self.stuck.update(((one.tablet, one.epoch), None) for one in stuck)

    def forget_messages(self, is_current: Callable[[str, int], bool]) -> None:
        """Forget what was said of epochs that are over. Whoever is still stuck says so again."""
        self.stuck.clear()
        for key in [key for key in self.resigned if not is_current(*key)]:
            del self.resigned[key]

    def heard(self, server: Server, now: float) -> None:
        """Take note that a server is there. What it led before its lease was over, it does not lead."""
        server.heard_seconds = now
        self._over.pop(server.uuid, None)
        self._unheld.pop(server.uuid, None)

    def is_over(self, uuid: str | None) -> bool:
        """Whether a server's lease was taken away, and it was not heard since."""
        return uuid in self._over

    def is_gone(self, uuid: str, now: float, timeout_seconds: float) -> bool:
        """Whether a server was not heard for so long, and nobody held its lease when that was looked at last.

        Silence alone is not enough: a server that is cut off from the masters may hold its lease, and acknowledge.
        """
        return uuid in self._unheld and self.is_dead(uuid, now, timeout_seconds)

    def runs(self, uuid: str, tablet: str, epoch: int) -> bool:
        """Whether a server has said that it serves its replica of a tablet at this epoch, or a later one."""
        state = self.reported(uuid, tablet)
        return state is not None and state.state == "running" and state.epoch >= epoch

    def shared(self, epoch: int, schema_version: int, state: str) -> ReplicaState:
        """Return the one copy of a replica's state."""
        known = self._states.get((epoch, schema_version, state))
        if known is None:
            known = ReplicaState(epoch, schema_version, state)
            self._states[known] = known
        return known

    def reported(self, uuid: str, tablet: str) -> ReplicaState | None:
        """Return what a server said last about a replica that it is to have; None if it said nothing."""
        server = self._servers.get(uuid)
        return None if server is None else server.reported.get(tablet)

    def confirms_absence(self, uuid: str, tablet: str) -> bool:
        """Whether it is certain that a server has nothing of a tablet, or will never be heard of again."""
        server = self._servers.get(uuid)
        return uuid in self._forgotten if server is None else server.has_nothing_of(tablet)

    def forget(self, uuid: str) -> None:
        """Stop waiting for a server that people say is gone for good. If it returns it is treated as new."""
        self._servers.pop(uuid, None)
        self._forgotten[uuid] = None
