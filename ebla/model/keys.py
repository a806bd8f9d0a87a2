"""Keys as rows: bytes whose order is the order of the keys.

    ("ada", date32 2026-01-01)   <->   61 64 61 00 00  80 00 4f e6
                                       a  d  a  end    day 20454, sign bit flipped

A row is the encodings of the key's columns one after the other (`key_parts.py` has the table). Rows compare as bytes
as their keys compare as tuples; a row can be turned back into its key. A key of one binary or string column is its own
row: for it, nothing is copied.

Arrays are encoded and decoded by kernels over whole columns. `KeyCodec.encode` for one key is plain Python and gives
the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidKey, RequestError, shown
from ebla.model.casts import array_of, cast_array, natural_types
from ebla.model.key_parts import TERMINATOR, FixedPart, TextPart, part_of
from ebla.model.ranges import ALL, KeyRange, prefix_end, successor
from ebla.model.schema import Column

__all__ = ["KeyCodec"]

_KEY_BYTES_MAX_DEFAULT = 65_536
_ARRAY_BYTES_MAX = (1 << 31) - 1  # of pa.binary(), whose offsets are int32

Numbers = np.ndarray[Any, Any]


class KeyCodec:
    """Turns keys of one table into rows and back."""

    encode: Callable[[object], bytes]
    """Return the row of one key: a scalar for a key of one column, else a tuple, a list, or a mapping by name.

    Raises `InvalidKey` for a key of another shape, a null, a value of the wrong type or out of range, or a row that is
    longer than allowed.
    """

    def __init__(self, key: Sequence[Column], key_bytes_max: int = _KEY_BYTES_MAX_DEFAULT) -> None:
        # All set once.
        self.key = tuple(key)
        self.names = tuple(column.name for column in self.key)
        self.types = tuple(column.type for column in self.key)
        self.key_bytes_max = key_bytes_max
        self._parts = tuple(part_of(column, last=at == len(self.key) - 1) for at, column in enumerate(self.key))
        self._packs = tuple(part.pack for part in self._parts)
        self._fixed_parts = tuple(part for part in self._parts if isinstance(part, FixedPart))
        self._is_fixed = len(self._fixed_parts) == len(self._parts)
        self.is_simple = len(self._parts) == 1 and not self._is_fixed
        """Whether the key is one binary or string column, which is its own row."""
        self._is_binary = self.is_simple and self.types[0] == pa.binary()
        if self.is_simple:
            self.encode = self._encode_binary if self._is_binary else self._encode_string
        elif len(self.key) == 1:
            self.encode = self._encode_scalar
        else:
            self.encode = self._encode_tuple
        self._scalar_types = natural_types(self.types[0])

    # --- one key ---

    def _encode_binary(self, key: object) -> bytes:
        if type(key) is bytes and len(key) <= self.key_bytes_max:
            return key
        return self._encode_tuple(key)

    def _encode_string(self, key: object) -> bytes:
        if type(key) is str:
            try:
                row = key.encode()
                if len(row) <= self.key_bytes_max:
                    return row
            except UnicodeEncodeError:
                pass
        return self._encode_tuple(key)

    def _encode_scalar(self, key: object) -> bytes:
        return self._packs[0](key) if type(key) in self._scalar_types else self._encode_tuple(key)

    def _encode_tuple(self, key: object) -> bytes:
        values = key if type(key) is tuple else self._values(key)
        if len(values) != len(self._packs):
            raise InvalidKey(f"a key of this table is {self._shape()}, not {shown(key)}")
        return self._row(values)

    def _row(self, values: Sequence[object]) -> bytes:
        # Also for the first few columns of a key: zip stops there.
        row = b"".join([pack(value) for pack, value in zip(self._packs, values, strict=False)])
        if len(row) > self.key_bytes_max:
            raise InvalidKey(f"a key of {len(row)} bytes: at most {self.key_bytes_max} are allowed, shorten it")
        return row

    def _values(self, key: object) -> Sequence[object]:
        """Return the values of a key, or of the first few columns of one."""
        if isinstance(key, (tuple, list)):
            return key
        if isinstance(key, Mapping):
            if set(key) != set(self.names[: len(key)]):
                raise InvalidKey(f"a key of this table is {self._shape()}, not {shown(dict(key))}")
            return [key[name] for name in self.names[: len(key)]]
        return (key,)

    def _shape(self) -> str:
        shape = ", ".join(f"{column.name}: {column.type}" for column in self.key)
        return f"one value ({shape})" if len(self.key) == 1 else f"a tuple of {len(self.key)} ({shape})"

    def decode(self, row: bytes) -> tuple[Any, ...]:
        """Return the key of a row as Python values. Raises `InvalidKey` if no key has that row."""
        if self.is_simple:
            return (self._parts[0].unpack(row),)
        values = self._decode(row)
        if len(values) < len(self._parts):
            raise self._undecodable("it is too short")
        return values

    def shown_exactly(self, row: bytes) -> tuple[Any, ...] | bytes:
        """Return the key of a row as Python values if these encode to the same row, else the row."""
        try:
            key = self.decode(row)
            return key if self.encode(key) == row else row
        except RequestError:
            return row

    def decode_bound(self, row: bytes) -> tuple[Any, ...]:
        """Return what `bound` was given: a key, or its first few columns. `InvalidKey` if it is neither."""
        return (self._parts[0].unpack(row),) if self.is_simple else self._decode(row)

    def shown_bound(self, row: bytes) -> Any:
        """Return the bound of a tablet for people: a key, or the first columns of one, if it is that, else bytes."""
        try:
            key = self.decode_bound(row)
        except RequestError:
            return row
        return key[0] if len(key) == 1 else key

    def row_of(self, shown: object) -> bytes:
        """Return the row of a key, or of what `shown_exactly` returned. Raises `InvalidKey` if it is neither."""
        if not isinstance(shown, bytes):
            return self.encode(shown)
        self.decode_arrays(pa.array([shown], pa.binary()))
        return shown

    def _decode(self, row: bytes) -> tuple[Any, ...]:
        """Return the columns of a row, as many as there are."""
        values: list[Any] = []
        at = 0
        for number, part in enumerate(self._parts):
            if at == len(row) and number and not _may_be_empty(part):
                break
            if isinstance(part, FixedPart):
                raw, at = row[at : at + part.width], at + part.width
                if at > len(row):
                    raise self._undecodable("it is too short")
            elif part.terminated:
                end = row.find(TERMINATOR, at)
                if end < 0:
                    raise self._undecodable(f"{part.column.name!r} has no end")
                raw, at = part.unescape(row[at:end]), end + len(TERMINATOR)
            else:
                raw, at = row[at:], len(row)
            values.append(part.unpack(raw))
        if at != len(row):
            raise self._undecodable("it is too long")
        return tuple(values)

    # --- ranges ---

    def bound(self, key: object) -> bytes:
        """Return the smallest row of any key that begins with the columns of `key`: where a scan starts or stops.

        `key` is a key or the first few columns of one; a scalar is the first column.
        """
        values = self._values(key)
        if len(values) > len(self._packs):
            raise InvalidKey(f"a key of this table is {self._shape()}, not {shown(key)}")
        return self._row(values)

    def prefix_range(self, prefix: object) -> KeyRange:
        """Return the rows of all keys whose first columns equal `prefix`; a scalar is the first column.

        Of a key that is one string or binary column, it is the rows of all keys that begin with the string.
        """
        values = self._values(prefix)
        if self.is_simple and len(values) == 1:
            return self.string_prefix_range(values[0])
        row = self.bound(values)
        if not values:
            return ALL
        # A whole key ends in bytes that other keys may begin with, a part of one does not.
        return KeyRange(row, successor(row) if len(values) == len(self._packs) else prefix_end(row))

    def string_prefix_range(self, prefix: object) -> KeyRange:
        """Return the rows of all keys that begin with `prefix`, for a key that is one string or binary column."""
        if not self.is_simple:
            raise InvalidKey(
                f"a key of this table is {self._shape()}: only a single string or binary has such prefixes"
            )
        row = self._row((prefix,))
        return KeyRange(row, prefix_end(row))

    # --- many keys ---

    def encode_many(self, keys: Sequence[object] | pa.Array | pa.ChunkedArray | pa.Table | pa.RecordBatch) -> pa.Array:
        """Return the rows of many keys, in their order: each as `encode` takes it, or Arrow columns of them."""
        if type(keys) in (list, tuple) and self._is_binary:
            rows = _rows_of_bytes(keys)
            if rows is not None:
                self._check_lengths(rows)
                return rows
        is_many = isinstance(keys, Collection) or hasattr(keys, "__arrow_c_stream__")
        if isinstance(keys, (str, bytes)) or not is_many or getattr(keys, "ndim", 1) == 0:
            raise InvalidKey(f"keys is a list of keys, not {shown(keys)}")
        if hasattr(keys, "columns") and hasattr(keys, "__arrow_c_stream__") and not isinstance(keys, pa.Table):
            keys = _frame(keys)
        if isinstance(keys, (pa.Table, pa.RecordBatch)):
            if sorted(keys.schema.names) != sorted(self.names):
                raise InvalidKey(f"a key of this table is {self._shape()}, not the columns {keys.schema.names}")
            return self.encode_arrays([self._fit(keys.column(name), at) for at, name in enumerate(self.names)])
        if isinstance(keys, (pa.Array, pa.ChunkedArray)):
            if len(self.key) != 1:
                raise InvalidKey(f"a key of this table is {self._shape()}: give a table with these columns")
            return self.encode_arrays([self._fit(keys, 0)])
        kinds = set(map(type, keys))
        if len(self.key) == 1 and not any(issubclass(kind, (tuple, list, Mapping)) for kind in kinds):
            columns: list[Sequence[object]] = [keys]
        elif kinds == {tuple} and set(map(len, keys)) == {len(self.key)}:
            columns = list(zip(*keys, strict=True))
        else:
            return pa.array([self.encode(key) for key in keys], pa.binary())
        return self.encode_arrays(
            [
                array_of(values, column.type, f"key column {column.name!r}", InvalidKey)
                for values, column in zip(columns, self.key, strict=True)
            ]
        )

    def _fit(self, array: pa.Array | pa.ChunkedArray, at: int) -> pa.Array:
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        return cast_array(array, self.types[at], f"key column {self.names[at]!r}", InvalidKey)

    def encode_arrays(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the rows of the keys whose columns these are, in key order and in exactly the key's types."""
        self._check(columns)
        if self.is_simple:
            rows = columns[0] if self.types[0] == pa.binary() else columns[0].view(pa.binary())
        elif self._is_fixed:
            rows = _rows_of_numbers(self._fixed_parts, columns)
        else:
            rows = self._join(columns)
        self._check_lengths(rows)
        return rows

    def _check(self, columns: Sequence[pa.Array]) -> None:
        if len(columns) != len(self.key):
            raise InvalidKey(f"a key of this table is {self._shape()}, not {len(columns)} columns")
        for array, name, type_ in zip(columns, self.names, self.types, strict=True):
            if array.type != type_:
                raise InvalidKey(f"key column {name!r} is {type_}, not {array.type}: cast it first")
            if array.null_count:
                at = pc.index(array.is_null(), True).as_py()
                raise InvalidKey(
                    f"key column {name!r} has {array.null_count} nulls, the first in row {at}: a key has none"
                )
            if len(array) != len(columns[0]):
                raise InvalidKey(f"key column {name!r} has {len(array)} rows, not {len(columns[0])}")

    def _check_lengths(self, rows: pa.Array) -> None:
        if self._is_fixed:
            return
        offsets = _offsets(rows)
        if offsets[-1] - offsets[0] <= self.key_bytes_max:
            return
        lengths = np.diff(offsets)
        if lengths.max() > self.key_bytes_max:
            at = int(np.argmax(lengths > self.key_bytes_max))
            raise InvalidKey(
                f"the key of row {at} has {lengths[at]} bytes: at most {self.key_bytes_max} are allowed, shorten it"
            )

    def _join(self, columns: Sequence[pa.Array]) -> pa.Array:
        pieces: list[pa.Array | pa.Scalar] = []
        numbers: list[tuple[FixedPart, pa.Array]] = []
        bytes_total = 0
        end = _scalar(TERMINATOR)

        def add_numbers() -> None:
            if numbers:
                pieces.append(_rows_of_numbers([part for part, _ in numbers], [array for _, array in numbers]))
                numbers.clear()

        for part, array in zip(self._parts, columns, strict=True):
            if isinstance(part, FixedPart):
                numbers.append((part, array))
                bytes_total += part.width * len(array)
                continue
            add_numbers()
            pieces.append(part.to_escaped(array))
            offsets = _offsets(pieces[-1])
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

    def decode_arrays(self, rows: pa.Array) -> list[pa.Array]:
        """Return the columns of the keys that `rows` are, in the key's types. Raises `InvalidKey` where one is none."""
        if rows.type != pa.binary() or rows.null_count:
            raise InvalidKey(f"rows are binary and never null, not {rows.type} with {rows.null_count} nulls")
        if self.is_simple:
            return [self._text_part(0).from_escaped(rows)]
        if len(rows) == 0:
            return [pa.array([], type_) for type_ in self.types]
        data, offsets = rows.buffers()[2], _offsets(rows)
        if data is None or data.size == 0:
            raise self._undecodable("it is too short")
        if self._is_fixed:
            return self._decode_numbers(data, offsets)
        starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
        columns = []
        for at, part in enumerate(self._parts):
            if isinstance(part, FixedPart):
                if (starts + part.width > ends).any():
                    raise self._undecodable("it is too short")
                columns.append(part.from_unsigned(_numbers_at(data, starts, part)))
                starts = starts + part.width
            elif part.terminated:
                found = pc.find_substring(rows if at == 0 else _spans(data, starts, ends), TERMINATOR).to_numpy()
                if found.min() < 0:
                    raise self._undecodable(f"{part.column.name!r} has no end")
                columns.append(part.from_escaped(_spans(data, starts, starts + found)))
                starts = starts + found + len(TERMINATOR)
            else:
                columns.append(part.from_escaped(_spans(data, starts, ends)))
                starts = ends
        if (starts != ends).any():
            raise self._undecodable("it is too long")
        return columns

    def _decode_numbers(self, data: pa.Buffer, offsets: Numbers) -> list[pa.Array]:
        record = _record_type(self._fixed_parts)
        if (np.diff(offsets) != record.itemsize).any():
            raise self._undecodable(f"it is not {record.itemsize} bytes long")
        records: Numbers = np.frombuffer(data, record, len(offsets) - 1, int(offsets[0]))
        return [part.from_unsigned(records[str(at)]) for at, part in enumerate(self._fixed_parts)]

    def _text_part(self, at: int) -> TextPart:
        part = self._parts[at]
        assert isinstance(part, TextPart)
        return part

    def _undecodable(self, reason: str) -> InvalidKey:
        return InvalidKey(f"a row that is no key of ({', '.join(self.names)}): {reason}")


