"""System tables of a cluster: META and the others, computed from the catalog of the master that leads.

`location:` in META is the server that leads a tablet, `log:` the run whose log has what is not in fragments. They are
read by the code of any other table, so a master keeps a small engine without tables, files or a log for it.
"""

from __future__ import annotations

import threading
import uuid

from ebla.clock import Clock, TxnClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.master.master import Master
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.transaction import MetadataServer
from ebla.settings import Settings
from ebla.storage.files.files import Files
from ebla.tablet.engine import TabletStore
from ebla.tablet.serve.system_tables import SystemTable, shown_table

__all__ = ["SystemViews"]

# What is shown is in memory as it is: nothing has to be kept beside it.
_SETTINGS = Settings(block_cache_bytes=1, row_cache_bytes=1, recent_row_slots=2, background_compaction=False)


class SystemViews:
    """Makes system tables. Safe to use from several threads."""

    def __init__(self, files: Files, clock: Clock) -> None:
        # Set once.
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._store: TabletStore | None = None  # guarded by _lock

    def table(self, name: str, master: Master) -> SystemTable:
        """Return a system table as the catalog has it now."""
        tables = [(info.name, info.metadata) for info in master.catalog.named()]
        addresses = {server.uuid: server.registration.address for server in master.servers}
        return shown_table(self._reader(), name, tables, addresses)

    def close(self) -> None:
        """Let go of the engine."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def _reader(self) -> TabletStore:
        with self._lock:
            if self._store is None:
                coordination = MemoryCoordination(MemoryStore(), self._clock)
                self._store = TabletStore(
                    files=self._files,
                    metadata=MetadataServer(
                        coordination, MetadataStore(self._files), self._clock, server_id="", new_id=_new_id
                    ),
                    clock=self._clock,
                    settings=_SETTINGS,
                    server="",
                    new_id=_new_id,
                    txn_clock=TxnClock(self._clock, 1),
                    coordination=coordination,
                )
                self._store.recovered({})
            return self._store


def _new_id() -> str:
    return str(uuid.uuid4())
