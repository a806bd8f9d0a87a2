"""Files of a load as Arrow batches, read in this process: CSV, JSON lines, Parquet and ORC, a part at a time.

    types_in(files)                 of a new table: names, and types guessed from all values, by Spark's rules
    FileBatches(files, schema)      of a table that is there (or was made just now): its columns, and batches of them

Texts of CSV and JSON stay texts until a column's type is known to whoever takes them: 007 is a string if the column is
one. Columns that have parts, and families of cells, come as such. A line that cannot be read at all is a row with
nothing but ``_corrupt_record``, the line; a load rejects it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq

from ebla.errors import RequestError
from ebla.model.casts import is_text
from ebla.model.schema import TableSchema
from ebla.pipeline.inputs.csv_rows import csv_batches, csv_names, csv_types
from ebla.pipeline.inputs.input_files import CORRUPT, InputFiles, is_family, names_in_order
from ebla.pipeline.inputs.json_rows import FAMILY, NO_CELLS, cells_of, json_names, json_rows, json_types_of, json_value
from ebla.pipeline.spark.types import arrow_for_spark

__all__ = ["FileBatches", "types_in"]

BATCH_ROWS = 65_536


class FileBatches:
    """The rows of files for a table."""

    def __init__(self, files: InputFiles, schema: TableSchema) -> None:
        self._files = files
        self._paths = files.files()
        self._kind = files.kind
        self._table = schema
        self._typed = {column.name: column.type for column in schema.key}
        self._typed |= {column.name: column.type for group in schema.groups for column in group.columns}
        with _said(self._paths[0], self._kind):
            self.schema: pa.Schema = self._schema()

    def _schema(self) -> pa.Schema:
        if self._kind == "csv":
            names = csv_names(self._paths, self._files)
            if not self._files.header:
                names = names_in_order(self._table, len(names))
            return pa.schema([(name, self._csv_type(name)) for name in names])
        if self._kind == "json":
            names = list(dict.fromkeys(name for path in self._paths for name in json_names(path, self._files)))
            return pa.schema([(name, self._json_type(name)) for name in sorted(names)])
        return _columnar_schema(self._paths[0], self._kind)

    def _csv_type(self, name: str) -> pa.DataType:
        return FAMILY if name not in self._typed and is_family(name, self._table) else pa.string()

    def _json_type(self, name: str) -> pa.DataType:
        if name in self._typed:
            kind = self._typed[name]
            return arrow_for_spark(kind) if pa.types.is_nested(kind) else pa.string()
        return self._csv_type(name)

    def __iter__(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches of all files in their order, each with the number of its file."""
        for number, path in enumerate(self._paths):
            with _said(path, self._kind):
                for batch in self._batches(path):
                    yield number, batch

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self._paths)

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        if self._kind == "csv":
            for batch in csv_batches(path, self._files, self.schema.names):
                yield self._as_meant(batch)
        elif self._kind == "json":
            for lines in json_rows(path, self._files):
                yield self._json_batch(lines)
        else:
            yield from _columnar_batches(path, self._kind, self.schema)

    def _as_meant(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return texts as the table means them: whole families are JSON objects, and no number is an empty text."""
        columns, corrupt = [], batch.column(CORRUPT)
        for field in self.schema:
            texts = batch.column(field.name)
            if pa.types.is_map(field.type):
                found = [cells_of(text) for text in texts.to_pylist()]
                is_broken = pa.array([cells is None for cells in found])
                corrupt = pc.if_else(pc.and_(is_broken, corrupt.is_null()), texts, corrupt)
                texts = pa.array([None if cells is NO_CELLS else cells for cells in found], FAMILY)
            elif field.name in self._typed and not is_text(self._typed[field.name]):
                texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            columns.append(texts)
        return pa.RecordBatch.from_arrays([*columns, corrupt], names=[*self.schema.names, CORRUPT])

    def _json_batch(self, rows: Sequence[tuple[bytes, dict[str, msgspec.Raw] | None]]) -> pa.RecordBatch:
        broken = [row is None for _, row in rows]
        columns = []
        for field in self.schema:
            values: list[Any] = []
            for at, (_, row) in enumerate(rows):
                raw = None if row is None else row.get(field.name)
                try:
                    values.append(None if raw is None else json_value(bytes(raw), field.type))
                except (msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError):
                    broken[at] = True
                    values.append(None)
            columns.append(pa.array(values, field.type))
        lines = [line.decode("utf-8", "replace") if bad else None for (line, _), bad in zip(rows, broken, strict=True)]
        corrupt = pa.array(lines, pa.string())
        kept = [pc.if_else(corrupt.is_null(), column, pa.scalar(None, column.type)) for column in columns]
        return pa.RecordBatch.from_arrays([*kept, corrupt], names=[*self.schema.names, CORRUPT])


def types_in(files: InputFiles) -> list[tuple[str, pa.DataType]]:
    """Return the columns of files that a new table is made for, with the types in which Spark would read them."""
    paths, kind = files.files(), files.kind
    with _said(paths[0], kind):
        if kind == "csv":
            return csv_types(paths, files)
        if kind == "json":
            return json_types_of(paths, files)
        return [(field.name, field.type) for field in _columnar_schema(paths[0], kind)]


class _said:  # noqa: N801 - read as a word, like the functions of contextlib
    """Makes errors of readers Ebla's own: which file, as what it was read, and what was wrong."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind = path, kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if isinstance(error, (pa.ArrowException, OSError, UnicodeDecodeError, EOFError)):
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RequestError(f"{self._path} cannot be read as {self._kind}: {said}") from error


# --- Parquet and ORC -------------------------------------------------------------------------------


def _columnar_schema(path: Path, kind: str) -> pa.Schema:
    if kind == "orc":
        return orc.ORCFile(str(path)).schema.remove_metadata()
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us").schema_arrow.remove_metadata()


def _columnar_batches(path: Path, kind: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, in the columns of the first one: those that this file does not have are null."""
    if kind == "orc":
        file = orc.ORCFile(str(path))
        found = (file.read_stripe(number) for number in range(file.nstripes))
    else:
        found = pq.ParquetFile(path, coerce_int96_timestamp_unit="us").iter_batches(BATCH_ROWS)
    for batch in found:
        held = batch.schema.names
        columns = [
            pc.cast(batch.column(field.name), field.type)
            if field.name in held
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, names=schema.names)
