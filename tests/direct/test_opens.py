"""Opens that a process keeps for its tasks: reused as long as they have seen enough, replaced when not."""

from __future__ import annotations

from pathlib import Path

import pytest

import ebla
from ebla.direct.opens import forget, open_at, reading, store_of, table_by_id
from ebla.errors import Closed, StoreNotFound, UnknownTable
from ebla.pipeline.scanning.sections import plan_scan, read_section

POINTS = ebla.Schema(key={"k": "string"}, columns={"n": "int64"})


def test_an_open_is_reused_by_tasks_that_it_has_seen_enough_for(db: ebla.Database, root: str) -> None:
    first = db.create_table("t", POINTS).put({"k": "a", "n": 1})
    opened = open_at(root, first)
    assert open_at(root, first) is opened
    assert open_at(root, first - 1) is opened
    assert opened.read_only


def test_a_later_txn_is_seen_through_a_new_open(db: ebla.Database, root: str) -> None:
    table = db.create_table("t", POINTS)
    opened = open_at(root, table.put({"k": "a", "n": 1}))
    later = table.put({"k": "b", "n": 2})
    assert opened.table("t").get("b") is None
    newer = open_at(root, later)
    assert newer is not opened
    assert newer.table("t").get("b") == {"k": "b", "n": 2}
    with pytest.raises(Closed):
        opened.tables()


def test_a_txn_that_the_store_never_reached_opens_it_only_once(db: ebla.Database, root: str) -> None:
    txn = db.create_table("t", POINTS).put({"k": "a", "n": 1}) + 1_000
    assert open_at(root, txn) is open_at(root, txn)


def test_what_is_being_read_stays_open_until_it_is_done(db: ebla.Database, root: str) -> None:
    table = db.create_table("t", POINTS)
    with reading(root, table.put({"k": "a", "n": 1})) as opened:
        open_at(root, table.put({"k": "b", "n": 2}))
        assert opened.table("t").scan().count() == 1
    with pytest.raises(Closed):
        opened.tables()


def test_a_forgotten_open_is_made_anew(db: ebla.Database, root: str) -> None:
    txn = db.create_table("t", POINTS).put({"k": "a", "n": 1})
    opened = open_at(root, txn)
    db.create_table("u", POINTS)
    assert open_at(root, txn).tables() == ["t"]
    forget(root)
    assert open_at(root, txn) is not opened
    assert open_at(root, txn).tables() == ["t", "u"]
    forget(root + "/never opened")


def test_tables_are_found_by_id_and_missing_ones_are_an_error(db: ebla.Database) -> None:
    db.create_table("t", POINTS)
    state = store_of(db).table("t")
    assert table_by_id(db, state.id) is state
    with pytest.raises(UnknownTable, match="dropped"):
        table_by_id(db, "another")


def test_a_store_that_is_not_there_is_an_error(root: str) -> None:
    with pytest.raises(StoreNotFound):
        open_at(root, 0)


def test_an_open_whose_files_were_merged_and_removed_is_renewed_in_the_middle_of_a_scan(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings = ebla.Settings(background_compaction=False, history_seconds=0.0, garbage_age_seconds=0.0)
    with ebla.open(root, settings=settings) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"n": "int64"}))
        table.put([{"k": k, "n": 1} for k in range(100)])
        table.flush()
        with db.snapshot() as snapshot:
            planned = plan_scan(db, "t", native=False, as_of=snapshot)
            before = open_at(str(root.resolve()), snapshot.txn)
            table.put([{"k": k, "n": 2} for k in range(100)])
            table.compact()
            db.gc(dry_run=False)
            assert len(db.gc(dry_run=False).removed) == 2
            with pytest.raises(ebla.HistoryGone):
                list(before.table("t").scan())
            batches = [batch for one in planned.sections for batch in read_section(planned.target, one)]
            assert [row["n"] for batch in batches for row in batch.to_pylist()] == [1] * 100
            assert open_at(str(root.resolve()), snapshot.txn) is not before
    forget(str(root.resolve()))
