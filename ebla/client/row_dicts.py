"""Rows that come as dicts.

Dicts of the same shape (the same names in the same order) share a plan: which names are the key, which are typed
columns, which are cells. The plans of a schema are remembered, so that a single put of one dict does little more than
make Arrow values of Python ones.

    {"user": "ada", "day": ..., "name": "Ada", "click:home": b"1"}
      key             key         typed          cell

A name that is missing is untouched, None sets null. Rows of different shapes make one batch in which `_set` says for
each row what it sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebla.batch import PutBatch
from ebla.casts import array_of, natural_types
from ebla.client.row_parts import (
    SET,
    CellLines,
    CellName,
    Limits,
    check_family,
    check_keys,
    check_name,
    check_qualifier,
    check_values,
    resolve_cell,
    rows_that_exist,
    typed_columns,
)
from ebla.errors import InvalidBatch, InvalidKey
from ebla.schema import Column, TableSchema

__all__ = ["DictPlans", "put_batch_of_dicts"]

_SHAPES_MAX = 256
# Types for which Arrow takes exactly the natural Python values and nothing is lost: the others are looked at closely.
_PLAIN = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
    }
)


class _Shape(NamedTuple):
    """What the names of a dict mean."""

    typed: tuple[Column, ...]
    cells: tuple[tuple[str, CellName], ...]
    set_ids: str
    # For a row that Arrow can take in one go: key and typed columns as a struct, and what Python types it takes.
    struct: pa.DataType | None
    checks: tuple[tuple[str, frozenset[type]], ...]


class DictPlans:
    """The shapes of dicts that were put with one schema."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self._typed = typed_columns(schema)
        self._shapes: dict[tuple[Any, ...], _Shape] = {}

    def shape(self, names: tuple[Any, ...]) -> _Shape:
        """Return the plan for dicts with these names."""
        found = self._shapes.get(names)
        if found is None:
            found = self._plan(names)
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            self._shapes[names] = found
        return found

    def _plan(self, names: tuple[Any, ...]) -> _Shape:
        key_names = self.schema.key_names
        missing = [name for name in key_names if name not in names]
        if missing:
            raise InvalidBatch(f"key column {missing[0]!r} is missing: a row needs {', '.join(key_names)}")
        typed, cells = [], []
        for name in names:
            if check_name(name) in key_names:
                continue
            column = self._typed.get(name)
            if column is not None:
                typed.append(column)
            else:
                cells.append((name, resolve_cell(self.schema, name)))
        columns = [*self.schema.key, *typed]
        plain = all(column.type in _PLAIN for column in columns)
        checks = [(c.name, natural_types(c.type) - ({type(None)} if c.name in key_names else set())) for c in columns]
        return _Shape(
            typed=tuple(typed),
            cells=tuple(cells),
            set_ids=" ".join(str(column.id) for column in typed),
            struct=pa.struct([(column.name, column.type) for column in columns]) if plain and typed else None,
            checks=tuple((name, frozenset(kinds)) for name, kinds in checks),
        )


def put_batch_of_dicts(rows: Sequence[Mapping[str, object]], plans: DictPlans, limits: Limits) -> PutBatch:
    """Return the put that a list of dicts is."""
    if not rows:
        return PutBatch()
    if len(rows) == 1:
        quick = _one_row(rows[0], plans, limits)
        if quick is not None:
            return quick
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidBatch(f"row {at} is {type(row).__name__}: a row is a dict from column names to values")
    schema = plans.schema
    shapes = [plans.shape(tuple(row)) for row in rows]
    keys = _key_arrays(rows, schema)
    lines = CellLines(schema, keys, limits)
    _add_cells(lines, schema, rows, shapes)
    has_cells = set(lines.rows.tolist())
    # In the columns half are the rows that set a typed column, and those that have nothing at all besides their key.
    chosen = [at for at, shape in enumerate(shapes) if shape.typed or at not in has_cells]
    columns: pa.RecordBatch | None = None
    if any(shape.typed for shape in shapes):
        columns = _columns_half(schema, keys, rows, shapes, chosen)
    else:
        columns = rows_that_exist(schema, keys, np.array(chosen, np.int64))
    return _checked(PutBatch(columns, lines.batch()), limits)


