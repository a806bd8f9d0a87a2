"""Reading rows by key: one as the newest of its records, many as runs of what the sources have of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.metadata.values.table_metadata import FragmentRef, GroupState, TabletMetadata
from ebla.model.order import lower_bound, upper_bound
from ebla.model.projection import spread
from ebla.model.python_values import python_rows
from ebla.model.ranges import KeyRange, successor
from ebla.model.schema import GroupSchema
from ebla.storage.fragment.bloom import RowHash
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.storage.lookup.lookup_policy import CELLS_FOUND_POINTS, FOUND_POINTS, decoded_points, is_for_many
from ebla.storage.lookup.row_values import CellLists, RecordShape, Values, Wanted
from ebla.storage.merge.erasure_cover import TXN_MAX
from ebla.storage.merge.memory import Memory
from ebla.storage.merge.merge import MergedCells, MergedColumns, merge_cells, merge_columns
from ebla.storage.record.records import ERASED, ROW, SET, TXN, Block, Run
from ebla.tablet.read.answers import (
    Answers,
    ReadPoint,
    as_it_is,
    is_clean,
    is_clean_run,
    is_stacked,
    only_cells,
    rules_for,
    tops_suffice,
)
from ebla.tablet.read.row_cells import Cells, cell_lists, cell_lists_in, newest_cells
from ebla.tablet.read.row_records import RowRecord, newest_first, places_in_memory, resolve, visible_records
from ebla.tablet.read.scopes import WHOLE, Scoped, covers, is_mixed, merge_scoped, restricted, scope_of
from ebla.tablet.read.view import NO_SOURCES, Sources, TableView, check_history

__all__ = ["RowReader"]

# Not a row: it has to be looked for in several places.
SEVERAL: dict[str, Any] = {}


class RowReader:
    """Reads rows of one table by key. `opened` returns the open fragment of a reference.

    Columns of files that were written before version `typed_since` of the schema may have other types there.
    """

    def __init__(
        self,
        opened: Callable[[FragmentRef], Fragment],
        answers: Answers,
        fragments: OpenFragments,
        typed_since: int,
    ) -> None:
        # Set once.
        self._opened = opened
        self._answers = answers
        self._cache = fragments.cache
        self._lookups = fragments.lookups
        self._typed_since = typed_since

    # --- single fragments ---

    def _looked_up(self, ref: FragmentRef, row: bytes) -> tuple[RecordShape, Values | None] | None:
        """Return the values of a row by the lookup file of a fragment; None if the fragment has to be asked."""
        if ref.schema_version < self._typed_since:
            return None
        return self._lookups.find(ref.file, ref.bytes, row)

    def _find(
        self,
        ref: FragmentRef,
        row: bytes,
        hashed: Callable[[], int],
        found_points: int = FOUND_POINTS,
        *,
        newest: bool = False,
    ) -> list[tuple[Block, int, int]]:
        """Return the places of a row in the blocks of a fragment, and note what that has cost."""
        before = self._cache.filled
        places = self._opened(ref).find(row, hashed, newest=newest)
        points = found_points
        if before != self._cache.filled:
            points = decoded_points(places[0][0].bytes if places else 0)
        self._lookups.note_cost(ref.file, ref.rows, points)
        return places

    # --- one row ---

    def _runs_of_row(self, view: TableView, tablet: TabletMetadata, group: int, row: bytes, as_of: int) -> _RowRuns:
        """Return the records of one row in one group, from memory and from the fragments that may have it."""
        share = KeyRange(row, row + b"\0")
        memory = view.memory_of(tablet.id, group)
        sources = view.sources(tablet, group, share, as_of, blocks=memory.blocks_around(row) if memory.count else ())
        schema = view.schema.group_by_id[group]
        runs = []
        for block in sources.blocks:
            begin, end = block.find(row)
            if begin < end:
                runs.append(Scoped(Run(block.records.slice(begin, end - begin), block.txn)))
        hashed = RowHash(row)
        for ref in sources.fragments:
            scope = WHOLE if schema.is_cells else scope_of(ref, schema)
            for block, begin, end in self._find(ref, row, hashed):
                run = restricted(Run(block.records.slice(begin, end - begin), block.txn), ref, schema)
                if len(run):
                    runs.append(Scoped(run, scope))
        return _RowRuns(runs, sources)

    def get(self, view: TableView, row: bytes, point: ReadPoint) -> dict[str, Any] | None:
        """Return the columns and cells of one row by name, or None; without the key, if the projection is `plain`."""
        projection = point.projection
        if projection.plain:
            return self._get_plain(view, row, point)
        tablet = view.metadata.tablet_for(row)
        if projection.is_short:
            shown = self._get_cells(view, tablet, row, point)
            if shown is not None:
                return shown or None
        batch = self.read_one(view, tablet, row, point)
        if batch is None:
            return None
        return spread(python_rows(batch, check_times=projection.may_lose_times)[0], projection)

    def _get_cells(
        self, view: TableView, tablet: TabletMetadata, row: bytes, point: ReadPoint
    ) -> dict[str, Any] | None:
        """Return one row with cells, an empty one if there is none; None if it has to be merged."""
        projection = point.projection
        values: dict[str, Any] = dict.fromkeys(projection.names)
        cells: dict[int, Cells] = {}
        exists = False
        for group, wanted in zip(projection.groups, projection.by_group, strict=True):
            if not group.is_cells:
                records = self._records_of_row(view, tablet, group.id, row, point.as_of, wanted[1])
                if records is None:
                    return None
                exists |= resolve(records, wanted[1], values)
                continue
            rules = None if group.max_age_microseconds is None else rules_for(group, point.as_of, NO_SOURCES, 1)
            memory = view.memory_of(tablet.id, group.id)
            state = tablet.group(group.id)
            erased_at = 0
            if memory.erasures or state.erasures:
                erased_at = view.erased_at(tablet, group.id, row, point.as_of)
            own = newest_cells(
                self._cells_of_row(memory, state, group, row, point.as_of, erased_at),
                as_of=point.as_of,
                erased_at=erased_at,
                expired_before=rules.expired_before if rules is not None and rules.expires_alone else None,
            )
            if own is None:
                return None
            own = projection.only_wanted(group, own)
            exists |= bool(own)
            cells[group.id] = own
        if not exists:
            return {}
        return projection.shown_cells(self._answers.key_of(row, projection), values, cells)

    def _cells_of_row(
        self, memory: Memory, state: GroupState, group: GroupSchema, row: bytes, as_of: int, erased_at: int
    ) -> list[CellLists]:
        """Return the cells of one row in one group that a reader at `as_of` may need, of each source."""
        found = []
        for block in memory.blocks_around(row) if memory.count else ():
            begin, end = block.find(row)
            if begin < end:
                found.append(cell_lists_in(block, begin, end))
        if as_of < state.floor_txn:
            check_history(state, as_of)
        hashed = RowHash(row)
        for ref in _with_row(state, row, as_of, erased_at):
            looked_up = None if ref.is_restricted else self._looked_up(ref, row)
            if looked_up is not None:
                shape, values = looked_up
                if values is not None:
                    found.append(shape.cell_lists(values, ref.txn))
                continue
            for block, begin, end in self._find(ref, row, hashed, CELLS_FOUND_POINTS):
                run = restricted(Run(block.records.slice(begin, end - begin), block.txn), ref, group)
                if len(run):
                    found.append(cell_lists(run))
        return found

    def _get_plain(self, view: TableView, row: bytes, point: ReadPoint) -> dict[str, Any] | None:
        """Do `get` for a projection that is `plain`: then the key is left out."""
        tablet = view.metadata.tablet_for(row)
        exists = False
        projection = point.projection
        if len(projection.by_group) == 1:
            newest = self._get_from_one(view, tablet, *projection.by_group[0], row, point.as_of)
            if newest is not SEVERAL:
                return newest
        values: dict[str, Any] = dict.fromkeys(projection.names)
        for group, wanted in projection.by_group:
            records = self._records_of_row(view, tablet, group, row, point.as_of, wanted)
            if records is None:
                batch = self.read_one(view, tablet, row, point)
                if batch is None:
                    return None
                return python_rows(batch.select(projection.names), check_times=projection.may_lose_times)[0]
            exists |= resolve(records, wanted, values)
        return values if exists else None

    def _get_from_one(
        self, view: TableView, tablet: TabletMetadata, group: int, wanted: Wanted, row: bytes, as_of: int
    ) -> dict[str, Any] | None:
        """Return the wanted columns of a row that one fragment alone may have, by its lookup file; else `SEVERAL`.

        What most rows are of a table that is much larger than memory, and the shortest way to them.
        """
        memory = view.memory_of(tablet.id, group)
        state = tablet.group(group)
        if memory.erasures or state.erasures or (memory.count and memory.blocks_around(row)):
            return SEVERAL
        refs = [ref for ref in state.fragments if ref.first <= row <= ref.last and ref.is_read_at(as_of)]
        if len(refs) != 1:
            return SEVERAL
        (ref,) = refs
        if ref.txn_max > as_of or as_of < state.floor_txn or ref.clip is not None or ref.columns is not None:
            return SEVERAL
        found = self._looked_up(ref, row)
        if found is None:
            return SEVERAL
        shape, values = found
        if values is None:
            return None
        newest = shape.newest(values, wanted)
        if newest is None:
            newest = {name: None for name, _ in wanted}
            if not resolve(shape.records(values, ref.txn, 0, as_of), wanted, newest):
                return None
        return newest

    def _records_of_row(
        self,
        view: TableView,
        tablet: TabletMetadata,
        group: int,
        row: bytes,
        as_of: int,
        wanted: Sequence[tuple[str, str]],
    ) -> Iterable[RowRecord] | None:
        """Return the visible records of one row of a columns group as (txn, block, place), newest first.

        They are looked at as they are asked for, for the sake of `wanted` columns, names with field ids: of a row that
        was updated a million times, only the newest few are.
        None if they have to be merged: some are erasures, and not all speak for all columns of the group.
        """
        erased_at = 0
        mixed = has_erasures = False
        memory = view.memory_of(tablet.id, group)
        places = places_in_memory(memory.blocks_around(row), row, as_of, wanted) if memory.count else []
        state = tablet.group(group)
        if as_of < state.floor_txn:
            check_history(state, as_of)
        if memory.erasures or state.erasures:
            erased_at = view.erased_at(tablet, group, row, as_of)
        hashed = RowHash(row)
        looked_up: list[Iterable[RowRecord]] = []
        for ref in _with_row(state, row, as_of, erased_at):
            has_erasures |= ref.has_erasures
            names: frozenset[str] | None = None
            if ref.columns is not None and not covers(ref, view.schema.group_by_id[group]):
                mixed = True
                names = frozenset(map(str, ref.columns))
            found = self._looked_up(ref, row)
            if found is not None:
                shape, values = found
                if values is not None:
                    looked_up.append(shape.records(values, ref.txn, erased_at, as_of, names))
                continue
            newest = not ref.has_erasures and tops_suffice(ref, as_of)
            own = self._find(ref, row, hashed, newest=newest)
            if names is not None:
                own = [(block.narrowed(names), begin, end) for block, begin, end in own]
            places += own
        if mixed and (has_erasures or any(block.has_erasures for block, _, _ in places)):
            return None
        if len(places) == 1 and not erased_at and not looked_up:
            block, begin, end = places[0]
            if begin + 1 == end and block.txn_max <= as_of:
                return [(block.txn_max, block, begin)]  # nothing to put in order, so its own txn is not needed
        looked_up += [visible_records(*place, erased_at, as_of) for place in places]
        return newest_first(looked_up)

    def read_one(self, view: TableView, tablet: TabletMetadata, row: bytes, point: ReadPoint) -> pa.RecordBatch | None:
        """Return one row as a batch of one, or None."""
        projection = point.projection
        merged: dict[int, MergedColumns | MergedCells] = {}
        for group in projection.groups:
            found = self._runs_of_row(view, tablet, group.id, row, point.as_of)
            rules = rules_for(group, point.as_of, found.sources, projection.versions)
            if group.is_cells:
                wanted = projection.wanted_cells(group)
                runs = _in_few([one.run for one in found.runs])
                runs = runs if wanted is None else [only_cells(run, wanted) for run in runs]
                merged[group.id] = merge_cells([run for run in runs if len(run)], rules)
            else:
                merged[group.id] = merge_scoped(found.runs, group, projection.types[group.id], rules)
        return self._answers.assemble(projection, merged)

    def read_many(self, view: TableView, rows: pa.Array, point: ReadPoint) -> list[pa.RecordBatch]:
        """Return the visible ones of many rows, which are sorted and each once, as batches in order."""
        batches: list[pa.RecordBatch] = []
        for tablet, begin, end in view.tablets_of(rows):
            share = rows if end - begin == len(rows) else rows.slice(begin, end - begin)
            batches += self._rows_of_tablet(view, tablet, share, point)
        return batches

    def read_neighbours(self, view: TableView, rows: pa.Array, point: ReadPoint) -> pa.RecordBatch | None:
        """Return the visible rows if they are asked for just as they stand in one file, one after the other.

        None if they are not, or if that is not quick to find out. `rows` may be in any order.
        """
        projection = point.projection
        if len(projection.groups) > 1 or projection.groups[0].is_cells:
            return None
        group = projection.groups[0]
        first, last = rows[0].as_py(), rows[-1].as_py()
        tablet = view.metadata.tablet_for(first)
        if last < first or (tablet.last is not None and last >= tablet.last):
            return None
        sources = view.sources(tablet, group.id, KeyRange(first, successor(last)), point.as_of)
        if len(sources.fragments) != 1 or is_mixed(sources.fragments, group):
            return None
        ref = sources.fragments[0]
        if ref.clip is not None or not is_clean(sources, rules_for(group, point.as_of, sources, projection.versions)):
            return None
        run = self._opened(ref).find_neighbours(rows)
        if run is None:
            return None
        return pa.RecordBatch.from_arrays(self._answers.clean_columns(run, projection), schema=projection.arrow_schema)

    def _rows_of_tablet(
        self, view: TableView, tablet: TabletMetadata, rows: pa.Array, point: ReadPoint
    ) -> Iterable[pa.RecordBatch]:
        share = KeyRange(rows[0].as_py(), successor(rows[-1].as_py()))
        projection = point.projection
        merged: dict[int, MergedColumns | MergedCells] = {}
        for group in projection.groups:
            sources = view.sources(tablet, group.id, share, point.as_of)
            rules = rules_for(group, point.as_of, sources, projection.versions)
            if group.is_cells:
                runs = self._find_many(sources, rows, group=group)
                wanted = projection.wanted_cells(group)
                if wanted is not None:
                    runs = [run for run in (only_cells(run, wanted) for run in runs) if len(run)]
                merged[group.id] = merge_cells(runs, rules)
                continue
            types = projection.types[group.id]
            if is_mixed(sources.fragments, group):
                merged[group.id] = merge_scoped(self._find_scoped(sources, rows, group), group, types, rules)
                continue
            names = [ROW, ERASED, SET, *map(str, types)]
            if is_clean(sources, rules):
                runs = self._find_many(sources, rows, names)
                if len(projection.groups) == 1:
                    schema = projection.arrow_schema
                    columns = (self._answers.clean_columns(run, projection) for run in runs)
                    return [pa.RecordBatch.from_arrays(arrays, schema=schema) for arrays in columns]
                merged[group.id] = as_it_is(runs, types)
                continue
            stacked = is_stacked(sources, rules)
            runs = self._find_many(sources, rows, names if stacked else [TXN, *names], stacked=stacked)
            if len(runs) == 1 and is_clean_run(runs[0], rules):
                merged[group.id] = as_it_is(runs, types)
            else:
                merged[group.id] = merge_columns(runs, types, rules)
        batch = self._answers.assemble(projection, merged)
        return [] if batch is None else [batch]

    def _find_rows(self, ref: FragmentRef, rows: pa.Array, names: Sequence[str] | None) -> list[Run]:
        """Return the records of many rows in one fragment; of the columns, `names` or all."""
        if len(rows) and ref.schema_version >= self._typed_since and self._is_for_many(ref, len(rows)):
            records = self._lookups.find_many(ref.file, ref.bytes, rows, names)
            if records is not None:
                return [Run(records, ref.txn)] if records.num_rows else []
        return self._opened(ref).find_many(rows, names)

    def _is_for_many(self, ref: FragmentRef, rows: int) -> bool:
        if self._lookups.of(ref.file, ref.bytes) is None:
            return False
        asked = self._lookups.count_asked(ref.file, rows)
        return is_for_many(ref.rows, asked, ref.bytes, self._cache.bytes_max)

    def _find_many(
        self,
        sources: Sources,
        rows: pa.Array,
        names: Sequence[str] | None = None,
        *,
        stacked: bool = False,
        group: GroupSchema | None = None,
    ) -> list[Run]:
        """Return the records of many rows from all sources; see `_runs` for `stacked`. With a group, what counts."""
        runs = [run for block in sources.blocks for run in _find_in_memory(block, rows)]
        for ref in sources.fragments:
            asked = rows if ref.clip is None else _rows_in(rows, KeyRange(*ref.clip))
            found = self._find_rows(ref, asked, names)
            if group is not None:
                found = [restricted(run, ref, group) for run in found]
            runs += [Run(run.records, ref.txn_max) for run in found] if stacked else found
        return runs

    def _find_scoped(self, sources: Sources, rows: pa.Array, group: GroupSchema) -> list[Scoped]:
        """Return the records of many rows of a group to which columns came from elsewhere."""
        runs = [Scoped(run) for block in sources.blocks for run in _find_in_memory(block, rows)]
        for ref in sources.fragments:
            scope = scope_of(ref, group)
            asked = rows if ref.clip is None else _rows_in(rows, KeyRange(*ref.clip))
            found = (restricted(run, ref, group) for run in self._find_rows(ref, asked, None))
            runs += [Scoped(run, scope) for run in found if len(run)]
        return runs

    def latest_txn(self, view: TableView, tablet: TabletMetadata, row: bytes) -> int:
        """Return the newest txn that touched a row in any group, erasures included; 0 if none did."""
        latest = 0
        hashed = RowHash(row)
        for group in view.schema.groups:
            latest = max(latest, view.erased_at(tablet, group.id, row))
            memory = view.memory_of(tablet.id, group.id)
            for block in memory.blocks_around(row) if memory.count else ():
                begin, end = block.find(row)
                if begin < end and block.txn_max > latest:
                    txn = block.txn or _newest_txn(Run(block.records.slice(begin, end - begin)))
                    latest = max(latest, txn)
            # The newest may be an erasure, and those are history where nothing older is left.
            for ref in _with_row(tablet.group(group.id), row, TXN_MAX, 0, with_history=True):
                looked_up = None if ref.is_restricted else self._looked_up(ref, row)
                if looked_up is not None:
                    shape, values = looked_up
                    if values is not None:
                        latest = max(latest, shape.newest_txn(values, ref.txn))
                    continue
                for block, begin, end in self._find(ref, row, hashed):
                    run = restricted(Run(block.records.slice(begin, end - begin), block.txn), ref, group)
                    latest = max(latest, _newest_txn(run))
        return latest


@dataclass(frozen=True, slots=True)
class _RowRuns:
    """The records of one row in one group, and the sources they came from."""

    runs: list[Scoped]
    sources: Sources


def _with_row(
    state: GroupState, row: bytes, as_of: int, erased_at: int, *, with_history: bool = False
) -> list[FragmentRef]:
    """Return the fragments that may have records of a row with txns from `erased_at` to `as_of`.

    Those that a read at `as_of` does not need are left out, unless it is asked for them `with_history`.
    """
    return [
        ref
        for ref in state.fragments
        if (with_history or ref.is_read_at(as_of))
        and ref.first <= row <= ref.last
        and ref.txn_max >= erased_at
        and (ref.clip is None or KeyRange(*ref.clip).contains(row))
    ]


def _newest_txn(run: Run) -> int:
    return int(run.txns().max(initial=0))


def _in_few(runs: list[Run]) -> list[Run]:
    """Return the records of one row in as few runs as possible: every run costs a merge more than a record does."""
    if len(runs) < 3:
        return runs
    alike: dict[pa.Schema, list[Run]] = {}
    for run in runs:
        alike.setdefault(run.records.schema, []).append(run)
    few = []
    for several in alike.values():
        records = pa.concat_batches([run.records for run in several])
        if TXN not in records.schema.names:
            records = records.append_column(TXN, pa.array(np.concatenate([run.txns() for run in several])))
        few.append(Run(records))
    return few


def _find_in_memory(block: Block, rows: pa.Array) -> list[Run]:
    begin = lower_bound(rows, block.first)
    end = upper_bound(rows, block.last, begin)
    if begin >= end:
        return []
    places = block.find_many(rows.slice(begin, end - begin))
    return [Run(block.records.take(pa.array(places)), block.txn)] if len(places) else []


def _rows_in(rows: pa.Array, counted: KeyRange) -> pa.Array:
    """Return the part of sorted rows that lies in a range."""
    begin = lower_bound(rows, counted.first)
    end = len(rows) if counted.last is None else lower_bound(rows, counted.last, begin)
    return rows.slice(begin, end - begin)
