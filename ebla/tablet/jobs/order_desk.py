"""The order desk: what jobs of this process and of others ask for goes to the part that does it."""

from __future__ import annotations

from ebla.service.job_orders import (
    AddColumns,
    Answer,
    BeginCompaction,
    BulkCommit,
    BulkResult,
    CompactCommit,
    MakeTable,
    Order,
    PrepareCompaction,
    PrepareSweep,
    RestoreCommit,
    Sweep,
    UnmakeTable,
)
from ebla.tablet.garbage.garbage import Garbage
from ebla.tablet.jobs.bulk_driver import BulkDriver
from ebla.tablet.jobs.compact_driver import CompactDriver
from ebla.tablet.jobs.restorer import Restorer
from ebla.tablet.jobs.table_orders import TableOrders
from ebla.tablet.life.readiness import Readiness
from ebla.tablet.life.table_lifecycle import TableLifecycle
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.write.open_state import OpenState

__all__ = ["OrderDesk"]


class OrderDesk:
    """Has orders carried out. Safe to use from several threads."""

    def __init__(
        self,
        tables: OpenTables,
        state: OpenState,
        lifecycle: TableLifecycle,
        readiness: Readiness,
        bulk: BulkDriver,
        compactions: CompactDriver,
        restorer: Restorer,
        garbage: Garbage,
        table_orders: TableOrders,
    ) -> None:
        # Set once.
        self._tables = tables
        self._state = state
        self._lifecycle = lifecycle
        self._readiness = readiness
        self._bulk = bulk
        self._compactions = compactions
        self._restorer = restorer
        self._garbage = garbage
        self._table_orders = table_orders

    def commit_bulk(self, commit: BulkCommit) -> BulkResult:
        """Make the files of a bulk job part of their table, all of them or none; a job is applied once.

        Raises `UnknownTable` if the table is gone, `Conflict` if its schema is another one, and `OutcomeUnknown` if it
        cannot be told whether it was done: then the store takes no more writes until it is reopened.
        """
        self._lifecycle.settle()
        table = self._tables.find(commit.table_id)
        if table is not None:
            self._readiness.check_online(table)
        return self._bulk.commit(commit)

    def carry_out(self, order: Order) -> Answer:
        """Do what a job in this or another process asks for."""
        if isinstance(order, BulkCommit):
            return self.commit_bulk(order)
        self._lifecycle.settle()
        match order:
            case PrepareCompaction():
                return self._compactions.prepare(order)
            case BeginCompaction():
                return self._compactions.begin(order)
            case CompactCommit():
                return self._compactions.commit(order)
            case PrepareSweep():
                self._state.writable_log()
                return self._garbage.terms()
            case Sweep():
                self._state.writable_log()
                return self._garbage.sweep(order)
            case RestoreCommit():
                return self._restorer.commit(order)
            case MakeTable():
                self._state.writable_log()
                return self._table_orders.make(order)
            case AddColumns():
                self._state.writable_log()
                return self._table_orders.add_columns(order)
            case UnmakeTable():
                self._state.writable_log()
                return self._table_orders.unmake(order)
