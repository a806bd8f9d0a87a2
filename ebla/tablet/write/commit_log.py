"""The commit queue and the log worker: many commits, one write, one sync.

    apply ---> queue ---> drain: one log entry ---> write ---> sync ---> committed ---> waiters wake

Whoever waits for a commit and finds nobody draining drains himself, for all that are queued: a single writer pays for
no change of thread, and many writers share one sync. Everybody else waits for a lock of his own, so that only those are
woken whose commit is in the log, and one more: the next to drain. A background thread drains what nobody waits for.
Where other servers keep a tablet, too, a commit that is in the log waits until they have it (log_replicas.py): the next
is written meanwhile, and all are shown in the order of their txns. How several commits become one entry: commit.py.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from ebla.errors import Closed, EblaError, LogFailed, OutcomeUnknown
from ebla.storage.log.log_entry import LogEntry, LogPart, Reply
from ebla.storage.log.log_writer import LogWriter
from ebla.tablet.write.commit import Combined, Commit, StagedPart, TabletKeys, parts_of
from ebla.tablet.write.log_replicas import LogReplicas, Mark
from ebla.tablet.write.sequencer import Sequencer
from ebla.threads.sleeper import Sleeper
from ebla.timing import Timing, now_seconds

ENTRY_BYTES_MAX = 16 * 1024 * 1024
# Whoever waits for replicas for longer is told that the outcome is unknown.
REPLICAS_SECONDS = 10.0
# A tablet that holds up others for longer than it takes to go on without a replica is held itself.
HOLD_SECONDS = 3.0
# Of so many commits with an unknown outcome it is remembered that they are: whoever waits for one is told soon.
LOST_TXNS_MAX = 100_000

_log = logging.getLogger(__name__)


class _Group(msgspec.Struct, frozen=True):
    """Commits that are in the log, and shown when all marks are committed."""

    commits: Sequence[Commit]
    combined: Sequence[Combined]
    marks: Sequence[Mark] = ()
    written_at: float = 0.0


class HeldPart(msgspec.Struct, frozen=True):
    """What was logged of a tablet that is held: not committed, while later commits of others are."""

    mark: Mark
    parts: Sequence[StagedPart]
    txns: Sequence[int]


class _Waiting(Sleeper):
    """Somebody who waits for a commit to be in the log, or for his turn to drain."""

    __slots__ = ("txn",)

    def __init__(self, txn: int) -> None:
        super().__init__()
        self.txn = txn


class CommitLog:
    """Puts staged commits into the log, in order, many at a time."""

    def __init__(
        self,
        writer: LogWriter,
        sequencer: Sequencer,
        on_durable: Callable[[Sequence[Commit], Sequence[Combined], TabletKeys, TabletKeys], None],
        fence: Callable[[], None] | None = None,
        slow_seconds: float = 0.0,
        replicas: LogReplicas | None = None,
        on_released: Callable[[tuple[str, str], Sequence[StagedPart], bool], None] = lambda tablet, parts, is_last: (
            None
        ),
    ) -> None:
        """`on_durable` runs after the sync and makes commits visible, but for those of tablets held, and those lost.

        `on_released` makes commits of a held tablet visible when replicas have them, and is told whether it is held no
        more.

        `fence` runs in between, and raises if somebody else may be writing by now: then nothing is acknowledged.
        `replicas` keep some of the tablets on other servers, too.
        """
        # Set once.
        self._writer = writer
        self._sequencer = sequencer
        self._on_durable = on_durable
        self._fence = fence
        self._replicas = replicas
        self._on_released = on_released
        self.writing = Timing(_log, "writing and syncing an entry of the log", slow_seconds)
        self._state = threading.Lock()
        self._worker_wakes = threading.Condition(self._state)
        # Guarded by _state.
        self._queue: deque[Commit] = deque()
        self._queued_bytes = 0
        self._waiting: list[_Waiting] = []
        self._drainer: object | None = None  # whoever writes what is queued
        self._unattended = False
        self._unattended_txn = 0  # the newest commit that nobody waits for
        self._failure: EblaError | None = None
        self._closed = False
        self._written_txn = 0  # what is in the log, and waits for replicas or for its turn to be shown
        # Guarded by _completing, which is taken before the commit lock.
        self._completing = threading.Lock()
        self._groups: deque[_Group] = deque()
        self._held: dict[tuple[str, str], deque[HeldPart]] = {}
        # Changed under _completing, read by all: txns that have parts of held tablets, and how many.
        self._held_txns: dict[int, int] = {}
        self._lost_txns: dict[int, None] = {}  # the newest of those with parts that another leader decides about
        self._worker = threading.Thread(target=self._run, name="ebla-log", daemon=True)
        self._worker.start()

    @property
    def queued_bytes(self) -> int:
        """The size of what is queued and not yet in the log."""
        return self._queued_bytes

    @property
    def is_draining(self) -> bool:
        """Whether somebody is writing what is queued."""
        return self._drainer is not None

    @property
    def failure(self) -> EblaError | None:
        """What stopped the log, if something did."""
        return self._failure

    def push(self, commit: Commit, *, attended: bool) -> None:
        """Queue a commit. Commits must come in txn order; `attended` says that the caller will wait for it."""
        with self._state:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise Closed("the database was closed: open it again")
            self._queue.append(commit)
            self._queued_bytes += commit.bytes
            if not attended:
                self._unattended = True
                self._unattended_txn = commit.txn
                self._worker_wakes.notify()

    def wait(self, txn: int) -> None:
        """Return once `txn` is in the log, writing it there if nobody else is at it."""
        own = object()
        try:
            while not self._is_committed(txn):
                waiting: _Waiting | None = None
                with self._state:
                    if self._is_committed(txn):
                        return
                    if self._failure is not None:
                        raise self._failure
                    if self._drainer is not None or txn <= self._written_txn:
                        waiting = _Waiting(txn)
                        self._waiting.append(waiting)
                    else:
                        self._drainer = own
                if waiting is not None:
                    if not waiting.wait(-1 if self._replicas is None else REPLICAS_SECONDS):
                        raise _replicas_missing()
                else:
                    self._drain_once(own)
        except BaseException:
            # An interrupt may hit the one who was woken to drain, or is about to: somebody else has to.
            with self._state:
                self._let_go(own)
                self._wake()
            raise

    def _is_committed(self, txn: int) -> bool:
        if self._sequencer.committed < txn or txn in self._held_txns:
            return False
        if txn in self._lost_txns:
            raise _replicas_missing()
        return True

    def check_none_held(self, txn: int) -> None:
        """Raise `OutcomeUnknown` if some commit up to a txn is not committed, though later ones are."""
        if self._held_txns and min(self._held_txns, default=txn + 1) <= txn:
            raise _replicas_missing()

    def wake(self) -> None:
        """Say that there are records of replicas to be written."""
        with self._state:
            self._unattended = True
            self._worker_wakes.notify()

    def complete(self) -> None:
        """Show what is in the log and has become committed, as replicas have it, in the order of txns."""
        if not self._groups and not self._held:
            return
        try:
            with self._completing:
                self._release()
                while self._groups and self._failure is None and self._may_be_shown(self._groups[0]):
                    self._show(self._groups[0])
                    self._groups.popleft()
        except BaseException as error:
            self.fail(error)
            raise
        with self._state:
            self._wake()

    def close(self) -> None:
        """Write what is queued, stop, and close the log. Raises its failure if that cost commits nobody waits for."""
        with self._state:
            self._closed = True
            self._unattended = True
            self._wake()
        self._worker.join()
        self._writer.close()
        if self._failure is not None and self._unattended_txn > self._sequencer.committed:
            raise self._failure

    def abandon(self) -> None:
        """Stop without writing anything more: what a crash does. For tests."""
        with self._state:
            self._closed = True
            self._queue.clear()
            self._failure = self._failure or Closed("the store was abandoned")
            self._wake()
        self._worker.join()

    def _run(self) -> None:
        while True:
            with self._state:
                while not (self._unattended and self._drainer is None) and self._failure is None:
                    self._worker_wakes.wait()
                if self._failure is not None:
                    return
                if not self._queue and not (self._replicas is not None and self._replicas.has_records):
                    self._unattended = False
                    if self._closed:
                        return
                    continue
                self._drainer = self
            try:
                self._drain_once(self)
            except EblaError:
                return

    def _drain_once(self, drainer: object) -> None:
        """Write one entry. The caller is the drainer, and is it no more in the end."""
        taken: list[Commit] = []
        size = 0
        seconds: float | None = None
        try:
            with self._state:
                while self._queue and (not taken or size + self._queue[0].bytes <= ENTRY_BYTES_MAX):
                    taken.append(self._queue.popleft())
                    size += taken[-1].bytes
            if taken or (self._replicas is not None and self._replicas.has_records):
                seconds = self._write(taken)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            with self._state:
                self._let_go(drainer)
                self._queued_bytes -= size
                if taken:
                    self._written_txn = taken[-1].txn
                self._wake()
        if seconds is not None:
            self.writing.add(seconds)

    def _let_go(self, drainer: object) -> None:
        if self._drainer is drainer:
            self._drainer = None

    def _wake(self) -> None:
        """Wake everybody whose wait is over, and if nobody drains, one who will. The lock is held."""
        if self._waiting:
            committed = self._sequencer.committed
            held = self._held_txns
            is_over = [
                self._failure is not None or (waiting.txn <= committed and waiting.txn not in held)
                for waiting in self._waiting
            ]
            woken = [waiting for waiting, over in zip(self._waiting, is_over, strict=True) if over]
            self._waiting = [waiting for waiting, over in zip(self._waiting, is_over, strict=True) if not over]
            if self._waiting and self._drainer is None:
                unwritten = [at for at, one in enumerate(self._waiting) if one.txn > self._written_txn]
                if unwritten:
                    woken.insert(0, self._waiting.pop(unwritten[0]))
            for waiting in woken:
                waiting.wake()
        if self._unattended or self._failure is not None:
            self._worker_wakes.notify()

    def fail(self, error: BaseException) -> None:
        """Write nothing more: everybody who waits, and who comes later, gets the error."""
        if not isinstance(error, EblaError):
            failed = LogFailed(
                f"a commit was interrupted by {error!r}: reopen the store, in which everything is that was acknowledged"
            )
            failed.__cause__ = error
            error = failed
        with self._state:
            is_first = self._failure is None
            self._failure = self._failure or error
            self._queue.clear()
            self._wake()
        self._sequencer.fail(error)
        if is_first:
            _log.error("nothing more is written: %s", error)

    def _write(self, commits: Sequence[Commit]) -> float:
        """Write an entry, make it durable and show it; return how long the disk took."""
        parts, combined = parts_of(commits)
        former = tuple([reply for commit in commits for reply in commit.former_replies])
        replicas = self._replicas
        if replicas is not None:
            return self._write_with(replicas, commits, parts, combined, former)
        entry = LogEntry(commits[-1].txn, parts, former)
        began = now_seconds()
        self._writer.append(entry)
        self._writer.sync()
        seconds = now_seconds() - began
        self._show(_Group(commits, combined))
        return seconds

    def _write_with(
        self,
        replicas: LogReplicas,
        commits: Sequence[Commit],
        parts: Sequence[LogPart],
        combined: Sequence[Combined],
        former: tuple[Reply, ...],
    ) -> float:
        """Do what `_write` does where some parts, and other records, are of tablets that others keep, too."""
        own: list[LogPart] = []
        led: list[LogPart] = []
        for part in parts:
            (led if replicas.is_led(part) else own).append(part)
        marks = replicas.append(led) if led else []
        began = now_seconds()
        if own or former:
            self._writer.append(LogEntry(commits[-1].txn, tuple(own), former))
        records = replicas.take_records()
        if records is not None:
            self._writer.append_replicas(records[0])
        self._writer.sync()
        seconds = now_seconds() - began
        if commits:
            with self._completing:
                self._groups.append(_Group(commits, combined, marks, now_seconds()))
        if records is not None:
            replicas.synced(records[1])
        self.complete()
        return seconds

    def _may_be_shown(self, group: _Group) -> bool:
        """Tell whether a group is committed but for what is lost and for tablets held: those that are late for long."""
        late = [
            mark for mark in group.marks if mark.tablet not in self._held and not mark.is_committed and not mark.is_lost
        ]
        if late and now_seconds() - group.written_at < HOLD_SECONDS:
            return False
        for mark in late:
            _log.warning("tablet %s waits for its replicas, and others go on without it", mark.tablet[1])
            self._held[mark.tablet] = deque()
        return True

    def _show(self, group: _Group) -> None:
        if self._fence is not None:
            self._fence()
        held, lost = set(), set()
        for mark in group.marks:
            if mark.tablet in self._held:
                held.add(mark.tablet)
                one = _held_part(group, mark)
                self._held[mark.tablet].append(one)
                for txn in one.txns:
                    self._held_txns[txn] = self._held_txns.get(txn, 0) + 1
            elif not mark.is_committed:
                lost.add(mark.tablet)
                self._lose(_held_part(group, mark).txns)
        self._on_durable(group.commits, group.combined, held, lost)

    def _lose(self, txns: Iterable[int]) -> None:
        """Note that another leader decides what becomes of commits."""
        self._lost_txns.update(dict.fromkeys(txns))
        while len(self._lost_txns) > LOST_TXNS_MAX:
            del self._lost_txns[next(iter(self._lost_txns))]

    def _release(self) -> None:
        """Show what has become committed of tablets that are held; hold them no more when that is all."""
        for tablet, queue in [*self._held.items()]:
            while queue and (queue[0].mark.is_committed or queue[0].mark.is_lost):
                if self._fence is not None:
                    self._fence()
                one = queue.popleft()
                is_lost = not one.mark.is_committed
                self._on_released(tablet, () if is_lost else one.parts, not queue)
                if is_lost:
                    self._lose(one.txns)
                for txn in one.txns:
                    self._held_txns[txn] -= 1
                    if not self._held_txns[txn]:
                        del self._held_txns[txn]
            if not queue:
                del self._held[tablet]


def _held_part(group: _Group, mark: Mark) -> HeldPart:
    """Return what a group has of the tablet of a mark."""
    parts, txns = [], []
    for commit in group.commits:
        own = [part for part in commit.parts if (part.table, part.tablet) == mark.tablet]
        if own:
            parts += own
            txns.append(commit.txn)
    return HeldPart(mark, parts, txns)


def _replicas_missing() -> OutcomeUnknown:
    return OutcomeUnknown(
        "not every replica that has to have the commit has it: it may become durable yet; repeat it with the same "
        "request id, or read before repeating it"
    )
