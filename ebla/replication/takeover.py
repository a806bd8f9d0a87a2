"""Taking over a tablet with one replica from a log in the shared root, after the lease of its server is over.

    Adopt (master) --> ReadLog --> what the log has of the tablet, and where it ends --> into the own log --> synced
          --> METADATA: the next epoch is led here, and **nothing behind that end is ever replayed**

The process that led may be stopped and not dead: it goes on writing through an open file when it wakes up. What it
writes behind the end is nobody's; it cannot tell any client that it was written, since its lease is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ebla.replication.actions import ReadLog
from ebla.replication.append_log import AppendLog, Gap
from ebla.replication.changes import TakeOver
from ebla.replication.configuration import LogEnd, Replica
from ebla.replication.host import Host
from ebla.replication.messages import Adopt
from ebla.replication.replica import TabletReplica
from ebla.replication.server_log import Key, Record, replay

__all__ = ["Takeovers"]


class _Takeover:
    __slots__ = ("adopt", "change", "sequence")

    def __init__(self, adopt: Adopt) -> None:
        self.adopt = adopt
        self.sequence: int | None = None
        self.change: TakeOver | None = None


class Takeovers:
    """The tablets that this server is about to take over, by their ids."""

    __slots__ = ("_host", "_make", "_replicas", "_under_way")

    def __init__(self, host: Host, replicas: Mapping[Key, TabletReplica], make: Callable[[Key], TabletReplica]) -> None:
        self._host = host
        self._replicas = replicas
        self._make = make
        self._under_way: dict[str, _Takeover] = {}

    def adopt(self, adopt: Adopt) -> None:
        """A master asks for it."""
        table = self._host.table
        known = self._under_way.get(adopt.tablet)
        if table is None or (known is not None and known.adopt.number >= adopt.number):
            return
        if (adopt.tablet, adopt.assignment_id) in self._replicas:
            return  # begun by an earlier run of this server, which may have written a part of it: another id is needed
        configuration = table.tablets.get(adopt.tablet)
        if configuration is None or configuration.number != adopt.number or len(configuration.in_sync) != 1:
            self._host.read_metadata()
            return
        self._under_way[adopt.tablet] = _Takeover(adopt)
        old = configuration.in_sync[0]
        self._host.act(ReadLog(adopt.tablet, old.server, old.log_id, old.assignment_id))

    def log_read(self, read: ReadLog, records: Sequence[tuple[int, Record]], end: int) -> None:
        """The log was read up to its end: what counts of it goes into the own log."""
        host = self._host
        one = self._under_way.get(read.tablet)
        table = host.table
        if one is None or one.sequence is not None or table is None:
            return
        configuration = table.tablets.get(read.tablet)
        if configuration is None or configuration.number != one.adopt.number:
            del self._under_way[read.tablet]
            return
        found = replay(records, configuration.log_ends).get((read.tablet, read.assignment_id))
        try:
            log = AppendLog.replayed(found.entries if found is not None else {}, configuration.flushed)
        except Gap:  # what was removed of that log is flushed by METADATA that is newer than this
            del self._under_way[read.tablet]
            host.read_metadata()
            return
        replica = self._make((read.tablet, one.adopt.assignment_id))
        replica.begin_with(configuration.flushed, log.entries, is_on_disk=False)
        replica.learn(configuration)
        one.sequence = host.log.next_sequence - 1
        one.change = TakeOver(
            read.tablet,
            configuration.number,
            Replica(host.name, one.adopt.assignment_id, host.log_id, True),
            host.lease.number,
            one.adopt.txn_floor,
            LogEnd(read.assignment_id, read.log_id, end),
        )

    def tick(self) -> None:
        """Ask METADATA for what is on disk here, until it shows what became of it."""
        host = self._host
        for tablet, one in list(self._under_way.items()):
            configuration = None if host.table is None else host.table.tablets.get(tablet)
            if configuration is None or configuration.number > one.adopt.number:
                del self._under_way[tablet]
            elif one.change is not None and one.sequence is not None and one.sequence <= host.log.synced:
                host.change(one.change)
