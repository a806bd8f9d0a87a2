"""The way of a write through the store, from an admitted mutation to a stable commit.

    apply   table made ready -> throttled -> rows unchanged? -> [commit lock: txn, memory, queue] -> log -> stable
                                                                                                     |
    METADATA that the first commit of a tablet depends on is saved beside it  ----------------------'

Commits queue under the commit lock in the order of their txns; the log writes them in that order. What was promised to
a client by request id is kept in the log as long as it may ask again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from ebla.clock import Clock, TxnClock
from ebla.errors import Conflict, EblaError, OutcomeUnknown, SchemaChanged, StoreError, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import TabletAt, TakeLog
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.retry import CROWDS, SAVES
from ebla.service.requests import Wait
from ebla.settings import Settings
from ebla.storage.log.log_entry import Reply
from ebla.storage.log.log_writer import LogWriter
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.life.loader import Loader
from ebla.tablet.life.readiness import Readiness
from ebla.tablet.life.table_lifecycle import TableLifecycle
from ebla.tablet.tables.kept_replies import KeptReplies
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.pauses import Pauses
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.commit import Combined, Commit, StagedPart, TabletKeys
from ebla.tablet.write.commit_log import CommitLog
from ebla.tablet.write.gate import Gate
from ebla.tablet.write.log_replicas import LogReplicas
from ebla.tablet.write.mutation import Mutation
from ebla.tablet.write.open_state import OpenState
from ebla.tablet.write.recent_rows import RecentRows, Slots
from ebla.tablet.write.row_admission import RowMutation
from ebla.tablet.write.sequencer import Sequencer
from ebla.threads.worker import IDLE_SECONDS
from ebla.timing import Timing, Warner, now_seconds

__all__ = ["WritePath", "schema_changed"]

_log = logging.getLogger(__name__)


def schema_changed(table: str) -> SchemaChanged:
    """Return the error for a request that was made under a former schema."""
    return SchemaChanged(f"the schema of {table!r} was changed since the request was made: make it again")


class WritePath:
    """Commits mutations. Safe to use from several threads."""

    def __init__(
        self,
        tables: OpenTables,
        sequencer: Sequencer,
        txn_clock: TxnClock,
        recent: RecentRows,
        gate: Gate,
        pauses: Pauses,
        flusher: Flusher,
        metadata: MetadataAccess,
        clock: Clock,
        settings: Settings,
        server: str,
        state: OpenState,
        lifecycle: TableLifecycle,
        readiness: Readiness,
        loader: Loader,
        kept: KeptReplies,
    ) -> None:
        # Set once.
        self._tables = tables
        self._sequencer = sequencer
        self._txn_clock = txn_clock
        self._recent = recent
        self._gate = gate
        self._pauses = pauses
        self._flusher = flusher
        self._metadata = metadata
        self._clock = clock
        self._settings = settings
        self._server = server
        self._state = state
        self._lifecycle = lifecycle
        self._readiness = readiness
        self._loader = loader
        self._kept = kept
        self._lock = tables.lock
        self._saves = ThreadPoolExecutor(1, thread_name_prefix="ebla-metadata")
        # Set by `start`.
        self._fence: Callable[[], None] | None = None
        # Guarded by the commit lock.
        self.ingested_bytes = 0
        self._throttled = 0
        self.commits = 0
        self.throttled = Timing(_log, "waiting for room")  # who waits is told of as it begins
        self._throttling = Warner(_log)

    # --- life ---

    def start(self, writer: LogWriter, fence: Callable[[], None] | None, replicas: LogReplicas | None = None) -> None:
        """Begin to accept writes."""
        self._fence = fence
        self._state.log = CommitLog(
            writer,
            self._sequencer,
            self._on_durable,
            fence,
            self._settings.slow_seconds,
            replicas,
            self._on_released,
        )

    def finish_saves(self) -> None:
        """Wait until METADATA that commits depend on is saved."""
        self._saves.submit(lambda: None).result()

    def start_log_over(self) -> None:
        """After the log was closed: leave a short one if all of it but what clients were told is in fragments."""
        with contextlib.suppress(EblaError):  # somebody else may own the store by now
            if self._fence is not None:
                self._fence()
            self._flusher.start_log_over(self._kept.entry)

    def stop(self) -> None:
        """Let go of the thread; the log is closed before."""
        self._saves.shutdown()

    # --- commits ---

    def apply(
        self,
        table: TableState,
        mutation: Mutation | RowMutation,
        *,
        unchanged_since: int | None = None,
        wait: Wait = "durable",
        request: tuple[str, int] | None = None,
    ) -> int:
        """Commit a mutation, wait as it is asked for, and return its txn; see `commit`."""
        txn = self.commit(table, mutation, unchanged_since=unchanged_since, attended=wait != "none", request=request)
        if not mutation.is_empty:
            self.wait(txn, wait)
        return txn

    def wait(self, txn: int, wait: Wait) -> None:
        """Return once a commit is where `wait` says."""
        if wait == "none":
            return
        log = self._state.log
        assert log is not None, "what was committed is in a log"
        log.wait(txn)
        if wait == "durable":
            self._sequencer.wait_stable(txn)

    def commit(
        self,
        table: TableState,
        mutation: Mutation | RowMutation,
        *,
        unchanged_since: int | None = None,
        attended: bool = True,
        request: tuple[str, int] | None = None,
    ) -> int:
        """Make a mutation part of memory, queue it for the log, and return its txn.

        `attended` says that the caller will `wait` for it, so that the log's worker is not woken.
        With `unchanged_since`, raises `Conflict` if a row it touches has changed after that txn. `request` is a
        client's id and a sequence number: a repeated request is answered with the txn of the first.
        """
        log = self._state.writable_log()
        if table.is_in_doubt:
            self._lifecycle.settle(table.name)
        if mutation.is_empty:
            return self._sequencer.committed
        slots = self._slots_of(table, mutation)
        for _ in CROWDS:
            self._readiness.make_ready(table)
            self._throttle(log)
            checked_at = None
            if unchanged_since is not None:
                checked_at = self._check_unchanged(table, mutation, slots, unchanged_since)
            with self._lock:
                if self._gate.reserved is not None:
                    self._gate.wait(log)
                if table.paused and table.is_paused_for(mutation):
                    self._pauses.wait(table, mutation, log)
                    continue  # the lock was given up: a bulk commit may have closed the gate
                if table.is_in_question or table.is_offline:
                    continue
                if self._state.is_closing:
                    raise self._state.closed()
                if table.is_dropped:
                    raise UnknownTable(
                        f"the table {table.name!r} was dropped, or restored in place: get it anew with db.table"
                    )
                if table.led is not None:
                    table.led.check_write(table.view.metadata, mutation.rows, mutation.ranges)
                if mutation.schema_version not in (0, table.view.parts.version):
                    raise schema_changed(table.name)
                if request is not None:
                    rest, known = self._rest_of(table, mutation, request)
                    if rest is None:
                        return known
                    if rest is not mutation:
                        mutation, slots = rest, self._slots_of(table, rest)
                        continue
                if (
                    checked_at is not None
                    and next(self._suspects(table, mutation, slots, checked_at), None) is not None
                ):
                    continue
                return self._commit(log, table, mutation, slots, attended, request)
        raise Conflict(f"rows of {table.name!r} keep changing: try again with fewer rows or fewer writers")

    def _slots_of(self, table: TableState, mutation: Mutation | RowMutation) -> Slots:
        if isinstance(mutation, RowMutation):
            return self._recent.slot_of(mutation.row, table.salt)
        return self._recent.slots_of(mutation.rows, table.salt)

    def rest_of(
        self, table: TableState, mutation: Mutation | RowMutation, request: tuple[str, int]
    ) -> tuple[Mutation | RowMutation | None, int]:
        """Return what of a request was not carried out before, None if all was, and the txn of what was.

        A tablet that has carried it out does not do so again. The others do: the request may have met a part of them.
        """
        with self._lock:
            return self._rest_of(table, mutation, request)

    def _rest_of(
        self, table: TableState, mutation: Mutation | RowMutation, request: tuple[str, int]
    ) -> tuple[Mutation | RowMutation | None, int]:
        former = self._kept.former.find(request)
        if former is not None:
            return None, former
        touched = table.touched(mutation)
        answered = table.answered(request, touched)
        txn = max(answered.values(), default=0)
        if not answered or isinstance(mutation, RowMutation):
            return (None if answered else mutation), txn
        return (None if len(answered) == len(touched) else table.without(mutation, answered)), txn

    def answered_row(self, table: TableState, row: bytes, request: tuple[str, int]) -> int | None:
        """Return the txn with which a request about one row was answered before; None if it is new."""
        with self._lock:
            former = self._kept.former.find(request)
            return table.tablet(table.view.metadata.tablet_for(row).id).answered(request) if former is None else former

    def _commit(
        self,
        log: CommitLog,
        table: TableState,
        mutation: Mutation | RowMutation,
        slots: Slots,
        attended: bool,
        request: tuple[str, int] | None,
    ) -> int:
        """Allocate a txn, make the records part of memory and queue them for the log. The commit lock is held."""
        txn = self._txn_clock.next()
        try:
            self._sequencer.allocate(txn)
            self._stage(log, table, mutation, txn, slots, attended, request)
        except BaseException as error:
            # An interrupt may leave records in memory that are not in the queue. A later commit would make them
            # visible without their ever being in the log, so there must be no later commit. Nor may anybody wait for
            # a txn that was given out and will never be in the log.
            log.fail(error)
            raise
        return txn

    def _stage(
        self,
        log: CommitLog,
        table: TableState,
        mutation: Mutation | RowMutation,
        txn: int,
        slots: Slots,
        attended: bool,
        request: tuple[str, int] | None,
    ) -> None:
        reply = None if request is None else Reply(*request, txn)
        before = table.memory_bytes
        self.commits += 1
        self.ingested_bytes += mutation.bytes
        commit, first_touched = table.stage(mutation, txn, reply)
        self._tables.memory_bytes += table.memory_bytes - before
        watched = self._recent.change(slots, txn)
        if len(watched):
            if attended and isinstance(mutation, RowMutation) and not mutation.has_cells:
                table.row_cache.leave(mutation.row, txn)
            else:
                table.row_cache.drop(mutation.rows, watched)
        if mutation.ranges:
            table.row_cache.clear(txn)
        if first_touched:
            self._sequencer.add_future_dependencies(txn, 1)
            self._saves.submit(self._take_log, table, first_touched, txn)
        log.push(commit, attended=attended)
        if self._tables.memory_bytes >= self._settings.flush_bytes or table.combining_wanted:
            self._flusher.wake()

    def _throttle(self, log: CommitLog) -> None:
        """Wait while too much is queued for the log, or in memory.

        A callback of an event does not: it may run on the thread that flushes, or that writes the log.
        """
        if self._has_room(log) or self._tables.events.is_callback:
            return
        began = now_seconds()
        self._throttling.warn(
            "writers are made to wait: %d bytes are not flushed yet (%d are allowed), %d not in the log (%d)",
            self._tables.memory_bytes,
            self._settings.memory_bytes_max,
            log.queued_bytes,
            self._settings.queue_bytes_max,
        )
        try:
            with self._lock:
                self._throttled += 1
                self._wait_for_room(log)
        finally:
            self.throttled.add(now_seconds() - began)

    def _wait_for_room(self, log: CommitLog) -> None:
        while not self._state.is_closing:
            if log.failure is not None:
                raise log.failure
            if self._has_room(log):
                return
            if self._flusher.failure is not None and self._tables.memory_bytes > self._settings.memory_bytes_max:
                raise StoreError(f"memory is full and cannot be flushed: {self._flusher.failure}")
            self._flusher.wake()
            self._tables.room.wait(IDLE_SECONDS)

    def _has_room(self, log: CommitLog) -> bool:
        settings = self._settings
        return log.queued_bytes <= settings.queue_bytes_max and self._tables.memory_bytes <= settings.memory_bytes_max

    # --- conflicts ---

    def check_unchanged(self, table: TableState, rows: pa.Array, since: int) -> None:
        """Raise `Conflict` if one of these rows changed after `since`."""
        self._check_unchanged(table, Mutation(rows), self._recent.slots_of(rows, table.salt), since)

    def _check_unchanged(self, table: TableState, mutation: Mutation | RowMutation, slots: Slots, since: int) -> int:
        """Raise `Conflict` if a row changed after `since`; return up to which txn that is known."""
        with self._lock:  # not between the allocation of a txn and its records
            checked_at = self._sequencer.allocated
            view = table.view
        for row in self._suspects(table, mutation, slots, since):
            self._loader.admit_row(table, row)
            tablet = view.metadata.tablet_for(row)
            # What an erasure left behind may be gone from below the floor: then nobody can say that nothing happened.
            floor = max((state.floor_txn for state in tablet.groups), default=0)
            latest = max(table.reader.rows.latest_txn(view, tablet, row), floor)
            if latest > since:
                key = table.codec.decode(row)
                shown = key[0] if len(key) == 1 else key
                told = f"may have changed until txn {latest}" if latest == floor else f"changed at txn {latest}"
                raise Conflict(f"row {shown!r} of {table.name!r} {told}, after {since}: read it again")
        return max(since, checked_at)

    def _suspects(
        self, table: TableState, mutation: Mutation | RowMutation, slots: Slots, since: int
    ) -> Iterator[bytes]:
        """Yield the rows of a mutation that may have changed after a txn."""
        if isinstance(mutation, RowMutation):
            assert isinstance(slots, int)
            if self._recent.newest(slots) > since or table.may_have_changed_since(mutation.row, since):
                yield mutation.row
            return
        assert not isinstance(slots, int)
        suspects = self._recent.changed_after(slots, since)
        for begin, end in table.stretches_changed_since(mutation.rows, since):
            suspects[begin:end] = True
        for place in suspects.nonzero()[0]:
            yield mutation.rows[int(place)].as_py()

    # --- after the log ---

    def _on_durable(
        self, commits: Sequence[Commit], combined: Sequence[Combined], held: TabletKeys, lost: TabletKeys
    ) -> None:
        with self._lock:
            for table_id, tablet in held:
                table = self._tables.find(table_id)
                if table is not None:
                    table.hold(tablet)
            for commit in commits:
                for part in commit.parts:
                    if not (held or lost) or (part.table, part.tablet) not in (*held, *lost):
                        part.state.commit(part.index)
            for one in combined:
                table = self._tables.find(one.table)
                if table is not None:
                    with self._tables.counted(table):
                        table.combined(one)
            self._sequencer.commit(commits[-1].txn)
            if self._throttled:
                self._throttled = 0
                self._tables.room.notify_all()

    def _on_released(self, tablet: tuple[str, str], parts: Sequence[StagedPart], is_last: bool) -> None:
        """Show commits of a tablet that was held; `is_last`: it is no more."""
        with self._lock:
            for part in parts:
                part.state.commit(part.index)
            table = self._tables.find(tablet[0])
            if table is not None and is_last:
                table.held -= {tablet[1]}

    def _take_log(self, table: TableState, tablets: Sequence[TabletMetadata], txn: int) -> None:
        """Save that the tablets' writes are in this server's log: what their first commit depends on."""
        change = TakeLog(tuple(TabletAt(t.id, t.epoch) for t in tablets), self._server, self._server)
        failure: Exception | None = None
        for attempt in range(SAVES.attempts_max):
            if attempt and not self._state.is_closing:
                self._clock.sleep(SAVES.pause_seconds)
            try:
                metadata = self._metadata.commit(table.id, [change])
            except UnknownTable:
                self._sequencer.resolve_future_dependencies(txn, 1)
                return
            except Exception as error:  # repeating it does no harm, even if it was done
                failure = error
                continue
            with self._lock:
                table.use_metadata(metadata, self._server)
            # No event is delivered here: a listener may commit, and what that depends on is saved by this thread. Who
            # changed fragments or ranges delivers it.
            self._sequencer.resolve_future_dependencies(txn, 1)
            return
        # The commit is in the log, and shown: whoever waits for it must not take it for one that never was.
        unknown = OutcomeUnknown(
            f"the commit is in the log, but METADATA of {table.name!r} could not be saved ({failure}): reopen the "
            "store, and read before repeating it"
        )
        unknown.__cause__ = failure
        _log.error("given up after %d attempts: %s", SAVES.attempts_max, unknown)
        self._sequencer.fail(unknown)
