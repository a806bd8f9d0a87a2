"""A store of one table in memory, for reading: METADATA as a value, files below a directory, unflushed records.

It is what the engine's own reader reads from where no store can be opened: a table of a backup, or of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from ebla.client.database import Database
from ebla.client.embedded.opening import new_id
from ebla.clock import SystemClock, TxnClock, microseconds_of
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.clone import cloned
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.service.job_reads import CapturedMemory
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.merge.memory import MemoryErasure
from ebla.storage.record.records import Block
from ebla.tablet.engine import TabletStore
from ebla.tablet.serve.local_service import LocalService

__all__ = ["ValueService", "value_database"]


class _StandingClock(SystemClock):
    """A clock whose time is the txn of the store: no reader of it sees a later moment."""

    def __init__(self, txn: int) -> None:
        self._microseconds = microseconds_of(txn)

    def microseconds(self) -> int:
        """Return the moment of the store."""
        return self._microseconds


class ValueService(LocalService):
    """Serves a table that is a value; of a cluster, `cluster` are the addresses of its masters."""

    cluster: tuple[str, ...] = ()


def value_database(
    root: str,
    name: str,
    metadata: TableMetadata,
    txn: int,
    settings: Settings,
    memory: Iterable[CapturedMemory] = (),
    cluster: tuple[str, ...] = (),
    indices: Mapping[str, int] | None = None,
) -> Database:
    """Return a database that has one table as of a txn. It is closed like any other.

    `indices` says of tablets how many commits have touched them.
    """
    files = LocalFiles(root)
    clock = _StandingClock(txn)
    coordination = MemoryCoordination(MemoryStore(), clock)
    store = TabletStore(
        files=files,
        metadata=MetadataServer(coordination, MetadataStore(files), clock, server_id="", new_id=new_id),
        clock=clock,
        settings=settings,
        server="",
        new_id=new_id,
        txn_clock=TxnClock(clock, txn),
        coordination=coordination,
    )
    ids = iter([tablet.id for tablet in metadata.tablets])
    # As a clone: whether the table was offline, or about to be split, is none of a reader's business.
    table = store.add_table(name, cloned(metadata, metadata.table_id, lambda: next(ids)))
    for tablet, index in (indices or {}).items():
        table.tablet(tablet).saw_index(index)
    for held in memory:
        if held.data is not None:
            records = pa.ipc.open_stream(pa.py_buffer(held.data)).read_all().combine_chunks().to_batches()[0]
            block = Block(records, txn=held.txn, unique=held.is_unique)
            table.restore(held.tablet, held.group, block)
        for first, last, erased_txn in held.erasures:
            table.restore(held.tablet, held.group, None, MemoryErasure(first, last, erased_txn))
    store.recovered({})
    service = ValueService(store, coordination, clock, new_id)
    service.cluster = cluster
    return Database(Path(root), service)
