"""Rows that come in Arrow columns, one line per row.

What the columns of an Arrow schema mean for a table is worked out once, as a `Plan`, and remembered with the table's
schema. Then a batch either fits as it is, and is only checked, or its columns are cast and its cells are laid out:

    user | day | name | click:home | view              ->  columns   user | day | name
                        binary       map                   cells     user | day | family | qualifier | value

A null in a column of cells is no cell. A map called "*", as scans of a table with a "*" group have it, names each cell
in full: "view:home", or a bare name for one of the unnamed family.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebla.errors import InvalidBatch
from ebla.model.batch import PutBatch
from ebla.model.casts import cast_array, castable, check_castable
from ebla.model.schema import WILDCARD, Column, TableSchema
from ebla.rows.row_dicts import DictPlans
from ebla.rows.row_parts import (
    CellLines,
    CellName,
    Limits,
    cell_of_others,
    check_family,
    check_keys,
    check_name,
    check_put,
    check_qualifier,
    check_unfolded,
    check_unique,
    check_values,
    resolve_cell,
    rows_that_exist,
    typed_columns,
    validate,
)

__all__ = ["Plan", "Plans", "plans_of", "put_batch_of_columns"]

Numbers = np.ndarray[Any, Any]

_PLANS_MAX = 32
_PLANS_NAME = "_put_plans"


class Plan(NamedTuple):
    """What the columns of an Arrow schema mean: positions in it, and where they go."""

    given: pa.Schema
    key: tuple[int, ...]
    typed: tuple[tuple[int, Column], ...]
    cells: tuple[tuple[int, CellName], ...]
    # The columns half. `is_exact`: its arrays need no cast. `is_same`: the batch itself is it.
    columns_schema: pa.Schema
    is_exact: bool
    is_same: bool


class Plans:
    """What was worked out for one schema."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.dicts = DictPlans(schema)
        self.typed = typed_columns(schema)
        self._plans: list[Plan] = []

    def plan(self, given: pa.Schema) -> Plan:
        """Return what batches of this Arrow schema mean; raise if the table cannot take them."""
        for plan in self._plans:
            if plan.given.equals(given, check_metadata=True):
                return plan
        plan = self._work_out(given)
        self._plans = [plan, *self._plans[: _PLANS_MAX - 1]]  # a new list: other threads may be reading the old one
        return plan

    def _work_out(self, given: pa.Schema) -> Plan:
        names = given.names
        check_unique(names)
        for name in self.schema.key_names:
            if name not in names:
                raise InvalidBatch(
                    f"key column {name!r} is missing: the rows need {', '.join(self.schema.key_names)}, "
                    f"and have {', '.join(names[:20]) or 'no columns'}"
                )
        typed: list[tuple[int, Column]] = []
        cells: list[tuple[int, CellName]] = []
        for at, name in enumerate(names):
            if check_name(name) in self.schema.key_names:
                continue
            if name in self.typed:
                typed.append((at, self.typed[name]))
            else:
                cells.append((at, resolve_cell(self.schema, name)))
                _check_cell_type(self.schema, name, cells[-1][1], given.field(at).type)
        key = tuple(given.get_field_index(name) for name in self.schema.key_names)
        wanted = [*zip(key, self.schema.key, strict=True), *typed]
        for at, column in wanted:
            check_castable(given.field(at).type, column.type, f"column {column.name!r}")
        columns_schema = pa.schema([pa.field(column.name, column.type) for _, column in wanted])
        return Plan(
            given=given,
            key=key,
            typed=tuple(typed),
            cells=tuple(cells),
            columns_schema=columns_schema,
            is_exact=all(given.field(at).type == column.type for at, column in wanted),
            is_same=given.equals(columns_schema, check_metadata=True),
        )


def plans_of(schema: TableSchema) -> Plans:
    """Return what was worked out for a schema so far."""
    # A TableSchema has a dict for what is worked out from it, and lives as long as the version it is.
    plans: Plans | None = schema.__dict__.get(_PLANS_NAME)
    if plans is None:
        plans = schema.__dict__[_PLANS_NAME] = Plans(schema)
    return plans


def _check_cell_type(schema: TableSchema, name: str, target: CellName, given: pa.DataType) -> None:
    if _family_layout(given) is not None:
        if target.qualifier is not None and target.bare_family != name:
            raise InvalidBatch(f"column {name!r} is one cell: give binary or string, not {given}")
        if target.bare_family and not _is_all_others(schema, target):
            check_family(schema, target.bare_family)
    elif not castable(given, pa.binary()):
        raise InvalidBatch(f"column {name!r} holds cells: give binary, string or a map of these, not {given}")
    elif target.qualifier is None and not name.endswith(":") and not pa.types.is_null(given):
        raise InvalidBatch(f"{name!r} is a family: give a map<string, binary>, or name one cell as '{name}:qualifier'")


