"""Scanning: a range of a table, at one txn, as batches in key order.

The range is cut, tablet by tablet, into windows of so many records, each of which is read and merged on its own:

    tablet   |---------------------------------|------------------ ...
    window   |--|-----|-----------|------------|-----| ...       small ones first, so that a short scan is quick
    threads     1     1         2            1                   long ones ahead of the reader, in order

Every window takes the newest view of the table and reads it at the scan's txn. So a flush or a split in the middle of a
scan changes nothing for it, nothing replaced is held on to, and a scan can be resumed anywhere from its txn and the
last row it gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import HistoryGone, MissingFile, SchemaChanged, UnknownTable
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.model.filters import unusable, with_columns_of
from ebla.model.projection import Projection
from ebla.model.ranges import ALL, KeyRange
from ebla.storage.lookup.lookup_format import Damaged
from ebla.storage.lookup.row_values import Elsewhere
from ebla.storage.merge.memory import COMBINE_BLOCKS_MIN
from ebla.storage.record.records import Block
from ebla.tablet.read.answers import ReadPoint
from ebla.tablet.read.counting import count_pieces
from ebla.tablet.read.reader import Reader, Served
from ebla.tablet.read.short_rows import SHORT_ROWS_MAX as SHORT_ROWS
from ebla.tablet.read.view import Sources, TableView
from ebla.tablet.read.windows import WINDOW_GROWTH, cut, even_window_rows, lie_on_each_other
from ebla.tablet.scan.scan_parts import ScanParts
from ebla.tablet.scan.scan_progress import ScanProgress, Window, after
from ebla.tablet.tables.table_state import TableState

FIRST_WINDOW_ROWS = 1_024
# Where sources lie on each other a window is there several times over while it is merged, so it is smaller.
WINDOW_BATCHES = 4
WINDOW_BATCHES_MERGED = 2
INLINE_ROWS = 16_384
MEMORY_STRIDE = 4_096
# A scan of at most so many rows is cut exactly; a longer one at the first rows of blocks.
SHORT_ROWS_MAX = 2_048

# The rows of a window, None if it has none, and the txn that they were read at.
_Found: TypeAlias = tuple[pa.Table | None, int]


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What is scanned. `as_of` is None for a scan that follows the newest commits from window to window.

    Such a scan reads at `at_least` or later: where values expire, time goes on without commits, and never back.
    """

    projection: Projection
    key_range: KeyRange = ALL
    where: pc.Expression | None = None
    limit: int | None = None
    reverse: bool = False
    as_of: int | None = None
    uncommitted: bool = False
    at_least: int = 0


