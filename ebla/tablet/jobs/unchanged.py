"""Whether rows that a bulk job writes have changed since the job read them.

    records newer than `since`         in memory, in fragments, as range erasures: few, for a job reads shortly before
       |
    those among them whose rows the files of the job have, too  -->  Conflict that names one

What is looked at is what was written since, not what the job writes: a job of many rows on a table that nobody else
writes costs nothing. It is asked while nothing can be committed (`bulk_driver`), so that the answer stays true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import Conflict
from ebla.metadata.values.table_metadata import FragmentRef, GroupState
from ebla.model.ranges import KeyRange, successor
from ebla.storage.merge.erasure_cover import TXN_MAX, Erasure
from ebla.storage.merge.memory import Memory
from ebla.storage.record.records import ROW, TXN
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.view import TableView
from ebla.tablet.tables.table_state import TableState

__all__ = ["check_rows_unchanged"]


def check_rows_unchanged(table: TableState, written: Sequence[FragmentRef], since: int) -> None:
    """Raise `Conflict` if a row that one of these files has was changed after `since`, in any of its groups."""
    view, reader = table.view, table.reader
    try:
        for ref in written:
            span = KeyRange(ref.first, successor(ref.last))
            for newer in _newer_rows(view, reader, span, since):
                both = _common(reader, ref, newer)
                if len(both):
                    raise _changed(table, both[0].as_py(), since)
            for erased in _newer_erasures(view, span, since):
                inside = span.intersect(KeyRange(erased.first, erased.last))
                if inside is not None and len(_rows_in(reader, ref, inside)):
                    raise Conflict(
                        f"rows of {table.name!r} were or may have been erased after txn {since}: read it again"
                    )
    finally:
        reader.forget([ref.file for ref in written])  # opened without the txn that they are about to get


def _common(reader: Reader, ref: FragmentRef, rows: pa.Array) -> pa.Array:
    """Return those of some sorted rows that a file has."""
    found = _rows_in(reader, ref, KeyRange(rows[0].as_py(), successor(rows[-1].as_py())))
    return found.filter(pc.is_in(found, value_set=rows))


def _rows_in(reader: Reader, ref: FragmentRef, span: KeyRange) -> pa.Array:
    """Return the rows of a file in a range, past the cache: the file is part of no table yet."""
    run = reader.fragment(ref).read_range(span.first, span.last, [ROW])
    rows = None if run is None else run.column(ROW)
    return pa.array([], pa.binary()) if rows is None else rows


def _states(view: TableView, span: KeyRange) -> Iterator[tuple[GroupState, Memory, KeyRange]]:
    for tablet, share in view.tablets_in(span):
        for state in tablet.groups:
            yield state, view.memory_of(tablet.id, state.group), share


def _newer_rows(view: TableView, reader: Reader, span: KeyRange, since: int) -> Iterator[pa.Array]:
    """Yield rows in `span` that have records after `since`, sorted and each once, as they lie in one place."""
    for state, memory, share in _states(view, span):
        for block in memory.blocks:
            found = block.slice_newer(share.first, share.last, since, TXN_MAX) if block.txn_max > since else None
            if found is not None:
                yield _distinct(found.records.column(ROW))
        for ref in state.fragments:
            counted = ref.within(share)
            if ref.txn_max <= since or counted is None:
                continue
            run = reader.fragment(ref).read_range(counted.first, counted.last, [ROW, TXN])
            if run is None:
                continue
            rows = run.column(ROW)
            assert rows is not None
            newer = run.txns() > since
            if newer.any():
                yield _distinct(rows if newer.all() else rows.filter(pa.array(newer)))


def _newer_erasures(view: TableView, span: KeyRange, since: int) -> Iterator[Erasure]:
    """Yield range erasures after `since`; where history has gone so far, everything may have been erased."""
    for state, memory, share in _states(view, span):
        known: list[Erasure] = [*memory.erasures, *state.erasures]
        yield from (one for one in known if one.txn > since)
        if state.floor_txn > since:
            yield _Unknown(share.first, share.last, state.floor_txn)


class _Unknown:
    """A range in which nobody can say what happened since."""

    def __init__(self, first: bytes, last: bytes | None, txn: int) -> None:
        self.first, self.last, self.txn = first, last, txn


def _distinct(rows: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return sorted rows, each once."""
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    if len(rows) < 2:
        return rows
    differs = pc.not_equal(rows.slice(1), rows.slice(0, len(rows) - 1)).to_numpy(zero_copy_only=False)
    return rows.filter(pa.array(np.append(True, differs)))


def _changed(table: TableState, row: bytes, since: int) -> Conflict:
    key = table.codec.decode(row)
    shown = key[0] if len(key) == 1 else key
    return Conflict(f"row {shown!r} of {table.name!r} changed after txn {since}: read it again")
