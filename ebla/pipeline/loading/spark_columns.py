"""What the columns of a DataFrame mean to a table, and which rows cannot be what they should.

    DataFrame                      prepared                                        in the task
    user string, day string   -->  c0 string, c1 date: as Spark casts   -->  exact types of the table
    age bigint                     c2 bigint                                            cast without loss (casts.py)
    click:home string              c3 string                                            a cell

Text becomes what the table holds by Spark's own casts, where a text that is none is a reject. All other types are cast
in the tasks, by the same code that a put goes through. Key columns get their order here, so they are cast here too, and
a value that a cast would change is a reject.

Columns travel by number (c0, c1, ...): names of Ebla have colons, and Spark does not tell upper from lower case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from ebla.errors import RequestError
from ebla.model.casts import is_text
from ebla.model.schema import TableSchema
from ebla.pipeline.inputs.input_files import CORRUPT
from ebla.pipeline.loading.load_task import REASON, REJECTED
from ebla.pipeline.loading.matching import Given, match
from ebla.pipeline.spark.types import spark_type

__all__ = ["CORRUPT", "InputColumn", "columns_of", "prepare", "without_corrupt"]

SEQUENCE = "_seq"

_SHOWN_LENGTH = 60
_DIGITS_MAX = 38
_TICKS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column of the input: its name, its type in Spark, and the type in which the table stores it (None: cells)."""

    name: str
    given: DataType
    stored: pa.DataType | None
    is_key: bool

    @property
    def is_parsed(self) -> bool:
        """Whether it is text that Spark has to turn into something else."""
        return (
            isinstance(self.given, StringType)
            and self.stored is not None
            and not is_text(self.stored)
            and spark_type(self.stored) != StringType()
        )


def without_corrupt(given: StructType) -> StructType:
    """Return the columns of the rows themselves: not the one with lines that could not be read."""
    return StructType([field for field in given.fields if field.name != CORRUPT])


def columns_of(given: StructType, schema: TableSchema) -> list[InputColumn]:
    """Return what the columns mean; raise if the table cannot take them."""
    found = match([Given(f.name, _arrow_type(f), f.dataType.simpleString()) for f in given.fields], schema)
    return [
        InputColumn(column.name, field.dataType, column.stored, column.is_key)
        for column, field in zip(found, given.fields, strict=True)
    ]


def _arrow_type(field: StructField) -> pa.DataType:
    try:
        return to_arrow_type(field.dataType, timezone="UTC")
    except (PySparkException, AssertionError):
        raise RequestError(
            f"column {field.name!r} is {field.dataType.simpleString()}, which a table cannot hold: cast or drop it"
        ) from None


# --- expressions ---------------------------------------------------------------------------------


def prepare(frame: DataFrame, columns: Sequence[InputColumn], schema: TableSchema, key_bytes_max: int) -> DataFrame:
    """Return the rows as c0, c1, ... with ``_reason`` (null: the row fits so far), ``_rejected`` and ``_seq``.

    ``_rejected`` is a rejected row as it came, as JSON. ``_seq`` grows from row to row in the order of the input.
    """
    names = iter(range(len(columns)))
    plain = frame.toDF(*[CORRUPT if name == CORRUPT else f"c{next(names)}" for name in frame.columns])
    values: list[Column] = []
    reasons: list[Column] = []
    original = F.to_json(
        F.struct(*[plain[f"c{at}"].alias(column.name) for at, column in enumerate(columns)]),
        {"ignoreNullFields": "false"},
    )
    if CORRUPT in frame.columns:
        reasons.append(F.when(plain[CORRUPT].isNotNull(), F.lit("the line cannot be read")))
        line = F.to_json(F.struct(plain[CORRUPT].alias("line")))
        original = F.when(plain[CORRUPT].isNotNull(), line).otherwise(original)
    for at, column in enumerate(columns):
        given = plain[f"c{at}"]
        value = _value(given, column)
        values.append(value)
        reasons += _reasons(given, value, column)
    reasons += _too_long(columns, values, schema, key_bytes_max)
    reason = F.coalesce(*reasons) if reasons else F.lit(None).cast("string")
    return plain.select(
        *[value.alias(f"c{at}") for at, value in enumerate(values)],
        reason.alias(REASON),
        F.when(reason.isNotNull(), original).alias(REJECTED),
        F.monotonically_increasing_id().alias(SEQUENCE),
    )


