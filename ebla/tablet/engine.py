"""The store: all tables of one tablet server, its log, and the workers that keep them in shape.

    apply     mutations on their way to the log (write_path.py)
    read      the newest committed txn, or the one asked for -> view -> reader
    workers   log (commit_log.py), flush and fold (flusher.py), compaction (compactor.py)

Lock order: flush lock, commit lock, then the locks inside sequencer, commit log, caches and METADATA. The commit lock
is held for microseconds and never over I/O, with one exception: reserving txn numbers, every few seconds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ebla.clock import COUNTER_BITS, Clock, TxnClock, microseconds_of
from ebla.coordination.service import CoordinationService
from ebla.errors import (
    Closed,
    EblaError,
    ReadOnly,
    Unavailable,
    UnknownTable,
)
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.model.schema_change import Alteration
from ebla.service.counters import Counters
from ebla.service.job_orders import (
    Answer,
    BeginCompaction,
    BulkCommit,
    BulkResult,
    CompactCommit,
    Order,
    PrepareCompaction,
    PrepareSweep,
    RestoreCommit,
    Sweep,
)
from ebla.settings import Settings
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.cache.spare_memory import MUCH_BYTES, SpareMemory
from ebla.storage.files.files import Files
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.storage.log.log_writer import LogWriter
from ebla.storage.merge.erasure_cover import TXN_MAX
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.flush.pending_files import PendingFiles
from ebla.tablet.garbage.garbage import Garbage
from ebla.tablet.garbage.job_intents import list_intents, remove_expired
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.jobs.bulk_driver import BulkDriver
from ebla.tablet.jobs.compact_driver import CompactDriver
from ebla.tablet.jobs.restorer import Restorer
from ebla.tablet.life.alterer import Alterer
from ebla.tablet.life.cloning import Cloner
from ebla.tablet.life.loader import Loader
from ebla.tablet.life.recutter import Recutter
from ebla.tablet.life.shaper import Shaper
from ebla.tablet.life.table_lifecycle import TableLifecycle
from ebla.tablet.read.row_cache import CachedRows
from ebla.tablet.scan.preloader import Preloader
from ebla.tablet.scan.read_txns import ReadTxns, check_named
from ebla.tablet.scan.scan_parts import ScanParts
from ebla.tablet.scan.scanners import Scanners
from ebla.tablet.tables.gone_files import explained
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.pauses import Pauses
from ebla.tablet.tables.refused_tables import UNLINKED, RefusedTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.care_stats import held_stats, log_held_by, writing_stats
from ebla.tablet.upkeep.compactor import Compactor
from ebla.tablet.upkeep.horizon import Horizon
from ebla.tablet.write.gate import Gate
from ebla.tablet.write.recent_rows import RecentRows
from ebla.tablet.write.sequencer import Sequencer
from ebla.tablet.write_path import WritePath
from ebla.threads import forking

# History ends in so many steps of its length: how far it has come is put on record once for each, not every time.
HISTORY_STEPS = 100

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
        coordination: CoordinationService,
    ) -> None:
        # Set once.
        self._coordination = coordination
        self.files = files
        self.metadata = metadata
        metadata.committing.slow_seconds = settings.slow_seconds
        self.settings = settings
        self.server = server
        self.txn_clock = txn_clock
        self.cache = cache
        self.pins = Pins(coordination, clock)
        self.pending = PendingFiles(new_id)
        self.garbage = Garbage(
            coordination, metadata, files, clock, self.pending, settings.garbage_age_seconds, self.pins.files
        )
        self.fragments = OpenFragments(files, cache, settings.open_files_max)
        self.recent = RecentRows(settings.recent_row_slots, txn_clock.last)
        self.cached_rows = CachedRows(self.recent, settings.row_cache_bytes)
        self.sequencer = Sequencer(txn_clock.last)
        self.scan_pool = ThreadPoolExecutor(settings.scan_threads, thread_name_prefix="ebla-scan")
        self._clock = clock
        self.open_tables = OpenTables()
        self.events = self.open_tables.events
        self.preloader = Preloader(self.open_tables.all, cache)
        self.events.add(self.preloader)
        self.scanners = Scanners(clock, settings.scanners_max, settings.scanner_expiry_seconds)
        self.lifecycle = TableLifecycle(self.open_tables, metadata, self.add_table)
        self._commit_lock = self.open_tables.lock
        self._spare = SpareMemory(clock)
        cache.on_much_gone = partial(self._spare.look, quickly=True)
        self.flusher = Flusher(
            self.open_tables, self.sequencer, metadata, files, settings, server, self.pending, self._spare
        )
        self.compactor = Compactor(
            self.open_tables,
            metadata,
            files,
            settings,
            server,
            clock,
            self.pending,
            self._spare,
            self._horizon,
            Horizon(coordination).raise_to,
            self._sweep,
        )
        self.gate = Gate(self._commit_lock)
        self.pauses = Pauses(self._commit_lock, settings.slow_seconds)
        self.writes = WritePath(
            self.open_tables,
            self.sequencer,
            txn_clock,
            self.recent,
            self.gate,
            self.pauses,
            self.flusher,
            metadata,
            clock,
            settings,
            server,
            settle=self.lifecycle.settle,
            make_ready=self._make_ready,
            admit_row=self._admit_row,
        )
        self.apply = self.writes.apply
        self.commit = self.writes.commit
        self.wait = self.writes.wait
        self.check_unchanged = self.writes.check_unchanged
        moments = ReadTxns(
            self.sequencer,
            txn_clock,
            clock,
            self._commit_lock,
            self.gate,
            self.pins,
            log=lambda: self.writes.log,
            horizon_max=lambda: self.compactor.horizon_max,
        )
        self.read_txn = moments.read_txn
        self.hold_newest = moments.hold_newest
        self.hold_views = moments.hold_views
        self.sync = moments.sync
        self.recutter = Recutter(
            self.open_tables,
            metadata,
            self.flusher,
            self.sequencer,
            self.pauses,
            clock,
            server,
            self.writes.writable_log,
            new_id,
        )
        self._alterer = Alterer(self.open_tables, metadata, self.recutter, self.sequencer, clock, server)
        self.bulk = BulkDriver(
            self.open_tables,
            self.gate,
            self.sequencer,
            txn_clock,
            metadata,
            files,
            clock,
            server,
            self.writes.writable_log,
            self.pending,
        )
        self.compact_jobs = CompactDriver(
            self.open_tables,
            self.sequencer,
            metadata,
            files,
            clock,
            server,
            self.pending,
            self.compactor.strategy,
            self.compactor.agreed_horizon,
            self._flush_to_compact,
            self._check_writable,
            self.compactor.note,
        )
        self.lifecycle.passing = self.bulk.passing
        self.compactor.busy = self.compact_jobs.busy
        self.garbage.guard = self._nothing_adopted
        self.garbage.take_over = self._take_over
        self.garbage.purge = self.purge_tables
        self._restorer = Restorer(self.open_tables, metadata, files, txn_clock, self.bulk, self.lifecycle, self.pending)
        self._cloner = Cloner(metadata, self.recutter, self.pending, self.lifecycle, new_id)
        self.loader = Loader(
            self.open_tables,
            metadata,
            files,
            self.fragments,
            cache,
            self.recutter,
            self.flusher,
            clock,
            server,
            settings.tablet_idle_seconds,
        )
        self.scan_parts = ScanParts(
            settings,
            self.events,
            self.loader,
            self.writes,
            self.flusher,
            self.pins,
            moments,
            self.scanners,
            self.scan_pool,
        )
        self.recutter.activate = self.loader.admit
        self.admit = self.loader.admit
        self.admit_row = self.loader.admit_row
        # Called once a second or so: whoever wants others to know how the store is sets it.
        self.publish: Callable[[], None] = lambda: None
        self._is_recovered = False
        self._record_log: Callable[[], None] = lambda: None  # set by `start`
        self.shaper = Shaper(self.open_tables, self.recutter, settings, clock, self._care)
        forking.watch(self)

    # --- tables ---

    def add_table(
        self, name: str, metadata: TableMetadata, damage: str = "", *, is_unlinked: bool = False
    ) -> TableState:
        """Open a table; `SchemaError` if its schema cannot be. With `damage`, only whole tablets of it are read."""
        metadata.schema.check()
        table = TableState(name, metadata, self.fragments, self.cached_rows, self.settings, damage)
        table.use_metadata(metadata, self.server)
        self.loader.opened(table)
        if self._is_recovered:
            self.loader.ready(table)
        self.open_tables.add(table, is_unlinked=is_unlinked)
        self.preloader.start(table)
        return table

    def refuse_table(self, name: str, table_id: str, error: EblaError) -> None:
        """Serve nothing of a table, and tell those who ask for it why."""
        _log.error("the table %r cannot be loaded: %s", name, error)
        self.open_tables.refuse(name, table_id, error)

    @property
    def refused(self) -> RefusedTables:
        """The tables that are there and cannot be served."""
        return self.open_tables.refused

    def refused_names(self) -> list[str]:
        """Return the names of tables that are there and cannot be served."""
        return [name for name in self.open_tables.refused.errors if UNLINKED not in name]

    def reload_metadata(self) -> None:
        """Take over METADATA that somebody else has changed: a repair."""
        for table in self.open_tables.all():
            if not table.damage:  # else it has to be opened again, log and all
                self.metadata.reload(table.id)
                self.open_tables.use_metadata(table, self.metadata.refresh(table.id), self.server)

    def create_table(self, name: str, initial: TableMetadata) -> TableState:
        """Create a table and open it."""
        return self.lifecycle.create(name, initial)

    def clone_table(self, origin: TableState, name: str) -> TableState:
        """Make a table of all that is committed in another, by reference, and open it."""
        origin.check_whole()
        return self._cloner.clone(origin, name)

    def drop_table(self, name: str, *, purge: bool = False) -> None:
        """Take the name from a table; with `purge`, or if none are retained, stop serving it, and let its memory go."""
        now, retention = self._clock.microseconds(), round(self.settings.drop_retention_seconds * 1_000_000)
        self.lifecycle.drop(name, (now, now + retention) if retention and not purge else None)
        self.flusher.wake()

    def dropped_tables(self) -> dict[str, TableConfig]:
        """Return the tables that were dropped and can be brought back, by id."""
        with contextlib.suppress(Unavailable):  # what is in doubt stays so
            self.lifecycle.settle()
        return self.metadata.directory.retained()

    def undelete_table(self, table_id: str, name: str) -> TableState:
        """Bring a table back that was dropped, under a name."""
        return self.lifecycle.undelete(table_id, name)

    def purge_tables(self) -> list[str]:
        """Let go of the dropped tables that nobody wanted back in time; return their ids."""
        now = self._clock.microseconds()
        retained = self.metadata.directory.retained()
        due = [table_id for table_id, config in retained.items() if 0 < config.kept_until_microseconds <= now]
        for table_id in due:
            self.lifecycle.purge(table_id)
        if due:
            self.flusher.wake()  # the log may be held by what is gone
        return due

    def rename_table(self, name: str, new_name: str) -> TableState:
        """Give a table another name."""
        return self.lifecycle.rename(name, new_name)

    def alter_table(self, name: str, request: Alteration) -> TableState:
        """Change the schema of a table, while reads and writes go on."""
        table = self.table(name)
        table.check_whole()
        self._alterer.alter(table, request)
        self.preloader.start(table)
        return table

    def table(self, name: str) -> TableState:
        """Return an open table by name."""
        self.lifecycle.settle(name)
        return self.open_tables.named(name)

    def table_at(self, name: str, txn: int) -> TableState:
        """Return the table that had a name at `txn`, and has it now; `UnknownTable` if it is not there any more."""
        table = self.table(name)
        check_named(self.metadata.directory.config(table.id), table.name, txn)
        return table

    def tables(self) -> list[TableState]:
        """Return all open tables, by name."""
        with contextlib.suppress(Unavailable):  # what is in doubt stays so
            self.lifecycle.settle()
        return self.open_tables.listed()

    def served_tables(self) -> dict[str, TableState]:
        """Return all tables by id, those included that have lost their names."""
        return {table.id: table for table in self.open_tables.all()}

    # --- life ---

    def outdated_by_others(self) -> None:
        """Note that somebody else may change what is open here: files that are gone need not be lost."""
        self.fragments.explain = lambda file, error: explained(self.open_tables, self.metadata, file, error)

    def recovered(self, replies: dict[str, tuple[int, int]]) -> None:
        """Take stock after a replay: the memory it filled, and what clients were told."""
        self.open_tables.count_memory()
        with self._commit_lock:
            self.writes.replies.restore(replies)
        self._is_recovered = True
        for table in self.open_tables.all():
            self.loader.ready(table)
        for name in self.settings.load_first:
            self.loader.load_all(self.open_tables.named(name))

    def flush_replayed(self, table: TableState) -> None:
        """Make room during a replay: everything in it was committed before."""
        self.flusher.flush_table(table)

    def start(self, writer: LogWriter, record_log: Callable[[], None], fence: Callable[[], None] | None = None) -> None:
        """Begin to accept writes, into `writer`; `fence` raises once nothing may be acknowledged any more.

        `record_log` puts on record how far the log reaches, if that has changed.
        """
        self._record_log = record_log
        self.writes.start(writer, fence)
        self.flusher.start(writer, self.writes.keep_replies, self.compactor.wake, record_log)
        if self.settings.background_compaction:
            self.compactor.start()
            self.shaper.start()

    @property
    def is_writable(self) -> bool:
        """Whether the store was opened for writing."""
        return self.writes.log is not None

    def close(self) -> None:
        """Log what is queued, flush what would make the next open slow, and stop. Idempotent."""
        with self._commit_lock:
            if self.writes.is_closing:
                return
            self.writes.is_closing = True
            self.open_tables.room.notify_all()
            if self.writes.log is not None:
                with contextlib.suppress(EblaError):  # the log's failure, which close tells of itself
                    self.gate.wait(self.writes.log)
        for table in self.open_tables.all():
            table.view.parts.row_cache.clear(TXN_MAX)  # or it would answer without asking whether the store is open
        self.preloader.stop()
        try:
            self._stop_writing()
        finally:
            self.metadata.finish_pruning()
            self.scan_pool.shutdown(cancel_futures=True)
            self.writes.stop()
            # The caller may keep the closed store.
            self.fragments.close()
            if self.cache.clear() >= MUCH_BYTES:
                self._spare.give_back()

    @property
    def is_closed(self) -> bool:
        """Whether the store was closed, or is about to be."""
        return self.writes.is_closing

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that opened the store."""
        return self.writes.is_inherited

    def closed(self) -> Closed:
        """Return the error for whoever comes when the store is closed."""
        return self.writes.closed()

    def disown(self) -> None:
        """Be closed in a forked process. Files, threads and locks are its parent's: none of them is touched."""
        self.writes.is_inherited = self.writes.is_closing = True
        self.open_tables.forget_cached_rows()

    def _stop_writing(self) -> None:
        if self.writes.log is None:
            return
        self.shaper.stop()
        self.compactor.stop()
        self.flusher.stop()
        failed = self.writes.log.failure is not None
        self.writes.log.close()
        if not failed:
            self.writes.finish_saves()
            self.flusher.flush_for_close()
            self.writes.start_log_over()
            with contextlib.suppress(EblaError):  # a bound that stays too high only lets the next txns begin later
                self.txn_clock.release()
            with contextlib.suppress(EblaError):  # nearly always done by the clock; else it is as after a crash
                self._record_log()

    def stop_writing(self, error: EblaError) -> None:
        """Accept no more writes; whoever waits, and who comes later, gets the error. Reads go on."""
        if self.writes.log is not None:
            self.writes.log.fail(error)

    def abandon(self) -> None:
        """Stop as a crash would, writing nothing more. For tests."""
        with self._commit_lock:
            self.writes.is_closing = True
            self.open_tables.room.notify_all()
        if self.writes.log is not None:
            self.writes.log.abandon()
            self.shaper.stop()
            self.compactor.stop()
            self.flusher.stop()
            self.metadata.finish_pruning()
        self.preloader.stop()
        self.scan_pool.shutdown(cancel_futures=True)
        self.writes.stop()
        self.fragments.close()

    # --- writing ---

    def _make_ready(self, table: TableState) -> None:
        """Finish what was begun with a table, and bring it online, before something is written to it."""
        if table.is_unsettled and not table.is_paused:
            self.recutter.settle(table)
        if table.is_schema_in_doubt and not table.is_paused:
            self._alterer.settle(table)
        if table.is_offline:
            self.loader.admit_write(table)

    def _admit_row(self, table: TableState, row: bytes) -> None:
        self.loader.admit_row(table, row)

    def commit_bulk(self, commit: BulkCommit) -> BulkResult:
        """Make the files of a bulk job part of their table, all of them or none; a job is applied once.

        Raises `UnknownTable` if the table is gone, `Conflict` if its schema is another one, and `OutcomeUnknown` if it
        cannot be told whether it was done: then the store takes no more writes until it is reopened.
        """
        self.lifecycle.settle()
        table = self.open_tables.find(commit.table_id)
        if table is not None:
            self._check_online(table)
        return self.bulk.commit(commit)

    def carry_out(self, order: Order) -> Answer:
        """Do what a job in this or another process asks for."""
        if isinstance(order, BulkCommit):
            return self.commit_bulk(order)
        self.lifecycle.settle()
        match order:
            case PrepareCompaction():
                return self.compact_jobs.prepare(order)
            case BeginCompaction():
                return self.compact_jobs.begin(order)
            case CompactCommit():
                return self.compact_jobs.commit(order)
            case PrepareSweep():
                self.writes.writable_log()
                return self.garbage.terms()
            case Sweep():
                self.writes.writable_log()
                return self.garbage.sweep(order)
            case RestoreCommit():
                return self._restorer.commit(order)

    @contextlib.contextmanager
    def _nothing_adopted(self) -> Iterator[None]:
        """Keep jobs from making METADATA name files that were there before."""
        with self.bulk.lock, self.compact_jobs.lock:
            yield

    def _take_over(self, metadata: TableMetadata) -> None:
        """Read what METADATA names: a compaction may be in it that was interrupted, or of unknown outcome."""
        table = self.open_tables.find(metadata.table_id)
        if table is None or table.damage or metadata.schema.version != table.view.parts.version:
            return  # a schema in doubt is settled by others, and takes no file away
        with self.open_tables.lock:
            table.use_metadata(metadata, self.server)

    # --- care ---

    def flush(self, table: TableState) -> None:
        """Write everything that is committed in a table to fragments."""
        log = self.writes.writable_log()
        table.check_whole()
        log.wait(self.sequencer.allocated)
        self.flusher.flush_table(table)

    def compact(self, table: TableState, told: Callable[[int, int], None] | None = None) -> None:
        """Flush a table and merge the fragments of each of its tablets and groups into one run."""
        if table.is_dropped:
            raise UnknownTable(f"the table {table.name!r} was dropped, or restored in place: get it anew with db.table")
        self._check_online(table)
        self._flush_to_compact(table)
        self.compactor.compact_table(table, told)

    def unload_table(self, name: str) -> None:
        """Take a table offline; nothing happens if it is."""
        self.writes.writable_log()
        self.loader.unload(self.table(name))

    def load_table(self, name: str) -> None:
        """Bring a table back that was taken offline; load it wholly if it was not."""
        table = self.table(name)
        table.check_whole()
        if table.is_offline:
            if not self.is_writable:
                raise ReadOnly("the store was opened read-only: open it without read_only to load a table")
            self.loader.load(table)
        elif self.is_writable:
            # What cannot be is told to the caller, and the last schema that could be stays in force.
            self.open_tables.use_metadata(table, self.metadata.refresh(table.id), self.server)
        self.loader.load_all(table)

    def check_writable(self) -> None:
        """Raise what keeps the store from taking writes, if something does."""
        self.writes.writable_log()

    def _check_writable(self, table: TableState) -> None:
        self.writes.writable_log()
        self._check_online(table)

    def _check_online(self, table: TableState) -> None:
        if table.is_offline:
            self.loader.admit_write(table)

    def split(self, table: TableState, row: bytes | None = None, tablet: str | None = None) -> tuple[str, str]:
        """Split a tablet at a row, or where it is divided evenly; return the ids of its children."""
        self._check_online(table)
        return self.recutter.split(table, row, tablet)

    def join(self, table: TableState, left: TabletMetadata, right: TabletMetadata) -> str:
        """Make one tablet of two neighbours; return its id."""
        self._check_online(table)
        return self.recutter.join(table, left, right)

    def _care(self) -> None:
        """Let go of what nobody has used for a while, and tell others how the store is."""
        self.scanners.expire()
        self.loader.drop_idle()
        self.publish()

    def _sweep(self) -> None:
        self.pins.remove_expired()
        remove_expired(self._coordination, self._clock)
        self.garbage.collect(dry_run=False)

    def _horizon(self, table: TableState, group: int) -> int:
        """Return the txn below which nobody reads a group any more, and nothing of it is only in memory."""
        with self._commit_lock:
            unflushed = table.view.memory_of(group).txn_min
            newest = self.sequencer.committed if unflushed is None else min(self.sequencer.committed, unflushed - 1)
        horizon = min(newest, self._history_ended())
        pinned = self.pins.oldest()
        return max(0, horizon if pinned is None else min(horizon, pinned))

    def _history_ended(self) -> int:
        """Return the txn of the moment at which the history that is kept begins."""
        history = round(self.settings.history_seconds * 1_000_000)
        ended = self._clock.microseconds() - history
        return (ended - ended % max(1, history // HISTORY_STEPS)) << COUNTER_BITS

    def _flush_to_compact(self, table: TableState) -> None:
        """Flush a table that is to be compacted, and see to it that what is too old by now can be left out.

        Snapshots are taken at the newest commit. If that is older than the history that is kept, they would still show
        what was not too old then; so a txn passes first.
        """
        if self.sequencer.committed < self._history_ended() and any(
            group.max_age_microseconds is not None for group in table.view.schema.groups
        ):
            with self.bulk.lock:
                self.bulk.pass_txn()
        self.flush(table)

    # --- reading ---

    def hold_files(self, files: Iterable[str]) -> Callable[[], None]:
        """Keep fragments that somebody reads by their names from garbage collection; return how to let go of them."""
        held = tuple(files)
        self.pending.adopt(held)
        return lambda: self.pending.let_go(held)

    def _held(self) -> dict[str, object]:
        """Return what keeps old versions and files from going, and until when."""
        return held_stats(
            self.pins.all(), self.pins.held_here(), list_intents(self._coordination), self._clock.microseconds()
        )

    def damaged(self) -> dict[str, str]:
        """Return what is wrong with tables that are refused or served in part, by name."""
        refused = {name: str(error) for name, error in self.open_tables.refused.errors.items()}
        return refused | {table.name: table.damage for table in self.open_tables.listed() if table.damage}

    def counters(self) -> Counters:
        """Return the numbers that are told to others: to monitoring, and to who asks how the store is."""
        writes, flusher, compactor, log = self.writes, self.flusher, self.compactor, self.writes.log
        cache, scanners = self.cache.stats(), self.scanners.stats()
        return Counters(
            commits_total=writes.commits,
            commit_timestamp_seconds=microseconds_of(self.sequencer.committed) / 1e6,
            put_bytes_total=writes.ingested_bytes,
            bulk_commits_total=self.bulk.commits,
            throttled_writes_total=writes.throttled.count,
            throttled_seconds_total=writes.throttled.seconds,
            writers_held_total=self.pauses.pausing.count,
            writers_held_seconds_total=self.pauses.pausing.seconds,
            log_writes_total=0 if log is None else log.writing.count,
            log_write_seconds_total=0.0 if log is None else log.writing.seconds,
            log_bytes=flusher.log_bytes(),
            log_segments=flusher.log_segments(),
            log_queued_bytes=0 if log is None else log.queued_bytes,
            log_failed=int(log is not None and log.failure is not None),
            metadata_commits_total=self.metadata.committing.count,
            metadata_commit_seconds_total=self.metadata.committing.seconds,
            memory_bytes=self.open_tables.memory_bytes,
            memory_limit_bytes=self.settings.memory_bytes_max,
            flushes_total=flusher.flushes,
            flush_seconds_total=flusher.flushing.seconds,
            flush_written_bytes_total=flusher.bytes_written,
            flush_failing=int(flusher.failure is not None),
            folds_total=flusher.folds,
            compactions_total=compactor.count,
            compaction_seconds_total=compactor.seconds,
            compaction_read_bytes_total=compactor.bytes_read,
            compaction_written_bytes_total=compactor.bytes_written,
            compaction_failing=int(compactor.failure is not None),
            splits_total=self.recutter.splits,
            joins_total=self.recutter.joins,
            garbage_removed_files_total=self.garbage.removed_files,
            garbage_removed_bytes_total=self.garbage.removed_bytes,
            block_cache_bytes=cache["bytes"],
            block_cache_limit_bytes=cache["bytes_max"],
            block_cache_hits_total=cache["hits"],
            block_cache_misses_total=cache["misses"],
            scans_open=scanners["live"],
            scans_expired_total=scanners["expired"],
            scans_evicted_total=scanners["evicted"],
            tables=len(self.open_tables.listed()),
            tables_damaged=len(self.damaged()),
        )

    def failures(self) -> list[str]:
        """Return what keeps the store from its work, a sentence each; nothing if all is well."""
        log = self.writes.log
        found = [f"{name}: {reason}" for name, reason in sorted(self.damaged().items())]
        if log is not None and log.failure is not None:
            found.append(f"the log takes no more writes: {log.failure}")
        if self.flusher.failure is not None:
            found.append(f"memory cannot be flushed: {self.flusher.failure}")
        if self.compactor.failure is not None:
            found.append(f"a compaction was given up: {self.compactor.failure}")
        if self.garbage.failure is not None:
            found.append(f"garbage was not collected: {self.garbage.failure}")
        return found

    def stats(self) -> dict[str, object]:
        """Return counters of the store as a whole."""
        return {
            "writable": self.is_writable,
            "damaged": self.damaged(),
            "txn_committed": self.sequencer.committed,
            "txn_stable": self.sequencer.stable,
            "memory_bytes": self.open_tables.memory_bytes,
            "queued_bytes": self.writes.log.queued_bytes if self.writes.log is not None else 0,
            "log_bytes": self.flusher.log_bytes(),
            "log_segments": self.flusher.log_segments(),
            "log_held_by": log_held_by(self.open_tables.all(), self.open_tables.refused),
            "flushes": self.flusher.flushes,
            "throttled": {"count": self.writes.throttled.count, "seconds": self.writes.throttled.seconds},
            "writing": writing_stats(
                self.writes.ingested_bytes, self.flusher.bytes_written, self.compactor.bytes_written
            ),
            "folds": self.flusher.folds,
            "compactions": self.compactor.stats(),
            "scanners": self.scanners.stats(),
            "splits": self.recutter.splits,
            "joins": self.recutter.joins,
            "garbage": {**self.garbage.stats(), "held": self._held()},
            "block_cache": {**self.cache.stats(), "preloaded": self.preloader.stats()},
        }
