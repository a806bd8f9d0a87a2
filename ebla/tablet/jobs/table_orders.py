"""Tables that jobs of other processes make, widen, and take away again.

A job that writes rows from a process which does not have the store open cannot make the table for them itself: the
owner does, when it is asked. Each of these can be repeated without harm. The one who asks gives out the ids, by which a
table that is there already is known to be his.
"""

from __future__ import annotations

import msgspec

from ebla.errors import SchemaError, TableExists, UnknownTable
from ebla.metadata.values.table_metadata import initial_metadata
from ebla.model.column_types import parse_type
from ebla.model.schema import TableSchema, decode_hook
from ebla.model.schema_change import Alteration
from ebla.service.job_orders import AddColumns, MakeTable, TableAnswer, UnmakeTable
from ebla.tablet.life.alterer import Alterer
from ebla.tablet.life.table_lifecycle import TableLifecycle
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState

__all__ = ["TableOrders"]


class TableOrders:
    """Carries out what jobs ask for about tables."""

    def __init__(self, tables: OpenTables, lifecycle: TableLifecycle, alterer: Alterer) -> None:
        # Set once.
        self._tables = tables
        self._lifecycle = lifecycle
        self._alterer = alterer

    def make(self, order: MakeTable) -> TableAnswer:
        """Make a table, or find that it was made; `TableExists` if another one has the name."""
        known = self._tables.find(order.table_id)
        if known is None:
            schema = msgspec.msgpack.decode(order.schema, type=TableSchema, dec_hook=decode_hook)
            initial = initial_metadata(order.table_id, schema, list(order.tablet_ids), list(order.splits))
            try:
                known = self._lifecycle.create(order.name, initial)
            except TableExists:
                raise TableExists(
                    f"there is a table {order.name!r} by now: somebody made it meanwhile, save again"
                ) from None
        return TableAnswer(known.id, known.view.schema.version)

    def add_columns(self, order: AddColumns) -> TableAnswer:
        """Add those of some columns that a table does not have; `SchemaError` if one is there with another type."""
        table = self._table(order.table_id)
        known = {column.name: column.type for group in table.view.schema.groups for column in group.columns}
        for name, kind in order.columns:
            if name in known and known[name] != parse_type(kind):
                raise SchemaError(f"column {name!r} of {table.name!r} is {known[name]}, not {kind}: cast it")
        new = {name: kind for name, kind in order.columns if name not in known}
        if new:
            self._alterer.alter(table, Alteration(add_columns=new))
        return TableAnswer(table.id, table.view.schema.version)

    def unmake(self, order: UnmakeTable) -> TableAnswer:
        """Drop a table that a failed job made, unless somebody has used it since."""
        table = self._tables.find(order.table_id)
        if table is not None and not table.memory_bytes and not any(table.view.metadata.files()):
            self._lifecycle.drop(table.name, purge=True)
        return TableAnswer(order.table_id, 0)

    def _table(self, table_id: str) -> TableState:
        table = self._tables.find(table_id)
        if table is None:
            raise UnknownTable(f"there is no table of id {table_id} (any more): it was dropped")
        return table
