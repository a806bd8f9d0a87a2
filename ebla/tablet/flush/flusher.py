"""The flusher: keeps memory and log small, in the background and when asked.

    flush     what is committed of a table group -> a new fragment -> METADATA -> memory and log let go
    combine   many small blocks in memory -> few, when a reader had to look into all of them
    release   log segments of which every record is in a fragment that METADATA names; at close, all of the log

One flush at a time. Writes go on meanwhile: what a flush takes is fixed when it begins. If it fails, the records stay
where they were, in memory and in the log, and it is tried again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection

from ebla.errors import EblaError, StoreError, TooManyFiles, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import RequirementFailed
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.settings import Settings
from ebla.storage.cache.spare_memory import SpareMemory
from ebla.storage.files.files import Files
from ebla.storage.fragment.fragment_format import FragmentInfo
from ebla.storage.log.log_entry import LogEntry
from ebla.storage.log.log_writer import LogWriter
from ebla.storage.merge.erasure_cover import TXN_MAX
from ebla.storage.merge.memory import choose_blocks, combine
from ebla.tablet.flush.pending_files import PendingFiles
from ebla.tablet.flush.replica_flush import ReplicaFlush
from ebla.tablet.flush.serialize import Candidate, FlushWork, choose, flush_change, write_fragment
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.replies import REPLY_BYTES
from ebla.tablet.write.sequencer import Sequencer
from ebla.threads.worker import Worker
from ebla.timing import Timing, Warner, now_seconds

# At close, a log of less than this share of a segment is left as it is: it is read in no time.
REST_SHARE = 1024
# At close, a log of more segments than this is flushed, however small they are: each is a file that an open reads.
REST_SEGMENTS_MAX = 16

_log = logging.getLogger(__name__)


class Flusher:
    """Flushes the memory of open tables and combines its blocks. Lock order: the flush lock, then the commit lock."""

    def __init__(
        self,
        tables: OpenTables,
        sequencer: Sequencer,
        metadata: MetadataAccess,
        files: Files,
        settings: Settings,
        server: str,
        pending: PendingFiles,
        spare: SpareMemory,
    ) -> None:
        # Set once.
        self._tables = tables
        self._sequencer = sequencer
        self._metadata = metadata
        self._files = files
        self._settings = settings
        self._server = server
        self._pending = pending
        self._spare = spare
        self._flush_lock = threading.Lock()
        self._worker = Worker("ebla-flush", self._work, self._failed, doing="flushing")
        # Set by `start`.
        self._writer: LogWriter | None = None
        self._before_release: Callable[[int], None] = lambda txn: None
        self._on_flushed: Callable[[], None] = lambda: None
        self._record_log: Callable[[], None] = lambda: None
        self._replicas: ReplicaFlush | None = None
        # Written by this object alone, read by others.
        self.failure: EblaError | None = None
        self.flushing = Timing(_log, "a flush")
        self._failing = Warner(_log)
        self.bytes_written = 0
        self.combinings = 0
        self._released_at = 0
        self._opened_txn = 0

    def start(
        self,
        writer: LogWriter,
        before_release: Callable[[int], None],
        on_flushed: Callable[[], None],
        record_log: Callable[[], None],
        replicas: ReplicaFlush | None = None,
    ) -> None:
        """Begin to work in the background.

        `before_release(txn)` runs before log below `txn` is removed, `on_flushed()` after each flush, `record_log()`
        when writing pauses. `replicas` keep some of the tablets on other servers, too.
        """
        self._writer = writer
        self._opened_txn = self._sequencer.allocated
        self._before_release = before_release
        self._on_flushed = on_flushed
        self._record_log = record_log
        self._replicas = replicas
        self._worker.start()

    def stop(self) -> None:
        """Finish the flush under way, if any, and begin no other by itself."""
        self._worker.stop()

    def wake(self) -> None:
        """Say that there may be something to flush."""
        self._worker.wake()

    def wish_combining(self, table: TableState, tablet: str, group: int) -> None:
        """Ask for the many small blocks of a group of a tablet to be combined."""
        if self._writer is not None:
            table.combining_wanted.add((tablet, group))
            self._worker.wake()

    def log_bytes(self) -> int:
        """Return the size of the log."""
        return self._writer.total_bytes() if self._writer is not None else 0

    def log_from(self, otherwise: int) -> int:
        """Return the oldest txn that the log has, or what is said if it has none."""
        segments = self._writer.segments() if self._writer is not None else []
        return min((segment.txn_min for segment in segments if segment.txn_max), default=otherwise)

    def log_segments(self) -> int:
        """Return the number of segments of the log."""
        return len(self._writer.segments()) if self._writer is not None else 0

    def _work(self, is_idle: bool) -> None:
        if is_idle and self._released_at != self.flushes:
            # Writing has paused: what flushes left free goes back to the system, which others may need now.
            self._released_at = self.flushes
            self._spare.give_back()
        if is_idle:
            with contextlib.suppress(EblaError):  # the next reservation of txns puts it on record, or the close
                self._record_log()
        self._combine_wanted()
        self._spare.look()
        while not self._worker.is_stopping and self._flush_next():
            self._spare.look()

    @property
    def flushes(self) -> int:
        """How many flushes there were."""
        return self.flushing.count

    def _failed(self, error: EblaError) -> None:
        self._failing.warn("a flush failed and is tried again, what it was to write is in the log: %s", error)
        with self._tables.lock:
            self.failure = error
            self._tables.room.notify_all()

    # --- flush ---

    def flush_table(
        self, table: TableState, tablets: Collection[str] | None = None, *, keeps_log: bool = False
    ) -> None:
        """Flush everything that is committed in a table, or in some of its tablets.

        With `keeps_log` the log is left as it is: to shorten it may take a commit, for which a gate can be closed.
        """
        for group in table.view.schema.groups:
            self.flush_group(table, group.id, tablets, keeps_log=keeps_log)

    def flush_down_to(self, bytes_left: int) -> None:
        """Flush the largest table groups until at most this much is left in memory, as far as that is possible."""
        with contextlib.suppress(OSError, EblaError):  # what is not flushed is in the log
            while self._tables.memory_bytes > bytes_left:
                held = max(self._candidates(), key=lambda candidate: candidate.memory_bytes, default=None)
                table = None if held is None or not held.memory_bytes else self._tables.find(held.table)
                if held is None or table is None or not self.flush_group(table, held.group):
                    return

    def flush_for_close(self) -> None:
        """Flush what would make the next open slow."""
        has_many = self.log_segments() > REST_SEGMENTS_MAX
        self.flush_down_to(0 if has_many else self._settings.close_flush_bytes)

    def _flush_next(self) -> bool:
        candidate = choose(self._candidates(), self._settings, self._removable_log_bytes())
        table = None if candidate is None else self._tables.find(candidate.table)
        return candidate is not None and table is not None and self.flush_group(table, candidate.group)

    def _removable_log_bytes(self) -> int:
        """Return the size of the log without what stays in any case, as a refused table needs it."""
        held = self._tables.refused.held_txn
        if held is None or self._writer is None:
            return self.log_bytes()
        return sum(segment.bytes for segment in self._writer.segments() if segment.txn_min > self._opened_txn)

    def _candidates(self) -> list[Candidate]:
        segments = self._writer.segments() if self._writer is not None else []
        found = []
        for table in self._tables.all():
            if table.damage or table.later is not None:
                continue  # METADATA could not say that it is flushed; it is, when the new schema is put in force
            view = table.view
            for group in view.schema.groups:
                oldest = view.oldest_in_memory(group.id)
                held = 0 if oldest is None else sum(s.bytes for s in segments if s.txn_max >= oldest)
                size = sum(memory.bytes for memory in view.memories_of(group.id).values())
                found.append(Candidate(table.id, group.id, size, held))
        return found

    def flush_group(
        self, table: TableState, group: int, tablets: Collection[str] | None = None, *, keeps_log: bool = False
    ) -> bool:
        """Flush what is committed of one group, of some tablets or of all; False if there is nothing."""
        if self._replicas is not None:
            self._replicas.keep_replies(table, tablets)
        with self._flush_lock:
            with self._tables.lock:
                work = FlushWork.of(table, group, tablets)
                table.flushing[group] = frozenset(map(id, work.blocks))
            try:
                if table.is_dropped or table.damage or work.is_empty or table.later is not None:
                    return False
                began = now_seconds()
                saved = self._save(work)
                if saved is None:
                    return False
                metadata, info = saved
                with self._tables.lock:
                    table.use_metadata(metadata, self._server)
                    if table.later is None:  # else it stays shown until the new schema is in force
                        with self._tables.counted(table):
                            work.let_go()
                    self.failure = None
                    self.flushing.add(now_seconds() - began)
                    self.bytes_written += 0 if info is None else info.bytes
                    self._tables.room.notify_all()
            finally:
                with self._tables.lock:
                    table.flushing.pop(group, None)
        _log.info(
            "flushed %d bytes of %s to %s in %.3f s",
            sum(block.bytes for block in work.blocks),
            table.name,
            "METADATA alone" if info is None else f"{info.file}, {info.rows} records, {info.bytes} bytes",
            now_seconds() - began,
        )
        self._tables.events.deliver()
        if not keeps_log:
            self._release_log()
        self._on_flushed()
        return True

    def flush_late(self, table: TableState) -> TableMetadata:
        """Write all that a table has in memory to fragments of a former schema, and return METADATA with them.

        Writers wait. Nothing is let go of: the caller does that, together with putting the new schema in force.
        """
        newest = table.later or table.view.metadata
        if self._replicas is not None:
            self._replicas.keep_replies(table, None)
        done: list[int] = []
        with self._flush_lock:
            for group in table.view.schema.groups:
                with self._tables.lock:
                    work = FlushWork.of(table, group.id)
                saved = None if work.is_empty else self._save(work, done)
                done.append(group.id)
                if saved is not None and saved[0].sequence > newest.sequence:
                    newest = saved[0]
        return newest

    def _save(self, work: FlushWork, done: Collection[int] = ()) -> tuple[TableMetadata, FragmentInfo | None] | None:
        """Write the fragment and make METADATA name it; return both, None if the table was dropped meanwhile.

        `done` are groups all of which is in files already, though in memory still.
        """
        begun: list[str] = []

        def new_path(table_id: str) -> str:
            begun.append(self._pending.new_path(table_id))
            return begun[-1]

        with self._pending.until_settled(begun):
            try:
                info = write_fragment(work, self._files, new_path)
            except TooManyFiles:
                raise
            except OSError as error:
                raise StoreError(
                    f"cannot write a fragment of {work.table.name!r}: {error}; free space and retry"
                ) from error
            metadata = self._name(work, info, done)
        return None if metadata is None else (metadata, info)

    def _name(self, work: FlushWork, info: FragmentInfo | None, done: Collection[int]) -> TableMetadata | None:
        points = {} if self._replicas is None else self._replicas.points(work, done)
        try:
            return self._metadata.commit(work.table.id, [flush_change(work, info, points=points)])
        except UnknownTable:
            return None
        except RequirementFailed as error:
            if error.code != "already_flushed":
                raise
            # An earlier attempt whose outcome was not known did land. What was written since then is not part of it.
            landed = self._metadata.refresh(work.table.id)
            change = flush_change(work, info, landed, points)
            return self._metadata.commit(work.table.id, [change]) if change.tablets else landed

    def _release_log(self) -> None:
        """Remove the log segments of which every record is in a fragment that METADATA names."""
        if self._writer is None:
            return
        with self._tables.lock:
            needed = self._sequencer.committed + 1
            oldest = self._tables.oldest_txn()
            if oldest is not None:
                needed = min(needed, oldest)
        if self._replicas is not None:
            needed = min(needed, self._replicas.needed_txn(needed))
        segments = self._writer.segments()
        if not segments or segments[0].txn_max >= needed:
            return
        try:
            self._before_release(needed)
            if self._replicas is not None:
                self._replicas.before_release()
            self._writer.delete_segments(needed)
        except (OSError, EblaError) as error:
            _log.warning("log segments could not be removed, trying again after the next flush: %s", error)

    def start_log_over(self, replies: Callable[[int], LogEntry]) -> None:
        """After the log was closed: if nothing in it is needed but what clients were told, leave only that.

        So the next open has next to nothing to read. A log that is small as it is stays, unless it has many segments.
        """
        assert self._writer is not None
        with self._tables.lock:
            is_needed = self._tables.oldest_txn() is not None
        if self._replicas is not None and self._replicas.is_log_needed:
            is_needed = True
        segments = self._writer.segments()
        newest = max((segment.txn_max for segment in segments), default=0)
        entry = replies(newest)
        told = len(entry.replies) + sum(len(part.replies) for part in entry.parts)
        size = sum(segment.bytes for segment in segments) - REPLY_BYTES * told
        is_small = size * REST_SHARE < self._settings.log_segment_bytes and len(segments) <= REST_SEGMENTS_MAX
        if is_needed or not newest or is_small:
            return
        try:
            self._writer.start_over(entry)
        except (OSError, EblaError) as error:
            _log.warning("the log was not shortened, and the next open reads all of it: %s", error)

    # --- combine ---

    def _combine_wanted(self) -> None:
        for table in self._tables.all():
            while table.combining_wanted:
                self._combine(table, *table.combining_wanted.pop())

    def _combine(self, table: TableState, tablet: str, group: int) -> None:
        with self._tables.lock:
            blocks, _ = table.view.memory_of(tablet, group).committed(table.tablet(tablet).safe_txn(TXN_MAX))
            busy = table.flushing.get(group, frozenset())
            chosen = choose_blocks([block for block in blocks if id(block) not in busy])
        if not chosen:
            return
        combined = combine(chosen, is_cells=table.view.schema.group_by_id[group].is_cells)
        with self._tables.lock:
            busy = table.flushing.get(group, frozenset())
            if any(id(block) in busy for block in chosen):
                return
            memory = table.view.memory_of(tablet, group).replace(chosen, combined)
            self._tables.set_memory(table, tablet, group, memory)
            self.combinings += 1
