"""Folds: what a stretch of rows was at one txn, merged once and kept for the short scans that come again.

    file 1    |----------b1----------|----------b2----------|        the one with the most rows there gives the bounds
    file 2    |-------------------|-------------------------|
    memory      .   .      .            .     . .                    up to the txn of the fold
    fold                             |##########b2##########|        all columns of a group, the newest record of a row
    newer                                 .                          what has come since: laid over it by every scan

A scan of fifty rows over four files costs four times what it costs over one, and nearly none of that is for its rows.
So where scans begin a second time, or the first time while half of the cache is free, all of the stretch is merged, and
cached like a block, in place of the block that gave the bounds if room is scarce. A fold is made of files and of
memory, and only of commits that nothing can undo or slip in between. So it stays true whatever becomes of the files:
what a reader at its txn or later sees is the fold and what is newer.

When newer records had to be laid over it a number of times, or have been flushed, the fold is moved on to the present
by a merge with them. It is made only where the cache has room: nothing is pushed out for it.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ebla.metadata.values.table_metadata import FragmentRef, TabletMetadata
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange, successor
from ebla.model.schema import GroupSchema
from ebla.storage.cache.block_cache import BlockCache, Key
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.merge.erasure_cover import Erasure
from ebla.storage.record.records import Block
from ebla.tablet.read.answers import tops_suffice
from ebla.tablet.read.view import Sources, TableView, check_history

__all__ = ["Fold", "Folds", "Found"]

ASKED_KEPT = 4_096
# A stretch of more records is not worth the time of the scan that would make the fold of it.
RECORDS_MAX = 16_384
# A fold is moved on after newer records were laid over it so many times, which costs about as much as the move.
LAID_OVER_MAX = 4

_numbers = itertools.count()


class Fold:
    """All rows of a stretch as they were at `txn`, one record each. `is_kept` says that it stays in the cache."""

    __slots__ = ("_answer", "block", "is_kept", "laid_over", "rows", "txn")

    def __init__(self, rows: KeyRange, block: Block, txn: int, *, is_kept: bool = True) -> None:
        # Set once.
        self.rows = rows
        self.block = block
        self.txn = txn
        self.is_kept = is_kept
        # How often newer records were laid over it, about: threads may count at once.
        self.laid_over = 0
        self._answer: tuple[Projection, pa.RecordBatch] | None = None

    def answer(self, projection: Projection, make: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
        """Return the rows as the answer to a read. The last one is kept: it shares all its memory with the block."""
        known = self._answer
        if known is None or known[0] is not projection:
            known = self._answer = projection, make()
        return known[1]


@dataclass(frozen=True, slots=True)
class Found:
    """A fold, and the blocks in memory that may have newer records for a reader at `as_of`."""

    fold: Fold
    newer: Sequence[Block]
    as_of: int


class Folds:
    """Finds folds in the block cache, and makes those that are asked for again. Safe to use from several threads.

    `merge` returns what a fold, if there is one, and some sources have in a range at a txn, as one block: all columns,
    one record per row.
    """

    def __init__(
        self,
        cache: BlockCache,
        opened: Callable[[FragmentRef], Fragment],
        merge: Callable[[GroupSchema, Fold | None, Sources, KeyRange, int], Block | None],
    ) -> None:
        # Set once.
        self._cache = cache
        self._opened = opened
        self._merge = merge
        # Tells the folds of one table under one schema from all others: what they hold is not in their files alone.
        self._number = next(_numbers)
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._asked: OrderedDict[Key, None] = OrderedDict()

    def at(
        self, view: TableView, tablet: TabletMetadata, group: GroupSchema, row: bytes, as_of: int, *, is_settled: bool
    ) -> Found | None:
        """Return the fold that has `row` or, if there are no rows at all between, begins behind it.

        None if it would be of no use, or nobody asked for it before.

        `is_settled` says that everything up to `as_of` is committed and in the view: then a fold may be made at it.
        """
        state = tablet.group(group.id)
        current = state.current
        base = _base_of(current, row)
        if base is None:
            # Between two files: on to the second, if nothing lies before it.
            behind = min([ref.first for ref in current if ref.first > row], default=None)
            if behind is None or len(view.sources(tablet, group.id, KeyRange(row, behind), as_of)):
                return None
            row, base = behind, _base_of(current, behind)
            assert base is not None, "a file has its first row"
        check_history(state, as_of)
        starts = self._opened(base).first_rows
        number = bisect_right(starts, row) - 1
        end = starts[number + 1] if number + 1 < len(starts) else successor(base.last)
        rows = KeyRange(starts[number], end).intersect(tablet.range)
        if rows is None or not rows.contains(row):
            return None
        key = (base.file, "fold", self._number, tablet.id, group.id, number)
        fold: Fold | None = self._cache.get(key, is_last=False)
        if fold is not None and fold.rows != rows:
            fold = None  # the tablet had other bounds
        if fold is None:
            sources = view.sources(tablet, group.id, rows, as_of)
            if len(sources) == 1 and (base.txn_max > as_of or _is_fold(base, sources)):
                return self._block_as_fold(base, number, rows, as_of)
            if not is_settled or not (self._has_plenty_of_room(base.file) or self._is_asked_again(key)):
                return None
        elif fold.txn > as_of:
            return None  # for a reader of the past
        else:
            sources = _newer(view, tablet, group.id, rows, fold.txn, as_of)
            if not sources.fragments and not sources.erasures and (fold.laid_over < LAID_OVER_MAX or not is_settled):
                return Found(fold, sources.blocks, as_of)
            if not is_settled:
                return None
        if self._is_too_much(base.file, sources, rows, fold, as_of):
            return None
        block = self._merge(group, fold, sources, rows, as_of)
        if block is None:
            self._cache.drop([key])
            return None
        if fold is None and not self._has_plenty_of_room(base.file):
            self._cache.drop([(base.file, number)])  # else it is left there, as gets may want it
        fold = Fold(rows, block, as_of)
        self._cache.put(key, fold, block.bytes)
        return Found(fold, (), as_of)

    def _block_as_fold(self, base: FragmentRef, number: int, rows: KeyRange, as_of: int) -> Found | None:
        """Return a block that is a fold as it is, if it is cached. None for readers of the past."""
        block = None if base.txn_max > as_of else self._opened(base).cached_block(number)
        return None if block is None else Found(Fold(rows, block, base.txn_max, is_kept=False), (), as_of)

    def _has_plenty_of_room(self, file: str) -> bool:
        return self._cache.has_room(file, self._cache.room // 2)

    def _is_asked_again(self, key: Key) -> bool:
        with self._lock:
            if key in self._asked:
                del self._asked[key]
                return True
            self._asked[key] = None
            if len(self._asked) > ASKED_KEPT:
                self._asked.popitem(last=False)
            return False

    def _is_too_much(self, file: str, sources: Sources, rows: KeyRange, fold: Fold | None, as_of: int) -> bool:
        records = 0 if fold is None else len(fold.block)
        size_bytes = 0
        for block in sources.blocks:
            there = _merged_of(block, rows, newest=tops_suffice(block, as_of))
            records += there
            size_bytes += there * (block.bytes // len(block))
        for ref in sources.fragments:
            there = self._merged_of_fragment(ref, rows, as_of)
            records += there
            size_bytes += there * self._opened(ref).record_bytes
        return records > RECORDS_MAX or not self._cache.has_room(file, size_bytes)

    def _merged_of_fragment(self, ref: FragmentRef, rows: KeyRange, as_of: int) -> int:
        """Return about how many records of a fragment a fold would be merged from.

        Of a block that is partly in the stretch, and not cached, it is taken to be one half.
        """
        fragment = self._opened(ref)
        begin, end = fragment.blocks_of(rows.first, rows.last)
        newest = not ref.has_erasures and tops_suffice(ref, as_of)
        if newest:
            looked_at = [n for stretch in fragment.outer_blocks(begin, end) for n in range(*stretch)]
            count = 0
        else:
            looked_at = [n for n in sorted({begin, end - 1}) if n < end and not _is_within(fragment, n, rows)]
            count = sum(fragment.block_rows[begin:end]) - sum(fragment.block_rows[n] for n in looked_at)
        for number in looked_at:
            block = fragment.cached_block(number)
            if block is not None:
                count += _merged_of(block, rows, newest=newest)
            elif _is_within(fragment, number, rows):
                count += fragment.block_rows[number]
            else:
                count += fragment.block_rows[number] // 2
        return count


def _is_within(fragment: Fragment, block: int, rows: KeyRange) -> bool:
    """Tell whether all rows of a block are in a stretch, but perhaps for some at its end that go on in the next."""
    starts = fragment.first_rows
    if starts[block] < rows.first:
        return False
    end = starts[block + 1] if block + 1 < len(starts) else successor(fragment.footer.last)
    return rows.last is None or end <= rows.last


def _base_of(fragments: Sequence[FragmentRef], row: bytes) -> FragmentRef | None:
    """Return the file that gives a stretch its bounds: of those around `row`, the one with the most rows.

    Not that with the most records: of a row that was updated a million times there are a million, and in a block of
    them is no other row.
    """
    around = [ref for ref in fragments if ref.first <= row <= ref.last]
    return max(around, key=_rows_in, default=None)


def _rows_in(ref: FragmentRef) -> int:
    return ref.rows - ref.surplus


def _is_fold(base: FragmentRef, sources: Sources) -> bool:
    """Tell whether the blocks of a file that is alone in its stretch are folds: one record per row, and all count."""
    return base.unique and not base.has_erasures and base.clip is None and not sources.erasures


def _merged_of(block: Block, rows: KeyRange, *, newest: bool) -> int:
    """Return how many records of a block in some rows are merged, of each row all or just the `newest`."""
    return (block.count_tops if newest and not block.unique else block.count_range)(rows.first, rows.last)


def _newer(view: TableView, tablet: TabletMetadata, group: int, rows: KeyRange, after: int, as_of: int) -> Sources:
    """Return everything that may hold something newer than `after` for a reader of some rows at `as_of`.

    History too: an erasure in it does not show what is older, but what is older is in the fold.
    """
    memory = view.memory_of(tablet.id, group)
    state = tablet.group(group)
    first, last = rows.first, rows.last
    blocks = [
        block
        for block in memory.blocks
        if block.txn_max > after
        and block.txn_min <= as_of
        and block.last >= first
        and (last is None or block.first < last)
    ]
    fragments = [
        ref for ref in state.fragments if ref.txn_max > after and ref.txn_min <= as_of and ref.may_have_rows_in(rows)
    ]
    erasures: list[Erasure] = []
    if memory.erasures or state.erasures:
        known: list[Erasure] = [*memory.erasures, *state.erasures]
        erasures = [e for e in known if after < e.txn <= as_of and rows.overlaps(KeyRange(e.first, e.last))]
    return Sources(tuple(blocks), tuple(fragments), tuple(erasures))
