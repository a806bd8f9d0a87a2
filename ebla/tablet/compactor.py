"""Compaction: the worker that keeps tablets in shape by merging their fragments, and sweeps up what that leaves.

    choose     what to merge, tablet by tablet and group by group         compaction.py, pure
    merge      a stretch of the key at a time, without what nobody can see any more       storage/compact.py
    write      one run: one file, or several side by side when it is large; synced
    save       one METADATA transaction replaces exactly the inputs

Flushes, bulk loads and other compactions go on meanwhile. They add fragments, and the transaction does not mind; if
one of the inputs is no longer what it was, the transaction is refused and the work was in vain. A failure at any step
leaves the table as it was, and files that nobody names.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa

from ebla.clock import Clock
from ebla.errors import EblaError, StoreError, UnknownTable
from ebla.metadata.changes import ReplaceFragments, RequirementFailed, TabletAt
from ebla.metadata.table_metadata import FragmentRef, TableMetadata, TabletMetadata
from ebla.metadata.transaction import MetadataServer
from ebla.ranges import KeyRange
from ebla.schema import GroupSchema, TableSchema
from ebla.settings import Settings
from ebla.storage.compact import Retention, compact
from ebla.storage.files import Files
from ebla.storage.fragment_format import FragmentInfo, FragmentLayout
from ebla.storage.fragment_writer import FragmentWriter
from ebla.storage.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE
from ebla.tablet.compaction import Choice, Reason, Strategy, choose, choose_all
from ebla.tablet.garbage import Nursery
from ebla.tablet.open_tables import OpenTables
from ebla.tablet.serialize import reference_to
from ebla.tablet.table_state import TableState
from ebla.tablet.windows import cut

IDLE_SECONDS = 1.0
WINDOW_RECORDS = 98_304
RECENT_MAX = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compaction:
    """One compaction that was carried out, as `stats()` tells it."""

    table: str
    tablet: str
    group: str
    reason: Reason
    is_rooted: bool
    fragments_read: int
    fragments_written: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_written: int
    seconds: float


class Compactor:
    """Merges the fragments of open tables, one choice at a time. Lock order: its own lock, then the commit lock."""

    def __init__(
        self,
        tables: OpenTables,
        metadata: MetadataServer,
        files: Files,
        settings: Settings,
        server: str,
        clock: Clock,
        nursery: Nursery,
        horizon: Callable[[TableState, int], int],
        sweep: Callable[[], object],
    ) -> None:
        # Set once.
        self._tables = tables
        self._metadata = metadata
        self._files = files
        self._settings = settings
        self._server = server
        self._clock = clock
        self._nursery = nursery
        self._horizon = horizon
        self._sweep = sweep
        self._swept_at = clock.monotonic_seconds()
        self._strategy = Strategy(
            settings.compact_runs_min, settings.compact_runs_max, file_bytes=settings.fragment_bytes_max
        )
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebla-compact", daemon=True)
        # Written by whoever holds _lock, read by others.
        self.recent: deque[Compaction] = deque(maxlen=RECENT_MAX)
        self.count = 0
        self.bytes_written = 0
        self.failure: EblaError | None = None
        # It only grows. It is raised first, then pins are looked at; a pin is made first, then looks at this.
        self.horizon_max = 0
        self._stopping = False

    def start(self) -> None:
        """Begin to work in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Give up what is under way, and begin nothing more."""
        self._stopping = True
        self._work.set()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Say that fragments were added."""
        self._work.set()

    def stats(self) -> dict[str, object]:
        """Return what was done, the latest with its reasons."""
        return {
            "count": self.count,
            "bytes_written": self.bytes_written,
            "failure": None if self.failure is None else str(self.failure),
            "recent": [asdict(one) for one in self.recent],
        }

    def _run(self) -> None:
        while not self._stopping:
            self._work.wait(IDLE_SECONDS)
            self._work.clear()
            try:
                while self._compact_next():
                    pass
                self._sweep_if_due()
            except EblaError as error:
                self._failed(error)
            except Exception as error:
                _log.exception("compaction failed")
                self._failed(StoreError(f"compaction failed: {error!r}"))

    def _sweep_if_due(self) -> None:
        now = self._clock.monotonic_seconds()
        if not self._stopping and now - self._swept_at >= self._settings.garbage_round_seconds:
            self._swept_at = now
            self._sweep()

    def _failed(self, error: EblaError) -> None:
        if not self._stopping:
            _log.warning("a compaction was given up: %s", error)
            self.failure = error

    def _compact_next(self) -> bool:
        """Carry out one compaction that is due; False if none is."""
        for table in self._tables.all():
            for tablet in table.view.metadata.tablets:
                for group in table.view.schema.groups:
                    if self._stopping or table.is_dropped:
                        return False
                    state = tablet.group(group.id)
                    horizon = self._horizon_of(table, group.id)
                    choice = choose(state, horizon, self._strategy)
                    if choice is not None and self._carry_out(table, tablet, group, choice, horizon):
                        return True
        return False

    def _horizon_of(self, table: TableState, group: int) -> int:
        """Return the horizon of a group; whoever begins to hold a snapshot from now on sees that it has come so far."""
        self.horizon_max = max(self.horizon_max, self._horizon(table, group))
        return self._horizon(table, group)

    def compact_table(self, table: TableState) -> None:
        """Merge every tablet of a table into one run per group, as far as that can be."""
        for tablet in table.view.metadata.tablets:
            for group in table.view.schema.groups:
                current = table.view.metadata.by_id(tablet.id)
                if current is None:
                    continue
                horizon = self._horizon_of(table, group.id)
                choice = choose_all(current.group(group.id), horizon)
                if choice is not None:
                    self._carry_out(table, current, group, choice, horizon)

    # --- one compaction ---

    def _carry_out(
        self, table: TableState, tablet: TabletMetadata, group: GroupSchema, choice: Choice, horizon: int
    ) -> bool:
        """Merge, write and save. False if the inputs changed meanwhile."""
        with self._lock:
            began = self._clock.monotonic_seconds()
            retention = Retention(
                horizon,
                choice.is_rooted,
                tablet.group(group.id).erasures,
                group.max_versions,
                group.max_age_microseconds,
                group.purge_join == "and",
            )
            output = _Output(table, group, self._files, self._nursery, self._settings.fragment_bytes_max)
            try:
                records_read = self._merge(table, tablet, group, choice, retention, output)
                written = output.finish()
            except OSError as error:
                output.abandon()
                raise StoreError(f"cannot write a fragment of {table.name!r}: {error}; free space and retry") from error
            except BaseException:
                output.abandon()
                raise
            records_written = sum(info.rows for info in written)
            metadata = table.view.metadata
            change = ReplaceFragments(
                TabletAt(tablet.id, tablet.epoch),
                group.id,
                choice.fragments,
                tuple(reference_to(info, metadata.schema.version) for info in written),
                choice.erasures,
                horizon if records_written < records_read or choice.erasures else 0,
            )
            try:
                saved = self._metadata.commit(table.id, [change])
            except (RequirementFailed, UnknownTable) as error:
                _log.info("a compaction of %s was in vain: %s", table.name, error)
                output.remove()
                output.grown()
                if isinstance(error, RequirementFailed):
                    self._use(table, self._metadata.refresh(table.id))
                return False
            output.grown()
            self._use(table, saved)
            table.reader.forget({fragment.file for fragment in choice.fragments} - set(saved.files()))
            done = Compaction(
                table.name,
                tablet.id,
                group.name,
                choice.reason,
                choice.is_rooted,
                len(choice.fragments),
                len(written),
                choice.bytes,
                sum(info.bytes for info in written),
                records_read,
                records_written,
                self._clock.monotonic_seconds() - began,
            )
            self.recent.append(done)
            self.count += 1
            self.bytes_written += done.bytes_written
            self.failure = None
            return True

    def _use(self, table: TableState, metadata: TableMetadata) -> None:
        with self._tables.lock:
            table.use_metadata(metadata, self._server)

    def _merge(
        self,
        table: TableState,
        tablet: TabletMetadata,
        group: GroupSchema,
        choice: Choice,
        retention: Retention,
        output: _Output,
    ) -> int:
        names = record_names(group)
        records_read = 0
        for window in _windows(table, tablet, choice.fragments):
            if self._stopping:
                raise StoreError("the store is being closed")
            runs = []
            for ref in choice.fragments:
                run = table.reader.fragment(ref).read_range(window.first, window.last, names)
                if run is not None:
                    runs.append(run)
                    records_read += len(run)
            left = compact(runs, retention, is_cells=group.is_cells)
            if left is not None:
                output.write(left.records, unique=left.unique)
        return records_read


