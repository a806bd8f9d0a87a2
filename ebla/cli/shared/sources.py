"""Where ``ebla put`` takes rows from: arguments, JSON lines, CSV and Parquet, in portions that fit in memory.

    file or stdin  -->  Portion(rows, count, where, done)  -->  table.put(portion.rows)

A portion is one batch and so one commit: a few thousand rows, as an Arrow table where all of them set the same columns,
else as dicts, because in a dict a missing column stays untouched. In JSON a cell is ``"family:qualifier": "value"`` or
an object ``"family": {"qualifier": "value"}``; in CSV a column ``family:qualifier``, or a column ``family`` with such
an object. A null cell is no cell. CSV and Parquet have every column in every row: there a null sets null.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ebla.cli.shared.formats import FileFormat
from ebla.errors import InvalidBatch, RequestError
from ebla.model.schema import WILDCARD, TableSchema
from ebla.model.text_values import CELLS, Misfit, from_json, from_text

Rows: TypeAlias = "pa.Table | list[dict[str, Any]]"

PORTION_BYTES_MAX = 8 * 1024 * 1024
CSV_BLOCK_BYTES = 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Portion:
    """Some rows to put at once, where they came from, and how far into the source they reach."""

    rows: Rows
    count: int
    where: str
    done: int


@dataclass(frozen=True, slots=True)
class Source:
    """Portions to come, and the `done` of the last one if that can be known."""

    portions: Iterator[Portion]
    total: int | None


@contextmanager
def open_rows(
    path: str, file_format: FileFormat | None, schema: TableSchema, portion_rows_max: int
) -> Iterator[Source]:
    """Open a file of rows, or standard input for ``-``, for reading in portions."""
    kind = file_format or _format_of(path)
    if path == "-":
        if kind is FileFormat.parquet:
            raise RequestError("Parquet cannot be read from a pipe: give a file")
        yield Source(_portions(sys.stdin.buffer, "standard input", kind, schema, portion_rows_max), None)
        return
    try:
        with open(path, "rb") as file:
            total = _parquet_rows(file, path) if kind is FileFormat.parquet else Path(path).stat().st_size
            yield Source(_portions(file, path, kind, schema, portion_rows_max), total)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        if error.filename != path:
            raise
        raise RequestError(f"cannot read {path}: {error.strerror}; check the path given to --file") from None


def _format_of(path: str) -> FileFormat:
    ending = Path(path).suffix.lower().lstrip(".")
    known = {"jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "csv": "csv", "parquet": "parquet", "pq": "parquet"}
    if path == "-":
        return FileFormat.jsonl
    if ending not in known:
        raise RequestError(f"cannot tell what {path} holds by its name: give --format jsonl, csv or parquet")
    return FileFormat(known[ending])


def _portions(
    file: BinaryIO, name: str, kind: FileFormat, schema: TableSchema, portion_rows_max: int
) -> Iterator[Portion]:
    if kind is FileFormat.jsonl:
        return _json_portions(file, name, schema, portion_rows_max)
    if kind is FileFormat.csv:
        return _csv_portions(file, name, schema, portion_rows_max)
    return _parquet_portions(file, name, portion_rows_max)


# --- JSON ----------------------------------------------------------------------------------------


def rows_from_arguments(texts: Sequence[str], schema: TableSchema) -> Portion:
    """Return the rows given as JSON objects on the command line."""
    parsed = [_json_row(text.encode(), f"row {at}") for at, text in enumerate(texts, 1)]
    return Portion(rows_from_json(parsed, schema), len(parsed), "the arguments", len(parsed))


def _json_portions(file: BinaryIO, name: str, schema: TableSchema, rows_max: int) -> Iterator[Portion]:
    rows: dict[int, dict[str, Any]] = {}  # by the number of their line
    first, size, done, number = 1, 0, 0, 0
    for number, line in enumerate(file, 1):
        done += len(line)
        text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).strip()
        if text:
            rows[number] = _json_row(text, f"{name} line {number}")
            size += len(line)
        if len(rows) >= rows_max or size >= PORTION_BYTES_MAX:
            yield _json_portion(rows, name, first, number, done, schema)
            rows, first, size = {}, number + 1, 0
    if rows:
        yield _json_portion(rows, name, first, number, done, schema)


def _json_portion(
    rows: dict[int, dict[str, Any]], name: str, first: int, last: int, done: int, schema: TableSchema
) -> Portion:
    where = f"{name} lines {first} to {last}"
    with _located(where, lambda at: f"{name} line {list(rows)[at]}"):
        return Portion(rows_from_json(list(rows.values()), schema), len(rows), where, done)


def _json_row(text: bytes, where: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidBatch(f'{where} is not a JSON object ({error}): write {{"column": value, ...}}') from None


def rows_from_json(rows: Sequence[dict[str, Any]], schema: TableSchema) -> Rows:
    """Return decoded JSON objects as rows that `put` takes, every value of its column's type."""
    if any(group.is_cells for group in schema.groups):
        split = [_split_row(row, schema) for row in rows]
    else:
        split = [_SplitRow(row, {}, {}) for row in rows]
    runs = [list(run) for _, run in groupby(split, key=lambda row: row.columns.keys())]
    if len(runs) == 1 and not any(row.loose for row in split):
        return _run_to_arrow(runs[0], schema)
    done: list[dict[str, Any]] = []
    for run in runs:
        try:
            done += _run_to_dicts(run, schema)
        except Misfit as error:
            raise Misfit(str(error), len(done) + error.at) from None
    return done


class _SplitRow(NamedTuple):
    """A row in parts: typed columns; cells of declared families, by family; cells that only a ``*`` group takes."""

    columns: dict[str, Any]
    cells: dict[str, dict[str, Any]]
    loose: dict[str, Any]


