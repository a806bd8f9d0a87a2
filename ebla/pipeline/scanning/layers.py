"""Layers of files: which rows of a file are not the answer, for something newer has them too. By their places.

    A      a b c d e f g h i j k                        a large file
    B          c   e         j                          newer, whole rows
    memory           f     i                            anything else: partial, erased, unflushed

    mask of A    . . x . x x . . x x .                  Spark reads A less what is marked, and all of B but f and i
    merged       f i                                    row by row, by the engine

A mask has one bit for each row of its file, by the number that Parquet gives it: Spark knows that number without
reading anything, so that even a query that reads no column at all stays one. Keys are compared here, once for each pair
of files that meet: files never change, and masks are remembered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.direct.fragments import ROW, TXN, BlockCache, Fragment, Run, places_of
from ebla.direct.views import Reader
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.order import (
    Indices,
    Words,
    common_prefix_length,
    is_strictly_sorted,
    key_words,
    lower_bound,
    sort_rows,
)
from ebla.model.ranges import KeyRange, successor
from ebla.pipeline.scanning.plan import Cover, Merged, ScanPlan, Section
from ebla.pipeline.scanning.survey import Survey

__all__ = ["Layers", "Mask", "as_stream", "distinct", "lay", "matches", "rows_from_stream"]

# One bit for each row of a file, the first in the lowest bit of the first word: set where the row is not the answer.
Mask: TypeAlias = npt.NDArray[np.int64]

WORD_BITS = 64
MASK_CACHE_BYTES = 32 << 20
SECTION_ROWS_MAX = 50_000

_masks = BlockCache(MASK_CACHE_BYTES)


@dataclass(frozen=True, slots=True)
class Layers:
    """What Spark leaves out of files, and the rows that are merged one by one instead."""

    masks: Mapping[str, Mask]
    sections: tuple[Section, ...]


def lay(plan: ScanPlan, found: Survey, reader: Reader, pool: Executor, cores: int) -> Layers:
    """Look up what a plan says by ranges: the places that are covered, and the rows to be merged."""
    rows_of = cache(lambda number, ranges: _rows_in(found, number, ranges, reader))
    covers: dict[int, list[Cover]] = defaultdict(list)
    for cover in plan.covers:
        covers[cover.source].append(cover)

    def masked(number: int) -> tuple[str, Mask]:
        ref = found.origins[number]
        assert isinstance(ref, FragmentRef), "only files are read natively"
        return ref.file, _mask(ref, covers[number], found, reader, rows_of)

    masks = dict(pool.map(masked, covers))
    return Layers({file: mask for file, mask in masks.items() if mask.any()}, _sections(plan.merged, rows_of, cores))


RowsOf: TypeAlias = Callable[[int, tuple[KeyRange, ...]], pa.Array]


def _mask(ref: FragmentRef, covers: Sequence[Cover], found: Survey, reader: Reader, rows_of: RowsOf) -> Mask:
    """Return the rows of a file that are covered. What other files cover is remembered; memory changes all the time."""
    by_files = [cover for cover in covers if isinstance(found.origins[cover.by], FragmentRef)]
    by_memory = [cover for cover in covers if cover not in by_files]
    key = (ref.file, tuple((found.sources[cover.by].file, cover.ranges) for cover in by_files))
    mask: Mask | None = _masks.get(key)
    if mask is None:
        mask = _marked(reader.fragment(ref), distinct(rows_of(cover.by, cover.ranges) for cover in by_files))
        _masks.put(key, mask, mask.nbytes)
    if by_memory:
        mask = mask | _marked(reader.fragment(ref), distinct(rows_of(cover.by, cover.ranges) for cover in by_memory))
    return mask


def _marked(fragment: Fragment, rows: pa.Array) -> Mask:
    length = sum(fragment.block_rows)
    bits = np.zeros(ceil(length / WORD_BITS) * WORD_BITS, np.bool_)
    for places in _places(fragment, rows):
        bits[places] = True
    return np.packbits(bits, bitorder="little").view(np.int64)


def _rows_in(found: Survey, number: int, ranges: tuple[KeyRange, ...], reader: Reader) -> pa.Array:
    """Return the rows that a source has in ranges, which are in order; a row with several records comes repeatedly."""
    origin = found.origins[number]
    if isinstance(origin, FragmentRef):
        fragment = reader.fragment(origin)
        begin, end = fragment.blocks_of(ranges[0].first, ranges[-1].last)
        rows = _joined(fragment.read_blocks(begin, end, [ROW]).column(0))
    else:
        rows = origin.rows
    parts = []
    for part in ranges:
        begin = lower_bound(rows, part.first)
        end = len(rows) if part.last is None else lower_bound(rows, part.last, begin)
        parts.append(rows.slice(begin, end - begin))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _joined(rows: pa.ChunkedArray) -> pa.Array:
    joined = rows.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def distinct(arrays: Iterable[pa.Array]) -> pa.Array:
    """Return all rows of several arrays, sorted, each once."""
    parts = list(arrays)
    rows = pa.concat_arrays(parts) if parts else pa.array([], pa.binary())
    if is_strictly_sorted(rows):
        return rows
    order, repeats = sort_rows(rows)
    return rows.take(pa.array(order[~repeats]))


# --- places --------------------------------------------------------------------------------------


def _places(fragment: Fragment, rows: pa.Array) -> Iterator[Indices]:
    """Yield the places of those of many sorted rows that a file has, which has one record for each of its rows."""
    for _, places in matches(fragment, rows):
        yield places


def matches(fragment: Fragment, rows: pa.Array, txn_max: int | None = None) -> Iterator[tuple[Indices, Indices]]:
    """Yield which of many sorted rows a file has, by their numbers, and the places of their records in the file.

    With `txn_max`, only records up to it count. Blocks that can have none of the rows are not read, and of the others
    only the keys (and txns).
    """
    footer = fragment.footer
    first = lower_bound(rows, footer.first)
    rows = rows.slice(first, lower_bound(rows, successor(footer.last), first) - first)
    if not len(rows):
        return
    skip = common_prefix_length(footer.first, footer.last)
    asked = key_words(rows, skip)
    starts = key_words(pa.array(fragment.first_rows, pa.binary()), skip)
    # A block whose first row has the same word as one that is asked for may begin before or after it.
    begins = np.bincount(np.maximum(starts.searchsorted(asked) - 1, 0), minlength=len(starts) + 1)
    ends = np.bincount(starts.searchsorted(asked, "right"), minlength=len(starts) + 1)
    touched = np.cumsum(begins - ends) > 0
    bounds = np.flatnonzero(np.diff(touched, prepend=False, append=False))
    firsts = np.concatenate([[0], np.cumsum(fragment.block_rows)])
    for low, high in bounds.reshape(-1, 2).tolist():
        records = fragment.read_blocks(low, high, [ROW] if txn_max is None else [ROW, TXN])
        held = _joined(records.column(ROW))
        words = key_words(held, skip)
        from_, to = asked.searchsorted(words[0]), asked.searchsorted(words[-1], "right")
        which, places = _same_rows(held, words, rows.slice(int(from_), int(to - from_)), asked[from_:to])
        if txn_max is not None:
            seen = Run(records).txns()[places] <= txn_max
            which, places = which[seen], places[seen]
        yield which + (first + from_), places + firsts[low]


def _same_rows(held: pa.Array, words: Words, rows: pa.Array, asked: Words) -> tuple[Indices, Indices]:
    """Return which of sorted rows are among those that are held, and the places of these. Both come with words."""
    found = places_of(words, asked)
    if found is None:
        numbers = pc.index_in(held, value_set=rows)
        places = np.flatnonzero(numbers.is_valid().to_numpy(zero_copy_only=False))
        return np.asarray(numbers.drop_null()).astype(np.int64), places
    which, places = found
    which = np.arange(len(asked)) if which is None else which
    # Rows that share a word with one that is asked for came along.
    same = pc.equal(held.take(pa.array(places)), rows.take(pa.array(which))).to_numpy(zero_copy_only=False)
    return which[same], places[same]


# --- rows that are merged ------------------------------------------------------------------------


def _sections(merged: Iterable[Merged], rows_of: RowsOf, cores: int) -> tuple[Section, ...]:
    rows = distinct(rows_of(part.source, part.ranges) for part in merged)
    if not len(rows):
        return ()
    count = max(ceil(len(rows) / SECTION_ROWS_MAX), min(cores, ceil(len(rows) / (SECTION_ROWS_MAX // 8))))
    bounds = np.linspace(0, len(rows), count + 1).astype(int).tolist()
    sections = []
    for begin, end in pairwise(bounds):
        part = rows.slice(begin, end - begin)
        key_range = KeyRange(part[0].as_py(), successor(part[-1].as_py()))
        sections.append(Section((key_range,), len(part), as_stream(part)))
    return tuple(sections)


def as_stream(rows: pa.Array) -> bytes:
    """Return rows as bytes that travel with a plan."""
    batch = pa.record_batch([rows], names=[ROW])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def rows_from_stream(stream: bytes) -> pa.Array:
    """Return the rows that were put into a stream."""
    return _joined(pa.ipc.open_stream(stream).read_all().column(0))