def record_names(group: GroupSchema) -> list[str]:
    """Return the internal names of all columns that records of a group may have."""
    if group.is_cells:
        return [ROW, FAMILY, QUALIFIER, TIMESTAMP, TXN, ERASED, VALUE]
    return [ROW, TXN, ERASED, SET, *(str(column.id) for column in group.columns)]


def _windows(table: TableState, tablet: TabletMetadata, refs: Sequence[FragmentRef]) -> Iterator[KeyRange]:
    marks: list[tuple[bytes, int]] = []
    for ref in refs:
        fragment = table.reader.fragment(ref)
        begin, end = fragment.blocks_of(tablet.first, tablet.last)
        marks += zip(fragment.first_rows[begin:end], fragment.block_rows[begin:end], strict=True)
    marks.sort()
    for window, _ in cut(KeyRange(tablet.first, tablet.last), marks, WINDOW_RECORDS, WINDOW_RECORDS):
        yield window


class _Output:
    """The files of one compaction. A file ends when it is large enough, or when a record needs a column it lacks."""

    def __init__(self, table: TableState, group: GroupSchema, files: Files, nursery: Nursery, bytes_max: int) -> None:
        self._table = table
        self._schema: TableSchema = table.view.schema
        self._group = group
        self._files = files
        self._nursery = nursery
        self._bytes_max = bytes_max
        self._layout: FragmentLayout | None = None
        self._writer: FragmentWriter | None = None
        self._written: list[FragmentInfo] = []

    def write(self, records: pa.RecordBatch, *, unique: bool) -> None:
        """Add the records of one window; no row of them was in a window before."""
        layout = _wider(self._layout, FragmentLayout.of(self._schema, self._group, records))
        if self._writer is not None and (self._layout != layout or self._writer.bytes_written >= self._bytes_max):
            self._close()
        if self._writer is None:
            self._layout = layout
            path = self._nursery.new_path(self._table.id)
            self._writer = FragmentWriter(self._files, path, self._table.id, layout, self._table.codec, unique=True)
        self._writer.unique &= unique
        self._writer.write(_fitted(records, layout))

    def _close(self) -> None:
        if self._writer is not None:
            self._written.append(self._writer.finish())
            self._writer = None

    def finish(self) -> list[FragmentInfo]:
        """Make everything durable and return what was written."""
        self._close()
        return self._written

    def grown(self) -> None:
        """Say that it is decided whether METADATA names the files."""
        self._nursery.grown(info.file for info in self._written)

    def abandon(self) -> None:
        """Close what is open and remove what was written."""
        if self._writer is not None:
            self._writer.abandon()
        self.remove()

    def remove(self) -> None:
        """Remove finished files that nothing names."""
        for info in self._written:
            try:
                self._files.delete(info.file)
            except OSError:
                continue


