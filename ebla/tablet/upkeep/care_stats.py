"""What `stats()` tells of the care that a store takes of itself: how much it writes, and what it may not let go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ebla.clock import microseconds_of
from ebla.tablet.garbage.job_intents import JobIntent
from ebla.tablet.garbage.pins import Pin
from ebla.tablet.tables.refused_tables import RefusedTables
from ebla.tablet.tables.table_state import TableState


def writing_stats(
    ingested_bytes: int, flushed_bytes: int, compacted_bytes: int, history_bytes: int = 0
) -> dict[str, object]:
    """Return how many bytes were written to fragments for those that were put, since the store was opened.

    What was put is counted as it lies in memory, fragments as they are on disk. The log is not counted. Of what
    compaction wrote, `history_bytes` are what only reads of the past need.
    """
    written = flushed_bytes + compacted_bytes
    return {
        "ingested_bytes": ingested_bytes,
        "flushed_bytes": flushed_bytes,
        "compacted_bytes": compacted_bytes,
        "compacted_history_bytes": history_bytes,
        "amplification": round(written / ingested_bytes, 3) if ingested_bytes else None,
        "amplification_on_disk": round(written / flushed_bytes, 3) if flushed_bytes else None,
    }


def held_stats(
    pins: Iterable[Pin], held_here: Mapping[int, int], intents: Iterable[JobIntent], now_microseconds: int
) -> dict[str, object]:
    """Return who holds on to old versions (snapshots, scans, jobs) and to files (jobs), each with its age or end."""

    def age_seconds(microseconds: int) -> float:
        return round((now_microseconds - microseconds) / 1e6, 3)

    def told(pin: Pin) -> dict[str, object]:
        found: dict[str, object] = {"txn": pin.txn, "age_seconds": age_seconds(microseconds_of(pin.txn))}
        if pin.expires_microseconds is not None:
            found["expires_seconds"] = -age_seconds(pin.expires_microseconds)
        if pin.reader:
            found |= {"reader": pin.reader, "files": pin.files}
        return found

    return {
        "snapshots": {pin.name: told(pin) for pin in pins},
        "readers_here": sum(held_here.values()),
        "oldest_reader_seconds": age_seconds(microseconds_of(min(held_here))) if held_here else None,
        "jobs": {
            intent.job: {
                "prefix": intent.prefix,
                "expires_seconds": round((intent.expires_microseconds - now_microseconds) / 1e6, 3),
            }
            for intent in intents
        },
    }


def log_held_by(tables: Iterable[TableState], refused: RefusedTables) -> dict[str, object] | None:
    """Return the table and group whose oldest unflushed record keeps the log from going; None if nothing does."""
    held = [
        (oldest, table.name, group.name)
        for table in tables
        for view in (table.view,)
        for group in view.schema.groups
        for oldest in (view.oldest_in_memory(group.id),)
        if oldest is not None
    ]
    if refused.held_txn is not None and refused.errors:
        held.append((refused.held_txn, min(refused.errors), ""))
    if not held:
        return None
    txn, name, group_name = min(held)
    return {"table": name, "group": group_name, "txn": txn}
