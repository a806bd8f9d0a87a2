"""The tables that requests name by id: found once, and kept as long as they are what they were."""

from __future__ import annotations

import itertools
import threading

from ebla.errors import RequestError, StaleRoute
from ebla.service.service import SYSTEM_TABLES, Service, TableService

__all__ = ["TablesServed"]

# System tables show the moment when they were asked for, so each asking has a table of its own. So many are kept.
SYSTEM_TABLES_KEPT = 64
_MARK = "#"


class TablesServed:
    """Tables by id. Safe to use from several threads."""

    def __init__(self, service: Service) -> None:
        # Set once.
        self._service = service
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        # Guarded by _lock; read without it.
        self._tables: dict[str, TableService] = {}
        self._system: dict[str, TableService] = {}

    def find(self, name: str | None, at: int | None, table_id: str | None) -> tuple[str, TableService]:
        """Return a table by name or by id, and the id by which it is asked for from then on."""
        if table_id is not None:
            return table_id, self.by_id(table_id)
        if name is None:
            raise RequestError("a table is found by its name or by its id: neither was given")
        table = self._service.table(name, at)
        if name not in SYSTEM_TABLES:
            with self._lock:
                self._tables[table.id] = table
            return table.id, table
        table_id = f"{name}{_MARK}{next(self._numbers)}"
        with self._lock:
            self._system[table_id] = table
            while len(self._system) > SYSTEM_TABLES_KEPT:
                del self._system[next(iter(self._system))]
        return table_id, table

    def by_id(self, table_id: str) -> TableService:
        """Return a table; `UnknownTable` if it is not there any more."""
        found = self._tables.get(table_id) or self._system.get(table_id)
        if found is not None:
            return found
        if _MARK in table_id:
            raise StaleRoute(f"{table_id.partition(_MARK)[0]} was asked for long ago: get it anew with db.table")
        found = self._service.table_by_id(table_id)
        with self._lock:
            self._tables[table_id] = found
        return found

    def forget(self) -> None:
        """Look for every table anew: some may have been dropped, or loaded again."""
        with self._lock:
            self._tables.clear()
