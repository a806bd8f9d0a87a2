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
from dataclasses import dataclass

import pyarrow as pa

from ebla.rpc.wire.arrow_bytes import rows_to_bytes
from ebla.rpc.wire.messages import Segment
from ebla.service.service import RowStream, TableService
from ebla.timing import now_seconds

__all__ = ["Cursors", "segment_of"]

CURSORS_MAX = 256
IDLE_SECONDS = 60.0


@dataclass(slots=True)
class _Cursor:
    stream: RowStream
    tables: Iterator[pa.Table]
    number: int  # of the segment that comes next
    used_at_seconds: float


class Cursors:
    """The scans of all clients of one server. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
        if cursor is None or cursor.number != number:
            _close(cursor)
            stream = begin()
            cursor = _Cursor(stream, stream.tables(whole=whole), number, 0.0)
        segment = segment_of(table, cursor.stream, cursor.tables, bytes_wanted)
        if segment.is_last:
            _close(cursor)
        else:
            cursor.number, cursor.used_at_seconds = number + 1, now_seconds()
            self._keep(name, cursor)
        return segment

    def end(self, name: str) -> None:
        """Nobody goes on with a scan."""
        with self._lock:
            cursor = self._cursors.pop(name, None)
        _close(cursor)

    def close(self) -> None:
        """End all scans."""
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
    close = getattr(cursor.tables, "close", None) if cursor is not None else None
    if close is not None:
        close()
