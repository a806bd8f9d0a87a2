"""The types that columns may have, and the names by which people write them.

Log, memory and Parquet must all be able to hold a value of every type that is taken here; other types are refused with
`SchemaError`. A key column has fewer to choose from: bytes must keep its order.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import pyarrow as pa

from ebla.errors import SchemaError, shown

TypeLike: TypeAlias = "str | pa.DataType"

_DECIMAL = re.compile(r"decimal(32|64|128|256)?\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_DECIMALS = {
    "32": (pa.decimal32, 9),
    "64": (pa.decimal64, 18),
    "128": (pa.decimal128, 38),
    "256": (pa.decimal256, 76),
}


def parse_type(given: TypeLike) -> pa.DataType:
    """Return the Arrow type that `given` names, in the form in which Ebla stores it.

    Takes an Arrow type or its name: ``int32``, ``string``, ``timestamp[us, tz=UTC]``, ``decimal128(10, 2)``,
    ``list<float64>``, ``struct<x: int32, y: string>``; every type that it returns has a name that it takes. Large, view
    and dictionary forms become the plain ones.
    """
    if isinstance(given, pa.DataType):
        return _stored_type(given)
    if not isinstance(given, str):
        raise SchemaError(f"a type is an Arrow type or its name, not {shown(given)}")
    text = given.strip()
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        make, precision_max = _DECIMALS[decimal[1] or "128"]
        if 1 <= int(decimal[2]) <= precision_max:
            return _stored_type(make(int(decimal[2]), int(decimal[3])))
    stamp = re.fullmatch(r"timestamp\[(s|ms|us|ns)(?:,\s*tz=([^\]]+))?\]", text)
    if stamp:
        return _stored_type(pa.timestamp(stamp[1], stamp[2]))
    fixed = re.fullmatch(r"fixed_size_binary\[(\d{1,9})\]", text)
    if fixed:
        return _stored_type(pa.binary(int(fixed[1])))
    listed = re.fullmatch(r"(list|fixed_size_list)<(.*)>(?:\[(\d{1,9})\])?", text)
    if listed and (listed[1] == "list") == (listed[3] is None):
        inner = parse_type(listed[2].strip().removeprefix("item:"))
        return _stored_type(pa.list_(inner, -1 if listed[3] is None else int(listed[3])))
    if text.startswith("struct<") and text.endswith(">"):
        parts = [part.partition(":") for part in _split_top(text[7:-1])]
        return _stored_type(pa.struct([pa.field(name.strip(), parse_type(inner)) for name, _, inner in parts]))
    if re.match(r"map\b", text):
        raise _no_maps(text)
    try:
        return _stored_type(pa.type_for_alias(text))
    except ValueError:
        raise SchemaError(
            f"unknown type {given!r}: use an Arrow type or a name such as int64, string, date32, timestamp[us], "
            "decimal128(10, 2) or list<string>"
        ) from None


def type_of(column: str, given: TypeLike) -> pa.DataType:
    """Return the Arrow type that `given` names; `SchemaError` says for which column it cannot be."""
    try:
        return parse_type(given)
    except SchemaError as error:
        raise SchemaError(f"column {column!r}: {error}") from None


def _split_top(text: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "<([") - (char in ">)]")
        if char == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def _stored_type(given: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(given):
        return _stored_type(given.value_type)
    if types.is_large_string(given) or types.is_string_view(given):
        return pa.string()
    if types.is_large_binary(given) or types.is_binary_view(given):
        return pa.binary()
    if any(
        is_kind(given) for is_kind in (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    ):
        return pa.list_(_stored_type(given.value_type))
    if types.is_fixed_size_list(given) and given.list_size > 0:  # Parquet cannot tell an empty list of those from null
        return pa.list_(_stored_type(given.value_type), given.list_size)
    if types.is_struct(given) and 0 < len({f.name for f in given}) == given.num_fields:
        return pa.struct([pa.field(f.name, _stored_type(f.type)) for f in given])
    if types.is_map(given):
        raise _no_maps(str(given))
    if not _is_scalar(given):
        raise SchemaError(f"a column cannot be of type {given}: use a scalar, list or struct type")
    if types.is_timestamp(given) and given.tz is not None:
        _check_time_zone(given.tz)
    return given


def _no_maps(given: str) -> SchemaError:
    return SchemaError(
        f"a column cannot be of type {given}: for a map use a group of families, which holds any names with bytes as "
        "values, or a list such as list<struct<key: string, value: int64>>"
    )


def _check_time_zone(name: str) -> None:
    """Refuse a time zone that nobody knows: values in it could be written, and not be read as Python's."""
    try:
        pa.lib.string_to_tzinfo(name)
    except (pa.ArrowException, ValueError, LookupError, OSError):
        raise SchemaError(
            f"there is no time zone {name!r} on this machine: use one such as UTC, Europe/Zurich or +01:00"
        ) from None


def _is_scalar(given: pa.DataType) -> bool:
    """Tell whether the log, memory and Parquet can all hold values of the type: not intervals, for example."""
    types = pa.types
    return bool(
        types.is_boolean(given)
        or types.is_integer(given)
        or types.is_floating(given)
        or (types.is_decimal(given) and 0 <= given.scale <= given.precision)
        or given in (pa.string(), pa.binary())
        or (types.is_fixed_size_binary(given) and given.byte_width > 0)
        or (types.is_temporal(given) and not types.is_interval(given))
    )


def is_key_type(given: pa.DataType) -> bool:
    """Tell whether a key column may have this type: one whose order can be kept in bytes."""
    types = pa.types
    return bool(
        types.is_boolean(given)
        or types.is_integer(given)
        or given in (pa.float32(), pa.float64(), pa.string(), pa.binary())
        or types.is_date(given)
        or types.is_timestamp(given)
        or types.is_time(given)
    )
