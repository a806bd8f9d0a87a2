"""Tables that were dropped and can be brought back: which they are, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ebla.errors import RequestError, UnknownTable
from ebla.tablet.engine import TabletStore

__all__ = ["DroppedTable", "chosen", "dropped_tables"]


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A dropped table: the name that it had, its id, and when it was dropped and may be purged, in UTC."""

    name: str
    id: str
    dropped: datetime
    until: datetime


def dropped_tables(store: TabletStore) -> list[DroppedTable]:
    """Return the dropped tables that are still there, the last one first."""
    found = []
    for table_id, config in store.dropped_tables().items():
        dropped, until = _time(config.deleted_microseconds), _time(config.kept_until_microseconds)
        found.append(DroppedTable(config.name, table_id, dropped, until))
    return sorted(found, key=lambda table: (table.dropped, table.id), reverse=True)


def _time(microseconds: int) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:  # a retention of for ever
        return datetime.max.replace(tzinfo=UTC)


def chosen(tables: Sequence[DroppedTable], name: str, table_id: str | None) -> str:
    """Return the id of the dropped table that is meant; `UnknownTable` if there is none, or it is gone."""
    named = [table for table in tables if table.name == name and table_id in (None, table.id)]
    if not named:
        listed = ", ".join(f"{table.name} ({table.id})" for table in tables[:5]) or "none"
        which = "" if table_id is None else f" and id {table_id!r}"
        raise UnknownTable(f"no dropped table has the name {name!r}{which}; those that can be brought back: {listed}")
    if len(named) > 1:
        listed = ", ".join(f"{table.id} (dropped {table.dropped.isoformat(timespec='seconds')})" for table in named)
        raise RequestError(f"several tables {name!r} were dropped: say which by its id, one of {listed}")
    return named[0].id
