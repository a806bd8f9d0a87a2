"""What the log of a replica has under former schemas: it becomes fragments of these before the tablet is served.

    tail      1: v1   2: v1   3: v2   4: the first entry of the epoch, committed; so is all before it
    METADATA  v2 is in force; v1 is kept, and flushed up to 1 by the leader before (`behind`)
    here      2 --> a fragment of v1, which METADATA counts for the groups of v2;  3 --> memory

A version that METADATA keeps no more has nothing left to flush: it was forgotten when the leader of every tablet had
reported a later one, which it does when all of the former ones is in fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ebla.metadata.values.changes import Change, Flush, update
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.storage.log.log_entry import LogPart
from ebla.tablet.engine import TabletStore
from ebla.tablet.flush.serialize import FlushWork, flush_change, write_fragment
from ebla.tablet.lead.log_parts import under_schema
from ebla.tablet.recovery.log_sort import open_table
from ebla.tablet.tables.table_state import TableState
from ebla.tablet_server.replicas.filling import fill

__all__ = ["flush_former"]


def flush_former(
    store: TabletStore, table: TableState, tablet: TabletMetadata, parts: Sequence[LogPart]
) -> TableMetadata | None:
    """Save what a tablet has under former schemas, all of it committed; return METADATA then, None if there is nothing.

    Whatever fails can be repeated: what was saved is passed over, and is saved once.
    """
    begun: list[str] = []

    def new_path(table_id: str) -> str:
        begun.append(store.pending.new_path(table_id))
        return begun[-1]

    changes: list[Change] = []
    to_come = table.view.metadata
    with store.pending.until_settled(begun):
        for schema in table.view.metadata.former:
            own = [part for part in parts if part.schema_version == schema.version]
            if own:
                under = open_table(table.name, under_schema(to_come, schema.version), store.files)
                flushes = _flushes(store, under, tablet.id, own, new_path)
                changes += flushes
                to_come = update(to_come, flushes)
        return store.metadata.commit(table.id, changes) if changes else None


def _flushes(
    store: TabletStore, under: TableState, tablet_id: str, parts: Sequence[LogPart], new_path: Callable[[str], str]
) -> list[Flush]:
    """Write parts to fragments of the schema that they were written with; return what names these."""
    tablet = under.view.metadata.by_id(tablet_id)
    assert tablet is not None, "it is led here"
    fill(under, tablet, parts)
    found = []
    for group in under.view.schema.groups:
        work = FlushWork.of(under, group.id)
        if not work.is_empty:
            flush = flush_change(work, write_fragment(work, store.files, new_path))
            based = [replace(one, base=tablet.group(group.id).flushed) for one in flush.tablets]
            found.append(replace(flush, tablets=tuple(based)))
    return found
