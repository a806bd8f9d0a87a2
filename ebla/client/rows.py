"""Whatever users call rows, as a `PutBatch`.

    dict, dicts ---------------------------> row_dicts --+
    pandas, polars, anything with Arrow's C stream --+   |
    pa.Table, pa.RecordBatch ------------------------+---+--> PutBatch(columns, cells)
    bytes: an Arrow IPC stream, untrusted -----------+

A wide row becomes a line of the columns half if it names a typed column, and a line of the cells half for each of its
cells; a row with nothing but its key goes to the columns half to be made to exist. Long rows (`to_cells_batch`) are cells.

What a schema of Arrow columns means for a table is worked out once and remembered. A batch that already has the types
of the table is checked and passed on as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.arrow_stream import read_untrusted
from ebla.batch import PutBatch
from ebla.casts import array_of, cast_array, cast_bytes, castable
from ebla.client.row_dicts import DictPlans, put_batch_of_dicts
from ebla.client.row_parts import (
    MAP,
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
from ebla.errors import InvalidBatch, InvalidKey, UnknownColumn
from ebla.schema import RESERVED_CELL_NAMES, Column, TableSchema

__all__ = ["to_cells_batch", "to_put_batch"]

_LIMITS = Limits()
_PLANS_MAX = 32
_PLANS_NAME = "_put_plans"


def to_put_batch(
    rows: object,
    schema: TableSchema,
    *,
    value_bytes_max: int = _LIMITS.value_bytes_max,
    batch_bytes_max: int = _LIMITS.batch_bytes_max,
) -> PutBatch:
    """Return `rows` as a put to a table of this schema; no rows are an empty put.

    Takes a dict, an iterable of dicts, an Arrow table or batch, a pandas or polars frame, or the bytes of an Arrow IPC
    stream. Raises `InvalidBatch`, `InvalidKey` or `UnknownColumn`, naming column and row, for what does not fit.
    """
    limits = Limits(value_bytes_max, batch_bytes_max)
    plans = _plans_of(schema)
    if isinstance(rows, dict):
        return put_batch_of_dicts((rows,), plans.dicts, limits)
    if isinstance(rows, pa.RecordBatch):
        return _wide(rows, plans, limits)
    arrow = _to_arrow(rows, plans.plan, plans, limits)
    if arrow is not None:
        return _wide(arrow, plans, limits)
    return put_batch_of_dicts(_dicts(rows), plans.dicts, limits)


def to_cells_batch(
    cells: object,
    schema: TableSchema,
    *,
    value_bytes_max: int = _LIMITS.value_bytes_max,
    batch_bytes_max: int = _LIMITS.batch_bytes_max,
) -> PutBatch:
    """Return cells in long form as a put: key columns, family, qualifier, value and, if given, timestamp.

    Takes what `to_put_batch` takes. A timestamp is of any Arrow timestamp type, or an integer of microseconds; null is
    the time of the commit. A moment without a zone is taken as UTC.
    """
    limits = Limits(value_bytes_max, batch_bytes_max)
    plans = _plans_of(schema)
    if isinstance(cells, pa.RecordBatch):
        return _long(cells, schema, limits)
    arrow = _to_arrow(cells, lambda given: _check_long(given.names, schema), plans, limits)
    if arrow is None:
        arrow = _long_of_dicts(_dicts(cells), schema)
    return PutBatch() if arrow is None else _long(arrow, schema, limits)


# --- plans ---------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """What the columns of an Arrow schema mean: positions in it, and where they go."""

    given: pa.Schema
    key: tuple[int, ...]
    typed: tuple[tuple[int, Column], ...]
    cells: tuple[tuple[int, CellName], ...]
    # The columns half. `is_exact`: its arrays need no cast. `is_same`: the batch itself is it.
    columns_schema: pa.Schema
    is_exact: bool
    is_same: bool


class _Plans:
    """What was worked out for one schema."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.dicts = DictPlans(schema)
        self.typed = typed_columns(schema)
        self._plans: list[_Plan] = []

    def plan(self, given: pa.Schema) -> _Plan:
        """Return what batches of this Arrow schema mean; raise if the table cannot take them."""
        for plan in self._plans:
            if plan.given.equals(given, check_metadata=True):
                return plan
        plan = self._work_out(given)
        self._plans = [plan, *self._plans[: _PLANS_MAX - 1]]  # a new list: other threads may be reading the old one
        return plan

    def _work_out(self, given: pa.Schema) -> _Plan:
        names = given.names
        _check_unique(names)
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
            if not castable(given.field(at).type, column.type):
                # An empty array has no value to blame: the error is about the types.
                cast_array(pa.array([], given.field(at).type), column.type, f"column {column.name!r}")
        columns_schema = pa.schema([pa.field(column.name, column.type) for _, column in wanted])
        return _Plan(
            given=given,
            key=key,
            typed=tuple(typed),
            cells=tuple(cells),
            columns_schema=columns_schema,
            is_exact=all(given.field(at).type == column.type for at, column in wanted),
            is_same=given.equals(columns_schema, check_metadata=True),
        )


