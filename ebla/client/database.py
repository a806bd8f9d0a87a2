"""A database as a user holds it: opened from a directory, with tables in it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import ebla
from ebla.arguments import checked_flag, checked_names, checked_path, plain_text
from ebla.client.declaring import declared_schema, difference
from ebla.client.dropped import DroppedTable, chosen, dropped_tables
from ebla.client.embedded.coordination_place import COORDINATION_FILE, chosen_address, open_elsewhere
from ebla.client.embedded.ownership import Ownership
from ebla.client.embedded.owning import LOCK_FILE
from ebla.client.embedded.publishing import Publisher, counters_of_owner
from ebla.client.listening import Listening
from ebla.client.metrics import metrics_text
from ebla.client.moments import AsOf
from ebla.client.snapshot import Snapshot
from ebla.client.staying import StaysHere
from ebla.client.system_tables import is_system_table, system_table
from ebla.client.table import Table
from ebla.clock import Clock, SystemClock
from ebla.coordination.service import CoordinationService
from ebla.coordination.sqlite import SqliteCoordination
from ebla.errors import ReadOnly, RequestError, StoreError, TableExists, TooManyFiles, UnknownTable, shown
from ebla.extras import needing
from ebla.metadata.values.table_metadata import initial_metadata
from ebla.model.keys import KeyCodec
from ebla.model.schema import Group, TableSchema, TypeLike, check_table_name
from ebla.model.schema_change import Alteration
from ebla.model.where import Where
from ebla.settings import Settings
from ebla.storage.files.files import FileLock, Files, LocalFiles
from ebla.tablet.check.verify import Verifier, VerifyReport
from ebla.tablet.engine import TabletStore
from ebla.tablet.jobs.bulk import BulkCommit, BulkResult
from ebla.tablet.jobs.bulk_mail import Mailbox
from ebla.tablet.jobs.orders import Answer, Order
from ebla.tablet.recovery.found_tables import UNLINKED
from ebla.tablet.recovery.opening import open_store
from ebla.tablet.tables.events import TabletListener
from ebla.tablet.upkeep.garbage import GarbageReport
from ebla.tablet.upkeep.job_intents import JobIntent, begin_job, end_job
from ebla.timing import now_seconds

if TYPE_CHECKING:
    from ebla.client.embedded.opened import Shared

TABLETS_MAX = 10_000
# The files of a bulk job are left alone for so long if its process dies.
JOB_EXPIRES_SECONDS = 86_400.0

_log = logging.getLogger(__name__)


def open_alone(
    path: str | os.PathLike[str] = "data",
    *,
    read_only: bool = False,
    create: bool = True,
    settings: Settings | None = None,
    coordination: str | None = None,
    metadata: Sequence[str | os.PathLike[str]] | None = None,
) -> Database:
    """Open a store that nobody has open for writing, here or elsewhere: what `ebla.open` does for the first who asks.

    `StoreLocked` tells who has it. Jobs that are given a path do this, too, or ask the owner if there is one.
    """
    began = now_seconds()
    root = checked_root(path)
    read_only, create = checked_flag("read_only", read_only), checked_flag("create", create)
    settings = Settings() if settings is None else settings
    if not isinstance(settings, Settings):
        raise RequestError(f"settings is an ebla.Settings, not {type(settings).__name__}")
    places = _checked_places(metadata)
    address = chosen_address(root, coordination, may_create=create and not read_only)
    files = LocalFiles(root)
    clock = SystemClock()
    lock = None
    if not read_only:
        try:
            root.mkdir(parents=True, exist_ok=True)
            lock = files.lock(LOCK_FILE)
        except TooManyFiles:
            raise
        except OSError as error:
            raise StoreError(
                f"the store at {root} cannot be opened for writing: {error.strerror}: choose another place, mend the "
                "cause, or open it read-only"
            ) from error
    with contextlib.ExitStack() as undo:
        if lock is not None:
            undo.callback(lock.release)
        service: CoordinationService
        ownership = None
        if address is None:
            service = SqliteCoordination(root / COORDINATION_FILE, clock, read_only=read_only)
            undo.callback(service.close)
        else:
            service = open_elsewhere(root, files, address, clock, read_only=read_only)
            undo.callback(service.close)
            if not read_only:
                ownership = Ownership(service, clock, root, settings.owner_lease_seconds)
                undo.callback(ownership.release)
        database = Database.wire(
            root, files, service, clock, settings, lock, ownership, read_only=read_only, metadata=places
        )
        undo.pop_all()
    if not read_only:
        try:
            database._publisher = Publisher(root, database._store, clock, ebla.__version__)
        except BaseException:  # an interrupt, for one: nobody gets the store, and it must not stay open
            database.close()
            raise
    _log.info(
        "opened %s %s: %d tables, in %.3f s",
        root,
        "for reading" if read_only else "for writing",
        len(database._store.tables()),
        now_seconds() - began,
    )
    return database


def checked_root(path: object) -> Path:
    """Return the directory that a path names; `RequestError` if it is no path of a local directory."""
    return checked_path("the directory of a store", path)


def _checked_places(metadata: object) -> list[Path] | None:
    """Return the further directories of METADATA; None if nothing was said about them."""
    if metadata is None:
        return None
    if isinstance(metadata, (str, os.PathLike)) or not isinstance(metadata, Sequence):
        raise RequestError(f"metadata is a list of directories, not {shown(metadata)}")
    return [checked_root(place) for place in metadata]


def _checked_files(keep: object) -> tuple[str, ...]:
    files = checked_names("keep", keep)
    if not all(isinstance(file, str) for file in files):
        raise RequestError(f"keep is a list of files, by their names, not {shown(keep)}")
    return files


def new_id() -> str:
    """Return an id that was never given out before: a random UUID."""
    return str(uuid.uuid4())


class Database(StaysHere):
    """An open store. Close it, or use it as a context manager. Safe to use from several threads."""

    def __init__(
        self,
        path: Path,
        store: TabletStore,
        coordination: CoordinationService,
        lock: FileLock | None,
        mailbox: Mailbox | None = None,
        clock: Clock | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        self.path = path
        self._store = store
        self._coordination = coordination
        self._lock = lock
        self._ownership = ownership
        self._mailbox = mailbox
        self._clock = clock or SystemClock()
        self._listening = Listening(store.events)
        self._publisher: Publisher | None = None
        self._shared: Shared | None = None  # with other handles of this process: see opened.py
        self._closed = False

    @classmethod
    def wire(
        cls,
        path: Path,
        files: Files,
        coordination: CoordinationService,
        clock: Clock,
        settings: Settings,
        lock: FileLock | None,
        ownership: Ownership | None = None,
        *,
        read_only: bool = False,
        metadata: Sequence[Path] | None = None,
    ) -> Database:
        """Put a database together from its parts: what `open` does, and tests with parts of their own."""
        store = open_store(
            files=files,
            coordination=coordination,
            clock=clock,
            settings=settings,
            new_id=new_id,
            read_only=read_only,
            fence=None if ownership is None else ownership.check,
            metadata_places=metadata,
        )
        if read_only:
            return cls(path, store, coordination, lock, clock=clock)
        if ownership is not None:
            ownership.on_lost(store.stop_writing)
        mailbox = Mailbox(coordination, files, clock, store.carry_out)
        try:
            mailbox.open()
        except BaseException:
            mailbox.close()
            store.close()
            raise
        return cls(path, store, coordination, lock, mailbox, clock, ownership)

    def __repr__(self) -> str:
        return f"<ebla.Database {str(self.path)!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def read_only(self) -> bool:
        """Whether the store was opened for reading only."""
        return not self._store.is_writable

    def close(self) -> None:
        """Make everything durable and let the store go, unless it was opened more than once. Closing twice is fine."""
        if self._closed or self._store.is_inherited:
            return
        if self._shared is not None:
            self._shared.leave(self)
            return
        self._closed = True
        self._let_go()

    def _again(self) -> Database:
        """Return another handle of the same open store, to be closed by itself."""
        handle = object.__new__(type(self))
        handle.__dict__.update(self.__dict__)
        handle._closed = False
        return handle

    def _let_go(self) -> None:
        began = now_seconds()
        try:
            if self._mailbox is not None:
                self._mailbox.close()
            self._store.close()
            if self._publisher is not None:
                self._publisher.closed()
        finally:
            if self._ownership is not None:
                self._ownership.release()
            self._coordination.close()
            if self._lock is not None:
                self._lock.release()
        _log.info("closed %s in %.3f s", self.path, now_seconds() - began)

    def _crash(self) -> None:
        """Let go of everything without writing, as a crash would. For tests."""
        self._closed = True
        if self._shared is not None:
            self._shared.forget()
        if self._mailbox is not None:
            self._mailbox.close()
        self._store.abandon()
        if self._ownership is not None:
            self._ownership.abandon()
        self._coordination.close()
        if self._lock is not None:
            self._lock.release()

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
    ) -> Table:
        """Make a table, cut into tablets at the keys `splits` (or prefixes of keys), and return it.

        `schema` is an `ebla.Schema`; or, with the names of the `key` columns, an Arrow schema, or an Arrow table, a
        pandas or a polars frame, of which the columns are taken and not the rows: ``create_table(...).put(frame)`` puts
        those, too. The tablets of a `fixed` table stay as they are: they are never split or joined. `TableExists` if
        the name is taken; with `if_not_exists`, that table is returned instead, if its schema is the same.
        """
        self._check_writable()
        name, fixed = check_table_name(name), checked_flag("fixed", fixed)
        if_not_exists = checked_flag("if_not_exists", if_not_exists)
        numbered = declared_schema(schema, key).number()
        codec = KeyCodec(numbered.key, self._store.settings.key_bytes_max)
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
        table_id = new_id()
        ids = [new_id() for _ in range(len(rows) + 1)]
        initial = initial_metadata(table_id, numbered, ids, rows, is_fixed=fixed)
        if if_not_exists:
            with contextlib.suppress(UnknownTable):
                return self._existing(name, numbered)
        try:
            return Table(self._store, self._store.create_table(name, initial))
        except TableExists:
            if not if_not_exists:
                raise
            return self._existing(name, numbered)  # another thread was faster

    def _existing(self, name: str, wanted: TableSchema) -> Table:
        found = Table(self._store, self._store.table(name))
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
        if is_system_table(name):
            return system_table(self._store, name)
        return Table(self._store, self._store.table(name))

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted; also of those that are damaged, as ``stats()["damaged"]`` tells."""
        self._check_open()
        refused = (name for name in self._store.refused.errors if UNLINKED not in name)
        return sorted([*(table.name for table in self._store.tables()), *refused])

    def drop_table(self, name: str, *, purge: bool = False) -> None:
        """Drop a table. The name is free at once.

        If `drop_retention_seconds` of the settings is greater than 0, the table stays for so long: whoever has it reads
        and writes on, and `undelete_table` brings it back. With `purge`, it is gone at once.
        """
        self._check_writable()
        self._store.drop_table(plain_text(name), purge=checked_flag("purge", purge))

    def dropped_tables(self) -> list[DroppedTable]:
        """Return the tables that were dropped and can be brought back, the last one first."""
        self._check_open()
        return dropped_tables(self._store)

    def undelete_table(self, name: str, *, id: str | None = None, new_name: str | None = None) -> Table:
        """Bring back a table that was dropped, with everything that was written to it before and since; return it.

        `id` says which, if several of that name were dropped; `new_name` what to call it, if the old name is taken.
        `UnknownTable` if it is not there (any more), `TableExists` if the name is taken.
        """
        self._check_writable()
        wanted = check_table_name(name if new_name is None else new_name)
        table_id = chosen(dropped_tables(self._store), name, id)
        return Table(self._store, self._store.undelete_table(table_id, wanted))

    def rename_table(self, name: str, new_name: str) -> Table:
        """Give a table another name, and return it; `TableExists` if that is taken. The old one is free at once.

        Reads and writes go on, also through a `Table` that somebody has; other processes see the name when they open
        the store the next time.
        """
        self._check_writable()
        return Table(self._store, self._store.rename_table(plain_text(name), check_table_name(new_name)))

    def clone_table(self, origin: str, name: str) -> Table:
        """Make a table called `name` of everything that is committed in `origin`, and return it.

        Nothing is copied: both name the same files, and from then on change, age and go independently of each other.
        So it takes the same time whatever the size. The clone has the origin's history as well: `as_of` reaches back
        before the clone.
        """
        self._check_writable()
        name = check_table_name(name)
        return Table(self._store, self._store.clone_table(self._store.table(origin), name))

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
        """
        self._check_writable()
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
        return Table(self._store, self._store.alter_table(plain_text(name), request))

    def unload_table(self, name: str) -> None:
        """Take a table offline: all of it goes to its files, and requests raise `TableUnloaded` until `load_table`.

        It stays offline when the store is opened again.
        """
        self._check_writable()
        self._store.unload_table(plain_text(name))

    def load_table(self, name: str) -> None:
        """Bring a table back that was taken offline. Requests that come meanwhile wait.

        A table that is not offline is loaded wholly, tablet by tablet, instead of when it is read.
        """
        self._check_open()
        self._store.load_table(plain_text(name))

    # --- events ---

    def add_listener(self, listener: TabletListener, tablet: str | None = None) -> None:
        """Tell `listener` what happens to one tablet, by its id as `tablets()` shows it, or to all.

        Its methods are called after the change, one event after the other, with no lock held: they may read and write.
        Who is added or removed by one of them begins or ceases to hear after that event. What one of them raises is
        logged, and nothing else.
        """
        self._check_open()
        self._listening.add(listener, plain_text(tablet))

    def remove_listener(self, listener: TabletListener, tablet: str | None = None) -> None:
        """Undo one `add_listener` with the same arguments."""
        self._check_open()
        self._listening.remove(listener, plain_text(tablet))

    # --- bulk jobs ---

    def commit_bulk(self, commit: BulkCommit) -> BulkResult:
        """Make the files that a bulk job wrote part of their table, all of them or none; a job is applied once."""
        self._check_writable()
        return self._store.commit_bulk(commit)

    def carry_out(self, order: Order) -> Answer:
        """Do what a bulk job asks of the process that has the store open; what it raises depends on the order."""
        self._check_writable()
        return self._store.carry_out(order)

    def begin_job(self, job: str, table: str, expires_seconds: float = JOB_EXPIRES_SECONDS) -> JobIntent:
        """Say that a bulk job is about to write files for a table; they are left alone until it ends or expires."""
        self._check_writable()
        table_id = self._store.table(table).id
        return begin_job(self._coordination, self._clock, job, table_id, expires_seconds)

    def end_job(self, job: str, keep: Collection[str] = ()) -> list[str]:
        """End a job whose commit has a known outcome, or never began; return the files removed.

        These are the files of the job that nobody names; those to `keep`, which the commit named, stay in any case.
        """
        self._check_writable()
        return end_job(self._coordination, self._store.metadata, self._store.files, job, _checked_files(keep))

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
        if is_system_table(name):
            raise RequestError(f"{name!r} is a system table, which has no files: scan db.table({name!r})")
        with needing("pyspark", "db.spark"):
            from ebla.pipeline.scanning.scan import scan  # Spark is for those who use it

        return scan(
            self, name, columns=columns, start=start, stop=stop, prefix=prefix, as_of=as_of, where=where, spark=spark
        )

    # --- time ---

    def sync(self, txn: int | None = None) -> int:
        """Wait until everything up to `txn` (default: everything so far) is safe from any crash; return that txn.

        `RequestError` if nobody was given that `txn` yet.
        """
        self._check_open()
        is_number = isinstance(txn, (int, np.integer)) and not isinstance(txn, bool)
        if txn is not None and not (is_number and 0 <= txn < 1 << 63):
            raise RequestError(f"txn is the number that a write returned, not {shown(txn)}")
        return self._store.sync(None if txn is None else int(txn))

    def snapshot(self, name: str | None = None) -> Snapshot:
        """Return the whole database as it is now, and keep what that shows for as long as it is held.

        With a name it is kept until somebody releases it, also after this process has ended; the same name then gives
        the same snapshot again. A store that is open read-only keeps nothing: it reads snapshots that have a name.
        """
        self._check_open()
        name = plain_text(name)
        pins = self._store.pins
        if name is None:
            txn = self._store.hold_newest()
            return Snapshot(txn, self._table_at, lambda: pins.let_go(txn))
        pin = pins.find(name)
        if pin is None:
            self._check_writable()
            txn = self._store.hold_newest()
            try:
                pin = pins.pin(name, txn)
            finally:
                pins.let_go(txn)
        return Snapshot(pin.txn, self._table_at, lambda: pins.release(pin.name), pin.name)

    def snapshots(self) -> dict[str, int]:
        """Return the snapshots that are held by name, with their txns."""
        self._check_open()
        return {pin.name: pin.txn for pin in self._store.pins.all()}

    def _table_at(self, name: str, txn: int) -> Table:
        return Table(self._store, self._store.table_at(name, txn), txn)

    def gc(self, *, dry_run: bool = True) -> GarbageReport:
        """Look for files that no table names any more; without `dry_run`, remove what has been so for long enough.

        This happens by itself from time to time. A file goes when two rounds, `garbage_age_seconds` apart, have found
        it unused.
        """
        self._check_writable()
        return self._store.garbage.collect(dry_run=checked_flag("dry_run", dry_run))

    def verify(self) -> VerifyReport:
        """Compare METADATA with itself and with every file that it names; `repair` mends what can be."""
        self._check_open()
        return self._verifier().verify()

    def repair(self, *, dry_run: bool = True) -> VerifyReport:
        """Mend METADATA as far as nothing is lost by it, in one transaction for each table; others go on meanwhile.

        With `dry_run`, only say so: the findings of `verify` tell what would be done. A table that was refused, or took
        no writes, is served again when the store is opened again; `ebla.repair` does the same for a closed store.
        """
        if checked_flag("dry_run", dry_run):
            return self.verify()
        self._check_writable()
        report = self._verifier().repair(new_id)
        if report.repaired:
            self._store.reload_metadata()
        return report

    def _verifier(self) -> Verifier:
        return Verifier(self._coordination, self._store.files, self._store.metadata.directory)

    def stats(self) -> dict[str, Any]:
        """Return sizes and counters of the store and of every table."""
        self._check_open()
        tables = {state.name: Table(self._store, state).stats() for state in self._store.tables()}
        return {**self._store.stats(), "tables": tables}

    def metrics(self) -> str:
        """Return sizes and counters in the text format of Prometheus, for whoever collects them.

        Counters begin when the store is opened; a store that is open read-only gives those of the process that has it
        open for writing, a few seconds old, or none. A web server says ``text/plain; version=0.0.4`` of the text.
        """
        self._check_open()
        tables = {state.name: Table(self._store, state).stats() for state in self._store.tables()}
        counters = counters_of_owner(self.path) if self.read_only else self._store.counters()
        return metrics_text(counters, tables, {"version": ebla.__version__, "path": str(self.path)})

    def _check_open(self) -> None:
        if self._closed or self._store.is_inherited:
            raise self._store.closed()

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ReadOnly("the store was opened read-only: open it without read_only to write")
