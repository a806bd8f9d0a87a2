"""The replicas of one run of a server: the machine, driven. Events come from many threads, one at a time.

    log of the run     append, take_records, synced     parts that are led here; records of all replicas
    other servers      receive                          pushes and acknowledgements
    METADATA           learn                            who leads, who is in sync, what is flushed
    time               tick                             ten times a second

    actions   Send --> Peers      Write --> records, which the log takes with its next write
              ChangeMetadata --> asked for by a thread of its own        ReadMetadata --> looked at by the run's worker

Whatever the machine decides is done without waiting, under its lock, so that everything happens in the order in which
it was decided. The log is told afterwards, when the lock is free: it has locks of its own.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa

from ebla.errors import TimedOut
from ebla.master.messages import ReplicaLag
from ebla.metadata.values.table_metadata import Replica, TableMetadata
from ebla.replication.actions import Action, Change, ChangeMetadata, ReadMetadata, Send, Write
from ebla.replication.leader import Leader
from ebla.replication.messages import (
    Ack,
    BetweenServers,
    DropConfirmed,
    Entry,
    MayDrop,
    Outdated,
    Push,
    Resigned,
    Stuck,
    TakeOut,
)
from ebla.replication.replica import TabletReplica
from ebla.replication.server_log import Appended, Key, Record, Replayed, Standing
from ebla.replication.settings import ReplicationSettings
from ebla.rpc.deferred import Deferred
from ebla.storage.log.log_entry import LogEntry, LogPart, decode_entry, encode_entry
from ebla.storage.log.replica_entry import ReplicaEntry
from ebla.tablet.write.commit_log import CommitLog
from ebla.tablet_server.replicas.live_host import LiveHost, configuration_of, name_of, split_name

__all__ = ["LedMark", "ReplicasHere"]

# A tablet of which every replica has everything is spoken of so often.
QUIET_SECONDS = 0.5
# Masters are told of replicas that are behind for so long: what others lack is on its way to them. Every heartbeat has
# them, so it is of so many at most, those that are behind for longest.
LAG_SECONDS = 0.1
LAGS_MAX = 1_000
SYNC_SECONDS = 10.0

_encode = msgspec.msgpack.Encoder().encode
_log = logging.getLogger(__name__)


class LedMark:
    """Something that was logged of a tablet that is led here, in one epoch.

    What the replica has at its index in a later epoch may be something else: it counts what this leader has committed.
    """

    __slots__ = ("_index", "_leader", "_replica", "tablet")

    def __init__(self, name: str, replica: TabletReplica | None, leader: Leader | None, index: int) -> None:
        """Without a leader nothing was logged: the tablet is led here no more."""
        self._replica = replica
        self._leader = leader
        self._index = index
        self.tablet = split_name(name)

    @property
    def is_committed(self) -> bool:
        """Whether every replica that counts has it on disk."""
        return self._leader is not None and self._leader.commit >= self._index

    @property
    def is_lost(self) -> bool:
        """Whether the epoch ended before it was committed."""
        if self._replica is None or self._leader is None:
            return True
        is_over = self._leader.is_resigned or self._replica.leader is not self._leader
        return is_over and not self.is_committed


class ReplicasHere:
    """All replicas of a run. Safe to use from several threads; takes no lock of the engine while it holds its own."""

    def __init__(
        self,
        server: str,
        start: int,
        log_id: str,
        *,
        is_held: Callable[[], bool],
        now: Callable[[], float],
        send: Callable[[str, Sequence[BetweenServers]], None],
        flush: Callable[[], None],
        change: Callable[[str, Change], None],
        look: Callable[[str], None],
        found: Mapping[Key, Replayed],
        settings: ReplicationSettings | None = None,
    ) -> None:
        """`found` is what the logs of former runs have.

        `send` has messages delivered, or lost, with the next `flush`, which is called when no lock is held; `change`
        asks for a change of a table's METADATA; `look` has it looked at. None of them waits.
        """
        # Set once.
        self._server = server
        self._now = now
        self._send = send
        self._flush = flush
        self._change = change
        self._look = look
        self._log: CommitLog | None = None
        self._lock = threading.Lock()
        self._on_disk = threading.Condition(self._lock)
        # Guarded by _lock.
        self._host = LiveHost(server, start, log_id, is_held, settings or ReplicationSettings())
        self._found = dict(found)
        self._replicas: dict[str, TabletReplica] = {}  # by the machine's name; one for each tablet
        self._unsynced: dict[str, TabletReplica] = {}
        self._records: list[Record] = []
        self._stuck: dict[str, int] = {}  # tablets that cannot go on, and their epochs
        self._resigned: dict[str, Resigned] = {}
        self._spoken_at: dict[str, float] = {}
        self._is_news = False
        # Of servers whose messages are not answered yet: when which record is on disk; and what goes with that.
        self._asked: deque[tuple[int, str, Deferred]] = deque()
        self._back: dict[str, list[BetweenServers]] = {}
        self._is_closed = False
        self._serving: set[str] = set()
        self._inherited: dict[str, list[Entry]] = {}  # by tablets that came by a split
        self.begins_to_serve = False  # a tablet is led that was not before; set back by whoever sees to it
        self._carried = 0  # the last record that former runs had
        self._asking: str | None = None  # whose messages are taken right now

    def begin(self, log: CommitLog) -> None:
        """Write to this log from now on."""
        self._log = log

    @property
    def log_id(self) -> str:
        """The id of the log that the replicas here are in."""
        return self._host.log_id

    # --- the log ---------------------------------------------------------------------------------

    def is_led(self, part: LogPart) -> bool:
        """Tell whether a part is of a tablet that has replicas; replies that are logged again are of this log alone."""
        replicas = self._replicas
        return bool(replicas) and part.index_min <= part.index and name_of(part.table, part.tablet) in replicas

    def append(self, parts: Sequence[LogPart]) -> list[LedMark]:
        """Push parts to their replicas, and have them among the records for the own log.

        What is of a tablet that is led here no more goes nowhere: its mark is lost.
        """
        entries = [(name_of(part.table, part.tablet), _entry_of(part)) for part in parts]
        marks = []
        with self._lock:
            self._at()
            for name, entry in entries:
                replica = self._replicas.get(name)
                leader = None if replica is None else replica.leader
                if replica is None or leader is None or leader.is_resigned or leader.epoch != entry.epoch:
                    _log.info("a commit of tablet %s is not logged: it is led here no more at %d", name, entry.epoch)
                    marks.append(LedMark(name, None, None, entry.index))
                    continue
                leader.take(entry)
                self._unsynced[name] = replica
                marks.append(LedMark(name, replica, leader, entry.index))
            self._act()
        self._flush()
        return marks

    @property
    def has_records(self) -> bool:
        """Whether something is to be written to the own log."""
        return bool(self._records)

    def take_records(self) -> tuple[ReplicaEntry, int] | None:
        """Return what is to be written to the own log, and the number to be told to `synced`."""
        with self._lock:
            records, self._records = self._records, []
            number = self._host.log.next_sequence - 1
        if not records:
            return None
        txns = [record.entry.txn for record in records if isinstance(record, Appended)]
        return ReplicaEntry(min(txns, default=0), max(txns, default=0), _encode(records)), number

    def synced(self, number: int) -> None:
        """What was taken with this number, and before, is on disk."""
        with self._lock:
            self._at()
            self._host.log.synced = max(self._host.log.synced, number)
            for name, replica in list(self._unsynced.items()):
                replica.synced(number)
                if not replica.is_waiting:
                    del self._unsynced[name]
            self._act()
            self._on_disk.notify_all()
            answers = []
            while self._asked and self._asked[0][0] <= number:
                _, sender, deferred = self._asked.popleft()
                answers.append((deferred, tuple(self._back.pop(sender, ()))))
        for deferred, messages in answers:
            deferred.resolve(messages)
        self._flush()

    @property
    def has_any(self) -> bool:
        """Whether there is a replica here: its entries, and the epoch that it has seen, are in this log alone."""
        with self._lock:
            return bool(self._replicas)

    def oldest_txn(self) -> int | None:
        """Return the oldest txn that the log has to keep for a replica; None if there is none."""
        with self._lock:
            heads = [one.log.entries[0].txn for one in self._replicas.values() if one.log.entries]
            return min(heads, default=None)

    def stand_again(self) -> None:
        """Have the epochs of all replicas logged again: the log that has them is about to go."""
        with self._lock:
            for replica in self._replicas.values():
                self._host.write(Standing(replica.key, replica.epoch))
            self._act()
        self.wait_synced()

    def wait_synced(self) -> None:
        """Return when all that was written until now is on disk."""
        self._tell_log()
        with self._lock:
            log, number = self._host.log, self._host.log.next_sequence - 1
            if not self._on_disk.wait_for(lambda: log.synced >= number, SYNC_SECONDS):
                raise TimedOut(f"the log of this server was not written for {SYNC_SECONDS} s")

    # --- messages --------------------------------------------------------------------------------

    def deliver(self, sender: str, messages: Iterable[BetweenServers]) -> tuple[BetweenServers, ...] | Deferred:
        """Take in what came together from one server; return what it is told, when all that it brought is on disk."""
        answer: tuple[BetweenServers, ...] | Deferred
        with self._lock:
            self._asking = sender
            try:
                self._take_all(sender, messages)
            finally:
                self._asking = None
            log = self._host.log
            if log.synced < log.next_sequence - 1 and not self._is_closed:
                answer = Deferred()
                self._asked.append((log.next_sequence - 1, sender, answer))
            else:
                answer = tuple(self._back.pop(sender, ()))
        self._tell_log()
        return answer

    def receive(self, sender: str, messages: Iterable[BetweenServers]) -> None:
        """Take in what one server answered."""
        with self._lock:
            self._take_all(sender, messages)
        self._tell_log()

    def _take_all(self, sender: str, messages: Iterable[BetweenServers]) -> None:
        self._at()
        for message in messages:
            self._take(sender, message)
            self._act(message.tablet)

    def close(self) -> None:
        """Tell nobody anything any more."""
        with self._lock:
            self._is_closed = True
            asked, self._asked = self._asked, deque()
        for _, _, deferred in asked:
            deferred.resolve(())

    def _take(self, sender: str, message: BetweenServers) -> None:
        replica = self._replicas.get(message.tablet)
        match message:
            case Push():
                if replica is None or replica.assignment_id != message.assignment_id:
                    self._host.read_metadata()
                    return
                replica.follower.push(sender, message)
                if replica.is_waiting:
                    self._unsynced[message.tablet] = replica
            case Ack():
                if replica is not None and replica.leader is not None:
                    replica.leader.ack(sender, message)
                elif replica is not None and message.epoch > replica.epoch:
                    self._host.read_metadata()
            case Outdated():
                self._host.read_metadata()
            case MayDrop():
                if replica is not None and replica.leader is not None:
                    replica.leader.may_drop(sender, message)
            case DropConfirmed():
                if replica is not None and replica.assignment_id == message.assignment_id and replica.is_leaving:
                    self._forget(message.tablet)

    # --- METADATA --------------------------------------------------------------------------------

    def learn(self, metadata: TableMetadata) -> list[str]:
        """Take in METADATA of a table; return its tablets that are to be led here, and did not begin their epoch."""
        chosen = []
        with self._lock:
            self._at()
            table = metadata.table_id
            self._host.versions[table] = max(metadata.sequence, self._host.versions.get(table, 0))
            there = set()
            known = {name: one for name, one in self._replicas.items() if split_name(name)[0] == table}
            for tablet in metadata.tablets:
                if not tablet.is_replicated:
                    continue
                name = name_of(table, tablet.id)
                there.add(name)
                own = tablet.replica_on(self._server)
                replica = self._replicas.get(name)
                if own is not None and (replica is None or replica.assignment_id != own.assignment_id):
                    replica = self._make(name, own.assignment_id)
                    self._inherit(name, tablet.first, known.values())
                if replica is None:
                    continue
                is_loaded = replica.is_loaded
                replica.learn(configuration_of(metadata, tablet))
                if replica.is_loaded and not is_loaded:
                    self._carry(replica)
                if replica.leader is not None and not replica.leader.has_begun:
                    chosen.append(tablet.id)
                if name in self._resigned and self._resigned[name].epoch < tablet.epoch:
                    del self._resigned[name]
            for name in [one for one in self._replicas if split_name(one)[0] == table and one not in there]:
                self._forget(name)  # split, joined or dropped, or with one replica by now
            self._act(name_of(table, ""))
        self._tell_log()
        return chosen

    def forget_table(self, table: str) -> None:
        """A table is gone."""
        with self._lock:
            for name in [one for one in self._replicas if split_name(one)[0] == table]:
                self._forget(name)

    def _make(self, name: str, assignment_id: str) -> TabletReplica:
        key = (name, assignment_id)
        replica = self._replicas[name] = TabletReplica(self._host, key, self._found.pop(key, None))
        return replica

    def _inherit(self, name: str, first: bytes, known: Iterable[TabletReplica]) -> None:
        """Have what clients were told of a tablet that was split known to its child, before that has a log."""
        for one in known:
            configuration = one.configuration
            if configuration is not None and configuration.range.contains(first) and one.tablet != name:
                self._inherited[name] = [*one.log.entries]

    def _carry(self, replica: TabletReplica) -> None:
        """Write to the log of this run what former runs had of a replica. Until it is synced nothing is told."""
        self._host.write(Standing(replica.key, replica.epoch))
        for entry in replica.log.entries:
            self._host.write(Appended(replica.key, entry))
        self._carried = self._host.log.next_sequence - 1
        self._unsynced[replica.tablet] = replica

    def _forget(self, name: str) -> None:
        del self._replicas[name]
        self._unsynced.pop(name, None)
        self._stuck.pop(name, None)
        self._resigned.pop(name, None)
        self._inherited.pop(name, None)

    # --- leading ---------------------------------------------------------------------------------

    def tail(self, table: str, tablet: str) -> list[LogPart]:
        """Return all that a replica has and no file does."""
        with self._lock:
            replica = self._replicas[name_of(table, tablet)]
            entries = [*replica.log.entries]
        return [part for entry in entries for part in _parts_of(entry)]

    def inherited(self, table: str, tablet: str) -> list[LogPart]:
        """Return what the tablet had that a tablet was split from: whatever clients were told is in it."""
        with self._lock:
            entries = self._inherited.get(name_of(table, tablet), [])
        return [part for entry in entries for part in _parts_of(entry)]

    def last_index(self, table: str, tablet: str) -> int:
        """Return the index of the last entry of a replica."""
        with self._lock:
            return self._replicas[name_of(table, tablet)].log.last_index

    def is_serving(self, table: str, tablet: str, epoch: int) -> bool:
        """Tell whether a tablet is led here in an epoch, the first entry of which is committed."""
        with self._lock:
            replica = self._replicas.get(name_of(table, tablet))
            leader = None if replica is None else replica.leader
            return leader is not None and leader.epoch == epoch and leader.is_serving

    def flushed_point(self, table: str, tablet: str, below_txn: int | None) -> tuple[int, int] | None:
        """Return epoch and index of the last committed entry that is older than a txn; None if there is none."""
        with self._lock:
            replica = self._replicas.get(name_of(table, tablet))
            if replica is None:
                return None
            found = None
            for entry in replica.log.entries:
                if entry.index > replica.commit or (below_txn is not None and entry.txn >= below_txn):
                    break
                found = entry.epoch, entry.index
            return found

    def resign(self, table: str, tablet: str, bound: int, successor: str | None, epoch: int | None = None) -> None:
        """Lead a tablet no more (if it is at an epoch). Masters are told until METADATA has another epoch."""
        with self._lock:
            self._at()
            replica = self._replicas.get(name_of(table, tablet))
            leader = None if replica is None else replica.leader
            if replica is not None and leader is not None and epoch in (None, leader.epoch):
                leader.resign(successor)
                self._is_news = True
                self._resigned[replica.tablet] = Resigned(tablet, leader.epoch, bound, successor)
            self._act()

    def take_out(self, table: str, tablet: str, epoch: int, replica: Replica) -> None:
        """A master wants a replica to go."""
        with self._lock:
            own = self._replicas.get(name_of(table, tablet))
            if own is not None and own.leader is not None:
                own.leader.take_out(TakeOut(own.tablet, epoch, replica))

    def drop_if_empty(self, table: str, tablet: str, assignment_id: str) -> None:
        """Have no replica any more that left and has nothing; one that has something asks its leader first."""
        with self._lock:
            name = name_of(table, tablet)
            replica = self._replicas.get(name)
            if replica is not None and replica.key[1] == assignment_id and replica.is_leaving:
                self._forget_if_empty(name, replica)

    def _forget_if_empty(self, name: str, replica: TabletReplica) -> None:
        if not replica.log.entries:
            self._forget(name)

    # --- for reports -----------------------------------------------------------------------------

    def followed(self) -> list[tuple[str, str, str, int]]:
        """Return table, tablet, assignment id and epoch of what is here and was loaded."""
        with self._lock:
            return [(*split_name(name), one.assignment_id, one.epoch) for name, one in self._replicas.items()]

    def resigned(self) -> tuple[Resigned, ...]:
        """Return what was given up, and METADATA has at the same epoch still."""
        with self._lock:
            return tuple(self._resigned.values())

    def stuck(self) -> tuple[Stuck, ...]:
        """Return what cannot go on."""
        with self._lock:
            return tuple(Stuck(split_name(name)[1], epoch) for name, epoch in self._stuck.items())

    def lags(self) -> tuple[ReplicaLag, ...]:
        """Return which replicas of what is led here are behind, those that are so for longest."""
        with self._lock:
            now = self._now()
            found = [
                ReplicaLag(split_name(name)[1], server, entries, round(seconds, 3))
                for name, one in self._replicas.items()
                if one.leader is not None and not one.leader.is_resigned
                for server, entries, seconds in one.leader.behind(now)
                if seconds >= LAG_SECONDS
            ]
        return tuple(heapq.nlargest(LAGS_MAX, found, key=lambda lag: lag.seconds))

    @property
    def has_news(self) -> bool:
        """Whether masters are to be told something that should not wait for the next heartbeat."""
        with self._lock:
            is_news, self._is_news = self._is_news, False
            return is_news

    def unclaimed_tables(self) -> set[str]:
        """Return the tables of which former runs have something that no replica here has taken over."""
        with self._lock:
            return {split_name(name)[0] for name, _ in self._found}

    def drop_unclaimed(self, table: str) -> None:
        """Let go of what former runs have of a table, as far as METADATA has no replica for it here."""
        with self._lock:
            for key in [key for key in self._found if split_name(key[0])[0] == table]:
                del self._found[key]

    @property
    def is_carried_over(self) -> bool:
        """Whether all that former runs had, and counts, is in the log of this run, and on disk."""
        with self._lock:
            is_on_disk = self._host.log.synced >= self._carried
            return is_on_disk and not self._found and all(one.is_loaded for one in self._replicas.values())

    # --- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Some time has passed."""
        with self._lock:
            self._at()
            now = self._host.now
            self._stuck.clear()
            for name, replica in list(self._replicas.items()):
                leader = replica.leader
                is_quiet = leader is not None and leader.is_quiet and leader.membership.pending is None
                if is_quiet and now - self._spoken_at.get(name, -1.0) < QUIET_SECONDS:
                    continue
                self._spoken_at[name] = now
                replica.tick()
                self._act(name)
            serving = {name for name, one in self._replicas.items() if one.leader is not None and one.leader.is_serving}
            self.begins_to_serve |= not serving <= self._serving
            self._serving = serving
        self._tell_log()

    # --- inside ----------------------------------------------------------------------------------

    def _at(self) -> None:
        self._host.now = self._now()

    def _act(self, name: str = "") -> None:
        """Do what the machine wants done, all of which is quick. The lock is held."""
        for action in self._host.taken():
            self._do(action, name)

    def _do(self, action: Action, name: str) -> None:
        match action:
            case Write(records=records):
                self._records += records
            case Send(to="master", parts=parts):
                for part in parts:
                    if isinstance(part, Stuck):
                        self._stuck[part.tablet] = part.epoch
                        self._is_news = True
            case Send(to=to, parts=parts):
                is_asked = to == self._asking or any(one[1] == to for one in self._asked)
                for part in parts:
                    if is_asked and isinstance(part, Ack):
                        self._back.setdefault(to, []).append(part)
                    else:
                        self._send(to, (part,))  # type: ignore[arg-type]
            case ChangeMetadata(changes=changes):
                for change in changes:
                    self._change(split_name(change.tablet)[0], change)  # type: ignore[union-attr]
            case ReadMetadata():
                self._look(split_name(name)[0])
            case _:
                raise AssertionError(f"nobody does {type(action).__name__} here")

    def _tell_log(self) -> None:
        """Have records written, and what has become committed shown. The lock is free."""
        log = self._log
        if log is not None:
            if self._records:
                log.wake()
            log.complete()
        self._flush()


def _entry_of(part: LogPart) -> Entry:
    payload = b"".join(encode_entry(LogEntry(part.txn, (part,))))
    return Entry(
        part.epoch,
        part.index,
        part.txn,
        "write",
        schema_version=part.schema_version,
        index_min=part.index_min,
        part=payload,
    )


def _parts_of(entry: Entry) -> Sequence[LogPart]:
    return decode_entry(pa.py_buffer(entry.part)).parts if entry.part else ()
