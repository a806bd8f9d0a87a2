"""Opening a store: who it is, what METADATA says, what the log still holds.

    for writing   lock -> identity -> record -> tables -> replay the log -> cut its torn tail -> writer -> workers
    read-only     METADATA for the newest bulk commit -> the log -> METADATA again, which is what is used

A log that does not hold what is on record of it (server_record.py) is refused, before any of it is cut off or
written.

A read-only open takes no lock and changes nothing. It sees everything that was durable when it began, at one txn; what
METADATA already says beyond that txn is left out by reading at it. METADATA is read after the log, so that what a flush
moves meanwhile is seen in one of the two, or in both. And it is read before the log, because bulk commits are in
METADATA alone: all that came before the newest of them was in the log when METADATA got it, so the log that is read
after it has that, or a fragment does. The same holds for where history begins, below which nothing can be read.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebla.clock import Clock, TxnClock
from ebla.coordination.service import CoordinationService
from ebla.errors import Corruption, EblaError, MissingFile, StoreError, TooManyFiles, Unavailable, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.server.places import record_places
from ebla.retry import CROWDS
from ebla.settings import Settings
from ebla.storage.files.files import Files
from ebla.storage.log.log_entry import LogEntry
from ebla.storage.log.log_reader import LogRecovery, make_durable, recover, truncate_torn_tail
from ebla.storage.log.log_removal import finish_removal
from ebla.storage.log.log_writer import LogWriter
from ebla.tablet.engine import TabletStore
from ebla.tablet.garbage.lost_tables import lost_tables
from ebla.tablet.recovery.found_tables import add_tables, read_tables
from ebla.tablet.recovery.identity import Identity, own_identity
from ebla.tablet.recovery.open_metadata import open_metadata
from ebla.tablet.recovery.replay import Replayed, UnknownTablet, replay
from ebla.tablet.recovery.server_record import ServerRecord, read_extent
from ebla.tablet.tables.table_state import TableState
from ebla.timing import now_seconds

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a store is put together from."""

    files: Files
    coordination: CoordinationService
    metadata: MetadataAccess
    clock: Clock
    settings: Settings
    identity: Identity
    new_id: Callable[[], str]

    def store(self, txn_clock: TxnClock, *, others_write: bool = False) -> TabletStore:
        """Put it together; it has no tables yet."""
        return TabletStore(
            files=self.files,
            metadata=self.metadata,
            clock=self.clock,
            settings=self.settings,
            server=self.identity.server,
            new_id=self.new_id,
            txn_clock=txn_clock,
            coordination=self.coordination,
            others_write=others_write,
        )


def open_store(
    *,
    files: Files,
    coordination: CoordinationService,
    clock: Clock,
    settings: Settings,
    new_id: Callable[[], str],
    read_only: bool,
    fence: Callable[[], None] | None = None,
    metadata_places: Sequence[str | Path] | None = None,
) -> TabletStore:
    """Open a store whose files and coordination service are there; for writing, the caller holds its lock.

    `fence` is called after every sync of the log, before anything in it is acknowledged, and raises if somebody else
    may own the store by now. `metadata_places` are further directories of METADATA, if they are to be others than they
    were, or more.
    """
    identity = own_identity(coordination, new_id, read_only)
    if metadata_places is not None and not read_only:
        record_places(coordination, identity.cluster, metadata_places)
    metadata = open_metadata(
        coordination,
        files,
        clock,
        new_id,
        identity,
        settings.metadata_snapshot_every,
        read_only=read_only,
        prune_in_background=settings.background_compaction,
    )
    parts = _Parts(files, coordination, metadata, clock, settings, identity, new_id)
    try:
        return _open_for_reading(parts) if read_only else _open_for_writing(parts, fence)
    except TooManyFiles:
        raise
    except OSError as error:
        raise StoreError(f"the store cannot be opened: {error}: mend the cause, then open it again") from error


