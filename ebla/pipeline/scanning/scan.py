"""A table as a Spark DataFrame: clean ranges by Spark's own Parquet reader, the rest merged by the engine.

    plan_scan -->  whole files                   spark.read.parquet(files)                 as fast as Spark is
                   parts of files                spark.read.parquet(files).where(ranges)   row groups pruned
                   rows that others cover        ... .where(not in mask)                   by row number
                   few rows                      merged as the scan is planned, a local relation
                   everything else               a task per section, merged, over Arrow, in the columns of the query
              -->  the union of these

A filter on the key opens only files, and runs only tasks, that can have such rows (`pruned`).

One snapshot is chosen when the DataFrame is made, and every task of every query on it reads at it: it never changes,
however often it is evaluated and whatever is written meanwhile. It is held for as long as the DataFrame, or another
that is derived from it, is there (`holding`), or a temporary view of one of these (`frame_ends`).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from functools import reduce
from pathlib import PurePosixPath

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.types import BinaryType, StructField, StructType

from ebla.client.database import Database
from ebla.client.moments import AsOf
from ebla.direct.fragments import ROW
from ebla.direct.holding import Holding
from ebla.model.keys import KeyCodec
from ebla.model.ranges import KeyRange
from ebla.model.where import Where
from ebla.pipeline.scanning.frame_ends import FrameEnd
from ebla.pipeline.scanning.masks import unmasked
from ebla.pipeline.scanning.plan import CleanRead, Limits
from ebla.pipeline.scanning.pruned import keyed_files, merged_rows
from ebla.pipeline.scanning.sections import SectionPlan, plan_scan
from ebla.pipeline.spark.session import active_session, local_frame, session
from ebla.pipeline.spark.types import spark_schema

__all__ = ["frame_of", "scan", "string_bound"]

# What the user's session may have set otherwise must not change what is read.
_READ_OPTIONS = {
    "datetimeRebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "false",
    "__globPaths__": "false",  # a root may have brackets in its name
    "parquet.page.verify-checksum.enabled": "true",
}
_CODE_POINTS = range(0x110000)
_SURROGATES = range(0xD800, 0xE000)


def scan(
    source: Database | str | os.PathLike[str],
    table: str,
    *,
    columns: Sequence[str] | None = None,
    start: object = None,
    stop: object = None,
    prefix: object = None,
    as_of: AsOf | None = None,
    where: Where | None = None,
    spark: SparkSession | None = None,
    limits: Limits = Limits(),
) -> DataFrame:
    """Return the rows that ``table.scan`` with the same arguments gives, as a DataFrame.

    Without `as_of` it is the newest snapshot. `source` is a database that this process has open, or the root of a store
    that anybody may have open. `where` filters in the tasks, by the engine; a filter of Spark's on the DataFrame lets
    Spark's own reader skip what it rules out. Families of cells are maps from qualifier to value. The order of rows is
    not defined. Raises the errors of ``table.scan``, before any job runs.
    """
    if spark is None:
        spark = active_session() or session()
    cores = spark.sparkContext.defaultParallelism
    holding = Holding()
    try:
        planned = plan_scan(
            source,
            table,
            columns=columns,
            start=start,
            stop=stop,
            prefix=prefix,
            as_of=as_of,
            where=where,
            cores=cores,
            limits=limits,
            merge_few=True,
            holding=holding,
        )
        end = FrameEnd(spark, holding)
        frame = frame_of(planned, holding.given_to(spark, end.tell))
        end.of(frame)
        return frame
    except BaseException:
        holding.release()
        raise


def frame_of(planned: SectionPlan, spark: SparkSession) -> DataFrame:
    """Return a planned scan as a DataFrame."""
    # What is merged takes longest and is begun first.
    parts = [merged_rows(spark, planned)] if planned.sections else []
    if planned.overlay is not None and len(planned.overlay):
        parts.append(local_frame(spark, planned.overlay, spark_schema(planned.projection.arrow_schema)))
    parts += [_clean_part(spark, planned, read) for read in planned.plan.clean]
    if not parts:
        return spark.createDataFrame([], spark_schema(planned.projection.arrow_schema))
    return reduce(DataFrame.union, parts)


# --- clean ---------------------------------------------------------------------------------------


def _clean_part(spark: SparkSession, planned: SectionPlan, read: CleanRead) -> DataFrame:
    """Read fragments as the Parquet files that they are. Other groups have no record here: their columns are null."""
    projection = planned.projection
    schema = projection.schema
    own = {output.name for output in projection.outputs if output.group.id == read.group}
    answer = spark_schema(projection.arrow_schema)
    held = [field for field in answer.fields if field.name in own or field.name in schema.key_names]
    row_name = schema.key[0].name if schema.has_simple_key else ROW
    if read.ranges and row_name == ROW:
        held.append(StructField(ROW, BinaryType()))
    paths = [f"file://{planned.target.root}/{file}" for file in read.files]
    rows = spark.read.options(**_READ_OPTIONS).schema(StructType(held)).parquet(*paths)
    spans = {PurePosixPath(file).name: planned.spans[file] for file in read.files}
    rows = keyed_files(rows, KeyCodec(schema.key), spans)
    if read.ranges:
        is_text = schema.has_simple_key and schema.key[0].type == pa.string()
        bounds = _string_bounds if is_text else _binary_bounds
        row = F.col(_quoted(row_name))
        rows = rows.where(reduce(Column.__or__, (bounds(row, part) for part in read.ranges)))
    masks = {file: planned.layers.masks[file] for file in read.files if file in planned.layers.masks}
    if masks:
        rows = unmasked(rows, planned.target.root, read.files, masks)
    names = [field.name for field in held]
    if names == answer.names:
        return rows
    kinds = {output.name: output.kind for output in projection.outputs}
    return rows.select([_column(field, field.name in names, kinds.get(field.name)) for field in answer.fields])


def _column(field: StructField, is_held: bool, kind: str | None) -> Column:
    if is_held:
        return F.col(_quoted(field.name))
    # A row without cells has an empty map of them, as in every scan.
    absent = F.create_map() if kind in ("family", "wildcard") else F.lit(None)
    return absent.cast(field.dataType).alias(field.name)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _binary_bounds(row: Column, part: KeyRange) -> Column:
    return _between(
        row, bytearray(part.first) if part.first else None, None if part.last is None else bytearray(part.last)
    )


def _string_bounds(row: Column, part: KeyRange) -> Column:
    first = string_bound(part.first)
    if first is None:
        return F.lit(False)  # past every string
    return _between(row, first or None, None if part.last is None else string_bound(part.last))


def _between(row: Column, first: str | bytearray | None, last: str | bytearray | None) -> Column:
    inside = F.lit(True) if first is None else row >= F.lit(first)
    return inside if last is None else inside & (row < F.lit(last))


def string_bound(row: bytes) -> str | None:
    """Return the smallest string whose UTF-8 bytes are not less than `row`; None if there is none.

    The bound of a range need not be valid UTF-8, and Spark filters a string column by strings.
    """
    try:
        return row.decode()
    except UnicodeDecodeError as error:
        valid, rest = row[: error.start].decode(), row[error.start :]
    point = bisect_left(_CODE_POINTS, rest, key=_encoded)
    while point == len(_CODE_POINTS):
        if not valid:
            return None
        # Nothing that begins with `valid` is great enough.
        valid, point = valid[:-1], ord(valid[-1]) + 1
    return valid + chr(_SURROGATES.stop if point in _SURROGATES else point)


def _encoded(point: int) -> bytes:
    return chr(point).encode("utf-8", "surrogatepass")
