"""Where the rows of a load are cut into partitions, and which partition a row belongs to.

    tablets            |-------a-------|--b--|-c-|----------d----------|
    sample of keys      . .. ... .. ..  .      .   . . ...... ..........
    cuts                |---0---|---1---|------2-----|----3----|---4---|

A cut lies between tablets where it can, and inside a tablet where the sample says that too many rows fall into it.
Small neighbours share a partition. Every task then writes a range of rows that no other task writes.

The partition of a row is found by Spark itself, with comparisons of the key columns: the rows of keys compare as the
keys do. Where a cut is no key and no prefix of one, the rows are encoded in Python workers instead, which costs more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidKey
from ebla.model.keys import KeyCodec
from ebla.model.schema import Column as KeyColumn
from ebla.pipeline.spark.types import array_from_spark, array_to_spark, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["choose_cuts", "key_of_cut", "partition_by_comparing", "partition_by_encoding"]

# A partition may have so much more than its share before a tablet is cut, and so much less before it is joined.
LARGE_SHARE = 1.5
SMALL_SHARE = 0.75
# An expression of more comparisons than this is no longer compiled to one Java method.
COMPARISONS_MAX = 256
# Only for finding partitions: how long a key may be is checked elsewhere.
_KEY_BYTES_ANY = 1 << 30


def choose_cuts(bounds: Sequence[bytes], sample: Sequence[bytes], partitions: int) -> list[bytes]:
    """Return the rows at which partitions begin, but the first, ascending and each once.

    `bounds` are the first rows of all tablets but the first; `sample` is a sorted sample of the rows to come. Without
    a sample the tablets are divided evenly. There may be fewer partitions than asked for, or a few more.
    """
    if partitions <= 1:
        return []
    if not sample:
        step = max(1, -(-(len(bounds) + 1) // partitions))
        return list(bounds[step - 1 :: step])
    share = len(sample) / partitions
    edges = [0, *(bisect_left(sample, bound) for bound in bounds), len(sample)]
    cuts: list[bytes] = []
    begun = 0  # where in the sample the open partition begins
    for number, (low, high) in enumerate(pairwise(edges)):
        is_large = high - low > LARGE_SHARE * share
        if number and (low - begun >= SMALL_SHARE * share or (is_large and low > begun)):
            cuts.append(bounds[number - 1])
            begun = low
        if is_large:
            pieces = round((high - low) / share)
            inside = [low + (high - low) * piece // pieces for piece in range(1, pieces)]
            cuts += [sample[place] for place in inside]
            begun = inside[-1]
    return _ascending(cuts)


def _ascending(cuts: Sequence[bytes]) -> list[bytes]:
    """Drop cuts that repeat, because very frequent keys are sampled often, and one that cuts off nothing."""
    kept: list[bytes] = []
    for cut in cuts:
        if cut and (not kept or cut > kept[-1]):
            kept.append(cut)
    return kept


# --- the partition of a row ----------------------------------------------------------------------


def key_of_cut(key: Sequence[KeyColumn], row: bytes) -> tuple[Any, ...] | None:
    """Return the key, or the first columns of one, that `row` is the bound of; None if there is no such key."""
    codec = KeyCodec(key, _KEY_BYTES_ANY)
    for count in range(len(key), 0, -1):
        rest = b""
        if count < len(key):
            rest = KeyCodec(key[count:], _KEY_BYTES_ANY).encode(tuple(_SMALL[_kind(c.type)] for c in key[count:]))
        try:
            values = codec.decode(row + rest)[:count]
            if codec.bound(values) == row:
                return values
        except (InvalidKey, OverflowError, ValueError):  # or a moment that Python has no datetime for
            continue
    return None


def _kind(type_: pa.DataType) -> str:
    types = pa.types
    checks: dict[str, Callable[[pa.DataType], bool]] = {
        "boolean": types.is_boolean,
        "float": types.is_floating,
        "string": types.is_string,
        "binary": types.is_binary,
        "date": types.is_date,
        "zoned": lambda t: types.is_timestamp(t) and t.tz is not None,
        "timestamp": types.is_timestamp,
        "time": types.is_time,
    }
    return next((kind for kind, check in checks.items() if check(type_)), "integer")


# Some value of each kind, to complete the first columns of a key with.
_SMALL: dict[str, object] = {
    "boolean": False,
    "float": 0.0,
    "string": "",
    "binary": b"",
    "date": date(1970, 1, 1),
    "zoned": datetime(1970, 1, 1, tzinfo=UTC),
    "timestamp": datetime(1970, 1, 1),
    "time": time.min,
    "integer": 0,
}


def partition_by_comparing(key: Sequence[KeyColumn], columns: Sequence[Column], cuts: Sequence[bytes]) -> Column | None:
    """Return the number of cuts at or before a row, as comparisons of its key columns; None if that cannot be."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    if len(cuts) > COMPARISONS_MAX:
        return None
    found = [key_of_cut(key, cut) for cut in cuts]
    keys = [values for values in found if values is not None]
    if len(keys) < len(cuts):
        return None
    literals = [[_literal(value, column) for value, column in zip(values, key, strict=False)] for values in keys]

    def between(low: int, high: int) -> Column:
        if low == high:
            return F.lit(low)
        middle = (low + high) // 2
        return F.when(_is_before(columns, literals[middle]), between(low, middle)).otherwise(between(middle + 1, high))

    return between(0, len(cuts))


def _literal(value: object, column: KeyColumn) -> Column:
    """Return the value of a key as Spark has it in a column of that type."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    array = array_to_spark(pa.array([value], column.type))
    if pa.types.is_date(array.type):
        return F.date_from_unix_date(F.lit(array.cast(pa.int32())[0].as_py()))
    if pa.types.is_timestamp(array.type):
        # As a number: Python's moments without a zone would be taken for ones in the zone of this machine.
        micros = array.view(pa.int64())[0].as_py()
        if array.type.tz is not None:
            return F.timestamp_micros(F.lit(micros).cast("bigint"))
        return F.expr(f"timestampadd(MICROSECOND, {micros}L, TIMESTAMP_NTZ'1970-01-01')")
    return F.lit(array[0].as_py()).cast(spark_type(column.type))


def _is_before(columns: Sequence[Column], values: Sequence[Column]) -> Column:
    column, value = columns[0], values[0]
    if len(values) == 1:
        return column < value
    return (column < value) | ((column == value) & _is_before(columns[1:], values[1:]))


def partition_by_encoding(key: Sequence[KeyColumn], columns: Sequence[Column], cuts: Sequence[bytes]) -> Column:
    """Return the number of cuts at or before a row, by encoding keys in Python workers. Keys that are null get 0."""
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import IntegerType

    key, cuts = tuple(key), tuple(cuts)

    # The hints tell Spark what it is.
    def partitions(*given: pa.Array) -> pa.Array:
        is_null = pa.array([False]).take(pa.array([0] * len(given[0])))
        for array in given:
            is_null = pc.or_(is_null, array.is_null())
        known = pc.invert(is_null)
        codec = KeyCodec(key, _KEY_BYTES_ANY)
        arrays = [array_from_spark(a.filter(known), c.type, c.name) for a, c in zip(given, key, strict=True)]
        places = pc.search_sorted(pa.array(cuts, pa.binary()), codec.encode_arrays(arrays), side="right")
        return pc.replace_with_mask(pa.nulls(len(is_null), pa.int32()), known, pc.cast(places, pa.int32())).fill_null(0)

    encoded: Column = arrow_udf(partitions, IntegerType())(*columns)  # type: ignore[call-overload]
    return encoded
