"""What of a log is replayed for tablets that are taken over: their parts, each under the schema it was written under.

entry     part of t1, version 1 | part of t2, version 2 | part of t3
taken     t1, t2; METADATA has version 2, and keeps version 1 for rows that come under it
replayed  t1 into memory of version 1; t2 into memory of version 2                                   (pure)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from ebla.metadata.values.table_metadata import GroupState, TableMetadata, TabletMetadata
from ebla.storage.log.log_entry import LogEntry

__all__ = ["former_schemas", "parts_of", "under_schema", "without_records"]


def parts_of(
    entry: LogEntry, tablets: Mapping[str, TabletMetadata], is_counted: Callable[[int], bool] = lambda version: True
) -> LogEntry:
    """Return what an entry has of some tablets, at epochs since which its log is theirs, under schemas that count."""
    parts = []
    for part in entry.parts:
        tablet = tablets.get(part.tablet)
        if tablet is not None and part.epoch >= tablet.log_epoch and is_counted(part.schema_version):
            parts.append(part)
    return LogEntry(entry.txn_max, tuple(parts), entry.replies)


def without_records(entry: LogEntry, late: Collection[tuple[str, int]]) -> LogEntry:
    """Return an entry with the replies alone of parts that were written under former schemas."""
    if not late:
        return entry
    parts = [
        msgspec.structs.replace(part, blocks=(), erasures=()) if (part.table, part.schema_version) in late else part
        for part in entry.parts
    ]
    return msgspec.structs.replace(entry, parts=tuple(parts))


def former_schemas(tables: Iterable[TableMetadata]) -> list[tuple[str, int]]:
    """Return the tables of which rows may come under former schemas, with the versions of these, oldest first."""
    return [(metadata.table_id, schema.version) for metadata in tables for schema in metadata.former]


def under_schema(metadata: TableMetadata, version: int) -> TableMetadata:
    """Return a table as one of its former schemas had it, as far as a replay needs it: how far groups are flushed."""
    schema = next(schema for schema in metadata.former if schema.version == version)
    tablets = []
    for tablet in metadata.tablets:
        flushed = {one.group: one.flushed for one in tablet.behind if one.version == version}
        groups = tuple(GroupState(group.id, flushed=flushed.get(group.id, 0)) for group in schema.groups)
        tablets.append(msgspec.structs.replace(tablet, groups=tuple(sorted(groups, key=lambda one: one.group))))
    return metadata.with_schema(schema, tablets)
