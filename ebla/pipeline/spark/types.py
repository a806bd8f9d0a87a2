"""Arrow's types and Spark's: how a stored column looks to Spark, and what Spark's columns become in a table.

    stored (Arrow)                 in Spark                   over Arrow
    bool, int8 .. int64            the same                   the same
    uint8, uint16, uint32          the next larger integer    int16, int32, int64
    uint64                         decimal(20, 0)             decimal128(20, 0)
    float16, float32, float64      float, float, double       float32, float32, float64
    decimal up to 38 digits        decimal                    decimal128
    decimal of more digits         string                     string
    string, binary, fixed binary   string, binary, binary     string, binary, binary
    date32, date64                 date                       date32
    timestamp with a zone          timestamp                  timestamp[us, UTC]
    timestamp without              timestamp_ntz              timestamp[us]
    duration                       interval day to second     duration[us]
    time                           bigint, in its own unit    int64
    list, fixed list, struct       array, array, struct       the same of these

Spark counts in microseconds: what is finer in nanosecond columns is cut off (towards the past) on the way to Spark.
Everything else comes back from Spark as it went. Spark 4.3 has a TIME type that is switched off by default, so times of
day are numbers: seconds, milliseconds, microseconds or nanoseconds since midnight, as the column counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidBatch, RequestError, SchemaError
from ebla.model.casts import cast_array
from ebla.model.column_types import parse_type
from ebla.model.declaration import Group, Schema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "array_from_spark",
    "array_to_spark",
    "arrow_for_spark",
    "is_native",
    "list_of",
    "schema_of",
    "spark_json",
    "spark_name",
    "spark_schema",
    "spark_type",
    "stored_from_arrow",
    "stored_type",
    "table_schema",
    "to_spark",
]

SPARK_DECIMAL_DIGITS_MAX = 38
_NANOSECONDS_PER_MICROSECOND = 1_000
_SPARK_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.duration("us"): "interval day to second",
    pa.null(): "void",
}


# --- types ---------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def arrow_for_spark(stored: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which Spark takes, and gives, a column that is stored as `stored`."""
    types = pa.types
    if types.is_unsigned_integer(stored):
        wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
        return wider[stored.bit_width]
    if types.is_float16(stored):
        return pa.float32()
    if types.is_decimal(stored):
        fits = stored.precision <= SPARK_DECIMAL_DIGITS_MAX
        return pa.decimal128(stored.precision, stored.scale) if fits else pa.string()
    if types.is_large_string(stored) or types.is_string_view(stored):
        return pa.string()
    if types.is_large_binary(stored) or types.is_binary_view(stored) or types.is_fixed_size_binary(stored):
        return pa.binary()
    if types.is_date(stored):
        return pa.date32()
    if types.is_timestamp(stored):
        return pa.timestamp("us", None if stored.tz is None else "UTC")
    if types.is_time(stored):
        return pa.int64()
    if types.is_duration(stored):
        return pa.duration("us")
    if types.is_map(stored):
        return pa.map_(arrow_for_spark(stored.key_type), arrow_for_spark(stored.item_type))
    if _is_list(stored):
        return pa.list_(pa.field("element", arrow_for_spark(stored.value_type)))
    if types.is_struct(stored):
        return pa.struct([pa.field(field.name, arrow_for_spark(field.type)) for field in stored])
    return stored


def spark_type(stored: pa.DataType) -> DataType:
    """Return the type that a stored column has in Spark."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(arrow_for_spark(stored))


def spark_schema(stored: pa.Schema) -> StructType:
    """Return the schema that stored columns have in Spark. Any of them may be null."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, spark_type(field.type), True) for field in stored])


def spark_name(given: pa.DataType) -> str:
    """Return what Spark calls the type of a column that it takes as `given` (see `arrow_for_spark`)."""
    types = pa.types
    if types.is_decimal(given):
        return f"decimal({given.precision},{given.scale})"
    if types.is_timestamp(given):
        return "timestamp_ntz" if given.tz is None else "timestamp"
    if types.is_map(given):
        return f"map<{spark_name(given.key_type)},{spark_name(given.item_type)}>"
    if _is_list(given):
        return f"array<{spark_name(given.value_type)}>"
    if types.is_struct(given):
        return f"struct<{','.join(f'{field.name}:{spark_name(field.type)}' for field in given)}>"
    return _SPARK_NAMES[given]


