"""The read path below scans: from sources to merged rows of one stretch of one tablet, or of a fold of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ebla.metadata.values.table_metadata import FragmentRef, TabletMetadata
from ebla.model.keys import KeyCodec
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange
from ebla.model.schema import GroupSchema, TableSchema
from ebla.storage.fragment.fragment_file import FieldTypes
from ebla.storage.fragment.fragment_format import Tail
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.storage.merge.merge import MergedCells, MergedColumns, cells_as_they_are, merge_cells, merge_columns
from ebla.storage.merge.rules import Rules
from ebla.storage.merge.topping import firsts_of_rows
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE, Block, Run
from ebla.tablet.read.answers import (
    Answers,
    ReadPoint,
    as_it_is,
    is_clean,
    is_stacked,
    only_cells,
    rules_for,
    tops_suffice,
)
from ebla.tablet.read.folds import Fold, Folds, Found
from ebla.tablet.read.row_reader import RowReader
from ebla.tablet.read.scopes import Scoped, is_mixed, merge_scoped, restricted, scope_of
from ebla.tablet.read.short_rows import ShortRows
from ebla.tablet.read.view import Sources, TableView

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


class Reader:
    """Reads stretches of tablets; `rows` reads them by key. Holds no state of its own but the open fragments."""

    def __init__(self, fragments: OpenFragments, codec: KeyCodec, schema: TableSchema) -> None:
        self._fragments = fragments
        self._schema = schema
        self._answers = Answers(codec)
        self.rows = RowReader(self.fragment, self._answers, fragments, schema.typed_since)
        self.short = ShortRows(fragments.lookups, codec, schema.typed_since)
        # Types that columns got after a version; filled in by whoever needs them first, and the same by all who do.
        self._types_since: dict[int, FieldTypes] = {}
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
        types = self._types_since.get(ref.schema_version)
        if types is None:
            types = self._types_since[ref.schema_version] = FieldTypes(
                {
                    str(column.id): column.type
                    for group in self._schema.groups
                    for column in group.columns
                    if column.typed_since > ref.schema_version
                }
            )
        return self._fragments.get(ref.file, ref.txn, _tail(ref), types)

    def forget(self, files: Collection[str]) -> None:
        """Let go of fragments that were replaced, and of what is cached of them: nothing is pushed out for folds.

        A file that belongs in memory may do so for a clone: what is cached of it goes when the classes are set anew.
        """
        self._fragments.forget(files)
        cache = self._fragments.cache
        cache.drop_files({file for file in files if not cache.is_kept(file)})

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
            clean = is_clean(sources, rules)
            if clean and len(projection.groups) == 1:
                return self._read_clean_rows(sources, share, projection)
            runs = self._runs(
                sources, share, map(str, types), stacked=is_stacked(sources, rules), newest_at=_newest_at(rules)
            )
            merged[group.id] = as_it_is(runs, types) if clean else merge_columns(runs, types, rules, limit=point.limit)
        batch = self._answers.assemble(projection, merged)
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
        if last is not None and block.last >= last:  # a block of a file that two tablets share is in the fold of each
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
        batch = self._answers.assemble(projection, {group: merged})
        return Served(None if batch is None else pa.Table.from_batches([batch]), last)

    def _folded_rows(self, fold: Fold, begin: int, end: int, projection: Projection) -> pa.Table:
        records = fold.block.records
        schema = projection.arrow_schema
        if projection.key_fields or not fold.is_kept:
            # What the key is decoded to has memory of its own, so the answer is not kept.
            run = Run(records.slice(begin, end - begin), fold.txn)
            return pa.Table.from_arrays(self._answers.clean_columns(run, projection), schema=schema)
        answer = fold.answer(
            projection,
            lambda: pa.RecordBatch.from_arrays(
                self._answers.clean_columns(Run(records, fold.txn), projection), schema=schema
            ),
        )
        return pa.Table.from_batches([answer.slice(begin, end - begin)])

    def _merged_block(
        self, group: GroupSchema, fold: Fold | None, sources: Sources, rows: KeyRange, as_of: int
    ) -> Block | None:
        types = {column.id: column.type for column in group.columns}
        rules = Rules(as_of, sources.erasures)
        stacked = fold is None and is_stacked(sources, rules)
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
        tables = [pa.Table.from_arrays(self._answers.clean_columns(run, projection), schema=schema) for run in runs]
        if not tables:
            return None
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def _read_cells(
        self, group: GroupSchema, sources: Sources, share: KeyRange, rules: Rules, projection: Projection
    ) -> MergedCells:
        blocks = [run for block in sources.blocks if (run := block.slice_range(share.first, share.last)) is not None]
        names = [ROW, FAMILY, QUALIFIER, TIMESTAMP, TXN, ERASED, VALUE]
        files = [(ref, self._fragment_runs(ref, share, names)) for ref in sources.fragments]
        runs = [*blocks, *(restricted(run, ref, group) for ref, found in files for run in found)]
        wanted = projection.wanted_cells(group)
        if wanted is not None:
            runs = [only_cells(run, wanted) for run in runs]
        runs = [run for run in runs if len(run)]
        if runs and is_clean(sources, rules) and not any(ref.renamed for ref in sources.fragments):
            return cells_as_they_are(runs)
        return merge_cells(runs, rules)


def _tail(ref: FragmentRef) -> Tail | None:
    return Tail(ref.tail_bytes, ref.tail_crc) if ref.tail_bytes else None


@dataclass(frozen=True, slots=True)
class Served:
    """What a fold has given, None for no rows, and the row up to which that is everything; None: past every row."""

    rows: pa.Table | None
    end: bytes | None


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
