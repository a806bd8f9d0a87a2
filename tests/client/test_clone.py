"""Clones: by reference, at one moment, and then each table has a life of its own."""

from __future__ import annotations

import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.settings import Settings
from tests.direct.bulk_world import NUMBERS, loaded, numbers, written
from tests.support.inside import begin_job, carry_out, end_job

AT_ONCE = Settings(background_compaction=False, history_seconds=0.0, garbage_age_seconds=0.0)
SCHEMA = ebla.Schema(
    key={"k": "int64"},
    groups=[ebla.Group("g", columns={"a": "int64", "b": "string"}), ebla.Group("c", families=["f"])],
)


def rows_of(table: ebla.Table, **options: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan(**options)]


def filled(db: ebla.Database, name: str = "origin", rows: int = 60) -> ebla.Table:
    """A table with fragments, memory, a range erasure, an erasure and a partial update."""
    table = db.create_table(name, SCHEMA, splits=[20, 40])
    table.put([{"k": k, "a": k, "b": f"b{k}", "f:x": b"%d" % k} for k in range(rows)])
    table.flush()
    table.put([{"k": k, "a": -k} for k in range(0, rows, 7)])
    table.erase_range(50, 55)
    table.flush()
    table.erase(3)
    table.erase_range(30, 32)
    table.put({"k": 51, "b": "again"})
    return table


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.glob("fragments/*/*.parquet")}


def sweep(db: ebla.Database) -> None:
    db.gc(dry_run=False)
    db.gc(dry_run=False)


