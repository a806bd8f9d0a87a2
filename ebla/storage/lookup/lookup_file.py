"""A lookup file while it is open: finds the records of one row by one read of a few kilobytes.

    row -> word -> block, by the index in memory -> place in the block, by its words -> values, if the row is that one

It is read by its descriptor and not mapped: a mapped file that is cut, or whose disk fails, kills the process, and
what is mapped counts as memory of the process. The page cache is the cache either way.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from ebla.model.order import word_of
from ebla.storage.files.files import Files
from ebla.storage.lookup.lookup_format import TRAILER, About, Damaged, checksum, lookup_path, unpack_end
from ebla.storage.lookup.row_values import RecordShape, Values

__all__ = ["Elsewhere", "LookupFile"]


class Elsewhere(Exception):
    """A row has too many records for a lookup file: the fragment has to be asked."""


class LookupFile:
    """An open lookup file. Safe to use from several threads; closed when nobody has it any more."""

    __slots__ = ("_decode", "_index", "_read", "_skip", "about", "bytes", "index_bytes", "shape", "used")

    def __init__(self, files: Files, fragment: str, fragment_bytes: int) -> None:
        """Open the lookup file of a fragment; `Damaged` if it is not one, `OSError` if it cannot be read."""
        file = files.open_at(lookup_path(fragment))
        self._read = file.read_at
        size = file.size
        if size < TRAILER.size:
            raise Damaged("it is cut")
        index_bytes, about_bytes, expected, _ = TRAILER.unpack(self._read(TRAILER.size, size - TRAILER.size))
        end_bytes = index_bytes + about_bytes
        if end_bytes + TRAILER.size > size:
            raise Damaged("its index is not what was written")
        raw = self._read(end_bytes, size - TRAILER.size - end_bytes)
        self._index, about = unpack_end(raw, index_bytes, expected)
        if (about.fragment, about.fragment_bytes) != (fragment, fragment_bytes):
            raise Damaged(f"it is of {about.fragment} of {about.fragment_bytes} bytes")
        # All set once, but for `used`, which whoever finds a row counts up.
        self.about: About = about
        self.shape = RecordShape(pa.ipc.read_schema(pa.py_buffer(about.fields)))
        self.bytes = size
        self.index_bytes = end_bytes
        self.used = 0
        self._skip = about.skip
        self._decode = msgspec.msgpack.Decoder(list).decode

    def find(self, row: bytes) -> Values | None:
        """Return the key and the records of a row, None if there are none; `Elsewhere` if they are not here.

        `Damaged` or `OSError` if that cannot be told.
        """
        self.used += 1
        index = self._index
        word = word_of(row, self._skip)
        block = bisect_left(index.words, word)
        if block == len(index.words):
            return None
        if block + 1 < len(index.words) and index.words[block] == word:
            # Rows of several blocks may share their word.
            tied = range(block, bisect_right(index.words, word))
            block += bisect_left(tied, row, key=index.last_row)
            if block == len(index.words):
                return None
        raw = self._block(block)
        view = memoryview(raw)
        numbers = view.cast("Q")
        count = numbers[0]
        begin = bisect_left(numbers, word, 1, count + 1)
        if begin > count or numbers[begin] != word:
            return None
        end = begin + 1
        if end <= count and numbers[end] == word:
            tied = range(begin, bisect_right(numbers, word, begin, count + 1))
            begin += bisect_left(tied, row, key=lambda at: self._at(view, numbers, at)[0])
            if begin == tied.stop:
                return None
        values = self._at(view, numbers, begin)
        if values[0] != row:
            return None
        if len(values) == 1:
            raise Elsewhere
        return values

    def _block(self, number: int) -> bytes:
        index = self._index
        begin = index.offsets[number]
        raw = self._read(index.offsets[number + 1] - begin, begin)
        if checksum(raw) != index.checksums[number]:
            raise Damaged("a block is not what was written")
        return raw

    def _at(self, view: memoryview, numbers: memoryview, place: int) -> Values:
        at = numbers[0] + place
        values: Values = self._decode(view[numbers[at] : numbers[at + 1]])
        return values

    def rows_from(self, row: bytes) -> Iterator[Values]:
        """Yield the rows from `row` on, with their records; those whose records are elsewhere as their key alone."""
        index = self._index
        prefix = index.last_row(0)[: self._skip]
        block = 0
        if row[: self._skip] == prefix:  # else words do not tell where it belongs
            word = word_of(row, self._skip)
            block = bisect_left(index.words, word)
            if block < len(index.words) and index.words[block] == word:
                block += bisect_left(range(block, bisect_right(index.words, word)), row, key=index.last_row)
        elif row > prefix:
            return
        for number in range(block, len(index.words)):
            view = memoryview(self._block(number))
            numbers = view.cast("Q")
            for place in range(1, numbers[0] + 1):
                values = self._at(view, numbers, place)
                if values[0] >= row:
                    yield values
