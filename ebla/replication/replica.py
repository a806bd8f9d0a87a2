"""One replica of a tablet on a server: its log, its epoch, and the part that it plays, leader or follower.

    METADATA --learn--> epoch, flushed point --> leads (leader.py), follows or learns (follower.py), or is leaving

A replica is known by tablet *and* assignment id: one that was removed and one that came in its place are two.

Its epoch never goes back: it is written to the log before anything is acknowledged under it, and read back from there.
Before METADATA was read it plays no part.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ebla.metadata.values.tablet_metadata import Replica as Assigned
from ebla.replication.append_log import AppendLog, Gap
from ebla.replication.configuration import NOWHERE, Configuration, Position
from ebla.replication.follower import Follower
from ebla.replication.host import Host
from ebla.replication.leader import Leader
from ebla.replication.messages import Entry, MayDrop
from ebla.replication.server_log import Appended, Dropped, Replayed, Standing

if TYPE_CHECKING:
    from ebla.replication.server_log import Key

__all__ = ["TabletReplica"]


class TabletReplica:
    """A tablet as this server has it."""

    __slots__ = (
        "_found",
        "_unsynced",
        "assignment_id",
        "commit",
        "configuration",
        "durable",
        "epoch",
        "follower",
        "host",
        "is_leaving",
        "key",
        "leader",
        "log",
        "tablet",
    )

    def __init__(self, host: Host, key: Key, replayed: Replayed | None = None) -> None:
        self.host = host
        self.key = key
        self.tablet, self.assignment_id = key
        self.epoch = 0
        self.configuration: Configuration | None = None
        self.log = AppendLog()
        self.commit = 0
        self.durable = 0  # the log is on disk up to this index
        self.leader: Leader | None = None
        self.follower = Follower(self)
        self.is_leaving = False
        self._unsynced: deque[tuple[int, int]] = deque()  # number of a record, index that is on disk with it
        self._found: dict[int, Entry] | None = None  # by a replay; the flushed point is yet to be known
        if replayed is not None:
            self.epoch = replayed.epoch
            self._found = replayed.entries
        else:
            host.write(Standing(key, 0))

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be done when the log is on disk further than it is."""
        return bool(self._unsynced) or self.follower.is_waiting

    @property
    def is_loaded(self) -> bool:
        """Whether METADATA has told from where on what was found on disk counts."""
        return self._found is None

    # --- the log ---------------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Add an entry, here and on disk."""
        self.log.append(entry)
        self._unsynced.append((self.host.write(Appended(self.key, entry)), entry.index))

    def drop_from(self, index: int) -> None:
        """Remove entries that the leader does not have, here and on disk."""
        self.log.drop_from(index)
        self._unsynced = deque(one for one in self._unsynced if one[1] < index)
        self.durable = min(self.durable, self.log.last_index)  # a group is dropped as a whole
        self.host.write(Dropped(self.key, index))

    def synced(self, sequence: int) -> None:
        """The server's log is on disk up to this record."""
        unsynced = self._unsynced
        while unsynced and unsynced[0][0] <= sequence:
            self.durable = max(self.durable, unsynced.popleft()[1])
        if self.leader is not None:
            self.leader.advance()
        elif self.configuration is not None:
            self.follower.synced(sequence)

    def begin_with(self, flushed: Position, entries: list[Entry], is_on_disk: bool) -> None:
        """Begin with entries behind a flushed point: found on disk, or to be written there."""
        self._found = None
        self.log = AppendLog(flushed)
        self.commit = self.durable = flushed.index
        if is_on_disk:
            self.log.entries = entries
            self.durable = self.log.last_index
        else:
            for entry in entries:
                self.append(entry)

    def take_first(self, entry: Entry) -> None:
        """Take the entry that a tablet begins with, in place of that of an earlier attempt to make it."""
        if self._found is not None:
            self.begin_with(NOWHERE, [one for _, one in sorted(self._found.items())], is_on_disk=True)
        epoch = self.log.epoch_at(entry.index)
        if epoch != entry.epoch:
            if epoch is not None:
                self.drop_from(entry.index)
            self.append(entry)

    # --- METADATA --------------------------------------------------------------------------------

    def learn(self, configuration: Configuration) -> None:
        """Take in what METADATA says now."""
        known = self.configuration
        if self._found is not None and not self._load(configuration):
            return
        if configuration.epoch < self.epoch:
            return  # METADATA as it was before; this replica has seen a later epoch
        self.configuration = configuration
        if configuration.epoch > self.epoch or known is None:
            self._enter(configuration)
        if configuration.flushed.index > self.log.base.index:
            self.log.trim(configuration.flushed)
            self.commit = max(self.commit, configuration.flushed.index)
            self.durable = max(self.durable, configuration.flushed.index)
            self.follower.flushed()
        if self.leader is not None:
            self.leader.learn(configuration)
        else:
            self.lead_if_chosen()
        member = configuration.replica_on(self.host.name)
        self.is_leaving = member is None or member.assignment_id != self.assignment_id

    def _load(self, configuration: Configuration) -> bool:
        """Make the log of what a replay found, as soon as METADATA says from where on it counts."""
        assert self._found is not None
        try:
            kept = AppendLog.replayed(self._found, configuration.flushed).entries
        except Gap:  # METADATA is older than what was removed of the log
            self.host.read_metadata()
            return False
        self.begin_with(configuration.flushed, kept, is_on_disk=True)
        return True

    def _enter(self, configuration: Configuration) -> None:
        """Begin an epoch."""
        if self.leader is not None:
            self.leader.end()
            self.leader = None
        if configuration.epoch > self.epoch:
            self.epoch = configuration.epoch
            self.host.write(Standing(self.key, self.epoch))
        self.follower.enter()

    def lead_if_chosen(self) -> None:
        """Lead, if METADATA says so for this log and this lease."""
        configuration = self.configuration
        if self.leader is None and configuration is not None and self._is_chosen(configuration):
            self.leader = Leader(self, configuration)
            self.leader.begin()

    def _is_chosen(self, configuration: Configuration) -> bool:
        member = configuration.replica_on(self.host.name)
        return (
            configuration.leader == self.host.name
            and configuration.epoch == self.epoch
            and configuration.lease == self.host.lease.number
            and member is not None
            and member.is_in_sync
            and (member.assignment_id, member.log_id) == (self.assignment_id, self.host.log_id)
        )

    # --- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what time brings."""
        if self.leader is not None:
            self.leader.tick()
        elif self.is_leaving and self.configuration is not None:
            leader = self.configuration.leader
            self.host.send(leader, MayDrop(self.tablet, self.assignment_id, self.log.last))
        elif self.configuration is None:
            self.host.read_metadata()

    @property
    def assigned(self) -> Assigned:
        """The replica as METADATA names it."""
        return Assigned(self.host.name, self.assignment_id)
