"""The store: all tables of one tablet server, its log, and the workers that keep them in shape.

    apply     admit -> check conflicts -> throttle -> [commit lock: txn, memory, queue] -> log -> wait
    read      the newest committed txn, or the one asked for -> view -> reader
    workers   log (commit_log.py), flush and fold (here), saves of METADATA that commits depend on (here)

Lock order: flush lock, commit lock, then the locks inside sequencer, commit log, caches and METADATA. The commit lock
is held for microseconds and never over I/O, with one exception: reserving txn numbers, every few seconds.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal, TypeAlias

import pyarrow as pa

from ebla.clock import COUNTER_BITS, Clock, TxnClock, txn_at
from ebla.errors import (
    Closed,
    Conflict,
    EblaError,
    OutcomeUnknown,
    ReadOnly,
    RequestError,
    StoreError,
    UnknownTable,
)
from ebla.metadata.changes import RequirementFailed, TabletAt, TakeLog
from ebla.metadata.table_metadata import TableMetadata, TabletMetadata
from ebla.metadata.transaction import MetadataServer
from ebla.settings import Settings
from ebla.storage.cache import BlockCache
from ebla.storage.files import Files
from ebla.storage.fragment_reader import OpenFragments
from ebla.storage.log_format import Reply, Slice
from ebla.storage.log_writer import LogWriter
from ebla.storage.memory import choose_fold, combine
from ebla.storage.order import Indices
from ebla.storage.records import Block
from ebla.tablet.admission import Mutation
from ebla.tablet.commit_log import Combined, Commit, CommitLog
from ebla.tablet.recent_rows import RecentRows
from ebla.tablet.sequencer import Sequencer
from ebla.tablet.serialize import Candidate, FlushWork, choose, flush_change, write_fragment
from ebla.tablet.table_state import TableState

Wait: TypeAlias = Literal["durable", "logged", "none"]

# Look-ups of rows that may have changed are not repeated for ever when others keep changing them.
CONFLICT_CHECKS_MAX = 100
REPLIES_MAX = 10_000
REPLY_BYTES = 64
IDLE_SECONDS = 1.0
# METADATA that a commit depends on is tried again so often before the commit is given up.
SAVE_ATTEMPTS_MAX = 10
SAVE_PAUSE_SECONDS = 0.05

_log = logging.getLogger(__name__)


class TabletStore:
    """The tables of one server, open for reading and, unless `writer` is None, for writing."""

    def __init__(
        self,
        *,
        files: Files,
        metadata: MetadataServer,
        clock: Clock,
        settings: Settings,
        server: str,
        new_id: Callable[[], str],
        txn_clock: TxnClock,
        cache: BlockCache,
    ) -> None:
        # Set once.
        self.files = files
        self.metadata = metadata
        self.settings = settings
        self.server = server
        self.txn_clock = txn_clock
        self.cache = cache
        self.fragments = OpenFragments(files, cache, settings.open_files_max)
        self.recent = RecentRows(settings.recent_row_slots, txn_clock.last)
        self.sequencer = Sequencer(txn_clock.last)
        self.scan_pool = ThreadPoolExecutor(settings.scan_threads, thread_name_prefix="ebla-scan")
        self._opened_at = max(txn_clock.last, txn_at(clock.microseconds()))
        self._clock = clock
        self._new_id = new_id
        self._saves = ThreadPoolExecutor(1, thread_name_prefix="ebla-metadata")
        self._flush_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._room = threading.Condition(self._commit_lock)
        self._work = threading.Event()
        # Set by `start`.
        self._commit_log: CommitLog | None = None
        self._writer: LogWriter | None = None
        self._maintenance: threading.Thread | None = None
        # Guarded by _commit_lock.
        self._tables: dict[str, TableState] = {}
        self._names: dict[str, TableState] = {}
        self._replies: dict[str, tuple[int, int]] = {}
        self._replies_logged: dict[str, int] = {}  # where the log has a reply again, as the txn of that entry
        self._memory_bytes = 0
        self._throttled = 0
        self._flush_failure: EblaError | None = None
        self._closing = False
        # Counters for stats().
        self._flushes = 0
        self._folds = 0

    # --- tables ---

    def add_table(self, name: str, metadata: TableMetadata) -> TableState:
        """Open a table."""
        table = TableState(name, metadata, self.fragments, self.recent, self.settings)
        table.use_metadata(metadata, self.server)
        with self._commit_lock:
            self._tables[table.id] = table
            self._names[name] = table
        return table

    def remove_table(self, name: str) -> None:
        """Stop serving a table that was dropped; its memory is let go."""
        with self._commit_lock:
            table = self._names.pop(name)
            del self._tables[table.id]
            table.is_dropped = True
            self._memory_bytes -= table.memory_bytes
            self._room.notify_all()
        self._work.set()

    def table(self, name: str) -> TableState:
        """Return an open table by name."""
        table = self._names.get(name)
        if table is None:
            raise UnknownTable(f"there is no table {name!r}: the store has {self._listed()}")
        return table

    def _listed(self) -> str:
        names = sorted(self._names)
        return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "no tables yet"

    def tables(self) -> list[TableState]:
        """Return all open tables, by name."""
        with self._commit_lock:
            return [self._names[name] for name in sorted(self._names)]

    # --- life ---

    def recovered(self, replies: dict[str, tuple[int, int]]) -> None:
        """Take stock after a replay: the memory it filled, and what clients were told."""
        with self._commit_lock:
            self._memory_bytes = sum(table.memory_bytes for table in self._tables.values())
            self._replies.update(replies)

    def flush_replayed(self, table: TableState) -> None:
        """Make room during a replay: everything in it was committed before."""
        for group in table.view.schema.groups:
            self._flush_group(table, group.id)

    def start(self, writer: LogWriter) -> None:
        """Begin to accept writes, into `writer`."""
        self._writer = writer
        self._commit_log = CommitLog(writer, self.sequencer, self._slices_of, self._on_durable)
        self._maintenance = threading.Thread(target=self._maintain, name="ebla-maintenance", daemon=True)
        self._maintenance.start()

    @property
    def is_writable(self) -> bool:
        """Whether the store was opened for writing."""
        return self._commit_log is not None

    def close(self) -> None:
        """Log what is queued, flush what would make the next open slow, and stop. Idempotent."""
        with self._commit_lock:
            if self._closing:
                return
            self._closing = True
            self._room.notify_all()
        try:
            self._stop_writing()
        finally:
            self.scan_pool.shutdown(cancel_futures=True)
            self._saves.shutdown()

    def _stop_writing(self) -> None:
        if self._commit_log is None or self._maintenance is None:
            return
        self._work.set()
        self._maintenance.join()
        failed = self._commit_log.failure is not None
        self._commit_log.close()
        if not failed:
            self._saves.submit(lambda: None).result()
            self._flush_down_to(self.settings.close_flush_bytes)
            with contextlib.suppress(EblaError):  # a bound that stays too high only lets the next txns begin later
                self.txn_clock.release()

    def abandon(self) -> None:
        """Stop as a crash would, writing nothing more. For tests."""
        with self._commit_lock:
            self._closing = True
            self._room.notify_all()
        if self._commit_log is not None and self._maintenance is not None:
            self._commit_log.abandon()
            self._work.set()
            self._maintenance.join()
        self.scan_pool.shutdown(cancel_futures=True)
        self._saves.shutdown()

    # --- writing ---

    def apply(
        self,
        table: TableState,
        mutation: Mutation,
        *,
        unchanged_since: int | None = None,
        wait: Wait = "durable",
        request: tuple[str, int] | None = None,
    ) -> int:
        """Commit a mutation and return its txn.

        With `unchanged_since`, raises `Conflict` if a row it touches has changed after that txn. `request` is a
        client's id and a sequence number: a repeated request is answered with the txn of the first.
        """
        log = self._writable_log()
        if mutation.is_empty:
            return self.sequencer.committed
        slots = self.recent.slots_of(mutation.rows, table.salt)
        for _ in range(CONFLICT_CHECKS_MAX):
            self._throttle(log, mutation.bytes)
            checked_at = self._check_unchanged(table, mutation.rows, slots, unchanged_since)
            with self._commit_lock:
                if self._closing:
                    raise Closed("the store was closed")
                if table.is_dropped:
                    raise UnknownTable(f"the table {table.name!r} was dropped")
                if request is not None and (known := self._replies.get(request[0])) and known[0] >= request[1]:
                    txn = known[1]
                    break
                if checked_at is not None and self._changed_since(table, slots, checked_at):
                    continue
                txn = self._commit(log, table, mutation, slots, wait, request)
                break
        else:
            raise Conflict(f"rows of {table.name!r} keep changing: try again with fewer rows or fewer writers")
        if wait == "none":
            return txn
        log.wait(txn)
        if wait == "durable":
            self.sequencer.wait_stable(txn)
        return txn

    def _writable_log(self) -> CommitLog:
        if self._closing:
            raise Closed("the store was closed")
        if self._commit_log is None:
            raise ReadOnly("the store was opened read-only: open it without read_only to write")
        if self._commit_log.failure is not None:
            raise self._commit_log.failure
        return self._commit_log

    def _commit(
        self,
        log: CommitLog,
        table: TableState,
        mutation: Mutation,
        slots: Indices,
        wait: Wait,
        request: tuple[str, int] | None,
    ) -> int:
        """Allocate a txn, make the records part of memory and queue them for the log. The commit lock is held."""
        txn = self.txn_clock.next()
        self.sequencer.allocate(txn)
        try:
            self._stage(log, table, mutation, txn, slots, wait, request)
        except BaseException as error:
            # An interrupt may leave records in memory that are not in the queue. A later commit would make them
            # visible without their ever being in the log, so there must be no later commit.
            log.fail(error)
            raise
        return txn

    def _stage(
        self,
        log: CommitLog,
        table: TableState,
        mutation: Mutation,
        txn: int,
        slots: Indices,
        wait: Wait,
        request: tuple[str, int] | None,
    ) -> None:
        reply = None
        if request is not None:
            reply = Reply(request[0], request[1], txn)
            self._replies.pop(request[0], None)
            self._replies[request[0]] = (request[1], txn)
            self._replies_logged.pop(request[0], None)
            while len(self._replies) > REPLIES_MAX:
                forgotten = next(iter(self._replies))
                del self._replies[forgotten]
                self._replies_logged.pop(forgotten, None)
        before = table.memory_bytes
        commit, first_touched = table.stage(mutation, txn, reply)
        self._memory_bytes += table.memory_bytes - before
        watched = self.recent.change(slots, txn)
        if len(watched):
            table.row_cache.drop(mutation.rows, watched)
        if mutation.ranges:
            table.row_cache.clear(txn)
        if first_touched:
            self.sequencer.add_future_dependencies(txn, 1)
            self._saves.submit(self._take_log, table, first_touched, txn)
        log.push(commit, attended=wait != "none")
        if self._memory_bytes >= self.settings.flush_bytes:
            self._work.set()

    def _throttle(self, log: CommitLog, size_bytes: int) -> None:
        """Wait while too much is queued for the log, or in memory."""
        settings = self.settings
        if log.queued_bytes <= settings.queue_bytes_max and self._memory_bytes <= settings.memory_bytes_max:
            return
        with self._commit_lock:
            self._throttled += 1
            while not self._closing:
                if log.failure is not None:
                    raise log.failure
                if log.queued_bytes <= settings.queue_bytes_max and self._memory_bytes <= settings.memory_bytes_max:
                    return
                if self._flush_failure is not None and self._memory_bytes > settings.memory_bytes_max:
                    raise StoreError(f"memory is full and cannot be flushed: {self._flush_failure}")
                self._work.set()
                self._room.wait(IDLE_SECONDS)

    # --- conflicts ---

    def check_unchanged(self, table: TableState, rows: pa.Array, since: int) -> None:
        """Raise `Conflict` if one of these rows changed after `since`."""
        self._check_unchanged(table, rows, self.recent.slots_of(rows, table.salt), since)

    def _check_unchanged(self, table: TableState, rows: pa.Array, slots: Indices, since: int | None) -> int | None:
        """Raise `Conflict` if a row changed after `since`; return up to which txn that is known."""
        if since is None:
            return None
        with self._commit_lock:  # not between the allocation of a txn and its records
            checked_at = self.sequencer.allocated
            view = table.view
        suspects = self.recent.changed_after(slots, since)
        if table.last_range_erasure > since:
            suspects[:] = True
        for place in suspects.nonzero()[0]:
            row = rows[int(place)].as_py()
            latest = table.reader.latest_txn(view, view.metadata.tablet_for(row), row)
            if latest > since:
                key = table.codec.decode(row)
                shown = key[0] if len(key) == 1 else key
                raise Conflict(f"row {shown!r} of {table.name!r} changed at txn {latest}, after {since}: read it again")
        return max(since, checked_at)

    def _changed_since(self, table: TableState, slots: Indices, txn: int) -> bool:
        return table.last_range_erasure > txn or bool(self.recent.changed_after(slots, txn).any())

    # --- after the log ---

    def _slices_of(self, table_id: str, block: Block) -> tuple[Slice, ...]:
        table = self._tables.get(table_id)
        return () if table is None else table.slices_of(block)

    def _on_durable(self, combined: Sequence[Combined], txn: int) -> None:
        with self._commit_lock:
            for one in combined:
                table = self._tables.get(one.new.table)
                if table is not None:
                    before = table.memory_bytes
                    table.combined(one.new.group.id, one)
                    self._memory_bytes += table.memory_bytes - before
            self.sequencer.commit(txn)
            if self._throttled:
                self._throttled = 0
                self._room.notify_all()

    def _take_log(self, table: TableState, tablets: Sequence[TabletMetadata], txn: int) -> None:
        """Save that the tablets' writes are in this server's log: what their first commit depends on."""
        change = TakeLog(tuple(TabletAt(t.id, t.epoch) for t in tablets), self.server, self.server)
        failure: Exception | None = None
        for attempt in range(SAVE_ATTEMPTS_MAX):
            if attempt and not self._closing:
                self._clock.sleep(SAVE_PAUSE_SECONDS)
            try:
                metadata = self.metadata.commit(table.id, [change])
            except UnknownTable:
                self.sequencer.resolve_future_dependencies(txn, 1)
                return
            except Exception as error:  # repeating it does no harm, even if it was done
                failure = error
                continue
            with self._commit_lock:
                table.use_metadata(metadata, self.server)
            self.sequencer.resolve_future_dependencies(txn, 1)
            return
        # The commit is in the log, and shown: whoever waits for it must not take it for one that never was.
        unknown = OutcomeUnknown(
            f"the commit is in the log, but METADATA of {table.name!r} could not be saved ({failure}): reopen the "
            "store, and read before repeating it"
        )
        unknown.__cause__ = failure
        self.sequencer.fail(unknown)

    # --- flush and fold ---

    def flush(self, table: TableState) -> None:
        """Write everything that is committed in a table to fragments."""
        log = self._writable_log()
        log.wait(self.sequencer.allocated)
        for group in table.view.schema.groups:
            self._flush_group(table, group.id)

    def wish_fold(self, table: TableState, group: int) -> None:
        """Ask for a group's many small blocks to be folded: a reader had to look into all of them."""
        if self.is_writable:
            table.fold_wanted.add(group)
            self._work.set()

    def _maintain(self) -> None:
        while True:
            self._work.wait(IDLE_SECONDS)
            self._work.clear()
            if self._closing:
                return
            try:
                self._fold_wanted()
                while not self._closing and self._flush_next():
                    pass
            except EblaError as error:
                self._note_flush_failure(error)
            except Exception as error:
                _log.exception("flushing failed")
                self._note_flush_failure(StoreError(f"flushing failed: {error!r}"))

    def _note_flush_failure(self, error: EblaError) -> None:
        with self._commit_lock:
            self._flush_failure = error
            self._room.notify_all()

    def _flush_next(self) -> bool:
        candidate = choose(self._candidates(), self.settings, self._log_bytes())
        if candidate is None:
            return False
        table = self._tables.get(candidate.table)
        return table is not None and self._flush_group(table, candidate.group)

    def _flush_down_to(self, bytes_left: int) -> None:
        """Flush the largest table groups until at most this much is left in memory."""
        with contextlib.suppress(OSError, EblaError):  # what is not flushed is in the log
            while self._memory_bytes > bytes_left:
                held = max(self._candidates(), key=lambda candidate: candidate.memory_bytes, default=None)
                if held is None or not held.memory_bytes:
                    return
                if not self._flush_group(self._tables[held.table], held.group):
                    return

    def _candidates(self) -> list[Candidate]:
        segments = self._writer.segments() if self._writer is not None else []
        found = []
        for table in self.tables():
            for group, memory in table.view.memory.items():
                oldest = memory.txn_min
                held = 0 if oldest is None else sum(s.bytes for s in segments if s.txn_max >= oldest)
                found.append(Candidate(table.id, group, memory.bytes, held))
        return found

    def _log_bytes(self) -> int:
        return self._writer.total_bytes() if self._writer is not None else 0

    def _flush_group(self, table: TableState, group: int) -> bool:
        """Flush what is committed of one group; False if there is nothing."""
        with self._flush_lock:
            with self._commit_lock:
                blocks, erasures = table.view.memory_of(group).committed(self.sequencer.committed)
                table.flushing[group] = frozenset(map(id, blocks))
            try:
                if table.is_dropped or not (blocks or erasures):
                    return False
                work = FlushWork(table, group, blocks, erasures)
                metadata = self._save_flush(work)
                if metadata is None:
                    return False
                with self._commit_lock:
                    table.use_metadata(metadata, self.server)
                    before = table.memory_bytes
                    memory = table.view.memory_of(group).without(blocks, erasures)
                    table.view = replace(table.view, memory={**table.view.memory, group: memory})
                    if not table.is_dropped:
                        self._memory_bytes += table.memory_bytes - before
                    self._flush_failure = None
                    self._flushes += 1
                    self._room.notify_all()
            finally:
                with self._commit_lock:
                    table.flushing.pop(group, None)
        self._release_log()
        return True

    def _save_flush(self, work: FlushWork) -> TableMetadata | None:
        try:
            info = write_fragment(work, self.files, self._new_id)
        except OSError as error:
            raise StoreError(
                f"cannot write a fragment of {work.table.name!r}: {error}; free space and retry"
            ) from error
        try:
            return self.metadata.commit(work.table.id, [flush_change(work, info)])
        except UnknownTable:
            return None
        except RequirementFailed as error:
            if error.code != "already_flushed":
                raise
            # An earlier attempt whose outcome was not known did land. What was written since then is not part of it.
            landed = self.metadata.refresh(work.table.id)
            change = flush_change(work, info, landed)
            return self.metadata.commit(work.table.id, [change]) if change.tablets else landed

    def _release_log(self) -> None:
        """Remove the log segments whose every record is in a fragment that METADATA names."""
        if self._writer is None:
            return
        with self._commit_lock:
            held = [m.txn_min for t in self._tables.values() for m in t.view.memory.values()]
            needed = min((txn for txn in held if txn is not None), default=self.sequencer.committed + 1)
            needed = min(needed, self.sequencer.committed + 1)
        try:
            self._keep_replies(needed)
            self._writer.delete_segments(needed)
        except (OSError, EblaError) as error:
            _log.warning("log segments could not be removed, trying again after the next flush: %s", error)

    def _keep_replies(self, needed: int) -> None:
        """Log the replies again that stand only below `needed`, where the log is about to go."""
        segments = self._writer.segments() if self._writer is not None else []
        if not self._replies or not segments or segments[0].txn_max >= needed:
            return
        log = self._writable_log()
        with self._commit_lock:
            old = [
                Reply(client, sequence, txn)
                for client, (sequence, txn) in self._replies.items()
                if self._replies_logged.get(client, txn) < needed
            ]
            if not old:
                return
            txn = self.txn_clock.next()
            self.sequencer.allocate(txn)
            log.push(Commit(txn, REPLY_BYTES * len(old), older_replies=tuple(old)), attended=True)
            self._replies_logged.update((reply.client, txn) for reply in old)
        log.wait(txn)

    def _fold_wanted(self) -> None:
        for table in self.tables():
            while table.fold_wanted:
                group = table.fold_wanted.pop()
                self._fold(table, group)

    def _fold(self, table: TableState, group: int) -> None:
        with self._commit_lock:
            blocks, _ = table.view.memory_of(group).committed(self.sequencer.committed)
            busy = table.flushing.get(group, frozenset())
            chosen = choose_fold([block for block in blocks if id(block) not in busy])
        if not chosen:
            return
        folded = combine(chosen, is_cells=table.view.schema.group_by_id[group].is_cells)
        with self._commit_lock:
            busy = table.flushing.get(group, frozenset())
            if any(id(block) in busy for block in chosen):
                return
            before = table.memory_bytes
            memory = table.view.memory_of(group).replace(chosen, folded)
            table.view = replace(table.view, memory={**table.view.memory, group: memory})
            if not table.is_dropped:
                self._memory_bytes += table.memory_bytes - before
            self._folds += 1

    # --- reading ---

    def read_txn(self, as_of: int | None = None, *, uncommitted: bool = False, at_once: bool = False) -> int:
        """Return the txn at which to read, so that an answer at it never changes.

        Without `as_of` it is that of the newest commit; with `at_once` that of this very moment, for tables in which
        time alone changes what is seen.
        """
        if as_of is None and at_once:
            as_of = max(self.sequencer.committed, self._opened_at)
            if self._commit_log is not None:
                as_of = max(as_of, self.txn_clock.last, self._clock.microseconds() << COUNTER_BITS)
                if uncommitted:
                    self.txn_clock.observe(as_of)
                    # Whoever got a smaller txn before that has its records in memory once the lock is free.
                    with self._commit_lock:
                        return as_of
        if as_of is None:
            if not uncommitted:
                return self.sequencer.committed
            with self._commit_lock:  # not between the allocation of a txn and its records
                return self.sequencer.allocated
        if as_of > self.sequencer.committed:
            if self._commit_log is None:
                return self._read_only_txn(as_of)
            self.txn_clock.observe(as_of)
            with self._commit_lock:
                in_flight = min(as_of, self.sequencer.allocated)
            self._commit_log.wait(in_flight)
        return as_of

    def _read_only_txn(self, as_of: int) -> int:
        if as_of > self._opened_at:
            raise RequestError(
                f"this read-only open sees the store as of txn {self._opened_at}: open it again for later"
            )
        return as_of

    def sync(self, txn: int | None = None) -> int:
        """Wait until everything up to `txn` (default: everything so far) is stable; return the stable txn."""
        if self._commit_log is not None:
            target = self.sequencer.allocated if txn is None else min(txn, self.sequencer.allocated)
            self._commit_log.wait(target)
            self.sequencer.wait_stable(target)
        return self.sequencer.stable

    def stats(self) -> dict[str, object]:
        """Return counters of the store as a whole."""
        return {
            "writable": self.is_writable,
            "txn_committed": self.sequencer.committed,
            "txn_stable": self.sequencer.stable,
            "memory_bytes": self._memory_bytes,
            "queued_bytes": self._commit_log.queued_bytes if self._commit_log is not None else 0,
            "log_bytes": self._log_bytes(),
            "log_segments": len(self._writer.segments()) if self._writer is not None else 0,
            "flushes": self._flushes,
            "folds": self._folds,
            "block_cache": self.cache.stats(),
        }
