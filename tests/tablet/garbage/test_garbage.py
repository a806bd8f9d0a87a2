"""Garbage: what nobody names goes after two rounds, and anything that is not certain stays."""

from __future__ import annotations

import operator
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.errors import Corruption, EblaError, Unavailable
from ebla.service.job_orders import Sweep
from ebla.settings import Settings
from ebla.tablet.flush.pending_files import PendingFiles
from ebla.tablet.garbage.garbage_report import judge
from ebla.tablet.garbage.job_intents import list_intents
from tests.crash.machine import bounded
from tests.direct.bulk_world import NUMBERS, a_by_k, numbers, written
from tests.support.inside import begin_job, carry_out, coordination_of, end_job, engine_of, state_of

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

    def test_what_is_remembered_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ebla.tablet.garbage.garbage_report.CANDIDATES_MAX", 20)
        verdict = judge([f"f{n:06}" for n in range(30)], [], [], (), {}, 100, 50)
        assert len(verdict.candidates) == 20


def test_a_nursery_knows_its_files_until_they_are_grown() -> None:
    pending = PendingFiles(lambda: "id")
    path = pending.new_path("t")
    assert path == "fragments/t/id.parquet"
    assert pending.paths() == {path}
    pending.let_go([path])
    assert pending.paths() == frozenset()


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


def test_the_bytes_that_a_job_has_removed_are_counted(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "store", settings=Settings(garbage_age_seconds=0.0, background_compaction=False)) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"v": "int64"}))
        for value in range(2):
            table.put({"k": 1, "v": value})
            table.flush()
        old = tuple(table.files())
        size = sum((db.path / file).stat().st_size for file in old)
        table.compact()
        assert db.gc(dry_run=False).removed == ()  # seen for the first time
        carry_out(db, Sweep("gc", old, None, None))
        counted = db.stats()["garbage"]
        assert (counted["removed_files"], counted["removed_bytes"]) == (2, size)


