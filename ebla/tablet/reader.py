"""The read path below scans and gets: from sources to merged rows of one stretch of one tablet.

Where a single sorted run with one record per row covers the stretch, nothing hides any of it, and no policy applies,
the run is the answer, and the merge is skipped. Everything else goes through the one merge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.keys import KeyCodec
from ebla.metadata.table_metadata import FragmentRef, TabletMetadata
from ebla.ranges import KeyRange, successor
from ebla.schema import GroupSchema, TableSchema
from ebla.storage.bloom import RowHash
from ebla.storage.fragment_format import Tail
from ebla.storage.fragment_reader import FieldTypes, Fragment, OpenFragments
from ebla.storage.merge import MergedCells, MergedColumns, Rules, merge_cells, merge_columns
from ebla.storage.order import is_strictly_sorted, lower_bound, upper_bound
from ebla.storage.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE, Block, Run
from ebla.storage.topping import firsts_of_rows
from ebla.tablet.folds import Fold, Folds, Found, tops_suffice
from ebla.tablet.projection import Projection, join_rows
from ebla.tablet.row_records import RowRecord, newest_first, resolve, visible_records
from ebla.tablet.scopes import WHOLE, Scoped, covers, is_mixed, merge_scoped, restricted, scope_of
from ebla.tablet.view import Sources, TableView, check_history

# A read of at most this many blocks of a file goes through the cache; a longer one would only wash it out.
CACHED_BLOCKS_MAX = 4
# The ends of neighbouring blocks are joined if they are short: one run less to merge.
JOINED_RECORDS_MAX = 1_024
# Versions that have been replaced are left out before a merge where they are many; else the merge does it quicker.
THIN_RECORDS_MIN = 256
THIN_SHARE_MAX = 0.7
# A fold may share the memory of what it is made from, if that is not much more than its own.
SHARED_FACTOR_MAX = 1.5
# More newer records than this are not laid over a fold for a short scan.
LAID_RECORDS_MAX = 2_048


@dataclass(frozen=True, slots=True)
class ReadPoint:
    """The snapshot and the projection of a read, and how many rows are enough of what is merged."""

    as_of: int
    projection: Projection
    limit: int | None = None


def rules_for(group: GroupSchema, as_of: int, sources: Sources, versions: int) -> Rules:
    """Return what a reader at `as_of` may see of a group: its erasures and its purge policy."""
    expired = None if group.max_age_microseconds is None else (as_of >> 10) - group.max_age_microseconds
    return Rules(as_of, sources.erasures, versions, expired, group.max_versions, group.purge_join == "and")


class Reader:
    """Reads stretches of tablets. Holds no state of its own but the open fragments."""

    def __init__(self, fragments: OpenFragments, codec: KeyCodec, schema: TableSchema) -> None:
        self._fragments = fragments
        self._codec = codec
        self._schema = schema
        self._folds = Folds(fragments.cache, self.fragment, self._merged_block)

    def fragment(self, ref: FragmentRef) -> Fragment:
        """Return the open fragment of a reference, with columns of the types that they have by now."""
        if ref.schema_version < self._schema.typed_since:
            return self._older_fragment(ref)
        found = self._fragments.find(ref.file, ref.txn)
        if found is None:
            found = self._fragments.get(ref.file, ref.txn, _tail(ref))
        return found

    def _older_fragment(self, ref: FragmentRef) -> Fragment:
        types = {
            str(column.id): column.type
            for group in self._schema.groups
            for column in group.columns
            if column.typed_since > ref.schema_version
        }
        return self._fragments.get(ref.file, ref.txn, _tail(ref), FieldTypes(self._schema.typed_since, types))

    def forget(self, files: Collection[str]) -> None:
        """Let go of fragments that nobody will ask for any more."""
        self._fragments.forget(files)

    def read(self, view: TableView, tablet: TabletMetadata, share: KeyRange, point: ReadPoint) -> pa.Table | None:
        """Return the visible rows in `share`, which must lie in `tablet`, or None if there are none."""
        projection = point.projection
        merged: dict[int, MergedColumns | MergedCells] = {}
        for group in projection.groups:
            sources = view.sources(tablet, group.id, share, point.as_of)
            rules = rules_for(group, point.as_of, sources, projection.versions)
            if group.is_cells:
                merged[group.id] = self._read_cells(group, sources, share, rules, projection)
                continue
            types = projection.types[group.id]
            if is_mixed(sources.fragments, group):
                merged[group.id] = self._read_mixed(group, sources, share, rules, projection)
                continue
            is_clean = _is_clean(sources, rules)
            if is_clean and len(projection.groups) == 1:
                return self._read_clean_rows(sources, share, projection)
            runs = self._runs(
                sources, share, map(str, types), stacked=_is_stacked(sources, rules), newest_at=_newest_at(rules)
            )
            merged[group.id] = (
                _as_it_is(runs, types) if is_clean else merge_columns(runs, types, rules, limit=point.limit)
            )
        batch = self.assemble(projection, merged)
        return None if batch is None else pa.Table.from_batches([batch])

    def fold(
        self, view: TableView, tablet: TabletMetadata, row: bytes, point: ReadPoint, *, is_settled: bool
    ) -> Found | None:
        """Return what short scans from `row` on are served from, if there is such a thing; see `Folds.at`."""
        projection = point.projection
        group = projection.groups[0]
        if len(projection.groups) > 1 or projection.versions > 1 or group.is_cells:
            return None
        if group.max_age_microseconds is not None or is_mixed(tablet.group(group.id).fragments, group):
            return None
        return self._folds.at(view, tablet, group, row, point.as_of, is_settled=is_settled)

    def read_folded(self, found: Found, share: KeyRange, point: ReadPoint) -> Served | None:
        """Return the first rows in `share`, which begins in the fold; None if that takes the long way.

        At most as many as are enough are read, and none behind the end of the fold.
        """
        fold, projection, limit = found.fold, point.projection, point.limit
        block, last = fold.block, fold.rows.last
        begin, stop = block.lower_bound(share.first), len(block)
        if share.last is not None and (last is None or share.last < last):
            last = share.last
            stop = block.lower_bound(last)
        end = stop if limit is None else min(stop, begin + limit)
        if end < stop:
            last = block.row_at(end)
        sliced = [block.slice_newer(share.first, last, fold.txn, found.as_of) for block in found.newer]
        runs = [run for run in sliced if run is not None]
        if not runs:
            return Served(self._folded_rows(fold, begin, end, projection) if begin < end else None, last)
        fold.laid_over += 1
        if sum(map(len, runs)) > LAID_RECORDS_MAX:
            return None
        if begin < end:
            runs.append(Run(block.records.slice(begin, end - begin), fold.txn))
        group = projection.groups[0].id
        merged = merge_columns(runs, projection.types[group], Rules(found.as_of), limit=limit)
        batch = self.assemble(projection, {group: merged})
        return Served(None if batch is None else pa.Table.from_batches([batch]), last)

    def _folded_rows(self, fold: Fold, begin: int, end: int, projection: Projection) -> pa.Table:
        records = fold.block.records
        schema = projection.arrow_schema
        if projection.key_fields or not fold.is_kept:
            # What the key is decoded to has memory of its own, so the answer is not kept.
            run = Run(records.slice(begin, end - begin), fold.txn)
            return pa.Table.from_arrays(self._clean_columns(run, projection), schema=schema)
        answer = fold.answer(
            projection,
            lambda: pa.RecordBatch.from_arrays(self._clean_columns(Run(records, fold.txn), projection), schema=schema),
        )
        return pa.Table.from_batches([answer.slice(begin, end - begin)])

    def _merged_block(
        self, group: GroupSchema, fold: Fold | None, sources: Sources, rows: KeyRange, as_of: int
    ) -> Block | None:
        types = {column.id: column.type for column in group.columns}
        rules = Rules(as_of, sources.erasures)
        stacked = fold is None and _is_stacked(sources, rules)
        runs = self._runs(sources, rows, map(str, types), stacked=stacked, newest_at=as_of)
        if fold is not None:
            # What is not newer is in the fold.
            runs = [_newer_records(run, fold.txn) for run in runs]
            runs.append(Run(fold.block.records, fold.txn))
        merged = merge_columns([run for run in runs if len(run)], types, rules)
        if not len(merged.rows):
            return None
        arrays = [merged.rows, *merged.columns.values()]
        records = pa.RecordBatch.from_arrays(arrays, names=[ROW, *map(str, types)])
        if records.get_total_buffer_size() > SHARED_FACTOR_MAX * records.nbytes:
            records = records.take(
                pa.array(np.arange(len(merged.rows)))
            )  # else it would keep all of what it is cut from
        return Block(records, txn=as_of, unique=True)

    def assemble(
        self, projection: Projection, merged: Mapping[int, MergedColumns | MergedCells]
    ) -> pa.RecordBatch | None:
        """Join what was merged per group into rows of the answer, or None if there are none."""
        rows, places = join_rows([part.rows for part in merged.values()])
        if not len(rows):
            return None
        placed = {group: (part, place) for (group, part), place in zip(merged.items(), places, strict=True)}
        return projection.assemble(self._codec.decode_arrays(rows), rows, placed)

    def _runs(
        self,
        sources: Sources,
        share: KeyRange,
        names: Iterable[str],
        *,
        stacked: bool = False,
        newest_at: int | None = None,
    ) -> list[Run]:
        """Return what the sources hold in `share`: the columns `names` and those that every merge needs.

        Sources that are `stacked` are told apart by one txn each: that of every record is not read then. To a reader
        who wants the newest version at `newest_at`, the newest record of a row is enough where it says everything.
        """
        wanted = [ROW, ERASED, SET, *names] if stacked else [ROW, TXN, ERASED, SET, *names]
        runs = []
        for block in sources.blocks:
            run = _slice(block, share, newest=tops_suffice(block, newest_at))
            if run is not None:
                runs.append(run)
        for ref in sources.fragments:
            found = self._fragment_runs(ref, share, wanted, newest=tops_suffice(ref, newest_at))
            runs += [Run(run.records, ref.txn_max) for run in found] if stacked else found
        return runs

    def _fragment_runs(
        self, ref: FragmentRef, share: KeyRange, names: Sequence[str], *, newest: bool = False
    ) -> list[Run]:
        counted = ref.within(share)
        if counted is None:
            return []
        share = counted
        fragment = self.fragment(ref)
        begin, end = fragment.blocks_of(share.first, share.last)
        newest &= not ref.has_erasures  # an erasure further down would be missed
        stretches = fragment.outer_blocks(begin, end) if newest else [(begin, end)]
        if sum(b - a for a, b in stretches) <= CACHED_BLOCKS_MAX or fragment.is_cached:
            sliced = (_slice(fragment.block(i), share, newest=newest) for s in stretches for i in range(*s))
            found = [run for run in sliced if run is not None]
            if len(found) > 1 and sum(map(len, found)) <= JOINED_RECORDS_MAX:
                found = [Run(pa.concat_batches([run.records for run in found]), found[0].txn)]
        else:
            run = fragment.read_range(share.first, share.last, names, newest=newest)
            found = [] if run is None else [_thinned(run) if newest else run]
        return found

    def _read_mixed(
        self, group: GroupSchema, sources: Sources, share: KeyRange, rules: Rules, projection: Projection
    ) -> MergedColumns:
        """Read a stretch of a group to which columns came from elsewhere."""
        # All of its columns, for which records count as saying something depends on them.
        names = [ROW, TXN, ERASED, SET, *(str(column.id) for column in group.columns)]
        found = (block.slice_range(share.first, share.last) for block in sources.blocks)
        runs = [Scoped(run) for run in found if run is not None]
        for ref in sources.fragments:
            scope = scope_of(ref, group)
            runs += [Scoped(restricted(run, ref, group), scope) for run in self._fragment_runs(ref, share, names)]
        return merge_scoped([one for one in runs if len(one.run)], group, projection.types[group.id], rules)

    def _read_clean_rows(self, sources: Sources, share: KeyRange, projection: Projection) -> pa.Table | None:
        """Read a stretch that one run covers: its columns are the answer, in as many chunks as they come."""
        names = [ROW, *projection.key_fields, *projection.field_names]
        runs = [run for block in sources.blocks if (run := block.slice_range(share.first, share.last)) is not None]
        for ref in sources.fragments:
            runs += self._fragment_runs(ref, share, names)
        schema = projection.arrow_schema
        tables = [pa.Table.from_arrays(self._clean_columns(run, projection), schema=schema) for run in runs]
        if not tables:
            return None
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def _clean_columns(self, run: Run, projection: Projection) -> list[pa.Array | pa.ChunkedArray]:
        """Return the columns of a clean run in the order of the answer, chunked as they are."""
        records = run.records
        held = records.schema.names
        keys = projection.key_fields
        arrays: list[pa.Array | pa.ChunkedArray]
        if not keys:
            key = records.column(ROW)
            kind = projection.schema.key[0].type
            arrays = [key if key.type == kind else key.cast(kind)]
        elif set(keys).issubset(held):
            arrays = [records.column(key) for key in keys]
        else:
            rows = run.column(ROW)
            assert rows is not None
            arrays = list(self._codec.decode_arrays(rows))
        for name, output in zip(projection.field_names, projection.outputs, strict=True):
            arrays.append(records.column(name) if name in held else pa.nulls(len(run), output.type))
        return arrays

    def _read_cells(
        self, group: GroupSchema, sources: Sources, share: KeyRange, rules: Rules, projection: Projection
    ) -> MergedCells:
        blocks = [run for block in sources.blocks if (run := block.slice_range(share.first, share.last)) is not None]
        names = [ROW, FAMILY, QUALIFIER, TIMESTAMP, TXN, ERASED, VALUE]
        files = [(ref, self._fragment_runs(ref, share, names)) for ref in sources.fragments]
        runs = [*blocks, *(restricted(run, ref, group) for ref, found in files for run in found)]
        wanted = projection.wanted_cells(group)
        if wanted is not None:
            runs = [run for run in (_only_cells(run, wanted) for run in runs) if len(run)]
        return merge_cells(runs, rules)

    # --- single rows ---

    def runs_of_row(self, view: TableView, tablet: TabletMetadata, group: int, row: bytes, as_of: int) -> RowRuns:
        """Return the records of one row in one group, from memory and from the fragments that may have it."""
        share = KeyRange(row, row + b"\0")
        sources = view.sources(tablet, group, share, as_of)
        schema = view.schema.group_by_id[group]
        runs = []
        for block in sources.blocks:
            begin, end = block.find(row)
            if begin < end:
                runs.append(Scoped(Run(block.records.slice(begin, end - begin), block.txn)))
        hashed = RowHash(row)
        for ref in sources.fragments:
            scope = WHOLE if schema.is_cells else scope_of(ref, schema)
            for block, begin, end in self.fragment(ref).find(row, hashed):
                run = restricted(Run(block.records.slice(begin, end - begin), block.txn), ref, schema)
                if len(run):
                    runs.append(Scoped(run, scope))
        return RowRuns(runs, sources)

    def get(self, view: TableView, row: bytes, point: ReadPoint) -> dict[str, Any] | None:
        """Return the columns of one row by name, or None. Only for projections that are `plain`."""
        tablet = view.metadata.tablet_for(row)
        exists = False
        projection = point.projection
        values: dict[str, Any] = dict.fromkeys(projection.names)
        for group, wanted in projection.by_group:
            records = self._records_of_row(view, tablet, group, row, point.as_of)
            if records is None:
                batch = self.read_row(view, tablet, row, point)
                return None if batch is None else batch.select(projection.names).to_pylist()[0]
            exists |= resolve(records, wanted, values)
        return values if exists else None

    def _records_of_row(
        self, view: TableView, tablet: TabletMetadata, group: int, row: bytes, as_of: int
    ) -> Iterable[RowRecord] | None:
        """Return the visible records of one row of a columns group as (txn, block, place), newest first.

        They are looked at as they are asked for: of a row that was updated a million times, only the newest few are.
        None if they have to be merged: some are erasures, and not all speak for all columns of the group.
        """
        erased_at = 0
        mixed = has_erasures = False
        memory = view.memory_of(group)
        places: list[tuple[Block, int, int]] = []
        for block in memory.blocks:
            if block.txn_min <= as_of and block.first <= row <= block.last:
                begin, end = block.find(row)
                if begin < end:
                    places.append((block, begin, end))
        state = tablet.group(group)
        if as_of < state.floor_txn:
            check_history(state, as_of)
        if memory.erasures or state.erasures:
            erased_at = view.erased_at(tablet, group, row, as_of)
        hashed = RowHash(row)
        for ref in state.fragments:
            if ref.txn_min <= as_of and ref.first <= row <= ref.last and ref.txn_max >= erased_at:
                if ref.clip is not None and not KeyRange(*ref.clip).contains(row):
                    continue
                newest = not ref.has_erasures and tops_suffice(ref, as_of)
                own = self.fragment(ref).find(row, hashed, newest=newest)
                has_erasures |= ref.has_erasures
                if ref.columns is not None and not covers(ref, view.schema.group_by_id[group]):
                    mixed = True
                    names = frozenset(map(str, ref.columns))
                    own = [(block.narrowed(names), begin, end) for block, begin, end in own]
                places += own
        if mixed and (has_erasures or any(block.has_erasures for block, _, _ in places)):
            return None
        if len(places) == 1 and not erased_at:
            block, begin, end = places[0]
            if begin + 1 == end and block.txn_max <= as_of:
                return [(block.txn_max, block, begin)]  # nothing to put in order, so its own txn is not needed
        return newest_first([visible_records(*place, erased_at, as_of) for place in places])

    def read_row(self, view: TableView, tablet: TabletMetadata, row: bytes, point: ReadPoint) -> pa.RecordBatch | None:
        """Return one row as a batch of one, or None."""
        projection = point.projection
        merged: dict[int, MergedColumns | MergedCells] = {}
        for group in projection.groups:
            found = self.runs_of_row(view, tablet, group.id, row, point.as_of)
            rules = rules_for(group, point.as_of, found.sources, projection.versions)
            if group.is_cells:
                wanted = projection.wanted_cells(group)
                runs = _in_few([one.run for one in found.runs])
                runs = runs if wanted is None else [_only_cells(run, wanted) for run in runs]
                merged[group.id] = merge_cells([run for run in runs if len(run)], rules)
            else:
                merged[group.id] = merge_scoped(found.runs, group, projection.types[group.id], rules)
        return self.assemble(projection, merged)

    def read_rows(self, view: TableView, rows: pa.Array, point: ReadPoint) -> list[pa.RecordBatch]:
        """Return the visible ones of many rows, which are sorted and each once, as batches in order."""
        batches: list[pa.RecordBatch] = []
        begin = 0
        while begin < len(rows):
            tablet = view.metadata.tablet_for(rows[begin].as_py())
            end = len(rows)
            if tablet.last is not None and rows[-1].as_py() >= tablet.last:
                end = lower_bound(rows, tablet.last, begin)
            share = rows if end - begin == len(rows) else rows.slice(begin, end - begin)
            batches += self._rows_of_tablet(view, tablet, share, point)
            begin = end
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
        if ref.clip is not None or not _is_clean(sources, rules_for(group, point.as_of, sources, projection.versions)):
            return None
        run = self.fragment(ref).find_neighbours(rows)
        if run is None:
            return None
        return pa.RecordBatch.from_arrays(self._clean_columns(run, projection), schema=projection.arrow_schema)

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
                    runs = [run for run in (_only_cells(run, wanted) for run in runs) if len(run)]
                merged[group.id] = merge_cells(runs, rules)
                continue
            types = projection.types[group.id]
            if is_mixed(sources.fragments, group):
                merged[group.id] = merge_scoped(self._find_scoped(sources, rows, group), group, types, rules)
                continue
            names = [ROW, ERASED, SET, *map(str, types)]
            if _is_clean(sources, rules):
                runs = self._find_many(sources, rows, names)
                if len(projection.groups) == 1:
                    schema = projection.arrow_schema
                    columns = (self._clean_columns(run, projection) for run in runs)
                    return [pa.RecordBatch.from_arrays(arrays, schema=schema) for arrays in columns]
                merged[group.id] = _as_it_is(runs, types)
                continue
            stacked = _is_stacked(sources, rules)
            runs = self._find_many(sources, rows, names if stacked else [TXN, *names], stacked=stacked)
            if len(runs) == 1 and _is_clean_run(runs[0], rules):
                merged[group.id] = _as_it_is(runs, types)
            else:
                merged[group.id] = merge_columns(runs, types, rules)
        batch = self.assemble(projection, merged)
        return [] if batch is None else [batch]

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
            found = self.fragment(ref).find_many(asked, names)
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
            found = (restricted(run, ref, group) for run in self.fragment(ref).find_many(asked))
            runs += [Scoped(run, scope) for run in found if len(run)]
        return runs

    def latest_txn(self, view: TableView, tablet: TabletMetadata, row: bytes) -> int:
        """Return the newest txn that touched a row in any group, erasures included; 0 if none did."""
        latest = 0
        for group in view.schema.groups:
            found = self.runs_of_row(view, tablet, group.id, row, (1 << 63) - 1)
            for one in found.runs:
                latest = max(latest, int(one.run.txns().max(initial=0)))
            latest = max(latest, view.erased_at(tablet, group.id, row))
        return latest


def _tail(ref: FragmentRef) -> Tail | None:
    return Tail(ref.tail_bytes, ref.tail_crc) if ref.tail_bytes else None


@dataclass(frozen=True, slots=True)
class Served:
    """What a fold has given, None for no rows, and the row up to which that is everything; None: past every row."""

    rows: pa.Table | None
    end: bytes | None


@dataclass(frozen=True, slots=True)
class RowRuns:
    """The records of one row in one group, and the sources they came from."""

    runs: list[Scoped]
    sources: Sources


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


def _is_clean(sources: Sources, rules: Rules) -> bool:
    """Tell whether the sources can be read as they are: one run, one record per row, nothing hidden, no versions."""
    if rules.versions != 1 or rules.erasures or rules.expires_alone or len(sources) > 1:
        return False
    known: list[Block | FragmentRef] = [*sources.blocks, *sources.fragments]
    return all(s.unique and not s.has_erasures and s.txn_max <= rules.as_of for s in known)


def _is_stacked(sources: Sources, rules: Rules) -> bool:
    """Tell whether each source is wholly older or newer than any other, and no rule asks for the txn of a record.

    As the records of a row stand newest first in each of them, one txn for each source gives the order of all.
    """
    if rules.versions != 1 or rules.erasures or rules.expires_alone:
        return False
    known: list[Block | FragmentRef] = [*sources.blocks, *sources.fragments]
    known.sort(key=attrgetter("txn_min"))
    return all(s.txn_max <= rules.as_of for s in known) and all(a.txn_max < b.txn_min for a, b in pairwise(known))


def _newest_at(rules: Rules) -> int | None:
    """Return the snapshot of a reader who wants the newest version, whatever its age; None for others."""
    return rules.as_of if rules.versions == 1 and not rules.expires_alone else None


def _slice(block: Block, share: KeyRange, *, newest: bool) -> Run | None:
    """Return what a block has in a range, or only what counts to a reader of the `newest` record of each row."""
    if newest and not block.unique:
        return block.slice_tops(share.first, share.last, THIN_SHARE_MAX)
    return block.slice_range(share.first, share.last)


def _newer_records(run: Run, after: int) -> Run:
    """Return the records of a run with a txn behind `after`."""
    if run.txn is not None:
        return run if run.txn > after else Run(run.records.slice(0, 0), run.txn)
    mask = run.txns() > after
    return run if mask.all() else Run(run.records.filter(pa.array(mask)))


def _thinned(run: Run) -> Run:
    return firsts_of_rows(run, THIN_SHARE_MAX) if len(run) >= THIN_RECORDS_MIN else run


def _is_clean_run(run: Run, rules: Rules) -> bool:
    """Tell whether a run by itself is the answer: one record per row, nothing hidden, no versions."""
    if rules.versions != 1 or rules.erasures or rules.expires_alone or ERASED in run.records.schema.names:
        return False
    rows = run.column(ROW)
    return rows is not None and is_strictly_sorted(rows) and int(run.txns().max(initial=0)) <= rules.as_of


def _as_it_is(runs: Sequence[Run], types: Mapping[int, pa.DataType]) -> MergedColumns:
    """Return clean runs as if they had been merged."""
    columns = {i: _joined(runs, str(i), kind) for i, kind in types.items()}
    return MergedColumns(_joined(runs, ROW, pa.binary()), columns)


def _joined(runs: Sequence[Run], name: str, kind: pa.DataType) -> pa.Array:
    """Return a column of consecutive runs as one array; nulls where a run does not have it."""
    if not runs:
        return pa.array([], kind)
    parts = []
    for run in runs:
        column = run.column(name)
        parts.append(pa.nulls(len(run), kind) if column is None else column)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _only_cells(run: Run, wanted: Mapping[str, frozenset[str] | None]) -> Run:
    """Leave out cells that are not asked for; erasures that may cover wanted ones stay."""
    family, qualifier = run.column(FAMILY), run.column(QUALIFIER)
    assert family is not None
    assert qualifier is not None
    mask = pc.is_null(family)
    for name, qualifiers in wanted.items():
        fits = pc.fill_null(pc.equal(family, name), False)
        if qualifiers is not None:
            fits = pc.and_(fits, pc.is_in(qualifier, value_set=pa.array([*qualifiers, None], pa.string())))
        mask = pc.or_(mask, fits)
    return Run(run.records.filter(mask), run.txn)
