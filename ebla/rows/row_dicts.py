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
from operator import itemgetter, methodcaller
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebla.errors import InvalidBatch, InvalidKey, RequestError
from ebla.model.batch import PutBatch
from ebla.model.schema import Column, TableSchema
from ebla.model.value_arrays import array_of, natural_types
from ebla.rows.row_parts import (
    SET,
    CellLines,
    CellName,
    Limits,
    check_family,
    check_keys,
    check_name,
    check_put,
    check_qualifier,
    resolve_cell,
    rows_that_exist,
    typed_columns,
)

__all__ = ["DictPlans", "put_batch_of_dicts"]

Row = Mapping[str, object]

_SHAPES_MAX = 256
_NAIVE, _ZONED = False, True


class _Shape(NamedTuple):
    """What the names of a dict mean."""

    typed: tuple[Column, ...]
    cells: tuple[tuple[str, CellName], ...]
    set_ids: str
    # For a single row whose values Arrow can take as they are: the key and typed columns, and what each of them takes.
    struct: pa.DataType | None
    checks: tuple[tuple[str, frozenset[type], bool | None], ...]


class DictPlans:
    """The shapes of dicts that were put with one schema."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        cell = [("family", pa.string()), ("qualifier", pa.string()), ("value", pa.binary())]
        self.cell_struct = pa.struct([*((column.name, column.type) for column in schema.key), *cell])
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
        is_plain = all(_is_plain(column.type) for column in columns)
        return _Shape(
            typed=tuple(typed),
            cells=tuple(cells),
            set_ids=" ".join(str(column.id) for column in typed),
            struct=pa.struct([(column.name, column.type) for column in columns]) if is_plain else None,
            checks=tuple((c.name, _accepted(c, c.name in key_names), _zone(c.type)) for c in columns),
        )


def _is_plain(type_: pa.DataType) -> bool:
    """Tell whether Arrow takes exactly the natural Python values of the type, and without losing anything."""
    if pa.types.is_timestamp(type_) or pa.types.is_time(type_):
        return type_.unit in ("us", "ns")
    return bool(
        pa.types.is_boolean(type_)
        or pa.types.is_integer(type_)
        or type_ in (pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.date64())
    )


def _accepted(column: Column, is_key: bool) -> frozenset[type]:
    return natural_types(column.type) - {type(None)} if is_key else natural_types(column.type)


def _zone(type_: pa.DataType) -> bool | None:
    if pa.types.is_timestamp(type_):
        return _ZONED if type_.tz is not None else _NAIVE
    return _NAIVE if pa.types.is_time(type_) else None


def put_batch_of_dicts(rows: Sequence[Row], plans: DictPlans, limits: Limits) -> PutBatch:
    """Return the put that a list of dicts is."""
    if len(rows) == 1:
        quick = _one_row(rows[0], plans, limits)
        if quick is not None:
            return quick
    if not all(issubclass(kind, Mapping) for kind in set(map(type, rows))):
        at = next(at for at, row in enumerate(rows) if not isinstance(row, Mapping))
        raise InvalidBatch(f"row {at} is {type(rows[at]).__name__}: a row is a dict from column names to values")
    if not rows:
        return PutBatch()
    schema = plans.schema
    names = list(map(tuple, rows))
    distinct = {of: plans.shape(of) for of in set(names)}
    shapes = [distinct[of] for of in names]
    keys = [
        array_of(list(map(itemgetter(column.name), rows)), column.type, f"key column {column.name!r}", InvalidKey)
        for column in schema.key
    ]
    check_keys(schema.key, keys)
    lines = CellLines(schema, keys, limits)
    if any(shape.cells for shape in distinct.values()):
        _add_cells(lines, schema, rows, shapes, limits)
    # In the columns half are the rows that set a typed column, and those that have nothing at all besides their key.
    chosen: Sequence[int] = range(len(rows))
    if not all(shape.typed for shape in distinct.values()):
        has_cells = set(lines.rows.tolist())
        chosen = [at for at, shape in enumerate(shapes) if shape.typed or at not in has_cells]
    if any(shape.typed for shape in distinct.values()):
        columns = _columns_half(schema, keys, rows, shapes, chosen)
    else:
        columns = rows_that_exist(schema, keys, np.array(chosen, np.int64))
    return check_put(PutBatch(columns, lines.batch()), limits)


def _one_row(row: Row, plans: DictPlans, limits: Limits) -> PutBatch | None:
    """Return the put of one dict of plain values; None if it has to be looked at more closely."""
    if not isinstance(row, dict):
        return None
    shape = plans.shape(tuple(row))
    if shape.struct is None:
        return None
    for name, kinds, zone in shape.checks:
        value = row[name]
        if type(value) not in kinds:
            return None
        if zone is not None and value is not None and (value.tzinfo is not None) != zone:
            return None
    columns: pa.RecordBatch | None = None
    cells: pa.RecordBatch | None = None
    try:
        if shape.cells:
            key = {name: row[name] for name in plans.schema.key_names}
            lines = [
                {**key, "family": family, "qualifier": qualifier, "value": value}
                for name, target in shape.cells
                for family, qualifier, value in _cells_of(plans.schema, name, target, row[name], 0, limits)
            ]
            if lines:
                cells = pa.RecordBatch.from_struct_array(pa.array(lines, plans.cell_struct))
        if shape.typed:
            columns = pa.RecordBatch.from_struct_array(pa.array([row], shape.struct))
        elif cells is None:
            return None
    except RequestError:
        raise
    except (pa.ArrowException, ValueError, OverflowError):
        return None  # out of range, or text that is not text: the long way says which
    return check_put(PutBatch(columns, cells), limits)


def _columns_half(
    schema: TableSchema, keys: Sequence[pa.Array], rows: Sequence[Row], shapes: Sequence[_Shape], chosen: Sequence[int]
) -> pa.RecordBatch:
    if len(chosen) < len(rows):
        keys = [key.take(pa.array(chosen, pa.int64())) for key in keys]
        rows = [rows[at] for at in chosen]
        shapes = [shapes[at] for at in chosen]
    distinct = {id(shape): shape for shape in shapes}.values()
    given = {column.name for shape in distinct for column in shape.typed}
    ordered = [column for group in schema.groups for column in group.columns if column.name in given]
    is_partial = any(len(shape.typed) < len(ordered) for shape in distinct)
    arrays = []
    for column in ordered:
        take = methodcaller("get", column.name) if is_partial else itemgetter(column.name)
        arrays.append(array_of(list(map(take, rows)), column.type, f"column {column.name!r}"))
    names = [*schema.key_names, *(column.name for column in ordered)]
    if is_partial:
        arrays.append(pa.array([shape.set_ids for shape in shapes], pa.string()))
        names.append(SET)
    return pa.RecordBatch.from_arrays([*keys, *arrays], names=names)


def _add_cells(
    lines: CellLines, schema: TableSchema, rows: Sequence[Row], shapes: Sequence[_Shape], limits: Limits
) -> None:
    positions: list[int] = []
    families: list[str] = []
    qualifiers: list[str] = []
    values: list[bytes] = []
    for at, (row, shape) in enumerate(zip(rows, shapes, strict=True)):
        for name, target in shape.cells:
            for family, qualifier, value in _cells_of(schema, name, target, row[name], at, limits):
                positions.append(at)
                families.append(family)
                qualifiers.append(qualifier)
                values.append(value)
    if positions:
        lines.add_lines(
            np.array(positions, np.int64),
            array_of(families, pa.string(), "a family"),
            array_of(qualifiers, pa.string(), "a qualifier"),
            pa.array(values, pa.binary()),
        )


def _cells_of(
    schema: TableSchema, name: str, target: CellName, value: Any, at: int, limits: Limits
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
            (family, _qualifier(name, qualifier, at), _bytes(f"{name}:{qualifier}", cell, at, limits))
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
    return [(target.family, qualifier, _bytes(name, value, at, limits))]


def _qualifier(name: str, qualifier: object, at: int) -> str:
    if not isinstance(qualifier, str):
        raise InvalidBatch(f"{name!r} in row {at}: a qualifier is a string, not {qualifier!r}")
    return check_qualifier(qualifier)


def _bytes(name: str, value: object, at: int, limits: Limits) -> bytes:
    if isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    if isinstance(value, bytes):
        if len(value) > limits.value_bytes_max:
            raise InvalidBatch(
                f"cell {name!r} has a value of {len(value)} bytes in row {at}: "
                f"at most {limits.value_bytes_max} are allowed"
            )
        return value
    if isinstance(value, str):
        raise InvalidBatch(f"cell {name!r} in row {at} takes bytes, not a string: encode it, with .encode() for UTF-8")
    raise InvalidBatch(f"cell {name!r} in row {at} takes bytes, not {type(value).__name__}: encode it first")
