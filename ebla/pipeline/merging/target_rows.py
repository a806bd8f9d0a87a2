"""The rows of the table that a merge is about: which of the keys are there, and what they hold, at one txn.

    keys of the source, encoded, sorted, each once  -->  which exist         their keys alone are read
                                                    -->  the rows themselves  with the columns that expressions name
    all keys but those                              -->  in order, a window at a time

It reads through the engine, in this process. Of the table only blocks that may have the keys are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.client.database import Database
from ebla.direct.holding import opened_table
from ebla.direct.opens import store_of
from ebla.direct.views import TableState, TabletStore, read_range, read_rows, which_exist
from ebla.errors import SchemaChanged
from ebla.model.order import sort_rows
from ebla.model.ranges import ALL, KeyRange, successor
from ebla.model.schema import TableSchema
from ebla.model.where import Where, to_expression
from ebla.pipeline.scanning.sections import target_of

__all__ = ["Indices", "Keys", "TargetRows", "reading_target"]

Indices = npt.NDArray[np.int64]
BATCH_ROWS = 65_536


class Keys:
    """The encoded keys of a source, in its order, and the same sorted, each once."""

    def __init__(self, rows: pa.Array) -> None:
        self.rows = rows
        order, repeats = sort_rows(rows)
        firsts = ~repeats if len(rows) else np.zeros(0, dtype=np.bool_)
        self.distinct: pa.Array = rows.take(pa.array(order[firsts]))
        # For every row of the source, the place of its key among the distinct ones.
        self.places: Indices = np.empty(len(rows), dtype=np.int64)
        self.places[order] = np.cumsum(firsts) - 1

    def matched(self, target: TargetRows) -> npt.NDArray[np.bool_]:
        """Tell for every row of the source whether the table has its key."""
        return target.which_exist(self.distinct)[self.places]


@dataclass(frozen=True, slots=True)
class TargetRows:
    """A table at a txn, which is held."""

    store: TabletStore
    state: TableState
    as_of: int

    def which_exist(self, rows: pa.Array) -> npt.NDArray[np.bool_]:
        """Tell which of some rows, sorted and each once, are there."""
        if not len(rows):
            return np.zeros(0, dtype=np.bool_)
        self.store.admit(self.state, KeyRange(rows[0].as_py(), successor(rows[-1].as_py())))
        return which_exist(self.state.view, self.state.reader, rows, self.as_of)

    def read(self, keys: Keys, columns: Sequence[str]) -> pa.Table:
        """Return a row for every row of the source, with nulls in all columns, the key's too, where there is none."""
        projection = replace(self.state.projection(list(columns)), any_group=True)
        rows = keys.distinct
        parts = [
            read_rows(self.state, self.state.view, projection, rows.slice(begin, BATCH_ROWS), self.as_of)
            for begin in range(0, len(rows), BATCH_ROWS)
        ]
        found = pa.concat_tables(parts) if parts else projection.arrow_schema.empty_table()
        names = self.state.view.schema.key_names
        there = self.state.codec.encode_arrays([found.column(name).combine_chunks() for name in names])
        at = pc.index_in(rows, value_set=there)
        return found.take(at.take(pa.array(keys.places)))

    def others(self, rows: pa.Array) -> Iterator[pa.Table]:
        """Yield the keys of all rows but some, which are sorted, in order."""
        for found in self.scan(None):
            encoded = self.encoded(found)
            yield found.filter(pc.invert(pc.is_in(encoded, value_set=rows)))

    def scan(self, where: Where | None) -> Iterator[pa.Table]:
        """Yield the keys of all rows for which a filter is true, in order."""
        schema = self.state.view.schema
        expression = None if where is None else to_expression(where, schema)
        projection = replace(self.state.projection([]), any_group=True)
        for found in read_range(self.store, self.state, projection, ALL, self.as_of, expression):
            if found.num_rows:
                yield found

    def encoded(self, found: pa.Table) -> pa.Array:
        """Return the encoded keys of rows."""
        names = self.state.view.schema.key_names
        return self.state.codec.encode_arrays([found.column(name).combine_chunks() for name in names])


@contextmanager
def reading_target(source: Database | str, table: str, schema: TableSchema) -> Iterator[TargetRows]:
    """Lend a table as it is now; `SchemaChanged` if it has another schema than that."""
    with opened_table(source, table, "merge") as database:
        store = store_of(database)
        state = store.table(table)
        target = target_of(database, state, table, None, None)
        with store.pins.held(target.as_of):
            if target.schema_version != schema.version:
                raise SchemaChanged(f"the schema of {table!r} was changed at this moment")
            store.admit(state, ALL)
            yield TargetRows(store, state, target.as_of)
