"""The store in this process as a service: the engine behind the protocol that clients know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import Closed, ReadOnly, RequestError, UnknownTable, shown
from ebla.metadata.values.table_metadata import initial_metadata
from ebla.service.counters import Counters
from ebla.service.job_orders import Order
from ebla.service.job_reads import HoldForJob
from ebla.service.listener import TabletListener
from ebla.service.reports import VerifyReport
from ebla.service.requests import (
    AlterTable,
    BeginJob,
    CloneTable,
    CollectGarbage,
    CreateTable,
    DescribeStore,
    DescribeTables,
    DropTable,
    EndJob,
    HoldByName,
    HoldNewest,
    LetGo,
    ListDropped,
    ListHeld,
    LoadTable,
    MoveTablet,
    PassTxn,
    ReadCounters,
    RecoverTablet,
    ReleaseName,
    RenameTable,
    Repair,
    Reply,
    SetReplicas,
    StoreRequest,
    Sync,
    UndeleteTable,
    UnloadTable,
    Verify,
)
from ebla.service.service import SYSTEM_TABLES, Progress, TableService
from ebla.settings import Settings
from ebla.tablet.check.verify import Verifier
from ebla.tablet.engine import TabletStore
from ebla.tablet.garbage.job_intents import begin_job, end_job
from ebla.tablet.serve.capturing import hold_for_job
from ebla.tablet.serve.dropped_tables import dropped_tables
from ebla.tablet.serve.listening import Listening
from ebla.tablet.serve.local_table import LocalTable
from ebla.tablet.serve.system_tables import system_table
from ebla.tablet.serve.table_description import describe_table
from ebla.tablet.upkeep.horizon import Horizon

__all__ = ["LocalService"]


class LocalService:
    """Serves the tables of an engine in this process. Safe to use from several threads."""

    def __init__(
        self, engine: TabletStore, coordination: CoordinationService, clock: Clock, new_id: Callable[[], str]
    ) -> None:
        # Set once.
        self.engine = engine
        self.coordination = coordination
        self._clock = clock
        self._new_id = new_id
        self._listening = Listening(engine.events)
        self._handlers: dict[type, Callable[[Any], object]] = {
            CreateTable: self._create,
            DropTable: lambda request: engine.lifecycle.drop(request.name, purge=request.purge),
            UndeleteTable: lambda request: engine.lifecycle.undelete(request.table_id, request.name),
            RenameTable: lambda request: engine.lifecycle.rename(request.name, request.new_name),
            CloneTable: lambda request: engine.cloner.clone(engine.table(request.origin), request.name),
            AlterTable: lambda request: engine.alterer.alter(engine.table(request.name), request.alteration),
            UnloadTable: self._unload,
            MoveTablet: self._move,
            SetReplicas: self._set_replicas,
            RecoverTablet: self._recover,
            CollectGarbage: lambda request: engine.garbage.collect(dry_run=request.dry_run),
            Repair: self._repair,
            **dict.fromkeys(get_args(Order), engine.orders.carry_out),
            BeginJob: self._begin_job,
            EndJob: lambda request: end_job(coordination, engine.metadata, engine.files, request.job, request.keep),
        }
        self._readers: dict[type, Callable[[Any], object]] = {
            LoadTable: self._load,
            Sync: lambda request: engine.sync(request.txn),
            HoldNewest: lambda request: engine.hold_newest(),
            PassTxn: self._pass_txn,
            LetGo: lambda request: engine.pins.let_go(request.txn),
            HoldByName: self._hold_by_name,
            ReleaseName: lambda request: engine.pins.release(request.name),
            HoldForJob: lambda request: hold_for_job(engine, Horizon(coordination), request),
            ListHeld: lambda request: {pin.name: pin.txn for pin in engine.pins.all()},
            DescribeStore: lambda request: {**engine.report.stats(), "tables": self._described()},
            DescribeTables: lambda request: self._described(),
            ReadCounters: lambda request: self._counters(),
            ListDropped: lambda request: dropped_tables(engine),
            Verify: lambda request: self._verifier().verify(),
        }

    @property
    def is_writable(self) -> bool:
        """Whether it takes writes."""
        return self.engine.is_writable

    @property
    def settings(self) -> Settings:
        """The settings that requests are held to."""
        return self.engine.settings

    def check_open(self) -> None:
        """Raise `Closed` if it was closed, or belongs to another process."""
        if self.engine.is_closed or self.engine.is_inherited:
            raise self.closed()

    def closed(self) -> Closed:
        """Return the error for whoever comes when it is closed."""
        return self.engine.closed()

    def close(self) -> None:
        """Make everything durable and let go of it."""
        self.engine.close()

    # --- tables ---

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted; also of those that cannot be served."""
        self.check_open()
        return sorted([*(table.name for table in self.engine.tables()), *self.engine.refused_names()])

    def table(self, name: str, at: int | None = None) -> TableService:
        """Return a table, or a system table."""
        self.check_open()
        if isinstance(name, str) and name in SYSTEM_TABLES:
            return system_table(self.engine, name)
        return LocalTable(self.engine, self.engine.table(name) if at is None else self.engine.table_at(name, at))

    def table_by_id(self, table_id: str) -> TableService:
        """Return a table by its id."""
        self.check_open()
        found = self.engine.open_tables.find(table_id)
        if found is None:
            raise UnknownTable(f"there is no table with the id {shown(table_id)}: get it anew with db.table")
        return LocalTable(self.engine, found)

    def add_listener(self, listener: TabletListener, tablet: str | None) -> None:
        """Tell a listener of one tablet, or of all."""
        self.check_open()
        self._listening.add(listener, tablet)

    def remove_listener(self, listener: TabletListener, tablet: str | None) -> None:
        """Undo one `add_listener` with the same arguments."""
        self.check_open()
        self._listening.remove(listener, tablet)

    # --- the store as a whole ---

    def carry_out(self, request: StoreRequest[Reply], progress: Progress | None = None) -> Reply:
        """Do something with the store as a whole."""
        if type(request) is not LetGo:  # a snapshot may outlive the store
            self.check_open()
        handler = self._readers.get(type(request))
        if handler is None:
            handler = self._handlers.get(type(request))
            if handler is None:
                raise RequestError(f"a store does not know the request {type(request).__name__}")
            self._check_writable()
        reply: Any = handler(request)
        return reply  # type: ignore[no-any-return]

    def _check_writable(self) -> None:
        if not self.engine.is_writable:
            raise ReadOnly("the store was opened read-only: open it without read_only to write")

    def _create(self, request: CreateTable) -> None:
        if request.replicas is not None:
            self._check_alone(request.replicas)
        ids = [self._new_id() for _ in range(len(request.splits) + 1)]
        initial = initial_metadata(self._new_id(), request.schema, ids, list(request.splits), is_fixed=request.is_fixed)
        self.engine.lifecycle.create(request.name, initial)

    def _check_alone(self, replicas: int) -> None:
        if replicas != 1:
            raise RequestError(
                f"a store in one process keeps one copy, not {replicas}: connect to a cluster to have replicas, see "
                "docs/howto/cluster.md"
            )

    def _set_replicas(self, request: SetReplicas) -> None:
        self.engine.table(request.name)
        self._check_alone(request.replicas)

    def _recover(self, request: RecoverTablet) -> str:
        raise RequestError("a store in one process has no replicas to recover from: see `ebla verify`, `ebla restore`")

    def _move(self, request: MoveTablet) -> None:
        raise RequestError("a store in one process has no other servers: connect to a cluster to move tablets")

    def _load(self, request: LoadTable) -> None:
        self._check_whole_table(request.tablet)
        self.engine.unloader.bring_back(self.engine.table(request.name))

    def _check_whole_table(self, tablet: str | None) -> None:
        if tablet is not None:
            raise RequestError("a store in one process takes tables offline as a whole: leave out the tablet")

    def _unload(self, request: UnloadTable) -> None:
        self._check_whole_table(request.tablet)
        self.engine.state.writable_log()
        self.engine.unloader.unload(self.engine.table(request.name))

    def _pass_txn(self, request: PassTxn) -> None:
        self.engine.read_txn(request.txn)

    def _hold_by_name(self, request: HoldByName) -> int:
        if request.txn is not None or request.expires_seconds is not None:
            raise RequestError("a store that has its commits itself holds the newest: hold it by name alone")
        pins = self.engine.pins
        pin = pins.find(request.name)
        if pin is None:
            self._check_writable()
            txn = self.engine.hold_newest()
            try:
                pin = pins.pin(request.name, txn)
            finally:
                pins.let_go(txn)
        return pin.txn

    def _described(self) -> dict[str, dict[str, Any]]:
        return {state.name: describe_table(state) for state in self.engine.tables()}

    def _counters(self) -> Counters | None:
        return self.engine.report.counters()

    def _begin_job(self, request: BeginJob) -> str:
        table_id = request.table_id or self.engine.table(request.table).id
        return begin_job(self.coordination, self._clock, request.job, table_id, request.expires_seconds).table_id

    def _verifier(self) -> Verifier:
        return Verifier(self.coordination, self.engine.files, self.engine.metadata.directory)

    def _repair(self, request: Repair) -> VerifyReport:
        report = self._verifier().repair(self._new_id)
        if report.repaired:
            self.engine.reload_metadata()
        return report
