"""Tables that were dropped and can be brought back: which they are, and until when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ebla.service.reports import DroppedTable
from ebla.tablet.engine import TabletStore

__all__ = ["dropped_tables"]


def dropped_tables(store: TabletStore) -> list[DroppedTable]:
    """Return the dropped tables that are still there, the last one first."""
    found = []
    for table_id, config in store.lifecycle.retained().items():
        dropped, until = _time(config.deleted_microseconds), _time(config.kept_until_microseconds)
        found.append(DroppedTable(config.name, table_id, dropped, until))
    return sorted(found, key=lambda table: (table.dropped, table.id), reverse=True)


def _time(microseconds: int) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:  # a retention of for ever
        return datetime.max.replace(tzinfo=UTC)
