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
from ebla.errors import EblaError, OutcomeUnknown, Unavailable
from ebla.master import tables
from ebla.master.assignment import plan_assignments
from ebla.master.balance import Move, Placed, plan_moves
from ebla.master.catalog import Catalog
from ebla.master.cleaner import delete_replicas, purgeable, replaced_to_forget
from ebla.master.heartbeats import HeartbeatHandler
from ebla.master.messages import (
    AlterTablet,
    CreateTablet,
    DeleteTablet,
    Heartbeat,
    HeartbeatReply,
    ReportedTablet,
    Request,
    Requests,
    UpdateTablet,
)
from ebla.master.refresh import refresh_tables
from ebla.master.reports import ALTER, CREATE, DELETE, UPDATE
from ebla.master.servers import ReplicaState, Servers
from ebla.master.settings import MasterSettings
from ebla.master.table_info import TableInfo, TabletInfo
from ebla.master.tasks import Tasks
from ebla.master.writes import ChangeTable, ChangeTables, Operation, PurgeTable, StoredTable, Write
from ebla.metadata.assigning import Assignment, PlaceTablets
from ebla.metadata.table_metadata import Replica, TableMetadata, TabletMetadata
from ebla.schema import TableSchema
from ebla.schema_change import Alteration

__all__ = ["Master", "MasterStopped"]

Result = TypeVar("Result")

