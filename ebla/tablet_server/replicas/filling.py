"""Memory made of what the log of a replica has, and no file does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.storage.log.log_entry import LogPart
from ebla.storage.merge.memory import ERASURE_BYTES, Memory, MemoryErasure
from ebla.storage.record.records import Block
from ebla.tablet.recovery.replay import block_of
from ebla.tablet.tables.table_state import TableState

__all__ = ["fill"]


def fill(table: TableState, tablet: TabletMetadata, parts: Sequence[LogPart]) -> None:
    """Have in memory what a tablet has under the schema in force and in no file. The commit lock is held.

    What clients were told counts under any schema.
    """
    blocks: dict[int, list[Block]] = defaultdict(list)
    erasures: dict[int, list[MemoryErasure]] = defaultdict(list)
    state = table.tablet(tablet.id)
    groups = table.view.schema.group_by_id
    for part in parts:
        if part.replies:
            state.remember(part.replies)
        if part.schema_version != table.view.schema.version:
            continue  # see former_parts.py
        for logged in part.blocks:
            if logged.group in groups and logged.index > tablet.group(logged.group).flushed:
                blocks[logged.group].append(block_of(logged))
        for erasure in part.erasures:
            held = MemoryErasure(erasure.first, erasure.last, erasure.txn, erasure.index)
            for group in groups:
                if erasure.index > tablet.group(group).flushed:
                    erasures[group].append(held)
    for group in groups:
        size = sum(block.bytes for block in blocks[group]) + ERASURE_BYTES * len(erasures[group])
        table.set_memory(tablet.id, group, Memory(blocks[group], tuple(erasures[group]), size))
        if len(blocks[group]) > 1:
            table.combining_wanted.add((tablet.id, group))
