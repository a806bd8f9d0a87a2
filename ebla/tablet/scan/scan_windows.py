"""The windows of a scan: a range cut, tablet by tablet, into pieces that are read and merged each on its own.

    tablet   |---------------------------------|------------------ ...
    window   |--|-----|-----------|------------|-----| ...       small ones first, so that a short scan is quick

Windows are cut where fragments have their blocks, and of a short scan where it has enough rows. A window is read from
the newest view there is, whichever it was cut by: a flush or a split in between changes nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TypeAlias

import pyarrow as pa

from ebla.errors import HistoryGone
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.model.ranges import KeyRange
from ebla.storage.merge.memory import COMBINE_BLOCKS_MIN
from ebla.storage.record.records import Block
from ebla.tablet.read.answers import ReadPoint
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.view import Sources, TableView
from ebla.tablet.read.windows import WINDOW_GROWTH, Window, after, cut, even_window_rows, lie_on_each_other
from ebla.tablet.scan.scanned_table import ScannedTable

__all__ = ["SHORT_ROWS_MAX", "FoundRows", "ScanWindows"]

FIRST_WINDOW_ROWS = 1_024
# Where sources lie on each other a window is there several times over while it is merged, so it is smaller.
WINDOW_BATCHES = 4
WINDOW_BATCHES_MERGED = 2
INLINE_ROWS = 16_384
MEMORY_STRIDE = 4_096
# A scan of at most so many rows is cut exactly; a longer one at the first rows of blocks.
SHORT_ROWS_MAX = 2_048

FoundRows: TypeAlias = tuple[pa.Table | None, int]
"""The rows of a window, None if it has none, and the txn that they were read at."""


class ScanWindows:
    """Cuts windows, in the direction of the scan, and reads them. One thread plans; any may read.

    `short` is how many rows are wanted, if they are few. Rows behind the first `enough` of a window are not wanted.
    `whole` says that all rows will be taken: then there is no use in small windows at the start.
    """

    def __init__(self, scanned: ScannedTable, *, short: int | None, enough: int | None, whole: bool) -> None:
        # Set once.
        self._scanned = scanned
        self._parts = scanned.parts
        self._enough = enough
        self._whole = whole
        # Used by the planning thread alone: how many rows the next window has.
        self._short = short
        self._size = FIRST_WINDOW_ROWS
        request = scanned.request
        if request.limit is not None and request.where is None:
            self._size = max(FIRST_WINDOW_ROWS, request.limit)

    @property
    def inline_rows(self) -> int:
        """How many records a window has at most that is not worth another thread."""
        return INLINE_ROWS

    # --- planning ---

    def plan(self, rest: KeyRange) -> tuple[list[Window], KeyRange | None]:
        """Return the windows of the first tablet of a range, and what is left of the range after it."""
        with self._scanned.telling_what_is_gone():
            return self._plan(rest, self._scanned.request.reverse)

    def _plan(self, rest: KeyRange, reverse: bool) -> tuple[list[Window], KeyRange | None]:
        view = self._scanned.view()
        metadata = view.metadata
        tablet = metadata.tablet_before(rest.last) if reverse else metadata.tablet_for(rest.first)
        share = rest.intersect(tablet.range)
        self._scanned.admit(tablet.range)
        assert share is not None, "the tablets cover every row"
        if self._short is not None:
            window = KeyRange(share.first, self._short_end(view, tablet, share, self._short))
            self._short = None if self._short >= SHORT_ROWS_MAX else self._short * WINDOW_GROWTH
            return [(window, 0)], after(rest, window, reverse=False)
        sources = self._sources(view, tablet, share)
        marks = sorted(mark for one in sources for mark in _marks(view.parts.reader, one, share))
        largest = self._window_rows(view, tablet, sources)
        if reverse:
            windows = cut(share, marks, min(self._size, INLINE_ROWS), min(largest, INLINE_ROWS))
            windows.reverse()
        elif self._whole:
            even = even_window_rows(sum(rows for _, rows in marks), largest, self._parts.settings.scan_threads)
            windows = cut(share, marks, even, even)
        else:
            windows = cut(share, marks, self._size, largest)
            self._size = min(largest, self._size * WINDOW_GROWTH ** len(windows))
        return windows, after(rest, share, reverse=reverse)

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
        groups, as_of = self._scanned.projection.groups, self._scanned.txn()
        found = [view.sources(tablet, group.id, share, as_of) for group in groups]
        for group, sources in zip(groups, found, strict=True):
            if len(sources.blocks) >= COMBINE_BLOCKS_MIN:
                self._parts.flusher.wish_combining(self._scanned.table, tablet.id, group.id)
        return found

    # --- reading ---

    def read(self, window: KeyRange) -> FoundRows:
        """Read one window, and say at which txn. Tablets may have changed since it was cut, so it may touch several."""
        with self._scanned.telling_what_is_gone():
            self._scanned.admit(window)
            txn, parts = self._newest_parts(window)
        found = [part for part in parts if part is not None]
        if len(found) > 1:
            return pa.concat_tables(found), txn
        return (found[0] if found else None), txn

    def read_ahead(self, window: KeyRange) -> Future[FoundRows]:
        """Have one window read by another thread."""
        try:
            return self._parts.pool.submit(self.read, window)
        except RuntimeError:
            self._parts.state.check_open()
            raise

    def _newest_parts(self, window: KeyRange) -> tuple[int, list[pa.Table | None]]:
        while True:
            txn = self._scanned.txn()
            view = self._scanned.view()
            point = ReadPoint(txn, self._scanned.projection, self._enough)
            reader = view.parts.reader
            try:
                return txn, [reader.read(view, tablet, share, point) for tablet, share in view.tablets_in(window)]
            except HistoryGone:
                if self._scanned.txn() == txn:
                    raise  # else it has ended since the txn was looked up


def _marks(reader: Reader, sources: Sources, share: KeyRange) -> Iterator[tuple[bytes, int]]:
    """Yield rows of the sources, each with the number of records from it on to the next of its source."""
    for block in sources.blocks:
        for begin in range(0, len(block), MEMORY_STRIDE):
            yield block.rows[begin].as_py(), min(MEMORY_STRIDE, len(block) - begin)
    for ref in sources.fragments:
        fragment = reader.fragment(ref)
        begin, end = fragment.blocks_of(share.first, share.last)
        yield from zip(fragment.first_rows[begin:end], fragment.block_rows[begin:end], strict=True)
