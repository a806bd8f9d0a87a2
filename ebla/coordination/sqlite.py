"""The coordination service in a SQLite file: the default, for one process or several on one host.

    writers, any process --BEGIN IMMEDIATE ... COMMIT (synced)--> coordination.sqlite
                                                                       |
    watches, any process <-- one thread, which reads the list of changes every so often, or when woken by a write here

Several threads may use one `SqliteCoordination`: they share one connection for writing and one for reading, so that a
read does not wait for the sync of a write. `read_only` never changes a file and holds up nobody.

If a COMMIT fails with an I/O error, the change may or may not be found by whoever opens the file next, and reading it
now through this process tells nothing: the outcome is unknown, and this connection refuses everything from then on.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ebla.clock import Clock
from ebla.coordination.lease import NodeLease, take_lease
from ebla.coordination.service import (
    Check,
    CoordinationFailed,
    CoordinationService,
    Node,
    Operation,
    Watch,
    check_operations,
    check_path,
)
from ebla.coordination.sqlite_file import (
    FAILURES,
    FORMAT_VERSION,
    LiveReader,
    QuietReader,
    Reader,
    check_file,
    connect,
    create_file,
    translate,
)
from ebla.coordination.sqlite_nodes import AT, apply, damaged, listed, listing, node_at
from ebla.coordination.sqlite_upgrade import OLD_AT, OLD_LISTING, old_node, old_paths, upgrade
from ebla.coordination.watches import WatchList
from ebla.errors import Closed, Corruption, EblaError, OutcomeUnknown, ReadOnly, StoreNotFound

__all__ = ["FILE_NAME", "SqliteCoordination"]

FILE_NAME = "coordination.sqlite"

# So many changes are kept for watches in other processes. One that falls further behind fires for everything.
_CHANGES_KEPT = 4096
_CHANGES_TRIM_EVERY = 512

_log = logging.getLogger(__name__)


class SqliteCoordination(CoordinationService):
    """A connection to the coordination file at `path`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock,
        *,
        read_only: bool = False,
        create: bool = True,
        is_lasting: bool = True,
        busy_seconds: float = 10.0,
        poll_seconds: float = 0.05,
    ) -> None:
        """Open the file, making it first if it is missing and may be made.

        `StoreNotFound` if it is missing and `create` is false or `read_only` is true; `Corruption` if it is not what it
        should be. What is written outlives every process; and the machine, too, unless `is_lasting` is false, which
        saves the wait for the disk. `busy_seconds` bounds the wait for other processes' writes, `poll_seconds` how late
        a watch is.
        """
        self._file = Path(path).absolute()
        self._clock = clock
        self._read_only = read_only
        self._busy_seconds = busy_seconds
        self._poll_seconds = poll_seconds
        self._watches = WatchList()
        self._lock = threading.Lock()
        self._failed: str | None = None  # guarded by _lock; read without
        self._closed = False  # guarded by _lock; read without
        self._watcher: _Watcher | None = None  # guarded by _lock
        self._writer: sqlite3.Connection | None = None  # used under _lock
        if not self._file.exists():
            if read_only or not create or not self._file.parent.is_dir():
                raise StoreNotFound(f"{self._file} is not there: there is no store in this directory")
            create_file(self._file)
        with contextlib.ExitStack() as undo:
            try:
                if not read_only:
                    self._writer = connect(self._file, busy_seconds, "mode=rw")
                    undo.callback(self._writer.close)
                    # In either case the file stays whole, and a commit that is synced brings those before it along.
                    self._writer.execute(f"PRAGMA synchronous = {'FULL' if is_lasting else 'NORMAL'}")
                    self._prepare(self._writer)
                self._reader = self._open_reader()
                undo.callback(self._reader.close)
            except FAILURES as error:
                raise translate(error, self._file) from error
            # A file of format 1 stays one for as long as nobody opens it for writing.
            self._is_old = read_only and check_file(self._file, self._reader.query) < FORMAT_VERSION
            undo.pop_all()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check the file, and bring it to the newest format."""
        query = lambda sql: connection.execute(sql).fetchall()  # noqa: E731
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            raise damaged(self._file, f"it is in the mode {mode!r} of SQLite, not in that of a write-ahead log")
        if check_file(self._file, query) < FORMAT_VERSION:
            upgrade(connection, self._file, FORMAT_VERSION)
            check_file(self._file, query)

    def _open_reader(self) -> Reader:
        if self._read_only:
            return QuietReader(self._file, self._busy_seconds)
        try:
            return LiveReader(self._file, self._busy_seconds, "mode=rw")
        except FAILURES as error:
            raise translate(error, self._file) from error

    def read(self, path: str) -> Node | None:
        """Return the node at `path` as it is now, or None."""
        check_path(path)
        self._check_usable()
        if self._is_old:
            with self._unless_upgraded():
                return old_node(self._file, self._reader.query(OLD_AT, (path,)))
        return node_at(self._file, path, self._reader.query(AT, (path,)))

    def list(self, path: str) -> builtins.list[str]:
        """Return the paths of the nodes directly below `path`, sorted; `Corruption` if any may be missing."""
        if path:
            check_path(path)
        self._check_usable()
        if self._is_old:
            with self._unless_upgraded():
                return old_paths(self._file, self._reader.query(OLD_LISTING, (path,)))
        return listed(self._file, path, self._reader.query(*listing(path)))

    @contextlib.contextmanager
    def _unless_upgraded(self) -> Iterator[None]:
        """Read in format 1; if that fails because somebody has upgraded the file, go on behind this."""
        try:
            yield
        except Corruption:
            if self._reader.query("PRAGMA user_version") == [(1,)]:
                raise
            self._is_old = False

    def multi(self, operations: Sequence[Operation]) -> builtins.list[int | None]:
        """Do all of the operations in one transaction, synced before it returns if it is to be lasting."""
        check_operations(operations)
        if self._read_only:
            raise ReadOnly(f"{self._file} was opened for reading")
        with self._lock:
            self._check_usable()
            assert self._writer is not None
            results = self._transaction(self._writer, operations)
            watcher = self._watcher
        if watcher is not None:
            watcher.wake()
        return results

    def _transaction(
        self, connection: sqlite3.Connection, operations: Sequence[Operation]
    ) -> builtins.list[int | None]:
        committing = False
        try:
            connection.execute("BEGIN IMMEDIATE")
            results = [apply(connection, self._file, operation) for operation in operations]
            for operation in operations:
                if not isinstance(operation, Check):
                    _record_change(connection, operation.path)
            committing = True
            connection.execute("COMMIT")
        except BaseException as error:
            certain = self._roll_back(connection)
            if not isinstance(error, FAILURES):
                raise
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            # A full disk or a busy file stop a commit before its last page is written. Other errors may come after.
            if certain and (not committing or code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)):
                raise translate(error, self._file) from error
            self._failed = f"{self._file}: a commit failed ({error}): check the disk, then open the store again"
            raise OutcomeUnknown(f"{self._file}: it is not known whether the commit happened: {error}") from error
        return results

    def _roll_back(self, connection: sqlite3.Connection) -> bool:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except FAILURES:
            return False
        return True

    def watch(self, path: str, callback: Callable[[str], None]) -> Watch:
        """Call back from the watching thread, which the first watch starts."""
        if path:
            check_path(path)
        with self._lock:
            self._check_usable()
            if self._watcher is None:
                self._watcher = _Watcher(self._open_reader(), self._watches, self._poll_seconds, self._file)
            return self._watches.add(path, callback)

    def lease(self, path: str, owner: str, ttl_seconds: float) -> NodeLease:
        """Take the lease at `path`; `LeaseHeld` at once if another owner holds it."""
        return take_lease(self, self._clock, path, owner, ttl_seconds)

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            watcher = self._watcher
        self._watches.clear()
        if watcher is not None:
            watcher.stop()
        self._reader.close()
        # The writer last: if no other process has the file open, it moves the log into the main file and removes it.
        with self._lock:
            if self._writer is not None:
                self._writer.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed(f"{self._file} was closed")
        if self._failed is not None:
            raise CoordinationFailed(self._failed)


class _Watcher:
    """The thread that looks for changes, made by whomever, and fires the watches."""

    def __init__(self, reader: Reader, watches: WatchList, poll_seconds: float, file: Path) -> None:
        self._reader = reader
        self._watches = watches
        self._poll_seconds = poll_seconds
        self._file = file
        self._wake = threading.Event()
        self._stopped = False
        # Before the first watch is registered: whatever comes later has a greater revision.
        self._seen = self._reader.query("SELECT coalesce(max(revision), 0) FROM changes")[0][0]
        self._thread = threading.Thread(target=self._run, name="ebla-coordination-watch", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread; from a callback, soon after it returns."""
        self._stopped = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait(self._poll_seconds)
            self._wake.clear()
            try:
                self._look()
            except EblaError as error:
                if not self._stopped:
                    _log.warning("cannot look for changes in %s, will try again: %s", self._file, error)
        self._reader.close()

    def _look(self) -> None:
        sql = "SELECT revision, path FROM changes WHERE revision > ? ORDER BY revision"
        changes = self._reader.query(sql, (self._seen,))
        if changes and not self._stopped:
            missed = changes[0][0] != self._seen + 1 or not all(isinstance(path, str) for _, path in changes)
            self._seen = changes[-1][0]
            self._watches.fire(None if missed else [path for _, path in changes])


def _record_change(connection: sqlite3.Connection, path: str) -> None:
    revision = connection.execute("INSERT INTO changes (path) VALUES (?)", (path,)).lastrowid
    assert revision is not None
    if revision % _CHANGES_TRIM_EVERY == 0:
        # The newest is never removed: revisions are counted from it.
        connection.execute("DELETE FROM changes WHERE revision <= ?", (revision - _CHANGES_KEPT,))
