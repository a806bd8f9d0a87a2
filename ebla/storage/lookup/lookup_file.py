"""A lookup file while it is open: finds the records of one row by one read of a few kilobytes.

    row -> word -> block, by the index in memory -> place in the block, by its words -> values, if the row is that one

It is read by its descriptor and not mapped: a mapped file that is cut, or whose disk fails, kills the process, and
what is mapped counts as memory of the process. The page cache is the cache either way.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from ebla.model.order import word_of
from ebla.storage.files.files import Files
from ebla.storage.lookup.lookup_format import TRAILER, About, Damaged, checksum, lookup_path, unpack_end
from ebla.storage.lookup.row_values import Elsewhere, RecordShape, Values

__all__ = ["LookupFile"]

_WORD = struct.Struct(">Q")
_decode = msgspec.msgpack.Decoder(list).decode


class LookupFile:
    """An open lookup file. Safe to use from several threads; closed when nobody has it any more."""

    __slots__ = (
        "_checksums",
        "_file",
        "_index",
        "_offsets",
        "_read",
        "_skip",
        "_words",
        "about",
        "bytes",
        "index_bytes",
        "shape",
        "used",
    )

    def __init__(self, files: Files, fragment: str, fragment_bytes: int) -> None:
        """Open the lookup file of a fragment; `Damaged` if it is not one, `OSError` if it cannot be read."""
        file = files.open_at(lookup_path(fragment))
        self._file = file
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
        self._words, self._offsets, self._checksums = self._index.words, self._index.offsets, self._index.checksums

    def find(self, row: bytes) -> Values | None:
        """Return the key and the records of a row, None if there are none; `Elsewhere` if they are not here.

        `Damaged` or `OSError` if that cannot be told.
        """
        self.used += 1
        number = self._number(row)
        return None if number is None else _within(*self._block(number), row)

    def find_sorted(self, rows: Sequence[bytes]) -> list[Values]:
        """Return the values of those of many rows that are there, as `find`; quick where rows come in order."""
        self.used += len(rows)
        found = []
        held: int | None = None
        for row in rows:
            number = self._number(row)
            if number is None:
                continue
            if number != held:
                view, numbers = self._block(number)
                held = number
            values = _within(view, numbers, row)
            if values is not None:
                found.append(values)
        return found

    def _number(self, row: bytes) -> int | None:
        """Return the number of the block that may have a row."""
        words = self._words
        word = _word(row, self._skip)
        number = bisect_left(words, word)
        if number < len(words) and words[number] == word:
            # Rows of several blocks may share their word.
            number += bisect_left(range(number, bisect_right(words, word)), row, key=self._index.last_row)
        return number if number < len(words) else None

    def _block(self, number: int) -> tuple[memoryview, memoryview]:
        """Return the bytes of a block, and the same as numbers."""
        offsets = self._offsets
        begin = offsets[number]
        raw = self._read(offsets[number + 1] - begin, begin)
        if checksum(raw) != self._checksums[number]:
            raise Damaged("a block is not what was written")
        view = memoryview(raw)
        return view, view.cast("Q")

    def rows_from(self, row: bytes) -> Iterator[Values]:
        """Yield the rows from `row` on, with their records; those whose records are elsewhere as their key alone."""
        index = self._index
        prefix = index.last_row(0)[: self._skip]
        block = 0
        if row[: self._skip] == prefix:  # else words do not tell where it belongs
            number = self._number(row)
            if number is None:
                return
            block = number
        elif row > prefix:
            return
        for number in range(block, len(index.words)):
            view, numbers = self._block(number)
            for place in range(1, numbers[0] + 1):
                values = _at(view, numbers, place)
                if values[0] >= row:
                    yield values


def _word(row: bytes, skip: int) -> int:
    word: int = _WORD.unpack_from(row, skip)[0] if len(row) >= skip + 8 else word_of(row, skip)
    return word


def _within(view: memoryview, numbers: memoryview, row: bytes) -> Values | None:
    """Return the values of a row that may be in a block."""
    count = numbers[0]
    word = _word(row, numbers[1])
    place = bisect_left(numbers, word, 2, count + 2)
    if place > count + 1 or numbers[place] != word:
        return None
    if place <= count and numbers[place + 1] == word:
        tied = range(place, bisect_right(numbers, word, place, count + 2))
        place += bisect_left(tied, row, key=lambda at: _at(view, numbers, at - 1)[0])
        if place == tied.stop:
            return None
    at = count + place
    values: Values = _decode(view[numbers[at] : numbers[at + 1]])
    if values[0] != row:
        return None
    if len(values) == 1:
        raise Elsewhere
    return values


def _at(view: memoryview, numbers: memoryview, place: int) -> Values:
    """Return the values of one of the rows of a block, by its number from 1 on."""
    at = numbers[0] + 1 + place
    values: Values = _decode(view[numbers[at] : numbers[at + 1]])
    return values
