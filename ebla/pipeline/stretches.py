"""Stretches of rows with the same sources: who has records where. Pure: values in, values out.

    fragment A   |=========================|
    fragment B                |====|            |=========|
    erased                                            |------|        by a range erasure newer than both

    stretches    |------A-----|-A+B|---A---|    |--B--|

Sources are swept in row order. A stretch in which one source alone has records, one for each row, and nothing hides any
of them has an *owner*: the rows of its file are the answer. Where all records are hidden there is no stretch at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import TypeAlias

from ebla.ranges import KeyRange, successor
from ebla.storage.merge import Erasure

__all__ = ["Source", "Span", "Stretch", "cut_rows", "mixed_sources", "sweep"]

# `Span` has a field called `bytes`, which hides the type inside the class.
RowBytes: TypeAlias = bytes


@dataclass(frozen=True, slots=True)
class Span:
    """Rows in [first, last) of which a source has so many records."""

    first: RowBytes
    last: RowBytes
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Source:
    """What may hold records of one group: a fragment, or a block in memory (no file)."""

    group: int
    spans: tuple[Span, ...]  # where it has records, in order, whether they count or not
    shares: tuple[KeyRange, ...]  # where its records count, in order: the tablets that refer to it, within the scan
    txn_min: int
    txn_max: int
    file: str | None = None
    is_native: bool = False  # where it is alone and nothing hides its records, its rows are the answer


@dataclass(slots=True)
class Stretch:
    """Rows [first, last) with the same sources; `owner` is the one that is alone and can be read as it is."""

    first: bytes
    last: bytes
    owner: int | None
    records: int
    bytes: int


@dataclass(slots=True)
class _Edge:
    """What begins and ends at one row."""

    ends: list[int] = field(default_factory=list)
    begins: list[tuple[int, Span]] = field(default_factory=list)
    erasures: list[tuple[int, Erasure]] = field(default_factory=list)


class _Erased:
    """The range erasures over the current row, per group: only the newest matters."""

    def __init__(self) -> None:
        self._newest: dict[int, list[tuple[int, int, bytes | None]]] = defaultdict(list)
        self._count = 0

    def add(self, group: int, erasure: Erasure) -> None:
        self._count += 1  # so that the ends of two with the same txn are never compared
        heappush(self._newest[group], (-erasure.txn, self._count, erasure.last))

    def txn_at(self, group: int, row: bytes) -> int:
        over = self._newest.get(group)
        while over:
            txn, _, last = over[0]
            if last is None or row < last:
                return -txn
            heappop(over)
        return 0


def sweep(sources: Sequence[Source], erasures: Iterable[tuple[int, Erasure]]) -> tuple[list[Stretch], set[int]]:
    """Go over all rows in order. Returns the stretches that have records, and the sources that are in dirty ones."""
    edges: dict[bytes, _Edge] = defaultdict(_Edge)
    for number, source in enumerate(sources):
        for span in _counted(source):
            edges[span.first].begins.append((number, span))
            edges[span.last].ends.append(number)
    if not edges:
        return [], set()
    for group, erasure in erasures:
        edges[erasure.first].erasures.append((group, erasure))
        if erasure.last is not None:
            edges.setdefault(erasure.last, _Edge())  # the answer may be another from there on
    rows = sorted(edges)
    present: dict[int, int] = {}
    erased = _Erased()
    stretches: list[Stretch] = []
    in_dirty: set[int] = set()
    for row, following in pairwise(rows):
        edge = edges[row]
        for number in edge.ends:
            present[number] -= 1
            if not present[number]:
                del present[number]
        for number, _ in edge.begins:
            present[number] = present.get(number, 0) + 1
        for group, erasure in edge.erasures:
            erased.add(group, erasure)
        seen = [n for n in present if sources[n].txn_max >= erased.txn_at(sources[n].group, row)]
        if not seen:
            continue
        alone = sources[seen[0]]
        is_clean = len(seen) == 1 and alone.is_native and alone.txn_min >= erased.txn_at(alone.group, row)
        if not is_clean:
            in_dirty.update(seen)
        records = sum(span.records for _, span in edge.begins)
        size = sum(span.bytes for _, span in edge.begins)
        stretches.append(Stretch(row, following, seen[0] if is_clean else None, records, size))
    return stretches, in_dirty


def _counted(source: Source) -> Iterable[Span]:
    """Yield the spans of a source as far as they count. A span that is cut keeps its numbers: they are estimates."""
    at = 0
    for share in source.shares:
        while at < len(source.spans) and source.spans[at].last <= share.first:
            at += 1
        for span in source.spans[at:]:
            if share.last is not None and span.first >= share.last:
                break
            first = max(span.first, share.first)
            last = span.last if share.last is None else min(span.last, share.last)
            if first < last:
                yield span if (first, last) == (span.first, span.last) else Span(first, last, span.records, span.bytes)


def mixed_sources(sources: Sequence[Source], erasures: Iterable[tuple[int, Erasure]]) -> set[int]:
    """Return the places of the sources that share rows with others, or cannot be read as they are."""
    return sweep(sources, erasures)[1]


def cut_rows(rows: Sequence[bytes], marks: Sequence[bytes], bytes_all: int) -> tuple[Span, ...]:
    """Divide sorted rows at sorted marks: a span from the first to the last row between two marks, if there is any.

    With the first rows of the other sources' blocks as marks, a source of scattered rows meets only the blocks that
    it has something to say about.
    """
    spans = []
    begin = 0
    row_bytes = bytes_all // max(1, len(rows))
    inner = marks[bisect_right(marks, rows[0]) :] if rows else ()
    for mark in (*inner, None):
        end = len(rows) if mark is None else bisect_left(rows, mark, begin)
        if begin < end:
            count = end - begin
            spans.append(Span(rows[begin], successor(rows[end - 1]), count, count * row_bytes))
        if end == len(rows):
            break
        begin = end
    return tuple(spans)
