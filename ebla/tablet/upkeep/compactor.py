"""Compaction: the worker that keeps tablets in shape by merging their fragments, and sweeps up what that leaves.

    choose     what to merge, tablet by tablet and group by group         compaction.py, pure
    merge      a stretch of the key at a time, without what nobody can see any more       merging.py, compact.py
    write      one run: one file, or several side by side when it is large; synced
    save       one METADATA transaction replaces exactly the inputs

Flushes, bulk loads and other compactions go on meanwhile. They add fragments, and the transaction does not mind; if
one of the inputs is no longer what it was, or the schema, the transaction is refused and the work was in vain: a column
that came into the group meanwhile is in no file written. A failure at any step leaves the table as it was, and
files that nobody names. What failed is not tried again before the tablet's fragments have changed or some time has
passed, and keeps no other tablet waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from ebla.clock import Clock
from ebla.errors import EblaError, MissingFile, StoreError, TooManyFiles, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import RequirementFailed, RequireSchema, TabletAt
from ebla.metadata.values.table_metadata import GroupState, TableMetadata, TabletMetadata
from ebla.model.schema import GroupSchema
from ebla.retry import RACES
from ebla.service.job_orders import Strategy
from ebla.settings import Settings
from ebla.storage.cache.spare_memory import SpareMemory
from ebla.storage.files.files import Files
from ebla.tablet.flush.pending_files import PendingFiles
from ebla.tablet.garbage.job_merges import JobMerges
from ebla.tablet.garbage.sweeper import Sweeper
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.compaction import Choice, choose, choose_all, expiry_of
from ebla.tablet.upkeep.compaction_tally import Compaction, CompactionTally
from ebla.tablet.upkeep.history import History
from ebla.tablet.upkeep.merging import merge, merge_of, merged_references, new_output, replacement
from ebla.threads.worker import Worker

# After a merge of so many bytes, what it needed is given back to the system.
MUCH_BYTES = 32 << 20
RETRY_SECONDS = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to merge in one group of a tablet, up to which txn versions may go, and the schema it was chosen under."""

    schema_version: int
    tablet: TabletMetadata
    group: GroupSchema
    choice: Choice
    horizon: int


