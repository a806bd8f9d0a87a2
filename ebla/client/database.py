"""A database as a user holds it: opened from a directory, with tables in it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

import ebla
from ebla.arguments import checked_flag, checked_replicas, plain_text
from ebla.client.declaring import declared_schema, difference
from ebla.client.dropped import chosen
from ebla.client.moments import AsOf
from ebla.client.snapshot import Snapshot
from ebla.client.staying import StaysHere
from ebla.client.table import Table
from ebla.errors import ReadOnly, RequestError, TableExists, UnknownTable, shown
from ebla.extras import needing
from ebla.model.column_types import TypeLike
from ebla.model.declaration import Group, check_table_name
from ebla.model.keys import KeyCodec
from ebla.model.schema import TableSchema
from ebla.model.schema_change import Alteration
from ebla.model.where import Where
from ebla.service.listener import TabletListener
from ebla.service.metrics import metrics_text
from ebla.service.reports import DroppedTable, GarbageReport, VerifyReport
from ebla.service.requests import (
    AlterTable,
    CloneTable,
    CollectGarbage,
    CreateTable,
    DescribeStore,
    DescribeTables,
    DropTable,
    HoldByName,
    HoldNewest,
    LetGo,
    ListDropped,
    ListHeld,
    LoadTable,
    MoveTablet,
    ReadCounters,
    RecoverTablet,
    ReleaseName,
    RenameTable,
    Repair,
    SetReplicas,
    Sync,
    UndeleteTable,
    UnloadTable,
    Verify,
)
from ebla.service.service import SYSTEM_TABLES, Service

TABLETS_MAX = 10_000


class Sharing(Protocol):
    """Several handles of one store: it is closed with the last of them."""

    def leave(self, handle: Database) -> None:
        """Close one handle."""


class Database(StaysHere):
    """An open store. Close it, or use it as a context manager. Safe to use from several threads."""

    def __init__(self, path: Path, service: Service, sharing: Sharing | None = None) -> None:
        # Set once.
        self.path = path
        self._service = service
        self._sharing = sharing  # with other handles of this process
        self._closed = False  # this handle; others of the same store may go on

    def __repr__(self) -> str:
        return f"<ebla.Database {str(self.path)!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def read_only(self) -> bool:
        """Whether the store was opened for reading only."""
        return not self._service.is_writable

    def close(self) -> None:
        """Make everything durable and let the store go, unless it was opened more than once. Closing twice is fine."""
        if self._closed:
            return
        if self._sharing is not None:
            self._sharing.leave(self)
            return
        self._closed = True
        self._service.close()

    # --- tables ---

    def create_table(
        self,
        name: str,
        schema: object,
        splits: Sequence[Any] | None = None,
        *,
        key: Sequence[str] | None = None,
        fixed: bool = False,
        if_not_exists: bool = False,
        replicas: int | None = None,
    ) -> Table:
        """Make a table, cut into tablets at the keys `splits` (or prefixes of keys), and return it.

        `schema` is an `ebla.Schema`; or, with the names of the `key` columns, an Arrow schema, or an Arrow table, a
        pandas or a polars frame, of which the columns are taken and not the rows: ``create_table(...).put(frame)`` puts
        those, too. The tablets of a `fixed` table stay as they are: they are never split or joined. `TableExists` if
        the name is taken; with `if_not_exists`, that table is returned instead, if its schema is the same.

        On a cluster `replicas` servers keep what is written to a tablet until it is in files, 1 unless it is said: with
        3, nothing that was acknowledged is lost with any one server and its disk, and the others go on by themselves.
        """
        self._check_writable()
        name, fixed = check_table_name(name), checked_flag("fixed", fixed)
        if_not_exists = checked_flag("if_not_exists", if_not_exists)
        wanted = checked_replicas(replicas)
        numbered = declared_schema(schema, key).number()
        codec = KeyCodec(numbered.key, self._service.settings.key_bytes_max)
        if isinstance(splits, (str, bytes)) or not isinstance(splits, (Sequence, type(None))):
            raise RequestError(f"splits is a list of keys or prefixes of keys, not {shown(splits)}")
        rows = [codec.bound(split) for split in splits or ()]
        if len(rows) >= TABLETS_MAX:
            raise RequestError(f"a table has at most {TABLETS_MAX} tablets at the start, not {len(rows) + 1}")
        for before, after in itertools.pairwise(rows):
            if before >= after:
                raise RequestError("splits must be keys in ascending order, each once")
        if rows and rows[0] == b"":
            raise RequestError("a split cannot be empty: it would cut off nothing")
        if if_not_exists:
            with contextlib.suppress(UnknownTable):
                return self._existing(name, numbered)
        try:
            self._service.carry_out(CreateTable(name, numbered, tuple(rows), fixed, wanted))
        except TableExists:
            if not if_not_exists:
                raise
            return self._existing(name, numbered)  # another thread was faster
        return self.table(name)

    def _existing(self, name: str, wanted: TableSchema) -> Table:
        found = self.table(name)
        told = difference(found.schema, wanted)
        if told is not None:
            raise TableExists(
                f"there is a table {name!r} already, and {told}: take it as it is with db.table, change it with "
                "db.alter_table, or choose another name"
            )
        return found

    def table(self, name: str) -> Table:
        """Return the table of that name; `UnknownTable` if there is none, `TableDamaged` if it cannot be loaded.

        ``META``, ``sys.tables``, ``sys.tablets`` and ``sys.servers`` show what the store knows of itself now.
        """
        self._check_open()
        return Table(self._service.table(name))

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted; also of those that are damaged, as ``stats()["damaged"]`` tells."""
        self._check_open()
        return list(self._service.tables())

    def drop_table(self, name: str, *, purge: bool = False) -> None:
        """Drop a table. The name is free at once.

        If `drop_retention_seconds` of the settings is greater than 0, the table stays for that long: handles of
        it read and write on, and `undelete_table` brings it back. With `purge`, it is gone at once.
        """
        self._check_writable()
        self._service.carry_out(DropTable(plain_text(name), checked_flag("purge", purge)))

    def dropped_tables(self) -> list[DroppedTable]:
        """Return the tables that were dropped and can be brought back, the last one first."""
        self._check_open()
        return self._service.carry_out(ListDropped())

    def undelete_table(self, name: str, *, id: str | None = None, new_name: str | None = None) -> Table:
        """Bring back a table that was dropped, with everything that was written to it before and since; return it.

        `id` says which, if several of that name were dropped; `new_name` what to call it, if the old name is taken.
        `UnknownTable` if it is not there (any more), `TableExists` if the name is taken.
        """
        self._check_writable()
        wanted = check_table_name(name if new_name is None else new_name)
        table_id = chosen(self.dropped_tables(), name, id)
        self._service.carry_out(UndeleteTable(table_id, wanted))
        return self.table(wanted)

    def rename_table(self, name: str, new_name: str) -> Table:
        """Give a table another name, and return it; `TableExists` if that is taken. The old one is free at once.

        Reads and writes go on, also through `Table` objects that were made before; other processes see the name when
        they open the store the next time.
        """
        self._check_writable()
        wanted = check_table_name(new_name)
        self._service.carry_out(RenameTable(plain_text(name), wanted))
        return self.table(wanted)

    def clone_table(self, origin: str, name: str) -> Table:
        """Make a table called `name` of everything that is committed in `origin`, and return it.

        Nothing is copied: both name the same files, and from then on change, age and go independently of each other.
        So it takes the same time whatever the size. The clone has the origin's history as well: `as_of` reaches back
        before the clone.
        """
        self._check_writable()
        name = check_table_name(name)
        self._service.carry_out(CloneTable(origin, name))
        return self.table(name)

    def alter_table(
        self,
        name: str,
        *,
        add_columns: Mapping[str, TypeLike | Mapping[str, TypeLike]] | None = None,
        drop_columns: Sequence[str] = (),
        add_families: Mapping[str, Sequence[str]] | Sequence[str] = (),
        drop_families: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        move: Mapping[str, str] | None = None,
        change_types: Mapping[str, TypeLike] | None = None,
        groups: Sequence[Group] = (),
        change_groups: Mapping[str, Mapping[str, Any]] | None = None,
        drop_groups: Sequence[str] = (),
        replicas: int | None = None,
    ) -> Table:
        """Change the schema of a table, while reads and writes go on, and return the table.

        Columns are added as ``{column: type}``, or ``{group: {column: type}}`` where there are several groups of them;
        families as a list, or ``{group: [family]}``. `move` is ``{column or family: group}``, `groups` are new groups,
        `change_groups` is like ``{"profile": {"compression": "zstd", "max_versions": 3}}``. `change_types` takes types
        that hold every value of the old ones. Steps are done in this order, by the names that the one before left:
        drop, rename, new groups, add, move, types, settings, drop groups.

        All of it happens, or none. Data that was written before reads right after it: it moves by reference, and is
        rewritten when it is compacted. What was dropped is gone for good, also if the name is used again. Scans under
        way go on in the schema they began with. Raises `SchemaError` or `UnknownColumn` if it cannot be.

        `replicas` is how many servers of a cluster keep each tablet, as for `create_table`. More of them learn first,
        while reads and writes go on; `ebla status` tells how far they are. It may stand beside a change of the schema,
        which is made first.
        """
        self._check_writable()
        wanted = checked_replicas(replicas)
        request = Alteration(
            add_columns={} if add_columns is None else add_columns,
            drop_columns=drop_columns,
            add_families=add_families,
            drop_families=drop_families,
            rename={} if rename is None else rename,
            move={} if move is None else move,
            change_types={} if change_types is None else change_types,
            groups=groups,
            change_groups={} if change_groups is None else change_groups,
            drop_groups=drop_groups,
        )
        if wanted is None or not request.is_empty:
            self._service.carry_out(AlterTable(plain_text(name), request))
        if wanted is not None:
            self._service.carry_out(SetReplicas(plain_text(name), wanted))
        return self.table(name)

    def unload_table(self, name: str, *, tablet: str | None = None) -> None:
        """Take a table offline: all of it goes to its files, and requests raise `TableUnloaded` until `load_table`.

        It stays offline when the store is opened again. Of a cluster one `tablet` can be taken offline alone, by its
        id, as `Table.tablets` tells it, or the beginning of that.
        """
        self._check_writable()
        self._service.carry_out(UnloadTable(plain_text(name), _tablet_id(tablet)))

    def load_table(self, name: str, *, tablet: str | None = None) -> None:
        """Bring a table back that was taken offline, of a cluster perhaps one `tablet`. Requests wait meanwhile.

        A table that is not offline is loaded wholly, tablet by tablet, instead of when it is read.
        """
        self._check_open()
        self._service.carry_out(LoadTable(plain_text(name), _tablet_id(tablet)))

    def move_tablet(self, table: str, tablet: str, server: str) -> None:
        """Have another server of a cluster lead a tablet, and return when it does; reads and writes go on.

        A tablet is named by its id, as `Table.tablets` tells it, a server by its uuid or its address, as
        ``ebla status`` does; the beginning of an id is enough. The balancer goes on, and evens out what servers lead.
        """
        self._check_writable()
        for given in (tablet, server):
            if not isinstance(given, str):
                raise RequestError(f"tablets and servers are named by text, not {shown(given)}")
        self._service.carry_out(MoveTablet(plain_text(table), tablet, server))

    def recover_tablet(self, tablet: str, *, accept_loss: bool = False, server: str | None = None) -> str:
        """Go on with what is left of a tablet of a cluster whose in-sync replicas are gone; return what was done.

        What only those replicas had is lost. Without `accept_loss` it is refused, with what would be lost. The tablet
        is named by its id, or how it begins. Of the replicas that are left the one that has most is taken, or that of
        `server`.
        """
        self._check_writable()
        for given in (tablet, server):
            if given is not None and not isinstance(given, str):
                raise RequestError(f"tablets and servers are named by text, not {shown(given)}")
        return self._service.carry_out(RecoverTablet(tablet, checked_flag("accept_loss", accept_loss), server))

    # --- events ---

    def add_listener(self, listener: TabletListener, tablet: str | None = None) -> None:
        """Tell `listener` what happens to one tablet, by its id as `tablets()` shows it, or to all.

        Its methods are called after the change, one event after the other, with no lock held: they may read and write.
        Who is added or removed by one of them begins or ceases to hear after that event. What one of them raises is
        logged, and nothing else.
        """
        self._check_open()
        self._service.add_listener(listener, plain_text(tablet))

    def remove_listener(self, listener: TabletListener, tablet: str | None = None) -> None:
        """Undo one `add_listener` with the same arguments."""
        self._check_open()
        self._service.remove_listener(listener, plain_text(tablet))

    # --- Spark ---

    def spark(
        self,
        name: str,
        *,
        columns: Sequence[str] | None = None,
        start: object = None,
        stop: object = None,
        prefix: object = None,
        as_of: AsOf | None = None,
        where: Where | None = None,
        spark: Any = None,
    ) -> Any:
        """Return a table as a Spark DataFrame: the rows that ``table(name).scan`` with the same arguments gives.

        It is one snapshot, chosen now, however often and however late it is evaluated. `spark` is the SparkSession to
        use; by default the running one, or a new one on this machine. Needs the extra ``ebla[spark]``.
        """
        self.table(name)  # one that is not there is told before Spark starts
        if name in SYSTEM_TABLES:
            raise RequestError(f"{name!r} is a system table, which has no files: scan db.table({name!r})")
        with needing("pyspark", "db.spark"):
            from ebla.pipeline.scanning.scan import scan  # Spark is for those who use it

        return scan(
            self, name, columns=columns, start=start, stop=stop, prefix=prefix, as_of=as_of, where=where, spark=spark
        )

    # --- time ---

    def sync(self, txn: int | None = None) -> int:
        """Wait until everything up to `txn` (default: everything so far) is safe from any crash; return that txn.

        `RequestError` if no write has returned that `txn` yet.
        """
        self._check_open()
        is_number = isinstance(txn, (int, np.integer)) and not isinstance(txn, bool)
        if txn is not None and not (is_number and 0 <= txn < 1 << 63):
            raise RequestError(f"txn is the number that a write returned, not {shown(txn)}")
        return self._service.carry_out(Sync(None if txn is None else int(txn)))

    def snapshot(self, name: str | None = None) -> Snapshot:
        """Return the whole database as it is now, and keep what that shows for as long as it is held.

        With a name it is kept until it is released, also after this process has ended; the same name then gives
        the same snapshot again. A store that is open read-only keeps nothing: it reads snapshots that have a name.
        """
        self._check_open()
        name = plain_text(name)
        service = self._service
        if name is None:
            txn = service.carry_out(HoldNewest())
            return Snapshot(txn, self._table_at, lambda: service.carry_out(LetGo(txn)))
        txn = service.carry_out(HoldByName(name))
        return Snapshot(txn, self._table_at, lambda: service.carry_out(ReleaseName(name)), name)

    def snapshots(self) -> dict[str, int]:
        """Return the snapshots that are held by name, with their txns."""
        self._check_open()
        return self._service.carry_out(ListHeld())

    def _table_at(self, name: str, txn: int) -> Table:
        return Table(self._service.table(name, txn), txn)

    def gc(self, *, dry_run: bool = True) -> GarbageReport:
        """Look for files that no table names any more; without `dry_run`, remove what has been so for long enough.

        This happens by itself from time to time. A file goes when two rounds, `garbage_age_seconds` apart, have found
        it unused.
        """
        self._check_writable()
        return self._service.carry_out(CollectGarbage(checked_flag("dry_run", dry_run)))

    def verify(self) -> VerifyReport:
        """Compare METADATA with itself and with every file that it names; `repair` mends what can be."""
        self._check_open()
        return self._service.carry_out(Verify())

    def repair(self, *, dry_run: bool = True) -> VerifyReport:
        """Mend METADATA as far as nothing is lost by it, in one transaction for each table; others go on meanwhile.

        With `dry_run`, only say so: the findings of `verify` tell what would be done. A table that was refused, or took
        no writes, is served again when the store is opened again; `ebla.repair` does the same for a closed store.
        """
        if checked_flag("dry_run", dry_run):
            return self.verify()
        self._check_writable()
        return self._service.carry_out(Repair())

    def stats(self) -> dict[str, Any]:
        """Return sizes and counters of the store and of every table."""
        self._check_open()
        return self._service.carry_out(DescribeStore())

    def metrics(self) -> str:
        """Return sizes and counters in the text format of Prometheus.

        Counters begin when the store is opened; a store that is open read-only gives those of the process that has it
        open for writing, a few seconds old, or none. A web server says ``text/plain; version=0.0.4`` of the text.
        """
        self._check_open()
        tables = self._service.carry_out(DescribeTables())
        counters = self._service.carry_out(ReadCounters())
        return metrics_text(counters, tables, {"version": ebla.__version__, "path": str(self.path)})

    def _check_open(self) -> None:
        if self._closed:
            raise self._service.closed()
        self._service.check_open()

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ReadOnly("the store was opened read-only: open it without read_only to write")


def service_of(database: Database) -> Service:
    """Return who serves a database: for jobs, which ask for more than users do."""
    database._check_open()
    return database._service


def _tablet_id(tablet: str | None) -> str | None:
    if tablet is not None and not isinstance(tablet, str):
        raise RequestError(f"a tablet is named by its id, as text, not {shown(tablet)}")
    return tablet
