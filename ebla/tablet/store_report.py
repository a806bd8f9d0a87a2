"""What a store tells of itself: counters for monitoring, statistics for people, and what is wrong with it."""

from __future__ import annotations

from ebla.clock import Clock, microseconds_of
from ebla.coordination.service import CoordinationService
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.service.counters import Counters
from ebla.settings import Settings
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.lookup.lookups import Lookups
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.garbage.garbage import Garbage
from ebla.tablet.garbage.job_intents import list_intents
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.jobs.bulk_driver import BulkDriver
from ebla.tablet.life.lookup_maker import LookupMaker
from ebla.tablet.life.preloader import Preloader
from ebla.tablet.life.recutter import Recutter
from ebla.tablet.scan.scanners import Scanners
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.pauses import Pauses
from ebla.tablet.upkeep.care_stats import held_stats, log_held_by, writing_stats
from ebla.tablet.upkeep.compaction_tally import CompactionTally
from ebla.tablet.upkeep.compactor import Compactor
from ebla.tablet.write.open_state import OpenState
from ebla.tablet.write.sequencer import Sequencer
from ebla.tablet.write_path import WritePath

__all__ = ["StoreReport"]


class StoreReport:
    """Asks the parts of a store how they are. Safe to use from several threads."""

    def __init__(
        self,
        *,
        state: OpenState,
        tables: OpenTables,
        settings: Settings,
        clock: Clock,
        coordination: CoordinationService,
        metadata: MetadataAccess,
        sequencer: Sequencer,
        writes: WritePath,
        pauses: Pauses,
        flusher: Flusher,
        compactor: Compactor,
        tally: CompactionTally,
        recutter: Recutter,
        bulk: BulkDriver,
        garbage: Garbage,
        pins: Pins,
        cache: BlockCache,
        lookups: Lookups,
        lookup_maker: LookupMaker,
        preloader: Preloader,
        scanners: Scanners,
    ) -> None:
        # Set once.
        self._state = state
        self._tables = tables
        self._settings = settings
        self._clock = clock
        self._coordination = coordination
        self._metadata = metadata
        self._sequencer = sequencer
        self._writes = writes
        self._pauses = pauses
        self._flusher = flusher
        self._compactor = compactor
        self._tally = tally
        self._recutter = recutter
        self._bulk = bulk
        self._garbage = garbage
        self._pins = pins
        self._cache = cache
        self._lookups = lookups
        self._lookup_maker = lookup_maker
        self._preloader = preloader
        self._scanners = scanners

    def _held(self) -> dict[str, object]:
        """Return what keeps old versions and files from going, and until when."""
        return held_stats(
            self._pins.all(), self._pins.held_here(), list_intents(self._coordination), self._clock.microseconds()
        )

    def damaged(self) -> dict[str, str]:
        """Return what is wrong with tables that are refused or served in part, by name."""
        refused = {name: str(error) for name, error in self._tables.refused.errors.items()}
        return refused | {table.name: table.damage for table in self._tables.listed() if table.damage}

    def counters(self) -> Counters:
        """Return the numbers that are told to others: to monitoring, and to who asks how the store is."""
        writes, flusher, tally, log = self._writes, self._flusher, self._tally, self._state.log
        cache, scanners = self._cache.stats(), self._scanners.stats()
        lookup_files, lookup_bytes = self._lookup_maker.stats()
        return Counters(
            commits_total=writes.commits,
            commit_timestamp_seconds=microseconds_of(self._sequencer.committed) / 1e6,
            put_bytes_total=writes.ingested_bytes,
            bulk_commits_total=self._bulk.commits,
            throttled_writes_total=writes.throttled.count,
            throttled_seconds_total=writes.throttled.seconds,
            writers_held_total=self._pauses.pausing.count,
            writers_held_seconds_total=self._pauses.pausing.seconds,
            log_writes_total=0 if log is None else log.writing.count,
            log_write_seconds_total=0.0 if log is None else log.writing.seconds,
            log_bytes=flusher.log_bytes(),
            log_segments=flusher.log_segments(),
            log_queued_bytes=0 if log is None else log.queued_bytes,
            log_failed=int(log is not None and log.failure is not None),
            metadata_commits_total=self._metadata.committing.count,
            metadata_commit_seconds_total=self._metadata.committing.seconds,
            memory_bytes=self._tables.memory_bytes,
            memory_limit_bytes=self._settings.memory_bytes_max,
            flushes_total=flusher.flushes,
            flush_seconds_total=flusher.flushing.seconds,
            flush_written_bytes_total=flusher.bytes_written,
            flush_failing=int(flusher.failure is not None),
            folds_total=flusher.combinings,
            compactions_total=tally.count,
            compaction_seconds_total=tally.seconds,
            compaction_read_bytes_total=tally.bytes_read,
            compaction_written_bytes_total=tally.bytes_written,
            compaction_failing=int(self._compactor.failure is not None),
            splits_total=self._recutter.splits,
            joins_total=self._recutter.joins,
            garbage_removed_files_total=self._garbage.removed_files,
            garbage_removed_bytes_total=self._garbage.removed_bytes,
            block_cache_bytes=cache["bytes"],
            block_cache_limit_bytes=cache["bytes_max"],
            block_cache_hits_total=cache["hits"],
            block_cache_misses_total=cache["misses"],
            lookup_files=lookup_files,
            lookup_bytes=lookup_bytes,
            lookup_limit_bytes=self._settings.lookup_bytes_max,
            lookup_made_total=self._lookup_maker.made_files,
            lookup_failed_total=self._lookup_maker.failures,
            lookup_damaged_total=self._lookups.damaged_files,
            lookup_finds_total=self._lookups.finds(),
            scans_open=scanners["live"],
            scans_expired_total=scanners["expired"],
            scans_evicted_total=scanners["evicted"],
            tables=len(self._tables.listed()),
            tables_damaged=len(self.damaged()),
        )

    def failures(self) -> list[str]:
        """Return what keeps the store from its work, a sentence each; nothing if all is well."""
        log = self._state.log
        found = [f"{name}: {reason}" for name, reason in sorted(self.damaged().items())]
        if log is not None and log.failure is not None:
            found.append(f"the log takes no more writes: {log.failure}")
        if self._flusher.failure is not None:
            found.append(f"memory cannot be flushed: {self._flusher.failure}")
        if self._compactor.failure is not None:
            found.append(f"a compaction was given up: {self._compactor.failure}")
        if self._garbage.failure is not None:
            found.append(f"garbage was not collected: {self._garbage.failure}")
        return found

    def stats(self) -> dict[str, object]:
        """Return counters of the store as a whole."""
        return {
            "writable": self._state.log is not None,
            "damaged": self.damaged(),
            "txn_committed": self._sequencer.committed,
            "txn_stable": self._sequencer.stable,
            "memory_bytes": self._tables.memory_bytes,
            "queued_bytes": self._state.log.queued_bytes if self._state.log is not None else 0,
            "log_bytes": self._flusher.log_bytes(),
            "log_segments": self._flusher.log_segments(),
            "log_held_by": log_held_by(self._tables.all(), self._tables.refused),
            "flushes": self._flusher.flushes,
            "throttled": {"count": self._writes.throttled.count, "seconds": self._writes.throttled.seconds},
            "writing": writing_stats(
                self._writes.ingested_bytes,
                self._flusher.bytes_written,
                self._tally.bytes_written,
                self._tally.history_bytes_written,
            ),
            "folds": self._flusher.combinings,
            "compactions": self._compactor.stats(),
            "scanners": self._scanners.stats(),
            "splits": self._recutter.splits,
            "joins": self._recutter.joins,
            "garbage": {**self._garbage.stats(), "held": self._held()},
            "block_cache": {**self._cache.stats(), "preloaded": self._preloader.stats()},
        }
