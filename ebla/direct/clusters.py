"""Tables of a cluster, for jobs: captured from those who serve them, then read like a store of one's own.

    T          the newest moment of all servers of the table, or the one that was asked for
    servers    each tells its tablets' METADATA, and what of them is in no file up to T      (CaptureTablets)
    here       one table of METADATA and memory, for reading as of T; files are read from the shared root

Whoever captures a table again at the same T, be it after flushes, splits or a change of hands, reads the same rows. So
a task that finds a file gone captures the table anew. Nothing is flushed for a job.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from ebla.access.tokens import claim_in
from ebla.client.database import Database, service_of
from ebla.client.moments import AsOf, txn_of
from ebla.client.remote.connecting import connect_as
from ebla.client.remote.remote_service import RemoteService
from ebla.client.remote.remote_table import RemoteTable
from ebla.direct.cluster_address import Cluster, of_remote
from ebla.direct.value_store import ValueService, value_database
from ebla.errors import RequestError, StoreNotFound, Unavailable
from ebla.metadata.values.restoring import unpack_metadata
from ebla.metadata.values.table_metadata import InvalidMetadata, TableMetadata, TabletMetadata
from ebla.retry import RACES
from ebla.service.job_reads import CapturedMemory, CapturedTablets
from ebla.service.requests import HoldNewest, LetGo, ListHeld, ScanRows
from ebla.settings import Settings

__all__ = [
    "captured_table",
    "cluster_of",
    "connected",
    "forget_cluster",
    "is_empty",
    "metadata_now",
    "moment_in",
    "newest_in",
    "reading_captured",
    "remote_of",
    "root_of",
]

# So many captured tables a process keeps for its next tasks.
CAPTURED_MAX = 2

_lock = threading.Lock()
# Guarded by _lock, as all below; what a parent has is the parent's.
_process = os.getpid()
_connections: dict[Cluster, Database] = {}
_tokens: dict[Cluster, str] = {}  # the newest that were handed over
_idle: OrderedDict[tuple[tuple[str, ...], str, int], Database] = OrderedDict()


def remote_of(database: Database) -> RemoteService | None:
    """Return the connection of a database that other processes serve; None if it is open in this one."""
    service = service_of(database)
    return service if isinstance(service, RemoteService) else None


def cluster_of(database: Database) -> tuple[str, ...]:
    """Return the cluster that a database was captured from or is connected to, for tasks that read; else nothing."""
    service = service_of(database)
    if isinstance(service, RemoteService):
        return of_remote(service, reads_only=True)
    return service.cluster if isinstance(service, ValueService) else ()


def connected(cluster: Sequence[str]) -> Database:
    """Return this process's connection to a cluster. It is shared, and stays open."""
    global _process
    key = cluster if isinstance(cluster, Cluster) else Cluster(cluster)
    with _lock:
        if _process != os.getpid():
            _process = os.getpid()
            _connections.clear()
            _tokens.clear()
            _idle.clear()
        if key.token is not None:
            # Whoever plans later hands over a later token: it is shown from then on, to those who are connected, too.
            known = _tokens.get(key)
            if known is None or claim_in(known).expires < claim_in(key.token).expires:
                _tokens[key] = key.token
        found = _connections.get(key)
        if found is None:
            found = _connections[key] = connect_as(key, key.credentials(lambda: _tokens.get(key)))
        return found


def root_of(remote: RemoteService) -> str:
    """Return the directory of fragments of a cluster; `StoreNotFound` if it cannot be reached from here."""
    root = remote.root
    if root is None:
        raise RequestError("who serves this database does not tell where its files are: a job cannot read them")
    path = Path(root).absolute()
    if not path.is_dir():
        raise StoreNotFound(
            f"the files of the cluster are in {path}, which is not there on this machine: mount it at the same place"
        )
    return str(path)


# --- capturing -------------------------------------------------------------------------------------


def captured_table(remote: RemoteService, name: str, as_of: AsOf | None, settings: Settings | None = None) -> Database:
    """Return a database with one table of a cluster as it is now, or was at a moment. It is closed by the caller."""
    table = remote.table(name)
    txn = table.scan(ScanRows(columns=())).txn if as_of is None else _txn(remote, as_of)
    return _captured(remote, table, name, txn, settings)