def _plans_of(schema: TableSchema) -> _Plans:
    # A TableSchema has a dict for what is worked out from it, and lives as long as the version it is.
    plans: _Plans | None = schema.__dict__.get(_PLANS_NAME)
    if plans is None:
        plans = schema.__dict__[_PLANS_NAME] = _Plans(schema)
    return plans


def _check_unique(names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidBatch(f"column {twice!r} is given more than once: keep one")


def _check_cell_type(schema: TableSchema, name: str, target: CellName, given: pa.DataType) -> None:
    if _family_layout(given) is not None:
        if target.qualifier is not None and target.bare_family != name:
            raise InvalidBatch(f"column {name!r} is one cell: give binary or string, not {given}")
        if target.bare_family:
            check_family(schema, target.bare_family)
    elif not castable(given, pa.binary()):
        raise InvalidBatch(f"column {name!r} holds cells: give binary, string or a map of these, not {given}")
    elif target.qualifier is None and not name.endswith(":") and not pa.types.is_null(given):
        raise InvalidBatch(f"{name!r} is a family: give a map<string, binary>, or name one cell as '{name}:qualifier'")


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


# --- other people's containers -------------------------------------------------------------------


def _to_arrow(rows: Any, check_schema: Any, plans: _Plans, limits: Limits) -> pa.RecordBatch | None:
    """Return rows that come in columns as one batch; None if they are something else."""
    kind = type(rows).__module__.partition(".")[0]
    if isinstance(rows, (bytes, bytearray, memoryview, pa.Buffer)):
        return _one_batch(read_untrusted(rows, limits.batch_bytes_max, check_schema), limits)
    if isinstance(rows, pa.Table):
        return _one_batch(rows, limits)
    try:
        if kind == "pandas" and hasattr(rows, "columns"):
            return _one_batch(_from_pandas(rows, plans), limits)
        if kind == "polars" and hasattr(rows, "to_arrow") and hasattr(rows, "columns"):
            return _one_batch(rows.to_arrow(), limits)
        if hasattr(rows, "__arrow_c_stream__"):
            return _one_batch(pa.table(rows), limits)
        if hasattr(rows, "__arrow_c_array__"):
            return pa.record_batch(rows)
    except (pa.ArrowException, TypeError, ValueError) as reason:
        if isinstance(reason, InvalidBatch):
            raise
        raise InvalidBatch(f"the rows cannot be read as Arrow: {reason}") from None
    return None


def _one_batch(table: pa.Table, limits: Limits) -> pa.RecordBatch:
    if table.get_total_buffer_size() > limits.batch_bytes_max and table.nbytes > limits.batch_bytes_max:
        raise InvalidBatch(f"{table.nbytes} bytes at once: at most {limits.batch_bytes_max} are taken, send fewer rows")
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in table.schema], schema=table.schema)
    try:
        return pa.concat_batches(batches)
    except pa.ArrowException as reason:
        raise InvalidBatch(f"the chunks of the table cannot be joined: {reason}") from None


def _from_pandas(frame: Any, plans: _Plans) -> pa.Table:
    if not frame.columns.is_unique:
        _check_unique([str(name) for name in frame.columns])
    # An index with names holds columns; one without is only the numbers of the rows.
    has_named_index = all(name is not None for name in frame.index.names)
    families = {}
    for name in frame.columns:
        if frame[name].dtype == object and isinstance(name, str) and name not in plans.typed:
            first = next((value for value in frame[name] if value is not None), None)
            if isinstance(first, (list, dict)) and name not in plans.schema.key_names:
                families[name] = pa.array(frame[name], MAP, from_pandas=True)
    table = pa.Table.from_pandas(frame.drop(columns=list(families)), preserve_index=has_named_index)
    for name, column in families.items():
        table = table.append_column(name, column)
    return table


