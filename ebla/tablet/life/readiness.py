"""Readiness: what was begun with a table is finished, and the table is online, before something is changed in it."""

from __future__ import annotations

from ebla.tablet.life.alterer import Alterer
from ebla.tablet.life.late_schema import LateSchemas
from ebla.tablet.life.loader import Loader
from ebla.tablet.life.recutter import Recutter
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.open_state import OpenState

__all__ = ["Readiness"]


class Readiness:
    """Makes tables ready for changes. Safe to use from several threads."""

    def __init__(
        self, state: OpenState, recutter: Recutter, alterer: Alterer, loader: Loader, late: LateSchemas
    ) -> None:
        # Set once.
        self._state = state
        self._recutter = recutter
        self._alterer = alterer
        self._loader = loader
        self._late = late

    def make_ready(self, table: TableState) -> None:
        """Finish what was begun with a table, and bring it online, before something is written to it."""
        if table.is_unsettled and not table.paused:
            self._recutter.settle(table)
        if table.is_schema_in_doubt and not table.paused:
            self._alterer.settle(table)
        if table.later is not None and not table.paused:
            self._late.switch(table)
        if table.is_offline:
            self._loader.admit_write(table)

    def check_online(self, table: TableState) -> None:
        """Return when a table takes changes; raise if it does not."""
        if table.is_offline:
            self._loader.admit_write(table)

    def check_writable(self, table: TableState) -> None:
        """Raise if the store, or the table, takes no changes now."""
        self._state.writable_log()
        self.check_online(table)