def spark_json(given: pa.Schema | pa.DataType) -> Any:
    """Return the type of rows, or of a column, that Spark takes as `given`, as Spark notes it in files, before JSON."""
    types = pa.types
    if isinstance(given, pa.Schema) or types.is_struct(given):
        fields = [{"name": f.name, "type": spark_json(f.type), "nullable": True, "metadata": {}} for f in given]
        return {"type": "struct", "fields": fields}
    if types.is_map(given):
        key, value = spark_json(given.key_type), spark_json(given.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if _is_list(given):
        return {"type": "array", "elementType": spark_json(given.value_type), "containsNull": True}
    json_names = {"bigint": "long", "int": "integer", "smallint": "short", "tinyint": "byte"}
    return json_names.get(name := spark_name(given), name)


def stored_type(given: DataType, name: str) -> pa.DataType:
    """Return the type in which a new table stores a column of Spark's; `name` is for the error message."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        stored = parse_type(to_arrow_type(given, timezone="UTC"))
    except (pa.ArrowException, PySparkException, SchemaError, AssertionError):
        stored = None
    if stored is None or not _is_holdable(given):
        raise SchemaError(
            f"column {name!r} is {given.simpleString()}, which a table cannot hold: cast it to another type, or drop it"
        )
    return stored


def _is_holdable(given: DataType) -> bool:
    """Tell whether the Arrow type of a Spark type says all about it: a variant, for example, is more than a struct."""
    from pyspark.sql.types import ArrayType, GeographyType, GeometryType, StructType, UserDefinedType, VariantType

    if isinstance(given, ArrayType):
        return _is_holdable(given.elementType)
    if isinstance(given, StructType):
        return all(_is_holdable(field.dataType) for field in given.fields)
    return not isinstance(given, (VariantType, GeometryType, GeographyType, UserDefinedType))


@lru_cache(maxsize=4096)
def is_native(stored: pa.DataType) -> bool:
    """Tell whether Spark's own Parquet reader, given `spark_type`, reads the values of a stored column exactly."""
    types = pa.types
    if types.is_float16(stored) or types.is_time(stored):
        return False
    if types.is_decimal(stored):
        return bool(stored.precision <= SPARK_DECIMAL_DIGITS_MAX)
    if types.is_timestamp(stored):
        return bool(stored.unit != "ns")
    if types.is_duration(stored):
        return bool(stored.unit == "us")  # Parquet has no such type: the file holds the bare number
    if types.is_map(stored):
        return is_native(stored.key_type) and is_native(stored.item_type)
    if _is_list(stored):
        return is_native(stored.value_type)
    if types.is_struct(stored):
        return all(is_native(field.type) for field in stored)
    return True


def _is_list(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))


# --- schemas -------------------------------------------------------------------------------------


def table_schema(given: StructType, key: Sequence[str]) -> Schema:
    """Return the schema of a new table for rows like these, with `key` as its key.

    A column ``family:qualifier``, or a map of strings to strings or bytes, makes a family of cells; all others are
    typed columns of one group.
    """
    check_key(given.names, key)
    is_cell = {f.name: f.name not in key and (":" in f.name or is_family(f.dataType)) for f in given.fields}
    stored = [(f.name, None if is_cell[f.name] else stored_type(f.dataType, f.name)) for f in given.fields]
    return schema_of(stored, key)


def stored_from_arrow(given: pa.DataType, name: str, key: Sequence[str]) -> pa.DataType | None:
    """Return the type in which a new table stores a column of Arrow's (None: cells), as if Spark had read it.

    What Spark has no type for, times of day and nanoseconds, is stored as it is.
    """
    types = pa.types
    if types.is_dictionary(given):
        given = given.value_type
    if name not in key:
        is_text = types.is_map(given) and all(
            types.is_string(one) or (types.is_binary(one) and one != given.key_type)
            for one in (given.key_type, given.item_type)
        )
        if ":" in name or is_text:
            return None
    is_finer = types.is_time(given) or types.is_duration(given) or (types.is_timestamp(given) and given.unit == "ns")
    try:
        return parse_type(given if is_finer else arrow_for_spark(given))
    except (pa.ArrowException, SchemaError):
        raise SchemaError(
            f"column {name!r} is {given}, which a table cannot hold: cast it to another type, or drop it"
        ) from None


def schema_of(given: Sequence[tuple[str, pa.DataType | None]], key: Sequence[str]) -> Schema:
    """Return the schema of a new table for columns of these names and stored types (None: cells)."""
    names = [name for name, _ in given]
    check_key(names, key)
    types = dict(given)
    if len(types) != len(given):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"two columns are called {twice!r}: rename one")
    columns = {name: type_ for name, type_ in given if name not in key and type_ is not None}
    families = [name.partition(":")[0] for name, type_ in given if name not in key and type_ is None]
    groups = []
    if columns or not families:
        groups.append(Group("default", columns=columns))
    if families:
        groups.append(Group("cells", families=list(dict.fromkeys(families))))
    return Schema(key={name: types[name] for name in key}, groups=groups)


