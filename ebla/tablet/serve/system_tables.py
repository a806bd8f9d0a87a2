"""System tables: what a store knows of itself, read like any other table.

    META          where every tablet is and what it is made of, in cells: see metadata/values/meta_view.py
    sys.tables    a row per table     sys.tablets   a row per tablet     sys.servers   a row per server

Each is computed when it is asked for by name, put into memory as a table of one block, and read by the same code as
all others: ranges, columns, `where`, Arrow. It shows that moment, and neither an earlier nor a later one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Never

import msgspec
import pyarrow as pa

from ebla.errors import ReadOnly
from ebla.metadata.values.meta_view import META, META_SCHEMA, meta_batch
from ebla.metadata.values.serving import UNLOADED
from ebla.metadata.values.table_metadata import FragmentRef, GroupState, TableMetadata, initial_metadata
from ebla.model.batch import PutBatch
from ebla.model.declaration import Schema
from ebla.service.requests import DescribeTable, DescribeTablets, ListFiles, Modify, TableRequest, Write
from ebla.service.service import SYSTEM_TABLES, Progress
from ebla.storage.merge.memory import Memory
from ebla.storage.record.records import Block
from ebla.tablet.engine import TabletStore
from ebla.tablet.read.view import TableView
from ebla.tablet.serve.local_table import LocalTable
from ebla.tablet.tables.table_state import TableState

__all__ = ["SystemTable", "shown_table", "system_table"]

SERVERS = "sys.servers"

_TABLES = Schema(
    key={"name": "string"},
    columns={
        "id": "string", "schema_version": "int32", "tablets": "int32", "fragments": "int32", "records": "int64",
        "bytes": "int64", "metadata_txn": "string", "metadata_changes": "int64",
    },
)  # fmt: skip
_TABLETS = Schema(
    key={"table": "string", "first": "binary"},
    columns={
        "last": "binary", "id": "string", "state": "string", "epoch": "int64", "leader": "string",
        "replicas": "list<string>", "log": "string", "fragments": "int32", "records": "int64", "bytes": "int64",
        "in_sync": "list<string>", "wanted": "int32",
    },
)  # fmt: skip
_SERVERS = Schema(
    key={"server": "string"}, columns={"kind": "string", "address": "string", "tablets": "int32", "bytes": "int64"}
)


class SystemTable(LocalTable):
    """A table that shows what the store knows of itself. It is read like any other and cannot be written."""

    def write(self, request: Write) -> Never:
        """Refuse a change."""
        raise self._read_only()

    def modify(self, request: Modify) -> Never:
        """Refuse a change."""
        raise self._read_only()

    def _reply_to(self, request: TableRequest[Any], progress: Progress | None) -> object:
        if not isinstance(request, (DescribeTable, DescribeTablets, ListFiles)):
            raise self._read_only()
        return super()._reply_to(request, progress)

    def _read_only(self) -> ReadOnly:
        return ReadOnly(f"{self.name} shows what the store knows: it is changed by changing tables, not by writing it")


def system_table(store: TabletStore, name: str) -> SystemTable:
    """Return a system table as it is now."""
    tables = [(state.name, _located(state.view.metadata, store.server)) for state in store.tables()]
    return shown_table(store, name, tables)


def shown_table(
    store: TabletStore,
    name: str,
    tables: Sequence[tuple[str, TableMetadata]],
    addresses: Mapping[str, str] | None = None,
) -> SystemTable:
    """Return a system table that shows these tables, by name; `store` reads it. A cluster's servers have addresses."""
    schema, view = _VIEWS[name]
    batch = view(tables) if name != SERVERS else _of_servers(tables, addresses)
    return SystemTable(store, _state_of(store, name, schema, batch))


def _located(metadata: TableMetadata, server: str) -> TableMetadata:
    """Name the server that has the store open as the leader of tablets that METADATA gives to nobody.

    One that is unloaded has none, whoever had it before.
    """
    located = (
        msgspec.structs.replace(tablet, leader=None if tablet.state == UNLOADED else tablet.leader or server)
        for tablet in metadata.tablets
    )
    return msgspec.structs.replace(metadata, tablets=tuple(located))


def _state_of(store: TabletStore, name: str, schema: Schema, batch: PutBatch) -> TableState:
    numbered = schema.number()
    txn = store.sequencer.committed
    metadata = initial_metadata(name, numbered, [name])
    # It has no history: reads of an earlier moment are refused, not answered with what is there now.
    groups = tuple(GroupState(group.id, floor_txn=txn) for group in numbered.groups)
    metadata = metadata.with_tablets([msgspec.structs.replace(metadata.tablets[0], groups=groups)])
    state = TableState(name, metadata, store.fragments, store.cached_rows, store.settings)
    memory = {}
    for group, part in state.admission.put(batch).groups.items():
        block = Block(part.stamped(0), txn=min(txn, 1), unique=part.unique)
        memory[group] = Memory().with_block(block)
    state.view = TableView(metadata, {metadata.tablets[0].id: memory}, state.view.parts)
    return state