class Scanner:
    """Produces the rows of one scan. Use it from one thread at a time."""

    def __init__(self, parts: ScanParts, table: TableState, request: ScanRequest) -> None:
        self._parts = parts
        self._table = table
        self._request = request
        # Of what was given last; before that, where the scan begins. The reading thread alone changes it.
        self.txn = request.at_least if request.as_of is None else request.as_of
        self._projection = request.projection
        if request.where is not None:
            self._projection = with_columns_of(request.where, request.projection)
        # Rows behind these are thrown away, whichever window they are in. From the other end, it is those before them.
        self._enough = None if request.where is not None or request.reverse else request.limit
        self._is_short = self._enough is not None and self._enough <= SHORT_ROWS_MAX

    def tables(self, *, whole: bool = False) -> Iterator[pa.Table]:
        """Yield the rows in order, as Arrow tables of a window each; none is empty.

        `whole` says that all of them will be taken: then there is no use in small windows at the start.
        """
        self._check_open()
        as_of = self._request.as_of
        if as_of is not None:
            self._parts.pins.hold(as_of)
        try:
            yield from self._tables(whole)
        except CancelledError:  # what was to be read ahead, when the store was closed
            self._check_open()
            raise
        finally:
            if as_of is not None:
                self._parts.pins.let_go(as_of)

    def few_rows(self) -> list[tuple[bytes, dict[str, Any]]] | None:
        """Return all rows as dicts, each with its encoded key, if they are few and quick to get one by one."""
        request = self._request
        if self._enough is None or self._enough > SHORT_ROWS or request.as_of is None or request.uncommitted:
            return None
        if not self._projection.is_short:
            return None
        self._check_open()
        self._parts.pins.hold(request.as_of)
        try:
            return self._few_rows(request.as_of, self._enough)
        except (Damaged, Elsewhere, OSError, OverflowError):
            return None  # who reads it by Arrow tells what is wrong, if anything is
        finally:
            self._parts.pins.let_go(request.as_of)

    def _few_rows(self, as_of: int, limit: int) -> list[tuple[bytes, dict[str, Any]]] | None:
        rows: list[tuple[bytes, dict[str, Any]]] = []
        rest: KeyRange | None = self._request.key_range
        while rest is not None and not rest.is_empty and len(rows) < limit:
            self._parts.loader.admit_row(self._table, rest.first)
            view = self._view()
            tablet = view.metadata.tablet_for(rest.first)
            share = rest.intersect(tablet.range)
            assert share is not None, "the tablets cover every row"
            point = ReadPoint(as_of, self._projection, limit - len(rows))
            taken = view.parts.reader.short.take(view, tablet, share, point)
            if taken is None:
                return None
            rows += taken.rows
            if taken.end is not None and len(rows) < limit:
                return None  # nearly all rows there are erased
            rest = after(rest, share, reverse=False)
        return rows

    def count(self) -> int:
        """Return the number of rows, reading no more than it takes to tell."""
        request = self._request
        if request.where is not None or request.limit is not None or request.as_of is None:
            return sum(table.num_rows for table in self.tables(whole=True))
        self._check_open()
        self._parts.pins.hold(request.as_of)
        try:
            return sum(self._counts(request.as_of))
        finally:
            self._parts.pins.let_go(request.as_of)

    def _counts(self, as_of: int) -> Iterator[int]:
        """Yield the numbers of rows of the pieces of the range, as `as_of` shows them."""
        projection = self._projection
        if len(projection.groups) == len(projection.schema.groups):
            projection = replace(projection, outputs=(), is_whole=False)  # the rows are the same without their columns
        rest: KeyRange | None = self._request.key_range
        while rest is not None and not rest.is_empty:
            with self._replaced():
                self._parts.loader.admit(self._table, self._view().metadata.tablet_for(rest.first).range)
                view = self._view()
                tablet = view.metadata.tablet_for(rest.first)
                share = rest.intersect(tablet.range)
                assert share is not None, "the tablets cover every row"
                pieces = list(count_pieces(view, tablet, share, projection, as_of))
            for piece, count in pieces:
                if count is None:
                    read = Scanner(self._parts, self._table, ScanRequest(projection, piece, as_of=as_of))
                    count = sum(table.num_rows for table in read.tables(whole=True))
                yield count
            rest = after(rest, share, reverse=False)

    def _tables(self, whole: bool) -> Iterator[pa.Table]:
        left = self._request.limit
        if left is not None and left <= 0:
            return
        rest: KeyRange | None = self._request.key_range
        # A short scan goes from fold to fold as long as there are some, without what it takes to read ahead.
        while self._is_short and left is not None and rest is not None and not rest.is_empty:
            served = self._read_folded(rest, left)
            if served is None:
                break
            rest = None if served.end is None or served.end == rest.last else KeyRange(served.end, rest.last)
            if served.rows is not None:
                table = served.rows if served.rows.num_rows <= left else served.rows.slice(0, left)
                left -= table.num_rows
                yield table
                if left == 0:
                    return
        if rest is None:
            return
        for found, txn in self._progress(rest, left, whole=whole and left is None):
            self.txn = txn
            table = self._filtered(found)
            if table is None:
                continue
            if left is not None:
                table = table.slice(0, left)
                left -= table.num_rows
            yield table
            if left == 0:
                return

    def _filtered(self, table: pa.Table | None) -> pa.Table | None:
        if table is None:
            return None
        if self._request.where is not None:
            try:
                table = table.filter(self._request.where)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:  # seen by rows only
                raise unusable(error, self._request.where, table.schema) from None
            table = table.select(self._request.projection.arrow_schema.names)
        if not table.num_rows:
            return None
        if self._request.reverse:
            return table.take(pa.array(np.arange(table.num_rows - 1, -1, -1)))
        return table

    def _progress(self, rows: KeyRange, left: int | None, *, whole: bool) -> ScanProgress[_Found]:
        """Begin to read the windows in order, the long ones on other threads before they are asked for."""
        return ScanProgress(
            self._table.id,
            rows,
            reverse=self._request.reverse,
            plan=self._replaced()(self._planner(left if self._is_short else None, whole=whole)),
            read=self._read,
            submit=self._submit,
            ahead_max=self._parts.settings.scan_threads,
            inline_rows=INLINE_ROWS,
            scanners=self._parts.scanners,
            events=self._parts.events,
        )

    def _check_open(self) -> None:
        self._parts.state.check_open()

    def _submit(self, read: Callable[[KeyRange], _Found], window: KeyRange) -> Future[_Found]:
        try:
            return self._parts.pool.submit(read, window)
        except RuntimeError:
            self._check_open()
            raise

    def _txn(self) -> int:
        as_of = self._request.as_of
        if as_of is not None:
            return as_of
        return max(self._request.at_least, self._parts.moments.read_txn(uncommitted=self._request.uncommitted))

    def _read(self, window: KeyRange) -> _Found:
        """Read one window, and say at which txn. Tablets may have changed since it was cut, so it may touch several."""
        with self._replaced():
            self._parts.loader.admit(self._table, window)
            txn, parts = self._newest_parts(window)
        found = [part for part in parts if part is not None]
        if len(found) > 1:
            return pa.concat_tables(found), txn
        return (found[0] if found else None), txn

    def _newest_parts(self, window: KeyRange) -> tuple[int, list[pa.Table | None]]:
        while True:
            txn = self._txn()  # before the view, which so has all of it
            view = self._view()
            point = ReadPoint(txn, self._projection, self._enough)
            reader = view.parts.reader
            try:
                return txn, [reader.read(view, tablet, share, point) for tablet, share in view.tablets_in(window)]
            except HistoryGone:
                if self._txn() == txn:
                    raise  # else it has ended since the txn was looked up

    def _read_folded(self, rest: KeyRange, limit: int) -> Served | None:
        """Read the first rows of a range from the fold that it begins in, if there is one."""
        self._parts.loader.admit_row(self._table, rest.first)
        as_of = self.txn = self._txn()  # before the view, which so has all of it
        view = self._view()
        tablet = view.metadata.tablet_for(rest.first)
        point = ReadPoint(as_of, self._projection, limit)
        reader = view.parts.reader
        with self._replaced():
            found = reader.fold(view, tablet, rest.first, point, is_settled=not self._request.uncommitted)
        if found is None:
            return None
        if len(found.newer) >= COMBINE_BLOCKS_MIN:
            self._parts.flusher.wish_combining(self._table, tablet.id, self._projection.groups[0].id)
        return reader.read_folded(found, rest, point)

    def _view(self) -> TableView:
        """Return the newest view under the schema that the scan began with.

        After a change of the schema that is the last one before it, which has all that the scan may see, unless it
        follows newer commits.
        """
        self._check_open()  # somebody else may own the store by now, and remove its files
        view = self._table.view_under(self._projection.schema.version)
        is_former = view is not None and view is not self._table.view and view.parts is not self._table.view.parts
        if view is None or (is_former and self._request.as_of is None):
            raise self._changed()
        return view

    def _changed(self) -> SchemaChanged:
        return SchemaChanged(f"the schema of {self._table.name!r} was changed since the scan began: begin it again")

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        """Tell files that are gone, with their table or since the schema is a former one, from files that are lost."""
        try:
            yield
        except MissingFile as error:
            if self._table.is_dropped:
                raise UnknownTable(f"the table {self._table.name!r} was dropped while it was scanned") from error
            if self._table.view.parts.version == self._projection.schema.version:
                raise
            raise self._changed() from error

    def _planner(self, short: int | None, *, whole: bool) -> Callable[[KeyRange], tuple[list[Window], KeyRange | None]]:
        """Return what cuts the next tablet of a range into windows, in the direction of the scan.

        It takes the newest view and keeps nothing of it: what is replaced while the scan goes on is not held on to.
        `short` is how many rows are wanted, if they are few.
        """
        reverse = self._request.reverse
        size = self._first_window()

        def plan(rest: KeyRange) -> tuple[list[Window], KeyRange | None]:
            nonlocal size, short
            view = self._view()
            metadata = view.metadata
            tablet = metadata.tablet_before(rest.last) if reverse else metadata.tablet_for(rest.first)
            share = rest.intersect(tablet.range)
            self._parts.loader.admit(self._table, tablet.range)
            assert share is not None, "the tablets cover every row"
            if short is not None:
                window = KeyRange(share.first, self._short_end(view, tablet, share, short))
                short = None if short >= SHORT_ROWS_MAX else short * WINDOW_GROWTH
                return [(window, 0)], after(rest, window, reverse=False)
            sources = self._sources(view, tablet, share)
            marks = sorted(mark for one in sources for mark in self._source_marks(view.parts.reader, one, share))
            largest = self._window_rows(view, tablet, sources)
            if reverse:
                windows = cut(share, marks, min(size, INLINE_ROWS), min(largest, INLINE_ROWS))
                windows.reverse()
            elif whole:
                even = even_window_rows(sum(rows for _, rows in marks), largest, self._parts.settings.scan_threads)
                windows = cut(share, marks, even, even)
            else:
                windows = cut(share, marks, size, largest)
                size = min(largest, size * WINDOW_GROWTH ** len(windows))
            return windows, after(rest, share, reverse=reverse)

        return plan

    def _short_end(self, view: TableView, tablet: TabletMetadata, share: KeyRange, rows: int) -> bytes | None:
        """Return where a window ends in which no source has many more than so many rows, and one about as many.

        A short scan that begins anywhere should not read, merge and throw away the rest of a block.
        """
        reader = view.parts.reader
        ends = [share.last] if share.last is not None else []
        blocks: list[Block] = []
        for one in self._sources(view, tablet, share):
            blocks += one.blocks
            for ref in one.fragments:
                end = reader.fragment(ref).row_after(share.first, rows)
                if end is not None:
                    ends.append(end)
        for block in blocks:
            at = block.lower_bound(share.first) + rows * block.cells_per_row
            if at < len(block):
                ends.append(block.rows[at].as_py())
        # A row of which there are many versions: all of them, and no more.
        return max(min(ends), share.first + b"\0") if ends else None

    def _first_window(self) -> int:
        limit = self._request.limit
        if limit is not None and self._request.where is None:
            return max(FIRST_WINDOW_ROWS, limit)
        return FIRST_WINDOW_ROWS

    def _window_rows(self, view: TableView, tablet: TabletMetadata, sources: Sequence[Sources]) -> int:
        """Return how many records a window may have: fewer where rows are large, or are merged."""
        rows = size = 0
        for state in tablet.groups:
            rows += sum(ref.rows for ref in state.fragments)
            size += sum(ref.bytes for ref in state.fragments)
        for memory in view.memory.get(tablet.id, {}).values():
            rows += sum(len(block) for block in memory.blocks)
            size += memory.bytes
        row_bytes = max(1, size // max(1, rows))
        settings = self._parts.settings
        is_merged = any(lie_on_each_other(one.spans()) for one in sources)
        batches = WINDOW_BATCHES_MERGED if is_merged else WINDOW_BATCHES
        bytes_max = settings.scan_window_bytes * batches // WINDOW_BATCHES
        return max(1, min(batches * settings.scan_batch_rows, bytes_max // row_bytes))

    def _sources(self, view: TableView, tablet: TabletMetadata, share: KeyRange) -> list[Sources]:
        """Return what there is to read in each group."""
        as_of = self._txn()
        found = [view.sources(tablet, group.id, share, as_of) for group in self._projection.groups]
        for group, sources in zip(self._projection.groups, found, strict=True):
            if len(sources.blocks) >= COMBINE_BLOCKS_MIN:
                self._parts.flusher.wish_combining(self._table, tablet.id, group.id)
        return found

    def _source_marks(self, reader: Reader, sources: Sources, share: KeyRange) -> Iterator[tuple[bytes, int]]:
        """Yield rows of the sources, each with the number of records from it on to the next of its source."""
        for block in sources.blocks:
            for begin in range(0, len(block), MEMORY_STRIDE):
                yield block.rows[begin].as_py(), min(MEMORY_STRIDE, len(block) - begin)
        for ref in sources.fragments:
            fragment = reader.fragment(ref)
            begin, end = fragment.blocks_of(share.first, share.last)
            yield from zip(fragment.first_rows[begin:end], fragment.block_rows[begin:end], strict=True)
