"""An index of all rows of a file, by which many rows are found at once: for files with one record per row or cell.

It has one machine word for each record (model/order.py), in order, so that the place of a word among them is the place
of the record in the file. Rows that share a word are told apart by comparing what is found with what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.order import Indices, Words, common_prefix_length, key_words, tell_apart, word_of
from ebla.model.ranges import successor
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.fragment.fragment_file import FragmentFile
from ebla.storage.fragment.stretch import Stretches
from ebla.storage.record.records import ROW, Run

__all__ = ["RowIndex", "neighbours_at", "places_of"]

# From so many keys on, an index of all rows of a file is made for a look-up of many; not for files larger than this.
INDEX_KEYS_MIN = 32
INDEX_ROWS_MAX = 4_000_000
# The index of a file is kept unless it takes more than this share of the cache.
INDEX_CACHE_SHARE = 8
WORD_BYTES = 8


class RowIndex:
    """Finds rows of one file by the words of all its rows, which it keeps in the cache. Threads may share it."""

    def __init__(self, file: FragmentFile, cache: BlockCache, stretches: Stretches) -> None:
        # All set once.
        self._file = file
        self._cache = cache
        self._stretches = stretches
        self._key = (file.path, "rows")
        self._skip = common_prefix_length(file.footer.first, file.footer.last)

    def is_worth_asking(self, rows: int) -> bool:
        """Tell whether to look up so many rows here, and to make the index if it is not there."""
        return self._file.footer.unique and rows >= INDEX_KEYS_MIN and self._file.rows <= INDEX_ROWS_MAX

    def find(self, rows: pa.Array, columns: Sequence[str] | None) -> list[Run] | None:
        """Return the records of rows, which are sorted and each once, with the columns given or all.

        None if too many rows share their word in the index.
        """
        words, first = self._words_around(rows)
        asked = key_words(rows, self._skip)
        wanted = columns if columns is None or ROW in columns else [ROW, *columns]
        records: pa.RecordBatch | None = None
        begin = neighbours_at(words, asked)
        if begin is not None:
            records = self._stretches.slice(first + begin, first + begin + len(rows), wanted)
            if not records.column(ROW).equals(rows):
                records = None  # rows share words: these stand at the place of others, and must be looked for
        if records is None:
            found = places_of(words, asked)
            if found is None:
                return None
            which, places = found
            if not len(places):
                return []
            sought = rows if which is None else rows.take(pa.array(which))
            records = self._stretches.take(places + first, wanted)
            if not records.column(ROW).equals(sought):
                # Some rows share their word, and others than those asked for came along.
                records = records.filter(pc.equal(records.column(ROW), sought))
        if wanted != columns:
            records = records.select(columns)
        return [Run(records, self._file.txn)] if records.num_rows else []

    def find_neighbours(self, rows: pa.Array) -> Run | None:
        """Return the records of rows that are just those from one to another, in order, if the index is at hand."""
        words: Words | None = self._cache.get(self._key, is_last=False)
        if words is None:
            return None
        begin = int(words.searchsorted(np.uint64(word_of(rows[0].as_py(), self._skip))))
        end = begin + len(rows)
        if end > len(words) or int(words[end - 1]) != word_of(rows[-1].as_py(), self._skip):
            return None
        records = self._stretches.slice(begin, end, None)
        return Run(records, self._file.txn) if records.column(ROW).equals(rows) else None

    def _words_around(self, rows: pa.Array) -> tuple[Words, int]:
        """Return the words of the rows of the file, from a place on, among which those of `rows` are.

        They are those of the whole file, which are kept; or, where they would fill a small cache and are asked for in
        a portion of the file only, just those of that portion.
        """
        words: Words | None = self._cache.get(self._key)
        if words is not None:
            return words, 0
        blocks = len(self._file.footer.block_rows)
        begin, end = 0, blocks
        is_kept = self._file.rows * WORD_BYTES <= self._cache.bytes_max // INDEX_CACHE_SHARE
        if not is_kept:
            begin, end = self._file.footer.blocks_of(rows[0].as_py(), successor(rows[-1].as_py()))
        table = self._file.read_blocks(begin, end, [ROW])
        words = np.concatenate([key_words(chunk, self._skip) for chunk in table.column(0).chunks])
        if is_kept:
            self._cache.put(self._key, words, words.nbytes)
        return words, sum(self._file.footer.block_rows[:begin])


def neighbours_at(words: Words, asked: Words) -> int | None:
    """Return where in sorted `words` those that are `asked` for stand one after the other, or None if they do not.

    If the last one goes on behind them, that is None too: it has more places than one.
    """
    begin = int(words.searchsorted(asked[0]))
    end = begin + len(asked)
    if end < len(words) and words[end] == asked[-1]:
        return None
    return begin if np.array_equal(words[begin:end], asked) else None


def places_of(words: Words, asked: Words) -> tuple[Indices | None, Indices] | None:
    """Return the places in sorted `words` of those that are `asked` for, and which of these each is (None: just so).

    A word that is asked for may be there several times: then all its places come, one after the other. None if these
    are so many that rows are better looked for by other means.
    """
    begin = words.searchsorted(asked)
    last = len(words) - 1
    hit = words[np.minimum(begin, last)] == asked
    again = hit & (words[np.minimum(begin + 1, last)] == asked) & (begin < last)
    if not again.any():
        if hit.all():
            return None, begin
        which = np.flatnonzero(hit)
        return which, begin[which]
    count = words.searchsorted(asked, "right") - begin
    if not tell_apart(count):
        return None
    which = np.repeat(np.arange(len(asked)), count)
    return which, begin[which] + (np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count))
