"""Replay: what the log holds and no fragment does becomes memory again.

METADATA says, per tablet and group, up to which log index everything is in fragments; older entries are passed over, so
that nothing is applied that is already on disk. Entries of tables that are gone are passed over too, and those of
tablets that were split or joined: METADATA has them on record as retired, which they are once all of them is in
fragments. The records are used as they lie in the log: they were sorted before they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ebla.errors import Corruption
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.storage.log.log_entry import LogBlock, LogEntry, Slice, TabletPosition
from ebla.storage.merge.memory import MemoryErasure
from ebla.storage.record.records import TXN, Block
from ebla.tablet.tables.table_state import TableState


@dataclass(slots=True)
class Replayed:
    """What a replay found, besides the records."""

    txn_max: int = 0
    entries: int = 0
    replies: dict[str, tuple[int, int]] = field(default_factory=dict)


def replay(
    entry: LogEntry,
    tables: Mapping[str, TableState],
    replayed: Replayed,
    grown: Callable[[TableState], None],
    unknown: Callable[[TableState, UnknownTablet], None],
) -> None:
    """Apply one log entry to the memory of its tables; `grown` is called for each table that got something.

    `unknown` is called for each table of which the log has a tablet that METADATA does not; it raises, or takes the
    table out of `tables`.

    `grown` may flush the table. So all of the entry must be in memory first: what is flushed is recorded by the log
    index of the newest commit in it, and an erasure in the middle of the entry has a smaller one.
    """
    replayed.txn_max = max(replayed.txn_max, entry.txn_max)
    replayed.entries += 1
    for reply in entry.replies:
        replayed.replies[reply.client] = (reply.sequence, reply.txn)
    changed: dict[str, TableState] = {}
    for table_id in dict.fromkeys([*(b.table for b in entry.blocks), *(e.table for e in entry.erasures)]):
        table = tables.get(table_id)
        if table is not None:
            try:
                if _restore(entry, table):
                    changed[table_id] = table
            except UnknownTablet as error:
                unknown(table, error)
    for table in changed.values():
        grown(table)


def _restore(entry: LogEntry, table: TableState) -> bool:
    """Apply one log entry to the memory of one of its tables; tell whether it got something."""
    is_changed = False
    for logged in entry.blocks:
        if logged.table != table.id or logged.group not in table.view.schema.group_by_id:
            continue
        block = _unflushed(logged, table)
        if block is not None:
            table.restore(logged.group, block)
            is_changed = True
    for erasure in entry.erasures:
        if erasure.table != table.id:
            continue
        for group in table.view.schema.groups:
            indexes = {}
            for position in erasure.tablets:
                table.saw_index(position.tablet, position.index)
                tablet = _tablet(table, position, erasure.txn)
                if tablet is not None and position.index > tablet.group(group.id).flushed:
                    indexes[position.tablet] = position.index
            if indexes:
                table.restore(group.id, None, MemoryErasure(erasure.first, erasure.last, erasure.txn, indexes))
        table.last_wide_txn = max(table.last_wide_txn, erasure.txn)
        is_changed = True
    return is_changed


class UnknownTablet(Corruption):
    """The log has writes of a tablet that METADATA neither has nor had, had until before, or has at an older epoch."""


def _tablet(table: TableState, at: Slice | TabletPosition, txn: int) -> TabletMetadata | None:
    """Return a tablet that the log names; None if all it has of it is in fragments."""
    metadata = table.view.metadata
    tablet = metadata.by_id(at.tablet)
    if tablet is not None and at.epoch <= tablet.epoch:
        return tablet
    if tablet is not None:
        problem = f"led at epoch {at.epoch}, and METADATA is at {tablet.epoch}"
    elif any(one.tablet == at.tablet and txn <= one.txn for one in metadata.retired):
        return None
    else:
        problem = "which METADATA does not know"
    write = f"it has a write at txn {txn} of tablet {at.tablet} of {table.name!r}"
    raise UnknownTablet("the log", f"{write}, {problem}: restore the newer METADATA")


def _unflushed(logged: LogBlock, table: TableState) -> Block | None:
    """Return the part of a logged block that no fragment holds yet."""
    indexes: dict[str, int] = {}
    parts: list[pa.RecordBatch] = []
    for part in logged.slices:
        table.saw_index(part.tablet, part.index)
        tablet = _tablet(table, part, logged.txn)
        if tablet is None or part.index <= tablet.group(logged.group).flushed:
            continue
        indexes[part.tablet] = part.index
        parts.append(logged.records.slice(part.begin, part.end - part.begin))
    if not parts:
        return None
    if len(parts) == len(logged.slices):
        records = logged.records
    else:
        records = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    if TXN in records.schema.names:
        return Block(records, indexes=indexes)
    return Block(records, txn=logged.txn, indexes=indexes)
