"""The SQLite file behind `SqliteCoordination`: how it is made, opened, read, and what its errors mean.

    nodes     path | following | link | value | version | checksum       the tree (`sqlite_nodes`)
    changes   revision | path                                            the latest changes, for watches elsewhere

The file is made whole under another name and then linked to its own, so that a file of that name always has its
tables: an empty one is damage, not a beginning. `check_file` has SQLite look at all pages when it is opened: there are
few of them, however large the tables are, and a page that is in use and free at once would be written over.

**Reading beside a writer.** The file is in write-ahead-log mode, in which readers and the writer do not wait for each
other. A reader needs the ``-wal`` and ``-shm`` files next to it, and SQLite would make them if they were missing,
which an open for reading must not do and, on a read-only disk, cannot do. They are missing exactly when nobody has the
file open and everything is in the main file; then it is read as immutable, one connection for each read, and what was
read counts only if the files are still the same afterwards.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from ebla.coordination.service import CoordinationFailed
from ebla.coordination.sqlite_nodes import NODES, damaged, insert_all
from ebla.errors import Closed, EblaError, FormatTooNew, StoreNotFound, TimedOut, TooManyFiles
from ebla.retry import CROWDS

__all__ = [
    "FAILURES",
    "FORMAT_VERSION",
    "LiveReader",
    "QuietReader",
    "Reader",
    "check_file",
    "connect",
    "create_file",
    "translate",
]

APPLICATION_ID = 0x45626C61  # "Ebla"
FORMAT_VERSION = 2  # one flipped bit makes neither a 1 of it nor a 2 of a 1
# The file itself, the write-ahead log, the shared memory, and the directory while it is synced.
_FILES_OF_CONNECTION = 4

_CHANGES = "CREATE TABLE changes (revision INTEGER PRIMARY KEY, path TEXT NOT NULL)"
# What tells of a file that it is not what was written. A plain SQLITE_ERROR is a statement that does not fit the
# tables: ours do not change, so the file is not ours.
_DAMAGE = frozenset(
    (
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
    )
)


# What calls of SQLite raise: a message of its own that is no text, because it quotes damage, is an error of Python's.
FAILURES = (sqlite3.Error, UnicodeError, MemoryError)


def translate(error: Exception, file: Path) -> EblaError:
    """Return what an error of SQLite means to us, for a request that certainly had no effect."""
    if isinstance(error, MemoryError):
        return CoordinationFailed(f"{file}: there is not enough memory to read it; nothing was changed: retry")
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary is None or primary in _DAMAGE:  # without a code: a text that is none
        return damaged(file, str(error))
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return TimedOut(f"{file}: other processes kept it locked for too long; nothing was changed, try again")
    if primary == sqlite3.SQLITE_FULL:
        return CoordinationFailed(f"{file}: no space left ({error}); nothing was changed: free some space, then retry")
    if primary == sqlite3.SQLITE_CANTOPEN:
        if is_out_of_descriptors():  # SQLite does not say why
            return TooManyFiles.at(file)
        return CoordinationFailed(f"{file}: cannot be opened ({error}): check that it and its directory are accessible")
    return CoordinationFailed(f"{file}: {error}: check the disk, then open the store again")


def is_out_of_descriptors() -> bool:
    """Tell whether this process cannot open as many files as SQLite has for a connection."""
    with contextlib.ExitStack() as opened:
        try:
            for _ in range(_FILES_OF_CONNECTION):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            return TooManyFiles.is_meant_by(error)
    return False


def create_file(file: Path) -> None:
    """Make an empty coordination file at `file`, whole and durable, unless somebody else does so first."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as directory:
            made = Path(directory, file.name)
            with contextlib.closing(sqlite3.connect(made, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
                connection.execute(NODES)
                connection.execute(_CHANGES)
                insert_all(connection, [])
                connection.execute("COMMIT")
            _sync(made, os.O_RDWR)
            with contextlib.suppress(FileExistsError):
                os.link(made, file)
        _sync(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except FAILURES as error:
        raise translate(error, file) from error
    except OSError as error:
        if TooManyFiles.is_meant_by(error):
            raise TooManyFiles.at(file, error) from error
        raise CoordinationFailed(f"{file}: cannot be made: {error}") from error


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def connect(file: Path, busy_seconds: float, parameters: str) -> sqlite3.Connection:
    """Open the file with the given URI parameters and make sure that it is one of ours."""
    uri = f"file:{quote(str(file))}?{parameters}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=busy_seconds, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application_id != APPLICATION_ID:
            raise damaged(file, "it is not a coordination file of Ebla")
        if version < 1:
            raise damaged(file, f"there is no format {version}")
        if version > FORMAT_VERSION:
            raise FormatTooNew(
                f"{file}: format {version} is newer than this version of Ebla, which knows up to {FORMAT_VERSION}"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def check_file(file: Path, query: Callable[[str], Sequence[tuple[Any, ...]]]) -> int:
    """Have SQLite look at every page, and return the format of the file; `Corruption` if it is not as it should be."""
    ((version,),) = query("PRAGMA user_version")
    # In format 1 an index says what is there, and it has to agree with the table.
    ((found,),) = query(f"PRAGMA {'quick_check' if version >= FORMAT_VERSION else 'integrity_check'}(1)")
    if found != "ok":
        raise damaged(file, f"SQLite finds: {found}")
    if version >= FORMAT_VERSION:
        made = [sql for (sql,) in query("SELECT sql FROM sqlite_schema ORDER BY name")]
        if made != [_CHANGES, NODES]:
            raise damaged(file, "its tables nodes and changes are not as they were made")
    return int(version)


class Reader(Protocol):
    """Something that answers queries from one consistent state of the file. Safe to use from several threads."""

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""

    def close(self) -> None:
        """Let go of the file."""


class LiveReader:
    """Reads through a connection that stays open, beside a writer that may be at work."""

    def __init__(self, file: Path, busy_seconds: float, parameters: str) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = connect(file, busy_seconds, parameters)  # guarded by _lock

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        with self._lock:
            if self._connection is None:
                raise Closed(f"{self._file} was closed")
            try:
                return self._connection.execute(sql, parameters).fetchall()
            except FAILURES as error:
                raise translate(error, self._file) from error

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class QuietReader:
    """Reads without making or changing any file, whether or not somebody has the file open for writing."""

    def __init__(self, file: Path, busy_seconds: float) -> None:
        self._file = file
        self._busy_seconds = busy_seconds
        self._lock = threading.Lock()
        self._live: LiveReader | None = None  # guarded by _lock
        self._closed = False  # guarded by _lock

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        for _ in CROWDS:
            with self._lock:
                if self._closed:
                    raise Closed(f"{self._file} was closed")
                live = self._live or self._open_live()
            if live is not None:
                return live.query(sql, parameters)
            rows = self._query_at_rest(sql, parameters)
            if rows is not None:
                return rows
        raise TimedOut(f"{self._file}: writers came and went during every attempt to read it: try again")

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._closed = True
            if self._live is not None:
                self._live.close()

    def _open_live(self) -> LiveReader | None:
        """Open a lasting connection if a writer is there, or was and did not finish; else return None."""
        if self._is_at_rest():
            return None
        try:
            # Holding it open also keeps the last writer from removing the -wal and -shm files.
            self._live = LiveReader(self._file, self._busy_seconds, "mode=ro")
        except FAILURES as error:
            if self._is_at_rest():
                return None  # the writer went away in between
            raise translate(error, self._file) from error
        return self._live

    def _query_at_rest(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]] | None:
        """Read the file as one that does not change; None if it may have changed."""
        before = self._signature()
        failed: Exception | None = None
        rows: list[tuple[Any, ...]] = []
        try:
            with contextlib.closing(connect(self._file, self._busy_seconds, "mode=ro&immutable=1")) as connection:
                rows = connection.execute(sql, parameters).fetchall()
        except FAILURES as error:
            failed = error
        if not self._is_at_rest() or self._signature() != before:
            return None
        if failed is not None:
            raise translate(failed, self._file) from failed
        return rows

    def _is_at_rest(self) -> bool:
        # A write-ahead log that is empty, without the shared memory of a process that uses it, holds nothing either.
        try:
            size = os.stat(f"{self._file}-wal").st_size
        except FileNotFoundError:
            return True
        return size == 0 and not os.path.exists(f"{self._file}-shm")

    def _signature(self) -> tuple[int, int, int]:
        try:
            status = os.stat(self._file)
        except FileNotFoundError:
            raise StoreNotFound(f"{self._file} is not there: there is no store in this directory") from None
        return status.st_ino, status.st_size, status.st_mtime_ns
