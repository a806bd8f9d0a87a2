"""A leader: gives entries their index and txn, pushes them, and commits what every in-sync replica has on disk.

    begin --empty entry of this epoch--> committed --> serves
    put --append--> log, pushes to all --acknowledged by all in sync--> commit --lease?--> answer

    Leader
    |-- Membership     who is in sync; changes of that                            membership.py
    |-- Reads          at the safe txn, or at a given one; the gate of a bulk load    reads.py
    `-- Pause          flush; split and alter, which stop writes for a moment           pause.py

Rules:
1. An entry is committed when **every in-sync replica**, the leader included, has it on disk.
2. What clients are told is told under the lease that the epoch is bound to, checked after the commit or the read.
3. Who has resigned answers nothing any more.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ebla.replication.changes import ChangeInSync
from ebla.replication.configuration import Configuration, Position
from ebla.replication.membership import Membership
from ebla.replication.messages import (
    Ack,
    DropConfirmed,
    Entry,
    EntryKind,
    GiveUp,
    MayDrop,
    Push,
    Put,
    RequestId,
    Resigned,
    Rows,
    Stuck,
    TakeOut,
)
from ebla.replication.pause import Pause
from ebla.replication.progress import Progress
from ebla.replication.reads import Reads
from ebla.replication.replies import Replies, rows_left

if TYPE_CHECKING:
    from ebla.replication.replica import TabletReplica

__all__ = ["Leader"]


class Leader:
    """The part of a replica that leads, in one epoch."""

    __slots__ = (
        "_advanced_at",
        "_asked_at",
        "_first",
        "_waiters",
        "bound",
        "commit",
        "configuration",
        "epoch",
        "host",
        "is_resigned",
        "is_serving",
        "lease",
        "log",
        "membership",
        "pause",
        "progress",
        "reads",
        "replica",
        "replies",
        "successor",
    )

    def __init__(self, replica: TabletReplica, configuration: Configuration) -> None:
        self.replica = replica
        self.host = replica.host
        self.log = replica.log
        self.configuration = configuration
        self.epoch = configuration.epoch
        self.lease = configuration.lease
        self.progress: dict[str, Progress] = {}
        self.membership = Membership(configuration, self.host.settings)
        self.reads = Reads(self)
        self.pause = Pause(self)
        self.replies = Replies.of_log(self.log.entries, configuration.range, self.host.settings.window_replies)
        self.is_serving = False
        self.is_resigned = False
        self.bound = 0  # when it resigned
        self.commit = 0  # the index up to which all was committed in this epoch
        self.successor: str | None = None
        self._first = 0  # the index of the empty entry that this epoch begins with
        self._waiters: deque[tuple[int, int, RequestId]] = deque()  # index, txn
        self._asked_at = -1.0
        self._advanced_at = self.host.now
        self._meet(configuration)

    # --- beginning and end -----------------------------------------------------------------------

    def begin(self) -> None:
        """Append the empty entry of this epoch, once a txn above the floor can be had for it."""
        if self._first or self.is_resigned or not self.host.is_numbering:
            return
        if self.host.txns.push(self._floor()) and self._append("empty") is not None:
            self._first = self.log.last_index
            self._push_all()
            self.advance()

    def take(self, entry: Entry) -> None:
        """Append an entry that comes numbered; the first of an epoch is the one that it begins with."""
        assert not self.is_resigned and entry.epoch == self.epoch
        if self.log.last_index == self.replica.commit:
            self._advanced_at = self.host.now
        self.replica.append(entry)
        self._first = self._first or entry.index
        self._push_all()
        self.advance()

    @property
    def has_begun(self) -> bool:
        """Whether the entry was appended that the epoch begins with."""
        return self._first > 0

    @property
    def is_quiet(self) -> bool:
        """Whether every replica has everything, as far as it was told."""
        last = self.log.last_index
        return last == self.replica.commit and all(one.acked >= last for one in self.progress.values())

    def behind(self, now: float) -> list[tuple[str, int, float]]:
        """Return which replicas lack something: server, how many entries, and for how many seconds."""
        last = self.log.last_index
        found = [(one.server, last - one.acked, one.behind_seconds(now)) for one in self.progress.values()]
        return [one for one in found if one[2] > 0]

    def _floor(self) -> int:
        return self.configuration.txn_floor

    def end(self) -> None:
        """Another epoch has begun: what waits may have happened, or may happen yet."""
        self._give_up_waiters()
        self.reads.end()

    def resign(self, successor: str | None) -> None:
        """Answer nothing any more, for good; a master is told so until METADATA has another epoch."""
        if not self.is_resigned:
            self.is_resigned = True
            self.is_serving = False
            self.bound = self.host.txns.bound
            self.successor = successor
            self._give_up_waiters()
            self.reads.end()
        self.host.send("master", Resigned(self.replica.tablet, self.epoch, self.bound, self.successor))

    def give_up(self, message: GiveUp) -> None:
        """A master asks for the tablet."""
        if message.epoch == self.epoch:
            self.resign(message.successor)

    def _give_up_waiters(self) -> None:
        while self._waiters:
            _, _, request = self._waiters.popleft()
            self._answer(request, "unknown")

    def has_lease(self) -> bool:
        """Tell whether clients may be told something now."""
        return not self.is_resigned and self.host.lease.covers(self.lease, self.host.now)

    # --- METADATA --------------------------------------------------------------------------------

    def learn(self, configuration: Configuration) -> None:
        """Take in a newer configuration of the same epoch."""
        self.configuration = configuration
        self.membership.learn(configuration)
        self._meet(configuration)
        self.pause.learn()
        self.reads.learn()
        self.advance()

    def _meet(self, configuration: Configuration) -> None:
        there = {}
        for member in configuration.replicas:
            if member.server == self.host.name:
                continue
            known = self.progress.get(member.server)
            if known is None or known.assignment_id != member.assignment_id:
                known = Progress(member, self.log.last_index + 1, self.host.now)
            there[member.server] = known
        self.progress = there

    # --- writes ----------------------------------------------------------------------------------

    def put(self, put: Put) -> None:
        """Carry a request out, once."""
        request = put.request
        configuration = self.configuration
        if not self.is_serving or not self.has_lease():
            self._answer(request, "retry")
            return
        found, known = self.replies.find(request)
        if found == "unknown":
            self._answer(request, "refused", self.host.txns.last)
            return
        rows = put.rows
        if known is not None:
            rows = rows_left(known, rows)
            if not rows:
                self._join(request, known.index, known.txn)
                return
        inside = configuration.range.contains
        if self.pause.is_closed or self.reads.is_gated or not all(inside(row) for row, _ in rows):
            self._answer(request, "retry")
            return
        # A request is carried out above what its client had seen: the window of replies relies on it.
        entry = self._append("write", request, rows) if self.host.txns.push(request.seen) else None
        if entry is None:
            self._answer(request, "retry")
            return
        self.replies.add(entry, configuration.range)
        self._waiters.append((entry.index, entry.txn, request))
        self._push_all()
        self.advance()

    def _join(self, request: RequestId, index: int, txn: int) -> None:
        """Answer a repeated request: with what it was carried out, or when that is committed."""
        if index > self.replica.commit:
            self._waiters.append((index, txn, request))
        else:
            self._answer(request, "done", txn)

    def _append(self, kind: EntryKind, request: RequestId | None = None, rows: Rows = ()) -> Entry | None:
        assert not self.is_resigned
        txn = self.host.txns.allocate(self.host.wall)
        if txn is None:
            return None
        is_window = kind == "window"
        entry = Entry(
            self.epoch,
            self.log.last_index + 1,
            txn,
            kind,
            request,
            rows,
            self.configuration.schema_version,
            self.replies.all() if is_window else (),
            self.replies.forgotten_txn if is_window else 0,
        )
        if self.log.last_index == self.replica.commit:
            self._advanced_at = self.host.now
        self.replica.append(entry)
        return entry

    def append_window(self) -> int | None:
        """Log the window of replies again, behind all that they answer; return its index."""
        if self._append("window") is None:
            return None
        self._push_all()
        return self.log.last_index

    # --- pushes and acknowledgements -------------------------------------------------------------

    def _push_all(self) -> None:
        for one in self.progress.values():
            self._push(one)

    def _push(self, to: Progress) -> None:
        log = self.log
        if to.next <= log.base.index:
            to.next = log.base.index + 1
        at = to.next - 1
        epoch = log.epoch_at(at)
        assert epoch is not None
        settings = self.host.settings
        entries = tuple(log.some_behind(at, settings.push_entries, settings.push_bytes))
        if entries:
            to.next = entries[-1].index + 1
        to.sent_at = self.host.now
        to.mark(log.last_index, self.host.now)
        has_lease = self.is_serving and self.has_lease()
        self.host.send(
            to.server,
            Push(
                self.replica.tablet,
                to.assignment_id,
                self.epoch,
                self.host.version_of(self.replica.tablet),
                Position(epoch, at),
                entries,
                self.replica.commit,
                self.reads.safe_txn() if has_lease else 0,
                to.stamp if has_lease else -1.0,
            ),
        )

    def ack(self, sender: str, ack: Ack) -> None:
        """Note what a replica has on disk, and go on from there if it lacks something."""
        one = self.progress.get(sender)
        if one is None or not one.takes(ack, self.epoch):
            return
        one.take(ack, self.host.now)
        if ack.runs is not None:
            one.next = self.log.match(ack.runs) + 1
            self._push(one)
        elif one.acked + 1 > one.next:
            one.next = one.acked + 1
        self.advance()
        if one.next <= self.log.last_index and ack.runs is None:
            self._push(one)

    def advance(self) -> None:
        """Commit what every replica that counts has, and do what waited for it."""
        replica = self.replica
        found = self.membership.commit_index(replica.durable, self.progress, self.host.name)
        if found > replica.commit:
            replica.commit = self.commit = found
            self._advanced_at = self.host.now
            if 0 < self._first <= found and not self.is_resigned:
                self.is_serving = True
            self._answer_committed()
        if self.is_serving:
            self.pause.step()
            self.reads.step()

    def _answer_committed(self) -> None:
        waiters = self._waiters
        while waiters and waiters[0][0] <= self.replica.commit:
            _, txn, request = waiters.popleft()
            self._answer(request, "done", txn)

    def _answer(self, request: RequestId, outcome: str, txn: int = 0) -> None:
        if outcome == "done" and not self.has_lease():  # after the commit, before the answer
            outcome = "unknown"
        self.host.answer(
            request.client,
            request.sequence,
            self.replica.tablet,
            outcome,  # type: ignore[arg-type]
            txn,
            self.epoch,
            self.lease,
        )

    # --- replicas that come and go ---------------------------------------------------------------

    def take_out(self, message: TakeOut) -> None:
        """A master wants a replica to go."""
        if message.epoch == self.epoch and message.replica.server != self.host.name:
            self.membership.to_go.add(message.replica)

    def may_drop(self, sender: str, message: MayDrop) -> None:
        """Tell a replica that is no longer a member whether every member has what it has."""
        member = self.configuration.replica_on(sender)
        if not self.is_serving or not self.has_lease() or message.last.epoch > self.epoch:
            return
        if member is not None and member.assignment_id == message.assignment_id:
            return
        if self._all_members_have(message.last.index):
            self.host.send(sender, DropConfirmed(message.tablet, message.assignment_id))

    def _all_members_have(self, index: int) -> bool:
        index = min(index, self.log.last_index)
        if index <= self.configuration.flushed.index:
            return True
        return self.replica.durable >= index and all(one.acked >= index for one in self.progress.values())

    # --- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Tell replicas how far all is committed, send again what they lack, and see who is in sync."""
        if self.is_resigned:
            self.resign(self.successor)
            return
        self.begin()
        for one in self.progress.values():
            self._push(one)  # what got lost shows by what this is behind of
        if self.is_serving:
            self.pause.tick()
            self.reads.tick()
        self._keep_members()
        if self._waits() and self.host.now - self._advanced_at > self.host.settings.stuck_seconds:
            self.host.send("master", Stuck(self.replica.tablet, self.epoch))

    def _waits(self) -> bool:
        return self.log.last_index > self.replica.commit or not self.is_serving

    def _level_index(self) -> int:
        """Up to where a learner must have all: what is committed, and what the leaders before may have committed."""
        return max(self.replica.commit, self._first)

    def _keep_members(self) -> None:
        membership = self.membership
        change: ChangeInSync | None = membership.pending
        if change is None and self._first and not self.pause.is_asking:
            change = membership.choose(self.progress, self._level_index(), self.host.now, self.epoch)
            if change is not None:
                membership.ask(change)
        if change is not None:
            self.host.change(change)