def _open_for_writing(parts: _Parts, fence: Callable[[], None] | None) -> TabletStore:
    files, metadata, settings, identity = parts.files, parts.metadata, parts.settings, parts.identity
    record = ServerRecord(parts.coordination, files, identity.server)
    txn_clock = TxnClock(
        parts.clock, record.txn, record.reserve, settings.clock_reserve_seconds, settings.clock_skew_seconds_max
    )
    store = parts.store(txn_clock)
    add_tables(store, read_tables(metadata))
    store.refused.keep_log_of(lost_tables(files, parts.coordination))
    directory = f"log/{identity.server}"
    tables = store.served_tables()
    replayed = Replayed()
    began = now_seconds()
    extent = record.extent
    recovery = recover(files, directory, extent)

    flushed: list[TableState] = []

    def refuse(table: TableState, error: EblaError) -> None:
        store.opener.refuse(table.name, table.id, error)
        store.refused.hold([table.view.oldest_in_memory()])
        del tables[table.id]

    def grown(table: TableState) -> None:
        if table.memory_bytes < settings.flush_bytes:
            return
        if table.damage:
            # It cannot be flushed, and must not take the memory of the others.
            refuse(table, Corruption(f"METADATA of table {table.id}", f"{table.damage}, and much of it is in the log"))
            return
        if not flushed:
            # A flush moves one group after the other: should the power go in between, the log must have the rest.
            make_durable(files, directory, extent)
        flushed.append(table)
        store.flusher.flush_table(table)

    for found in recovery:
        replay(found.entry, tables, replayed, grown, refuse)
        store.refused.note(found.entry)
    known = [table.view.metadata for table in tables.values()]
    newest = max([replayed.txn_max, *(max(one.newest_job_txn, one.created_txn) for one in known)])
    record.check(newest)
    truncate_torn_tail(files, recovery)
    if recovery.segments:
        with contextlib.suppress(OSError):  # what is left does not count, and goes with the next that is removed
            finish_removal(files, directory)
    record.recovered(recovery.segments, recovery.next_sequence)
    writer = LogWriter(
        files,
        directory,
        identity.server,
        recovery.next_sequence,
        settings.log_segment_bytes,
        recovery.segments,
        # Where hosts share the directory, one that lost it may still be about to write to its own last segment.
        unfinished=recovery.unfinished if fence is None else None,
        witness=record,
    )
    store.recovered(replayed.replies)
    store.start(writer, record.save, fence)
    _tell_recovery(recovery, replayed, len(flushed), now_seconds() - began)
    return store


def _tell_recovery(recovery: LogRecovery, replayed: Replayed, flushes: int, seconds: float) -> None:
    if recovery.torn_tail is not None:
        torn = recovery.torn_tail
        _log.info("cut off the last %d bytes of %s, which were being written", torn.size, torn.path)
    if replayed.entries:
        _log.info(
            "recovered from %d log segments: %d entries, %d bytes, %d flushes on the way, in %.3f s",
            len(recovery.segments),
            replayed.entries,
            sum(segment.bytes for segment in recovery.segments),
            flushes,
            seconds,
        )


def _open_for_reading(parts: _Parts) -> TabletStore:
    metadata = parts.metadata
    for _ in CROWDS:
        try:
            before = read_tables(metadata)
            entries = _read_log(parts)
            tables = read_tables(metadata)
        except UnknownTable:
            continue  # dropped since the list was read
        if entries is None:
            continue
        passed = max((one.passed_txn for one in before), default=0)
        if entries:
            snapshot = max(passed, *(entry.txn_max for entry in entries))
            if any(one.passed_txn > snapshot for one in tables):
                continue  # newer than the log that was read
        else:
            # All was in fragments, if these are the fragments that there were at that moment.
            if [(one.name, one.txnid) for one in before] != [(one.name, one.txnid) for one in tables]:
                continue
            snapshot = max((one.newest_txn for one in tables), default=0)
        store = parts.store(TxnClock(parts.clock, snapshot), others_write=True)
        add_tables(store, tables)
        try:
            replayed = _replay_all(store, entries)
        except UnknownTablet:
            store.close()
            continue  # it was split or joined after the log was read, and that part of the log is gone
        store.recovered(replayed.replies)
        return store
    raise Unavailable("the store is being written too fast to find a moment to read it: try again")


def _replay_all(store: TabletStore, entries: Sequence[LogEntry]) -> Replayed:
    """Replay what was read of a log, into memory alone."""
    tables = store.served_tables()
    replayed = Replayed()

    def unknown(table: TableState, error: UnknownTablet) -> None:
        if not table.damage:
            raise error
        store.opener.refuse(table.name, table.id, error)
        del tables[table.id]

    for entry in entries:
        replay(entry, tables, replayed, lambda table: None, unknown)
    return replayed


def _read_log(parts: _Parts) -> list[LogEntry] | None:
    """Return all entries of the log; None if a segment vanished while it was read, or it was let go of."""
    server = parts.identity.server
    extent = read_extent(parts.coordination, parts.files, server)
    try:
        return [found.entry for found in recover(parts.files, f"log/{server}", extent)]
    except FileNotFoundError:
        return None
    except (MissingFile, Corruption):
        if read_extent(parts.coordination, parts.files, server) != extent:
            return None  # the writer has gone on, and may have removed what was looked for
        raise
