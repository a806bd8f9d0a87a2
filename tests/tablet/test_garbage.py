"""Garbage: what nobody names goes after two rounds, and anything that is not certain stays."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

import ebla
from ebla.errors import EblaError
from ebla.settings import Settings
from ebla.tablet.garbage import CANDIDATES_MAX, Nursery, judge
from tests.crash.machine import bounded

AT_ONCE = Settings(background_compaction=False, history_seconds=0.0, garbage_age_seconds=0.0)
COUNTS = ebla.Schema(key={"word": "string"}, groups=[ebla.Group("g", columns={"n": "int64"}, max_versions=1)])


class TestJudge:
    def test_a_file_goes_when_two_rounds_found_it_unused_far_enough_apart(self) -> None:
        first = judge(["a", "b"], ["b"], [], (), {}, 100, 50)
        assert first.doomed == ()
        assert first.candidates == {"a": 100}
        assert judge(["a"], [], [], (), first.candidates, 149, 50).doomed == ()
        assert judge(["a"], [], [], (), first.candidates, 150, 50).doomed == ("a",)

    def test_a_candidate_that_was_named_meanwhile_begins_anew(self) -> None:
        named = judge(["a"], ["a"], [], (), {"a": 1}, 100, 50)
        assert named.candidates == {}
        assert judge(["a"], [], [], (), named.candidates, 200, 50).doomed == ()

    def test_what_is_about_to_be_named_stays(self) -> None:
        listed = ["fragments/t/young", "fragments/t/job1-x", "fragments/t/job2-x"]
        known = dict.fromkeys(listed, 0)
        verdict = judge(listed, [], ["fragments/t/young"], ("fragments/t/job1-",), known, 100, 50)
        assert verdict.doomed == ("fragments/t/job2-x",)
        assert verdict.candidates == {}

    def test_what_is_remembered_is_bounded(self) -> None:
        verdict = judge([f"f{n:06}" for n in range(CANDIDATES_MAX + 10)], [], [], (), {}, 100, 50)
        assert len(verdict.candidates) == CANDIDATES_MAX


def test_a_nursery_knows_its_files_until_they_are_grown() -> None:
    nursery = Nursery(lambda: "id")
    path = nursery.new_path("t")
    assert path == "fragments/t/id.parquet"
    assert nursery.young() == {path}
    nursery.grown([path])
    assert nursery.young() == frozenset()


def files(path: Path) -> int:
    return len(list(path.glob("fragments/*/*.parquet")))


def flushed_thrice(db: ebla.Database) -> ebla.Table:
    table = db.create_table("counts", COUNTS)
    for n in range(3):
        table.put([{"word": f"w{i}", "n": n} for i in range(9)])
        table.flush()
    return table


def test_files_that_a_compaction_replaced_go_and_the_rows_stay(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        table = flushed_thrice(db)
        table.compact()
        assert files(tmp_path) == 4
        looked = db.gc()
        assert (looked.files, looked.named, looked.candidates, looked.doomed) == (4, 1, 3, ())
        assert db.gc().candidates == 3, "a dry run remembers nothing"
        db.gc(dry_run=False)
        assert files(tmp_path) == 4
        assert len(db.gc(dry_run=False).removed) == 3
        assert files(tmp_path) == 1
        assert [row["n"] for row in table.scan()] == [2] * 9
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        assert [row["n"] for row in db.table("counts").scan()] == [2] * 9


def test_files_of_a_dropped_table_go(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        flushed_thrice(db)
        db.create_table("other", COUNTS).put({"word": "a", "n": 1})
        db.table("other").flush()
        db.drop_table("counts")
        db.gc(dry_run=False)
        assert len(db.gc(dry_run=False).removed) == 3
        assert db.table("other").get("a")["n"] == 1
        assert files(tmp_path) == 1


def test_metadata_that_cannot_be_read_keeps_everything(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        table = flushed_thrice(db)
        table.compact()
        db.gc(dry_run=False)
        other = db.create_table("other", COUNTS)
        for file in (tmp_path / "metadata" / other._state.id).iterdir():
            file.unlink()
        db._store.metadata._forget(other._state.id)
        with pytest.raises(EblaError):
            db.gc(dry_run=False)
        assert files(tmp_path) == 4


def test_files_of_a_job_under_way_stay(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        table = flushed_thrice(db)
        intent = db.begin_job("job1", "counts")
        (tmp_path / f"{intent.prefix}{uuid.uuid4()}.parquet").write_bytes(b"under way")
        for _ in range(3):
            db.gc(dry_run=False)
        assert files(tmp_path) == 4
        db.end_job("job1")
        assert files(tmp_path) == 3
        assert [row["n"] for row in table.scan()] == [2] * 9


def test_it_happens_by_itself(tmp_path: Path) -> None:
    settings = Settings(history_seconds=0.0, garbage_age_seconds=0.0, garbage_round_seconds=0.0)
    with ebla.open(tmp_path, settings=settings) as db:
        table = flushed_thrice(db)
        table.compact()

        def wait() -> None:
            while files(tmp_path) > 1:
                db._store._compactor.wake()
                time.sleep(0.001)

        bounded(wait)
        assert [row["n"] for row in table.scan()] == [2] * 9


def test_a_file_that_is_about_to_be_named_after_all_is_not_removed() -> None:
    nursery = Nursery(lambda: "id")
    deleted: list[str] = []
    nursery.adopt(["a"])
    assert not nursery.remove("a", deleted.append)
    nursery.grown(["a"])
    assert nursery.remove("a", deleted.append)
    assert deleted == ["a"]
