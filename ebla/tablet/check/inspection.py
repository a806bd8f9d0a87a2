"""Inspection of a fragment: every page is read, and what the file holds is held against what is said about it.

    bytes      page checksums, and the end of the file by the checksum that METADATA has of it
    order      rows ascending; of one row, cells ascending and then the newest first; blocks begin where the footer says
    keys       decode to the key columns beside them, and encode back
    promises   rows, key range, txn range, "one record per row", "no erasures", "no partial records": the readers rely
               on each of them, and skip work where they hold

What is found is a list of sentences, empty for a fragment that is as it should be. Memory is bounded: a few blocks are
read at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import EblaError
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.keys import KeyCodec
from ebla.model.order import Mask
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN

__all__ = ["BlockInspector", "headings", "inspect"]

ROWS_AT_ONCE = 131_072
PROBLEMS_MAX = 20


def inspect(fragment: Fragment, ref: FragmentRef, codec: KeyCodec) -> list[str]:
    """Read all of a fragment; return what is wrong with it, if anything. Damage of its bytes is raised."""
    problems = list(headings(fragment, ref))
    inside = BlockInspector(fragment, ref, codec)
    for begin, end in _portions(fragment.block_rows):
        problems += inside.look(begin, end)
        if len(problems) >= PROBLEMS_MAX:
            return [*problems[:PROBLEMS_MAX], "and more: the rest was not looked at"]
    return problems + inside.close()


def headings(fragment: Fragment, ref: FragmentRef) -> Iterator[str]:
    """Compare what the footer says with the reference."""
    footer = fragment.footer
    for what, said, known in (
        ("rows", footer.rows, ref.rows),
        ("first row", footer.first, ref.first),
        ("last row", footer.last, ref.last),
        ("unique", footer.unique, ref.unique),
        ("erasures", footer.has_erasures, ref.has_erasures),
        ("partial records", footer.has_partial, ref.has_partial),
    ):
        if said != known:
            yield f"{what}: its footer says {said!r}, METADATA {known!r}"
    if sum(footer.block_rows) != footer.rows:
        yield f"its blocks have {sum(footer.block_rows)} records, and the footer says {footer.rows}"
    if ref.txn is None and (footer.txn_min, footer.txn_max) != (ref.txn_min, ref.txn_max):
        yield (f"txns: its footer says {footer.txn_min} to {footer.txn_max}, METADATA {ref.txn_min} to {ref.txn_max}")


def _portions(block_rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    begin = held = 0
    for number, rows in enumerate(block_rows):
        held += rows
        if held >= ROWS_AT_ONCE:
            yield begin, number + 1
            begin, held = number + 1, 0
    if begin < len(block_rows):
        yield begin, len(block_rows)


class BlockInspector:
    """Looks at the records of a file, portion by portion."""

    def __init__(self, fragment: Fragment, ref: FragmentRef, codec: KeyCodec) -> None:
        self._fragment = fragment
        self._ref = ref
        self._codec = codec
        self._names = sorted(fragment.names)
        self._last: pa.Table | None = None  # the last record of the portion before
        self._txn_min: int | None = None
        self._txn_max: int | None = None

    def look(self, begin: int, end: int) -> list[str]:
        """Return what is wrong with blocks begin to end."""
        fragment, ref = self._fragment, self._ref
        records = fragment.read_blocks(begin, end, self._names)
        rows = records.column(ROW)
        problems = []
        starts = np.cumsum([0, *fragment.block_rows[begin:end]])
        if records.num_rows != starts[-1]:
            return [f"blocks {begin} to {end - 1} have {records.num_rows} records instead of {starts[-1]}"]
        firsts = rows.take(pa.array(starts[:-1])).to_pylist()
        if firsts != list(fragment.first_rows[begin:end]):
            problems.append(f"a block from {begin} to {end - 1} does not begin with the row that the footer says")
        if begin == 0 and firsts[0] != ref.first:
            problems.append(f"its first row is {firsts[0]!r}, not {ref.first!r}")
        if end == len(fragment.block_rows) and rows[-1].as_py() != ref.last:
            problems.append(f"its last row is {rows[-1].as_py()!r}, not {ref.last!r}")
        joined = records if self._last is None else pa.concat_tables([self._last, records])
        problems += _disorder(joined, ref)
        problems += self._promises(records)
        problems += self._keys(records)
        self._last = records.slice(records.num_rows - 1)
        return problems

    def _promises(self, records: pa.Table) -> Iterator[str]:
        names, ref = records.schema.names, self._ref
        if TXN in names:
            bounds = pc.min_max(records.column(TXN)).as_py()
            self._txn_min = bounds["min"] if self._txn_min is None else min(self._txn_min, bounds["min"])
            self._txn_max = bounds["max"] if self._txn_max is None else max(self._txn_max, bounds["max"])
        elif ref.txn is None:
            yield "its records have no txn, and METADATA has none for them"
        if ERASED in names and not ref.has_erasures and pc.any(records.column(ERASED)).as_py():
            yield "it has erasures, and METADATA says that it has none"
        if SET in names and not ref.has_partial and records.column(SET).null_count < records.num_rows:
            yield "it has partial records, and METADATA says that it has none"

    def _keys(self, records: pa.Table) -> Iterator[str]:
        rows = records.column(ROW).combine_chunks()
        rows = pa.concat_arrays(rows.chunks) if isinstance(rows, pa.ChunkedArray) else rows
        try:
            decoded = self._codec.decode_arrays(rows)
            if not self._codec.encode_arrays(list(decoded)).equals(rows):
                yield "some rows are not what their keys encode to"
        except (EblaError, pa.ArrowException, ValueError, IndexError) as error:
            yield f"some rows are no keys of the table: {error}"
            return
        for column, values in zip(self._codec.key, decoded, strict=True):
            name = f"key:{column.id}"
            if name not in records.schema.names or pa.types.is_floating(values.type):
                continue  # what is not a number differs from itself; the rows have been encoded again above
            if not records.column(name).equals(pa.chunked_array([values])):
                yield f"the key column {column.name!r} differs from the rows beside it"

    def close(self) -> list[str]:
        """Return what is wrong with the file as a whole."""
        found, ref = (self._txn_min, self._txn_max), self._ref
        if self._txn_min is not None and ref.txn is None and found != (ref.txn_min, ref.txn_max):
            return [f"its records have txns {found[0]} to {found[1]}, METADATA says {ref.txn_min} to {ref.txn_max}"]
        return []


def _disorder(records: pa.Table, ref: FragmentRef) -> Iterator[str]:
    """Tell whether each record of a table stands where it should, after the one before it."""
    if records.num_rows < 2:
        return
    names = records.schema.names
    upper, lower = records.slice(0, records.num_rows - 1), records.slice(1)
    before, tied = _compared(upper, lower, ROW)
    if not (before | tied).all():
        yield "its rows are not in ascending order"
        return
    if FAMILY in names:
        for name in (FAMILY, QUALIFIER):
            less, same = _compared(upper, lower, name)
            if not (less | same)[tied].all():
                yield "cells of a row are not in ascending order"
                return
            tied &= same
    if ref.unique and tied.any():
        yield "it has several records of one identity, and METADATA says that it has one of each"
    for name in (TIMESTAMP, TXN):
        if name in names:
            less, same = _compared(lower, upper, name)
            if not (less | same)[tied].all():
                yield "versions are not ordered from the newest to the oldest"
                return
            tied &= same
    if tied.any():
        yield "it has two records of one identity and one txn"


def _compared(one: pa.Table, other: pa.Table, name: str) -> tuple[Mask, Mask]:
    """Return where a column of one table is less than that of the other, and where they are the same; nulls first."""
    left, right = one.column(name), other.column(name)
    less = pc.fill_null(pc.less(left, right), False).to_numpy()
    same = pc.fill_null(pc.equal(left, right), False).to_numpy()
    if left.null_count or right.null_count:
        left_null, right_null = left.is_null().to_numpy(), right.is_null().to_numpy()
        less |= left_null & ~right_null
        same |= left_null & right_null
    return less, same
