"""A schema that others have changed: memory becomes fragments under the old one, then the new one is in force.

    METADATA has version 2 --noticed--> `table.later`; rows in memory are of version 1, and so is what readers see
    switch     writers wait --> memory to fragments of version 1 --> METADATA counts them for the groups of version 2
               --> one assignment: the new METADATA, no memory --> writers go on, and make their requests again

METADATA takes in what comes under a former schema (metadata/values/late.py). Until the switch nothing of the memory is
let go, for the old view does not have the new files: a record is in memory, in a file that is shown, or in both.
Whoever wants to write to such a table switches it first. A server does it when it notices the change.
"""

from __future__ import annotations

import logging

from ebla.errors import Unavailable
from ebla.storage.merge.memory import Memory
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.life.recutter import Recutter
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.timing import now_seconds

__all__ = ["LateSchemas"]

_log = logging.getLogger(__name__)


class LateSchemas:
    """Puts schemas in force that others have saved. Safe to use from several threads."""

    def __init__(self, tables: OpenTables, flusher: Flusher, recutter: Recutter, server: str) -> None:
        # Set once.
        self._tables = tables
        self._flusher = flusher
        self._recutter = recutter
        self._server = server

    def switch(self, table: TableState) -> None:
        """Put the newest schema of METADATA in force, if it is not; raises as a flush does, and can be repeated."""
        with self._recutter.exclusively():
            if table.later is None:
                return
            began = now_seconds()
            self._check_committed(table)  # before writers wait, and when nothing comes any more
            with self._recutter.paused_as_is(table):
                self._check_committed(table)
                metadata = self._flusher.flush_late(table)
                with self._tables.lock, self._tables.counted(table):
                    table.use_metadata(metadata, self._server, is_flushed=True)
            _log.info(
                "schema version %d of %s is in force after %.3f s",
                table.view.parts.version,
                table.name,
                now_seconds() - began,
            )
        self._tables.events.deliver()

    def _check_committed(self, table: TableState) -> None:
        """Let go of what is led by others by now; raise if a tablet waits for its replicas, and has rows in memory."""
        newest = table.later
        assert newest is not None, "there is another schema"
        with self._tables.lock, self._tables.counted(table):
            for tablet in [one for one in table.view.metadata.tablets if one.is_replicated]:
                known = newest.by_id(tablet.id)
                if known is not None and (known.log != self._server or known.epoch != tablet.epoch):
                    for group in [*table.view.memory.get(tablet.id, {})]:
                        table.set_memory(tablet.id, group, Memory())
            waiting = sorted(table.held.intersection(table.view.memory))
        if waiting:
            raise Unavailable(
                f"table {table.name!r} has another schema, which is in force here when tablets {', '.join(waiting)} "
                "have enough replicas: see `ebla status`"
            )
