"""Stretches of rows with the same sources: who has records where. Pure: values in, values out.

    fragment A   |=========================|
    fragment B                |====|            |=========|
    erased                                            |------|        by a range erasure newer than both

    stretches    |------A-----|-A+B|---A---|    |--B--|

Sources are swept in row order. In a stretch a source is an *owner* if its file can be read as it is: one record for
each row, none hidden by an erasure, each newer than all of the owner before it, and whole, so that nothing older shows
through (but for the oldest owner, which has nothing under it). Whatever else has records there is one of the *others*.

    one owner, no others     the rows of its file are the answer
    owners, and others       a row of an owner is the answer where no newer owner, and none of the others, has it too
    no owner                 has to be merged

Where all records are hidden there is no stretch at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import TypeAlias

from ebla.direct.views import Erasure
from ebla.model.ranges import KeyRange, successor

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
    is_whole: bool = False  # every record of it sets every column that is asked for: nothing older shows through
    cleared_txn: int = 0  # none of its records is hidden by a range erasure up to this txn


@dataclass(slots=True)
class Stretch:
    """Rows [first, last) with the same sources, and about how many records begin there."""

    first: RowBytes
    last: RowBytes
    owners: tuple[int, ...]  # oldest first
    others: tuple[int, ...]
    records: int
    others_records: int
    bytes: int

    @property
    def is_clean(self) -> bool:
        """Whether the rows of one file are the answer."""
        return len(self.owners) == 1 and not self.others

    def give_up(self) -> None:
        """Leave all of it to the merge."""
        self.others_records = self.records
        self.owners, self.others = (), (*self.owners, *self.others)


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


def sweep(sources: Sequence[Source], erasures: Iterable[tuple[int, Erasure]]) -> list[Stretch]:
    """Go over all rows in order, and return the stretches that have records."""
    edges: dict[bytes, _Edge] = defaultdict(_Edge)
    for number, source in enumerate(sources):
        for span in _counted(source):
            edges[span.first].begins.append((number, span))
            edges[span.last].ends.append(number)
    if not edges:
        return []
    for group, erasure in erasures:
        edges[erasure.first].erasures.append((group, erasure))
        if erasure.last is not None:
            edges.setdefault(erasure.last, _Edge())  # the answer may be another from there on
    rows = sorted(edges)
    present: dict[int, int] = {}
    erased = _Erased()
    roles = _Roles(sources)
    stretches: list[Stretch] = []
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
        txns = {n: erased.txn_at(sources[n].group, row) for n in present}
        seen = [n for n in present if sources[n].txn_max >= txns[n]]
        if not seen:
            continue
        unhidden = [n for n in seen if sources[n].txn_min >= txns[n] or sources[n].cleared_txn >= txns[n]]
        owners, others = roles.of(seen, unhidden)
        stretch = Stretch(row, following, owners, others, 0, 0, 0)
        for number, span in edge.begins:
            stretch.records += span.records
            stretch.bytes += span.bytes
            if number not in owners:
                stretch.others_records += span.records
        stretches.append(stretch)
    return stretches


class _Roles:
    """Tells owners from others, and remembers what it told: few mixtures of sources occur."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._records = [sum(span.records for span in source.spans) for source in sources]
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def of(self, seen: list[int], unhidden: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        key = (tuple(sorted(seen)), tuple(sorted(unhidden)))
        found = self._known.get(key)
        if found is None:
            owners = self._owners([n for n in key[1] if self._sources[n].is_native])
            found = self._known[key] = (owners, tuple(n for n in key[0] if n not in owners))
        return found

    def _owners(self, natives: list[int]) -> tuple[int, ...]:
        """Choose owners that agree with each other, the large ones first: what is left over is merged."""
        owners: list[int] = []
        for number in sorted(natives, key=lambda n: -self._records[n]):
            tried = sorted([*owners, number], key=lambda n: self._sources[n].txn_min)
            if all(self._lies_over(over, under) for under, over in pairwise(tried)):
                owners = tried
        return tuple(owners)

    def _lies_over(self, over: int, under: int) -> bool:
        upper, lower = self._sources[over], self._sources[under]
        return upper.is_whole and upper.group == lower.group and upper.txn_min > lower.txn_max


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
    mixed: set[int] = set()
    for stretch in sweep(sources, erasures):
        if not stretch.is_clean:
            mixed.update(stretch.owners, stretch.others)
    return mixed


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
