"""One key column as bytes whose order is the order of its values.

    type                          bytes                                               width
    boolean                       00 or 01                                            1
    uint8 .. uint64               big-endian                                          its own
    int8 .. int64                 big-endian, sign bit flipped                        its own
    date, time, timestamp         its integer, as a signed one                        4 or 8
    float32, float64              IEEE bits, big-endian; negative: all bits flipped,  4 or 8
                                  else the sign bit flipped
    string (UTF-8), binary        last column: as it is; before: escaped, terminated  any

Of floats, -0.0 is written as 0.0, and every NaN as one NaN, which sorts after infinity.

A string that other columns follow is *terminated*: each 00 in it becomes 00 FF, and 00 00 is put behind it. Since in
the escaped bytes no 00 is followed by 00, the first 00 00 is always the end; since 00 00 is smaller than 00 FF and than
any other byte, "a" sorts before "a\\0" and before "ab", whatever follows. All rows that share the value share its
terminated bytes, and no other row begins with them: a range of rows by key prefix is a range of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidKey
from ebla.model.python_values import python_value
from ebla.model.schema import Column
from ebla.model.value_arrays import array_of

__all__ = ["TERMINATOR", "FixedPart", "TextPart", "part_of"]

TERMINATOR = b"\0\0"
_ZERO, _ZERO_ESCAPED = b"\0", b"\0\xff"

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DAY_MILLISECONDS = 86_400_000
_UNIT_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}

Numbers = np.ndarray[Any, Any]
Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes], Any]


def part_of(column: Column, *, last: bool) -> FixedPart | TextPart:
    """Return the encoding of a key column; `last` tells whether no other column follows."""
    if column.type in (pa.string(), pa.binary()):
        return TextPart(column, terminated=not last)
    return FixedPart(column)


def _one(column: Column, value: object) -> pa.Array:
    """Return any value that the column takes as an array of one; the careful way, for what the quick ways pass on."""
    if value is None:
        raise InvalidKey(f"key column {column.name!r} cannot be null")
    array = array_of([value], column.type, f"key column {column.name!r}", InvalidKey)
    if array.null_count:
        raise InvalidKey(f"key column {column.name!r} cannot be null")
    return array


class FixedPart:
    """A key column of fixed width: a number, a boolean, a date or a time."""

    def __init__(self, column: Column) -> None:
        self.column = column
        type_ = column.type
        self.width = max(1, type_.bit_width // 8)
        self._unsigned = np.dtype(f"u{self.width}")
        self.big_endian = np.dtype(f">u{self.width}")
        self._sign = self._unsigned.type(1 << (8 * self.width - 1))
        self._is_boolean = pa.types.is_boolean(type_)
        self._is_float = pa.types.is_floating(type_)
        self._flip = self._unsigned.type(0) if pa.types.is_unsigned_integer(type_) else self._sign
        if self._is_float:
            float_type = np.dtype(f"f{self.width}").type
            self._canonical_nan = self._map_float(np.array([np.nan], float_type))[0]
            self._infinity = self._map_float(np.array([np.inf], float_type))[0]
        self.pack, self.unpack = _scalar_coders(self)

    def to_unsigned(self, array: pa.Array) -> Numbers:
        """Return the values of an array without nulls as unsigned numbers of the same order."""
        if self._is_boolean:
            return pc.cast(array, pa.uint8()).to_numpy()  # type: ignore[no-any-return]
        data = array.buffers()[1]
        if len(array) == 0 or data is None:
            return np.empty(0, self._unsigned)
        at = array.offset * self.width
        if self._is_float:
            return self._map_float(np.frombuffer(data, f"f{self.width}", len(array), at))
        numbers: Numbers = np.frombuffer(data, self._unsigned, len(array), at) ^ self._flip
        return numbers

    def from_unsigned(self, numbers: Numbers) -> pa.Array:
        """Return what `to_unsigned` was given; raise `InvalidKey` if it cannot have been any array."""
        numbers = numbers.astype(self._unsigned, copy=False)
        if self._is_boolean:
            if numbers.size and numbers.max() > 1:
                raise InvalidKey(f"key column {self.column.name!r}: a boolean is the byte 0 or 1")
            return pa.array(numbers.astype(np.bool_))
        if self._is_float:
            foreign = (numbers > self._infinity) & (numbers != self._canonical_nan) | (numbers == self._sign - 1)
            foreign |= numbers < ~self._infinity
            if foreign.any():
                raise InvalidKey(f"key column {self.column.name!r}: a float that no key is written with")
            data = np.where(numbers & self._sign, numbers ^ self._sign, ~numbers)
        else:
            data = numbers ^ self._flip
        return pa.Array.from_buffers(self.column.type, len(data), [None, pa.py_buffer(np.ascontiguousarray(data))])

    def _map_float(self, values: Numbers) -> Numbers:
        # Adding 0.0 turns -0.0 into 0.0 and nothing else into anything else.
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values + values.dtype.type(0))
        bits = values.view(self._unsigned)
        return np.where(bits & self._sign, ~bits, bits ^ self._sign)

    def pack_carefully(self, value: object) -> bytes:
        """Encode any value that the column takes, or raise `InvalidKey` saying why it does not."""
        return self.to_unsigned(_one(self.column, value)).astype(self.big_endian).tobytes()


class TextPart:
    """A string or binary key column, terminated if others follow."""

    def __init__(self, column: Column, *, terminated: bool) -> None:
        self.column = column
        self.terminated = terminated
        self._is_string = column.type == pa.string()
        self.pack: Pack = self._pack_terminated if terminated else self.pack_raw
        self.unpack: Unpack = self._unpack_string if self._is_string else bytes

    def to_escaped(self, array: pa.Array) -> pa.Array:
        """Return the values as binary, escaped if the part is a terminated one, but without the terminator."""
        raw = array.view(pa.binary()) if self._is_string else array
        if self.terminated and _has_zero(raw):
            raw = pc.replace_substring(raw, _ZERO, _ZERO_ESCAPED)
        return raw

    def from_escaped(self, raw: pa.Array) -> pa.Array:
        """Return what `to_escaped` was given; raise `InvalidKey` if it cannot have been any array."""
        if self.terminated and _has_zero(raw):
            data = _data(raw)
            zeros = np.flatnonzero(data == 0)
            # No value ends in 00 here, for it and the terminator would have been taken for one a byte earlier.
            if (data[np.minimum(zeros + 1, len(data) - 1)] != 0xFF).any():
                raise InvalidKey(f"key column {self.column.name!r}: a byte 00 that is neither escaped nor the end")
            raw = pc.replace_substring(raw, _ZERO_ESCAPED, _ZERO)
        if not self._is_string:
            return raw
        try:
            text = raw.view(pa.string())
            text.validate(full=True)  # quicker than a cast, which checks the same
            return text
        except pa.ArrowInvalid:
            raise InvalidKey(f"key column {self.column.name!r}: bytes that are not UTF-8") from None

    def pack_raw(self, value: Any) -> bytes:
        """Return the bytes of one value as they are."""
        if type(value) is bytes and not self._is_string:
            return value
        if type(value) is str and self._is_string:
            try:
                return value.encode()
            except UnicodeEncodeError:
                pass  # a lone surrogate: the careful way says so
        plain: bytes = _one(self.column, value).view(pa.binary())[0].as_py()
        return plain

    def _pack_terminated(self, value: Any) -> bytes:
        return self.pack_raw(value).replace(_ZERO, _ZERO_ESCAPED) + TERMINATOR

    def _unpack_string(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise InvalidKey(f"key column {self.column.name!r}: bytes that are not UTF-8") from None

    def unescape(self, raw: bytes) -> bytes:
        """Return the bytes of one value from its escaped ones."""
        if _ZERO in raw:
            if raw.count(_ZERO) != raw.count(_ZERO_ESCAPED):
                raise InvalidKey(f"key column {self.column.name!r}: a byte 00 that is neither escaped nor the end")
            return raw.replace(_ZERO_ESCAPED, _ZERO)
        return raw


def _data(array: pa.Array) -> Numbers:
    """Return the bytes of all values of a binary array, one after the other."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or data is None:
        return np.empty(0, np.uint8)
    first, last = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset)[[0, -1]]
    return np.frombuffer(data, np.uint8, last - first, first) if last > first else np.empty(0, np.uint8)


