"""Where the records of a table lie, from marks; and where it should be cut. Pure: no I/O, no time, no chance.

    marks        |a.....|d...|h.........|m....|s..|       rows that have records, and how many from each to the next
    buckets      [a ......... h)[h ....... m)[m ..)       about as many bytes in each
    pieces       3 of the large tablet, 1 of the small    so that the largest piece becomes as small as it can

Marks come from many sources that lie on each other: what they say is added up. Cuts are rows that are there, so that no
tablet is made for nothing, and never the row that a tablet begins with.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec

from ebla.model.ranges import KeyRange

__all__ = ["Bucket", "Mark", "Marks", "divide", "hot_ranges", "pieces_by_bytes", "pieces_by_count"]

# A bucket is hot if it got so many times its share of what was written lately.
HOT_SHARE = 2.0


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """From this row on, up to the next mark of its source, there are so many records and bytes.

    `recent` of the records were written lately.
    """

    row: bytes
    records: float
    size: float
    recent: float = 0.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """The records of a range of rows, about."""

    rows: KeyRange
    records: int
    bytes: int
    recent: int


class Marks:
    """The marks of many sources, added up and in the order of their rows."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        by_row: dict[bytes, list[float]] = {}
        for mark in marks:
            there = by_row.setdefault(mark.row, [0.0, 0.0, 0.0])
            there[0] += mark.records
            there[1] += mark.size
            there[2] += mark.recent
        self.rows = sorted(by_row)
        self._records = _sums(by_row[row][0] for row in self.rows)
        self._sizes = _sums(by_row[row][1] for row in self.rows)
        self._recent = _sums(by_row[row][2] for row in self.rows)

    def bucket(self, rows: KeyRange) -> Bucket:
        """Return what there is in a range of rows."""
        begin, end = self._places(rows)
        return Bucket(
            rows,
            round(self._records[end] - self._records[begin]),
            round(self._sizes[end] - self._sizes[begin]),
            round(self._recent[end] - self._recent[begin]),
        )

    def cuts(self, rows: KeyRange, pieces: int) -> list[bytes]:
        """Return up to `pieces` - 1 rows that divide a range into pieces of about as many bytes each, ascending."""
        begin, end = self._places(rows)
        sizes = self._sizes
        total = sizes[end] - sizes[begin]
        found: list[bytes] = []
        last = begin  # some row that is there stays on the left of a cut
        for piece in range(1, pieces):
            wanted = sizes[begin] + total * piece / pieces
            at = bisect_left(sizes, wanted, last + 1, end)
            if at > last + 1 and wanted - sizes[at - 1] < sizes[at] - wanted:
                at -= 1
            if at >= end:
                break
            found.append(self.rows[at])
            last = at
        return found

    def _places(self, rows: KeyRange) -> tuple[int, int]:
        begin = bisect_left(self.rows, rows.first)
        end = len(self.rows) if rows.last is None else bisect_left(self.rows, rows.last)
        return begin, max(begin, end)


def _sums(values: Iterable[float]) -> list[float]:
    return [0.0, *accumulate(values)]


def divide(marks: Marks, buckets: int) -> list[Bucket]:
    """Return all there is, in at most so many buckets of about as many bytes each."""
    bounds: list[bytes | None] = [b"", *marks.cuts(KeyRange(), buckets), None]
    return [marks.bucket(KeyRange(first or b"", last)) for first, last in pairwise(bounds)]


def pieces_by_bytes(sizes: Sequence[int], bytes_max: int) -> list[int]:
    """Return into how many pieces tablets of these sizes are cut, so that none has more than `bytes_max`."""
    return [max(1, -(-size // bytes_max)) for size in sizes]


def pieces_by_count(sizes: Sequence[int], count: int) -> list[int]:
    """Return into how many pieces tablets of these sizes are cut, so that there are `count` and the largest is small.

    Tablets are never joined: if there are as many already, or more, they stay. What is empty is not cut.
    """
    pieces = [1] * len(sizes)
    largest = [(-float(size), at) for at, size in enumerate(sizes) if size]
    heapq.heapify(largest)
    for _ in range(count - len(sizes)):
        if not largest:
            break
        _, at = heapq.heappop(largest)
        pieces[at] += 1
        heapq.heappush(largest, (-sizes[at] / pieces[at], at))
    return pieces


def hot_ranges(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return the ranges that got more than twice their share of what was written lately; neighbours are one."""
    recent = max(1, sum(bucket.recent for bucket in buckets))
    size = max(1, sum(bucket.bytes for bucket in buckets))
    found: list[Bucket] = []
    for bucket in buckets:
        if not bucket.recent or bucket.recent / recent < HOT_SHARE * bucket.bytes / size:
            continue
        if found and found[-1].rows.last == bucket.rows.first:
            before = found.pop()
            bucket = Bucket(
                KeyRange(before.rows.first, bucket.rows.last),
                before.records + bucket.records,
                before.bytes + bucket.bytes,
                before.recent + bucket.recent,
            )
        found.append(bucket)
    return found
