"""Reading rows by key: one as a dict, which the row cache may keep, or many as an Arrow table."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import HistoryGone, RequestError
from ebla.model.order import is_strictly_sorted, sort_rows
from ebla.model.projection import Projection
from ebla.retry import CROWDS
from ebla.rows.row import Row, beyond_python
from ebla.tablet.engine import TabletStore
from ebla.tablet.read.answers import ReadPoint
from ebla.tablet.read.row_cache import row_bytes
from ebla.tablet.read.view import TableView
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.row_admission import RowMutation
from ebla.tablet.write_path import schema_changed

__all__ = ["RowReading", "at_newest", "one_array", "sorted_distinct"]

FOUND = "_found"
# From so many keys on, it is worth a look whether they stand one after the other in a file.
NEIGHBOURS_MIN = 32

_Answer = TypeVar("_Answer")

# Of bits and not by pa.repeat, with which pyarrow imports pandas where that is installed.
_ALL_FOUND = pa.Array.from_buffers(pa.bool_(), 4096, [None, pa.py_buffer(bytes([255]) * 512)])


class RowReading:
    """Reads rows of one table at a txn. Rows and keys are encoded here. Safe to use from several threads."""

    def __init__(self, store: TabletStore, state: TableState) -> None:
        # Set once.
        self._store = store
        self._state = state

    def newest(self, encoded: bytes, txn: int) -> Row | None:
        """Return a row with all its columns at the newest commit, and keep it if that is worth it."""
        view = self._state.view
        parts = view.parts
        blocks = self._store.cache
        before = blocks.filled
        row = self._read_from(view, encoded, parts.everything, txn)
        if row is not None and parts.row_cache.wants(encoded, was_read=blocks.filled != before):
            slot = self._store.recent.slot_of(encoded, self._state.salt)
            kept = copy.deepcopy(dict(row)) if parts.has_nested else dict(row)
            parts.row_cache.put(
                encoded, kept, row_bytes(kept, names_too=parts.has_cells, is_flat=not parts.has_nested), slot, txn
            )
        return row

    def keep_changed(self, mutation: RowMutation, txn: int) -> None:
        """Keep a row as its commit at `txn` has left it, if that is known without reading it. The commit is visible."""
        parts = self._state.view.parts
        if parts.version != mutation.schema_version or parts.expires or mutation.has_cells:
            return
        was = parts.row_cache.taken_back(mutation.row, txn)
        if was is None and not mutation.is_whole:
            return
        row = {} if was is None and parts.is_in_order(mutation.names) else dict(was or parts.no_values)
        try:
            if mutation.given is None:
                row.update(zip(parts.schema.key_names, parts.codec.decode(mutation.row), strict=True))
                row.update((parts.column_names[field_id], value) for field_id, value in mutation.cells().items())
            else:
                row.update(zip(mutation.names, mutation.given, strict=True))
        except (OverflowError, ValueError, RequestError):
            return  # Arrow has times that Python has not: whoever reads the row is told so
        slot = self._store.recent.slot_of(mutation.row, self._state.salt)
        parts.row_cache.put(
            mutation.row, row, row_bytes(row, names_too=parts.has_cells, is_flat=not parts.has_nested), slot, txn
        )

    def one_now(self, encoded: bytes, txn: int) -> Row | None:
        """Return a row with all its columns at `txn`, which was the newest a moment ago, committed or not."""
        cached = self.cached(encoded, txn)
        if cached is None:
            return self.one(encoded, None, txn)
        row = Row(copy.deepcopy(cached) if self._state.view.parts.has_nested else cached)
        row.txn = txn
        return row

    def cached(self, encoded: bytes, txn: int) -> dict[str, Any] | None:
        """Return a row as it is at `txn`, which was the newest a moment ago, committed or not, if it is cached.

        Whoever changes a row takes it out before: one that is there, and that nobody has changed since, is as it was.
        It is not the caller's to change.
        """
        cached = self._state.view.parts.row_cache.rows.get(encoded)
        if cached is None:
            return None
        recent = self._store.recent
        return cached if recent.newest(recent.slot_of(encoded, self._state.salt)) <= txn else None

    def one(self, encoded: bytes, columns: Sequence[str] | None, txn: int, versions: int = 1) -> Row | None:
        """Return a row with some of its columns, or None if there is none; several `versions` are lists of them."""
        view = self._state.view
        return self._read_from(view, encoded, view.parts.projection(columns, versions), txn)

    def _read_from(self, view: TableView, encoded: bytes, projection: Projection, txn: int) -> Row | None:
        if not self._state.door.is_open:
            self._store.admit_row(self._state, encoded)
        parts = view.parts
        point = ReadPoint(txn, projection)
        try:
            values = parts.reader.rows.get(view, encoded, point)
            if values is None:
                return None
            if projection.plain:
                row = Row(zip(parts.key_names, parts.codec.decode(encoded), strict=True))
                row.update(values)
            else:
                row = Row(values)
        except OverflowError as reason:
            raise beyond_python(reason) from None
        row.txn = txn
        return row

    def asked(self, asked: pa.Array, columns: Sequence[str] | None, txn: int) -> pa.Table:
        """Return rows in the order asked, with a column that says which were found; see `Table.get_many`."""
        codec = self._state.codec
        if len(asked) >= NEIGHBOURS_MIN and self._state.door.is_open:
            view = self._state.view  # after the txn, so that it has everything up to it
            point = ReadPoint(txn, view.parts.projection(columns))
            neighbours = view.parts.reader.rows.read_neighbours(view, asked, point)
            if neighbours is not None:
                return pa.Table.from_batches([neighbours]).append_column(FOUND, _all_found(len(asked)))
        rows, back = asked, None
        if not is_strictly_sorted(asked):
            order, repeats = sort_rows(asked)
            rows = asked.take(pa.array(order[~repeats]))
            back = np.empty(len(order), dtype=np.int64)
            back[order] = np.cumsum(~repeats) - 1
        found = self.many(rows, columns, txn)
        if found.num_rows == len(rows):
            if back is not None:
                found = found.combine_chunks().take(pa.array(back))
            return found.append_column(FOUND, _all_found(len(asked)))
        # The columns of the key come first, whatever they are called by now.
        keys = codec.decode_arrays(asked)
        there = codec.encode_arrays([one_array(found.column(at)) for at in range(len(keys))])
        places = pc.index_in(asked, value_set=there)
        answer = found.take(places)
        for at, column in enumerate(keys):
            answer = answer.set_column(at, answer.schema.field(at), column)
        return answer.append_column(FOUND, pc.is_valid(places))

    def many(
        self, rows: pa.Array, columns: Sequence[str] | None, txn: int, schema_version: int | None = None
    ) -> pa.Table:
        """Return the rows that are there of many, which are sorted and each once.

        With a version, only under that version of the schema.
        """
        view = self._state.view
        if schema_version not in (None, view.parts.version):
            raise schema_changed(self._state.name)
        projection = view.parts.projection(columns)
        if not self._state.door.is_open:
            self._store.loader.admit_rows(self._state, rows)
        batches = view.parts.reader.rows.read_many(view, rows, ReadPoint(txn, projection))
        return pa.Table.from_batches(batches, projection.arrow_schema)


def at_newest(choose: Callable[[], int], read: Callable[[int], _Answer]) -> tuple[int, _Answer]:
    """Read at the txn that `choose` returns, the newest; return it and what was read.

    Where no history is kept, it may end between the two, with commits that came meanwhile: then there is a newer one.
    """
    for _ in CROWDS:
        txn = choose()
        with contextlib.suppress(HistoryGone):
            return txn, read(txn)
    txn = choose()
    return txn, read(txn)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def sorted_distinct(rows: pa.Array) -> pa.Array:
    """Return rows in order, each once."""
    order, repeats = sort_rows(rows)
    return rows.take(pa.array(order[~repeats]))


def _all_found(count: int) -> pa.Array:
    return _ALL_FOUND.slice(0, count) if count <= len(_ALL_FOUND) else pa.repeat(True, count)
