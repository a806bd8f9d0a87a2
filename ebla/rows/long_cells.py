"""Cells in long form: one line per cell.

    key columns | family | qualifier | value [| timestamp]

They come in columns or as dicts of the same names. Nothing may be null but the timestamp, which then is the time of the
commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidBatch, InvalidKey, UnknownColumn
from ebla.model.batch import PutBatch
from ebla.model.casts import cast_array, castable, check_castable
from ebla.model.schema import RESERVED_CELL_NAMES, TableSchema
from ebla.model.value_arrays import array_of
from ebla.rows.row_parts import (
    Limits,
    check_family,
    check_keys,
    check_name,
    check_qualifiers,
    check_unfolded,
    check_unique,
    check_values,
    validate,
)

__all__ = ["cells_of_columns", "cells_of_dicts", "check_cell_columns"]

_NEEDED = ("family", "qualifier", "value")
_TYPES = {"family": pa.string(), "qualifier": pa.string(), "value": pa.binary()}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _check_names(names: Sequence[object], schema: TableSchema) -> None:
    known = (*schema.key_names, *RESERVED_CELL_NAMES)
    for name in names:
        if check_name(name) not in known:
            raise UnknownColumn(f"no column {name!r} in cells: they have {', '.join(known)}")
    for name in (*schema.key_names, *_NEEDED):
        if name not in names:
            needed = ", ".join((*schema.key_names, *_NEEDED))
            raise InvalidBatch(f"column {name!r} is missing: cells need {needed}")


def check_cell_columns(given: pa.Schema, schema: TableSchema) -> None:
    """Raise unless these are the columns of cells, in types that can be cast."""
    check_unique(given.names)
    _check_names(given.names, schema)
    for name, type_ in _wanted(schema).items():
        check_castable(given.field(name).type, type_, f"column {name!r}")
    if "timestamp" in given.names:
        stamp = given.field("timestamp").type
        if not (pa.types.is_timestamp(stamp) or castable(stamp, pa.int64())):
            raise InvalidBatch(f"column 'timestamp' is a timestamp or an int64 of microseconds, not {stamp}")


def _wanted(schema: TableSchema) -> dict[str, pa.DataType]:
    return {**dict(zip(schema.key_names, schema.key_types, strict=True)), **_TYPES}


def cells_of_columns(batch: pa.RecordBatch, schema: TableSchema, limits: Limits) -> PutBatch:
    """Return the put that a batch of cells is."""
    if batch.num_rows == 0:
        # Of no rows, only the names are looked at: frames give empty columns any type.
        _check_names(batch.schema.names, schema)
        return PutBatch()
    check_cell_columns(batch.schema, schema)
    validate(batch)
    wanted = _wanted(schema)
    check_unfolded([batch.column(name) for name in wanted], list(wanted.values()), limits)
    arrays = {name: cast_array(batch.column(name), type_, f"column {name!r}") for name, type_ in wanted.items()}
    check_keys(schema.key, [arrays[name] for name in schema.key_names])
    for name in _NEEDED:
        if arrays[name].null_count:
            at = pc.index(arrays[name].is_null(), True).as_py()
            raise InvalidBatch(
                f"column {name!r} has {arrays[name].null_count} nulls, the first in row {at}: a cell has none"
            )
    for family in pc.unique(arrays["family"]).to_pylist():
        check_family(schema, family)
    check_qualifiers(arrays["qualifier"])
    check_values(list(arrays), list(arrays.values()), limits)
    if "timestamp" in batch.schema.names and not pa.types.is_null(batch.column("timestamp").type):
        arrays["timestamp"] = _microseconds(batch.column("timestamp"))
    return PutBatch(cells=pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)))


def _microseconds(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        return cast_array(array, pa.timestamp("us", array.type.tz), "column 'timestamp'").view(pa.int64())
    return cast_array(array, pa.int64(), "column 'timestamp'")


def cells_of_dicts(rows: Sequence[Mapping[str, object]], schema: TableSchema, limits: Limits) -> PutBatch:
    """Return the put that a list of dicts, one per cell, is."""
    if not rows:
        return PutBatch()
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidBatch(f"row {at} is {type(row).__name__}: a cell is a dict with {', '.join(_NEEDED)}")
        _check_names(list(row), schema)
    arrays = [
        array_of([row[column.name] for row in rows], column.type, f"key column {column.name!r}", InvalidKey)
        for column in schema.key
    ]
    arrays += [array_of([row[name] for row in rows], _TYPES[name], f"column {name!r}") for name in _NEEDED]
    names = [*schema.key_names, *_NEEDED]
    stamps = [_stamp(row.get("timestamp"), at) for at, row in enumerate(rows)]
    if any(stamp is not None for stamp in stamps):
        arrays.append(array_of(stamps, pa.int64(), "column 'timestamp'"))
        names.append("timestamp")
    return cells_of_columns(pa.RecordBatch.from_arrays(arrays, names=names), schema, limits)


def _stamp(value: object, at: int) -> int | None:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise InvalidBatch(f"timestamp in row {at} is a datetime or an int of microseconds, not {value!r}")
