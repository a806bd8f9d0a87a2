"""Files as DataFrames for a load: CSV, JSON lines, Parquet and ORC, read so that nothing gets lost on the way.

    the table is there      text stays text until its column's type is known: 007 is a string if the column is one, and
                            a text that is no number becomes a reject, not a null
    it is to be made        types are guessed from the values, by Spark

A line that cannot be read at all is a row with nothing but ``_corrupt_record``, the line; a load rejects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from ebla.casts import is_text
from ebla.errors import RequestError, UnknownColumn
from ebla.pipeline.complaints import SPARK_ERRORS, said_by_spark
from ebla.pipeline.load_columns import CORRUPT
from ebla.pipeline.types import spark_type
from ebla.schema import TableSchema

__all__ = ["FileFormat", "check_files", "format_of", "read_files"]

FileFormat = Literal["csv", "json", "parquet", "orc"]

FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)
_SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".orc": "orc",
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".zlib", ".deflate", ".xz")
_NULL = "\ue000"  # a character that nobody uses
_FAMILY = MapType(StringType(), StringType())
_WIDE: dict[DataType, DataType] = {IntegerType(): LongType()}


def check_files(paths: Sequence[str]) -> None:
    """Raise `RequestError` for the first path of this machine that is not there; of other places, Spark knows."""
    if not paths:
        raise RequestError("name at least one file to load")
    for path in paths:
        if not _is_elsewhere(path) and not any(char in path for char in "*?[{") and not Path(path).exists():
            raise RequestError(f"there is no file {path}: check the path")


def _is_elsewhere(path: str) -> bool:
    return "://" in path or path.startswith("file:")


def format_of(paths: Sequence[str]) -> FileFormat:
    """Return the format that the names of the files tell; of a directory, the names of the files in it."""
    found = {_format_of_name(name) for path in paths for name in _names(path)} - {None}
    if len(found) == 1:
        return found.pop()  # type: ignore[return-value]
    named = ", ".join(str(one) for one in sorted(map(str, found)))
    said = f"the files have several formats ({named})" if found else "the names of the files do not tell their format"
    raise RequestError(f"{said}: give one of {', '.join(FORMATS)}")


def _names(path: str) -> list[str]:
    if not _is_elsewhere(path) and Path(path).is_dir():
        inside = [found.name for found in sorted(Path(path).rglob("*")) if found.is_file()]
        return [name for name in inside if not name.startswith(("_", "."))]
    return [path.rstrip("/").rpartition("/")[2]]


def _format_of_name(name: str) -> FileFormat | None:
    stem = name.lower()
    for suffix in _COMPRESSED:
        stem = stem.removesuffix(suffix)
    return next((kind for suffix, kind in _SUFFIXES.items() if stem.endswith(suffix)), None)


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
    paths = [path if _is_elsewhere(path) else f"file:{Path(path).absolute()}" for path in paths]
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
            names = _names_in_order(schema, len(names))
        found = StructType([StructField(name, StringType()) for name in names])
    with_corrupt = StructType([*found.fields, StructField(CORRUPT, StringType())])
    frame = reader.option("columnNameOfCorruptRecord", CORRUPT).csv(paths, schema=with_corrupt)
    return frame if schema is None else _as_meant(frame, schema)


def _names_in_order(schema: TableSchema, count: int) -> list[str]:
    names = [*schema.key_names, *(column.name for group in schema.groups for column in group.columns)]
    if count > len(names):
        raise RequestError(f"the files have {count} columns and the table {len(names)}: give files with a header")
    return names[:count]


def _as_meant(frame: DataFrame, schema: TableSchema) -> DataFrame:
    """Return texts as the table means them: whole families are JSON objects, and no number is an empty text."""
    typed = {column.name: column.type for column in schema.key}
    typed |= {column.name: column.type for group in schema.groups for column in group.columns}
    columns, broken = [], [F.col(CORRUPT)]
    for name in frame.columns[:-1]:
        column = F.col(f"`{name.replace('`', '``')}`")
        if name in typed and not is_text(typed[name]):
            column = F.when(column != "", column)
        elif name not in typed and _is_family(name, schema):
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
    return _FAMILY if _is_family(field.name, schema) else StringType()


def _is_family(name: str, schema: TableSchema) -> bool:
    try:
        target = schema.resolve(name)
    except UnknownColumn:
        return False
    return target.family is not None and target.qualifier is None
