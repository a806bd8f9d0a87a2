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

from collections.abc import Callable, Collection, Iterable, Sequence
from random import Random
from typing import TypeVar

from ebla.arguments import checked_replicas
from ebla.clock import Clock, txn_at
from ebla.errors import Conflict, EblaError, OutcomeUnknown, RequestError, Unavailable
from ebla.master import tables
from ebla.master.assignment import loads_of, logs_of, plan_assignments
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
from ebla.master.moving import move_tablet
from ebla.master.orders import Orders
from ebla.master.placement import Loads
from ebla.master.refresh import refresh_tables
from ebla.master.replica_requests import recover_tablet, set_replicas
from ebla.master.replicas import Candidates, ReplicaCare, ReplicaPlan
from ebla.master.reports import GIVE_UP, REPLICATE, TAKE_OUT
from ebla.master.servers import Servers
from ebla.master.settings import MasterSettings
from ebla.master.table_info import TableInfo, TabletInfo
from ebla.master.tasks import Tasks
from ebla.master.writes import (
    ChangeTable,
    ChangeTables,
    ExpireTable,
    FindChanged,
    Operation,
    PurgeTable,
    ReadBounds,
    StoredTable,
    Write,
)
from ebla.metadata.values.handing_over import Offer, OfferTablets
from ebla.metadata.values.table_metadata import Replica, TableMetadata
from ebla.metadata.values.tablet_metadata import needed_of
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
        self.care = ReplicaCare(self.catalog, self.servers, self.settings, new_id)
        self._orders = Orders(term, self.catalog, self.servers, self.tasks, self.settings, self.care)
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
        self,
        name: str,
        schema: TableSchema,
        splits: Sequence[bytes] = (),
        *,
        is_fixed: bool = False,
        replicas: int | None = None,
    ) -> Operation[TableInfo]:
        """Create a table, cut at encoded rows; `replicas` servers keep the log of each tablet."""
        return self._guarded(self._create(name, schema, splits, is_fixed, replicas))

    def _create(
        self, name: str, schema: TableSchema, splits: Sequence[bytes], is_fixed: bool, replicas: int | None
    ) -> Operation[TableInfo]:
        wanted = self.settings.replication if replicas is None else self._checked_replicas(replicas)
        created = tables.create_table(
            self.catalog,
            name,
            schema,
            splits,
            new_id=self._new_id,
            settings=self.settings,
            is_fixed=is_fixed,
            replicas=wanted,
            created_txn=txn_at(self._clock.microseconds()),
        )
        return (yield from created)

    def _checked_replicas(self, replicas: int) -> int:
        """Return how many replicas a table is to have, if servers for a majority of them are there."""
        checked_replicas(replicas)
        if replicas > 1:
            now, silent_after = self._clock.monotonic_seconds(), self.settings.silent_after_seconds
            live = self.servers.live(now, silent_after)
            there, needed = len(logs_of(live)), needed_of(replicas)
            if there < needed:
                are = "is" if there == 1 else "are"
                refusal = (
                    f"{replicas} replicas need at least {needed} tablet servers, {there} {are} alive and can keep "
                    "replicas: start more with `ebla tablet-server`, or ask for fewer replicas"
                )
                if self.servers.may_be_coming(now, silent_after):
                    raise Unavailable(refusal)
                raise RequestError(refusal)  # nobody is to wait until somebody starts servers
        return replicas

    def bring_table(self, name: str, metadata: TableMetadata, *, replacing: str | None = None) -> Operation[TableInfo]:
        """Let a table appear that has a past: a clone, or one from a backup."""
        return self._guarded(tables.bring_table(self.catalog, name, metadata, replacing=replacing))

    def load_tablets(self, name: str, tablets: Collection[str]) -> Operation[TableInfo]:
        """Have tablets served again that are offline."""
        return self._guarded(tables.load_tablets(self.catalog, name, tablets))

    def rename_table(self, name: str, new_name: str) -> Operation[TableInfo]:
        """Give a table another name."""
        return self._guarded(tables.rename_table(self.catalog, name, new_name))

    def alter_table(self, name: str, alteration: Alteration) -> Operation[TableInfo]:
        """Change the schema of a table: the next version, which its servers are told until all of them report it."""
        dropped_at = txn_at(self._clock.microseconds())
        return self._guarded(tables.alter_table(self.catalog, name, alteration, dropped_at=dropped_at))

    def set_replicas(self, name: str, replicas: int) -> Operation[TableInfo]:
        """Have so many servers keep the tablets of a table; rounds bring it about."""
        return self._guarded(self._set_replicas(name, replicas))

    def _set_replicas(self, name: str, replicas: int) -> Operation[TableInfo]:
        wanted = self._checked_replicas(replicas)
        known = len(logs_of(self.servers))
        now, silent_after = self._clock.monotonic_seconds(), self.settings.silent_after_seconds
        if 1 < known < wanted and not self.servers.may_be_coming(now, silent_after):
            raise RequestError(
                f"{wanted} replicas need as many tablet servers that keep some, and this cluster has {known}: start "
                "more with `ebla tablet-server`, or ask for fewer replicas"
            )
        return (yield from set_replicas(self.catalog, self.care, name, wanted))

    def recover_tablet(self, tablet: str, server: str | None, *, accept_loss: bool) -> Operation[str]:
        """Go on with what is left of a tablet whose in-sync replicas are gone for good."""
        return self._guarded(self._recover_tablet(tablet, server, accept_loss))

    def _recover_tablet(self, tablet: str, server: str | None, accept_loss: bool) -> Operation[str]:
        candidates = Candidates(self.servers, self._loads(self._clock.monotonic_seconds()))
        recovered = recover_tablet(
            self.catalog,
            self.servers,
            candidates,
            tablet,
            server,
            accept_loss=accept_loss,
            now_seconds=self.now_seconds,
            silent_after_seconds=self.settings.silent_after_seconds,
        )
        return (yield from recovered)

    def delete_table(self, name: str) -> Operation[TableInfo]:
        """Delete a table; `undelete_table` brings it back until the retention is over."""
        return self._guarded(tables.delete_table(self.catalog, name, microseconds=self._clock.microseconds()))

    def expire_table(self, table_id: str) -> Operation[TableInfo]:
        """Let nobody bring a deleted table back any more."""
        return self._guarded(tables.expire_table(self.catalog, table_id))

    def move_tablet(self, name: str, tablet: str, server: str) -> Operation[tuple[TableInfo, str]]:
        """Offer a tablet to a server that people name; return its table and the uuid of the server."""
        moved = move_tablet(
            self.catalog,
            self.servers,
            name,
            tablet,
            server,
            new_id=self._new_id,
            now=self.now_seconds(),
            settings=self.settings,
            care=self.care,
        )
        return self._guarded(moved)

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
        # Time alone ends no retention: another master may be bringing the table back. What is on record does.
        return {
            table_id: info.stored is None or not info.stored.config.is_expired
            for table_id, info in self.catalog.deleted.items()
        }

    def requests(self) -> list[Requests]:
        """Return what is to be sent to servers now. The same comes again later until reports show that it was done."""
        if self.stopped is not None:
            return []
        now = self._clock.monotonic_seconds()
        self._orders.take_news(now)
        return self._orders.due(now, self._retained())

    def watched_leases(self) -> list[str]:
        """Return the servers whose leases are to be looked at: those that lead something, and silent ones."""
        now, silent_after = self._clock.monotonic_seconds(), self.settings.silent_after_seconds
        return [
            server
            for server in self.catalog.placed_servers()
            if self.catalog.leaders_on(server) or self.servers.is_dead(server, now, silent_after)
        ]

    def lease_held(self, server: str) -> None:
        """Take note that a server holds its lease."""
        self.servers.lease_held(server)

    def lease_over(self, server: str) -> None:
        """Take note that a server's lease is over and was taken away: the next round has others lead what it led."""
        self.servers.lease_over(server, self.catalog.led_by(server))

    def refresh(self, table_ids: Sequence[str]) -> Operation[None]:
        """Look again at tables that somebody has changed."""
        return self._guarded(refresh_tables(self.catalog, table_ids))

    def refresh_changed(self) -> Operation[None]:
        """Look again at whatever somebody has changed, when it is not known what that is."""
        return self._guarded(self._refresh_changed())

    def _refresh_changed(self) -> Operation[None]:
        changed = yield FindChanged(self.catalog.configs())
        if changed:
            yield from refresh_tables(self.catalog, changed)

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
            yield from self._care_for_replicas()
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

    def _care_for_replicas(self) -> Operation[None]:
        """Let replicated tablets have leaders, and as many replicas as are wanted: one step each."""
        now = self._clock.monotonic_seconds()
        for leader, tablet_id in self.care.ask_to_replicate():
            self.tasks.ensure(leader, tablet_id, REPLICATE, now)
        if not self.catalog.replicated:
            return
        lost = self.care.lost()
        bounds = (yield ReadBounds(tuple(dict.fromkeys(lost.values())))) if lost else {}
        now = self._clock.monotonic_seconds()
        plan = self.care.plan(lost, bounds, self._loads(now), now)
        changes = plan.changes()
        if changes:
            yield from self._change(changes)
        self._ask_leaders(plan)

    def _ask_leaders(self, plan: ReplicaPlan) -> None:
        now = self._clock.monotonic_seconds()
        for operation, asked in ((GIVE_UP, plan.give_up), (TAKE_OUT, plan.take_out)):
            for leader, tablet_id in asked:
                self.tasks.ensure(leader, tablet_id, operation, now)

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
            logs_of(self.servers.live(now, self.settings.silent_after_seconds)),
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
        for table_id, info in [*self.catalog.deleted.items()]:
            if info.doing is not None or tables.is_retained(info, self._clock.microseconds(), self.settings):
                continue
            if self._retained().get(table_id, True):
                yield from self._let_go(info, "the end of its retention", ExpireTable(table_id))
            if self._retained().get(table_id, True):
                continue  # it came back meanwhile
            delete_replicas(info, self.servers, self.tasks, now)
            if purgeable(info, self.servers):
                yield from self._let_go(info, "its purge", PurgeTable(table_id))
        delete_strays(self.catalog, self.servers, self.tasks, self._retained(), now)
        if self.catalog.altering:
            known = schemas_to_forget(self.catalog, self.servers)
            if known:
                yield from self._change(known)
        if self.catalog.gone:
            changes = replaced_to_forget(self.catalog, dict.fromkeys(self.catalog.gone.values()), self.servers)
            if changes:
                yield from self._change(changes)

    def _let_go(self, info: TableInfo, doing: str, write: ExpireTable | PurgeTable) -> Operation[None]:
        info.begin(doing)
        try:
            self.catalog.install((yield write))
        except Conflict:
            self.catalog.stale[info.id] = None  # it was brought back by another master: look again
        finally:
            info.end()

    def plan_balance(self) -> list[Move]:
        """Return what a round of the balancer would do now: the dry run."""
        return plan_balance(self.catalog, self.servers, self.settings, self._clock.monotonic_seconds(), self.care)

    def _balance(self) -> Operation[None]:
        offers: dict[str, list[Offer]] = {}
        asked = ReplicaPlan()
        for move in self.plan_balance():
            info = self.catalog.tablet(move.tablet)
            assert info is not None
            if move.source is None or move.target is None:
                self.care.ask_to_give_up(asked, info.tablet, move.leader)
            elif info.tablet.is_replicated:
                self.care.moving[info.tablet.id] = (move.source, move.target)
            else:
                offer = Offer(info.tablet.id, info.tablet.epoch, Replica(move.target, self._new_id()))
                offers.setdefault(info.table.id, []).append(offer)
        self._ask_leaders(asked)
        changes = [ChangeTable(table_id, (OfferTablets(tuple(moves)),)) for table_id, moves in offers.items()]
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
