"""Tables that were dropped and can be brought back: which of them is meant."""

from __future__ import annotations

from collections.abc import Sequence

from ebla.errors import RequestError, UnknownTable, shown
from ebla.service.reports import DroppedTable

__all__ = ["chosen"]


def chosen(tables: Sequence[DroppedTable], name: str, table_id: str | None) -> str:
    """Return the id of the dropped table that is meant; `UnknownTable` if there is none, or it is gone."""
    named = [table for table in tables if table.name == name and table_id in (None, table.id)]
    if not named:
        listed = ", ".join(f"{table.name} ({table.id})" for table in tables[:5]) or "none"
        which = "" if table_id is None else f" and id {shown(table_id)}"
        raise UnknownTable(
            f"no dropped table has the name {shown(name)}{which}; those that can be brought back: {listed}"
        )
    if len(named) > 1:
        listed = ", ".join(f"{table.id} (dropped {table.dropped.isoformat(timespec='seconds')})" for table in named)
        raise RequestError(f"several tables {shown(name)} were dropped: say which by its id, one of {listed}")
    return named[0].id
