"""Opening tables: from METADATA to a table that is served, or refused.

Until the log is replayed, tables are opened and not ready: who asks for them waits. From then on a table that is opened
is ready at once.
"""

from __future__ import annotations

import logging

from ebla.errors import EblaError
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.settings import Settings
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.tablet.life.loader import Loader
from ebla.tablet.life.preloader import Preloader
from ebla.tablet.read.row_cache import CachedRows
from ebla.tablet.tables.led_tablets import LedTablets
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState

__all__ = ["TableOpener"]

_log = logging.getLogger(__name__)


class TableOpener:
    """Opens tables. Safe to use from several threads."""

    def __init__(
        self,
        tables: OpenTables,
        fragments: OpenFragments,
        cached_rows: CachedRows,
        settings: Settings,
        server: str,
        loader: Loader,
        preloader: Preloader,
        leads_all: bool = True,
    ) -> None:
        """Unless it `leads_all`, of every table only those tablets are served that METADATA says are led here."""
        # Set once.
        self._tables = tables
        self._fragments = fragments
        self._cached_rows = cached_rows
        self._settings = settings
        self._server = server
        self._loader = loader
        self._preloader = preloader
        self._leads_all = leads_all
        self._is_recovered = False  # set once, when the log is replayed

    def open(self, name: str, metadata: TableMetadata, damage: str = "", *, is_unlinked: bool = False) -> TableState:
        """Open a table; `SchemaError` if its schema cannot be. With `damage`, only whole tablets of it are read."""
        metadata.schema.check()
        led = None if self._leads_all else LedTablets(self._server)
        table = TableState(
            name, metadata, self._fragments, self._cached_rows, self._settings, damage, self._tables.events, led
        )
        table.use_metadata(metadata, self._server)
        self._loader.opened(table)
        if self._is_recovered:
            self._loader.ready(table)
        self._tables.add(table, is_unlinked=is_unlinked)
        self._preloader.start(table)
        return table

    def refuse(self, name: str, table_id: str, error: EblaError) -> None:
        """Serve nothing of a table, and tell those who ask for it why."""
        _log.error("the table %r cannot be loaded: %s", name, error)
        self._tables.refuse(name, table_id, error)

    def recovered(self) -> None:
        """Note that the log is replayed: all tables are ready."""
        self._tables.count_memory()
        self._is_recovered = True
        for table in self._tables.all():
            self._loader.ready(table)
        for name in self._settings.load_first:
            self._loader.load_all(self._tables.named(name))
