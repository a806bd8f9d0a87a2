"""What increment and append make of a value: numbers in typed columns, counters in cells, text, bytes and lists."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from ebla.errors import RequestError
from ebla.schema import Target

__all__ = ["appended", "count_of", "incremented"]

_COUNTER = struct.Struct(">q")


def incremented(name: str, by: Any, target: Target, value: Any) -> Any:
    """Return the sum of a value and `by`; nothing there counts as 0."""
    if target.column is not None:
        kind = target.column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise RequestError(f"column {name!r} is {kind}: only numbers can be incremented")
        try:
            return (value or 0) + by
        except TypeError:  # decimals and floats do not mix
            raise RequestError(f"column {name!r} is {kind}: add a Decimal to it, not {by!r}") from None
    if value is not None and len(value) != _COUNTER.size:
        raise RequestError(f"{name!r} holds {len(value)} bytes: a counter has {_COUNTER.size}")
    try:
        return _COUNTER.pack((0 if value is None else _COUNTER.unpack(value)[0]) + by)
    except struct.error as error:
        raise RequestError(f"cannot add {by!r} to the counter {name!r}: {error}") from None


def count_of(value: Any) -> Any:
    """Return the number that a column or a counter holds."""
    return _COUNTER.unpack(value)[0] if isinstance(value, bytes) else value


def appended(name: str, suffix: Any, target: Target, value: Any) -> Any:
    """Return a value with `suffix` at its end; nothing there counts as empty."""
    kind = None if target.column is None else target.column.type
    if kind is not None and not (kind in (pa.string(), pa.binary()) or pa.types.is_list(kind)):
        raise RequestError(f"column {name!r} is {kind}: only text, bytes and lists can be appended to")
    if kind is None and not isinstance(suffix, (bytes, bytearray, memoryview)):
        raise RequestError(f"the cell {name!r} takes bytes, not {suffix!r}: encode it, with .encode() for text")
    try:
        return suffix if value is None else value + suffix
    except TypeError as error:
        raise RequestError(f"cannot append {suffix!r} to {name!r}: {error}") from None
