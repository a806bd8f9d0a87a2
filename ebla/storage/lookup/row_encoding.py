"""Rows as bytes, one after the other, made of Arrow columns without a Python loop.

A row is one MessagePack array: its key, then the fields of each of its records, newest first, in the order of `Fields`.

    array32 1 + 2 * 3 | bin32 key | txn  "17"  "18" | txn  "17"  "18"         a row with two records of three fields

Every field of a record is a column of the fragment, and a row of one record is decoded to a list by one call. Numbers
take nine bytes and texts five more than they have, whatever their size: then where they stand is known without looking
at them one by one, and Arrow joins the pieces. A value is there as it lies in an Arrow buffer, its *physical* value; of
the types whose Python values are others (dates, moments, decimals) one value at a time is made when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.order import Indices, offsets_and_data
from ebla.model.python_values import python_value
from ebla.storage.record.records import ROW

__all__ = ["RECORDS_MAX", "EncodedRows", "can_encode", "column_of", "encode_rows", "logical_of"]

# A row with more records than this is not laid out: to decode all of them for the newest would take too long.
RECORDS_MAX = 256

_ARRAY, _BINARY, _TEXT, _SIGNED, _UNSIGNED, _FLOAT, _FALSE = 0xDD, 0xC6, 0xDB, 0xD3, 0xCF, 0xCB, 0xC2

_Bytes: TypeAlias = npt.NDArray[np.uint8]
# Pieces of rows: so many bytes of each, or an array of them.
_Piece: TypeAlias = "_Bytes | pa.Array"


@cache
def _nil() -> pa.Scalar:
    # When it is needed, not on import: with its first scalar, pyarrow imports pandas where that is installed.
    return pa.scalar(b"\xc0", pa.binary())


@cache
def _empty() -> pa.Scalar:
    return pa.scalar(b"", pa.binary())


def can_encode(kind: pa.DataType) -> bool:
    """Tell whether values of a type can be in a lookup file: all but those that are nested."""
    return (
        pa.types.is_primitive(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_decimal256(kind)
        or pa.types.is_fixed_size_binary(kind)
        or kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
    ) and not pa.types.is_interval(kind)


def logical_of(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes the Python value of a physical one; None where they are the same."""
    if pa.types.is_temporal(kind):
        width = np.int32 if kind.bit_width == 32 else np.int64
        return lambda value: _python(kind, width(value).tobytes())
    if pa.types.is_decimal(kind):
        return lambda value: _python(kind, value)
    return None


def _python(kind: pa.DataType, raw: bytes) -> Any:
    return python_value(pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(raw)])[0])


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return physical values as the column that they are of."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    if pa.types.is_decimal(kind):
        raw = pa.array(values, pa.binary(kind.byte_width))
        return pa.Array.from_buffers(kind, len(raw), raw.buffers())
    return pa.array(values, kind)


class EncodedRows:
    """Rows that stand one after the other in `data`: where each ends, and the records that each begins with."""

    __slots__ = ("data", "ends", "firsts")

    def __init__(self, data: pa.Buffer, ends: Indices, firsts: Indices) -> None:
        self.data = data
        self.ends = ends
        self.firsts = firsts


def encode_rows(records: pa.RecordBatch, fields: Sequence[str]) -> EncodedRows:
    """Return the rows of sorted records; all records of a row have to be among them."""
    keys = records.column(ROW)
    firsts = _first_records(keys)
    counts = np.diff(firsts, append=records.num_rows)
    long = counts > RECORDS_MAX
    if long.any():
        return _encode_some(records, fields, firsts, counts, long)
    return _encode(records, fields, firsts, counts * len(fields) + 1)


def _first_records(keys: pa.Array) -> Indices:
    """Return the places at which another row begins."""
    if len(keys) < 2:
        return np.arange(len(keys))
    others = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(others) + 1])


def _encode_some(
    records: pa.RecordBatch, fields: Sequence[str], firsts: Indices, counts: Indices, long: npt.NDArray[np.bool_]
) -> EncodedRows:
    """Encode rows of which some have too many records: of these only the key, which says to look elsewhere."""
    is_kept = np.ones(records.num_rows, dtype=np.bool_)
    for first, count in zip(firsts[long].tolist(), counts[long].tolist(), strict=True):
        is_kept[first + 1 : first + count] = False
    kept = records.filter(pa.array(is_kept))
    counts = np.where(long, 1, counts)
    begins = np.cumsum(counts) - counts
    sizes = np.where(long, 1, counts * len(fields) + 1)
    hidden = np.zeros(kept.num_rows, dtype=np.bool_)
    hidden[begins[long]] = True
    encoded = _encode(kept, fields, begins, sizes, hidden)
    return EncodedRows(encoded.data, encoded.ends, firsts)


