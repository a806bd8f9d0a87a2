"""The forms in which rows, keys and cells are handed to the store, and in which its answers come back.

list of dicts  --as_form-->       dict, list, Arrow table or batch, IPC bytes, pandas, polars, maps of cells
list of dicts  <--rows_of_arrow-- Arrow answers: maps spread out, absent cells left out, versions as `Version`
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pandas
import polars
import pyarrow as pa

from .reference import Cell, Key, ReferenceTable, Row, Version, cell_name
from .strategies import Shape


def as_key(key: Key) -> Any:
    """Return a key as the API takes it: a scalar where the key is one column."""
    return key[0] if len(key) == 1 else key


def as_form(shape: Shape, rows: list[Row], form: str) -> Any:
    """Return rows in one of the forms that `put` takes. All but dicts need rows that give the same columns."""
    if form == "list":
        return rows
    if form == "dict":
        assert len(rows) == 1
        return rows[0]
    if form == "map":
        return rows_to_arrow(shape, rows, maps=True)
    table = rows_to_arrow(shape, rows)
    if form == "table":
        return table
    if form == "batch":
        return table.combine_chunks().to_batches()[0]
    if form == "ipc":
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        return sink.getvalue()
    if form == "pandas":
        return table.to_pandas(types_mapper=pandas.ArrowDtype)
    assert form == "polars"
    return polars.from_arrow(table)


def rows_to_arrow(shape: Shape, rows: list[Row], *, maps: bool = False) -> pa.Table:
    """Return rows that give the same columns as an Arrow table, cells as columns of their own or as maps."""
    schema = shape.numbered
    columns: dict[str, pa.Array] = {}
    for column in schema.key:
        columns[column.name] = pa.array([row[column.name] for row in rows], column.type)
    families: dict[str, list[list[tuple[str, bytes]]]] = {}
    for name in rows[0]:
        if name in schema.key_names:
            continue
        target = schema.resolve(name)
        if target.column is not None:
            columns[name] = pa.array([row[name] for row in rows], target.column.type)
        elif maps and target.family:
            lists = families.setdefault(target.family, [[] for _ in rows])
            for cells, row in zip(lists, rows, strict=True):
                if row[name] is not None:
                    cells.append((str(target.qualifier), row[name]))
        else:
            columns[name] = pa.array([row[name] for row in rows], pa.binary())
    for family, lists in families.items():
        columns[family] = pa.array([cells or None for cells in lists], pa.map_(pa.string(), pa.binary()))
    return pa.table(columns)


def cells_to_arrow(shape: Shape, cells: Sequence[Cell], *, as_timestamps: bool) -> pa.Table:
    """Return cells in long form."""
    columns: dict[str, pa.Array] = {}
    for place, column in enumerate(shape.numbered.key):
        columns[column.name] = pa.array([cell.key[place] for cell in cells], column.type)
    columns["family"] = pa.array([cell.family for cell in cells], pa.string())
    columns["qualifier"] = pa.array([cell.qualifier for cell in cells], pa.string())
    columns["value"] = pa.array([cell.value for cell in cells], pa.binary())
    if any(cell.timestamp is not None for cell in cells):
        kind = pa.timestamp("us") if as_timestamps else pa.int64()
        columns["timestamp"] = pa.array([cell.timestamp for cell in cells], pa.int64()).cast(kind)
    return pa.table(columns)


def read_scan(scan: Any, through: str, model: ReferenceTable) -> list[Row]:
    """Read a scan to its end by one of its ways, and return plain rows."""
    match through:
        case "dicts":
            return [dict(row) for row in scan]
        case "arrow":
            return rows_of_arrow(scan.to_arrow(), model)
    assert through == "batches"
    return [row for batch in scan.to_batches() for row in rows_of_arrow(pa.Table.from_batches([batch]), model)]


def rows_of_arrow(table: pa.Table, model: ReferenceTable) -> list[Row]:
    """Return the rows of an Arrow answer as dicts: maps spread out, cells that do not exist left out."""
    rows = []
    for found in table.to_pylist():
        row: Row = {}
        for field in table.schema:
            value = found[field.name]
            if pa.types.is_map(field.type):
                family = "" if field.name == "*" else field.name  # the map of a `*` group has full names
                row.update({cell_name(family, qualifier): as_versions(cell) for qualifier, cell in value or ()})
            elif value is not None or field.name in model.schema.key_names:
                row[field.name] = as_versions(value)
            elif model.schema.resolve(field.name).column is not None:
                row[field.name] = None
        rows.append(row)
    return rows


def as_versions(value: Any) -> Any:
    """Return Arrow's list of version structs as `Version`s, and anything else as it is."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and set(value[0]) == set(Version._fields):
        return [Version(**version) for version in value]
    return value