def _is_all_others(schema: TableSchema, target: CellName) -> bool:
    """Tell whether a map under this name has cells of all families that have no column of their own, as a scan does."""
    return target.bare_family == WILDCARD and schema.wildcard_group is not None


def _family_layout(given: pa.DataType) -> str | None:
    """Tell in which of its ways a column holds all cells of a family; None if it holds one cell."""
    types = pa.types
    if types.is_map(given):
        pair = (given.key_type, given.item_type)
        return "map" if all(castable(type_, pa.binary()) for type_ in pair) else None
    if types.is_list(given) or types.is_large_list(given):
        # What a map becomes in polars.
        entry = given.value_type
        is_entry = types.is_struct(entry) and [field.name for field in entry] == ["key", "value"]
        return "list" if is_entry and all(castable(field.type, pa.binary()) for field in entry) else None
    if types.is_struct(given):
        # What pandas makes of dicts: a field per qualifier.
        return "struct" if all(castable(field.type, pa.binary()) for field in given) else None
    return None


# --- rows ----------------------------------------------------------------------------------------


def put_batch_of_columns(batch: pa.RecordBatch, plans: Plans, limits: Limits) -> PutBatch:
    """Return the put that a batch of wide rows is."""
    if batch.schema.metadata is not None:
        batch = batch.replace_schema_metadata(None)
    if batch.num_rows == 0:
        # Of no rows, only the names are looked at: frames give empty columns any type.
        plans.plan(pa.schema([(name, pa.null()) for name in batch.schema.names]))
        return PutBatch()
    plan = plans.plan(batch.schema)
    validate(batch)
    if batch.get_total_buffer_size() > min(limits):
        check_values(batch.schema.names, batch.columns, limits)
    schema = plans.schema
    keys = [batch.column(at) for at in plan.key]
    if plan.is_same and plan.typed:
        check_keys(schema.key, keys)
        return PutBatch(columns=batch)
    typed = [batch.column(at) for at, _ in plan.typed]
    if not plan.is_exact:
        columns = (*schema.key, *(column for _, column in plan.typed))
        check_unfolded([*keys, *typed], [column.type for column in columns], limits)
        keys = [cast_array(a, c.type, f"key column {c.name!r}") for a, c in zip(keys, schema.key, strict=True)]
        typed = [cast_array(a, c.type, f"column {c.name!r}") for a, (_, c) in zip(typed, plan.typed, strict=True)]
    check_keys(schema.key, keys)
    lines = CellLines(schema, keys, limits)
    for at, target in plan.cells:
        _add_cells(schema, lines, plan.given.field(at).name, target, batch.column(at))
    if typed:
        half = pa.RecordBatch.from_arrays([*keys, *typed], schema=plan.columns_schema)
    else:
        half = rows_that_exist(schema, keys, np.setdiff1d(np.arange(batch.num_rows), lines.rows))
    return check_put(PutBatch(half, lines.batch()), limits)


def _add_cells(schema: TableSchema, lines: CellLines, name: str, target: CellName, array: pa.Array) -> None:
    layout = _family_layout(array.type)
    family = target.bare_family
    if layout is None:
        if not pa.types.is_null(array.type):
            lines.add_cell(name, target.family, target.qualifier or "", array)
    elif layout == "struct":
        for field, column in zip(array.type, array.flatten(), strict=True):
            if pa.types.is_null(field.type):
                continue
            if _is_all_others(schema, target):
                cell = cell_of_others(schema, field.name)
                lines.add_cell(name, cell.family, cell.qualifier or "", column)
            else:
                lines.add_cell(name, family, check_qualifier(field.name), column)
    else:
        rows, entries = _entries(array)
        qualifiers, values = (array.keys, array.items) if layout == "map" else array.values.flatten()
        lines.add_family(name, family, rows, entries, qualifiers, values)


def _entries(array: pa.Array) -> tuple[Numbers, pa.Array]:
    """Return for every entry of a map or list array its row, and its position among all entries underneath."""
    # Arrow's own kernel for this ends the process when it is given a map. And a null map may have entries.
    offsets = np.asarray(array.offsets).astype(np.int64)
    counts = np.where(np.asarray(array.is_valid()), np.diff(offsets), 0)
    begins = offsets[:-1] - (np.cumsum(counts) - counts)
    positions = np.repeat(begins, counts) + np.arange(counts.sum())
    return np.repeat(np.arange(len(array)), counts), pa.array(positions, pa.int64())
