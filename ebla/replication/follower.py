"""A follower: takes what the leader of its epoch pushes, in sequence, and acknowledges what is on its disk.

    Push --> of my epoch? --no, lower--> Outdated          higher--> read METADATA
               | yes
             behind an entry that I have? --no--> Ack with runs: from where on
               | yes
             drop what the leader does not have, append, write --> synced --> Ack

A learner is a follower that nobody waits for yet. Which of both a replica is, the leader and METADATA know; it does the
same in either case, and asks for everything behind the flushed point if it has nothing.

Only what was *matched* with the leader's log in this epoch counts as committed, however long the log is: the rest may
be of a leader that lost its place.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ebla.replication.actions import Serve
from ebla.replication.messages import Ack, Entry, FollowerRead, Outdated, Push, Runs

if TYPE_CHECKING:
    from ebla.replication.replica import TabletReplica

__all__ = ["Follower"]


class Follower:
    """The part of a replica that follows, in its present epoch."""

    __slots__ = ("_acks", "_replica", "fresh_at", "matched", "safe_txn")

    def __init__(self, replica: TabletReplica) -> None:
        self._replica = replica
        self.matched = 0  # the log is the leader's up to this index
        self.safe_txn = 0
        self.fresh_at = -1.0  # on this server's clock: what is read at `safe_txn` is no older than this
        self._acks: deque[tuple[int, int]] = deque()  # number of a record, index to be acknowledged with it

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be acknowledged that is not on disk yet."""
        return bool(self._acks)

    def enter(self) -> None:
        """An epoch begins: nothing of the log was compared with its leader's."""
        self.matched = self._replica.log.base.index
        self._acks.clear()

    def flushed(self) -> None:
        """What is in files is everybody's."""
        self.matched = max(self.matched, self._replica.log.base.index)

    # --- pushes ----------------------------------------------------------------------------------

    def push(self, sender: str, push: Push) -> None:
        """Take entries from the leader of this epoch."""
        replica = self._replica
        host = replica.host
        configuration = replica.configuration
        if configuration is None or push.epoch > replica.epoch:
            host.read_metadata()
            return
        if push.epoch < replica.epoch:
            host.send(sender, Outdated(push.tablet, replica.epoch))
            return
        if sender != configuration.leader or replica.leader is not None:
            return
        if push.version > host.version_of(push.tablet):
            host.read_metadata()
        prev, entries = push.prev, push.entries
        log = replica.log
        if prev.index < log.base.index:  # the leader does not know yet, or did not when it sent this
            entries = tuple(entry for entry in entries if entry.index > log.base.index)
            if not entries and prev.index + len(push.entries) < log.base.index:
                self._acknowledge(None)
                return
            prev = log.base
        if log.epoch_at(prev.index) != prev.epoch:
            self._acknowledge(log.runs())
            return
        if not self._take(entries):
            self._acknowledge(log.runs())
            return
        self.matched = max(self.matched, entries[-1].index if entries else prev.index)
        self._learn_commit(push)
        self._acknowledge(None)

    def _take(self, entries: tuple[Entry, ...]) -> bool:
        """Append what is not there; False if something before it is not, as when a whole group had to be dropped.

        What is here may be cut into other groups, and end within the one that is pushed.
        """
        replica = self._replica
        log = replica.log
        for entry in entries:
            if log.epoch_at(entry.index) == entry.epoch:
                continue
            first = max(entry.first, log.base.index + 1)
            if log.last_index >= first:
                replica.drop_from(first)
            if not log.continues(entry):
                return False
            replica.append(entry)
        return True

    def _learn_commit(self, push: Push) -> None:
        replica = self._replica
        replica.commit = max(replica.commit, min(push.commit, self._comparable()))
        has_all = self.matched >= push.commit and replica.host.version_of(push.tablet) >= push.version
        if push.echo >= 0 and has_all and push.safe_txn >= self.safe_txn:
            self.safe_txn = push.safe_txn
            self.fresh_at = max(self.fresh_at, push.echo)

    def _comparable(self) -> int:
        """Up to which index the log is known to be the leader's."""
        return self.matched

    # --- acknowledgements ------------------------------------------------------------------------

    def _acknowledge(self, runs: Runs | None) -> None:
        replica = self._replica
        log = replica.host.log
        written = log.next_sequence - 1
        if runs is not None:
            self._send(0, runs)
        elif log.synced >= written:
            self._send(self.matched, None)
        else:
            self._acks.append((written, self.matched))

    def synced(self, sequence: int) -> None:
        """The log is on disk up to this record: acknowledge what was waiting for it."""
        index = None
        while self._acks and self._acks[0][0] <= sequence:
            index = self._acks.popleft()[1]
        if index is not None:
            self._send(index, None)

    def _send(self, index: int, runs: Runs | None) -> None:
        replica = self._replica
        host, configuration = replica.host, replica.configuration
        assert configuration is not None
        host.send(
            configuration.leader,
            Ack(
                replica.tablet,
                replica.assignment_id,
                host.log_id,
                host.start,
                replica.epoch,
                index,
                host.now,
                runs,
            ),
        )

    # --- reads -----------------------------------------------------------------------------------

    def read(self, read: FollowerRead) -> None:
        """Answer at the safe txn that is known here, if it is fresh enough."""
        replica = self._replica
        host = replica.host
        staleness_seconds = host.now - self.fresh_at
        if self.fresh_at < 0 or staleness_seconds > read.staleness_seconds_max or replica.is_leaving:
            host.answer(read.client, read.token, read.tablet, "retry")
            return
        host.act(
            Serve(
                replica.tablet,
                replica.assignment_id,
                replica.epoch,
                read.client,
                read.token,
                read.row,
                self.safe_txn,
                replica.commit,
                is_follower=True,
            )
        )
