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
import pyarrow.csv as pacsv
import pyarrow.orc as orc
import pyarrow.parquet as pq

from ebla.casts import is_text
from ebla.errors import RequestError
from ebla.pipeline.input_files import CORRUPT, InputFiles, is_family, names_in_order
from ebla.pipeline.json_types import empty_as_text, merged, type_of
from ebla.pipeline.text_parsing import type_of_texts
from ebla.pipeline.types import arrow_for_spark
from ebla.schema import TableSchema
from ebla.settings import MIB

__all__ = ["FileBatches", "types_in"]

BLOCK_BYTES = MIB
BATCH_ROWS = 65_536
JSON_ROWS = 16_384
_FAMILY = pa.map_(pa.string(), pa.string())
_TEXT_KINDS = ("csv", "json")


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
            names = _csv_names(self._paths, self._files)
            if not self._files.header:
                names = names_in_order(self._table, len(names))
            return pa.schema([(name, self._csv_type(name)) for name in names])
        if self._kind == "json":
            names = list(dict.fromkeys(name for path in self._paths for name in _json_names(path, self._files)))
            return pa.schema([(name, self._json_type(name)) for name in sorted(names)])
        return _columnar_schema(self._paths[0], self._kind)

    def _csv_type(self, name: str) -> pa.DataType:
        return _FAMILY if name not in self._typed and is_family(name, self._table) else pa.string()

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
            for batch in _csv_batches(path, self._files, self.schema.names):
                yield self._as_meant(batch)
        elif self._kind == "json":
            for lines in _json_rows(path, self._files):
                yield self._json_batch(lines)
        else:
            yield from _columnar_batches(path, self._kind, self.schema)

    def _as_meant(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return texts as the table means them: whole families are JSON objects, and no number is an empty text."""
        columns, corrupt = [], batch.column(CORRUPT)
        for field in self.schema:
            texts = batch.column(field.name)
            if pa.types.is_map(field.type):
                found = [_cells_of(text) for text in texts.to_pylist()]
                is_broken = pa.array([cells is None for cells in found])
                corrupt = pc.if_else(pc.and_(is_broken, corrupt.is_null()), texts, corrupt)
                texts = pa.array([None if cells is _NOTHING else cells for cells in found], _FAMILY)
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
                    values.append(None if raw is None else _json_value(bytes(raw), field.type))
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
            return _csv_types(paths, files)
        if kind == "json":
            return _json_types(paths, files)
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


# --- CSV -------------------------------------------------------------------------------------------


def _csv_names(paths: Sequence[Path], files: InputFiles) -> list[str]:
    """Return the names of the columns: those of the first file, that all must have in the same order."""
    names = _names_of(paths[0], files)
    for path in paths[1:]:
        others = _names_of(path, files)
        if others != names and others:
            raise RequestError(
                f"{path} has the columns {', '.join(others[:20])}, and {paths[0]} has {', '.join(names[:20])}: "
                "load them one after the other"
            )
    return names


def _names_of(path: Path, files: InputFiles) -> list[str]:
    try:
        with _csv_reader(path, files, None, []) as reader:
            return list(reader.schema.names)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return []
        raise


def _csv_reader(
    path: Path, files: InputFiles, names: Sequence[str] | None, skipped: list[str]
) -> pacsv.CSVStreamingReader:
    def skip(row: Any) -> str:
        skipped.append(row.text or "")
        return "skip"

    return pacsv.open_csv(
        pa.input_stream(str(path), compression="detect"),
        read_options=pacsv.ReadOptions(
            column_names=None if names is None else list(names),
            skip_rows_after_names=0,
            skip_rows=1 if names is not None and files.header else 0,
            autogenerate_column_names=names is None and not files.header,
            block_size=BLOCK_BYTES,
            use_threads=False,
        ),
        parse_options=pacsv.ParseOptions(
            delimiter=files.separator, newlines_in_values=files.multiline, invalid_row_handler=skip
        ),
        # Everything is text. Only an empty field without quotes is null: "" is the empty text.
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(names or (), pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _csv_batches(path: Path, files: InputFiles, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows as texts, and lines with too many or too few values as corrupt ones."""
    skipped: list[str] = []
    try:
        reader = _csv_reader(path, files, names, skipped)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        raise
    with reader:
        for batch in reader:
            corrupt = pa.nulls(batch.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, corrupt], names=[*names, CORRUPT])
            yield from _corrupt_lines(skipped, names)
    yield from _corrupt_lines(skipped, names)