def _captured(remote: RemoteService, table: RemoteTable, name: str, txn: int, settings: Settings | None) -> Database:
    metadata, memory, indices = _assembled(table, txn, with_memory=True)
    settings = settings or Settings(scan_threads=1)
    return value_database(
        root_of(remote), name, metadata, txn, settings, memory, of_remote(remote, reads_only=True), indices
    )


def moment_in(source: object, as_of: AsOf) -> AsOf:
    """Return a moment as a job of this process can use it: of a cluster, the txn that a name holds there."""
    remote = remote_of(source) if isinstance(source, Database) else None
    return as_of if remote is None else _txn(remote, as_of)


def newest_in(remote: RemoteService) -> int:
    """Return the txn of the newest commit of all servers."""
    txn = remote.carry_out(HoldNewest())
    remote.carry_out(LetGo(txn))
    return txn


def _txn(remote: RemoteService, as_of: AsOf) -> int:
    if not isinstance(as_of, str):
        return txn_of(as_of)
    held = remote.carry_out(ListHeld())
    if as_of not in held:
        raise RequestError(
            f"as_of names the snapshot {as_of!r}, and there is none of that name: see snapshots(); or give a time as a "
            "datetime"
        )
    return held[as_of]


def metadata_now(remote: RemoteService, table_id: str, txn: int | None = None) -> TableMetadata:
    """Return the METADATA of a table as its servers have it now."""
    return _assembled(remote.table_by_id(table_id), txn, with_memory=False)[0]


def is_empty(remote: RemoteService, table_id: str) -> bool:
    """Tell whether a table has nothing, neither in files nor in memory."""
    metadata, memory, _ = _assembled(remote.table_by_id(table_id), None, with_memory=True)
    return not memory and next(iter(metadata.files()), None) is None


Assembled: TypeAlias = tuple[TableMetadata, list[CapturedMemory], dict[str, int]]


def _assembled(table: RemoteTable, txn: int | None, *, with_memory: bool) -> Assembled:
    """Capture a table, and put together what its servers have told."""
    for _ in RACES:
        answers = table.captured(txn, with_memory=with_memory)
        try:
            return _joined(answers)
        except InvalidMetadata:
            table.is_outdated = True  # cut otherwise while they were asked
    raise Unavailable(f"the tablets of {table.name!r} are cut faster than they can be looked at: retry")


def _joined(answers: Sequence[CapturedTablets]) -> Assembled:
    tablets: dict[str, TabletMetadata] = {}
    memory: list[CapturedMemory] = []
    indices: dict[str, int] = {}
    newest: TableMetadata | None = None
    for answer in answers:
        metadata = unpack_metadata(answer.metadata, "an answer of a server")
        fresh = {one for one in answer.tablets if one not in tablets}
        tablets.update((tablet.id, tablet) for tablet in metadata.tablets if tablet.id in fresh)
        memory += [held for held in answer.memory if held.tablet in fresh]
        indices.update(zip(answer.tablets, answer.indices, strict=True))
        if newest is None or metadata.sequence > newest.sequence:
            newest = metadata
    assert newest is not None, "a table has a tablet at least"
    in_order = tuple(sorted(tablets.values(), key=lambda tablet: tablet.first))
    joined = msgspec.structs.replace(newest, tablets=in_order)
    joined.check()
    return joined, memory, indices


# --- in tasks --------------------------------------------------------------------------------------


@contextmanager
def reading_captured(
    cluster: tuple[str, ...], table_id: str, name: str, txn: int, settings: Settings
) -> Iterator[Database]:
    """Lend a table of a cluster as of a txn. The process keeps it for a while: the next task may want the same."""
    remote = remote_of(connected(cluster))
    assert remote is not None
    key = (cluster, table_id, txn)
    with _lock:
        database = _idle.pop(key, None)
    if database is None:
        database = _captured(remote, remote.table_by_id(table_id), name, txn, settings)
    try:
        yield database
    except BaseException:
        database.close()
        raise
    with _lock:
        closed = [database] if key in _idle else []
        _idle.setdefault(key, database)
        while len(_idle) > CAPTURED_MAX:
            closed.append(_idle.popitem(last=False)[1])
    for one in closed:
        one.close()


def forget_cluster(cluster: tuple[str, ...]) -> None:
    """Let the next task of this process capture its table anew."""
    with _lock:
        closed = [_idle.pop(key) for key in list(_idle) if key[0] == cluster]
    for one in closed:
        one.close()
