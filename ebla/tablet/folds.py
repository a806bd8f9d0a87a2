"""Folds: what several files have in one stretch of rows, merged once and kept for the short scans that come again.

    file 1    |----------b1----------|----------b2----------|        the one with the most rows there gives the bounds
    file 2    |-------------------|-------------------------|
    file 3        |---------------------|
    fold                             |##########b2##########|        all columns of a group, the newest record of a row

A scan of fifty rows over four files costs four times what it costs over one, and nearly none of that is for its rows.
So where scans begin a second time, all of the stretch is merged as a compaction would do it, and cached like a block,
in place of the block that gave the bounds. What is in memory lies over it. A fold serves readers who may see every
record of its files and want no older ones. It is made only where the cache has room: nothing is pushed out for it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from ebla.metadata.table_metadata import FragmentRef, TabletMetadata
from ebla.ranges import KeyRange, successor
from ebla.schema import GroupSchema
from ebla.storage.cache import BlockCache, Key
from ebla.storage.fragment_reader import Fragment
from ebla.storage.records import Block
from ebla.tablet.view import Sources, TableView

__all__ = ["Fold", "Folds"]

ASKED_KEPT = 4_096
# A stretch of more records is not worth the time of the scan that would make the fold of it.
RECORDS_MAX = 16_384


@dataclass(frozen=True, slots=True)
class Fold:
    """The rows that it is for, all of which are in `block`, and what lies over it in memory."""

    rows: KeyRange
    block: Block
    sources: Sources
    as_of: int

    def serves(self, rows: KeyRange, as_of: int) -> bool:
        """Tell whether a reader of some rows gets all from here. The view has to be the one it was found in."""
        return as_of == self.as_of and self.rows.covers(rows)


class Folds:
    """Finds folds in the block cache, and makes those that are asked for again. Safe to use from several threads.

    `merge` returns what the fragments of some sources have in a range, as one block: all columns, one record per row.
    """

    def __init__(
        self,
        cache: BlockCache,
        opened: Callable[[FragmentRef], Fragment],
        merge: Callable[[GroupSchema, Sources, KeyRange, int], Block | None],
    ) -> None:
        # Set once.
        self._cache = cache
        self._opened = opened
        self._merge = merge
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._asked: OrderedDict[Key, None] = OrderedDict()

    def at(self, view: TableView, tablet: TabletMetadata, group: GroupSchema, row: bytes, as_of: int) -> Fold | None:
        """Return the fold that has `row`, or None: it would be of no use, or nobody asked for it before."""
        there = [ref for ref in tablet.group(group.id).fragments if ref.first <= row <= ref.last]
        if len(there) < 2:
            return None
        base = max(there, key=attrgetter("rows"))
        starts = self._opened(base).first_rows
        number = bisect_right(starts, row) - 1
        end = starts[number + 1] if number + 1 < len(starts) else successor(base.last)
        rows = KeyRange(starts[number], end).intersect(tablet.range)
        if rows is None or not rows.contains(row):
            return None
        sources = view.sources(tablet, group.id, rows, as_of)
        newest = max((ref.txn_max for ref in sources.fragments), default=0)
        if sources.erasures or newest > as_of or any(block.txn_min <= newest for block in sources.blocks):
            return None
        files = tuple([ref.file for ref in sources.fragments])
        # After an alteration, the same files may count for several groups, each with other columns.
        key = (base.file, "fold", tablet.id, group.id, view.schema.version, number, files)
        block = self._cache.get(key, is_last=False)
        if block is None:
            if not self._is_asked_again(key) or self._is_too_much(base.file, sources, rows):
                return None
            block = self._merge(group, sources, rows, newest)
            if block is None:
                return None
            self._cache.put(key, block, block.bytes)
            self._cache.drop([(base.file, number)])
        return Fold(rows, block, sources, as_of)

    def _is_asked_again(self, key: Key) -> bool:
        with self._lock:
            if key in self._asked:
                del self._asked[key]
                return True
            self._asked[key] = None
            if len(self._asked) > ASKED_KEPT:
                self._asked.popitem(last=False)
            return False

    def _is_too_much(self, file: str, sources: Sources, rows: KeyRange) -> bool:
        records = size_bytes = 0
        for ref in sources.fragments:
            fragment = self._opened(ref)
            begin, end = fragment.blocks_of(rows.first, rows.last)
            there = sum(fragment.block_rows[begin:end])
            records += there
            size_bytes += there * fragment.record_bytes
        return records > RECORDS_MAX or not self._cache.has_room(file, size_bytes)
