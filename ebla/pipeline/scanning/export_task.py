"""What one task of an export does, on Spark and without: the rows of one section into one file.

    read_section --> batches in Spark's types --> Parquet, lines of CSV, lines of JSON --> part-00003-<id>.csv

The files are such as Spark would have written: the same columns, types and text, and in Parquet the note of Spark's own
types, so that Spark reads a duration back as one. Memory is that of a batch, and of a row group of Parquet.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebla.errors import StoreError
from ebla.pipeline.scanning.plan import Section
from ebla.pipeline.scanning.sections import Target, read_section
from ebla.pipeline.spark.spark_text import csv_columns, csv_header, csv_lines, json_lines
from ebla.pipeline.spark.types import spark_json

__all__ = ["ExportFormat", "ExportTask", "written_schema"]

ExportFormat: TypeAlias = Literal["parquet", "csv", "json"]

_ENDINGS = {"parquet": ".snappy.parquet", "csv": ".csv", "json": ".json"}
# Where Spark looks for its own types in a file.
_SPARK_TYPES = "org.apache.spark.sql.parquet.row.metadata"


def written_schema(schema: pa.Schema, format: ExportFormat) -> pa.Schema:
    """Return the columns that a format has for rows in Spark's types: see the table in `export`."""
    if format == "parquet":
        return schema
    return pa.schema([pa.field(field.name, _written_type(field.type, format)) for field in schema])


def _written_type(kind: pa.DataType, format: ExportFormat) -> pa.DataType:
    if pa.types.is_duration(kind):
        return pa.int64()
    return pa.string() if format == "csv" and (pa.types.is_binary(kind) or pa.types.is_nested(kind)) else kind


@dataclass(frozen=True)
class ExportTask:
    """The work of every task of an export: plain values. `schema` are the columns in Spark's types."""

    target: Target
    schema: pa.Schema
    directory: str
    format: ExportFormat

    def run(self, part: tuple[int, Section | None]) -> tuple[str, int]:
        """Write the rows of one section (None: no rows) to a file of its own; return its name, and how many they are.

        An attempt that Spark repeats writes another file.
        """
        number, section = part
        batches = iter(()) if section is None else read_section(self.target, section)
        path = Path(self.directory) / f"part-{number:05}-{uuid.uuid4()}{_ENDINGS[self.format]}"
        try:
            if self.format == "parquet":
                return path.name, self._write_parquet(path, batches)
            with open(path, "xb") as file:
                write = self._write_csv if self.format == "csv" else self._write_json
                return path.name, write(file, batches)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}: nothing was exported") from error

    def _write_parquet(self, path: Path, batches: Iterator[pa.RecordBatch]) -> int:
        plain = pa.schema([pa.field(f.name, _in_parquet(f.type)) for f in self.schema])
        rows = 0
        with pq.ParquetWriter(path, plain, compression="snappy", store_schema=False) as writer:
            writer.add_key_value_metadata({_SPARK_TYPES: json.dumps(spark_json(self.schema))})
            for batch in batches:
                columns = [pc.cast(column, kind) for column, kind in zip(batch.columns, plain.types, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=plain))
                rows += batch.num_rows
        return rows

    def _write_csv(self, file: BinaryIO, batches: Iterator[pa.RecordBatch]) -> int:
        file.write(csv_header(self.schema.names).encode() + b"\n")
        return sum(_write_lines(file, csv_lines(csv_columns(batch))) for batch in batches)

    def _write_json(self, file: BinaryIO, batches: Iterator[pa.RecordBatch]) -> int:
        wanted = written_schema(self.schema, "json").types
        rows = 0
        for batch in batches:
            columns = [pc.cast(column, kind) for column, kind in zip(batch.columns, wanted, strict=True)]
            rows += _write_lines(file, json_lines(pa.RecordBatch.from_arrays(columns, names=self.schema.names)))
        return rows


def _in_parquet(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Parquet has a column: it knows no durations, and holds the number of microseconds."""
    types = pa.types
    if types.is_duration(kind):
        return pa.int64()
    if types.is_list(kind):
        return pa.list_(pa.field("element", _in_parquet(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(kind.key_type, _in_parquet(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _in_parquet(field.type)) for field in kind])
    return kind


def _write_lines(file: BinaryIO, lines: pa.Array) -> int:
    if len(lines):
        file.write("\n".join(lines.to_pylist()).encode() + b"\n")
    return len(lines)
