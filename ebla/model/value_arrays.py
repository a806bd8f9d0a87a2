"""Python values into arrays of the declared types, without losing anything. casts.py has the rules.

A value of the type's own Python type is taken as it is. Scalars of numpy, Arrow and pandas, subclasses, and what pandas
calls missing stand for such values, and are made plain first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidBatch, RequestError, shown
from ebla.model.casts import ARROW_ERRORS, ZONE_HINTS, Unfit, cast_hint, castable, exact_cast, kind_of, list_array

__all__ = ["array_of", "natural_types"]

_NATURAL: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "float": (float, int),
    "decimal": (Decimal, int),
    "boolean": (bool,),
    "string": (str,),
    "binary": (bytes,),
    "date": (date,),
    "timestamp": (datetime,),
    "zoned timestamp": (datetime,),
    "time": (time,),
    "duration": (timedelta,),
    "list": (list, tuple),
    "struct": (dict,),
}

_TEMPORAL = frozenset({"date", "timestamp", "zoned timestamp", "time", "duration"})
# What pandas has for a value that is missing; by name, for nobody should have to import pandas.
_PANDAS_NULLS = frozenset({"NAType", "NaTType"})


@lru_cache(maxsize=1024)
def natural_types(to: pa.DataType) -> frozenset[type]:
    """Return the Python types that stand for `to` as they are; None is always one of them."""
    return frozenset((*_NATURAL.get(kind_of(to), ()), type(None)))


def array_of(
    values: Sequence[object], to: pa.DataType, what: str, error: type[RequestError] = InvalidBatch
) -> pa.Array:
    """Return Python `values` (None is null) as an array of the type `to`, or raise `error` naming the first misfit.

    Takes the natural Python types, and numpy scalars, Arrow scalars, pandas timestamps and durations in their place;
    what pandas calls missing (`NA`, and `NaT` for a time) is null too.
    """
    try:
        return _array_of(values, to)
    except (Unfit, *ARROW_ERRORS, RequestError):
        pass
    for at, value in enumerate(values):
        try:
            _array_of([value], to)
        except (Unfit, *ARROW_ERRORS, RequestError) as reason:
            where = f" of row {at}" if len(values) > 1 else ""
            raise error(f"{what} is {to} and does not take {shown(value)}{where}: {reason}") from None
    raise error(f"{what} is {to}: the values do not fit in one array, send fewer rows at once")


def _array_of(values: Sequence[object], to: pa.DataType) -> pa.Array:
    kind = kind_of(to)
    if kind not in _NATURAL:
        return pa.array(values, to)
    if pa.types.is_fixed_size_list(to):
        return pc.cast(_array_of(values, pa.list_(to.value_type)), to)
    kinds = set(map(type, values))
    if not kinds <= natural_types(to):
        values = [_natural(value, to, kind) for value in values]
        if any(isinstance(value, pa.Array) for value in values):
            return pa.concat_arrays([v if isinstance(v, pa.Array) else _array_of([v], to) for v in values])
    if kind == "list":
        return _list_of(values, to)
    if kind == "struct":
        return _struct_of(values, to)
    if kind in ("timestamp", "zoned timestamp"):
        zoned = kind != "timestamp"
        if any(value is not None and (value.tzinfo is not None) != zoned for value in values):  # type: ignore[attr-defined]
            raise Unfit(ZONE_HINTS[kind])
        return _through(values, pa.timestamp("us", to.tz), to, ("s", "ms"))
    if kind == "time":
        if any(value is not None and value.tzinfo is not None for value in values):  # type: ignore[attr-defined]
            raise Unfit("give a time without a time zone")
        return _through(values, pa.time64("us"), to, ("s", "ms"))
    if kind == "duration":
        return _through(values, pa.duration("us"), to, ("s", "ms"))
    if kind == "float" and to != pa.float64():
        return exact_cast(pa.array(values, pa.float64()), to)
    return pa.array(values, to)


def _through(values: Sequence[object], wide: pa.DataType, to: pa.DataType, coarse: tuple[str, ...]) -> pa.Array:
    # Arrow cuts Python's microseconds silently, but refuses to cast them away.
    return exact_cast(pa.array(values, wide), to) if to.unit in coarse else pa.array(values, to)


def _list_of(values: Sequence[Any], to: pa.DataType) -> pa.Array:
    lengths = [0 if value is None else len(value) for value in values]
    items = _array_of([item for value in values if value is not None for item in value], to.value_type)
    return list_array(lengths, items, pa.array([value is None for value in values], pa.bool_()), to)


def _struct_of(values: Sequence[Any], to: pa.DataType) -> pa.Array:
    names = {field.name for field in to}
    for value in values:
        if value is not None and not value.keys() <= names:
            raise Unfit(f"it has no field {sorted(map(str, value.keys() - names))[0]!r}")
    columns = [_array_of([None if v is None else v.get(field.name) for v in values], field.type) for field in to]
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(to), mask=mask)


def _natural(value: Any, to: pa.DataType, kind: str) -> Any:
    """Return the plain Python value that `value` stands for, or a one-value array where Python has no such value."""
    if type(value) in natural_types(to):
        return value
    if type(value).__name__ in _PANDAS_NULLS and (kind in _TEMPORAL or type(value).__name__ == "NAType"):
        return None
    if isinstance(value, pa.Scalar):
        return _cast_one(pa.array([value], value.type), to)
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return _cast_one(pa.array(np.array([value])), to)
    if isinstance(value, np.ndarray) and kind == "list":
        return list(value)
    if isinstance(value, np.generic) and not isinstance(plain := value.item(), np.generic):
        return _natural(plain, to, kind)
    if isinstance(value, datetime):
        nanosecond: int = getattr(value, "nanosecond", 0)
        if kind == "date":
            if value.tzinfo is not None or value.time() != time.min or nanosecond:
                raise Unfit("give a date, not a moment: use .date()")
            return value.date()
        if nanosecond:  # a pandas timestamp finer than Python's own
            return _cast_one(pa.array([value], pa.timestamp("ns", None if value.tzinfo is None else "UTC")), to)
        if kind in ("timestamp", "zoned timestamp") and hasattr(value, "to_pydatetime"):
            return value.to_pydatetime()
    elif isinstance(value, timedelta) and hasattr(value, "to_pytimedelta"):
        if getattr(value, "nanoseconds", 0):  # a pandas duration finer than Python's own
            return _cast_one(pa.array([value], pa.duration("ns")), to)
        return _natural(value.to_pytimedelta(), to, kind)
    elif isinstance(value, date) and kind == "timestamp":
        return datetime.combine(value, time.min)
    if isinstance(value, (bytearray, memoryview)) and kind == "binary":
        return bytes(value)
    if isinstance(value, str) and kind == "binary":
        raise Unfit("give bytes, for example with .encode()")
    if isinstance(value, bytes) and kind == "string":
        raise Unfit("give a str, for example with .decode()")
    base: Any
    for base in natural_types(to):
        # Subclasses, such as enumerations of ints, are their base; but True is no number and a moment is no day.
        if isinstance(value, base) and not isinstance(value, (bool, datetime)):
            # Of text, what it is and not what it calls itself: str() of an enumeration of strings is its name.
            return str.__str__(value) if base is str else base(value) if base in (int, float, bytes) else value
    wanted = "; give a Decimal" if pa.types.is_decimal(to) else ""
    raise Unfit(f"it is of type {type(value).__name__}{wanted}")


def _cast_one(array: pa.Array, to: pa.DataType) -> pa.Array:
    if not castable(array.type, to):
        raise Unfit(f"it is of type {array.type}{cast_hint(array.type, to)}")
    return exact_cast(array, to)
