"""Keys as rows: bytes whose order is the order of the keys.

    ("ada", date32 2026-01-01)   <->   61 64 61 00 00  80 00 4f e6
                                       a  d  a  end    day 20454, sign bit flipped

A row is the encodings of the key's columns one after the other (`key_parts.py` has the table). Rows compare as bytes
as their keys compare as tuples; a row can be turned back into its key. A key of one binary or string column is its own
row: for it, nothing is copied.

Arrays are encoded and decoded by kernels over whole columns (key_arrays.py). `KeyCodec.encode` for one key is plain
Python and gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidKey, RequestError, shown
from ebla.model.casts import cast_array
from ebla.model.key_arrays import (
    columns_of_rows,
    joined_rows,
    numbers_of_rows,
    offsets_of,
    rows_of_bytes,
    rows_of_numbers,
    undecodable,
)
from ebla.model.key_parts import TERMINATOR, FixedPart, TextPart, part_of
from ebla.model.ranges import ALL, KeyRange, prefix_end, successor
from ebla.model.schema import Column
from ebla.model.value_arrays import array_of, natural_types

__all__ = ["KeyCodec"]

_KEY_BYTES_MAX_DEFAULT = 65_536


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
            raise undecodable(self._parts, "it is too short")
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
                    raise undecodable(self._parts, "it is too short")
            elif part.terminated:
                end = row.find(TERMINATOR, at)
                if end < 0:
                    raise undecodable(self._parts, f"{part.column.name!r} has no end")
                raw, at = part.unescape(row[at:end]), end + len(TERMINATOR)
            else:
                raw, at = row[at:], len(row)
            values.append(part.unpack(raw))
        if at != len(row):
            raise undecodable(self._parts, "it is too long")
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
            rows = rows_of_bytes(keys)
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
            rows = rows_of_numbers(self._fixed_parts, columns)
        else:
            rows = joined_rows(self._parts, columns)
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
        offsets = offsets_of(rows)
        if offsets[-1] - offsets[0] <= self.key_bytes_max:
            return
        lengths = np.diff(offsets)
        if lengths.max() > self.key_bytes_max:
            at = int(np.argmax(lengths > self.key_bytes_max))
            raise InvalidKey(
                f"the key of row {at} has {lengths[at]} bytes: at most {self.key_bytes_max} are allowed, shorten it"
            )

    def decode_arrays(self, rows: pa.Array) -> list[pa.Array]:
        """Return the columns of the keys that `rows` are, in the key's types. Raises `InvalidKey` where one is none."""
        if rows.type != pa.binary() or rows.null_count:
            raise InvalidKey(f"rows are binary and never null, not {rows.type} with {rows.null_count} nulls")
        if self.is_simple:
            return [self._text_part(0).from_escaped(rows)]
        if len(rows) == 0:
            return [pa.array([], type_) for type_ in self.types]
        if self._is_fixed:
            return numbers_of_rows(self._fixed_parts, rows)
        return columns_of_rows(self._parts, rows)

    def _text_part(self, at: int) -> TextPart:
        part = self._parts[at]
        assert isinstance(part, TextPart)
        return part


def _may_be_empty(part: FixedPart | TextPart) -> bool:
    """Tell whether a column may take no bytes in a row: the last one, if it is text."""
    return isinstance(part, TextPart) and not part.terminated


def _frame(keys: Any) -> pa.Table:
    """Return the columns of a pandas or polars frame; the index that pandas sends along is none of them."""
    table = pa.table(keys)
    return table.select([name for name in table.schema.names if not name.startswith("__index_level_")])
