"""Rows for machines: JSON lines and CSV on standard output, plain, one line a row; ``ebla put`` reads both."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv

from ebla.model.schema import WILDCARD
from ebla.model.text_values import to_json, to_text


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
