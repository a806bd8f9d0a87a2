"""The durable side of a master: METADATA transactions, and the tables' configurations in the coordination service.

    CreateTable              METADATA file, then tables/<id> + names/<name> in one step       metadata.transaction
    ChangeTables             one METADATA transaction per table                               metadata.transaction
    Rename, Delete, ...      tables/<id> and names/ in one step                               metadata.naming
    ReadBounds               clocks/<run>

Lost replies are settled down there. What still comes out as `OutcomeUnknown` is unknown for good.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ebla.errors import UnknownTable
from ebla.master.writes import (
    ChangeTable,
    ChangeTables,
    CreateTable,
    DeleteTable,
    ExpireTable,
    FindChanged,
    PurgeTable,
    ReadBounds,
    ReadTables,
    RenameTable,
    StoredTable,
    UndeleteTable,
    Write,
)
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.naming import TableNaming
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.changes import RequirementFailed
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata

__all__ = ["MetadataDurable"]


class MetadataDurable:
    """Carries out writes through a metadata server. Safe to use from several threads."""

    def __init__(
        self, server: MetadataServer, store: MetadataStore, naming: TableNaming, read_bound: Callable[[str], int]
    ) -> None:
        """`store` has the METADATA files of `server`; deleted tables are read from it.

        `read_bound` tells, by the name of a run, what is above every txn that it gave out.
        """
        self._read_bound = read_bound
        self._server = server
        self._store = store
        self._naming = naming

    def load(self) -> Iterator[StoredTable]:
        """Yield every table that there is or was."""
        for table_id, config in self._server.directory.configs().items():
            yield self._stored(table_id, config)

    def write(self, write: Write) -> Any:
        """Carry out a write."""
        match write:
            case CreateTable():
                metadata = self._server.create_table(
                    write.name, write.table_id, write.metadata, replacing=write.replacing
                )
                config = self._server.directory.config(write.table_id)
                assert config is not None  # it was made just now
                return StoredTable(write.table_id, config, metadata)
            case ChangeTables():
                return [self._change(change) for change in write.tables]
            case RenameTable():
                return self._switched(write.table_id, self._naming.rename(write.table_id, write.name))
            case DeleteTable():
                return self._switched(write.table_id, self._naming.delete(write.table_id, write.microseconds))
            case UndeleteTable():
                return self._switched(write.table_id, self._naming.undelete(write.table_id, write.name))
            case ExpireTable():
                return self._switched(write.table_id, self._naming.expire(write.table_id))
            case PurgeTable():
                purged = self._switched(write.table_id, self._naming.purge(write.table_id))
                with contextlib.suppress(OSError):  # files that stay do no harm: their id is never used again
                    self._store.remove_table(write.table_id)
                return purged
            case ReadTables():
                return [self._read(table_id) for table_id in write.table_ids]
            case FindChanged():
                now = self._server.directory.configs()
                known = write.known
                # What was purged is on record for ever, and news only to who knew the table.
                there = {one: config for one, config in now.items() if config.metadata_txnid or one in known}
                return [table_id for table_id, config in there.items() if known.get(table_id) != config]
            case ReadBounds():
                return {run: self._read_bound(run) for run in write.runs}

    def _change(self, change: ChangeTable) -> TableMetadata | RequirementFailed | UnknownTable:
        try:
            return self._server.commit(change.table_id, change.changes)
        except (RequirementFailed, UnknownTable) as refusal:
            return refusal

    def _read(self, table_id: str) -> StoredTable | UnknownTable:
        config = self._server.directory.config(table_id)
        if config is None:
            return UnknownTable(f"there is no table of id {table_id}")
        return self._stored(table_id, config)

    def _switched(self, table_id: str, config: TableConfig) -> StoredTable:
        return self._stored(table_id, config)

    def _stored(self, table_id: str, config: TableConfig) -> StoredTable:
        if not config.metadata_txnid:
            return StoredTable(table_id, config, None)
        if not config.is_deleted:
            try:
                return StoredTable(table_id, config, self._server.refresh(table_id))
            except UnknownTable:
                pass  # deleted between the two reads
        return StoredTable(table_id, config, self._store.load(table_id, config.metadata_txnid))