def _dicts(rows: Any) -> list[Mapping[str, object]]:
    if isinstance(rows, Mapping):
        return [rows]
    if isinstance(rows, (list, tuple)):
        return list(rows)
    if isinstance(rows, str) or not isinstance(rows, Iterable):
        raise InvalidBatch(
            f"rows are a dict, a list of dicts, an Arrow table, a pandas or polars frame or an Arrow stream, "
            f"not {type(rows).__name__}"
        )
    return list(rows)


# --- wide rows in columns ------------------------------------------------------------------------


def _wide(batch: pa.RecordBatch, plans: _Plans, limits: Limits) -> PutBatch:
    if batch.schema.metadata is not None:
        batch = batch.replace_schema_metadata(None)
    plan = plans.plan(batch.schema)
    _validate(batch)
    if batch.num_rows == 0:
        return PutBatch()
    if batch.get_total_buffer_size() > min(limits):
        check_values(batch.schema.names, batch.columns, limits)
    schema = plans.schema
    keys = [batch.column(at) for at in plan.key]
    if plan.is_exact:
        check_keys(schema.key, keys)
        if plan.is_same and plan.typed:
            return PutBatch(columns=batch)
        typed = [batch.column(at) for at, _ in plan.typed]
    else:
        _check_unfolded(batch, plan, schema, limits)
        keys = [
            cast_array(key, column.type, f"key column {column.name!r}")
            for key, column in zip(keys, schema.key, strict=True)
        ]
        check_keys(schema.key, keys)
        typed = [cast_array(batch.column(at), column.type, f"column {column.name!r}") for at, column in plan.typed]
    lines = CellLines(schema, keys, limits)
    for at, target in plan.cells:
        _add_cells(lines, schema, batch.schema.names[at], target, batch.column(at), limits)
    if typed:
        columns = pa.RecordBatch.from_arrays([*keys, *typed], schema=plan.columns_schema)
    else:
        columns = rows_that_exist(schema, keys, np.setdiff1d(np.arange(batch.num_rows), lines.rows))
    return PutBatch(columns, lines.batch())


def _validate(batch: pa.RecordBatch) -> None:
    try:
        batch.validate(full=True)
    except pa.ArrowException as reason:
        raise InvalidBatch(f"the Arrow data is damaged: {reason}") from None


def _check_unfolded(batch: pa.RecordBatch, plan: _Plan, schema: TableSchema, limits: Limits) -> None:
    wanted = [*zip(plan.key, schema.key, strict=True), *plan.typed]
    arrays = [(batch.column(at), column.type) for at, column in wanted]
    bytes_total = sum(cast_bytes(array, type_) for array, type_ in arrays if array.type != type_)
    if bytes_total > limits.batch_bytes_max:
        raise InvalidBatch(
            f"the rows unfold to {bytes_total} bytes: at most {limits.batch_bytes_max} are taken at once, send fewer rows"
        )


def _add_cells(
    lines: CellLines, schema: TableSchema, name: str, target: CellName, array: pa.Array, limits: Limits
) -> None:
    layout = _family_layout(array.type)
    if layout is None:
        if not pa.types.is_null(array.type):
            lines.add_cell(target.family, target.qualifier or "", _as_binary(name, array, limits))
        return
    family = target.bare_family
    if layout == "struct":
        for field, column in zip(array.type, array.flatten(), strict=True):
            check_qualifier(field.name)
            if not pa.types.is_null(field.type):
                lines.add_cell(family, field.name, _as_binary(f"{name}:{field.name}", column, limits))
        return
    # A null map may have entries underneath, which are not there.
    offsets = np.asarray(array.offsets).astype(np.int64)
    counts = np.where(np.asarray(array.is_valid()), np.diff(offsets), 0)
    rows = np.repeat(np.arange(len(array)), counts)
    entries = pa.array(np.repeat(offsets[:-1] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum()))
    if layout == "map":
        qualifiers, values = array.keys, array.items
    else:
        qualifiers, values = array.values.flatten()
    qualifiers = cast_array(_bounded(qualifiers, limits), pa.string(), f"the qualifiers of {name!r}").take(entries)
    values = _as_binary(name, values, limits).take(entries)
    if qualifiers.null_count:
        raise InvalidBatch(f"{name!r} has a null qualifier in row {rows[pc.index(qualifiers.is_null(), True).as_py()]}")
    _check_qualifiers(qualifiers)
    lines.add_family(family, rows, qualifiers, values)


def _as_binary(name: str, array: pa.Array, limits: Limits) -> pa.Array:
    return cast_array(_bounded(array, limits), pa.binary(), f"column {name!r}")


