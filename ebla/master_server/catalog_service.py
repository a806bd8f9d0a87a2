"""What a master tells clients: which tables there are and where their rows are; and what it does to tables as a whole.

    tables, table, locate     from the catalog, in memory
    CreateTable, ...          operations of the term; a table that was made is there when its tablets are served

Rows are not here: whoever asks a master for some, because a tablet is changing hands, is told to ask again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from ebla.errors import Closed, RequestError, Unavailable, UnknownTable
from ebla.master.table_info import TableInfo
from ebla.master_server.cluster_report import describe_cluster
from ebla.master_server.system_views import SystemViews
from ebla.master_server.term import Term
from ebla.model.keys import KeyCodec
from ebla.model.schema import TableSchema
from ebla.rpc.wire.messages import TabletLocation
from ebla.service.listener import TabletListener
from ebla.service.reports import DroppedTable
from ebla.service.requests import (
    AlterTable,
    CreateTable,
    DescribeStore,
    DescribeTables,
    DropTable,
    ListDropped,
    RenameTable,
    Reply,
    StoreRequest,
    TableRequest,
    UndeleteTable,
)
from ebla.service.service import SYSTEM_TABLES, Progress, TableService
from ebla.settings import Settings

__all__ = ["CatalogService", "CatalogTable"]

# So long a new table is waited for until all of its tablets are served. It is there in any case.
SERVED_SECONDS = 20.0


class CatalogTable:
    """One table, as the catalog has it at the moment of a question: a term may end between two of them."""

    def __init__(self, table_id: str, find: Callable[[str], TableInfo], settings: Settings) -> None:
        # Set once.
        self.id = table_id
        self._find = find
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
        raise Unavailable(f"a part of {self.name!r} is changing hands: look again where it is, and retry")

    get = get_encoded = read_row = read_rows = scan = write = modify = _elsewhere

    def carry_out(self, request: TableRequest[Reply], progress: Progress | None = None) -> Reply:
        """The servers of a table carry out what concerns it."""
        self._elsewhere()


class CatalogService:
    """The tables of a cluster, as its leading master knows them. Safe to use from several threads."""

    def __init__(self, leading: Callable[[], Term], settings: Settings, views: SystemViews) -> None:
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
        return CatalogTable(info.id, self._info, self._settings)

    def table_by_id(self, table_id: str) -> CatalogTable:
        """Return a table by its id."""
        self._info(table_id)
        return CatalogTable(table_id, self._info, self._settings)

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
            found.append(TabletLocation(tablet.id, tablet.first, tablet.epoch, address))
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
        info = term.run(master.create_table(request.name, request.schema, request.splits, is_fixed=request.is_fixed))
        self._wait_until_served(term, info)

    def _alter(self, term: Term, request: AlterTable) -> None:
        """Change a schema; when this returns the leaders of all tablets use it, unless that takes too long."""
        info = term.run(term.master.alter_table(request.name, request.alteration))
        version, servers = info.metadata.schema.version, term.master.servers

        def is_in_force() -> bool:
            states = [
                None if tablet.leader is None else servers.reported(tablet.leader, tablet.id)
                for tablet in info.metadata.tablets
            ]
            return all(state is not None and state.schema_version >= version for state in states)

        term.wait_for(is_in_force, SERVED_SECONDS)

    def _undelete(self, term: Term, request: UndeleteTable) -> None:
        info = term.master.catalog.deleted.get(request.table_id)
        if info is None:
            raise UnknownTable(f"there is no dropped table of id {request.table_id}: it never was, or it was purged")
        self._wait_until_served(term, term.run(term.master.undelete_table(info.name, request.name)))

    def _drop(self, term: Term, request: DropTable) -> None:
        if request.purge:
            raise RequestError("a cluster keeps dropped tables for a while: drop it without purge")
        term.run(term.master.delete_table(request.name))

    def _dropped(self, term: Term) -> list[DroppedTable]:
        found = []
        for info in term.master.catalog.deleted.values():
            assert info.stored is not None
            dropped = datetime.fromtimestamp(info.stored.config.deleted_microseconds / 1e6, UTC)
            until = dropped + timedelta(seconds=term.master.settings.retention_seconds)
            found.append(DroppedTable(info.name, info.id, dropped, until))
        return found

    def _wait_until_served(self, term: Term, info: TableInfo) -> None:
        """Return when the leaders of all tablets have said that they serve them, or it takes too long."""
        servers = term.master.servers

        def is_served() -> bool:
            return all(
                tablet.is_served and tablet.leader is not None and servers.runs(tablet.leader, tablet.id, tablet.epoch)
                for tablet in info.metadata.tablets
            )

        term.wait_for(is_served, SERVED_SECONDS)
