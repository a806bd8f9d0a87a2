"""Scanning: a range of a table, at one txn, as batches in key order.

    window   |--|-----|-----------|------------|-----| ...       cut and read by `scan_windows`
    threads     1     1         2            1                   long ones ahead, in order: `scan_progress`

Every window takes the newest view of the table and reads it at the scan's txn. So a flush or a split in the middle of a
scan changes nothing for it, nothing replaced is held on to, and a scan can be resumed anywhere from its txn and the
last row it gave. Short scans have ways of their own, tried first: row by row, and from folds.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.model.filters import unusable
from ebla.model.ranges import KeyRange
from ebla.storage.lookup.lookup_format import Damaged
from ebla.storage.lookup.row_values import Elsewhere
from ebla.storage.merge.memory import COMBINE_BLOCKS_MIN
from ebla.tablet.read.answers import ReadPoint
from ebla.tablet.read.counting import count_pieces
from ebla.tablet.read.reader import Served
from ebla.tablet.read.short_rows import SHORT_ROWS_MAX as SHORT_ROWS
from ebla.tablet.read.windows import after
from ebla.tablet.scan.scan_parts import ScanParts
from ebla.tablet.scan.scan_progress import ScanProgress
from ebla.tablet.scan.scan_windows import SHORT_ROWS_MAX, FoundRows, ScanWindows
from ebla.tablet.scan.scanned_table import ScannedTable, ScanRequest
from ebla.tablet.tables.table_state import TableState

__all__ = ["ScanRequest", "Scanner"]


class Scanner:
    """Produces the rows of one scan. Use it from one thread at a time."""

    def __init__(self, parts: ScanParts, table: TableState, request: ScanRequest) -> None:
        self._parts = parts
        self._request = request
        self._scanned = ScannedTable(parts, table, request)
        # Of what was given last; before that, where the scan begins. The reading thread alone changes it.
        self.txn = request.at_least if request.as_of is None else request.as_of
        # Rows behind these are thrown away, whichever window they are in. From the other end, it is those before them.
        self._enough = None if request.where is not None or request.reverse else request.limit
        self._is_short = self._enough is not None and self._enough <= SHORT_ROWS_MAX

    def tables(self, *, whole: bool = False) -> Iterator[pa.Table]:
        """Yield the rows in order, as Arrow tables of a window each; none is empty.

        `whole` says that all of them will be taken: then there is no use in small windows at the start.
        """
        self._parts.state.check_open()
        as_of = self._request.as_of
        if as_of is not None:
            self._parts.pins.hold(as_of)
        try:
            yield from self._tables(whole)
        except CancelledError:  # what was to be read ahead, when the store was closed
            self._parts.state.check_open()
            raise
        finally:
            if as_of is not None:
                self._parts.pins.let_go(as_of)

    def few_rows(self) -> list[tuple[bytes, dict[str, Any]]] | None:
        """Return all rows as dicts, each with its encoded key, if they are few and quick to get one by one."""
        request = self._request
        if self._enough is None or self._enough > SHORT_ROWS or request.as_of is None or request.uncommitted:
            return None
        if not self._scanned.projection.is_short:
            return None
        self._parts.state.check_open()
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
            self._scanned.admit_row(rest.first)
            view = self._scanned.view()
            tablet = view.metadata.tablet_for(rest.first)
            share = rest.intersect(tablet.range)
            assert share is not None, "the tablets cover every row"
            point = ReadPoint(as_of, self._scanned.projection, limit - len(rows))
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
        self._parts.state.check_open()
        self._parts.pins.hold(request.as_of)
        try:
            return sum(self._counts(request.as_of))
        finally:
            self._parts.pins.let_go(request.as_of)

    def _counts(self, as_of: int) -> Iterator[int]:
        """Yield the numbers of rows of the pieces of the range, as `as_of` shows them."""
        projection = self._scanned.projection
        if len(projection.groups) == len(projection.schema.groups):
            projection = replace(projection, outputs=(), is_whole=False)  # the rows are the same without their columns
        rest: KeyRange | None = self._request.key_range
        while rest is not None and not rest.is_empty:
            with self._scanned.telling_what_is_gone():
                self._scanned.admit(self._scanned.view().metadata.tablet_for(rest.first).range)
                view = self._scanned.view()
                tablet = view.metadata.tablet_for(rest.first)
                share = rest.intersect(tablet.range)
                assert share is not None, "the tablets cover every row"
                pieces = list(count_pieces(view, tablet, share, projection, as_of))
            for piece, count in pieces:
                if count is None:
                    read = Scanner(self._parts, self._scanned.table, ScanRequest(projection, piece, as_of=as_of))
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

    def _progress(self, rows: KeyRange, left: int | None, *, whole: bool) -> ScanProgress[FoundRows]:
        """Begin to read the windows in order, the long ones on other threads before they are asked for."""
        return ScanProgress(
            self._scanned.table.id,
            rows,
            reverse=self._request.reverse,
            windows=ScanWindows(
                self._scanned, short=left if self._is_short else None, enough=self._enough, whole=whole
            ),
            ahead_max=self._parts.settings.scan_threads,
            scanners=self._parts.scanners,
            events=self._parts.events,
        )

    def _read_folded(self, rest: KeyRange, limit: int) -> Served | None:
        """Read the first rows of a range from the fold that it begins in, if there is one."""
        self._scanned.admit_row(rest.first)
        as_of = self.txn = self._scanned.txn()
        view = self._scanned.view()
        tablet = view.metadata.tablet_for(rest.first)
        point = ReadPoint(as_of, self._scanned.projection, limit)
        reader = view.parts.reader
        with self._scanned.telling_what_is_gone():
            found = reader.fold(view, tablet, rest.first, point, is_settled=not self._request.uncommitted)
        if found is None:
            return None
        if len(found.newer) >= COMBINE_BLOCKS_MIN:
            self._parts.flusher.wish_combining(self._scanned.table, tablet.id, self._scanned.projection.groups[0].id)
        return reader.read_folded(found, rest, point)