def _meta(tables: Iterable[tuple[str, TableMetadata]]) -> PutBatch:
    return PutBatch(cells=meta_batch(tables))


def _of_tables(tables: Iterable[tuple[str, TableMetadata]]) -> PutBatch:
    return _rows(
        _TABLES,
        (
            {
                "name": name,
                "id": table.table_id,
                "schema_version": table.schema.version,
                "tablets": len(table.tablets),
                **_sizes({ref.file: ref for tablet in table.tablets for g in tablet.groups for ref in g.fragments}),
                "metadata_txn": table.txnid,
                "metadata_changes": table.sequence,
            }
            for name, table in tables
        ),
    )


def _of_tablets(tables: Iterable[tuple[str, TableMetadata]]) -> PutBatch:
    return _rows(
        _TABLETS,
        (
            {
                "table": name,
                "first": tablet.first,
                "last": tablet.last,
                "id": tablet.id,
                "state": tablet.state,
                "epoch": tablet.epoch,
                "leader": tablet.leader,
                "replicas": [replica.server for replica in tablet.replicas],
                "log": tablet.log,
                **sizes,
                "in_sync": [replica.server for replica in tablet.in_sync],
                "wanted": tablet.wanted,
            }
            for name, table in tables
            for tablet, sizes in zip(table.tablets, _shares(table), strict=True)
        ),
    )


def _of_servers(tables: Iterable[tuple[str, TableMetadata]], addresses: Mapping[str, str] | None = None) -> PutBatch:
    counts: dict[str, int] = dict.fromkeys(addresses or (), 0)
    sizes: dict[str, int] = dict.fromkeys(addresses or (), 0)
    for _, table in tables:
        for tablet, share in zip(table.tablets, _shares(table), strict=True):
            if tablet.leader is not None:
                counts[tablet.leader] = counts.get(tablet.leader, 0) + 1
                sizes[tablet.leader] = sizes.get(tablet.leader, 0) + share["bytes"]
    return _rows(
        _SERVERS,
        (
            {
                "server": server,
                "kind": "embedded" if addresses is None else "tablet server",
                "address": None if addresses is None else addresses.get(server),
                "tablets": count,
                "bytes": sizes[server],
            }
            for server, count in counts.items()
        ),
    )


def _shares(table: TableMetadata) -> Iterator[dict[str, int]]:
    """Yield the sizes of each tablet in order: of a file that several share, each has an equal part.

    So those of all tablets together are those of the table. METADATA does not tell which rows a file has.
    """
    files = [{ref.file: ref for group in tablet.groups for ref in group.fragments} for tablet in table.tablets]
    sharers = Counter(file for own in files for file in own)
    given: Counter[str] = Counter()
    for own in files:
        records = size = 0
        for file, ref in own.items():
            at, count = given[file], sharers[file]
            records += ref.rows * (at + 1) // count - ref.rows * at // count
            size += ref.bytes * (at + 1) // count - ref.bytes * at // count
            given[file] += 1
        yield {"fragments": len(own), "records": records, "bytes": size}


def _sizes(refs: dict[str, FragmentRef]) -> dict[str, int]:
    """Return how many different files there are, and their sizes together."""
    return {
        "fragments": len(refs),
        "records": sum(ref.rows for ref in refs.values()),
        "bytes": sum(ref.bytes for ref in refs.values()),
    }


def _rows(schema: Schema, rows: Iterable[dict[str, Any]]) -> PutBatch:
    numbered = schema.number()
    columns = [*numbered.key, *(column for group in numbered.groups for column in group.columns)]
    arrow = pa.schema([pa.field(column.name, column.type) for column in columns])
    return PutBatch(columns=pa.RecordBatch.from_pylist(list(rows), schema=arrow))


_VIEWS: dict[str, tuple[Schema, Callable[[Iterable[tuple[str, TableMetadata]]], PutBatch]]] = {
    META: (META_SCHEMA, _meta),
    "sys.tables": (_TABLES, _of_tables),
    "sys.tablets": (_TABLETS, _of_tablets),
    SERVERS: (_SERVERS, _of_servers),
}
assert frozenset(_VIEWS) == SYSTEM_TABLES