_RUNNING = "running"


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
        self._creating_since: dict[str, float] = {}
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

    def _retained(self) -> dict[str, bool]:
        microseconds = self._clock.microseconds()
        return {
            table_id: tables.is_retained(info, microseconds, self.settings)
            for table_id, info in self.catalog.deleted.items()
        }

    def requests(self) -> list[Requests]:
        """Return what is to be sent to servers now. The same comes again later until reports show that it was done."""
        if self.stopped is not None:
            return []
        self._tell_moves()
        now = self._clock.monotonic_seconds()
        retained = self._retained()
        found = []
        for server in self.servers:
            if now - server.heard_seconds > self.settings.server_timeout_seconds or not self.tasks.of(server.uuid):
                continue

            def is_wanted(tablet: str, operation: str, assignment_id: str, uuid: str = server.uuid) -> bool:
                return self._request(uuid, tablet, operation, assignment_id, retained) is not None

            due = self.tasks.due(server.uuid, now, self.settings.requests_per_server_max, is_wanted)
            requests = [self._request(server.uuid, *task, retained) for task in due]
            if requests:
                found.append(Requests(self.term, server.uuid, tuple(one for one in requests if one is not None)))
        return found

    def _request(
        self, server: str, tablet_id: str, operation: str, assignment_id: str, retained: dict[str, bool]
    ) -> Request | None:
        """Return what a task says to its server now; None if there is nothing to say any more."""
        info = self.catalog.tablet(tablet_id)
        replica = None if info is None else _replica_on(info.tablet, server)
        if operation == DELETE:
            is_current = replica is not None and replica.assignment_id == assignment_id
            if is_current and info is not None and retained.get(info.table.id, True):
                return None  # it is not deleted (any more)
            return DeleteTablet(tablet_id, assignment_id)
        known = self.servers.get(server)
        if info is None or replica is None or known is None:
            return None
        if operation != CREATE and known.has_nothing_of(tablet_id):
            return None
        tablet, metadata = info.tablet, info.stored.metadata
        assert tablet.leader is not None
        assert metadata is not None
        is_deleted = info.stored.config.state == "deleted"
        if operation == CREATE:
            if is_deleted:
                return None
            return CreateTablet(
                tablet.id,
                info.table.id,
                replica.assignment_id,
                tablet.first,
                tablet.last,
                metadata.schema,
                tablet.epoch,
                tablet.leader,
                tablet.replicas,
            )
        if operation == UPDATE:
            return UpdateTablet(
                tablet.id, replica.assignment_id, tablet.epoch, tablet.leader, tablet.replicas, is_deleted
            )
        return AlterTablet(tablet.id, replica.assignment_id, metadata.schema)

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
            self._tell_moves()
            yield from self._assign()
            yield from self._clean()
            yield from self._balance()
        finally:
            self._is_in_round = False

    def _assign(self) -> Operation[None]:
        if not self.catalog.pending:
            self._creating_since.clear()
            return
        now = self._clock.monotonic_seconds()
        live = self.servers.live(now, self.settings.server_timeout_seconds)
        plan = plan_assignments(
            self.catalog, live, self._creating_since, now, self.settings, self._random, self._new_id
        )
        changes = plan.changes()
        if not changes:
            return
        yield from self._change(changes)
        now = self._clock.monotonic_seconds()
        for assignments in plan.assignments.values():
            self._creating_since.update((assignment.tablet, now) for assignment in assignments)

    def _tell_moves(self) -> None:
        """Make tasks of all that was placed otherwise, deleted, brought back or altered, by this master or another."""
        if not self.catalog.moved and not self.catalog.switched:
            return
        moved, self.catalog.moved = self.catalog.moved, []
        switched, self.catalog.switched = self.catalog.switched, {}
        now = self._clock.monotonic_seconds()
        for table_id in switched:
            if table_id in self.catalog.tables:
                self._tell_switched(self.catalog.tables[table_id], now)
        for before, after in moved:
            # Servers that split or join a tablet see to the old one themselves.
            if before is not None and before.id not in self.catalog.retired:
                for replica in before.replicas:
                    self._tell_removed(before.id, replica, now)
            if after is not None:
                self._tell_placed(after, now)

    def _tell_switched(self, info: TableInfo, now: float) -> None:
        version = info.metadata.schema.version
        for tablet in info.metadata.tablets:
            for replica in tablet.replicas:
                state = self._reported(replica.server, tablet.id)
                if state is None:
                    continue  # when it comes, its report will show what it lacks
                if state.schema_version < version:
                    self.tasks.ensure(replica.server, tablet.id, ALTER, now)
                if (state.state == "stopped") != info.is_deleted:
                    self.tasks.ensure(replica.server, tablet.id, UPDATE, now)

    def _tell_placed(self, tablet: TabletMetadata, now: float) -> None:
        for replica in tablet.replicas:
            server = self.servers.get(replica.server)
            if server is None or not server.is_whole:
                continue  # its full report will show what it lacks
            state = server.reported.get(tablet.id)
            if state is None:
                self.tasks.ensure(replica.server, tablet.id, CREATE, now)
            elif state.epoch < tablet.epoch:
                self.tasks.ensure(replica.server, tablet.id, UPDATE, now)

    def _tell_removed(self, tablet_id: str, replica: Replica, now: float) -> None:
        """Have a replica deleted that METADATA no longer names, if its server has said that it has it."""
        info = self.catalog.tablet(tablet_id)
        server = self.servers.get(replica.server)
        if server is None or (info is not None and replica in info.tablet.replicas):
            return
        state = server.reported.pop(tablet_id, None)
        if state is not None:
            table_id = self.catalog.gone.get(tablet_id, "") if info is None else info.table.id
            server.strays[tablet_id] = ReportedTablet(
                tablet_id, table_id, replica.assignment_id, "running", state.schema_version, state.epoch
            )
            self.tasks.ensure(replica.server, tablet_id, DELETE, now, replica.assignment_id)

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
                finally:
                    info.end()
        if self.catalog.gone:
            changes = replaced_to_forget(self.catalog, dict.fromkeys(self.catalog.gone.values()), self.servers)
            if changes:
                yield from self._change(changes)

    def plan_balance(self) -> list[Move]:
        """Return what a round of the balancer would do now: the dry run."""
        now = self._clock.monotonic_seconds()
        timeout = self.settings.server_timeout_seconds
        hosts = {server.uuid: server.registration.host for server in self.servers.live(now, timeout)}
        placed = [server for server in self.catalog.placed_servers() if server not in hosts]
        dead = frozenset(server for server in placed if self.servers.is_dead(server, now, timeout))
        if not hosts or len(dead) < len(placed):
            return []  # some are still expected to come
        if not dead and not self._is_uneven(hosts):
            return []
        return plan_moves(
            self._placed(hosts),
            hosts,
            dead=dead,
            moves_max=self.settings.moves_max,
            imbalance_tolerated=self.settings.imbalance_tolerated,
            is_log_shared=self.settings.is_log_shared,
        )

    def _is_uneven(self, hosts: Iterable[str]) -> bool:
        tolerated = max(1, self.settings.imbalance_tolerated)
        replicas = [self.catalog.replicas_on(server) for server in hosts]
        leaders = [self.catalog.leaders_on(server) for server in hosts]
        return max(replicas) - min(replicas) > tolerated or max(leaders) - min(leaders) > tolerated

    def _placed(self, hosts: dict[str, str]) -> Iterable[Placed]:
        for info in self.catalog.names.values():
            metadata = info.metadata
            version = metadata.schema.version
            for tablet in metadata.tablets:
                if tablet.state != _RUNNING or tablet.leader is None:
                    continue
                wanted = (tablet.epoch, version, _RUNNING)
                servers = tuple(replica.server for replica in tablet.replicas)
                is_settled = all(
                    server not in hosts or self._reported(server, tablet.id) == wanted for server in servers
                )
                yield Placed(tablet.id, tablet.leader, servers, is_settled)

    def _reported(self, server: str, tablet: str) -> ReplicaState | None:
        known = self.servers.get(server)
        return None if known is None else known.reported.get(tablet)

    def _balance(self) -> Operation[None]:
        by_table: dict[str, list[Assignment]] = {}
        for move in self.plan_balance():
            info = self.catalog.tablet(move.tablet)
            assert info is not None
            replicas = tuple(
                Replica(move.target, self._new_id()) if move.target and replica.server == move.source else replica
                for replica in info.tablet.replicas
            )
            assignment = Assignment(info.tablet.id, info.tablet.epoch, move.leader, replicas)
            by_table.setdefault(info.table.id, []).append(assignment)
        if not by_table:
            return
        yield from self._change(
            [ChangeTable(table_id, (PlaceTablets(tuple(moves)),)) for table_id, moves in by_table.items()]
        )

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
        self._tell_moves()

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


def _replica_on(tablet: TabletMetadata, server: str) -> Replica | None:
    for replica in tablet.replicas:
        if replica.server == server:
            return replica
    return None
