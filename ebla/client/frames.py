"""Answers as frames of pandas and polars, with every value as it is stored.

pandas keeps most columns in numpy arrays, which have no null: Arrow makes floats of integers, and an integer past 2**53
is another one then. So a column is of numpy's type, or of objects, where that holds all its values, and of a type of
pandas' own that has nulls where it does not:

    integers, truths with nulls          Int8 .. UInt64, boolean
    floats of which one is NaN           Arrow's, for in numpy's NaN is also the null
    dates beyond Python's, times of less than a microsecond, moments that numpy takes for none     Arrow's
    lists and structs that have one of these, or a moment, duration or decimal                     Arrow's

What comes out of here goes into `put` and is the same again. polars has nulls; what it lacks is made into what it has
if all values survive, and refused otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import RequestError
from ebla.extras import needing
from ebla.model.python_values import has_python_times

__all__ = ["pandas_frame", "polars_frame"]

_DAYS_MIN, _DAYS_MAX = -719_162, 2_932_896  # of the years 1 to 9999, which a date of Python has
_NO_TIME = -(1 << 63)
_POLARS_DIGITS_MAX = 38


def pandas_frame(table: pa.Table) -> Any:
    """Return a table, whose columns have different names, as a pandas DataFrame."""
    with needing("pandas", "to_pandas"):
        import pandas

    special = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = _pandas_type(pandas, column)
        if kind is not None:
            special[name] = kind.__from_arrow__(column)
    if not special:
        return table.to_pandas()
    ordinary = [name for name in table.column_names if name not in special]
    frame = pandas.DataFrame(special)
    if ordinary:
        frame = pandas.concat([table.select(ordinary).to_pandas(), frame], axis=1)[table.column_names]
    return frame


def _pandas_type(pandas: Any, column: pa.ChunkedArray) -> Any:
    """Return the type of pandas that holds the column where numpy's does not; None where that does."""
    kind = column.type
    if pa.types.is_integer(kind) and column.null_count:
        return pandas.api.types.pandas_dtype(str(kind).replace("int", "Int").replace("uI", "UI"))
    if pa.types.is_boolean(kind) and column.null_count:
        return pandas.BooleanDtype()
    return None if all(map(_is_held_by_numpy, column.chunks)) else pandas.ArrowDtype(kind)


def _is_held_by_numpy(array: pa.Array) -> bool:
    kind, types = array.type, pa.types
    if types.is_map(kind):
        return True  # the cells of a family, which `put` takes as they come
    if types.is_nested(kind):
        return all(
            not types.is_temporal(part.type)
            and not types.is_decimal(part.type)
            and not (types.is_integer(part.type) and part.null_count)
            and _is_held_by_numpy(part)
            for part in _under(array)
        )
    if types.is_floating(kind):
        wide = array.cast(pa.float32()) if kind == pa.float16() else array
        return not pc.any(pc.is_nan(wide)).as_py()
    if types.is_date(kind):
        days = pc.min_max(array.cast(pa.date32()).view(pa.int32()))
        return days["min"].as_py() is None or _DAYS_MIN <= days["min"].as_py() <= days["max"].as_py() <= _DAYS_MAX
    if types.is_time(kind):
        return has_python_times(array)
    if types.is_timestamp(kind) or types.is_duration(kind):
        return bool(pc.min(array.view(pa.int64())).as_py() != _NO_TIME)
    return True


def _under(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the values that a list or struct array is made of, those of nulls too: Arrow looks at them all."""
    if pa.types.is_struct(array.type):
        yield from (array.field(at) for at in range(array.type.num_fields))
    else:
        yield array.values


# --- polars --------------------------------------------------------------------------------------


def polars_frame(table: pa.Table) -> Any:
    """Return a table as a polars DataFrame; `RequestError` if polars does not have one of its values."""
    with needing("polars", "to_polars"):
        import polars

    for at, field in enumerate(table.schema):
        wanted = _polars_type(field.type)
        if wanted == field.type and not _has_fixed_lists(wanted):
            continue
        try:
            column = table.column(at).cast(wanted)
        except (pa.ArrowException, ValueError) as reason:
            raise _beyond_polars(field, reason) from None
        if _has_fixed_lists(wanted):
            # Copied, for polars does not take lists of a fixed size that are a slice of others and have nulls.
            chunks = [chunk.take(pa.array(np.arange(len(chunk)))) for chunk in column.chunks]
            column = pa.chunked_array(chunks, wanted)
        table = table.set_column(at, field.name, column)
    try:
        return polars.from_arrow(table)
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException, ValueError) as reason:
        raise RequestError(f"polars does not take these rows ({reason}): read them with to_arrow()") from None


def _polars_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which polars takes all values of `kind` that it has."""
    types = pa.types
    if types.is_decimal256(kind):
        scale = min(kind.scale, _POLARS_DIGITS_MAX)
        return pa.decimal128(min(kind.precision, _POLARS_DIGITS_MAX), scale)
    if types.is_timestamp(kind):
        # It knows zones by name only: the same moment in UTC.
        zone = "UTC" if kind.tz is not None and kind.tz[0] in "+-" else kind.tz
        return pa.timestamp("ms" if kind.unit == "s" else kind.unit, zone)
    if types.is_duration(kind) and kind.unit == "s":
        return pa.duration("ms")
    if types.is_fixed_size_list(kind):
        return pa.list_(_polars_type(kind.value_type), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_polars_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_polars_type(field.type)) for field in kind])
    return kind


def _beyond_polars(field: pa.Field, reason: Exception) -> RequestError:
    return RequestError(
        f"column {field.name!r} is {field.type}, and polars does not have one of its values ({reason}): leave it out "
        "with columns=[...], or read it with to_arrow()"
    )


def _has_fixed_lists(kind: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(kind):
        return True
    return any(_has_fixed_lists(kind.field(at).type) for at in range(kind.num_fields))
