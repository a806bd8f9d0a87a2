"""What a master tells clients: which tables there are and where their rows are; and what it does to tables as a whole.

    tables, table, locate     from the catalog, in memory
    CreateTable, ...          operations of the term; a table that was made is there when its tablets are served

Rows are not here: whoever asks a master for some, because a tablet is changing hands, is told to ask again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from ebla.errors import CannotJoin, Closed, RequestError, TimedOut, Unavailable, UnknownTable
from ebla.master.table_info import TableInfo
from ebla.master_server.cluster_garbage import ClusterGarbage
from ebla.master_server.cluster_jobs import ClusterJobs
from ebla.master_server.cluster_report import describe_cluster
from ebla.master_server.cluster_snapshots import ClusterSnapshots
from ebla.master_server.cluster_tables import ClusterTables, unloaded, wait_until_served
from ebla.master_server.system_views import SystemViews
from ebla.master_server.term import Term
from ebla.metadata.values.serving import UNLOADED
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.keys import KeyCodec
from ebla.model.ranges import KeyRange, successor
from ebla.model.schema import TableSchema
from ebla.rpc.wire.messages import TabletLocation
from ebla.service.listener import TabletListener
from ebla.service.reports import DroppedTable, VerifyReport
from ebla.service.requests import (
    AlterTable,
    BringTogether,
    CollectGarbage,
    CreateTable,
    DescribeStore,
    DescribeTables,
    DescribeTablets,
    DropTable,
    HoldByName,
    ListDropped,
    ListHeld,
    Modify,
    MoveTablet,
    ReadRow,
    RecoverTablet,
    ReleaseName,
    RenameTable,
    Reply,
    ScanRows,
    SetReplicas,
    StoreRequest,
    TableRequest,
    UndeleteTable,
    Verify,
)
from ebla.service.service import SYSTEM_TABLES, Progress, TableService
from ebla.settings import Settings

__all__ = ["CatalogService", "CatalogTable"]

# So long servers may take for what they were asked to do.
SERVED_SECONDS = 20.0


class CatalogTable:
    """One table, as the catalog has it at the moment of a question: a term may end between two of them."""

    def __init__(
        self,
        table_id: str,
        find: Callable[[str], TableInfo],
        settings: Settings,
        bring_together: Callable[[TableInfo, tuple[str, ...]], None],
    ) -> None:
        # Set once.
        self.id = table_id
        self._find = find
        self._bring_together = bring_together
        self._settings = settings

    @property
    def info(self) -> TableInfo:
        """The table in the catalog; `UnknownTable` if it is gone."""
        return self._find(self.id)

    @property
    def name(self) -> str:
        """The name that the table has now."""
        return self.info.name

    @property
    def schema(self) -> TableSchema:
        """The schema in force."""
        return self.info.metadata.schema

    @property
    def codec(self) -> KeyCodec:
        """How keys become rows."""
        return KeyCodec(self.schema.key, self._settings.key_bytes_max)

    def _elsewhere(self, *_: Any, **__: Any) -> NoReturn:
        away = [tablet for tablet in self.info.metadata.tablets if tablet.leader is None]
        if away and all(tablet.state == UNLOADED for tablet in away):
            raise unloaded(self.name)
        raise Unavailable(f"a part of {self.name!r} is changing hands: look again where it is, and retry")

    get = read_rows = write = _elsewhere

    def get_encoded(self, row: bytes) -> NoReturn:
        """Nobody leads the tablet of the row: say why."""
        self._not_here(KeyRange(row, successor(row)))

    def read_row(self, request: ReadRow) -> NoReturn:
        """Nobody leads the tablet of the row: say why."""
        self.get_encoded(request.row)

    def modify(self, request: Modify) -> NoReturn:
        """Nobody leads the tablet of the row: say why."""
        self.get_encoded(request.row)

    def scan(self, request: ScanRows) -> NoReturn:
        """Nobody leads a tablet of the range: say why."""
        self._not_here(request.key_range)

    def _not_here(self, rows: KeyRange) -> NoReturn:
        if any(tablet.state == UNLOADED for tablet in self.info.metadata.overlapping(rows)):
            raise unloaded(self.name)
        self._elsewhere()

    def carry_out(self, request: TableRequest[Reply], progress: Progress | None = None) -> Reply:
        """The servers of a table carry out what concerns it; what nobody serves is described from METADATA."""
        if isinstance(request, BringTogether):
            self._bring_together(self.info, request.tablets)
            return None  # type: ignore[return-value]
        if not isinstance(request, DescribeTablets):
            self._elsewhere()
        return describe_stored(self.info.metadata, self.codec)  # type: ignore[return-value]


class CatalogService:
    """The tables of a cluster, as its leading master knows them. Safe to use from several threads."""

    def __init__(
        self,
        leading: Callable[[], Term],
        settings: Settings,
        views: SystemViews,
        garbage: ClusterGarbage,
        verify: Callable[[], VerifyReport],
        snapshots: ClusterSnapshots,
        jobs: ClusterJobs,
        whole: ClusterTables,
    ) -> None:
        """`leading` returns the term of this master; it raises, and says who leads, if this master does not."""
        # Set once.
        self._leading = leading
        self._settings = settings
        self._views = views
        self._is_closed = False
        self._handlers: dict[type, Callable[[Term, Any], object]] = {
            CreateTable: self._create,
            DropTable: self._drop,
            UndeleteTable: self._undelete,
            AlterTable: self._alter,
            RenameTable: lambda term, request: term.run(term.master.rename_table(request.name, request.new_name)),
            ListDropped: lambda term, request: self._dropped(term),
            DescribeStore: lambda term, request: describe_cluster(term),
            DescribeTables: lambda term, request: describe_cluster(term)["tables"],
            CollectGarbage: lambda term, request: garbage.collect(term, dry_run=request.dry_run),
            Verify: lambda term, request: verify(),
            MoveTablet: self._move,
            SetReplicas: self._set_replicas,
            RecoverTablet: lambda term, request: term.run(
                term.master.recover_tablet(request.tablet, request.server, accept_loss=request.accept_loss)
            ),
            HoldByName: lambda term, request: snapshots.hold(request),
            ReleaseName: lambda term, request: snapshots.release(request.name),
            ListHeld: lambda term, request: snapshots.by_name(),
            **jobs.handlers(),
            **whole.handlers(),
        }

    @property
    def is_writable(self) -> bool:
        """Whether it takes writes."""
        return True

    @property
    def settings(self) -> Settings:
        """The settings that requests are held to."""
        return self._settings

    def closed(self) -> Closed:
        """Return the error for whoever comes when it is closed."""
        return Closed("this master was closed: ask another")

    def check_open(self) -> None:
        """Raise `Closed` if it was closed."""
        if self._is_closed:
            raise self.closed()

    def close(self) -> None:
        """Answer nothing any more."""
        self._is_closed = True
        self._views.close()

    # --- tables ---

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted."""
        return [info.name for info in self._leading().master.catalog.named()]

    def table(self, name: str, at: int | None = None) -> TableService:
        """Return a table by its name; it had the name at the txn `at`, or is not found."""
        if name in SYSTEM_TABLES:
            return self._views.table(name, self._leading().master)
        info = self._leading().master.catalog.table(name)
        if at is not None and info.stored is not None and at < info.stored.config.named_txn:
            raise UnknownTable(f"there was no table {name!r} yet at txn {at}")
        return CatalogTable(info.id, self._info, self._settings, self._bring_together)

    def table_by_id(self, table_id: str) -> CatalogTable:
        """Return a table by its id."""
        self._info(table_id)
        return CatalogTable(table_id, self._info, self._settings, self._bring_together)

    def _info(self, table_id: str) -> TableInfo:
        info = self._leading().master.catalog.tables.get(table_id)
        if info is None or not info.is_visible:
            raise UnknownTable(f"there is no table of id {table_id} any more")
        return info

    def locate(self, table: Any) -> list[TabletLocation]:
        """Return where the tablets of a table are. One that nobody serves now is said to be here: `CatalogTable`."""
        if not isinstance(table, CatalogTable):
            return [TabletLocation(table.id, b"")]  # a system table: it is here
        master = self._leading().master
        found = []
        for tablet in table.info.metadata.tablets:
            server = None if tablet.leader is None or not tablet.is_served else master.servers.get(tablet.leader)
            address = "" if server is None else server.registration.address
            is_offline = tablet.state == UNLOADED
            found.append(TabletLocation(tablet.id, tablet.first, tablet.epoch, address, is_offline))
        return found

    def add_listener(self, listener: TabletListener, tablet: str | None) -> None:
        """Tablets are with their servers: nothing happens to them here."""

    def remove_listener(self, listener: TabletListener, tablet: str | None) -> None:
        """Tablets are with their servers: nothing happens to them here."""

    # --- the cluster as a whole ---

    def carry_out(self, request: StoreRequest[Reply], progress: Progress | None = None) -> Reply:
        """Do something with tables as a whole."""
        handler = self._handlers.get(type(request))
        if handler is None:
            raise RequestError(f"a cluster does not carry out {type(request).__name__} yet: see docs/howto/cluster.md")
        reply: Any = handler(self._leading(), request)
        if reply is None or isinstance(reply, TableInfo):
            return None  # type: ignore[return-value]
        return reply  # type: ignore[no-any-return]

    def _create(self, term: Term, request: CreateTable) -> None:
        master = term.master
        created = master.create_table(
            request.name, request.schema, request.splits, is_fixed=request.is_fixed, replicas=request.replicas
        )
        wait_until_served(term, term.run(created))

    def _set_replicas(self, term: Term, request: SetReplicas) -> None:
        """Have other replicas, and return when they are there and in sync; `TimedOut` if they may be yet."""
        info = term.run(term.master.set_replicas(request.name, request.replicas))

        def are_there() -> bool:
            return all(len(one.in_sync) == one.wanted and not one.leaving for one in info.metadata.tablets)

        if not term.wait_for(are_there, SERVED_SECONDS):
            few = [one for one in info.metadata.tablets if len(one.in_sync) < one.wanted]
            raise TimedOut(
                f"{len(few)} tablets of {info.name!r} do not have {request.replicas} replicas in sync yet after "
                f"{SERVED_SECONDS:.0f} s, and go on towards them: see `ebla status`"
            )

    def _alter(self, term: Term, request: AlterTable) -> None:
        """Change a schema; when this returns the leaders of all tablets use it, unless that takes too long."""
        tablets = term.master.catalog.table(request.name).metadata.tablets
        if any(tablet.state == UNLOADED for tablet in tablets):
            raise unloaded(request.name)
        info = term.run(term.master.alter_table(request.name, request.alteration))
        version, servers = info.metadata.schema.version, term.master.servers

        def is_in_force() -> bool:
            states = [
                None if tablet.leader is None else servers.reported(tablet.leader, tablet.id)
                for tablet in info.metadata.tablets
            ]
            return all(state is not None and state.schema_version >= version for state in states)

        term.wait_for(is_in_force, SERVED_SECONDS)

    def _move(self, term: Term, request: MoveTablet) -> None:
        """Have a server lead a tablet; `TimedOut` if it does not take it over in time, though it may yet."""
        self._moved(term, request.table, request.tablet, request.server)

    def _bring_together(self, info: TableInfo, tablets: tuple[str, ...]) -> None:
        """Have the server of the first of some tablets lead all of them. The balancer may part them again, later."""
        term = self._leading()
        found = [tablet for tablet in info.metadata.tablets if tablet.id in tablets]
        if any(tablet.is_replicated for tablet in found):
            raise CannotJoin(f"{info.name!r} has several replicas: tablets that have cannot be joined")
        server = next((tablet.leader for tablet in found if tablet.leader is not None), None)
        if len(found) != len(tablets) or server is None:
            raise Unavailable(f"a tablet of {info.name!r} is changing hands, or gone: look again, and retry")
        for tablet in found:
            if tablet.leader != server:
                self._moved(term, info.name, tablet.id, server)

    def _moved(self, term: Term, table: str, tablet_id: str, wanted: str) -> None:
        info, server = term.run(term.master.move_tablet(table, tablet_id, wanted))
        servers = term.master.servers

        def is_there() -> bool:
            moved = [one for one in info.metadata.tablets if one.id.startswith(tablet_id)]
            return all(
                one.leader == server and one.is_served and servers.runs(server, one.id, one.epoch) for one in moved
            )

        if not term.wait_for(is_there, SERVED_SECONDS):
            raise TimedOut(f"server {server} did not take the tablet over in {SERVED_SECONDS:.0f} s: see `ebla status`")

    def _undelete(self, term: Term, request: UndeleteTable) -> None:
        info = term.master.catalog.deleted.get(request.table_id)
        if info is None:
            raise UnknownTable(f"there is no dropped table of id {request.table_id}: it never was, or it was purged")
        wait_until_served(term, term.run(term.master.undelete_table(info.name, request.name)))

    def _drop(self, term: Term, request: DropTable) -> None:
        info = term.run(term.master.delete_table(request.name))
        if request.purge:
            term.run(term.master.expire_table(info.id))

    def _dropped(self, term: Term) -> list[DroppedTable]:
        found = []
        for info in term.master.catalog.deleted.values():
            assert info.stored is not None
            if info.stored.config.is_expired:
                continue
            dropped = datetime.fromtimestamp(info.stored.config.deleted_microseconds / 1e6, UTC)
            until = dropped + timedelta(seconds=term.master.settings.retention_seconds)
            found.append(DroppedTable(info.name, info.id, dropped, until))
        return found


def describe_stored(metadata: TableMetadata, codec: KeyCodec) -> list[dict[str, Any]]:
    """Describe tablets by what METADATA says of their files: for those that are offline, or that nobody leads now."""
    described = []
    for tablet in metadata.tablets:
        refs = {ref.file: ref for state in tablet.groups for ref in state.fragments}
        described.append(
            {
                "id": tablet.id,
                "first": None if tablet.first == b"" else codec.shown_bound(tablet.first),
                "last": None if tablet.last is None else codec.shown_bound(tablet.last),
                "state": tablet.state,
                "life": "unknown",
                "fragments": len(refs),
                "rows": max((sum(ref.rows for ref in state.current) for state in tablet.groups), default=0),
                "is_exact": False,
                "bytes": sum(ref.bytes for ref in refs.values()),
            }
        )
    return described
