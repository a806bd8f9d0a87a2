"""Reaching a store from a task: by its root alone, through a read-only open that the process keeps.

    task -> reading(root, at_least_txn) -> the open of this process, if it saw that txn; else a new one

Spark reuses its Python workers, so the open of one task serves the next ones. An open that is replaced by a newer one
is closed when nobody reads through it any more.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ebla.client.database import Database, service_of
from ebla.client.embedded.opening import open_alone
from ebla.client.moments import AsOf, txn_of
from ebla.coordination.service import CoordinationService
from ebla.errors import RequestError, UnknownTable
from ebla.settings import MIB, Settings
from ebla.tablet.engine import TabletStore
from ebla.tablet.serve.local_service import LocalService
from ebla.tablet.tables.table_state import TableState

__all__ = [
    "TASK_SETTINGS",
    "coordination_of",
    "forget",
    "open_at",
    "opened",
    "reading",
    "store_of",
    "table_by_id",
    "txn_in",
]

# Every core of a machine may run a task, each with a store of its own.
TASK_SETTINGS = Settings(block_cache_bytes=16 * MIB, row_cache_bytes=MIB, scan_threads=1, recent_row_slots=1 << 10)
OPEN_MAX = 4


@dataclass(slots=True)
class _Open:
    database: Database
    seen_txn: int
    readers: int = 0
    is_replaced: bool = False


class _Opens:
    """The opens of this process, by root. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._process = os.getpid()
        self._by_root: OrderedDict[str, _Open] = OrderedDict()

    def take(self, root: str, at_least_txn: int) -> _Open:
        with self._lock:
            if self._process != os.getpid():
                # Forked: what the parent opened belongs to the parent.
                self._process, self._by_root = os.getpid(), OrderedDict()
            found = self._by_root.get(root)
            if found is None or found.seen_txn < at_least_txn:
                database = open_alone(root, read_only=True, settings=TASK_SETTINGS)
                # It sees all that was durable just now, whatever the number of the newest commit is.
                fresh = _Open(database, max(at_least_txn, store_of(database).sequencer.committed))
                self._replace(root, fresh)
                found = fresh
            self._by_root.move_to_end(root)
            found.readers += 1
            return found

    def give_back(self, used: _Open) -> None:
        with self._lock:
            used.readers -= 1
            self._close_if_unused(used)

    def forget(self, root: str) -> None:
        with self._lock:
            self._replace(root, None)

    def _replace(self, root: str, fresh: _Open | None) -> None:
        former = [self._by_root.pop(root)] if root in self._by_root else []
        if fresh is not None:
            self._by_root[root] = fresh
        while len(self._by_root) > OPEN_MAX:
            former.append(self._by_root.popitem(last=False)[1])
        for one in former:
            one.is_replaced = True
            self._close_if_unused(one)

    def _close_if_unused(self, one: _Open) -> None:
        if one.is_replaced and one.readers <= 0:
            one.database.close()


_opens = _Opens()


@contextmanager
def reading(root: str, at_least_txn: int) -> Iterator[Database]:
    """Lend a read-only open of the store at `root` that has seen every commit up to `at_least_txn`."""
    used = _opens.take(root, at_least_txn)
    try:
        yield used.database
    finally:
        _opens.give_back(used)


def open_at(root: str, at_least_txn: int) -> Database:
    """Return a read-only open of the store at `root` that has seen every commit up to `at_least_txn`.

    The process keeps it and it must not be closed. It may be replaced when a later txn is asked for: who reads for
    long uses `reading`.
    """
    with reading(root, at_least_txn) as database:
        return database


@contextmanager
def opened(source: Database | str | os.PathLike[str], settings: Settings | None = None) -> Iterator[Database]:
    """Lend the database given, or a read-only open of the store at a root, as it is now."""
    if isinstance(source, Database):
        yield source
        return
    if not isinstance(source, (str, os.PathLike)):
        raise RequestError(f"give an open database or the path of a store, not {type(source).__name__}")
    # Opened anew, and not taken from this process's opens: a plan is made of the newest that is there.
    with open_alone(Path(source), read_only=True, settings=settings) as database:
        yield database


def forget(root: str) -> None:
    """Let the next read of this process open the store anew: files that the present open names have gone."""
    _opens.forget(root)


def store_of(database: Database) -> TabletStore:
    """Return the store behind a database: the pipeline plans below the API for users."""
    return _local(database).engine


def coordination_of(database: Database) -> CoordinationService:
    """Return the coordination service of the store behind a database."""
    return _local(database).coordination


def txn_in(store: TabletStore, as_of: AsOf) -> int:
    """Return the txn that `as_of` means in a store; text is the name of a snapshot that is held there."""
    return store.pins.txn_of(as_of) if isinstance(as_of, str) else txn_of(as_of)


def _local(database: Database) -> LocalService:
    service = service_of(database)
    if not isinstance(service, LocalService):
        raise RequestError("this job is not done on a cluster yet: docs/howto/cluster.md tells which are")
    return service


def table_by_id(database: Database, table_id: str) -> TableState:
    """Return the open table with that id; `UnknownTable` if the store does not have it (any more)."""
    for table in store_of(database).tables():
        if table.id == table_id:
            return table
    raise UnknownTable(f"the table {table_id} is not there any more: it was dropped; plan the job anew")