def _split_row(row: dict[str, Any], schema: TableSchema) -> _SplitRow:
    declared = {family.name for group in schema.groups for family in group.families}
    split = _SplitRow({}, {}, {})
    for name, value in row.items():
        target = None if name in schema.key_names else schema.resolve(name)
        if target is None or target.column is not None:
            split.columns[name] = value
            continue
        family = target.family or ""
        if target.qualifier is not None:
            cells = {target.qualifier: value}
        elif isinstance(value, dict) or value is None:
            cells = value or {}
        elif name.endswith(":"):
            cells = {"": value}
        else:
            raise InvalidBatch(f'family {name!r}: write {{"qualifier": "value"}} or "{name}:qualifier": "value"')
        if family in declared:
            split.cells.setdefault(family, {}).update(cells)
        else:
            split.loose.update((f"{family}:{qualifier}" if family else qualifier, v) for qualifier, v in cells.items())
    return split


def _run_to_arrow(run: Sequence[_SplitRow], schema: TableSchema) -> pa.Table:
    types = column_types(run[0].columns, schema)
    arrays = {name: from_json([row.columns[name] for row in run], kind, name) for name, kind in types.items()}
    for family in dict.fromkeys(family for row in run for family in row.cells):
        arrays[family] = from_json([row.cells.get(family, {}) for row in run], CELLS, family)
    if any(row.loose for row in run):
        arrays[WILDCARD] = from_json([row.loose for row in run], CELLS, WILDCARD)
    return pa.table(arrays)


def _run_to_dicts(run: Sequence[_SplitRow], schema: TableSchema) -> list[dict[str, Any]]:
    return spread_cells(_run_to_arrow(run, schema))


def spread_cells(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts, families of cells spread out to ``family:qualifier``."""
    families = {
        field.name: "" if field.name == WILDCARD else f"{field.name}:" for field in table.schema if field.type == CELLS
    }
    rows = []
    for row in table.to_pylist():
        cells = {f"{prefix}{q}": value for family, prefix in families.items() for q, value in row[family] or ()}
        rows.append({name: value for name, value in row.items() if name not in families} | cells)
    return rows


def column_types(names: Iterable[str], schema: TableSchema) -> dict[str, pa.DataType]:
    """Return the type of every named column; a family of cells is a map, as is ``*`` for all that have no other."""
    types = {column.name: column.type for column in schema.key}
    for name in names:
        if name not in types:
            target = schema.resolve(name)
            if target.column is not None:
                types[name] = target.column.type
            else:
                types[name] = CELLS if target.qualifier is None or name == WILDCARD else pa.binary()
    return {name: types[name] for name in names}


# --- CSV and Parquet -----------------------------------------------------------------------------


def _csv_portions(file: BinaryIO, origin: str, schema: TableSchema, rows_max: int) -> Iterator[Portion]:
    header = file.readline()
    done = len(header)
    try:
        names = next(csv.reader([header.removeprefix(_BYTE_ORDER_MARK).decode()]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidBatch(f"{origin}: the first line does not name columns ({error}); is it CSV in UTF-8?") from None
    if len(set(names)) != len(names):
        raise InvalidBatch(f"{origin} names a column twice in its first line")
    if not names:
        raise InvalidBatch(f"{origin} is empty: the first line of a CSV file names the columns")
    with _located(origin):
        types = column_types(names, schema)
    try:
        reader = pacsv.open_csv(
            file,
            read_options=pacsv.ReadOptions(column_names=names, block_size=CSV_BLOCK_BYTES, use_threads=False),
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
            # Everything is read as text and converted like JSON, so that one rule holds for both. Only an empty field
            # without quotes is null: "" is the empty text.
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        raise InvalidBatch(f"{origin}: {error}") from None
    first = 1
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except pa.ArrowInvalid as error:
            raise InvalidBatch(f"{origin} after row {first - 1}: {error}") from None
        done = file.tell() if file.seekable() else done + batch.nbytes
        for begin in range(0, batch.num_rows, rows_max):
            part = batch.slice(begin, rows_max)
            where = f"{origin} rows {first} to {first + part.num_rows - 1}"
            with _located(where, partial(_row_name, origin, first)):
                rows = pa.table({name: from_text(part.column(name), kind, name) for name, kind in types.items()})
            yield Portion(spread_cells(rows) if WILDCARD in types else rows, part.num_rows, where, done)
            first += part.num_rows


def _parquet_rows(file: BinaryIO, name: str) -> int:
    try:
        return int(pq.read_metadata(file).num_rows)
    except pa.ArrowInvalid as error:
        raise InvalidBatch(f"{name} is not a Parquet file: {error}") from None


def _parquet_portions(file: BinaryIO, name: str, rows_max: int) -> Iterator[Portion]:
    file.seek(0)
    first = 1
    for batch in pq.ParquetFile(file).iter_batches(batch_size=rows_max):
        last = first + batch.num_rows - 1
        yield Portion(pa.Table.from_batches([batch]), batch.num_rows, f"{name} rows {first} to {last}", last)
        first = last + 1


def _row_name(origin: str, first: int, at: int) -> str:
    return f"{origin} row {first + at}"


@contextmanager
def _located(where: str, one: Callable[[int], str] | None = None) -> Iterator[None]:
    """Say in an error which rows it is about; `one` names a single one by its place."""
    try:
        yield
    except Misfit as error:
        raise InvalidBatch(f"{where if one is None else one(error.at)}: {error}") from None
    except RequestError as error:
        raise type(error)(f"{where}: {error}") from None
