"""Cloning a table: by reference, at one moment between two commits, while everybody goes on reading and writing.

    hold still    what is in memory goes to fragments; then the table's writers wait a moment for the rest  recutter.py
    take          METADATA of the origin, which is all there is of it now; its files may not be removed from here on
    go on         everybody writes again
    create        one METADATA creation with the same references: the clone is there, or is not

Both tables name the files from then on. Which of them is compacted, altered or dropped first does not matter to the
other: a file goes when nobody names it.
"""

from __future__ import annotations

from collections.abc import Callable

from ebla.errors import UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.clone import cloned
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.tablet.flush.pending_files import PendingFiles
from ebla.tablet.life.recutter import Recutter
from ebla.tablet.life.table_lifecycle import TableLifecycle
from ebla.tablet.tables.table_state import TableState


class Cloner:
    """Clones tables. Lock order: that of the recutter."""

    def __init__(
        self,
        metadata: MetadataAccess,
        recutter: Recutter,
        pending: PendingFiles,
        lifecycle: TableLifecycle,
        new_id: Callable[[], str],
    ) -> None:
        # Set once.
        self._metadata = metadata
        self._recutter = recutter
        self._pending = pending
        self._lifecycle = lifecycle
        self._new_id = new_id

    def clone(self, origin: TableState, name: str) -> TableState:
        """Make a table called `name` of all that is committed in another, and open it."""
        origin.check_whole()
        self._lifecycle.settle(name)
        self._metadata.directory.check_free(name)
        with self._recutter.held_still(origin):
            taken = self._take(origin)
        with self._pending.until_settled(set(taken.files())):
            return self._lifecycle.bring(name, cloned(taken, self._new_id(), self._new_id))

    def _take(self, origin: TableState) -> TableMetadata:
        """Return METADATA with all of the origin in it, its files safe from sweeps."""
        while True:
            if origin.is_dropped:
                raise UnknownTable(f"the table {origin.name!r} was dropped")
            taken = self._metadata.refresh(origin.id)
            files = set(taken.files())
            self._pending.adopt(files)
            # A compaction may have replaced some before they were adopted: then a sweep may have them in mind already.
            try:
                if self._metadata.refresh(origin.id).txnid == taken.txnid:
                    return taken
            except BaseException:
                self._pending.let_go(files)
                raise
            self._pending.let_go(files)
