"""The durable side of a master in memory: the twin that the simulation uses. One contract suite runs on both.

It is a value at any moment, shared by any number of masters. `step` is called before every single durable step and may
raise, which is a crash there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ebla.errors import Conflict, EblaError, TableExists, UnknownTable
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
from ebla.metadata.values.changes import RequirementFailed, apply
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata


class MemoryDurable:
    """Tables as METADATA and coordination service would have them."""

    def __init__(self) -> None:
        self.configs: dict[str, TableConfig] = {}
        self.names: dict[str, str] = {}
        self.metadata: dict[str, TableMetadata] = {}  # by txnid
        self.step: Callable[[str], None] = lambda label: None
        self.changes = 0  # METADATA transactions
        self.history: list[tuple[str, str, str]] = []  # table, name, state: every configuration that ever was
        self.bounds: dict[str, int] = {}  # above every txn that a run gave out
        self._txnids = itertools.count(1)

    def current(self, table_id: str) -> TableMetadata:
        return self.metadata[self.configs[table_id].metadata_txnid]

    def load(self) -> Iterator[StoredTable]:
        for table_id in self.configs:
            yield self._stored(table_id)

    def write(self, write: Write) -> Any:
        match write:
            case CreateTable():
                return self._create(write)
            case ChangeTables():
                return [self._change(change) for change in write.tables]
            case ReadTables():
                return [
                    self._stored(table_id) if table_id in self.configs else UnknownTable(table_id)
                    for table_id in write.table_ids
                ]
            case FindChanged():
                return [one for one, config in self.configs.items() if write.known.get(one) != config]
            case ReadBounds():
                return {run: self.bounds.get(run, 0) for run in write.runs}
            case RenameTable():
                config = self._running(write.table_id)
                return self._switch(write.table_id, msgspec.structs.replace(config, name=write.name))
            case DeleteTable():
                config = self._running(write.table_id)
                deleted = msgspec.structs.replace(config, state="deleted", deleted_microseconds=write.microseconds)
                return self._switch(write.table_id, deleted)
            case UndeleteTable():
                config = self._deleted(write.table_id)
                if not config.metadata_txnid:
                    raise UnknownTable(f"the table {config.name!r} was purged")
                if config.is_expired:
                    raise UnknownTable(f"the retention of the table {config.name!r} is over")
                running = msgspec.structs.replace(config, name=write.name, state="running", deleted_microseconds=0)
                return self._switch(write.table_id, running)
            case ExpireTable():
                config = self._deleted(write.table_id)
                return self._switch(write.table_id, msgspec.structs.replace(config, is_expired=True))
            case PurgeTable():
                config = self._deleted(write.table_id)
                purged = self._switch(write.table_id, msgspec.structs.replace(config, metadata_txnid=""))
                self.metadata.pop(config.metadata_txnid, None)
                return purged

    def _create(self, write: CreateTable) -> StoredTable:
        self.step("tablets")
        txnid = f"txn{next(self._txnids)}"
        self.metadata[txnid] = write.metadata.with_txnid(txnid, 1)
        self.step("table")
        if write.name in self.names:
            raise TableExists(write.name)
        assert write.table_id not in self.configs
        self.configs[write.table_id] = TableConfig(write.name, "running", txnid, ())
        self.names[write.name] = write.table_id
        self.history.append((write.table_id, write.name, "running"))
        return self._stored(write.table_id)

    def _change(self, change: ChangeTable) -> TableMetadata | EblaError:
        self.step("change")
        config = self.configs.get(change.table_id)
        if config is None or config.state != "running":
            return UnknownTable(change.table_id)
        txnid = f"txn{next(self._txnids)}"
        try:
            metadata = apply(self.metadata[config.metadata_txnid], change.changes, txnid)
        except RequirementFailed as refusal:
            return refusal
        self.changes += 1
        del self.metadata[config.metadata_txnid]
        self.metadata[txnid] = metadata
        self.configs[change.table_id] = msgspec.structs.replace(config, metadata_txnid=txnid)
        return metadata

    def _switch(self, table_id: str, config: TableConfig) -> StoredTable:
        self.step("switch")
        before = self.configs[table_id]
        had = before.name if before.state == "running" else None
        has = config.name if config.state == "running" else None
        if has is not None and has != had:
            if has in self.names:
                raise TableExists(has)
            self.names[has] = table_id
        if had is not None and has != had:
            del self.names[had]
        self.configs[table_id] = config
        self.history.append((table_id, config.name, config.state))
        return self._stored(table_id)

    def _running(self, table_id: str) -> TableConfig:
        config = self.configs.get(table_id)
        if config is None or config.state != "running":
            raise UnknownTable(table_id)
        return config

    def _deleted(self, table_id: str) -> TableConfig:
        config = self.configs[table_id]
        if config.state != "deleted":
            raise Conflict(f"the table {config.name!r} is not deleted")
        return config

    def _stored(self, table_id: str) -> StoredTable:
        config = self.configs[table_id]
        return StoredTable(table_id, config, self.metadata.get(config.metadata_txnid))
