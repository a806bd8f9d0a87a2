"""Flushes and compactions of a table that somebody asks for."""

from __future__ import annotations

from collections.abc import Callable

from ebla.errors import UnknownTable
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.life.readiness import Readiness
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.compactor import Compactor
from ebla.tablet.upkeep.history import History
from ebla.tablet.write.open_state import OpenState
from ebla.tablet.write.passing_txns import PassingTxns
from ebla.tablet.write.sequencer import Sequencer

__all__ = ["TableUpkeep"]


class TableUpkeep:
    """Flushes and compacts tables. Safe to use from several threads."""

    def __init__(
        self,
        state: OpenState,
        sequencer: Sequencer,
        passing: PassingTxns,
        readiness: Readiness,
        flusher: Flusher,
        compactor: Compactor,
        history: History,
    ) -> None:
        # Set once.
        self._state = state
        self._sequencer = sequencer
        self._passing = passing
        self._readiness = readiness
        self._flusher = flusher
        self._compactor = compactor
        self._history = history

    def flush(self, table: TableState) -> None:
        """Write everything that is committed in a table to fragments."""
        log = self._state.writable_log()
        table.check_whole()
        log.wait(self._sequencer.allocated)
        self._flusher.flush_table(table)

    def compact(self, table: TableState, told: Callable[[int, int], None] | None = None) -> None:
        """Flush a table and merge the fragments of each of its tablets and groups into one run."""
        if table.is_dropped:
            raise UnknownTable(f"the table {table.name!r} was dropped, or restored in place: get it anew with db.table")
        self._readiness.check_online(table)
        self.flush_to_compact(table)
        self._compactor.compact_table(table, told)

    def flush_to_compact(self, table: TableState) -> None:
        """Flush a table that is to be compacted, and see to it that what is too old by now can be left out.

        Snapshots are taken at the newest commit. If that is older than the history that is kept, they would still show
        what was not too old then; so a txn passes first.
        """
        if self._sequencer.committed < self._history.ended() and any(
            group.max_age_microseconds is not None for group in table.view.schema.groups
        ):
            with self._passing.passing() as pass_txn:
                pass_txn()
        self.flush(table)
