"""The store that a bulk job works for: a `Database` at hand, or the root of a store that may be open elsewhere.

    Place.of(db)       reads METADATA and commits through the database
    Place.of("data")   reads METADATA from disk and commits through whoever owns the store, or opens it for a moment
    Place.of(db)       of a cluster: METADATA as its servers tell it; its masters commit

A job is planned from METADATA and the root alone; the two ways differ only in who commits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ebla.arguments import checked_names, checked_path
from ebla.client.database import Database, service_of
from ebla.client.embedded.coordination_place import connect_at, is_store, no_store
from ebla.client.embedded.opening import new_id, open_alone
from ebla.clock import SystemClock
from ebla.coordination.service import CoordinationService
from ebla.direct.cluster_address import cluster_options, of_remote
from ebla.direct.clusters import connected, is_empty, metadata_now, remote_of, root_of
from ebla.direct.jobs_at import (
    JOB_EXPIRES_SECONDS,
    begin_job_at,
    begin_restore_at,
    copies_of,
    end_job_at,
    order_at,
)
from ebla.direct.opens import coordination_of, store_of
from ebla.errors import Closed, RequestError, StoreLocked, Unavailable, UnknownTable, shown
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.declaration import Schema
from ebla.service.job_files import check_job
from ebla.service.job_orders import AddColumns, BulkCommit, BulkResult, JobOrder
from ebla.service.requests import BeginJob, EndJob, Reply
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.recovery.open_metadata import open_metadata

__all__ = ["Place"]

COMMIT_SECONDS_MAX = 60.0
# Other orders may have to wait until all that is in memory is flushed.
ORDER_SECONDS_MAX = 600.0


class Place:
    """Where a bulk job reads METADATA and commits."""

    def __init__(self, root: Path, database: Database | None = None) -> None:
        self.root = str(root.absolute())
        self._database = database
        self._remote = None if database is None else remote_of(database)

    @classmethod
    def of(cls, given: Database | str | os.PathLike[str]) -> Place:
        """Return the place of an open database, or of a root; `StoreNotFound` if there is no store."""
        if isinstance(given, Database):
            remote = remote_of(given)  # raises `Closed`
            if remote is not None:
                return cls(Path(root_of(remote)), given)
            return cls(given.path, None if given.read_only else given)
        if not isinstance(given, (str, os.PathLike)):
            raise RequestError(f"give an open database or the directory of a store, not {type(given).__name__}")
        root = checked_path("the directory of a store", given)
        if not is_store(root):
            raise no_store(root)
        return cls(root)

    @classmethod
    def at(cls, root: str, cluster: Sequence[str] = ()) -> Place:
        """Return the place of a cluster, by the addresses of its masters; or of a root, if there are none."""
        return cls.of(connected(cluster) if cluster else root)

    @property
    def is_cluster(self) -> bool:
        """Whether several servers may have the tablets of a table."""
        return self._remote is not None

    @property
    def cluster(self) -> tuple[str, ...]:
        """The masters of a cluster, with a token for tasks that read and write; none of a store that can be opened."""
        return () if self._remote is None else of_remote(self._remote, reads_only=False)

    @property
    def options(self) -> dict[str, str]:
        """What tells Spark's ``format("ebla")`` that it is this place."""
        return {"root": self.root} if self._remote is None else cluster_options(self._remote)

    # --- METADATA ---

    def metadata(self, table: str) -> TableMetadata | None:
        """Return the METADATA of a table as it is now; None if there is no such table."""
        if self._remote is not None:
            try:
                table_id = self._remote.table(table).id
                return metadata_now(self._remote, table_id)
            except UnknownTable:
                return None
        with self._metadata_server() as server, contextlib.suppress(UnknownTable):
            return server.refresh(server.directory.find(table))
        return None

    def metadata_of(self, table_id: str) -> TableMetadata:
        """Return the METADATA of a table as it is now, by the id of the table; `UnknownTable` if it was dropped."""
        if self._remote is not None:
            return metadata_now(self._remote, table_id)
        with self._metadata_server() as server:
            return server.refresh(table_id)

    def tables(self) -> list[str]:
        """Return the names of all tables."""
        if self._remote is not None:
            return self._remote.tables()
        with self._metadata_server() as server:
            return sorted(entry.name for entry in server.directory.list_tables())

    def create_table(self, name: str, schema: Schema, splits: Sequence[Any]) -> TableMetadata:
        """Make a table, and return its METADATA."""
        with self._writable() as database:
            database.create_table(name, schema, splits)
        made = self.metadata(name)
        if made is None:
            raise UnknownTable(f"the table {name!r} was dropped as soon as it was made: run the job again")
        return made

    def add_columns(self, job: str, name: str, table_id: str, columns: Sequence[tuple[str, str]]) -> TableMetadata:
        """Add columns to a table, each by its name and the text of its type, and return its METADATA."""
        if self._remote is None:
            self.carry_out(AddColumns(job, table_id, tuple(columns)))
        else:
            assert self._database is not None
            self._database.alter_table(name, add_columns=dict(columns))
        return self.metadata_of(table_id)

    def drop_if_untouched(self, name: str, made: TableMetadata) -> None:
        """Drop a table that a failed job made, unless somebody has used it since."""
        with contextlib.suppress(Exception):  # why the job failed is what matters
            now = self.metadata(name)
            if now is not None and self._is_untouched(now, made):
                with self._writable() as database:
                    database.drop_table(name)

    def _is_untouched(self, now: TableMetadata, made: TableMetadata) -> bool:
        if self._remote is None:
            return now.txnid == made.txnid
        # Servers take a new table over by changes of its METADATA; what somebody wrote is in a file or in memory.
        return now.table_id == made.table_id and is_empty(self._remote, now.table_id)

    @contextlib.contextmanager
    def _writable(self) -> Iterator[Database]:
        if self._database is not None:
            yield self._database
            return
        try:
            opened = open_alone(self.root, create=False)
        except StoreLocked as error:
            raise StoreLocked(f"a new table is made by the process that has the store open; {error}") from None
        with opened:
            yield opened

    @contextlib.contextmanager
    def _metadata_server(self) -> Iterator[MetadataAccess]:
        if self._database is not None:
            yield store_of(self._database).metadata
            return
        clock = SystemClock()
        with connect_at(Path(self.root), clock, read_only=True) as coordination:
            yield open_metadata(coordination, LocalFiles(self.root), clock, new_id, read_only=True)

    @contextlib.contextmanager
    def coordination(self) -> Iterator[CoordinationService]:
        """Lend the coordination service of the store, to be read."""
        if self._database is not None:
            yield coordination_of(self._database)
            return
        with connect_at(Path(self.root), SystemClock(), read_only=True) as service:
            yield service

    # --- jobs ---

    @contextlib.contextmanager
    def alone(self, job: str) -> Iterator[None]:
        """Hold a job id for this process: a second run of it at the same time would clean up files of the first."""
        path = f"bulk/{check_job(job)}.lock"
        files = LocalFiles(self.root)
        try:
            lock = files.lock(path)
        except StoreLocked:
            raise Unavailable(f"job {job} is running in another process: wait for it, or choose another id") from None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                files.delete(path)
            lock.release()

    def begin(self, job: str, table: str) -> str:
        """Say that files are about to come, and return the id of the table."""
        if self._database is not None:
            return service_of(self._database).carry_out(BeginJob(job, table, JOB_EXPIRES_SECONDS))
        return begin_job_at(self.root, job, table).table_id

    def begin_copies(self, job: str, files: Iterable[str]) -> dict[str, str]:
        """Say that copies of files are about to come, and return the path of each copy by the file's."""
        if self._remote is None:
            return begin_restore_at(self.root, job, files)
        parts = copies_of(job, files)
        for part, (table_id, _) in parts.items():
            self._remote.carry_out(BeginJob(part, "", JOB_EXPIRES_SECONDS, table_id))
        return {file: copy for _, copies in parts.values() for file, copy in copies.items()}

    def commit(self, commit: BulkCommit) -> BulkResult:
        """Make the files of a job part of the table."""
        return self.carry_out(commit, COMMIT_SECONDS_MAX)

    def carry_out(self, order: JobOrder[Reply], timeout_seconds: float = ORDER_SECONDS_MAX) -> Reply:
        """Have the owner of the store do something: here, in another process, or by opening the store for a moment."""
        if self._database is not None:
            return service_of(self._database).carry_out(order)
        return order_at(self.root, order, timeout_seconds)

    def end(self, job: str, keep: Collection[str] = ()) -> list[str]:
        """Remove what nobody names of a job whose outcome is known, but for `keep`; return what was removed."""
        if self._database is not None:
            with contextlib.suppress(Closed):
                return service_of(self._database).carry_out(EndJob(job, keep))
        return end_job_at(self.root, job, keep)


def named_tables(tables: Any) -> tuple[str, ...] | None:
    """Return tables by their names, None for all of them; `RequestError` if it is no list of names."""
    names = None if tables is None else checked_names("tables", tables)
    if names is not None and not all(isinstance(name, str) for name in names):
        raise RequestError(f"tables is a list of names, not {shown(tables)}")
    return names