def _wider(known: FragmentLayout | None, layout: FragmentLayout) -> FragmentLayout:
    """Return a layout that has room for records of both."""
    if known is None:
        return layout
    ids = tuple(sorted({*known.value_ids, *layout.value_ids}))
    has_set = known.has_set or layout.has_set or not (ids == known.value_ids == layout.value_ids)
    return replace(layout, value_ids=ids, has_erased=known.has_erased or layout.has_erased, has_set=has_set)


def _fitted(records: pa.RecordBatch, layout: FragmentLayout) -> pa.RecordBatch:
    """Return records with all columns of a layout: what they do not have they do not set."""
    names = records.schema.names
    own = [i for i in layout.value_ids if str(i) in names]
    if layout.has_set and (SET not in names or len(own) < len(layout.value_ids)):
        everything = None if len(own) == len(layout.value_ids) else " ".join(map(str, own))
        if SET in names:
            sets = records.column(SET)
            sets = sets if everything is None else sets.fill_null(everything)
            records = records.drop_columns([SET])
        else:
            sets = pa.array([everything], pa.string()).take(pa.array(np.zeros(records.num_rows, dtype=np.int64)))
        records = records.append_column(SET, sets)
    if layout.has_erased and ERASED not in names:
        records = records.append_column(ERASED, pa.nulls(records.num_rows, pa.bool_()))
    for i in layout.value_ids:
        if str(i) not in names:
            records = records.append_column(str(i), pa.nulls(records.num_rows, layout.group.column_by_id[i].type))
    return records
