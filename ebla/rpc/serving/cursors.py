"""Scans under way: what a client reads in segments goes on where the last one ended.

    begin, number 0 --> rows, rows, ...            the iterator stays here, paused
    number 1        --> the next rows              found by name and number
    number 1 again, or the cursor is gone          the scan is begun anew, at its txn after the last row that was given

So a cursor only spares work: it may be dropped at any time, by a restart, by its age or because there are too many, and
no row is missing or comes twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from ebla.rpc.wire.arrow_bytes import rows_to_bytes
from ebla.rpc.wire.messages import Segment
from ebla.service.service import RowStream, TableService
from ebla.timing import now_seconds

__all__ = ["Cursors", "segment_of"]

CURSORS_MAX = 256
# So many segments at most are made before they are asked for.
AHEAD_MAX = 16
IDLE_SECONDS = 60.0


@dataclass(slots=True)
class _Cursor:
    stream: RowStream
    tables: Iterator[pa.Table]
    table: str  # its id: who goes on with a scan names the table that it may read
    number: int  # of the segment that comes next
    used_at_seconds: float
    ahead: Future[Segment] | None = None  # that segment, if it is made already


class Cursors:
    """The scans of all clients of one server. Safe to use from several threads."""

    def __init__(self) -> None:
        # Set once.
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="ebla-rpc-ahead")
        # Guarded by _lock. Whoever uses a cursor takes it out meanwhile.
        self._cursors: dict[str, _Cursor] = {}

    def read(
        self,
        table: TableService,
        name: str,
        number: int,
        bytes_wanted: int,
        begin: Callable[[], RowStream],
        whole: bool,
    ) -> Segment:
        """Return the next rows of a scan, which `begin` begins if it is not under way, or not at that number."""
        with self._lock:
            cursor = self._cursors.pop(name, None)
        if cursor is None or cursor.number != number or cursor.table != table.id:
            _close(cursor)
            stream = begin()
            cursor = _Cursor(stream, stream.tables(whole=whole), table.id, number, 0.0)
        if cursor.ahead is not None:
            segment = cursor.ahead.result()
        else:
            segment = segment_of(table, cursor.stream, cursor.tables, bytes_wanted)
        if segment.is_last:
            _close(cursor)
        else:
            cursor.number, cursor.used_at_seconds = number + 1, now_seconds()
            cursor.ahead = self._begun_ahead(table, cursor, bytes_wanted) if number else None
            self._keep(name, cursor)
        return segment

    def _begun_ahead(self, table: TableService, cursor: _Cursor, bytes_wanted: int) -> Future[Segment] | None:
        """Have the next segment made while this one is on its way, unless too many wait for somebody already."""
        if sum(kept.ahead is not None for kept in list(self._cursors.values())) >= AHEAD_MAX:
            return None
        try:
            return self._pool.submit(segment_of, table, cursor.stream, cursor.tables, bytes_wanted)
        except RuntimeError:  # the server is closing
            return None

    def end(self, name: str) -> None:
        """Nobody goes on with a scan."""
        with self._lock:
            cursor = self._cursors.pop(name, None)
        _close(cursor)

    def close(self) -> None:
        """End all scans."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            cursors, self._cursors = self._cursors, {}
        for cursor in cursors.values():
            _close(cursor)

    def _keep(self, name: str, cursor: _Cursor) -> None:
        too_old = now_seconds() - IDLE_SECONDS
        dropped = []
        with self._lock:
            self._cursors[name] = cursor
            # The longest unused come first.
            for other, kept in list(self._cursors.items()):
                if len(self._cursors) <= CURSORS_MAX and kept.used_at_seconds > too_old:
                    break
                dropped.append(self._cursors.pop(other))
        for old in dropped:
            _close(old)


def segment_of(table: TableService, stream: RowStream, tables: Iterator[pa.Table], bytes_wanted: int) -> Segment:
    """Return the next rows as one segment of about the size that is wanted, or more if they come in larger pieces."""
    found: list[pa.Table] = []
    size = 0
    is_last = False
    while size < bytes_wanted:
        part = next(tables, None)
        if part is None:
            is_last = True
            break
        found.append(part)
        size += part.nbytes
    if not found:
        return Segment(stream.txn, None, None, is_last)
    rows = found[0] if len(found) == 1 else pa.concat_tables(found)
    names = stream.projection.schema.key_names
    last = rows.slice(rows.num_rows - 1).select(list(range(len(names))))
    codec = table.codec
    (row,) = codec.encode_arrays([column.combine_chunks() for column in last.columns])
    return Segment(stream.txn, rows_to_bytes(rows), row.as_py(), is_last)


def _close(cursor: _Cursor | None) -> None:
    """Let go of what a scan holds, once nobody reads it any more."""
    close = getattr(cursor.tables, "close", None) if cursor is not None else None
    if cursor is None or close is None:
        return
    if cursor.ahead is None:
        close()
    elif not cursor.ahead.cancel():
        cursor.ahead.add_done_callback(lambda _: close())