def _bounded(array: pa.Array, limits: Limits) -> pa.Array:
    if array.type not in (pa.binary(), pa.string()) and cast_bytes(array, pa.binary()) > limits.batch_bytes_max:
        raise InvalidBatch(f"the cells unfold to more than {limits.batch_bytes_max} bytes: send fewer rows")
    return array


def _check_qualifiers(qualifiers: pa.Array) -> None:
    longest = pc.max(pc.binary_length(qualifiers)).as_py()
    if longest is not None:
        at = pc.index(pc.binary_length(qualifiers), longest).as_py()
        check_qualifier(qualifiers[at].as_py())


# --- long rows -----------------------------------------------------------------------------------

_LONG_NEEDED = ("family", "qualifier", "value")
_LONG_TYPES = {"family": pa.string(), "qualifier": pa.string(), "value": pa.binary()}


def _check_long(names: list[str], schema: TableSchema) -> None:
    _check_unique(names)
    for name in names:
        if check_name(name) not in (*schema.key_names, *RESERVED_CELL_NAMES):
            raise UnknownColumn(
                f"no column {name!r} in cells: they have {', '.join((*schema.key_names, *RESERVED_CELL_NAMES))}"
            )
    for name in (*schema.key_names, *_LONG_NEEDED):
        if name not in names:
            raise InvalidBatch(
                f"column {name!r} is missing: cells need {', '.join((*schema.key_names, *_LONG_NEEDED))}"
            )


def _long(batch: pa.RecordBatch, schema: TableSchema, limits: Limits) -> PutBatch:
    _check_long(batch.schema.names, schema)
    _validate(batch)
    if batch.num_rows == 0:
        return PutBatch()
    wanted = {**dict(zip(schema.key_names, schema.key_types, strict=True)), **_LONG_TYPES}
    unfolded = sum(
        cast_bytes(batch.column(name), type_)
        for name, type_ in wanted.items()
        if batch.column(name).type != type_ and castable(batch.column(name).type, type_)
    )
    if unfolded > limits.batch_bytes_max:
        raise InvalidBatch(f"the cells unfold to {unfolded} bytes: at most {limits.batch_bytes_max} are taken at once")
    arrays = {name: cast_array(batch.column(name), type_, f"column {name!r}") for name, type_ in wanted.items()}
    check_keys(schema.key, [arrays[name] for name in schema.key_names])
    for name in _LONG_NEEDED:
        if arrays[name].null_count:
            at = pc.index(arrays[name].is_null(), True).as_py()
            raise InvalidBatch(
                f"column {name!r} has {arrays[name].null_count} nulls, the first in row {at}: a cell has none"
            )
    for family in pc.unique(arrays["family"]).to_pylist():
        if family or schema.family_group(family) is None:
            check_family(schema, family)
    _check_qualifiers(arrays["qualifier"])
    check_values(list(arrays), list(arrays.values()), limits)
    if "timestamp" in batch.schema.names and not pa.types.is_null(batch.schema.field("timestamp").type):
        arrays["timestamp"] = _microseconds(batch.column("timestamp"))
    return PutBatch(cells=pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)))


def _microseconds(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        array = cast_array(array, pa.timestamp("us", array.type.tz), "column 'timestamp'")
        return array.view(pa.int64())
    return cast_array(array, pa.int64(), "column 'timestamp'")


def _long_of_dicts(rows: list[Mapping[str, object]], schema: TableSchema) -> pa.RecordBatch | None:
    if not rows:
        return None
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidBatch(f"row {at} is {type(row).__name__}: a cell is a dict with {', '.join(_LONG_NEEDED)}")
        _check_long(list(row), schema)
    arrays = [
        array_of([row[column.name] for row in rows], column.type, f"key column {column.name!r}", InvalidKey)
        for column in schema.key
    ]
    arrays += [array_of([row[name] for row in rows], _LONG_TYPES[name], f"column {name!r}") for name in _LONG_NEEDED]
    stamps = [_stamp(row.get("timestamp"), at) for at, row in enumerate(rows)]
    arrays.append(array_of(stamps, pa.int64(), "column 'timestamp'"))
    return pa.RecordBatch.from_arrays(arrays, names=[*schema.key_names, *_LONG_NEEDED, "timestamp"])


def _stamp(value: object, at: int) -> int | None:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise InvalidBatch(f"timestamp in row {at} is a datetime or an int of microseconds, not {value!r}")
