"""What increment and append make of a value: numbers in typed columns, counters in cells, text, bytes and lists.

What they return is what is stored, as a `get` would show it: a sum rounded to a float32 column, a decimal with the
digits of its column, a list whatever sequence was appended.
"""

from __future__ import annotations

import decimal
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ebla.errors import RequestError, shown
from ebla.model.python_values import python_value
from ebla.model.schema import Column, Target
from ebla.model.value_arrays import array_of

__all__ = ["appended", "count_of", "incremented"]

_COUNTER = struct.Struct(">q")
# Room for the sum of any two decimals that a column can have; Python's own context would round the longer ones.
_EXACT = decimal.Context(prec=200, traps=[decimal.InvalidOperation, decimal.Inexact, decimal.Overflow])


def incremented(name: str, by: Any, target: Target, value: Any) -> Any:
    """Return the sum of a value and `by`; nothing there counts as 0."""
    if target.column is not None:
        kind = target.column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise RequestError(f"column {name!r} is {kind}: only numbers can be incremented")
        return _stored(target.column, _sum(name, kind, value or 0, by))
    if value is not None and len(value) != _COUNTER.size:
        raise RequestError(f"{name!r} holds {len(value)} bytes: a counter has {_COUNTER.size}")
    try:
        return _COUNTER.pack((0 if value is None else _COUNTER.unpack(value)[0]) + by)
    except struct.error as error:
        raise RequestError(f"cannot add {shown(by)} to the counter {name!r}: {error}") from None


def _sum(name: str, kind: pa.DataType, value: Any, by: Any) -> Any:
    try:
        if isinstance(value, Decimal) or isinstance(by, Decimal):
            return _EXACT.add(value, by)
        return value + by
    except TypeError:  # decimals and floats do not mix
        wanted = "a Decimal" if pa.types.is_decimal(kind) else "an int" if pa.types.is_integer(kind) else "a float"
        raise RequestError(f"column {name!r} is {kind}: add {wanted} to it, not {shown(by)}") from None
    except ArithmeticError:  # an integer that no float holds, a decimal that signals, or one of a thousand digits
        raise RequestError(
            f"column {name!r} is {kind}: {shown(by)} cannot be added to it, add a smaller number"
        ) from None


def _stored(column: Column, value: Any) -> Any:
    """Return a value as the column will have it."""
    kind = column.type
    if type(value) is int and pa.types.is_integer(kind):
        low = -(1 << kind.bit_width - 1) if pa.types.is_signed_integer(kind) else 0
        if low <= value < low + (1 << kind.bit_width):
            return value
    if type(value) is float and kind == pa.float64():
        return value
    if (type(value) is str and value.isascii() and kind == pa.string()) or (
        type(value) is bytes and kind == pa.binary()
    ):
        return value
    return python_value(array_of([value], column.type, f"column {column.name!r}")[0])


def count_of(value: Any) -> Any:
    """Return the number that a column or a counter holds."""
    return _COUNTER.unpack(value)[0] if isinstance(value, bytes) else value


def appended(name: str, suffix: Any, target: Target, value: Any) -> Any:
    """Return a value with `suffix` at its end; nothing there counts as empty."""
    column = target.column
    if column is None:
        if not isinstance(suffix, (bytes, bytearray, memoryview)):
            raise RequestError(
                f"the cell {name!r} takes bytes, not {shown(suffix)}: encode it, with .encode() for text"
            )
        added = bytes(suffix)
    else:
        if not (column.type in (pa.string(), pa.binary()) or pa.types.is_list(column.type)):
            raise RequestError(f"column {name!r} is {column.type}: only text, bytes and lists can be appended to")
        try:
            added = _stored(column, suffix)
        except RequestError as error:
            raise RequestError(f"cannot append to {name!r}: {error}") from None
        if added is None:
            raise RequestError(
                f"cannot append {shown(suffix)} to {name!r}: give text, bytes or a list, as the column has"
            )
    return added if value is None else value + added