def _has_zero(array: pa.Array) -> bool:
    data = _data(array)
    return bool(data.size and data.min() == 0)


# --- one value, quickly --------------------------------------------------------------------------
#
# Each quick way knows one Python type exactly and hands everything else, misfits too, to `pack_carefully`.


class _NotExact(Exception):
    """The quick way would lose something: let the careful way explain."""


def _scalar_coders(part: FixedPart) -> tuple[Pack, Unpack]:
    type_ = part.column.type
    if pa.types.is_boolean(type_):
        return _boolean_coders(part)
    if pa.types.is_floating(type_):
        return _float_coders(part)
    code = struct.Struct({1: ">B", 2: ">H", 4: ">I", 8: ">Q"}[part.width])
    pack_int, unpack_int, carefully = code.pack, code.unpack, part.pack_carefully
    flip = 0 if pa.types.is_unsigned_integer(type_) else 1 << (8 * part.width - 1)
    kind, to_int, from_int = _temporal_coders(type_)

    def pack(value: Any) -> bytes:
        if type(value) is kind:
            try:
                return pack_int(to_int(value) + flip)
            except (struct.error, _NotExact):
                pass
        return carefully(value)

    def unpack(raw: bytes) -> Any:
        number = unpack_int(raw)[0] - flip
        try:
            return from_int(number)
        except (OverflowError, ValueError, pa.ArrowException) as reason:
            raise InvalidKey(f"key column {part.column.name!r}: Python has no {type_} of {number}: {reason}") from None

    def pack_integer(value: Any) -> bytes:
        if type(value) is int:
            try:
                return pack_int(value + flip)
            except struct.error:
                pass
        return carefully(value)

    def unpack_integer(raw: bytes) -> Any:
        return unpack_int(raw)[0] - flip

    return (pack_integer, unpack_integer) if pa.types.is_integer(type_) else (pack, unpack)


