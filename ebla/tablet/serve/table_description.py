"""What `Table.tablets` and `Table.stats` say of a table, as plain dicts."""

from __future__ import annotations

from typing import Any

from ebla.tablet.read.row_counts import count_tablet, distinct_files
from ebla.tablet.tables.runs import runs_of
from ebla.tablet.tables.table_state import TableState

__all__ = ["describe_table", "describe_tablets"]


def describe_tablets(table: TableState) -> list[dict[str, Any]]:
    """Return id, key range, state and sizes of every tablet."""
    codec = table.codec
    described = []
    for tablet in table.view.metadata.tablets:
        counted = count_tablet(table.view, tablet)
        described.append(
            {
                "id": tablet.id,
                "first": None if tablet.first == b"" else codec.shown_bound(tablet.first),
                "last": None if tablet.last is None else codec.shown_bound(tablet.last),
                "state": tablet.state,
                "life": table.door.state_of(tablet.id).name.lower(),
                "fragments": counted.fragments,
                "rows": counted.rows,
                "is_exact": counted.is_exact,
                "bytes": counted.bytes,
            }
        )
    return described


def describe_table(table: TableState) -> dict[str, Any]:
    """Return sizes and counts, per group what is in memory and in fragments."""
    view = table.view
    files_of_all = distinct_files(view.metadata.tablets)
    groups = {}
    for group in view.schema.groups:
        held = [*view.memories_of(group.id).values()]
        files = {ref.file: ref for t in view.metadata.tablets for ref in t.group(group.id).fragments}
        groups[group.name] = {
            "layout": group.layout,
            "memory_bytes": sum(memory.bytes for memory in held),
            "memory_records": sum(len(block) for memory in held for block in memory.blocks),
            "memory_blocks": sum(memory.count for memory in held),
            "fragments": len(files),
            "fragment_records": sum(ref.rows for ref in files.values()),
            "fragment_bytes": sum(ref.bytes for ref in files.values()),
            "fragments_deep": max(len(runs_of(t.group(group.id).current)) for t in view.metadata.tablets),
            "versions_replaced": sum(ref.rows if ref.is_history else ref.surplus for ref in files.values()),
            "history_fragments": sum(ref.is_history for ref in files.values()),
            "history_bytes": sum(ref.bytes for ref in files.values() if ref.is_history),
            "range_erasures": sum(len(memory.erasures) for memory in held)
            + sum(len(tablet.group(group.id).erasures) for tablet in view.metadata.tablets),
        }
    return {
        "table": table.name,
        "id": table.id,
        "schema_version": view.schema.version,
        "stage": table.door.stage.name.lower(),
        "tablets": len(view.metadata.tablets),
        "fragments": len(files_of_all),
        "fragment_bytes": sum(files_of_all.values()),
        "groups": groups,
        "row_cache": table.row_cache.stats(),
    }
