"""Following a store that somebody else writes: looked at often, opened anew only when something was committed.

    newest() --> has the log or METADATA of the table changed since the last look?  no: the open of that time
                                                                                    yes: another one

A read-only open shows one moment, and reads the log as far as it is not flushed. Spark asks a stream for news a hundred
times a second if nothing else is to do; so a look costs a listing of the log directory and one node of the coordination
service, and opens take a tenth of the time at most. Of a cluster, a look asks the servers of the table for their newest
commit, and the table is captured from them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from ebla.client.database import Database
from ebla.client.embedded.opening import open_alone
from ebla.direct.clusters import captured_table, connected, remote_of
from ebla.direct.opens import TASK_SETTINGS, store_of
from ebla.service.requests import ScanRows
from ebla.storage.log.log_reach import read_reach

__all__ = ["Follower", "follower_of"]

# After an open that took a second, the next one waits so many seconds.
REST_FACTOR = 9.0


class Follower(ABC):
    """Shows one table of a store as it is now, or was a moment ago. Not safe to use from several threads."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._database: Database | None = None
        self._seen: object = None
        self._rests_until = 0.0

    def newest(self, *, at_once: bool = False) -> Database:
        """Return the store, read-only: with everything that was durable when this was called, if it is `at_once`.

        What was returned before is closed when another one is. `UnknownTable` if the table is not there any more.
        """
        looked: object = None
        if self._database is not None:
            if not at_once and time.monotonic() < self._rests_until:
                return self._database
            # Looked at before it is opened: what comes between the two is there, and found once more.
            looked = self._look(self._database)
            if looked == self._seen and not at_once:
                return self._database
        began = time.monotonic()
        self.close()
        self._database = self._open()
        self._seen = looked
        ended = time.monotonic()
        self._rests_until = ended + REST_FACTOR * (ended - began)
        return self._database

    @abstractmethod
    def _open(self) -> Database:
        """Return the store as it is now."""

    @abstractmethod
    def _look(self, database: Database) -> object:
        """Return what is another value after every commit to the table."""

    def close(self) -> None:
        """Close what is open. It is opened again when it is asked for."""
        if self._database is not None:
            self._database.close()
            self._database = None


class _StoreFollower(Follower):
    def __init__(self, root: str, table: str) -> None:
        super().__init__(table)
        self._root = root

    def _open(self) -> Database:
        return open_alone(self._root, read_only=True, settings=TASK_SETTINGS)

    def _look(self, database: Database) -> object:
        store = store_of(database)
        table_id = store.metadata.directory.find(self._table)
        _, version = store.metadata.directory.read(table_id)
        # Segments are made longer than what is in them: how far the last one reaches is told in a place of its own.
        log = [(info.path, info.size) for info in store.files.list(f"log/{store.server}")]
        reach = read_reach(store.files, store.server)
        is_told = any(reach) or not log
        return table_id, version, sorted(log), reach if is_told else object()


class _ClusterFollower(Follower):
    def __init__(self, cluster: tuple[str, ...], table: str) -> None:
        super().__init__(table)
        remote = remote_of(connected(cluster))
        assert remote is not None
        self._remote = remote

    def _open(self) -> Database:
        return captured_table(self._remote, self._table, None, TASK_SETTINGS)

    def _look(self, database: Database) -> object:
        table = self._remote.table(self._table)
        return table.id, table.schema.version, table.scan(ScanRows(columns=())).txn


def follower_of(root: str, table: str, cluster: tuple[str, ...] = ()) -> Follower:
    """Return what follows a table of a store, or of the cluster with these masters."""
    return _ClusterFollower(cluster, table) if cluster else _StoreFollower(root, table)
