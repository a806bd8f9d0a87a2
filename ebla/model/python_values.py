"""Arrow values as Python's own, without losing anything.

Arrow's `as_py` is generous here too: it cuts the nanoseconds off a time of day, for `datetime.time` has none. Whoever
puts back what was read then changes it. For other values that Python has not (a date after the year 9999, nanoseconds
of a moment where pandas is not installed) `as_py` raises. Here, all of them are an `OverflowError`, which the client
turns into the advice to read Arrow.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa

__all__ = ["has_python_times", "may_lose_times", "python_rows", "python_value"]

_NANOSECONDS = pa.time64("ns")
_MICROSECONDS = pa.time64("us")
# The scalars that may be, or hold, a time of day in nanoseconds: all others need no second look.
_SUSPECTS = frozenset({pa.Time64Scalar, pa.ListScalar, pa.FixedSizeListScalar, pa.StructScalar, pa.MapScalar})


def python_value(scalar: pa.Scalar) -> Any:
    """Return the Python value of a scalar; `OverflowError` if there is none that is the same."""
    if type(scalar) in _SUSPECTS and _has_times(scalar.type):
        _check_times(pa.array([scalar], scalar.type))
    try:
        return scalar.as_py()
    except ValueError as reason:
        raise OverflowError(str(reason)) from None


def may_lose_times(schema: pa.Schema) -> bool:
    """Tell whether a column may hold a time of day in nanoseconds, of which Python would lose a part."""
    return any(_has_times(field.type) for field in schema)


def python_rows(batch: pa.RecordBatch, *, check_times: bool = True) -> list[dict[str, Any]]:
    """Return the rows of a batch as dicts; `OverflowError` if Python does not have one of the values.

    Who knows by `may_lose_times` that there is nothing to check says so: it is a large part of a short read.
    """
    if check_times:
        for column in batch.columns:
            if _has_times(column.type):
                _check_times(column)
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except ValueError as reason:
        raise OverflowError(str(reason)) from None
    return rows


def has_python_times(array: pa.Array) -> bool:
    """Tell whether every time of day in an array is one of Python's."""
    try:
        _check_times(array)
    except OverflowError:
        return False
    return True


@lru_cache(maxsize=1024)
def _has_times(kind: pa.DataType) -> bool:
    return kind == _NANOSECONDS or any(_has_times(kind.field(at).type) for at in range(kind.num_fields))


def _check_times(array: pa.Array) -> None:
    """Raise `OverflowError` if there is a time of day of less than a microsecond anywhere in the array."""
    if array.type == _NANOSECONDS:
        try:
            array.cast(_MICROSECONDS)
        except pa.ArrowInvalid as reason:
            raise OverflowError(f"a time of Python has microseconds: {reason}") from None
    elif pa.types.is_map(array.type):
        _check_times(array.items)
    elif _has_times(array.type):
        under = array.flatten()
        for part in under if isinstance(under, list) else [under]:
            _check_times(part)