def _value(given: Column, column: InputColumn) -> Column:
    """Return the column as it goes to the tasks."""
    if column.stored is None:
        return given.cast(BinaryType()) if isinstance(column.given, NullType) else given
    wanted = spark_type(column.stored)
    if column.given == wanted:
        return given
    if isinstance(column.given, NullType):
        return F.lit(None).cast(wanted)
    if column.is_parsed:
        return _parsed(given, column.stored)
    return given.try_cast(wanted) if column.is_key else given


def _parsed(given: Column, stored: pa.DataType) -> Column:
    """Return what a text says, or null."""
    wanted = spark_type(stored)
    if pa.types.is_time(stored):
        # Spark's type for times of day is switched off by default: the time of a day in 1970, as a number.
        moment = F.concat(F.lit("1970-01-01T"), given, F.lit("Z")).try_cast("timestamp")
        ticks_per_microsecond = _TICKS_PER_DAY[stored.unit] / _TICKS_PER_DAY["us"]
        if ticks_per_microsecond >= 1:
            return F.unix_micros(moment) * F.lit(int(ticks_per_microsecond)).cast("bigint")
        step = F.lit(round(1 / ticks_per_microsecond)).cast("bigint")
        micros = F.unix_micros(moment)
        return F.when(micros % step == 0, (micros / step).cast("bigint"))
    value = given.try_cast(wanted)
    if pa.types.is_date(stored):
        # Spark reads the day of "2026-01-31T12:00" and forgets the hours.
        moment = given.try_cast(TimestampNTZType())
        return F.when(moment.isNull() | (moment == value.cast(TimestampNTZType())), value)
    if pa.types.is_decimal(stored):
        # Spark rounds; more digits behind the point than the column has are no value of it.
        finer = given.try_cast(f"decimal({_DIGITS_MAX}, {min(_DIGITS_MAX, stored.scale + 6)})")
        return F.when(finer.isNull() | (finer == value), value)
    return value


def _reasons(given: Column, value: Column, column: InputColumn) -> list[Column]:
    """Return the ways in which a value does not fit: texts that are null where it does."""
    reasons = []
    what = f"{'key column' if column.is_key else 'column'} {column.name!r}"
    if column.is_key:
        reasons.append(F.when(given.isNull(), F.lit(f"{what} is null: a key has none")))
    if column.stored is None or isinstance(column.given, NullType):
        return reasons
    if column.is_parsed:
        reasons.append(F.when(given.isNotNull() & value.isNull(), _does_not_take(given, column, what)))
    elif column.is_key and column.given != spark_type(column.stored):
        # A cast that changes the key would change which row is meant. Only floats may be rounded.
        is_lost = value.isNull()
        if not isinstance(column.given, DoubleType):
            is_lost = is_lost | ~value.try_cast(column.given).eqNullSafe(given)
        reasons.append(F.when(given.isNotNull() & is_lost, _does_not_take(given, column, what)))
    return reasons


def _does_not_take(given: Column, column: InputColumn, what: str) -> Column:
    shown = F.substring(given.cast("string"), 1, _SHOWN_LENGTH)
    return F.concat(F.lit(f"{what} is {column.stored} and does not take "), F.coalesce(shown, F.lit("it")))


def _too_long(
    columns: Sequence[InputColumn], values: Sequence[Column], schema: TableSchema, key_bytes_max: int
) -> list[Column]:
    """Return a reason for keys that are too long by their texts alone; what is close to the limit, tasks measure."""
    texts = [
        F.octet_length(value)
        for value, column in zip(values, columns, strict=True)
        if column.is_key and column.stored is not None and is_text(column.stored)
    ]
    if not texts:
        return []
    length = reduce(lambda left, right: left + right, texts)
    said = F.concat(F.lit("a key of more than "), F.lit(str(key_bytes_max)), F.lit(" bytes: shorten it"))
    return [F.when(length > key_bytes_max, said)]
