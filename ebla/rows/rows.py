"""Whatever users call rows, as a `PutBatch`.

    dict, dicts --------------------------------------------> row_dicts ----+
    pandas, polars, anything with Arrow's C stream --+                      |
    pa.Table, pa.RecordBatch ------------------------+------> row_columns --+--> PutBatch(columns, cells)
    bytes: an Arrow IPC stream, untrusted -----------+        row_cells ----+

A wide row becomes a line of the columns half if it names a typed column, and a line of the cells half for each of its
cells; a row with nothing but its key goes to the columns half, to be made to exist. A long row is a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ebla.errors import InvalidBatch, RequestError
from ebla.model.arrow_stream import read_untrusted
from ebla.model.batch import PutBatch
from ebla.model.schema import TableSchema
from ebla.rows.long_cells import cells_of_columns, cells_of_dicts, check_cell_columns
from ebla.rows.row_columns import Plans, plans_of, put_batch_of_columns
from ebla.rows.row_dicts import put_batch_of_dicts
from ebla.rows.row_parts import MAP, Limits, check_unique

__all__ = ["columns_of", "to_cells_batch", "to_put_batch"]

_LIMITS = Limits()


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
    plans = plans_of(schema)
    if isinstance(rows, dict):
        return put_batch_of_dicts((rows,), plans.dicts, limits)
    if isinstance(rows, pa.RecordBatch):
        return put_batch_of_columns(rows, plans, limits)
    arrow = columns_of(rows, schema, limits)
    if arrow is not None:
        return put_batch_of_columns(arrow, plans, limits)
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
    plans = plans_of(schema)
    if isinstance(cells, pa.RecordBatch):
        return cells_of_columns(cells, schema, limits)
    arrow = _to_arrow(cells, lambda given: check_cell_columns(given, schema), plans, limits)
    if arrow is not None:
        return cells_of_columns(arrow, schema, limits)
    return cells_of_dicts(_dicts(cells), schema, limits)


# --- other people's containers -------------------------------------------------------------------


def columns_of(rows: object, schema: TableSchema, limits: Limits) -> pa.RecordBatch | None:
    """Return wide rows that come in columns as one batch; None if they are something else, such as dicts."""
    plans = plans_of(schema)
    return _to_arrow(rows, plans.plan, plans, limits)


def _to_arrow(
    rows: Any, check_schema: Callable[[pa.Schema], object], plans: Plans, limits: Limits
) -> pa.RecordBatch | None:
    """Return rows that come in columns as one batch; None if they are something else."""
    kind = type(rows).__module__.partition(".")[0]
    if isinstance(rows, (bytes, bytearray, memoryview, pa.Buffer)):
        return _one_batch(read_untrusted(rows, limits.batch_bytes_max, check_schema), limits)
    if isinstance(rows, pa.Table):
        return _one_batch(rows, limits)
    if kind == "polars" and hasattr(rows, "collect"):
        raise InvalidBatch("the rows of a LazyFrame are not there yet: put what its collect() returns")
    try:
        if kind == "pandas" and hasattr(rows, "columns"):
            return _one_batch(_from_pandas(rows, plans), limits)
        if kind == "polars" and hasattr(rows, "to_arrow") and hasattr(rows, "columns"):
            return _one_batch(rows.to_arrow(), limits)
        if hasattr(rows, "__arrow_c_stream__"):
            return _one_batch(pa.table(rows), limits)
        if hasattr(rows, "__arrow_c_array__"):
            return pa.record_batch(rows)
    except RequestError:
        raise
    except (pa.ArrowException, TypeError, ValueError) as reason:
        if kind in ("pandas", "polars") and not hasattr(rows, "columns"):
            raise InvalidBatch(f"a {type(rows).__name__} is one column: put a frame, or a dict for one row") from None
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


def _from_pandas(frame: Any, plans: Plans) -> pa.Table:
    if not frame.columns.is_unique:
        check_unique([str(name) for name in frame.columns])
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


def _dicts(rows: Any) -> Sequence[Mapping[str, object]]:
    if isinstance(rows, Mapping):
        return [rows]
    if isinstance(rows, (list, tuple)):
        return rows
    if isinstance(rows, str) or not isinstance(rows, Iterable) or getattr(rows, "ndim", 1) == 0:
        raise InvalidBatch(
            f"rows are a dict, a list of dicts, an Arrow table, a pandas or polars frame or an Arrow stream, "
            f"not {type(rows).__name__}"
        )
    return list(rows)