def _boolean_coders(part: FixedPart) -> tuple[Pack, Unpack]:
    def pack(value: Any) -> bytes:
        return b"\1" if value is True else b"\0" if value is False else part.pack_carefully(value)

    def unpack(raw: bytes) -> Any:
        if raw not in (b"\0", b"\1"):
            raise InvalidKey(f"key column {part.column.name!r}: a boolean is the byte 0 or 1")
        return raw == b"\1"

    return pack, unpack


def _float_coders(part: FixedPart) -> tuple[Pack, Unpack]:
    width = part.width
    pack_float = struct.Struct(">f" if width == 4 else ">d").pack
    ones = (1 << 8 * width) - 1
    sign = 1 << (8 * width - 1)

    def pack(value: Any) -> bytes:
        if type(value) is float and value == value:  # NaN is not itself
            try:
                bits = int.from_bytes(pack_float(value + 0.0), "big")
            except OverflowError:  # too large for a float32: the careful way says so
                return part.pack_carefully(value)
            if bits == sign:  # a tiny negative that a float32 rounds to -0.0
                bits = 0
            mapped: int = bits ^ (ones if bits & sign else sign)
            return mapped.to_bytes(width, "big")
        return part.pack_carefully(value)

    def unpack(raw: bytes) -> Any:
        return part.from_unsigned(np.frombuffer(raw, part.big_endian))[0].as_py()

    return pack, unpack


def _temporal_coders(type_: pa.DataType) -> tuple[type, Callable[[Any], int], Callable[[int], Any]]:
    """Return the Python type of a date, time or timestamp, and the ways to the integer behind it and back."""
    if pa.types.is_integer(type_):
        return int, int, int
    if pa.types.is_date(type_):
        scale = 1 if type_ == pa.date32() else _DAY_MILLISECONDS

        def from_number(number: int) -> date:
            days, rest = divmod(number, scale)
            if rest:
                raise ValueError("it is no whole number of days")
            return date.fromordinal(days + _EPOCH_ORDINAL)

        return date, lambda value: (value.toordinal() - _EPOCH_ORDINAL) * scale, from_number
    kind, to_microseconds, from_microseconds = _time_coders() if pa.types.is_time(type_) else _timestamp_coders(type_)
    if type_.unit == "ns":
        # Python's own types stop at microseconds: Arrow knows what stands in for them, if anything does.
        return kind, lambda value: to_microseconds(value) * 1_000, lambda number: python_value(pa.scalar(number, type_))
    unit_microseconds = _UNIT_MICROSECONDS[type_.unit]

    def to_units(value: Any) -> int:
        units, rest = divmod(to_microseconds(value), unit_microseconds)
        if rest:
            raise _NotExact
        return units

    return kind, to_units, lambda number: from_microseconds(number * unit_microseconds)


def _time_coders() -> tuple[type, Callable[[Any], int], Callable[[int], Any]]:
    def to_microseconds(value: time) -> int:
        if value.tzinfo is not None:
            raise _NotExact
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond

    def from_microseconds(number: int) -> time:
        if not 0 <= number < _DAY_MILLISECONDS * 1_000:
            raise ValueError("a day has 24 hours")
        return (_EPOCH + timedelta(microseconds=number)).time()

    return time, to_microseconds, from_microseconds


def _timestamp_coders(type_: pa.DataType) -> tuple[type, Callable[[Any], int], Callable[[int], Any]]:
    zoned = type_.tz is not None
    epoch = _EPOCH_UTC if zoned else _EPOCH

    def to_microseconds(value: datetime) -> int:
        if (value.tzinfo is not None) != zoned:
            raise _NotExact
        since = value - epoch
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

    def from_microseconds(number: int) -> datetime:
        moment = epoch + timedelta(microseconds=number)
        return moment.astimezone(pa.scalar(0, type_).as_py().tzinfo) if zoned else moment

    return datetime, to_microseconds, from_microseconds
