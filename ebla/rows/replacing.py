"""Whole rows: of several rows with one key in a batch that replaces rows, only the last one counts.

Elsewhere a later row overrides an earlier one column by column. A row that replaces another also takes away what it
does not mention, cells included, so the earlier ones must be gone before rows are divided into columns and cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from ebla.errors import EblaError
from ebla.model.keys import KeyCodec
from ebla.model.order import sort_rows
from ebla.model.schema import TableSchema


def last_of_each_key(rows: object, schema: TableSchema, codec: KeyCodec) -> object:
    """Return `rows`, which are a record batch or dicts, without those that a later one of the same key replaces.

    What cannot be understood here is returned as it is: it is refused, with a reason, when it is admitted.
    """
    if isinstance(rows, pa.RecordBatch):
        return _last_of_table(pa.Table.from_batches([rows]), schema, codec)
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        return rows
    listed = list(rows)
    names = schema.key_names
    try:
        kept = {codec.encode({name: row[name] for name in names}): row for row in listed}
    except (EblaError, KeyError, TypeError):
        return listed
    return list(kept.values())


def _last_of_table(table: pa.Table, schema: TableSchema, codec: KeyCodec) -> pa.Table:
    try:
        keys = codec.encode_many(table.select(list(schema.key_names)))
    except (EblaError, KeyError):
        return table
    order, repeats = sort_rows(keys)
    if not repeats.any():
        return table
    last = np.ones(len(order), dtype=np.bool_)
    last[:-1] = ~repeats[1:]
    # Arrow cannot take from view types, but it can cast them.
    plain = pa.schema([field.with_type(_without_views(field.type)) for field in table.schema])
    return table.cast(plain).take(pa.array(np.sort(order[last])))


def _without_views(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return kind
    value = kind.value_field.with_type(_without_views(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(value)
    return pa.list_(value, kind.list_size if types.is_fixed_size_list(kind) else -1)
