"""Compaction: the worker that keeps tablets in shape by merging their fragments, and sweeps up what that leaves.

    choose     what to merge, tablet by tablet and group by group         compaction.py, pure
    merge      a stretch of the key at a time, without what nobody can see any more       storage/compact.py
    write      one run: one file, or several side by side when it is large; synced
    save       one METADATA transaction replaces exactly the inputs

Flushes, bulk loads and other compactions go on meanwhile. They add fragments, and the transaction does not mind; if
one of the inputs is no longer what it was, the transaction is refused and the work was in vain. A failure at any step
leaves the table as it was, and files that nobody names. What failed is not tried again before the tablet's fragments
have changed or some time has passed, and keeps no other tablet waiting.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import msgspec

from ebla.clock import Clock
from ebla.errors import EblaError, OutcomeUnknown, StoreError, UnknownTable
from ebla.metadata.changes import ReplaceFragments, RequirementFailed, TabletAt
from ebla.metadata.table_metadata import FragmentRef, GroupState, TableMetadata, TabletMetadata
from ebla.metadata.transaction import MetadataServer
from ebla.ranges import KeyRange
from ebla.schema import GroupSchema
from ebla.settings import Settings
from ebla.storage.compact import Retention, compact
from ebla.storage.files import Files
from ebla.storage.fragment_run import FragmentRun
from ebla.storage.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE
from ebla.tablet.compaction import Choice, Reason, Strategy, choose, choose_all
from ebla.tablet.garbage import Nursery
from ebla.tablet.open_tables import OpenTables
from ebla.tablet.scopes import WHOLE, Scoped, ScopedOutput, compact_scoped, is_mixed, may_join, restricted, scope_of
from ebla.tablet.serialize import reference_to
from ebla.tablet.table_state import TableState
from ebla.tablet.view import TableView
from ebla.tablet.windows import cut
from ebla.tablet.worker import Worker

RETRY_SECONDS = 60.0
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
    seconds: float = 0.0


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
        self._worker = Worker("ebla-compact", self._work, self._failed, doing="compaction")
        # Written by whoever holds _lock, read by others.
        self.recent: deque[Compaction] = deque(maxlen=RECENT_MAX)
        self.count = 0
        self.bytes_written = 0
        self.failure: EblaError | None = None
        # It only grows. It is raised first, then pins are looked at; a pin is made first, then looks at this.
        self.horizon_max = 0
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
            "count": self.count,
            "bytes_written": self.bytes_written,
            "failure": None if self.failure is None else str(self.failure),
            "recent": [asdict(one) for one in self.recent],
        }

    def _work(self, is_idle: bool) -> None:
        alive = {tablet.id for table in self._tables.all() for tablet in table.view.metadata.tablets}
        self._given_up = {key: failed for key, failed in self._given_up.items() if key[0] in alive}
        while self.compact_next():
            pass
        self._sweep_if_due()

    def _sweep_if_due(self) -> None:
        now = self._clock.monotonic_seconds()
        if not self._worker.is_stopping and now - self._swept_at >= self._settings.garbage_round_seconds:
            self._swept_at = now
            self._sweep()

    def _failed(self, error: EblaError) -> None:
        if not self._worker.is_stopping:
            _log.warning("a compaction was given up: %s", error)
            self.failure = error

    def compact_next(self) -> bool:
        """Carry out one compaction that is due; False if none is."""
        for table in self._tables.all():
            for tablet in table.view.metadata.tablets:
                for group in table.view.schema.groups:
                    if self._worker.is_stopping:
                        return False
                    if not (table.is_dropped or table.is_offline) and self._compact_if_due(table, tablet, group):
                        return True
        return False

    def _compact_if_due(self, table: TableState, tablet: TabletMetadata, group: GroupSchema) -> bool:
        state = tablet.group(group.id)
        horizon = self._horizon_of(table, group.id)
        purges = group.max_versions is not None
        choice = choose(state, horizon, self._strategy, purges=purges, is_cells=group.is_cells)
        if choice is None or self._is_given_up(tablet, state):
            return False
        try:
            return self._carry_out(table, tablet, group, choice, horizon)
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

    def _horizon_of(self, table: TableState, group: int) -> int:
        """Return the horizon of a group; whoever begins to hold a snapshot from now on sees that it has come so far."""
        self.horizon_max = max(self.horizon_max, self._horizon(table, group))
        return self._horizon(table, group)

    def compact_table(self, table: TableState) -> None:
        """Merge every tablet of a table into one run per group, as far as that can be."""
        done: set[str] = set()
        # Tablets that were split or joined meanwhile come up again, under other ids.
        while waiting := [tablet for tablet in table.view.metadata.tablets if tablet.id not in done]:
            for tablet in waiting:
                done.add(tablet.id)
                for group in table.view.schema.groups:
                    current = table.view.metadata.by_id(tablet.id)
                    if current is None:
                        break
                    horizon = self._horizon_of(table, group.id)
                    choice = choose_all(current.group(group.id), horizon)
                    if choice is not None:
                        self._carry_out(table, current, group, choice, horizon)

    # --- one compaction ---

    def _carry_out(
        self, table: TableState, tablet: TabletMetadata, group: GroupSchema, choice: Choice, horizon: int
    ) -> bool:
        """Merge, write and save. False if the inputs changed meanwhile."""
        with self._tables.events.held(), self._lock:
            began = self._clock.monotonic_seconds()
            begun: list[str] = []
            try:
                done = self._replace(table, tablet, group, choice, horizon, begun)
            except OutcomeUnknown:
                raise  # METADATA may come to name them yet
            except BaseException:
                self._nursery.grown(begun)
                raise
            self._nursery.grown(begun)
            if done is None:
                return False
            self.recent.append(replace(done, seconds=self._clock.monotonic_seconds() - began))
            self.count += 1
            self.bytes_written += done.bytes_written
            self._given_up.pop((tablet.id, group.id), None)
            if not self._given_up:
                self.failure = None
            return True

    def _replace(
        self,
        table: TableState,
        tablet: TabletMetadata,
        group: GroupSchema,
        choice: Choice,
        horizon: int,
        begun: list[str],
    ) -> Compaction | None:
        """Write the files, whose names go to `begun`, and make METADATA name them; None if it was in vain."""

        def new_path() -> str:
            begun.append(self._nursery.new_path(table.id))
            return begun[-1]

        schema = table.view.schema
        mixed = is_mixed(choice.fragments, group)
        is_dense = not mixed and _is_dense(table.view, tablet.id, group.id, choice.fragments)
        output = ScopedOutput(
            lambda: FragmentRun(
                self._files,
                new_path,
                table.id,
                schema,
                group,
                table.codec,
                self._settings.fragment_bytes_max,
                topped=is_dense and group.keeps_one,
            )
        )
        try:
            records_read = self._merge(table, tablet, group, choice, horizon, output, is_dense=is_dense)
            written = output.finish()
        except OSError as error:
            output.abandon()
            raise StoreError(f"cannot write a fragment of {table.name!r}: {error}; free space and retry") from error
        except BaseException:
            output.abandon()
            raise
        records_written = sum(info.rows for info, _ in written)
        # Surplus versions of cells stay unless everything is merged; of columns, what can go has gone.
        settled_txn = horizon if choice.is_rooted or not group.is_cells else 0
        added = [scope.applied_to(reference_to(info, schema.version)) for info, scope in written]
        change = ReplaceFragments(
            TabletAt(tablet.id, tablet.epoch),
            group.id,
            choice.fragments,
            tuple(msgspec.structs.replace(ref, settled_txn=settled_txn) for ref in added),
            choice.erasures,
            horizon if records_written < records_read or choice.erasures else 0,
        )
        try:
            saved = self._metadata.commit(table.id, [change])
        except (RequirementFailed, UnknownTable) as error:
            _log.info("a compaction of %s was in vain: %s", table.name, error)
            output.abandon()
            if isinstance(error, RequirementFailed):
                self._use(table, self._metadata.refresh(table.id))
            return None
        self._use(table, saved)
        table.reader.forget({fragment.file for fragment in choice.fragments} - set(saved.files()))
        return Compaction(
            table.name,
            tablet.id,
            group.name,
            choice.reason,
            choice.is_rooted,
            len(choice.fragments),
            len(written),
            choice.bytes,
            sum(info.bytes for info, _ in written),
            records_read,
            records_written,
        )

    def _use(self, table: TableState, metadata: TableMetadata) -> None:
        self._tables.use_metadata(table, metadata, self._server)

    def _merge(
        self,
        table: TableState,
        tablet: TabletMetadata,
        group: GroupSchema,
        choice: Choice,
        horizon: int,
        output: ScopedOutput,
        *,
        is_dense: bool,
    ) -> int:
        retention = Retention(
            horizon,
            choice.is_rooted,
            tablet.group(group.id).erasures,
            group.max_versions,
            group.max_age_microseconds,
            group.purge_join == "and",
            is_dense,
        )
        names = record_names(group)
        mixed = is_mixed(choice.fragments, group)
        joins = mixed and may_join(set(tablet.group(group.id).fragments).difference(choice.fragments))
        reader = table.reader
        records_read = 0
        for window in _windows(table, tablet, choice.fragments):
            if self._worker.is_stopping:
                raise StoreError("the store is being closed")
            runs = []
            for ref in choice.fragments:
                counted = ref.within(window)
                if counted is None:
                    continue
                run = reader.fragment(ref).read_range(counted.first, counted.last, names)
                if run is not None:
                    records_read += len(run)
                    runs.append(Scoped(restricted(run, ref, group), scope_of(ref, group)))
            if mixed:
                for scope, part in compact_scoped(runs, group, retention, may_join=joins):
                    output.write(scope, part)
                continue
            left = compact([one.run for one in runs], retention, is_cells=group.is_cells)
            if left is not None:
                output.write(WHOLE, left)
        return records_read


def _is_dense(view: TableView, tablet_id: str, group: int, inputs: Sequence[FragmentRef]) -> bool:
    """Tell whether nothing but the inputs has records of the tablet with a txn among theirs."""
    tablet = view.metadata.by_id(tablet_id)
    if tablet is None or not inputs:
        return False
    oldest, newest = min(ref.txn_min for ref in inputs), max(ref.txn_max for ref in inputs)
    unflushed = view.memory_of(group).txn_min
    if unflushed is not None and unflushed <= newest:
        return False
    chosen = set(inputs)
    others = (ref for ref in tablet.group(group).fragments if ref not in chosen)
    return all(ref.txn_max < oldest or ref.txn_min > newest for ref in others)


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
