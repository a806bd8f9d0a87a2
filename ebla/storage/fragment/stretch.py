"""Records of a file by their places: out of its blocks, and out of stretches of neighbouring blocks.

A block is the right size to read one row, and too small to read a thousand: picking a few rows out of each of hundreds
of blocks costs more in calls than in work. So where a look-up of many rows touches much of a stretch, its blocks are
joined once, cached as one entry in the place of theirs, and rows are then taken out of few long arrays.

    blocks      | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | ...        cached one by one, by single gets and short scans
    stretches   |       0       |       1       | ...        made by look-ups of many rows; blocks are slices of them
    places      0 1 2 3 ...                                  of the records, from the first of the file on
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ebla.model.order import Indices
from ebla.storage.cache.block_cache import BlockCache, Key
from ebla.storage.record.records import Block

# About so many bytes of blocks make a stretch, but no more than a share of the cache.
STRETCH_BYTES = 8 << 20
CACHE_SHARE = 8
# A stretch is made where a look-up touches one in so many of its blocks ...
TOUCHED_SHARE = 4
# ... and all but one in so many of them are touched or cached: only these few are decoded for nothing.
WASTED_SHARE = 4
# Fewer records than this are sliced out of a block one by one, which is then quicker than to take them.
TAKE_ROWS_MIN = 16


class Stretch:
    """The records of neighbouring blocks. Immutable but for the blocks that it remembers having cut out of itself."""

    __slots__ = ("_blocks", "_ends", "_of_block", "bytes", "first_block", "records")

    def __init__(
        self,
        first_block: int,
        block_rows: Sequence[int],
        records: pa.RecordBatch,
        of_block: Callable[[pa.RecordBatch, int], Block],
    ) -> None:
        # Set once.
        self.first_block = first_block
        self.records = records
        # As `Block` does: room for the words by which its rows are found.
        self.bytes: int = records.nbytes + 16 * records.num_rows
        self._of_block = of_block
        self._ends = [0]
        for rows in block_rows:
            self._ends.append(self._ends[-1] + rows)
        assert self._ends[-1] == records.num_rows, "a stretch holds all records of its blocks"
        # Filled in by whoever needs one first; two that do so at once make the same block.
        self._blocks: dict[int, Block] = {}

    def block(self, number: int) -> Block:
        """Return one of its blocks, by its number in the file, without copying its records."""
        found = self._blocks.get(number)
        if found is None:
            begin, end = self._ends[number - self.first_block : number - self.first_block + 2]
            found = self._blocks[number] = self._of_block(self.records.slice(begin, end - begin), 0)
        return found


class Stretches:
    """The blocks and stretches of one file in the cache, by keys that begin with `key`. Threads may share it.

    `decode` reads blocks from begin to end as one batch; `of_block` makes a block of records (and bytes, if known).
    """

    def __init__(
        self,
        key: Key,
        cache: BlockCache,
        block_rows: Sequence[int],
        block_bytes: int,
        decode: Callable[[int, int], pa.RecordBatch],
        of_block: Callable[[pa.RecordBatch, int | None], Block],
    ) -> None:
        # All set once.
        self._key = key
        self._cache = cache
        self._block_rows = block_rows
        self._decode = decode
        self._of_block = of_block
        bytes_max = min(STRETCH_BYTES, cache.bytes_max // CACHE_SHARE)
        self._blocks_each = max(1, bytes_max // max(1, block_bytes))
        self._ends: Indices = np.cumsum(block_rows)
        self._end_list: list[int] = self._ends.tolist()

    def cached_block(self, number: int) -> Block | None:
        """Return a block if it is cached, by itself or in a stretch."""
        found: Block | None = self._cache.get((*self._key, number), is_last=self._blocks_each == 1)
        if found is None and self._blocks_each > 1:
            stretch = self._cache.get((*self._key, "stretch", number // self._blocks_each))
            found = None if stretch is None else stretch.block(number)
        return found

    def holds(self, number: int) -> bool:
        """Tell whether a block is cached, without using it."""
        if self._cache.peek((*self._key, number)) is not None:
            return True
        return self._cache.peek((*self._key, "stretch", number // self._blocks_each)) is not None

    def block(self, number: int) -> Block:
        """Return a block from the cache or the file."""
        found = self.cached_block(number)
        if found is None:
            found = self._of_block(self._decode(number, number + 1), None)
            self._cache.put((*self._key, number), found, found.bytes)
        return found

    def slice(self, begin: int, end: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        """Return the records at the places from begin to end, with the given columns or all."""
        number = bisect_right(self._end_list, begin)
        if self._blocks_each > 1 and number < len(self._end_list):
            stretch = self._cache.get((*self._key, "stretch", number // self._blocks_each), is_last=False)
            if stretch is not None:
                within = begin - self._first_place(stretch.first_block)
                if within + end - begin <= stretch.records.num_rows:
                    return _with(stretch.records, columns).slice(within, end - begin)
        found = []
        while begin < end:
            first = self._end_list[number] - self._block_rows[number]
            length = min(end, self._end_list[number]) - begin
            found.append(_with(self.block(number).records, columns).slice(begin - first, length))
            begin += length
            number += 1
        return found[0] if len(found) == 1 else pa.concat_batches(found)

    def take(self, places: Indices, columns: Sequence[str] | None) -> pa.RecordBatch:
        """Return the records at places, as they are given, with the given columns or all; quick where they ascend."""
        numbers = np.searchsorted(self._ends, places, side="right")
        found: list[pa.RecordBatch] = []
        for begin, end in _spans(numbers // self._blocks_each):
            stretch = self._stretch(numbers[begin:end])
            if stretch is None:
                found += self._take_from_blocks(places[begin:end], numbers[begin:end], columns)
            else:
                within = places[begin:end] - self._first_place(stretch.first_block)
                found.append(_with(stretch.records, columns).take(pa.array(within)))
        return found[0] if len(found) == 1 else pa.concat_batches(found)

    def _take_from_blocks(
        self, places: Indices, numbers: Indices, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        for begin, end in _spans(numbers):
            number = int(numbers[begin])
            records = _with(self.block(number).records, columns)
            within = places[begin:end] - self._first_place(number)
            first, length = int(within[0]), end - begin
            # Where rows share words, places come repeatedly: the ends alone would not tell.
            if int(within[-1]) - first + 1 == length and bool((np.diff(within) == 1).all()):
                yield records.slice(first, length)
            elif length < TAKE_ROWS_MIN:
                yield from (records.slice(place, 1) for place in within.tolist())
            else:
                yield records.take(pa.array(within))

    def _first_place(self, block: int) -> int:
        return self._end_list[block] - self._block_rows[block]

    def _stretch(self, numbers: Indices) -> Stretch | None:
        """Return the stretch that has the blocks `numbers`, if it is cached or worth making."""
        at = int(numbers[0]) // self._blocks_each
        stretch: Stretch | None = self._cache.get((*self._key, "stretch", at))
        if stretch is not None:
            return stretch
        begin = at * self._blocks_each
        end = min(begin + self._blocks_each, len(self._block_rows))
        touched = set(numbers.tolist())
        if not is_worth_making(end - begin, len(touched), end - begin):
            return None
        held = {number: self._cache.peek((*self._key, number)) for number in range(begin, end)}
        known = {number: block.records for number, block in held.items() if block is not None}
        if not is_worth_making(end - begin, len(touched), len(touched | known.keys())):
            return None
        batches: list[pa.RecordBatch] = []
        done = begin
        for number in [*known, end]:
            if done < number:
                batches.append(self._decode(done, number))
            if number < end:
                batches.append(known[number])
            done = number + 1
        records = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        stretch = Stretch(begin, self._block_rows[begin:end], records, self._of_block)
        self._cache.put((*self._key, "stretch", at), stretch, stretch.bytes)
        self._cache.drop([(*self._key, number) for number in known])
        return stretch


def is_worth_making(blocks: int, touched: int, at_hand: int) -> bool:
    """Tell whether to join the blocks of a stretch for a look-up.

    Of its `blocks`, so many are `touched` by the look-up, and so many are touched or cached, and so `at_hand`.
    """
    return blocks > 1 and touched * TOUCHED_SHARE >= blocks and (blocks - at_hand) * WASTED_SHARE <= blocks


def _spans(numbers: Indices) -> Iterator[tuple[int, int]]:
    """Yield begin and end of every run of equal numbers."""
    return pairwise([0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)])


def _with(records: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    return records if columns is None else records.select(columns)