def _encode(
    records: pa.RecordBatch,
    fields: Sequence[str],
    firsts: Indices,
    sizes: Indices,
    hidden: npt.NDArray[np.bool_] | None = None,
) -> EncodedRows:
    """Encode rows that begin at `firsts`, as arrays of so many values; those of `hidden` records are left out."""
    count = records.num_rows
    pieces: list[_Piece] = []
    for name in fields:
        pieces += _pieces_of(records.column(name))
    if hidden is not None:
        pieces = [pc.if_else(pa.array(hidden), _empty(), _as_binary(piece)) for piece in pieces]
    keys = records.column(ROW)
    lengths = np.diff(offsets_and_data(keys)[0])
    starts = np.concatenate([_tagged(_ARRAY, sizes.astype(">u4")), _tagged(_BINARY, lengths[firsts].astype(">u4"))], 1)
    if len(firsts) == count:
        pieces = [starts, keys, *pieces]
    else:  # the records of a row after its first have no key
        own = keys.take(pa.array(firsts))
        pieces = [_only_at(_as_binary(starts), firsts, count), _only_at(own, firsts, count), *pieces]
    joined = pc.binary_join_element_wise(*map(_as_binary, _adjoined(pieces)), _empty())
    offsets, _ = offsets_and_data(joined)
    ends = offsets[np.append(firsts[1:], count)].astype(np.int64) - int(offsets[0])
    data = joined.buffers()[2].slice(int(offsets[0]), int(ends[-1]))
    return EncodedRows(data, ends, firsts)


def _only_at(values: pa.Array, places: Indices, count: int) -> pa.Array:
    """Return as many values as there are records: those given at their places, and empty ones."""
    offsets, data = offsets_and_data(values)
    lengths = np.zeros(count + 1, dtype=np.int32)
    lengths[places + 1] = np.diff(offsets)
    body = data[offsets[0] : offsets[-1]]
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(np.cumsum(lengths, dtype=np.int32)), pa.py_buffer(body)]
    )


def _adjoined(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Put pieces of fixed widths that stand side by side together: fewer to be joined."""
    found: list[_Piece] = []
    for piece in pieces:
        if isinstance(piece, np.ndarray) and found and isinstance(found[-1], np.ndarray):
            found[-1] = np.concatenate([found[-1], piece], axis=1)
        else:
            found.append(piece)
    return found


def _as_binary(piece: _Piece) -> pa.Array:
    if not isinstance(piece, np.ndarray):
        return piece
    count, width = piece.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    flat = np.ascontiguousarray(piece).reshape(-1)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(flat)])


def _tagged(tag: int, numbers: npt.NDArray[Any]) -> _Bytes:
    """Return numbers, which are big-endian, as bytes, each behind a tag."""
    out = np.empty((len(numbers), 1 + numbers.dtype.itemsize), dtype=np.uint8)
    out[:, 0] = tag
    out[:, 1:] = numbers.view(np.uint8).reshape(len(numbers), -1)
    return out


def _pieces_of(column: pa.Array) -> list[_Piece]:
    """Return the pieces of the values of a column."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    valid = None if not column.null_count else pc.is_valid(column)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        column = column.cast(pa.string() if pa.types.is_large_string(kind) else pa.binary())
    elif pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
        column = _raw(column).cast(pa.binary())
    if column.type in (pa.string(), pa.binary()):
        tag = _TEXT if column.type == pa.string() else _BINARY
        values = column if tag == _BINARY else column.view(pa.binary())
        header = _tagged(tag, np.diff(offsets_and_data(values)[0]).astype(">u4"))
        if valid is None:
            return [header, values]
        return [pc.if_else(valid, _as_binary(header), _nil()), pc.if_else(valid, values, _empty())]
    piece = _numbers(column)
    return [piece] if valid is None else [pc.if_else(valid, _as_binary(piece), _nil())]


def _raw(column: pa.Array) -> pa.Array:
    """Return values of a fixed number of bytes as these bytes."""
    width = column.type.byte_width
    return pa.Array.from_buffers(pa.binary(width), len(column), [None, column.buffers()[1]], offset=column.offset)


def _numbers(column: pa.Array) -> _Bytes:
    """Return numbers, or what is one in a buffer, as MessagePack; of nulls, anything."""
    kind = column.type
    if pa.types.is_boolean(kind):
        flags = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
        encoded: _Bytes = (flags.astype(np.uint8) + np.uint8(_FALSE)).reshape(-1, 1)
        return encoded
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        kind = column.type
    values = pc.fill_null(column, pa.scalar(0).cast(kind)).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        return _tagged(_FLOAT, values.astype(">f8"))
    if pa.types.is_unsigned_integer(kind):
        return _tagged(_UNSIGNED, values.astype(">u8"))
    return _tagged(_SIGNED, values.astype(">i8"))
