"""Keys and rows as whole columns: what `KeyCodec` does to arrays, by kernels and without a loop over values.

The encodings of the columns of a key are its parts (key_parts.py). Numbers that stand side by side are packed into rows
as records of numpy; texts are escaped, ended and joined by Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidKey
from ebla.model.key_parts import TERMINATOR, FixedPart, TextPart

__all__ = [
    "columns_of_rows",
    "joined_rows",
    "numbers_of_rows",
    "offsets_of",
    "rows_of_bytes",
    "rows_of_numbers",
    "undecodable",
]

_ARRAY_BYTES_MAX = (1 << 31) - 1  # of pa.binary(), whose offsets are int32

Numbers = np.ndarray[Any, Any]
Parts: TypeAlias = Sequence[FixedPart | TextPart]


# --- keys into rows ------------------------------------------------------------------------------


def rows_of_bytes(keys: Sequence[Any]) -> pa.Array | None:
    """Return keys that are all bytes as an array; None for others."""
    try:
        # Before anything else: this tight loop meets objects all over memory several times as fast as others do.
        data = b"".join(keys)
    except TypeError:
        return None
    count = len(keys)
    if len(data) > _ARRAY_BYTES_MAX or [*map(type, keys)].count(bytes) < count:
        return None
    width = len(data) // max(1, count)
    if not width or [*map(len, keys)].count(width) < count:
        return pa.array(keys, pa.binary())
    offsets = np.arange(0, width * (count + 1), width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def rows_of_numbers(parts: Sequence[FixedPart], columns: Sequence[pa.Array]) -> pa.Array:
    """Return the rows of keys, or the pieces of rows, that are all of numbers."""
    count, width = len(columns[0]), sum(part.width for part in parts)
    if count * width > _ARRAY_BYTES_MAX:
        raise InvalidKey(f"{count * width} bytes of keys are too many at once: use fewer rows")
    data = np.empty(count, _record_type(parts))
    for at, (part, column) in enumerate(zip(parts, columns, strict=True)):
        data[str(at)] = part.to_unsigned(column)
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def joined_rows(parts: Parts, columns: Sequence[pa.Array]) -> pa.Array:
    """Return the rows of keys of numbers and texts, whose columns these are."""
    pieces: list[pa.Array | pa.Scalar] = []
    numbers: list[tuple[FixedPart, pa.Array]] = []
    bytes_total = 0
    end = _scalar(TERMINATOR)

    def add_numbers() -> None:
        if numbers:
            pieces.append(rows_of_numbers([part for part, _ in numbers], [array for _, array in numbers]))
            numbers.clear()

    for part, array in zip(parts, columns, strict=True):
        if isinstance(part, FixedPart):
            numbers.append((part, array))
            bytes_total += part.width * len(array)
            continue
        add_numbers()
        pieces.append(part.to_escaped(array))
        offsets = offsets_of(pieces[-1])
        bytes_total += int(offsets[-1] - offsets[0])
        if part.terminated:
            pieces.append(end)
            bytes_total += len(TERMINATOR) * len(array)
    add_numbers()
    if bytes_total > _ARRAY_BYTES_MAX:
        raise InvalidKey(f"{bytes_total} bytes of keys are too many at once: use fewer rows")
    if all(piece is end for piece in pieces[1::2]):
        return pc.binary_join_element_wise(*pieces[0::2], end)
    return pc.binary_join_element_wise(*pieces, _scalar(b""))


# --- rows into keys ------------------------------------------------------------------------------


def numbers_of_rows(parts: Sequence[FixedPart], rows: pa.Array) -> list[pa.Array]:
    """Return the columns of the keys, all of numbers, that `rows` are; `InvalidKey` where one is none."""
    data, offsets = _data_of(parts, rows)
    record = _record_type(parts)
    if (np.diff(offsets) != record.itemsize).any():
        raise undecodable(parts, f"it is not {record.itemsize} bytes long")
    records: Numbers = np.frombuffer(data, record, len(offsets) - 1, int(offsets[0]))
    return [part.from_unsigned(records[str(at)]) for at, part in enumerate(parts)]


def columns_of_rows(parts: Parts, rows: pa.Array) -> list[pa.Array]:
    """Return the columns of the keys that `rows` are; `InvalidKey` where one is none."""
    data, offsets = _data_of(parts, rows)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    columns = []
    for at, part in enumerate(parts):
        if isinstance(part, FixedPart):
            if (starts + part.width > ends).any():
                raise undecodable(parts, "it is too short")
            columns.append(part.from_unsigned(_numbers_at(data, starts, part)))
            starts = starts + part.width
        elif part.terminated:
            found = pc.find_substring(rows if at == 0 else _spans(data, starts, ends), TERMINATOR).to_numpy()
            if found.min() < 0:
                raise undecodable(parts, f"{part.column.name!r} has no end")
            columns.append(part.from_escaped(_spans(data, starts, starts + found)))
            starts = starts + found + len(TERMINATOR)
        else:
            columns.append(part.from_escaped(_spans(data, starts, ends)))
            starts = ends
    if (starts != ends).any():
        raise undecodable(parts, "it is too long")
    return columns


def _data_of(parts: Parts, rows: pa.Array) -> tuple[pa.Buffer, Numbers]:
    data = rows.buffers()[2]
    if data is None or data.size == 0:
        raise undecodable(parts, "it is too short")
    return data, offsets_of(rows)


def _numbers_at(data: pa.Buffer, starts: Numbers, part: FixedPart) -> Numbers:
    # A view of all overlapping windows, one beginning at every byte, of which we pick some.
    windows: Numbers = np.ndarray((data.size - part.width + 1,), part.big_endian, data, strides=(1,))
    return windows[starts]


def _spans(data: pa.Buffer, starts: Numbers, ends: Numbers) -> pa.Array:
    """Return the bytes between starts and ends, which must be in order and not overlap, as a binary array."""
    # As an array, the spans and the gaps between them are every other value; `take` copies the ones we want.
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    both = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), data])
    return both.take(pa.array(np.arange(0, len(offsets), 2)))


def undecodable(parts: Parts, reason: str) -> InvalidKey:
    """Return the error of a row that cannot be turned back."""
    return InvalidKey(f"a row that is no key of ({', '.join(part.column.name for part in parts)}): {reason}")


# --- what both need ------------------------------------------------------------------------------


def offsets_of(array: pa.Array) -> Numbers:
    """Return the offsets of a binary array: one more than it has values."""
    offsets = array.buffers()[1]
    if len(array) == 0 or offsets is None:
        return np.zeros(1, np.int32)
    return np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)


def _record_type(parts: Sequence[FixedPart]) -> np.dtype[Any]:
    """Return the type of a numpy record that is a row, or a piece of one: packed, big-endian."""
    return np.dtype([(str(at), part.big_endian) for at, part in enumerate(parts)])


@cache
def _scalar(value: bytes) -> pa.Scalar:
    # When it is needed, not on import: with its first scalar, pyarrow imports pandas where that is installed.
    return pa.scalar(value, pa.binary())