def check_key(names: Sequence[str], key: Sequence[str]) -> None:
    """Raise `RequestError` unless the rows have these key columns."""
    if not key:
        raise RequestError("a new table needs a key: name its columns, as in key=['user', 'day']")
    missing = [name for name in key if name not in names]
    if missing:
        raise RequestError(f"key column {missing[0]!r} is missing: the rows have {', '.join(names[:20])}")
    if len(set(key)) != len(key):
        raise RequestError(f"a key column is named twice: {', '.join(key)}")


def is_family(given: DataType) -> bool:
    """Tell whether a column of this Spark type holds the cells of a family: qualifier to value."""
    from pyspark.sql.types import BinaryType, MapType, StringType

    return (
        isinstance(given, MapType)
        and isinstance(given.keyType, StringType)
        and isinstance(given.valueType, (StringType, BinaryType))
    )


# --- arrays --------------------------------------------------------------------------------------


def to_spark(table: pa.Table) -> pa.Table:
    """Return a table in the types that Spark takes."""
    columns = [_chunked_to_spark(column) for column in table.columns]
    names = table.schema.names
    return pa.table(columns, schema=pa.schema([pa.field(n, c.type) for n, c in zip(names, columns, strict=True)]))


def _chunked_to_spark(column: pa.ChunkedArray) -> pa.ChunkedArray:
    into = arrow_for_spark(column.type)
    if column.type == into:
        return column
    return pa.chunked_array([array_to_spark(chunk) for chunk in column.chunks], type=into)


def array_to_spark(array: pa.Array) -> pa.Array:
    """Return an array of a stored type in the type that Spark takes."""
    given, into = array.type, arrow_for_spark(array.type)
    if given == into:
        return array
    types = pa.types
    if types.is_timestamp(given) or types.is_duration(given):
        if given.unit == "ns":
            return _whole_microseconds(array, into)
        return pc.cast(array, into)
    if types.is_time32(given):
        return pc.cast(pc.cast(array, pa.int32()), into)
    if types.is_map(given):
        return pc.cast(array, into)
    if _is_list(given):
        return list_of(array, array_to_spark(array.flatten()), into)
    if types.is_struct(given):
        return pa.StructArray.from_arrays(
            [array_to_spark(field) for field in array.flatten()], fields=list(into), mask=array.is_null()
        )
    return pc.cast(array, into)


def array_from_spark(array: pa.Array, stored: pa.DataType, what: str) -> pa.Array:
    """Return an array as Spark gives it in the type in which it is stored; raise `InvalidBatch` where one does not fit.

    Unlike `cast_array`, it takes bare numbers for times of day, because that is how Spark sees them.
    """
    given = array.type
    if given == stored:
        return array
    types = pa.types
    try:
        if types.is_time(stored) and types.is_integer(given):
            return pc.cast(pc.cast(array, pa.int32()) if stored.bit_width == 32 else array, stored)
        if types.is_decimal(stored) and types.is_string(given):
            return pc.cast(array, stored)
        if types.is_fixed_size_list(stored) and _is_list(given):
            items = array_from_spark(array.flatten(), stored.value_type, what)
            return pc.cast(list_of(array, items, pa.list_(stored.value_type)), stored)
        if _is_list(stored) and _is_list(given):
            return list_of(array, array_from_spark(array.flatten(), stored.value_type, what), stored)
        if types.is_struct(stored) and types.is_struct(given):
            fields = dict(zip((field.name for field in given), array.flatten(), strict=True))
            columns = [array_from_spark(fields[field.name], field.type, what) for field in stored]
            return pa.StructArray.from_arrays(columns, fields=list(stored), mask=array.is_null())
    except (pa.ArrowException, KeyError) as reason:
        raise InvalidBatch(f"{what} is {stored} and does not take {given}: {reason}") from None
    return cast_array(array, stored, what)


def _whole_microseconds(array: pa.Array, into: pa.DataType) -> pa.Array:
    """Cut nanoseconds off towards the past, as the order of moments asks for; Arrow would cut towards 1970."""
    numbers = array.view(pa.int64())
    whole = np.floor_divide(np.asarray(pc.fill_null(numbers, 0)), _NANOSECONDS_PER_MICROSECOND)
    missing = np.asarray(numbers.is_null()) if array.null_count else None
    return pa.array(whole, pa.int64(), mask=missing).view(into)


def list_of(array: pa.Array, items: pa.Array, into: pa.DataType) -> pa.Array:
    """Return `array` of lists with other items. `items` are those that lists, and not nulls or slices, hold."""
    lengths: np.ndarray[Any, Any] = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    if pa.types.is_fixed_size_list(array.type) and array.null_count:
        # A null of fixed size takes its room in the values, but `flatten` leaves it out.
        lengths = np.where(np.asarray(array.is_null()), 0, lengths)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=into, mask=mask)