def _corrupt_lines(skipped: list[str], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if skipped:
        lines = pa.array(skipped, pa.string())
        skipped.clear()
        nothing = [pa.nulls(len(lines), pa.string()) for _ in names]
        yield pa.RecordBatch.from_arrays([*nothing, lines], names=[*names, CORRUPT])


def _csv_types(paths: Sequence[Path], files: InputFiles) -> list[tuple[str, pa.DataType]]:
    if not files.header:
        raise RequestError("a new table needs names for its columns: give files with a header")
    names = _csv_names(paths, files)
    types: dict[str, pa.DataType | None] = dict.fromkeys(names)
    for path in paths:
        for batch in _csv_batches(path, files, names):
            for name in names:
                found = type_of_texts(batch.column(name))
                types[name] = _wider(types[name], found)
    return [(name, types[name] or pa.string()) for name in names]


def _wider(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """Return the type of values of both types, by Spark's rules."""
    if one is None or other is None or one == other:
        return other if one is None else one
    both, moment = {one, other}, pa.timestamp("us", "UTC")
    if both == {pa.date32(), moment}:
        return moment
    numbers = [kind for kind in both if pa.types.is_integer(kind) or pa.types.is_decimal(kind)]
    if len(numbers) == len(both):
        return pa.decimal128(max(20, *(kind.precision for kind in numbers if pa.types.is_decimal(kind))), 0)
    return pa.float64() if all(kind in numbers or kind == pa.float64() for kind in both) else pa.string()


# --- JSON ------------------------------------------------------------------------------------------

_ROW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ROWS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_VALUE = msgspec.json.Decoder(dict[str, Any])
_NOTHING: dict[str, str] = {}


def _json_rows(path: Path, files: InputFiles) -> Iterator[list[tuple[bytes, dict[str, msgspec.Raw] | None]]]:
    """Yield rows by portions, each with its line; None for a line that is no object."""
    rows: list[tuple[bytes, dict[str, msgspec.Raw] | None]] = []
    with pa.input_stream(str(path), compression="detect") as source:
        if files.multiline:
            yield _whole_rows(source.read())
            return
        for line in _lines(source):
            try:
                rows.append((line, _ROW.decode(line)))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                rows.append((line, None))
            if len(rows) == JSON_ROWS:
                yield rows
                rows = []
    if rows:
        yield rows


def _whole_rows(text: bytes) -> list[tuple[bytes, dict[str, msgspec.Raw] | None]]:
    """Return the rows of a file that is one object, or one array of them."""
    try:
        if text.lstrip().startswith(b"["):
            return [(b"", row) for row in _ROWS.decode(text)]
        return [(text, _ROW.decode(text))]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return [(text, None)]


def _lines(source: Any) -> Iterator[bytes]:
    """Yield the lines that have something in them, of a source that is read a block at a time."""
    left = b""
    is_first = True
    while block := source.read(BLOCK_BYTES):
        if is_first:
            block, is_first = block.removeprefix(b"\xef\xbb\xbf"), False
        *lines, left = (left + block).split(b"\n")
        yield from (line for line in map(bytes.strip, lines) if line)
    if left.strip():
        yield left.strip()


def _json_names(path: Path, files: InputFiles) -> Iterator[str]:
    for rows in _json_rows(path, files):
        for _, row in rows:
            yield from row or ()


def _json_types(paths: Sequence[Path], files: InputFiles) -> list[tuple[str, pa.DataType]]:
    types: dict[str, pa.DataType] = {}
    for path in paths:
        for rows in _json_rows(path, files):
            for _, row in rows:
                for name, raw in (row or {}).items():
                    types[name] = merged(types.get(name, pa.null()), type_of(msgspec.json.decode(raw)))
    return [(name, empty_as_text(types[name])) for name in sorted(types)]


def _json_value(raw: bytes, kind: pa.DataType) -> Any:
    """Return a JSON value for a column: text where that is not known better, an object of texts, or what has parts."""
    if raw == b"null":
        return None
    if pa.types.is_map(kind):
        return [(name, _json_value(bytes(one), pa.string())) for name, one in _ROW.decode(raw).items()]
    if pa.types.is_nested(kind):
        return pa.scalar(msgspec.json.decode(raw), kind).as_py()
    return msgspec.json.decode(raw) if raw.startswith(b'"') else raw.decode()


def _cells_of(text: str | None) -> Any:
    """Return the cells of a family that a text has as a JSON object; None if it is no object."""
    if text is None:
        return _NOTHING
    try:
        return _json_value(text.encode(), _FAMILY)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


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