class Compactor:
    """Merges the fragments of open tables, one choice at a time. Lock order: its own lock, then the commit lock."""

    def __init__(
        self,
        tables: OpenTables,
        metadata: MetadataAccess,
        files: Files,
        settings: Settings,
        server: str,
        clock: Clock,
        pending: PendingFiles,
        spare: SpareMemory,
        history: History,
        merges: JobMerges,
        tally: CompactionTally,
        sweeper: Sweeper,
    ) -> None:
        # Set once.
        self._tables = tables
        self._metadata = metadata
        self._files = files
        self._settings = settings
        self._server = server
        self._clock = clock
        self._pending = pending
        self._spare = spare
        self._history = history
        self._merges = merges
        self.tally = tally
        self._sweeper = sweeper
        self.strategy = Strategy(
            settings.compact_runs_min, settings.compact_runs_max, file_bytes=settings.fragment_bytes_max
        )
        self._lock = threading.Lock()
        self._worker = Worker("ebla-compact", self._work, self._failed, doing="compaction")
        # Written by whoever holds _lock, read by others.
        self.failure: EblaError | None = None
        # What failed in the background, by tablet and group, and when.
        self._given_up: dict[tuple[str, int], tuple[GroupState, float]] = {}

    def start(self) -> None:
        """Begin to work in the background."""
        self._worker.start()

    def stop(self) -> None:
        """Give up what is under way, and begin nothing more."""
        self._worker.stop()

    def wake(self) -> None:
        """Say that fragments were added."""
        self._worker.wake()

    def stats(self) -> dict[str, object]:
        """Return what was done, the latest with its reasons."""
        return {
            "count": self.tally.count,
            "bytes_written": self.tally.bytes_written,
            "failure": None if self.failure is None else str(self.failure),
            "recent": self.tally.told(),
        }

    def _work(self, is_idle: bool) -> None:
        self._spare.look()
        alive = {tablet.id for table in self._tables.all() for tablet in table.view.metadata.tablets}
        self._given_up = {key: failed for key, failed in self._given_up.items() if key[0] in alive}
        while self.compact_next():
            pass
        if not self._worker.is_stopping:
            self._sweeper.sweep_if_due()

    def _failed(self, error: EblaError) -> None:
        if not self._worker.is_stopping:
            _log.warning("a compaction was given up: %s", error)
            self.failure = error

    def compact_next(self) -> bool:
        """Carry out one compaction that is due; False if none is."""
        for table in self._tables.all():
            metadata = table.view.metadata  # tablets and groups that belong together
            for tablet in table.own_tablets(metadata):
                for group in metadata.schema.groups:
                    if self._worker.is_stopping:
                        return False
                    if not (table.is_dropped or table.is_offline) and self._compact_if_due(
                        table, metadata.schema.version, tablet, group
                    ):
                        return True
        return False

    def _compact_if_due(
        self, table: TableState, schema_version: int, tablet: TabletMetadata, group: GroupSchema
    ) -> bool:
        state = tablet.group(group.id)
        horizon = self._history.horizon_of(table, group.id)
        purges = group.max_versions is not None
        busy = self._merges.files_of(table.id)
        choice = choose(
            state,
            horizon,
            self.strategy,
            purges=purges,
            is_cells=group.is_cells,
            columns=group.column_by_id.keys(),
            expired_before=expiry_of(group, horizon),
            busy=busy,
        )
        if choice is None or self._is_given_up(tablet, state):
            return False
        try:
            return self._carry_out(table, Chosen(schema_version, tablet, group, choice, horizon))
        except EblaError as error:
            self._given_up[tablet.id, group.id] = (state, self._clock.monotonic_seconds())
            self._failed(error)
            return False

    def _is_given_up(self, tablet: TabletMetadata, state: GroupState) -> bool:
        failed, at = self._given_up.get((tablet.id, state.group), (None, 0.0))
        if failed == state and self._clock.monotonic_seconds() - at < RETRY_SECONDS:
            return True
        self._given_up.pop((tablet.id, state.group), None)
        return False

    def compact_table(self, table: TableState, told: Callable[[int, int], None] | None = None) -> None:
        """Merge every tablet of a table into one run per group, as far as that can be.

        `told` is called after each with how many tablets are done, and how many there are.
        """
        done: set[str] = set()
        # Tablets that were split or joined meanwhile come up again, under other ids.
        while waiting := [tablet for tablet in table.own_tablets(table.view.metadata) if tablet.id not in done]:
            for tablet in waiting:
                done.add(tablet.id)
                self.compact_tablet(table, tablet.id)
                if told is not None:
                    told(len(done), max(len(done), len(table.view.metadata.tablets)))

    def compact_tablet(self, table: TableState, tablet_id: str) -> int:
        """Merge one tablet into one run per group, and return how many groups that were; 0 if it is not there."""
        return sum(self._compact_group(table, tablet_id, group.id) for group in table.view.schema.groups)

    def _compact_group(self, table: TableState, tablet_id: str, number: int) -> bool:
        """Merge one group of a tablet; chosen anew if somebody else, in the background, merged its files meanwhile."""
        for _ in RACES:
            metadata = table.view.metadata
            tablet, group = metadata.by_id(tablet_id), metadata.schema.group_by_id.get(number)
            if tablet is None or group is None or table.is_dropped:
                return False
            horizon = self._history.horizon_of(table, number)
            choice = choose_all(tablet.group(number), horizon)
            if choice is None:
                return False
            if self._carry_out(table, Chosen(metadata.schema.version, tablet, group, choice, horizon)):
                return True
        return False

    # --- one compaction ---

    def _carry_out(self, table: TableState, chosen: Chosen) -> bool:
        """Merge, write and save what was chosen. False if the schema or the inputs changed meanwhile."""
        with self._tables.events.held(), self._lock:
            began = self._clock.monotonic_seconds()
            begun: list[str] = []
            try:
                with self._pending.until_settled(begun):
                    horizon = self._history.agreed(table, chosen.group.id, chosen.horizon)
                    done = self._replace(table, replace(chosen, horizon=horizon), begun)
            finally:
                if chosen.choice.bytes >= MUCH_BYTES:
                    self._spare.give_back()
            if done is None:
                return False
            self.tally.note(replace(done, seconds=self._clock.monotonic_seconds() - began))
            self._given_up.pop((chosen.tablet.id, chosen.group.id), None)
            if not self._given_up:
                self.failure = None
            return True

    def _replace(self, table: TableState, chosen: Chosen, begun: list[str]) -> Compaction | None:
        """Write the files, whose names go to `begun`, and make METADATA name them; None if it was in vain."""
        tablet, group, choice = chosen.tablet, chosen.group, chosen.choice

        def new_path() -> str:
            begun.append(self._pending.new_path(table.id))
            return begun[-1]

        # Everything before it is in the view that is taken next.
        unflushed = self._history.unflushed(table, group.id, tablet.id)
        view = table.view
        parts = view.parts
        current = view.metadata.by_id(tablet.id)
        if current is None or parts.version != chosen.schema_version:
            return None  # it was split or joined, or the schema was changed, since the choice was made
        if not set(current.group(group.id).fragments).issuperset(choice.fragments):
            return None  # they were merged by others, perhaps while this one waited for them
        work = merge_of(current.group(group.id), choice, group, chosen.horizon, unflushed)
        del view  # or all that is in memory now would stay there until the end, flushed or not
        files_max = self._settings.fragment_bytes_max
        output = new_output(work, self._files, new_path, table.id, parts.schema, group, parts.codec, files_max)
        try:
            records_read = merge(work, group, tablet.range, parts.reader, output, self._between)
            written = output.finish()
        except MissingFile as error:
            output.abandon()
            if _names(table, chosen):
                raise
            _log.info("a compaction of %s was in vain: %s", table.name, error)
            return None  # somebody else merged it, or dropped the table, and a sweep came by since
        except OSError as error:
            output.abandon()
            if isinstance(error, TooManyFiles):
                raise
            raise StoreError(f"cannot write a fragment of {table.name!r}: {error}; free space and retry") from error
        except BaseException:
            output.abandon()
            raise
        added = merged_references(work, group, parts.schema, written)
        change = replacement(work, TabletAt(tablet.id, tablet.epoch), group.id, added, records_read)
        try:
            # Columns that came into the group meanwhile are not in what was written, nor in what was chosen.
            saved = self._metadata.commit(table.id, [RequireSchema(chosen.schema_version), change])
        except (RequirementFailed, UnknownTable) as error:
            _log.info("a compaction of %s was in vain: %s", table.name, error)
            output.abandon()
            if isinstance(error, RequirementFailed):
                self._use(table, self._metadata.refresh(table.id))
            return None
        self._use(table, saved)
        table.reader.forget({fragment.file for fragment in work.fragments} - set(saved.files()))
        return Compaction(
            table.name,
            tablet.id,
            group.name,
            choice.reason,
            work.is_rooted,
            len(work.fragments),
            len(written),
            sum(ref.bytes for ref in work.fragments if not ref.is_outlived_at(work.horizon)),
            sum(one.info.bytes for one in written),
            records_read,
            sum(one.info.rows for one in written),
            sum(one.info.bytes for one in written if one.is_history),
        )

    def _between(self) -> None:
        """See, between two stretches of a merge, whether to go on; what was needed for the last one is free."""
        if self._worker.is_stopping:
            raise StoreError("the store is being closed")
        self._spare.look()

    def _use(self, table: TableState, metadata: TableMetadata) -> None:
        self._tables.use_metadata(table, metadata, self._server)


def _names(table: TableState, chosen: Chosen) -> bool:
    """Tell whether METADATA still names all that was chosen."""
    tablet = table.view.metadata.by_id(chosen.tablet.id)
    if table.is_dropped or tablet is None:
        return False
    return set(chosen.choice.fragments) <= set(tablet.group(chosen.group.id).fragments)
