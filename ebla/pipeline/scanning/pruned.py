"""What Spark's planner asks a scan while it plans a query: which files have these keys, and rows in these columns.

    FileScan parquet      which of the files?                those that can have rows of the keys asked for
    Scan EblaMerge        these columns, filtered by this    a task per section, merged, with these columns alone

Both are asked anew for every query on a frame, with what is left of its columns and filters once Catalyst is through
with them. Neither holds on to the session of a frame, which holds its snapshot (`Holding`): Spark forgets plans late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ebla.model.keys import KeyCodec
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange
from ebla.pipeline.scanning.key_filters import key_ranges
from ebla.pipeline.scanning.plan import Section
from ebla.pipeline.scanning.sections import SectionPlan, Target, read_section
from ebla.pipeline.scanning.spark_filters import conditions_of
from ebla.pipeline.spark.java_classes import JavaFunction, new_java
from ebla.pipeline.spark.types import spark_schema
from ebla.pipeline.spark.worker import numbers_of

__all__ = ["keyed_files", "merged_rows", "narrowed", "sections_in"]


def keyed_files(frame: DataFrame, codec: KeyCodec, spans: Mapping[str, KeyRange]) -> DataFrame:
    """Return a frame of files of which a query on it opens only those with rows of the keys that it asks for.

    `spans` says between which rows the rows of each file are, by the name of the file.
    """

    def choose(filters: Any) -> str | None:
        ranges = key_ranges(conditions_of(filters), codec)
        if ranges is None:
            return None
        return "\n".join(name for name, span in spans.items() if any(span.overlaps(one) for one in ranges))

    spark = frame.sparkSession
    relation = frame._jdf.queryExecution().analyzed().relation()
    files = new_java(spark, "KeyedFiles", relation.location(), codec.names[0], JavaFunction(choose))
    if files is None:
        return frame
    keyed = relation.copy(
        files,
        relation.partitionSchema(),
        relation.dataSchema(),
        relation.bucketSpec(),
        relation.fileFormat(),
        relation.options(),
        relation.sparkSession(),
    )
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(keyed), spark)


def merged_rows(spark: SparkSession, planned: SectionPlan) -> DataFrame:
    """Return the rows of the sections of a plan, as a frame that queries take columns and keys from."""
    ours: SparkSession = object.__new__(type(spark))
    ours.__dict__.update(spark.__dict__)
    plain = replace(planned, overlay=None)
    codec = KeyCodec(planned.projection.schema.key)

    def rows(asked: Any) -> Any:
        names, filters = list(asked[0]), asked[1]
        ranges = key_ranges(conditions_of(filters), codec) if len(filters) else None
        sections = plain.sections if ranges is None else sections_in(plain.sections, ranges)
        if not sections:
            return ours.sparkContext._jsc.emptyRDD().rdd()
        return _tasks(ours, plain, sections, names)._jdf.queryExecution().toRdd()

    schema = spark._jsparkSession.parseDataType(spark_schema(planned.projection.arrow_schema).json())
    context = spark._jsparkSession.sqlContext()
    relation = new_java(spark, "MergedRows", context, schema, planned.section_bytes, JavaFunction(rows))
    if relation is None:
        return _tasks(spark, plain, plain.sections, planned.projection.arrow_schema.names)
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


def _tasks(spark: SparkSession, planned: SectionPlan, sections: Sequence[Section], names: Sequence[str]) -> DataFrame:
    columns = narrowed(planned.projection, names)
    projection = planned.projection if columns is None else Projection.of(planned.projection.schema, columns)
    target = planned.target if columns is None else replace(planned.target, columns=columns)
    answer = spark_schema(projection.arrow_schema)
    numbers = spark.range(0, len(sections), 1, len(sections))
    return numbers.mapInArrow(_reader(target, sections), answer).select(*map(_quoted, names))


def _reader(
    target: Target, sections: Sequence[Section]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in numbers_of(batches):
            yield from read_section(target, sections[number])

    return read


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def narrowed(projection: Projection, names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns to read for some of a projection's, such that the rows stay the same; None for all of them.

    A row is there if one of the groups that are read shows it: of a group whose columns are not wanted one is read.
    """
    wanted = [output.name for output in projection.outputs if output.name in names]
    read = {output.group.id for output in projection.outputs if output.name in names}
    for group in projection.groups:
        own = [output for output in projection.outputs if output.group.id == group.id]
        if group.id not in read and own:
            wanted.append(min(own, key=lambda output: _width(output.type)).name)
    found = Projection.of(projection.schema, wanted)
    return tuple(wanted) if found.groups == projection.groups else None


def _width(kind: pa.DataType | None) -> int:
    try:
        return 1 << 20 if kind is None else kind.bit_width
    except ValueError:
        return 1 << 10


def sections_in(sections: Sequence[Section], ranges: Sequence[KeyRange]) -> list[Section]:
    """Return what is left of sections in some ranges of rows."""
    left = []
    for section in sections:
        own = [part for mine in section.ranges for one in ranges if (part := mine.intersect(one)) is not None]
        if own:
            left.append(section if section.rows is not None else replace(section, ranges=tuple(own)))
    return left