def _may_be_empty(part: FixedPart | TextPart) -> bool:
    """Tell whether a column may take no bytes in a row: the last one, if it is text."""
    return isinstance(part, TextPart) and not part.terminated


def _rows_of_bytes(keys: Sequence[Any]) -> pa.Array | None:
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


def _frame(keys: Any) -> pa.Table:
    """Return the columns of a pandas or polars frame; the index that pandas sends along is none of them."""
    table = pa.table(keys)
    return table.select([name for name in table.schema.names if not name.startswith("__index_level_")])


@cache
def _scalar(value: bytes) -> pa.Scalar:
    # When it is needed, not on import: with its first scalar, pyarrow imports pandas where that is installed.
    return pa.scalar(value, pa.binary())


def _offsets(array: pa.Array) -> Numbers:
    """Return the offsets of a binary array: one more than it has values."""
    offsets = array.buffers()[1]
    if len(array) == 0 or offsets is None:
        return np.zeros(1, np.int32)
    return np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)


def _record_type(parts: Sequence[FixedPart]) -> np.dtype[Any]:
    """Return the type of a numpy record that is a row, or a piece of one: packed, big-endian."""
    return np.dtype([(str(at), part.big_endian) for at, part in enumerate(parts)])


def _rows_of_numbers(parts: Sequence[FixedPart], columns: Sequence[pa.Array]) -> pa.Array:
    count, width = len(columns[0]), sum(part.width for part in parts)
    if count * width > _ARRAY_BYTES_MAX:
        raise InvalidKey(f"{count * width} bytes of keys are too many at once: use fewer rows")
    data = np.empty(count, _record_type(parts))
    for at, (part, column) in enumerate(zip(parts, columns, strict=True)):
        data[str(at)] = part.to_unsigned(column)
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


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
