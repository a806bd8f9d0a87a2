"""Files as DataFrames for a load: CSV, JSON lines, Parquet and ORC, read so that nothing gets lost on the way.

    the table is there      text stays text until its column's type is known: 007 is a string if the column is one, and
                            a text that is no number becomes a reject, not a null
    it is to be made        types are guessed from the values, by Spark

A line that cannot be read at all is a row with nothing but ``_corrupt_record``, the line; a load rejects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from ebla.errors import RequestError
from ebla.model.casts import is_text
from ebla.model.schema import TableSchema
from ebla.pipeline.inputs.input_files import (
    CORRUPT,
    FileFormat,
    check_files,
    format_of,
    is_elsewhere,
    is_family,
    names_in_order,
)
from ebla.pipeline.spark.complaints import SPARK_ERRORS, said_by_spark
from ebla.pipeline.spark.types import spark_type

__all__ = ["FileFormat", "check_files", "format_of", "read_files"]

_NULL = "\ue000"  # a character that nobody uses
_FAMILY = MapType(StringType(), StringType())
_WIDE: dict[DataType, DataType] = {IntegerType(): LongType()}


def read_files(
    spark: SparkSession,
    paths: Sequence[str],
    format_: FileFormat,
    schema: TableSchema | None = None,
    *,
    header: bool = True,
    delimiter: str | None = None,
    multiline: bool = False,
) -> DataFrame:
    """Return the rows of the files; `schema` is that of the table they are for, if it is there already.

    `header` and `delimiter` are for CSV; without a header, the columns are those of the table in their order. With
    `multiline`, a value of CSV, or a row of JSON, may go over several lines; a file is then read by one task.
    """
    check_files(paths)
    # In full: Spark's Java has a working directory of its own, and perhaps another idea of where files are.
    paths = [path if is_elsewhere(path) else f"file:{Path(path).absolute()}" for path in paths]
    try:
        if format_ == "csv":
            delimiter = delimiter or ("\t" if all(path.endswith(".tsv") for path in paths) else ",")
            reader = spark.read.option("header", header).option("sep", delimiter).option("multiLine", multiline)
            return _read_csv(reader, list(paths), schema, header)
        if format_ == "json":
            return _read_json(spark.read.option("multiLine", multiline), list(paths), schema)
        return spark.read.format(format_).load(list(paths))
    except SPARK_ERRORS as error:
        raise RequestError(f"the files cannot be read as {format_}: {said_by_spark(error)}") from error


def _read_csv(reader: DataFrameReader, paths: list[str], schema: TableSchema | None, header: bool) -> DataFrame:
    # A quote inside of quotes is doubled, as everybody but Spark writes it.
    # Nothing is null, and quotes with nothing in them are an empty text: so null must be something else to Spark.
    reader = reader.option("escape", '"').option("enforceSchema", False).option("nullValue", _NULL)
    if schema is None:
        if not header:
            raise RequestError("a new table needs names for its columns: give files with a header")
        inferred = reader.option("inferSchema", True).csv(paths).schema
        # Numbers that are small in these files may be larger in the next ones, and the type of a key stays.
        found = StructType([StructField(f.name, _WIDE.get(f.dataType, f.dataType)) for f in inferred.fields])
    else:
        names = reader.csv(paths).schema.names
        if not header:
            names = names_in_order(schema, len(names))
        found = StructType([StructField(name, StringType()) for name in names])
    with_corrupt = StructType([*found.fields, StructField(CORRUPT, StringType())])
    frame = reader.option("columnNameOfCorruptRecord", CORRUPT).csv(paths, schema=with_corrupt)
    return frame if schema is None else _as_meant(frame, schema)


def _as_meant(frame: DataFrame, schema: TableSchema) -> DataFrame:
    """Return texts as the table means them: whole families are JSON objects, and no number is an empty text."""
    typed = {column.name: column.type for column in schema.key}
    typed |= {column.name: column.type for group in schema.groups for column in group.columns}
    columns, broken = [], [F.col(CORRUPT)]
    for name in frame.columns[:-1]:
        column = F.col(f"`{name.replace('`', '``')}`")
        if name in typed and not is_text(typed[name]):
            column = F.when(column != "", column)
        elif name not in typed and is_family(name, schema):
            parsed = F.from_json(column, _FAMILY)
            broken.append(F.when(column.isNotNull() & parsed.isNull(), column))
            column = parsed
        columns.append(column.alias(name))
    return frame.select(*columns, F.coalesce(*broken).alias(CORRUPT))


def _read_json(reader: DataFrameReader, paths: list[str], schema: TableSchema | None) -> DataFrame:
    reader = reader.option("columnNameOfCorruptRecord", CORRUPT)
    if schema is not None:
        reader = reader.option("primitivesAsString", True)
    found = reader.json(paths).schema
    fields = [StructField(field.name, _type_of(field, schema)) for field in found.fields if field.name != CORRUPT]
    return reader.json(paths, schema=StructType([*fields, StructField(CORRUPT, StringType())]))


def _type_of(field: StructField, schema: TableSchema | None) -> DataType:
    """Return the type to read a JSON field with: text, or where the column has parts, its own type."""
    if schema is None:
        return field.dataType
    typed = {column.name: column.type for column in schema.key}
    typed |= {column.name: column.type for group in schema.groups for column in group.columns}
    if field.name in typed:
        wanted = spark_type(typed[field.name])
        return wanted if isinstance(wanted, (ArrayType, StructType)) else StringType()
    return _FAMILY if is_family(field.name, schema) else StringType()