def _one_row(row: Mapping[str, object], plans: DictPlans, limits: Limits) -> PutBatch | None:
    """Return the put of one dict of plain values; None if it has to be looked at more closely."""
    if not isinstance(row, dict):
        return None
    shape = plans.shape(tuple(row))
    if shape.struct is None:
        return None
    for name, kinds in shape.checks:
        if type(row[name]) not in kinds:
            return None
    try:
        columns = pa.RecordBatch.from_struct_array(pa.array([row], shape.struct))
    except (pa.ArrowException, ValueError, OverflowError):
        return None  # out of range, or text that is not text: the long way says which
    if not shape.cells:
        return _checked(PutBatch(columns), limits)
    schema = plans.schema
    lines = CellLines(schema, columns.columns[: len(schema.key)], limits)
    _add_cells(lines, schema, [row], [shape])
    return _checked(PutBatch(columns, lines.batch()), limits)


def _checked(put: PutBatch, limits: Limits) -> PutBatch:
    for half in (put.columns, put.cells):
        if half is not None and half.get_total_buffer_size() > min(limits):
            check_values(half.schema.names, half.columns, limits)
    return put


def _key_arrays(rows: Sequence[Mapping[str, object]], schema: TableSchema) -> list[pa.Array]:
    arrays = [
        array_of([row[column.name] for row in rows], column.type, f"key column {column.name!r}", InvalidKey)
        for column in schema.key
    ]
    check_keys(schema.key, arrays)
    return arrays


def _columns_half(
    schema: TableSchema,
    keys: Sequence[pa.Array],
    rows: Sequence[Mapping[str, object]],
    shapes: Sequence[_Shape],
    chosen: Sequence[int],
) -> pa.RecordBatch:
    given = {column.name for shape in {id(shape): shape for shape in shapes}.values() for column in shape.typed}
    ordered = [column for group in schema.groups for column in group.columns if column.name in given]
    if len(chosen) < len(rows):
        keys = [key.take(pa.array(chosen, pa.int64())) for key in keys]
        rows = [rows[at] for at in chosen]
        shapes = [shapes[at] for at in chosen]
    arrays = [
        array_of([row.get(column.name) for row in rows], column.type, f"column {column.name!r}") for column in ordered
    ]
    names = [*schema.key_names, *(column.name for column in ordered)]
    if any(len(shape.typed) < len(ordered) for shape in shapes):
        arrays.append(pa.array([shape.set_ids for shape in shapes], pa.string()))
        names.append(SET)
    return pa.RecordBatch.from_arrays([*keys, *arrays], names=names)


def _add_cells(
    lines: CellLines, schema: TableSchema, rows: Sequence[Mapping[str, object]], shapes: Sequence[_Shape]
) -> None:
    positions: list[int] = []
    families: list[str] = []
    qualifiers: list[str] = []
    values: list[bytes] = []
    for at, (row, shape) in enumerate(zip(rows, shapes, strict=True)):
        for name, target in shape.cells:
            for family, qualifier, value in _cells_of(schema, name, target, row[name], at):
                positions.append(at)
                families.append(family)
                qualifiers.append(qualifier)
                values.append(value)
    if positions:
        try:
            arrays = [pa.array(families, pa.string()), pa.array(qualifiers, pa.string()), pa.array(values, pa.binary())]
        except UnicodeEncodeError as reason:
            raise InvalidBatch(f"a qualifier that is not text: {reason}") from None
        lines.add_lines(np.array(positions, np.int64), *arrays)


def _cells_of(
    schema: TableSchema, name: str, target: CellName, value: Any, at: int
) -> Iterable[tuple[str, str, bytes]]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        family = target.bare_family
        if target.qualifier is not None and family != name:
            raise InvalidBatch(f"column {name!r} in row {at} is one cell: give bytes, not a mapping")
        if family:
            check_family(schema, family)
        return [
            (family, _qualifier(name, qualifier, at), _bytes(f"{name}:{qualifier}", cell, at))
            for qualifier, cell in value.items()
            if cell is not None
        ]
    qualifier = target.qualifier
    if qualifier is None:
        if not name.endswith(":"):
            raise InvalidBatch(
                f"{name!r} in row {at} is a family: give a dict from qualifiers to bytes, "
                f"or name one cell as '{name}:qualifier'"
            )
        qualifier = ""  # "family:" with bytes is the cell without a qualifier
    return [(target.family, qualifier, _bytes(name, value, at))]


def _qualifier(name: str, qualifier: object, at: int) -> str:
    if not isinstance(qualifier, str):
        raise InvalidBatch(f"{name!r} in row {at}: a qualifier is a string, not {qualifier!r}")
    return check_qualifier(qualifier)


def _bytes(name: str, value: object, at: int) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        raise InvalidBatch(f"cell {name!r} in row {at} takes bytes, not a string: encode it, with .encode() for UTF-8")
    raise InvalidBatch(f"cell {name!r} in row {at} takes bytes, not {type(value).__name__}: encode it first")