def test_files_of_a_dropped_table_go(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        flushed_thrice(db)
        db.create_table("other", COUNTS).put({"word": "a", "n": 1})
        db.table("other").flush()
        db.drop_table("counts")
        db.gc(dry_run=False)
        removed = db.gc(dry_run=False).removed
        assert sum(path.startswith("fragments/") for path in removed) == 3
        assert db.table("other").get("a")["n"] == 1
        assert files(tmp_path) == 1


def test_a_table_that_is_dropped_during_a_round_makes_it_look_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        flushed_thrice(db)
        directory = engine_of(db).metadata.directory
        configs = directory.configs

        def dropped_since() -> Any:
            found = configs()
            monkeypatch.undo()
            db.drop_table("counts")
            return found

        monkeypatch.setattr(directory, "configs", dropped_since)
        assert db.gc(dry_run=False).candidates > 0
        assert len(db.gc(dry_run=False).removed) > 0
        assert files(tmp_path) == 0


def test_metadata_that_cannot_be_read_keeps_everything(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        table = flushed_thrice(db)
        table.compact()
        db.gc(dry_run=False)
        other = db.create_table("other", COUNTS)
        for file in (tmp_path / "metadata" / state_of(other).id).iterdir():
            file.unlink()
        engine_of(db).metadata.reload(state_of(other).id)
        with pytest.raises(EblaError):
            db.gc(dry_run=False)
        assert files(tmp_path) == 4


def test_a_round_in_the_background_that_fails_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ebla.open(tmp_path, settings=replace(AT_ONCE, garbage_round_seconds=0.0)) as db:
        flushed_thrice(db)

        def fails(table_id: str) -> Any:
            raise Unavailable("not now")

        with monkeypatch.context() as patched:
            patched.setattr(engine_of(db).metadata, "refresh", fails)
            engine_of(db).compactor._work(True)
        assert "garbage collection was given up: not now" in caplog.text
        stats = db.stats()
        assert (stats["compactions"]["failure"], stats["garbage"]["failure"]) == (None, "not now")
        engine_of(db).compactor._work(True)
        assert db.stats()["garbage"]["failure"] is None


def test_files_of_a_job_under_way_stay(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        table = flushed_thrice(db)
        intent = begin_job(db, "job1", "counts")
        (tmp_path / f"{intent.prefix}{uuid.uuid4()}.parquet").write_bytes(b"under way")
        for _ in range(3):
            db.gc(dry_run=False)
        assert files(tmp_path) == 4
        end_job(db, "job1")
        assert files(tmp_path) == 3
        assert [row["n"] for row in table.scan()] == [2] * 9


def test_what_dead_jobs_have_announced_goes_when_its_time_is_over(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        flushed_thrice(db)
        begin_job(db, "dead", "counts", expires_seconds=0.0)
        alive = begin_job(db, "alive", "counts")
        engine_of(db).sweeper.sweep()
        assert list_intents(coordination_of(db)) == [alive]


def test_it_happens_by_itself(tmp_path: Path) -> None:
    settings = Settings(history_seconds=0.0, garbage_age_seconds=0.0, garbage_round_seconds=0.0)
    with ebla.open(tmp_path, settings=settings) as db:
        table = flushed_thrice(db)
        table.compact()

        def wait() -> None:
            while files(tmp_path) > 1:
                engine_of(db).compactor.wake()
                time.sleep(0.001)

        bounded(wait)
        assert [row["n"] for row in table.scan()] == [2] * 9


def test_a_file_that_is_about_to_be_named_after_all_is_not_removed() -> None:
    pending = PendingFiles(lambda: "id")
    deleted: list[str] = []
    pending.adopt(["a"])
    assert not pending.remove("a", deleted.append)
    pending.let_go(["a"])
    assert pending.remove("a", deleted.append)
    assert deleted == ["a"]


def metadata_files(path: Path, table: ebla.Table) -> int:
    return len(list((path / "metadata" / state_of(table).id).glob("*")))


def test_metadata_of_a_dropped_table_goes_and_its_id_stays_used(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        dropped, other = flushed_thrice(db), db.create_table("other", COUNTS)
        db.drop_table("counts")
        assert metadata_files(tmp_path, dropped) > 0
        first = db.gc(dry_run=False)
        assert first.metadata_files == metadata_files(tmp_path, dropped)
        db.gc(dry_run=False)
        assert metadata_files(tmp_path, dropped) == 0
        assert metadata_files(tmp_path, other) > 0
        assert engine_of(db).metadata.directory.config(state_of(dropped).id).state == "deleted"
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        assert db.tables() == ["other"]
        assert db.gc(dry_run=False).doomed == ()


def test_metadata_of_a_table_that_nobody_knows_stays_and_is_shown(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        flushed_thrice(db)
        (tmp_path / "metadata" / "stranger").mkdir()
        (tmp_path / "metadata" / "stranger" / "x.meta").write_bytes(b"?")
        for _ in range(3):
            assert db.gc().unknown_tables == ("stranger",)
            with pytest.raises(Corruption, match="metadata/stranger"):
                db.gc(dry_run=False)
        assert (tmp_path / "metadata" / "stranger" / "x.meta").exists()


@pytest.mark.parametrize(
    "broken",
    [
        "files.list",
        "files.list_directories",
        "metadata.refresh",
        "metadata.directory.configs",
        "garbage._coordination.list",
        "garbage._coordination.read",
    ],
)
@pytest.mark.parametrize("error", [OSError("the disk"), Unavailable("not now")], ids=["disk", "service"])
def test_any_error_while_looking_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, error: Exception
) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        table = flushed_thrice(db)
        table.compact()
        db.gc(dry_run=False)
        owner, _, name = broken.rpartition(".")
        target = operator.attrgetter(owner)(engine_of(db))
        right = getattr(target, name)

        def fails(*arguments: Any, **options: Any) -> Any:
            raise error

        monkeypatch.setattr(target, name, fails)
        with pytest.raises(EblaError):
            db.gc(dry_run=False)
        assert engine_of(db).garbage.failure is not None
        monkeypatch.setattr(target, name, right)
        assert files(tmp_path) == 4
        assert len(db.gc(dry_run=False).removed) == 3
        assert db.stats()["garbage"]["failure"] is None


def test_a_file_that_cannot_be_removed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        flushed_thrice(db).compact()
        db.gc(dry_run=False)
        delete = type(engine_of(db).files).delete

        def fails(self: Any, path: str) -> None:
            raise OSError("busy")

        monkeypatch.setattr(type(engine_of(db).files), "delete", fails)
        assert db.gc(dry_run=False).removed == ()
        monkeypatch.setattr(type(engine_of(db).files), "delete", delete)
        for _ in range(2):
            db.gc(dry_run=False)
        assert files(tmp_path) == 1


def test_stats_tell_what_is_held_and_why(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        table = flushed_thrice(db)
        db.clone_table("counts", "clone")
        db.snapshot("monday")
        begin_job(db, "job1", "counts")
        table.compact()
        with db.snapshot():
            db.gc(dry_run=False)
            garbage = db.stats()["garbage"]
            assert garbage["held"]["snapshots"].keys() == {"monday"}
            assert garbage["held"]["readers_here"] == 1
            assert garbage["held"]["jobs"].keys() == {"job1"}
        found = garbage["last_round"]
        assert (found["files"], found["named"], found["shared"], found["candidates"]) == (4, 4, 0, 0)
        clone = db.clone_table("clone", "again")
        assert clone.name == "again"
        db.gc(dry_run=False)
        assert db.stats()["garbage"]["last_round"]["shared"] == 3


def test_stats_tell_whose_records_hold_the_log(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        table = flushed_thrice(db)
        assert db.stats()["log_held_by"] is None
        txn = table.put({"word": "a", "n": 1})
        table.put({"word": "b", "n": 1})
        assert db.stats()["log_held_by"] == {"table": "counts", "group": "g", "txn": txn}


def test_stats_tell_how_much_is_written_for_what_was_put(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        assert db.stats()["writing"]["amplification"] is None
        table = flushed_thrice(db)
        flushed = db.stats()["writing"]
        assert flushed["ingested_bytes"] > 0
        assert flushed["flushed_bytes"] == sum(file.stat().st_size for file in tmp_path.glob("fragments/*/*"))
        assert flushed["amplification_on_disk"] == 1.0
        table.compact()
        after = db.stats()["writing"]
        assert after["compacted_bytes"] == db.stats()["compactions"]["bytes_written"] > 0
        assert after["amplification"] > flushed["amplification"]
        assert db.stats()["tables"]["counts"]["groups"]["g"]["fragments_deep"] == 1


def test_a_bulk_commit_that_comes_at_the_last_moment_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=AT_ONCE) as db:
        table = db.create_table("t", NUMBERS)
        commit = written(table, "late", numbers(range(10)))
        db.gc(dry_run=False)
        candidates = engine_of(db).garbage._candidates
        read = candidates.read

        def late() -> Any:
            monkeypatch.undo()
            carry_out(db, commit)  # METADATA was read before that
            return read()

        monkeypatch.setattr(candidates, "read", late)
        report = db.gc(dry_run=False)
        assert len(report.doomed) == 1
        assert report.removed == ()
        assert a_by_k(table) == {key: key for key in range(10)}
