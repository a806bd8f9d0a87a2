"""Current and history apart: a compacted table is clean to who reads the present, and the past is unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.client.embedded.opening import wire
from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.metadata.values.table_metadata import GroupState
from ebla.pipeline.scanning.sections import plan_scan
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from tests.support.inside import engine_of, state_of

BY_HAND = Settings(background_compaction=False)
ROWS = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"n": "int64", "text": "string"})])


def rows(table: ebla.Table, **options: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan(**options)]


def states(table: ebla.Table) -> list[GroupState]:
    return [state for tablet in state_of(table).view.metadata.tablets for state in tablet.groups]


def written(db: ebla.Database) -> tuple[ebla.Table, list[int]]:
    """Return a table with whole and partial updates, erasures of rows and of a range, and the txns of all of that."""
    table = db.create_table("t", ROWS)
    txns = [table.put([{"k": k, "n": k, "text": f"text {k}"} for k in range(1_000)])]
    table.flush()
    txns.append(table.put([{"k": k, "n": -k} for k in range(0, 1_000, 3)]))
    txns.append(table.erase_many(list(range(0, 1_000, 7))))
    table.flush()
    txns.append(table.put([{"k": k, "text": "again"} for k in range(0, 1_000, 21)]))
    txns.append(table.erase_range(300, 400))
    table.flush()
    txns.append(table.put([{"k": k, "n": 1, "text": "new"} for k in range(350, 360)]))
    return table, txns


def test_a_compacted_table_has_one_record_a_row_and_the_past_is_as_it_was(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=BY_HAND) as db:
        table, txns = written(db)
        past = [rows(table, as_of=txn) for txn in txns]
        assert len({len(one) for one in past}) > 2
        table.compact()
        (state,) = states(table)
        (current,) = state.current
        assert current.unique
        assert not current.has_erasures
        assert current.rows == len(past[-1])
        assert state.history
        assert [rows(table, as_of=txn) for txn in txns] == past
        assert rows(table) == past[-1]
        assert [table.get(k, as_of=txns[0]) for k in (0, 7, 350)] == [past[0][k] for k in (0, 7, 350)]
        assert table.get(7) is None
        assert table.get_many([0, 350]).column("n").to_pylist() == [None, 1]
        assert table.scan().count() == current.rows
    with ebla.open(tmp_path, settings=BY_HAND) as db:
        assert [rows(db.table("t"), as_of=txn) for txn in txns] == past
        assert db.verify().is_clean


def test_spark_reads_a_compacted_table_by_itself_whatever_history_is(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=BY_HAND) as db:
        table, txns = written(db)
        assert plan_scan(db, "t").sections
        table.compact()
        (state,) = states(table)
        assert state.erasures, "they are there for readers of the past"
        planned = plan_scan(db, "t")
        assert [read.files for read in planned.plan.clean] == [(state.current[0].file,)]
        assert not planned.plan.clean[0].ranges
        assert not planned.sections
        assert not planned.layers.masks
        assert plan_scan(db, "t", as_of=txns[0]).sections
        assert table.files() == [state.current[0].file]


def test_an_erasure_that_is_history_is_a_conflict_to_who_read_the_row_before(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False, recent_row_slots=1)) as db:
        table, txns = written(db)
        table.compact()
        table.put({"k": 5, "n": 5})  # the store remembers this row, and none of the others
        with pytest.raises(ebla.Conflict):
            table.put({"k": 7, "n": 0}, if_unchanged_since=txns[0])
        table.put({"k": 7, "n": 0}, if_unchanged_since=txns[-1])


def test_versions_that_a_group_keeps_are_current(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=BY_HAND) as db:
        schema = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", families=["c"], max_versions=2)])
        table = db.create_table("t", schema)
        for n in range(4):
            table.put([{"k": k, "c:x": b"%d" % n} for k in range(100)])
            table.flush()
        versions = rows(table, versions=3)
        table.compact()
        (state,) = states(table)
        assert [ref.rows for ref in state.current] == [200]
        assert [ref.rows for ref in state.history] == [200]
        assert rows(table, versions=3) == versions


def test_history_is_merged_by_itself_and_goes_once_nobody_reads_so_far_back(tmp_path: Path) -> None:
    clock = ManualClock()
    coordination = MemoryCoordination(MemoryStore(), clock)
    settings = Settings(background_compaction=False, history_seconds=100.0)
    with wire(tmp_path, LocalFiles(tmp_path), coordination, clock, settings, None) as db:
        table = db.create_table("t", ROWS)
        txns = []
        for n in range(settings.compact_runs_min + 1):
            clock.advance(1.0)
            txns.append(table.put([{"k": k, "n": n} for k in range(200)]))
            table.compact()
        past = [rows(table, as_of=txn) for txn in txns]
        (state,) = states(table)
        assert len(state.history) == settings.compact_runs_min
        compactor = engine_of(db).compactor
        while compactor.compact_next():
            pass
        (merged,) = states(table)
        assert merged.current == state.current
        assert len(merged.history) == 1
        assert merged.history[0].history_txn == max(ref.history_txn for ref in state.history)
        assert [rows(table, as_of=txn) for txn in txns] == past
        clock.advance(200.0)
        written_before = db.stats()["compactions"]["bytes_written"]
        assert compactor.compact_next()
        (after,) = states(table)
        assert after.fragments == state.current
        assert db.stats()["compactions"]["bytes_written"] == written_before
        assert rows(table) == past[-1]
        with pytest.raises(ebla.HistoryGone):
            rows(table, as_of=txns[0])


def test_a_held_snapshot_keeps_history_and_what_is_current_is_clean_meanwhile(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False, history_seconds=0.0)) as db:
        table = db.create_table("t", ROWS)
        table.put([{"k": k, "n": k} for k in range(100)])
        with db.snapshot() as before:
            table.put([{"k": k, "n": -k} for k in range(50)])
            table.compact()
            (state,) = states(table)
            assert [ref.rows for ref in state.current] == [100]
            assert [ref.rows for ref in state.history] == [50]
            assert rows(table, as_of=before.txn) == [{"k": k, "n": k, "text": None} for k in range(100)]
        table.compact()
        (state,) = states(table)
        assert not state.history


def test_what_history_takes_is_told(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=BY_HAND) as db:
        table, _ = written(db)
        table.compact()
        (state,) = states(table)
        told = table.stats()["groups"]["g"]
        assert told["history_fragments"] == len(state.history) > 0
        assert told["history_bytes"] == sum(ref.bytes for ref in state.history)
        assert told["versions_replaced"] == sum(ref.rows for ref in state.history)
        assert told["fragments_deep"] == 1
        writing: Any = db.stats()["writing"]
        assert 0 < writing["compacted_history_bytes"] < writing["compacted_bytes"]


def test_splits_joins_clones_and_alters_take_history_along(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=BY_HAND) as db:
        table, txns = written(db)
        past = [rows(table, as_of=txn) for txn in txns]
        table.compact()
        table.split(500)
        assert all(state.history for state in states(table))
        assert [rows(table, as_of=txn) for txn in txns] == past
        clone = db.clone_table("t", "clone")
        table.compact()
        assert all(ref.unique for state in states(table) for ref in state.current)
        table.join(0, 999)
        for one in (table, clone):
            assert [rows(one, as_of=txn) for txn in txns] == past
            one.compact()
            assert [rows(one, as_of=txn) for txn in txns] == past
        db.alter_table("t", groups=[ebla.Group("h", columns={})], move={"text": "h"})
        moved = db.table("t")
        assert rows(moved) == past[-1]
        assert [rows(moved, as_of=txn) for txn in txns] == past
