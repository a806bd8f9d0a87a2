"""The engine: all tables of one tablet server, its log, and the workers that keep them in shape. It is wiring.

    state        whether the store is open, and for what        write/open_state.py
    writes       mutations on their way to the log               write_path.py
    moments      at which txn a reader reads                     scan/read_txns.py
    lifecycle    tables by name: made, renamed, dropped          life/table_lifecycle.py
    recutter     splits and joins; loader, unloader, alterer     life/
    flusher      memory to fragments; upkeep, compactor          flush/, upkeep/
    garbage      files that no table names any more              garbage/
    orders       what jobs ask for                               jobs/
    report       what the store tells of itself                  store_report.py

A part takes the parts that it uses when it is made, so they are made in that order, and none is changed afterwards.

Lock order: flush lock, commit lock, then the locks inside sequencer, commit log, caches and METADATA. The commit lock
is held for microseconds and never over I/O, with one exception: reserving txn numbers, every few seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from ebla.clock import Clock, TxnClock
from ebla.coordination.service import CoordinationService
from ebla.errors import Closed, EblaError
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.settings import Settings
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.cache.spare_memory import MUCH_BYTES, SpareMemory
from ebla.storage.files.files import Files
from ebla.storage.fragment.open_fragments import OpenFragments, told_as_is
from ebla.storage.log.log_entry import Reply
from ebla.storage.log.log_writer import LogWriter
from ebla.storage.lookup.lookups import Lookups, lookup_files
from ebla.storage.merge.erasure_cover import TXN_MAX
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.flush.pending_files import PendingFiles
from ebla.tablet.flush.replica_flush import LoggedReplicas, ReplicaFlush
from ebla.tablet.garbage.garbage import Garbage
from ebla.tablet.garbage.job_merges import JobMerges
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.garbage.sweeper import Sweeper
from ebla.tablet.jobs.bulk_driver import BulkDriver
from ebla.tablet.jobs.compact_driver import CompactDriver
from ebla.tablet.jobs.order_desk import OrderDesk
from ebla.tablet.jobs.restorer import Restorer
from ebla.tablet.jobs.table_orders import TableOrders
from ebla.tablet.life.alterer import Alterer
from ebla.tablet.life.cloning import Cloner
from ebla.tablet.life.late_schema import LateSchemas
from ebla.tablet.life.loader import Loader
from ebla.tablet.life.lookup_maker import LookupMaker
from ebla.tablet.life.preloader import Preloader
from ebla.tablet.life.readiness import Readiness
from ebla.tablet.life.recutter import Recutter
from ebla.tablet.life.shaper import Shaper
from ebla.tablet.life.table_lifecycle import TableLifecycle
from ebla.tablet.life.table_opener import TableOpener
from ebla.tablet.life.unloader import Unloader
from ebla.tablet.read.row_cache import CachedRows
from ebla.tablet.scan.read_txns import ReadTxns, check_named
from ebla.tablet.scan.scan_parts import ScanParts
from ebla.tablet.scan.scanners import Scanners
from ebla.tablet.store_report import StoreReport
from ebla.tablet.tables.gone_files import explained
from ebla.tablet.tables.kept_replies import KeptReplies
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.pauses import Pauses
from ebla.tablet.tables.refused_tables import UNLINKED, RefusedTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.compaction_tally import CompactionTally
from ebla.tablet.upkeep.compactor import Compactor
from ebla.tablet.upkeep.history import History
from ebla.tablet.upkeep.horizon import Horizon
from ebla.tablet.upkeep.table_upkeep import TableUpkeep
from ebla.tablet.write.gate import Gate
from ebla.tablet.write.log_replicas import LogReplicas
from ebla.tablet.write.open_state import OpenState
from ebla.tablet.write.passing_txns import PassingTxns
from ebla.tablet.write.recent_rows import RecentRows
from ebla.tablet.write.sequencer import Sequencer
from ebla.tablet.write_path import WritePath
from ebla.threads import forking
from ebla.threads.rounds import Rounds


class ServerReplicas(LogReplicas, LoggedReplicas, Protocol):
    """The replicas that a server keeps of its own tablets, and of those of others."""


class TabletStore:
    """The tables of one server, open for reading and, once it was started with a log, for writing."""

    def __init__(
        self,
        *,
        files: Files,
        metadata: MetadataAccess,
        clock: Clock,
        settings: Settings,
        server: str,
        new_id: Callable[[], str],
        txn_clock: TxnClock,
        coordination: CoordinationService,
        others_write: bool = False,
        leads_all: bool = True,
    ) -> None:
        """`server` names the log in METADATA; unless it `leads_all`, only tablets are served that have that log.

        `others_write`: another process may change what is open here, and a file that is gone need not be lost.
        """
        # Set once.
        self.files = files
        self.metadata = metadata
        self.settings = settings
        self.server = server
        self.txn_clock = txn_clock
        metadata.committing.slow_seconds = settings.slow_seconds
        self.state = state = OpenState()
        self.open_tables = tables = OpenTables()
        self.events = tables.events
        # Memory and files.
        self._spare = SpareMemory(clock)
        self.cache = BlockCache(settings.block_cache_bytes, partial(self._spare.look, quickly=True))
        self.lookups = Lookups(lookup_files(files, settings, server), settings.open_files_max, self.cache.reserve)
        self.fragments = OpenFragments(
            files,
            self.cache,
            settings.open_files_max,
            partial(explained, tables, metadata) if others_write else told_as_is,
            self.lookups,
        )
        self.recent = RecentRows(settings.recent_row_slots, txn_clock.last)
        self.cached_rows = CachedRows(self.recent, settings.row_cache_bytes)
        self.pending = pending = PendingFiles(new_id, None if leads_all else clock)
        self.pins = pins = Pins(coordination, clock)
        # Txns.
        self.sequencer = sequencer = Sequencer(txn_clock.last)
        self.gate = Gate(tables.lock)
        self.pauses = Pauses(tables.lock, settings.slow_seconds)
        self.passing = passing = PassingTxns(tables.lock, self.gate, sequencer, txn_clock, state)
        # The life of tables.
        self.flusher = flusher = Flusher(tables, sequencer, metadata, files, settings, server, pending, self._spare)
        self.preloader = Preloader(tables.all, self.cache)
        self.events.add(self.preloader)
        self.lookup_maker = LookupMaker(
            tables.all, self.fragments, settings.lookup_bytes_max, at_once=settings.lookup_at_once
        )
        self.loader = loader = Loader(
            tables, files, self.fragments, self.cache, flusher, clock, settings.tablet_idle_seconds
        )
        self.opener = TableOpener(
            tables, self.fragments, self.cached_rows, settings, server, loader, self.preloader, leads_all
        )
        self.lifecycle = lifecycle = TableLifecycle(
            tables, metadata, self.opener, passing, flusher, clock, settings.drop_retention_seconds
        )
        self.kept_replies = KeptReplies(tables, self.gate, sequencer, txn_clock, state)
        self.recutter = recutter = Recutter(
            tables, metadata, flusher, sequencer, self.pauses, self.kept_replies, clock, server, state, loader, new_id
        )
        self.alterer = Alterer(tables, metadata, recutter, self.preloader, sequencer, clock, server)
        self.unloader = Unloader(tables, metadata, sequencer, loader, recutter, state, clock, server)
        self.cloner = Cloner(metadata, recutter, pending, lifecycle, new_id)
        self.late_schemas = late = LateSchemas(tables, flusher, recutter, server)
        self.readiness = readiness = Readiness(state, recutter, self.alterer, loader, late)
        # What goes, and what is merged.
        merges = JobMerges(clock)
        self.garbage = garbage = Garbage(
            coordination,
            metadata,
            files,
            clock,
            pending,
            pins,
            tables,
            lifecycle,
            passing,
            merges,
            server,
            settings.garbage_age_seconds,
        )
        self.sweeper = Sweeper(garbage, pins, coordination, clock, settings.garbage_round_seconds)
        self.history = history = History(
            tables.lock, sequencer, pins, Horizon(coordination), clock, settings.history_seconds
        )
        tally = CompactionTally()
        self.compactor = compactor = Compactor(
            tables, metadata, files, settings, server, clock, pending, self._spare, history, merges, tally, self.sweeper
        )
        self.upkeep = upkeep = TableUpkeep(state, sequencer, passing, readiness, flusher, compactor, history)
        # Jobs.
        self.bulk = bulk = BulkDriver(
            tables, self.gate, sequencer, txn_clock, metadata, files, clock, server, state, passing, pending
        )
        self.compact_jobs = CompactDriver(
            tables,
            metadata,
            files,
            clock,
            server,
            pending,
            compactor.strategy,
            history,
            upkeep,
            readiness,
            merges,
            tally,
        )
        restorer = Restorer(tables, metadata, files, txn_clock, passing, lifecycle, pending)
        table_orders = TableOrders(tables, lifecycle, self.alterer)
        self.orders = OrderDesk(
            tables, state, lifecycle, readiness, bulk, self.compact_jobs, restorer, garbage, table_orders
        )
        # Writes and reads.
        self.writes = WritePath(
            tables,
            sequencer,
            txn_clock,
            self.recent,
            self.gate,
            self.pauses,
            flusher,
            metadata,
            clock,
            settings,
            server,
            state,
            lifecycle,
            readiness,
            loader,
            self.kept_replies,
        )
        self.moments = ReadTxns(sequencer, txn_clock, clock, tables.lock, self.gate, pins, state, history)
        self.scanners = Scanners(clock, settings.scanners_max, settings.scanner_expiry_seconds)
        self.scan_pool = ThreadPoolExecutor(settings.scan_threads, thread_name_prefix="ebla-scan")
        self.scan_parts = ScanParts(
            settings, self.events, loader, state, flusher, pins, self.moments, self.scanners, self.scan_pool
        )
        self.rounds = Rounds(self.scanners.expire, loader.drop_idle)
        self.shaper = Shaper(tables, recutter, settings, clock, self.rounds)
        self.report = StoreReport(
            state=state,
            tables=tables,
            settings=settings,
            clock=clock,
            coordination=coordination,
            metadata=metadata,
            sequencer=sequencer,
            writes=self.writes,
            pauses=self.pauses,
            flusher=flusher,
            compactor=compactor,
            tally=tally,
            recutter=recutter,
            bulk=bulk,
            garbage=garbage,
            pins=pins,
            cache=self.cache,
            lookups=self.lookups,
            lookup_maker=self.lookup_maker,
            preloader=self.preloader,
            scanners=self.scanners,
        )
        # What is asked for all the time goes straight to the part.
        self.table = self.lifecycle.table
        self.tables = self.lifecycle.tables
        self.add_table = self.opener.open
        self.apply = self.writes.apply
        self.commit = self.writes.commit
        self.wait = self.writes.wait
        self.check_unchanged = self.writes.check_unchanged
        self.read_txn = self.moments.read_txn
        self.hold_newest = self.moments.hold_newest
        self.hold_views = self.moments.hold_views
        self.sync = self.moments.sync
        self.admit = self.loader.admit
        self.admit_row = self.loader.admit_row
        self.flush = self.upkeep.flush
        # Set by `start`: puts on record how far the log reaches.
        self._record_log: Callable[[], None] | None = None
        forking.watch(self)

    # --- tables ---

    @property
    def refused(self) -> RefusedTables:
        """The tables that are there and cannot be served."""
        return self.open_tables.refused

    def refused_names(self) -> list[str]:
        """Return the names of tables that are there and cannot be served."""
        return [name for name in self.open_tables.refused.errors if UNLINKED not in name]

    def reload_metadata(self) -> None:
        """Take over METADATA that was changed past this engine, by a repair."""
        for table in self.open_tables.all():
            if not table.damage:  # else it has to be opened again, log and all
                self.metadata.reload(table.id)
                self.open_tables.use_metadata(table, self.metadata.refresh(table.id), self.server)

    def table_at(self, name: str, txn: int) -> TableState:
        """Return the table that had a name at `txn`, and has it now; `UnknownTable` if it is not there any more."""
        table = self.table(name)
        check_named(self.metadata.directory.config(table.id), table.name, txn)
        return table

    def served_tables(self) -> dict[str, TableState]:
        """Return all tables by id, those included that have lost their names."""
        return {table.id: table for table in self.open_tables.all()}

    def hold_files(self, files: Iterable[str]) -> Callable[[], None]:
        """Keep fragments that a job reads by their names from garbage collection; return how to let go of them."""
        held = tuple(files)
        self.pending.adopt(held)
        return lambda: self.pending.let_go(held)

    # --- life ---

    def recovered(self, replies: Iterable[Reply]) -> None:
        """Take stock after a replay: what clients were told, and the tables that it filled."""
        with self.open_tables.lock:
            self.kept_replies.former.restore(replies)
        self.opener.recovered()

    def start(
        self,
        writer: LogWriter,
        record_log: Callable[[], None],
        fence: Callable[[], None] | None = None,
        replicas: ServerReplicas | None = None,
    ) -> None:
        """Begin to accept writes, into `writer`; `fence` raises once nothing may be acknowledged any more.

        `record_log` puts on record how far the log reaches, if that has changed. `replicas` keep some of the tablets
        on other servers, too.
        """
        self._record_log = record_log
        self.writes.start(writer, fence, replicas)
        flush = None if replicas is None else ReplicaFlush(self.open_tables, self.kept_replies, replicas)
        self.flusher.start(writer, self.kept_replies.keep, self.compactor.wake, record_log, flush)
        if self.settings.background_compaction:
            self.compactor.start()
            self.shaper.start()
            self.lookup_maker.start()

    @property
    def is_writable(self) -> bool:
        """Whether the store was opened for writing."""
        return self.state.log is not None

    @property
    def is_closed(self) -> bool:
        """Whether the store was closed, or is about to be."""
        return self.state.is_closing

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that opened the store."""
        return self.state.is_inherited

    def closed(self) -> Closed:
        """Return the error of requests that come when the store is closed."""
        return self.state.closed()

    def close(self) -> None:
        """Log what is queued, flush what would make the next open slow, and stop. Idempotent."""
        with self.open_tables.lock:
            if self.state.is_closing:
                return
            self.state.is_closing = True
            self.open_tables.room.notify_all()
            if self.state.log is not None:
                with contextlib.suppress(EblaError):  # the log's failure, which close tells of itself
                    self.gate.wait(self.state.log)
        for table in self.open_tables.all():
            table.view.parts.row_cache.clear(TXN_MAX)  # or it would answer without asking whether the store is open
        self.preloader.stop()
        self.lookup_maker.stop()
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

    def _stop_writing(self) -> None:
        log = self.state.log
        if log is None:
            return
        self.shaper.stop()
        self.compactor.stop()
        self.flusher.stop()
        failed = log.failure is not None
        log.close()
        if not failed:
            self.writes.finish_saves()
            self.flusher.flush_for_close()
            self.writes.start_log_over()
            with contextlib.suppress(EblaError):  # a bound that stays too high only lets the next txns begin later
                self.txn_clock.release()
            if self._record_log is not None:
                with contextlib.suppress(EblaError):  # nearly always done by the clock; else it is as after a crash
                    self._record_log()

    def stop_writing(self, error: EblaError) -> None:
        """Accept no more writes: those that wait, and those that come later, get the error. Reads go on."""
        if self.state.log is not None:
            self.state.log.fail(error)

    def disown(self) -> None:
        """Be closed in a forked process. Files, threads and locks are its parent's: none of them is touched."""
        self.state.is_inherited = self.state.is_closing = True
        self.open_tables.forget_cached_rows()

    def abandon(self) -> None:
        """Stop as a crash would, writing nothing more. For tests."""
        with self.open_tables.lock:
            self.state.is_closing = True
            self.open_tables.room.notify_all()
        if self.state.log is not None:
            self.state.log.abandon()
            self.shaper.stop()
            self.compactor.stop()
            self.flusher.stop()
            self.metadata.finish_pruning()
        self.preloader.stop()
        self.lookup_maker.stop()
        self.scan_pool.shutdown(cancel_futures=True)
        self.writes.stop()
        self.fragments.close()
