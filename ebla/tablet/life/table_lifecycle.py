"""The life of a table: created, renamed, dropped, brought back, purged; also where the outcome is not known at once.

    create, unknown   not served; the table may be there, or appear later
    drop, unknown     still served; but what is written to it may be gone with it, or go later
    replace, unknown  both of these, for one table and for the other
    rename, unknown   served under the old name; it may have the new one, or get it later
    undelete, unknown served without a name; it may have one, or get it later

An interrupt leaves the same doubt as a lost reply: METADATA may have been changed, and nobody was told.

Nothing is written to a table in doubt, for an acknowledged write could vanish. Before the next use the doubt is
settled: METADATA is asked, in a way that stops the unknown request from landing later, and the answer is acted upon.

A name changes hands in METADATA and among the open tables in one step: who drops a table must not find, when he is to
serve it no longer, that another was made of the same name meanwhile, and take that one away.

Before a table gets a name, a txn passes that no record has, and it is on record that the name is the table's since
then. So every snapshot lies clearly before that or after, and one that was taken before does not show this table as
what had the name at that time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from contextlib import nullcontext

import msgspec

from ebla.clock import Clock
from ebla.errors import Conflict, EblaError, OutcomeUnknown, Unavailable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.life.table_opener import TableOpener
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.passing_txns import PassingTxns

_log = logging.getLogger(__name__)


class TableLifecycle:
    """Creates, drops and renames tables, and settles what became of them where that was not known at once."""

    def __init__(
        self,
        tables: OpenTables,
        metadata: MetadataAccess,
        opener: TableOpener,
        passing: PassingTxns,
        flusher: Flusher,
        clock: Clock,
        retention_seconds: float,
    ) -> None:
        # Set once.
        self._tables = tables
        self._metadata = metadata
        self._opener = opener
        self._passing = passing
        self._flusher = flusher
        self._clock = clock
        self._retention_microseconds = round(retention_seconds * 1_000_000)
        self._naming = threading.Lock()  # held over METADATA: one creation or drop at a time
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._in_doubt: dict[str, tuple[str, ...]] = {}  # what every such table may be called, by id

    def create(self, name: str, initial: TableMetadata) -> TableState:
        """Create a table that was not there before, and begin to serve it."""
        with self._tables.events.held(), self._passing.passing() as pass_txn, self._naming:
            self.settle(name)
            self._metadata.directory.check_free(name)  # what is refused lets no txn pass
            txn = pass_txn()
            return self._create(name, msgspec.structs.replace(initial, created_txn=txn), txn, None)

    def bring(
        self, name: str, initial: TableMetadata, passed_txn: int | None = None, replacing: TableState | None = None
    ) -> TableState:
        """Create a table with a past, perhaps in the place of another that has the name, and begin to serve it.

        `passed_txn` is a txn that has passed for it already.
        """
        passing = self._passing.passing() if passed_txn is None else nullcontext(lambda: passed_txn)
        with self._tables.events.held(), passing as pass_txn, self._naming:
            self.settle(name)
            return self._create(name, initial, pass_txn(), replacing)

    def _create(self, name: str, initial: TableMetadata, txn: int, replacing: TableState | None) -> TableState:
        former = None if replacing is None else replacing.id
        try:
            metadata = self._metadata.create_table(name, initial.table_id, initial, replacing=former, named_txn=txn)
            _log.info("created table %s, id %s, %d tablets", name, initial.table_id, len(initial.tablets))
            return self._opener.open(name, metadata)
        except BaseException as error:
            if _is_certain(error):
                raise
            with self._lock:
                if replacing is not None:
                    # It is settled first: once it is known to be there, nothing under way can replace it.
                    replacing.is_in_doubt = True
                    self._in_doubt[replacing.id] = (name,)
                self._in_doubt[initial.table_id] = (name,)
            raise

    def drop(self, name: str, *, purge: bool = False) -> None:
        """Take the name from a table; with `purge`, or if none are retained, stop serving it, and let its memory go."""
        now, retention = self._clock.microseconds(), self._retention_microseconds
        with self._tables.events.held(), self._naming:
            self._drop(name, (now, now + retention) if retention and not purge else None)
        self._flusher.wake()

    def _drop(self, name: str, kept: tuple[int, int] | None) -> None:
        """Drop a table; or, with a time and one until which it is `kept`, only take its name away."""
        self.settle(name)
        if isinstance(name, str) and name in self._tables.refused.errors:
            self._metadata.drop_table(name)
            with self._tables.lock:
                self._tables.refused.forget(name)
            return
        table = self._tables.named(name)
        try:
            if kept is None:
                self._metadata.drop_table(name)
                self._tables.remove(name)
            else:
                self._metadata.unlink_table(name, *kept)
                self._tables.unlink(table)
            _log.info("dropped table %s, id %s", name, table.id)
        except BaseException as error:
            if _is_certain(error):
                raise
            with self._lock:
                table.is_in_doubt = True
                self._in_doubt[table.id] = (name,)
            raise

    def rename(self, name: str, new_name: str) -> TableState:
        """Give a table another name, and serve it under that."""
        with self._tables.events.held(), self._passing.passing() as pass_txn, self._naming:
            self.settle(name)
            self.settle(new_name)
            table = self._tables.named(name)
            if new_name != name:
                self._metadata.directory.check_free(new_name)
            txn = pass_txn()
            try:
                self._metadata.rename_table(table.id, new_name, txn)
                _log.info("renamed table %s to %s", name, new_name)
                self._tables.rename(table, new_name)
            except BaseException as error:
                if _is_certain(error):
                    raise
                with self._lock:
                    table.is_in_doubt = True
                    self._in_doubt[table.id] = (name, new_name)
                raise
            return table

    def undelete(self, table_id: str, name: str) -> TableState:
        """Give a table that was unlinked a name again, and serve it under that."""
        with self._tables.events.held(), self._passing.passing() as pass_txn, self._naming:
            self.settle()  # its drop may be in doubt
            table = self._tables.find(table_id)
            txn = pass_txn()
            try:
                self._metadata.undelete_table(table_id, name, txn)
                _log.info("brought back table %s, id %s", name, table_id)
                if table is None:  # what was wrong with it was mended since
                    return self._opener.open(name, self._metadata.refresh(table_id))
                self._tables.rename(table, name)
            except BaseException as error:
                if _is_certain(error):
                    raise
                with self._lock:
                    self._in_doubt[table_id] = (name,) if table is None else (name, table.name)
                    if table is not None:
                        table.is_in_doubt = True
                raise
            return table

    def retained(self) -> dict[str, TableConfig]:
        """Return the tables that were dropped and can be brought back, by id."""
        with contextlib.suppress(Unavailable):  # what is in doubt stays so
            self.settle()
        return self._metadata.directory.retained()

    def purge_due(self) -> list[str]:
        """Let go of the dropped tables that nobody wanted back in time; return their ids."""
        now = self._clock.microseconds()
        retained = self._metadata.directory.retained()
        due = [table_id for table_id, config in retained.items() if 0 < config.kept_until_microseconds <= now]
        for table_id in due:
            self.purge(table_id)
        if due:
            self._flusher.wake()  # the log may be held by what is gone
        return due

    def purge(self, table_id: str) -> None:
        """Let go of a table that was unlinked, unless it was brought back meanwhile."""
        with self._tables.events.held(), self._naming:
            self.settle()
            with contextlib.suppress(Conflict):
                self._metadata.purge_table(table_id)
                _log.info("purged the dropped table %s", table_id)
                self._tables.purge(table_id)

    def table(self, name: str) -> TableState:
        """Return an open table by name."""
        self.settle(name)
        return self._tables.named(name)

    def tables(self) -> list[TableState]:
        """Return all open tables, by name."""
        with contextlib.suppress(Unavailable):  # what is in doubt stays so
            self.settle()
        return self._tables.listed()

    def settle(self, name: str | None = None) -> None:
        """Find out about the table of that name, or about all, and act accordingly; `Unavailable` if that fails."""
        if not self._in_doubt:
            return
        with self._tables.events.held(), self._lock:
            for table_id, known_as in list(self._in_doubt.items()):
                if name is None or name in known_as:
                    self._settle(known_as[0], table_id)
                    del self._in_doubt[table_id]

    def _settle(self, name: str, table_id: str) -> None:
        is_there = self._metadata.settle(name, table_id)
        served = self._tables.find(table_id)
        if is_there and served is None:
            self._opener.open(name, self._metadata.refresh(table_id))
        elif is_there and served is not None:
            self._tables.rename(served, self._metadata.name_of(table_id))
            served.is_in_doubt = False
        elif served is not None and self._metadata.is_retained(table_id):
            self._tables.unlink(served)
            served.is_in_doubt = False
        elif served is not None:
            self._tables.unlink(served)
            self._tables.purge(table_id)


def _is_certain(error: BaseException) -> bool:
    """Tell whether an error says that nothing was changed."""
    return isinstance(error, EblaError) and not isinstance(error, OutcomeUnknown)
