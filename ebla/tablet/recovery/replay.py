"""Replay: what the log holds and no fragment does becomes memory again.

METADATA says, per tablet and group, up to which log index everything is in fragments; older entries are passed over, so
that nothing is applied that is already on disk. Entries of tables that are gone are passed over too, and those of
tablets that were split or joined: METADATA has them on record as retired, which they are once all of them is in
fragments. The records are used as they lie in the log: they were sorted before they were written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ebla.errors import Corruption
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.storage.log.log_entry import LogBlock, LogEntry, LogPart, Reply
from ebla.storage.merge.memory import MemoryErasure
from ebla.storage.record.records import TXN, Block
from ebla.tablet.tables.table_state import TableState


@dataclass(slots=True)
class Replayed:
    """What a replay found, besides what it made of the tables. `replies` are those of no tablet."""

    txn_max: int = 0
    entries: int = 0
    replies: list[Reply] = field(default_factory=list)


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
    replayed.replies += entry.replies
    changed: dict[str, TableState] = {}
    by_table: dict[str, list[LogPart]] = defaultdict(list)
    for part in entry.parts:
        by_table[part.table].append(part)
    for table_id, parts in by_table.items():
        table = tables.get(table_id)
        if table is not None:
            try:
                if _restore(parts, table):
                    changed[table_id] = table
            except UnknownTablet as error:
                unknown(table, error)
    for table in changed.values():
        grown(table)


def _restore(parts: Sequence[LogPart], table: TableState) -> bool:
    """Apply what an entry has of one table to its memory; tell whether it got something."""
    is_changed = False
    for part in parts:
        if part.replies and table.view.metadata.by_id(part.tablet) is not None:
            table.tablet(part.tablet).remember(part.replies)
        if not part.blocks and not part.erasures:
            continue
        tablet = _tablet(table, part)
        if tablet is None:
            continue
        table.tablet(tablet.id).saw_index(part.index)
        for logged in part.blocks:
            if logged.group in table.view.schema.group_by_id and logged.index > tablet.group(logged.group).flushed:
                table.restore(tablet.id, logged.group, block_of(logged))
                is_changed = True
        for erasure in part.erasures:
            held = MemoryErasure(erasure.first, erasure.last, erasure.txn, erasure.index)
            for group in table.view.schema.groups:
                if erasure.index > tablet.group(group.id).flushed:
                    table.restore(tablet.id, group.id, None, held)
            table.raise_floor(erasure.txn, [tablet.id])
            is_changed = True
    return is_changed


class UnknownTablet(Corruption):
    """The log has writes of a tablet that METADATA neither has nor had, had until before, or has at an older epoch."""


def _tablet(table: TableState, part: LogPart) -> TabletMetadata | None:
    """Return the tablet of a part of the log; None if all that the log has of it is in fragments."""
    metadata = table.view.metadata
    tablet = metadata.by_id(part.tablet)
    if tablet is not None and part.epoch <= tablet.epoch:
        return tablet
    if tablet is not None:
        problem = f"led at epoch {part.epoch}, and METADATA is at {tablet.epoch}"
    elif any(one.tablet == part.tablet and part.txn <= one.txn for one in metadata.retired):
        return None
    else:
        problem = "which METADATA does not know"
    write = f"it has a write at txn {part.txn} of tablet {part.tablet} of {table.name!r}"
    raise UnknownTablet("the log", f"{write}, {problem}: restore the newer METADATA")


def block_of(logged: LogBlock) -> Block:
    """Return a block of the log as it is in memory."""
    if TXN in logged.records.schema.names:
        return Block(logged.records, index=logged.index)
    return Block(logged.records, txn=logged.txn, index=logged.index)