def test_a_clone_has_the_rows_of_its_origin_and_no_file_is_copied(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        origin = filled(db)
        origin.flush()
        before = files(tmp_path)
        clone = db.clone_table("origin", "clone")
        assert files(tmp_path) == before
        assert rows_of(clone) == rows_of(origin)
        assert [(t["first"], t["last"]) for t in clone.tablets()] == [(t["first"], t["last"]) for t in origin.tablets()]
        assert {t["id"] for t in clone.tablets()}.isdisjoint({t["id"] for t in origin.tablets()})
        assert db.tables() == ["clone", "origin"]


def test_clone_and_origin_diverge_and_stay_so_over_reopenings(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        origin, clone = filled(db), db.clone_table("origin", "clone")
        at_first = rows_of(origin)
        origin.put({"k": 0, "a": 1000})
        clone.put({"k": 1, "a": 2000})
        clone.erase_range(10, 20)
        origin.compact()
        clone.compact()
        of_origin, of_clone = rows_of(origin), rows_of(clone)
        assert of_origin != of_clone
        assert [row for row in of_origin if row["k"] != 0] == [row for row in at_first if row["k"] != 0]
        assert [row["k"] for row in of_clone] == [row["k"] for row in at_first if not 10 <= row["k"] < 20]
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        assert (rows_of(db.table("origin")), rows_of(db.table("clone"))) == (of_origin, of_clone)


@pytest.mark.parametrize("dropped", ["origin", "clone"])
def test_dropping_one_never_hurts_the_other(tmp_path: Path, dropped: str) -> None:
    other = "clone" if dropped == "origin" else "origin"
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        filled(db)
        expected = rows_of(db.clone_table("origin", "clone"))
        db.drop_table(dropped)
        sweep(db)
        assert rows_of(db.table(other)) == expected
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        sweep(db)
        assert rows_of(db.table(other)) == expected
        db.drop_table(other)
        sweep(db)
        assert files(tmp_path) == set()


def test_files_that_one_replaced_go_only_when_the_other_has_too(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        origin, clone = filled(db), db.clone_table("origin", "clone")
        expected = rows_of(clone)
        shared = files(tmp_path)
        origin.compact()
        sweep(db)
        assert shared <= files(tmp_path)
        assert rows_of(clone) == rows_of(origin) == expected
        clone.compact()
        sweep(db)
        assert shared.isdisjoint(files(tmp_path))
        assert rows_of(clone) == rows_of(origin) == expected


def test_a_clone_of_a_clone_and_a_name_that_is_taken(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        expected = rows_of(filled(db))
        db.clone_table("origin", "clone")
        again = db.clone_table("clone", "again")
        db.drop_table("origin")
        db.drop_table("clone")
        sweep(db)
        assert rows_of(again) == expected
        with pytest.raises(ebla.TableExists):
            db.clone_table("again", "again")
        with pytest.raises(ebla.UnknownTable):
            db.clone_table("origin", "other")
        with pytest.raises(ebla.SchemaError):
            db.clone_table("again", "no/name")
        assert db.tables() == ["again"]
    with ebla.open(tmp_path, read_only=True) as db, pytest.raises(ebla.ReadOnly):
        db.clone_table("again", "other")


def test_a_clone_remembers_which_rows_changed_when(tmp_path: Path) -> None:
    with ebla.open(tmp_path) as db:
        origin = db.create_table("origin", SCHEMA)
        first = origin.put({"k": 1, "a": 1})
        second = origin.put({"k": 1, "a": 2})
        clone = db.clone_table("origin", "clone")
        with pytest.raises(ebla.Conflict):
            clone.put({"k": 1, "a": 3}, if_unchanged_since=first)
        clone.put({"k": 1, "a": 3}, if_unchanged_since=second)
        assert clone.get(1, as_of=first)["a"] == 1


def test_a_commit_is_wholly_in_a_clone_or_not_at_all(tmp_path: Path) -> None:
    """Rows of one commit that are in different groups and tablets come together, while writers go on."""
    with ebla.open(tmp_path) as db:
        origin = db.create_table("origin", SCHEMA, splits=[1])
        stop = threading.Event()
        acknowledged = [0]

        def write() -> None:
            while not stop.is_set():
                n = acknowledged[0] + 1
                origin.put([{"k": k, "a": n, "f:x": b"%d" % n} for k in (0, 1)])
                acknowledged[0] = n

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(5):
                seen = acknowledged[0]
                rows = rows_of(db.clone_table("origin", f"clone{number}"))
                shown = {int(value) for row in rows for value in (row["a"], row["f:x"])}
                assert len(shown) <= 1
                assert min(shown, default=0) >= seen
        finally:
            stop.set()
            writer.join()


def test_a_bulk_job_that_ends_late_leaves_the_files_that_a_clone_needs(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        origin = db.create_table("origin", NUMBERS)
        begin_job(db, "job1", "origin")
        loaded(db, origin, "job1", numbers(range(10)))
        clone = db.clone_table("origin", "clone")
        loaded(db, origin, "job2", numbers(range(5), add=100))
        origin.compact()
        end_job(db, "job1")
        assert [row["a"] for row in clone.scan()] == list(range(10))


def test_the_jobs_of_the_origin_can_be_run_on_the_clone(tmp_path: Path) -> None:
    with ebla.open(tmp_path) as db:
        origin = db.create_table("origin", NUMBERS)
        loaded(db, origin, "job1", numbers(range(3)))
        clone = db.clone_table("origin", "clone")
        assert not carry_out(db, written(clone, "job1", numbers(range(3), add=7))).repeated
        assert [row["a"] for row in clone.scan()] == [7, 8, 9]
        assert [row["a"] for row in origin.scan()] == [0, 1, 2]


def test_a_clone_of_what_came_past_the_log_is_seen_by_readers_beside_the_writer(tmp_path: Path) -> None:
    """Nothing else says that there is something newer than what the log has: the origin, whose job it was, is gone."""
    with ebla.open(tmp_path) as db:
        db.create_table("early", NUMBERS).put({"k": 1, "a": 1})
        origin = db.create_table("origin", NUMBERS)
        loaded(db, origin, "job", numbers(range(5)))
        clone = db.clone_table("origin", "clone")
        db.drop_table("origin")
        with ebla.open(tmp_path, read_only=True) as reading:
            assert rows_of(reading.table("clone")) == rows_of(clone)
        assert not carry_out(db, written(clone, "job", numbers([9]))).repeated  # the job was the origin's


def test_clone_and_origin_may_give_a_column_of_the_files_they_share_different_types(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        origin = db.create_table("origin", ebla.Schema(key={"k": "int64"}, columns={"a": "int32"}))
        origin.put([{"k": k, "a": k} for k in range(3)])
        clone = db.clone_table("origin", "clone")
        db.alter_table("origin", change_types={"a": "decimal128(12, 0)"})
        db.alter_table("clone", change_types={"a": "float64"})
        for table, kind in ((origin, Decimal), (clone, float), (origin, Decimal)):
            row = table.get(2)
            assert row is not None
            assert (row["a"], type(row["a"])) == (2, kind)
            assert {type(one["a"]) for one in rows_of(table)} == {kind}
