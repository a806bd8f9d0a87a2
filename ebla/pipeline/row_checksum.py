"""A checksum over the rows of a DataFrame that does not depend on their order: what a backup and a restore compare.

    row --> 64-bit hash of its columns, twice with different beginnings --> sums of each, modulo 2**64

Spark's own hash passes over nulls, and takes no maps. So every column is hashed together with whether it is null, and
lists, structs and maps as JSON, in which nulls stand in their places; the cells of a map are sorted first. Two sums of
64 bits are 32 hexadecimal digits: that two different sets of rows have the same is as good as impossible, unless
somebody wants it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from ebla.pipeline.export import JSON_OPTIONS

__all__ = ["row_checksum"]

_MODULUS = 1 << 64
_SUMMED = "decimal(38,0)"


def row_checksum(rows: DataFrame) -> tuple[int, str]:
    """Return how many rows there are, and their checksum."""
    # By their places: Spark does not tell names apart that differ in case alone.
    rows = rows.toDF(*(f"c{at}" for at in range(len(rows.columns))))
    parts = [part for field in rows.schema.fields for part in _parts(field.name, field.dataType)]
    sums = [F.sum(F.xxhash64(F.lit(beginning), *parts).cast(_SUMMED)) for beginning in ("ebla", "rows")]
    found = rows.agg(F.count(F.lit(1)), *sums).collect()[0]
    return int(found[0]), "".join(f"{int(total or 0) % _MODULUS:016x}" for total in found[1:])


def _parts(name: str, kind: DataType) -> list[Column]:
    value = F.col(name)
    if isinstance(kind, MapType):
        return [value.isNull(), F.to_json(F.array_sort(F.map_entries(value)), JSON_OPTIONS)]
    if isinstance(kind, (ArrayType, StructType)):
        return [value.isNull(), F.to_json(value, JSON_OPTIONS)]
    return [value.isNull(), value]
