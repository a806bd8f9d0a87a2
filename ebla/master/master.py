"""A master in one term: everything it knows and decides between taking the lease and losing it.

    requests of clients --.                                  .--> writes      (driver: durable.py)
    heartbeats -----------+--> operations on the catalog ----+--> replies
    rounds of the clock --'                                  `--> Requests    (driver: RPC)

A new term begins with a new `Master`, loaded from what is durable: no memory of an older term is carried over. It knows
no server; they register and send full reports.

Several operations may be under way at a time; between two writes each runs alone (whoever drives them holds a lock, or
is one thread). A write whose outcome stays unknown ends the term: what is in memory may no longer be what is durable,
so the master stops itself, and the next term loads what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeVar

from ebla.clock import Clock, txn_at
from ebla.errors import Conflict, EblaError, OutcomeUnknown, Unavailable
from ebla.master import tables
from ebla.master.assignment import loads_of, plan_assignments
from ebla.master.balance import Move
from ebla.master.balance_plan import plan_balance
from ebla.master.catalog import Catalog
from ebla.master.cleaner import delete_replicas, delete_strays, purgeable, replaced_to_forget, schemas_to_forget
from ebla.master.failover import Offered, plan_failover
from ebla.master.heartbeats import HeartbeatHandler
from ebla.master.messages import (
    Heartbeat,
    HeartbeatReply,
    Requests,
)
from ebla.master.orders import Orders
from ebla.master.placement import Loads
from ebla.master.refresh import refresh_tables
from ebla.master.servers import Servers
from ebla.master.settings import MasterSettings
from ebla.master.table_info import TableInfo, TabletInfo
from ebla.master.tasks import Tasks
from ebla.master.writes import ChangeTable, ChangeTables, Operation, PurgeTable, StoredTable, Write
from ebla.metadata.values.assigning import Assignment, PlaceTablets
from ebla.metadata.values.handing_over import Offer, OfferTablets
from ebla.metadata.values.table_metadata import Replica, TableMetadata
from ebla.model.schema import TableSchema
from ebla.model.schema_change import Alteration

__all__ = ["Master", "MasterStopped"]

Result = TypeVar("Result")


class MasterStopped(Unavailable):
    """The term of this master is over: ask the one that leads now."""


class Master:
    """The mind of a master. No I/O, no threads, no clock and no dice but those that it is given."""

    def __init__(
        self,
        cluster_id: str,
        term: int,
        stored: Iterable[StoredTable],
        clock: Clock,
        *,
        new_id: Callable[[], str],
        random: Random,
        settings: MasterSettings | None = None,
    ) -> None:
        """Begin a term with all that is durable. `new_id` gives out ids that are never given out again."""
        self.settings = settings or MasterSettings()
        self.term = term
        self.catalog = Catalog()
        self.catalog.load(stored)
        self.servers = Servers(clock.monotonic_seconds())
        self.tasks = Tasks(random, self.settings.retry_seconds_min, self.settings.retry_seconds_max)
        self.stopped: str | None = None  # why
        self._clock = clock
        self._new_id = new_id
        self._random = random
        self._heartbeats = HeartbeatHandler(cluster_id, term, self.catalog, self.servers, self.tasks, self.settings)
        self._orders = Orders(term, self.catalog, self.servers, self.tasks, self.settings)
        self._creating_since: dict[str, float] = {}
        self._offered: dict[str, Offered] = {}
        self._is_in_round = False

    def stop(self, reason: str) -> None:
        """End the term, as when the lease is lost. Whatever is under way fails at its next step."""
        self.stopped = self.stopped or reason

    # --- what clients ask ------------------------------------------------------------------------

    def locate(self, name: str, row: bytes) -> TabletInfo:
        """Return the tablet of a table that `row` belongs to."""
        return self.catalog.locate(name, row)

    def create_table(
        self, name: str, schema: TableSchema, splits: Sequence[bytes] = (), *, is_fixed: bool = False
    ) -> Operation[TableInfo]:
        """Create a table, cut at encoded rows."""
        return self._guarded(
            tables.create_table(
                self.catalog, name, schema, splits, new_id=self._new_id, settings=self.settings, is_fixed=is_fixed
            )
        )

    def clone_table(self, name: str, new_name: str) -> Operation[TableInfo]:
        """Make a table that shares the fragments of another."""
        return self._guarded(tables.clone_table(self.catalog, name, new_name, new_id=self._new_id))

    def rename_table(self, name: str, new_name: str) -> Operation[TableInfo]:
        """Give a table another name."""
        return self._guarded(tables.rename_table(self.catalog, name, new_name))

    def alter_table(self, name: str, alteration: Alteration) -> Operation[TableInfo]:
        """Change the schema of a table: the next version, which its servers are told until all of them report it."""
        dropped_at = txn_at(self._clock.microseconds())
        return self._guarded(tables.alter_table(self.catalog, name, alteration, dropped_at=dropped_at))

    def delete_table(self, name: str) -> Operation[TableInfo]:
        """Delete a table; `undelete_table` brings it back until the retention is over."""
        return self._guarded(tables.delete_table(self.catalog, name, microseconds=self._clock.microseconds()))

    def undelete_table(self, name: str, new_name: str | None = None) -> Operation[TableInfo]:
        """Bring back the table that was deleted last under a name."""
        return self._guarded(
            tables.undelete_table(
                self.catalog,
                name,
                new_name=new_name,
                microseconds=self._clock.microseconds(),
                settings=self.settings,
            )
        )

    # --- heartbeats and requests -----------------------------------------------------------------

    def heartbeat(self, heartbeat: Heartbeat) -> Operation[HeartbeatReply]:
        """Take a heartbeat."""
        now = self._clock.monotonic_seconds()
        return self._guarded(self._heartbeats.handle(heartbeat, now, self._retained()))

    def now_seconds(self) -> float:
        """Return the time of its steady clock, by which servers were heard."""
        return self._clock.monotonic_seconds()

    def _retained(self) -> dict[str, bool]:
        microseconds = self._clock.microseconds()
        return {
            # One that is being brought back was retained when that was decided: nothing of it goes meanwhile.
            table_id: info.doing is not None or tables.is_retained(info, microseconds, self.settings)
            for table_id, info in self.catalog.deleted.items()
        }

    def requests(self) -> list[Requests]:
        """Return what is to be sent to servers now. The same comes again later until reports show that it was done."""
        if self.stopped is not None:
            return []
        now = self._clock.monotonic_seconds()
        self._orders.take_news(now)
        return self._orders.due(now, self._retained())

    def lease_over(self, server: str) -> None:
        """Take note that a server's lease is over and was taken away: the next round has others lead what it led."""
        self.servers.lease_over(server, self.catalog.led_by(server))

    def refresh(self, table_ids: Sequence[str]) -> Operation[None]:
        """Look again at tables that somebody has changed, as a watch of the coordination service tells."""
        return self._guarded(refresh_tables(self.catalog, table_ids))

    # --- rounds ----------------------------------------------------------------------------------

    def round(self) -> Operation[None]:
        """Do what is due in the background: assignments, cleaning, balancing. One round at a time."""
        return self._guarded(self._round())

    def _round(self) -> Operation[None]:
        if self._is_in_round:
            return
        self._is_in_round = True
        try:
            if self.catalog.stale:
                stale, self.catalog.stale = [*self.catalog.stale], {}
                yield from refresh_tables(self.catalog, stale)
            self._orders.take_news(self._clock.monotonic_seconds())
            yield from self._fail_over()
            yield from self._assign()
            yield from self._clean()
            yield from self._balance()
        finally:
            self._is_in_round = False

    def _loads(self, now: float) -> Loads:
        return loads_of(self.catalog, self.servers.live(now, self.settings.silent_after_seconds))

    def _fail_over(self) -> Operation[None]:
        if not (self.servers.orphans or self.servers.failed or self.catalog.vacant or self.catalog.offered):
            return
        now = self._clock.monotonic_seconds()
        orphans = dict(self.servers.orphans)
        plan = plan_failover(
            self.catalog, self.servers, self._offered, self._loads(now), now, self.settings, self._new_id
        )
        changes = plan.changes()
        if changes:
            yield from self._change(changes)
        for tablet_id, (leader, epoch) in orphans.items():
            info = self.catalog.tablet(tablet_id)
            if info is None or (info.tablet.leader, info.tablet.epoch) != (leader, epoch):
                self.servers.orphans.pop(tablet_id, None)

    def _is_hopeless(self, info: TabletInfo) -> bool:
        leader = info.tablet.leader
        return self.servers.is_over(leader) or self.servers.failed.get(info.tablet.id) == leader

    def _assign(self) -> Operation[None]:
        if not self.catalog.pending:
            self._creating_since.clear()
            return
        now = self._clock.monotonic_seconds()
        plan = plan_assignments(
            self.catalog,
            self._loads(now),
            self._creating_since,
            now,
            self.settings,
            self._random,
            self._new_id,
            self._is_hopeless,
        )
        changes = plan.changes()
        if not changes:
            return
        yield from self._change(changes)
        now = self._clock.monotonic_seconds()
        for assignments in plan.assignments.values():
            self._creating_since.update((assignment.tablet, now) for assignment in assignments)

    def _clean(self) -> Operation[None]:
        now = self._clock.monotonic_seconds()
        for table_id, is_retained in self._retained().items():
            info = self.catalog.deleted.get(table_id)
            if is_retained or info is None or info.doing is not None:
                continue
            delete_replicas(info, self.servers, self.tasks, now)
            if purgeable(info, self.servers):
                info.begin("its purge")
                try:
                    stored = yield PurgeTable(table_id)
                    self.catalog.install(stored)
                except Conflict:
                    self.catalog.stale[table_id] = None  # it was brought back by another master: look again
                finally:
                    info.end()
        delete_strays(self.catalog, self.servers, self.tasks, self._retained(), now)
        if self.catalog.altering:
            known = schemas_to_forget(self.catalog, self.servers)
            if known:
                yield from self._change(known)
        if self.catalog.gone:
            changes = replaced_to_forget(self.catalog, dict.fromkeys(self.catalog.gone.values()), self.servers)
            if changes:
                yield from self._change(changes)

    def plan_balance(self) -> list[Move]:
        """Return what a round of the balancer would do now: the dry run."""
        return plan_balance(self.catalog, self.servers, self.settings, self._clock.monotonic_seconds())

    def _balance(self) -> Operation[None]:
        by_table: dict[str, list[Assignment]] = {}
        offers: dict[str, list[Offer]] = {}
        for move in self.plan_balance():
            info = self.catalog.tablet(move.tablet)
            assert info is not None
            if move.target and len(info.tablet.replicas) == 1:
                offer = Offer(info.tablet.id, info.tablet.epoch, Replica(move.target, self._new_id()))
                offers.setdefault(info.table.id, []).append(offer)
                continue
            replicas = tuple(
                Replica(move.target, self._new_id()) if move.target and replica.server == move.source else replica
                for replica in info.tablet.replicas
            )
            assignment = Assignment(info.tablet.id, info.tablet.epoch, move.leader, replicas)
            by_table.setdefault(info.table.id, []).append(assignment)
        changes = [ChangeTable(table_id, (PlaceTablets(tuple(moves)),)) for table_id, moves in by_table.items()]
        changes += [ChangeTable(table_id, (OfferTablets(tuple(moves)),)) for table_id, moves in offers.items()]
        if changes:
            yield from self._change(changes)

    # --- writes ----------------------------------------------------------------------------------

    def _change(self, changes: Sequence[ChangeTable]) -> Operation[None]:
        """Write changes of tables and commit the outcome to memory; look again at tables that refused."""
        answers = yield ChangeTables(tuple(changes))
        refused = []
        for change, answer in zip(changes, answers, strict=True):
            if isinstance(answer, TableMetadata):
                self.catalog.install_metadata(answer)
            else:
                refused.append(change.table_id)
        if refused:
            yield from refresh_tables(self.catalog, refused)
        self._orders.take_news(self._clock.monotonic_seconds())

    def _guarded(self, operation: Operation[Result]) -> Operation[Result]:
        """Drive an operation of this term, and of no other: nothing of it is done once the master was stopped."""
        step: Callable[[], Write] = lambda: next(operation)  # noqa: E731
        while True:
            if self.stopped is not None:
                operation.close()
                raise MasterStopped(f"this master has stopped ({self.stopped}): ask the one that leads now")
            try:
                write = step()
            except StopIteration as end:
                result: Result = end.value
                return result
            try:
                answer = yield write
            except OutcomeUnknown as error:
                self.stop(f"the outcome of a write is unknown: {error}")
                operation.close()
                raise MasterStopped(f"this master has stopped: {error}: ask the one that leads next") from error
            except EblaError as error:
                step = _throw(operation, error)
            else:
                step = _send(operation, answer)


def _send(operation: Operation[Result], answer: object) -> Callable[[], Write]:
    return lambda: operation.send(answer)


def _throw(operation: Operation[Result], error: EblaError) -> Callable[[], Write]:
    return lambda: operation.throw(error)
