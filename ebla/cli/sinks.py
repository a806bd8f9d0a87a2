"""What the commands print: rows as a table, JSON lines or CSV, and facts as a table or JSON.

What is for machines goes to standard output plain, one line a row, and can be read back by ``ebla put``. What is for
people is drawn by rich: in a terminal to its width, else as wide as it needs to be, so that nothing is cut in a pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from ebla.cli.values import to_json, to_text
from ebla.schema import WILDCARD

WIDTH_IN_A_PIPE = 10_000
_NULL = "[dim]null[/dim]"


class RowFormat(StrEnum):
    """How rows are printed."""

    table = "table"
    jsonl = "jsonl"
    csv = "csv"


class PlainConsole(Console):
    """A console that lets a closed pipe be seen, so that one place decides what it means."""

    def on_broken_pipe(self) -> None:
        """Pass the error on."""
        raise BrokenPipeError


def console() -> Console:
    """Return a console on standard output."""
    sys.stdout.flush()
    return PlainConsole(width=None if sys.stdout.isatty() else WIDTH_IN_A_PIPE, highlight=False)


def write_line(text: str) -> None:
    """Write a plain line to standard output."""
    sys.stdout.write(text + "\n")


def write_json(value: Any) -> None:
    """Write a value to standard output as indented JSON."""
    write_line(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


# --- rows ----------------------------------------------------------------------------------------


def json_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch as JSON values, cells as ``family:qualifier`` where there are any."""
    columns = [
        (name, pa.types.is_map(column.type), to_json(column))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    for at in range(batch.num_rows):
        row: dict[str, Any] = {}
        for name, is_cells, values in columns:
            value = values[at]
            if is_cells:
                prefix = "" if name == WILDCARD else f"{name}:"
                row.update((prefix + qualifier, cell) for qualifier, cell in (value or {}).items())
            else:
                row[name] = value
        yield row


def write_json_lines(batches: Iterable[pa.RecordBatch]) -> None:
    """Write rows as one JSON object a line."""
    encode = msgspec.json.Encoder().encode
    for batch in batches:
        lines = b"".join(encode(row) + b"\n" for row in json_rows(batch))
        sys.stdout.buffer.write(lines)
    sys.stdout.buffer.flush()


def write_csv(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write rows as CSV with a header: text in quotes, null as nothing, a family of cells as a JSON object."""
    plain = pa.schema([pa.field(field.name, _csv_type(field.type)) for field in schema])
    _write_csv_part(plain.empty_table().to_batches(), plain, header=True)
    for batch in batches:
        arrays = [
            column if plain.field(at).type == column.type else to_text(column)
            for at, column in enumerate(batch.columns)
        ]
        _write_csv_part([pa.record_batch(arrays, schema=plain)], plain, header=False)
    sys.stdout.buffer.flush()


def _write_csv_part(batches: Sequence[pa.RecordBatch], schema: pa.Schema, *, header: bool) -> None:
    sink = pa.BufferOutputStream()
    options = pacsv.WriteOptions(include_header=header, quoting_style="needed")
    pacsv.write_csv(pa.Table.from_batches(batches, schema), sink, options)
    sys.stdout.buffer.write(sink.getvalue())


def _csv_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    plain = types.is_integer(kind) or types.is_boolean(kind) or kind in (pa.float32(), pa.float64())
    return kind if plain else pa.string()


def print_rows(rows: Sequence[Mapping[str, Any]], caption: str) -> None:
    """Draw rows of JSON values as a table, with a line about them below."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = RichTable()
    for name in names:
        numeric = all(isinstance(row.get(name, 0), (int, float, type(None))) for row in rows)
        table.add_column(escape(name), justify="right" if numeric and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_shown(row[name]) if name in row else "" for name in names))
    if names:
        console().print(table)
    write_line(caption)


def print_facts(title: str, facts: Iterable[tuple[str, Any]]) -> None:
    """Draw names and values as a table of two columns."""
    write_line(title)
    table = RichTable(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(escape(name), _shown(value))
    console().print(table)


def flatten(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested facts under dotted names; a name that speaks of bytes gets a readable size beside it."""
    for name, value in facts.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}.")
        elif isinstance(value, (list, tuple)) and value and all(isinstance(item, Mapping) for item in value):
            for at, item in enumerate(value):
                yield from flatten(item, f"{path}.{at}.")
        elif isinstance(value, int) and not isinstance(value, bool) and "bytes" in str(name):
            yield path, size_text(value)
        else:
            yield path, value


def size_text(size: int) -> str:
    """Write a number of bytes for people."""
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size:,} bytes" if unit == "bytes" else f"{value:,.1f} {unit} ({size:,} bytes)"


def _shown(value: Any) -> str:
    if value is None:
        return _NULL
    if isinstance(value, (dict, list)):
        return escape(msgspec.json.encode(value, enc_hook=str).decode())
    return escape(str(value))
