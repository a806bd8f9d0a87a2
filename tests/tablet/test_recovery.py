"""Replay of single log entries, where what they hold is flushed on the way."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import ebla
from ebla.settings import Settings
from ebla.storage.log_format import ErasureHeader, LogBlock, LogEntry, Slice, TabletPosition
from ebla.tablet.recovery import Replayed, replay
from ebla.tablet.table_state import TableState


def test_an_erasure_in_the_middle_of_an_entry_survives_a_flush_of_the_entry(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False)) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
        state = table._state
        (tablet,) = state.view.metadata.tablets
        (group,) = state.view.schema.groups
        (column,) = group.columns
        base = table.put({"k": "z"})
        table.erase("z")
        table.flush()
        # One group commit: a put with index 11, a range erasure with index 12, another put with index 13.
        records = pa.RecordBatch.from_arrays(
            [
                pa.array([b"a", b"b"], pa.binary()),
                pa.array([base + 1, base + 3], pa.int64()),
                pa.array([1, 3], pa.int64()),
            ],
            names=["_row", "_txn", str(column.id)],
        )
        slices = (Slice(tablet.id, tablet.epoch, 13, 0, 2),)
        schema = records.schema.serialize().to_pybytes()
        block = LogBlock(state.id, group.id, 1, base + 3, base + 1, slices, schema, records)
        position = TabletPosition(tablet.id, tablet.epoch, 12)
        erasure = ErasureHeader(state.id, b"", None, base + 2, (position,))

        def flush(grown: TableState) -> None:
            db._store.flush_replayed(grown)

        replay(LogEntry(base + 3, (block,), (erasure,)), {state.id: state}, Replayed(), flush)
        assert state.view.memory_of(group.id).txn_min is None, "everything was flushed"
        assert [row["k"] for row in table.scan()] == ["b"]
