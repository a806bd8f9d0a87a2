"""Types of JSON values for a new table, by Spark's rules: what one value is, and what several of them are together.

    1 -> int64     1 and 2.5 -> float64     {"b": 1, "a": null} -> struct<a: string, b: int64>     1 and "x" -> string

Pure: decoded values in, Arrow types out. A null is of any type; what stays null everywhere is text.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import pyarrow as pa

__all__ = ["empty_as_text", "merged", "type_of"]

_INT64_MAX = (1 << 63) - 1
_DIGITS_MAX = 38


def type_of(value: Any) -> pa.DataType:
    """Return the type of a decoded value."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        if -_INT64_MAX - 1 <= value <= _INT64_MAX:
            return pa.int64()
        digits = len(str(abs(value)))
        return pa.decimal128(digits, 0) if digits <= _DIGITS_MAX else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, list):
        return pa.list_(pa.field("element", reduce(merged, map(type_of, value), pa.null())))
    if isinstance(value, dict):
        return pa.struct([pa.field(name, type_of(value[name])) for name in sorted(value)])
    return pa.string()


def merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds values of both types."""
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    both = (one, other)
    if all(types.is_struct(kind) for kind in both):
        fields = [{field.name: field.type for field in kind} for kind in both]
        names = sorted({*fields[0], *fields[1]})
        return pa.struct([pa.field(n, merged(fields[0].get(n, pa.null()), fields[1].get(n, pa.null()))) for n in names])
    if all(types.is_list(kind) for kind in both):
        return pa.list_(pa.field("element", merged(one.value_type, other.value_type)))
    if all(types.is_integer(kind) or types.is_decimal(kind) for kind in both):
        return pa.decimal128(max(20, *(kind.precision for kind in both if types.is_decimal(kind))), 0)
    is_number = [types.is_integer(kind) or types.is_decimal(kind) or types.is_floating(kind) for kind in both]
    return pa.float64() if all(is_number) else pa.string()


def empty_as_text(kind: pa.DataType) -> pa.DataType:
    """Return a type in which what was null everywhere is text."""
    types = pa.types
    if types.is_null(kind) or (types.is_struct(kind) and not kind.num_fields):
        return pa.string()
    if types.is_list(kind):
        return pa.list_(pa.field("element", empty_as_text(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, empty_as_text(field.type)) for field in kind])
    return kind
