"""Replay of single log entries, where what they hold is flushed on the way."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import ebla
from ebla.settings import Settings
from ebla.storage.log.log_entry import LogBlock, LogEntry, LogErasure, LogPart
from ebla.tablet.recovery.replay import Replayed, UnknownTablet, replay
from ebla.tablet.tables.table_state import TableState
from tests.support.inside import engine_of, state_of


def refuse(table: TableState, error: UnknownTablet) -> None:
    raise error


def test_an_erasure_in_the_middle_of_an_entry_survives_a_flush_of_the_entry(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False)) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
        state = state_of(table)
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
        schema = records.schema.serialize().to_pybytes()
        block = LogBlock(group.id, 13, base + 3, base + 1, schema, records)
        erasure = LogErasure(b"", None, base + 2, 12)
        part = LogPart(state.id, tablet.id, tablet.epoch, 1, 11, 13, base + 3, (block,), (erasure,))

        def flush(grown: TableState) -> None:
            engine_of(db).flusher.flush_table(grown)

        replay(LogEntry(base + 3, (part,)), {state.id: state}, Replayed(), flush, refuse)
        assert state.view.oldest_in_memory() is None, "everything was flushed"
        assert [row["k"] for row in table.scan()] == ["b"]


@pytest.mark.parametrize("kind", ["put", "erasure"])
def test_the_log_of_a_retired_tablet_is_passed_over_and_that_of_an_unknown_one_is_not(
    tmp_path: Path, kind: str
) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False)) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
        state = state_of(table)
        (parent,) = state.view.metadata.tablets
        (group,) = state.view.schema.groups
        (column,) = group.columns
        last = table.put([{"k": "a", "n": 1}, {"k": "z", "n": 2}])
        table.split("m")

        def entry(tablet: str, txn: int, epoch: int = 1) -> LogEntry:
            if kind == "erasure":
                erasure = LogErasure(b"", None, txn, 9)
                return LogEntry(txn, (LogPart(state.id, tablet, epoch, 1, 9, 9, txn, (), (erasure,)),))
            records = pa.RecordBatch.from_arrays(
                [pa.array([b"b"], pa.binary()), pa.array([3], pa.int64())], names=["_row", str(column.id)]
            )
            described = records.schema.serialize().to_pybytes()
            block = LogBlock(group.id, 9, txn, txn, described, records)
            return LogEntry(txn, (LogPart(state.id, tablet, epoch, 1, 9, 9, txn, (block,)),))

        before = list(table.scan())
        replay(entry(parent.id, last), {state.id: state}, Replayed(), lambda grown: None, refuse)
        assert list(table.scan()) == before
        for tablet, txn in ((parent.id, last + 1_000_000), ("nobody", last)):
            with pytest.raises(ebla.Corruption, match="METADATA does not know"):
                replay(entry(tablet, txn), {state.id: state}, Replayed(), lambda grown: None, refuse)
        newer = state.view.metadata.tablets[0]
        with pytest.raises(ebla.Corruption, match="led at epoch 2, and METADATA is at 1"):
            replay(entry(newer.id, last, 2), {state.id: state}, Replayed(), lambda grown: None, refuse)
