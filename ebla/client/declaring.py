"""What `create_table` takes for a schema: one of Ebla's, one of Arrow's, or a frame whose columns show it.

    ebla.Schema                                      as it is; it has the key
    pa.Schema, pa.Table, pandas, polars, ...  + key  the key columns, and one group of all others

From a frame only its columns and their types are taken, never its rows: making a table and putting rows into it are two
steps, of which the second may fail, and whoever takes both knows which one did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ebla.errors import SchemaError
from ebla.model.declaration import Schema
from ebla.model.schema import GroupSchema, TableSchema

__all__ = ["declared_schema", "difference"]


def declared_schema(given: object, key: Sequence[str] | None) -> Schema:
    """Return the schema that `given` declares; `SchemaError` if it is none, or does not go with `key`."""
    if isinstance(given, Schema):
        if key is not None:
            raise SchemaError("an ebla.Schema has the key: leave out key=, or give an Arrow schema or a frame")
        return given
    arrow = _arrow_schema(given)
    if arrow is None:
        raise SchemaError(
            f"a table needs an ebla.Schema, or an Arrow schema or a frame with key=[...], not {type(given).__name__}"
        )
    if key is None or isinstance(key, str) or not isinstance(key, Sequence) or not key:
        shown = "" if key is None else f", not {key!r}"
        raise SchemaError(f"which columns are the key? Give key=[...], a list of some of {_names(arrow)}{shown}")
    if len(set(arrow.names)) < len(arrow.names):
        twice = next(name for name in arrow.names if arrow.names.count(name) > 1)
        raise SchemaError(f"two columns are called {twice!r}: a table has one of each name")
    missing = [name for name in key if name not in arrow.names]
    if missing:
        raise SchemaError(f"the key column {missing[0]!r} is none of the columns, which are {_names(arrow)}")
    if len(set(key)) < len(key):
        raise SchemaError(f"a column stands twice in the key {list(key)!r}")
    for field in arrow:
        if pa.types.is_null(field.type):
            raise SchemaError(
                f"column {field.name!r} has nothing but nulls, and so no type: cast it, or use ebla.Schema"
            )
    columns = {field.name: field.type for field in arrow if field.name not in key}
    return Schema(key={name: arrow.field(name).type for name in key}, columns=columns)


def _arrow_schema(given: Any) -> pa.Schema | None:
    if isinstance(given, pa.Schema):
        return given
    if isinstance(given, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
        return given.schema
    package = type(given).__module__.partition(".")[0]
    try:
        if package == "pandas" and hasattr(given, "columns"):
            named = [str(name) for name in given.columns]
            if len(set(named)) < len(named):
                return pa.schema([pa.field(name, pa.null()) for name in named])  # is refused for its names
            # An index with names holds columns; one without is only the numbers of the rows.
            has_named_index = all(name is not None for name in given.index.names)
            return pa.Table.from_pandas(given, preserve_index=has_named_index).schema
        if package == "polars" and hasattr(given, "collect_schema") and hasattr(given, "lazy"):
            if not hasattr(given, "to_arrow"):
                raise SchemaError("a LazyFrame has no types yet: give what its collect() returns")
            return given.head(0).to_arrow().schema
        if hasattr(given, "__arrow_c_schema__"):
            return pa.schema(given)
        if hasattr(given, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(given).schema
    except (pa.ArrowException, TypeError, ValueError) as reason:
        raise SchemaError(f"the columns of the {type(given).__name__} cannot be read as Arrow: {reason}") from None
    return None


def _names(arrow: pa.Schema) -> str:
    return ", ".join(map(repr, arrow.names[:20])) + (", ..." if len(arrow.names) > 20 else "") or "no columns"


def difference(there: TableSchema, wanted: TableSchema) -> str | None:
    """Say how the schema of a table that is there differs from a declared one; None if it does not.

    Ids and versions do not count: they tell by which changes a schema came to be as it is. Nor does the order of
    groups, columns and families.
    """
    if [(c.name, c.type) for c in there.key] != [(c.name, c.type) for c in wanted.key]:
        return f"its key is {_columns(there.key)}, not {_columns(wanted.key)}"
    own, other = ({group.name: group for group in schema.groups} for schema in (there, wanted))
    for name in [*own, *other]:
        if name not in other:
            return f"it has a group {name!r}"
        if name not in own:
            return f"it has no group {name!r}"
        told = _group_difference(own[name], other[name])
        if told is not None:
            return told
    return None


def _group_difference(there: GroupSchema, wanted: GroupSchema) -> str | None:
    own, other = ({column.name: column.type for column in group.columns} for group in (there, wanted))
    for name in [*own, *other]:
        if name not in other:
            return f"it has a column {name!r} in group {there.name!r}"
        if name not in own:
            return f"it has no column {name!r} in group {there.name!r}"
        if own[name] != other[name]:
            return f"its column {name!r} is {own[name]}, not {other[name]}"
    families = [sorted(family.name for family in group.families) for group in (there, wanted)]
    if families[0] != families[1] or there.layout != wanted.layout:
        return f"its group {there.name!r} has the families {families[0]}, not {families[1]}"
    settings = ("compression", "block_bytes", "max_versions", "max_age_microseconds", "purge_join", "in_memory")
    for setting in (*settings, "lookup_at_once"):
        mine, yours = getattr(there, setting), getattr(wanted, setting)
        if mine != yours:
            return f"its group {there.name!r} has {setting} {mine!r}, not {yours!r}"
    return None


def _columns(columns: Sequence[Any]) -> str:
    return "(" + ", ".join(f"{column.name} {column.type}" for column in columns) + ")"
