"""Garbage collection on Spark: what the store itself would find, and nothing that is not certain."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ebla
from ebla.direct.place import Place
from ebla.errors import Corruption, EblaError
from ebla.pipeline import gc
from ebla.service.job_orders import Sweep, SweepResult
from ebla.settings import Settings
from ebla.tablet.garbage.candidates import Candidates
from tests.support.inside import begin_job, carry_out, coordination_of, engine_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = Settings(background_compaction=False, history_seconds=0.0, garbage_age_seconds=0.0)
COUNTS = ebla.Schema(key={"word": "string"}, columns={"n": "int64"})
garbage = sys.modules["ebla.pipeline.care.garbage"]


def flushed_thrice(db: ebla.Database, name: str) -> ebla.Table:
    table = db.create_table(name, COUNTS)
    for n in range(3):
        table.put([{"word": f"w{i}", "n": n} for i in range(9)])
        table.flush()
    return table


def files(root: str) -> set[str]:
    return {str(path.relative_to(root)) for path in Path(root).glob("fragments/*/*")}


def with_everything(db: ebla.Database, root: str) -> None:
    """Files of every kind: named, shared, replaced, strange, of a job, about to be named; a table that was dropped."""
    flushed_thrice(db, "a")
    db.clone_table("a", "b")
    flushed_thrice(db, "c").compact()
    flushed_thrice(db, "gone")
    db.drop_table("gone")
    begin_job(db, "job", "a")
    directory = Path(root, "fragments", db.table("a").stats()["id"])
    (directory / "job-00000000-0000-0000-0000-000000000000.parquet").write_bytes(b"to come")
    (directory / "stray.parquet").write_bytes(b"nobody's")
    (directory / "young.parquet").write_bytes(b"about to be named")
    engine_of(db).pending.adopt([f"fragments/{directory.name}/young.parquet"])
    Path(root, "metadata", "unknown").mkdir()


def test_a_round_finds_what_the_store_itself_finds_and_takes_up_where_it_ended(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=AT_ONCE) as db:
        with_everything(db, root)
        before = files(root)
        looked = gc(db, spark=spark)
        assert looked == db.gc()
        assert (looked.by_jobs, looked.by_writers, looked.shared, looked.unknown_tables) == (1, 1, 3, ("unknown",))
        assert looked.metadata_files > 0
        assert looked.doomed == ()
        assert files(root) == before, "a dry run, as by default"
        db.gc(dry_run=False)
        removed = gc(db, dry_run=False, spark=spark).removed
        assert len(removed) == looked.candidates
        assert files(root) == before - set(removed)
        assert {file for name in db.tables() for file in db.table(name).files()} <= files(root)
        assert [row["n"] for row in db.table("c").scan()] == [2] * 9


def test_a_job_elsewhere_has_the_owner_remove_what_it_found(root: str, spark: SparkSession) -> None:
    reports: list[Any] = []
    with ebla.open(root, settings=AT_ONCE) as db:
        flushed_thrice(db, "c").compact()
        db.gc(dry_run=False)
        assert len(gc(root, dry_run=False, spark=spark, progress=reports.append).removed) == 3
        assert {report.phase for report in reports} == {"listing", "reading METADATA", "comparing", "removing"}
        assert files(root) == set(db.table("c").files())
        assert db.stats()["garbage"]["removed_files"] == 3


def lose_metadata(root: str, table_id: str) -> None:
    for path in Path(root, "metadata", table_id).iterdir():
        path.unlink()


def test_a_run_that_cannot_read_one_table_removes_nothing(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=AT_ONCE) as db:
        flushed_thrice(db, "a").compact()
        bad = flushed_thrice(db, "bad").stats()["id"]
        for _ in range(2):
            report = db.gc(dry_run=len(db.gc().doomed) > 0)
        assert len(report.doomed) == 3, "they would go now"
        before = files(root)
        for path in Path(root, "metadata", bad).iterdir():
            path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(Corruption):
            gc(db, dry_run=False, spark=spark)
        assert files(root) == before


def test_a_clone_that_is_made_while_tables_are_read_keeps_its_files(
    root: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(root, settings=AT_ONCE) as db:
        table = flushed_thrice(db, "a")
        tables, looks = garbage.table_configs, []

        def late(place: Place) -> Any:
            found = tables(place)
            looks.append(len(found))
            if len(looks) == 2:  # after the list of tables that are to be read
                db.clone_table("a", "clone")
                table.compact()
            return found

        monkeypatch.setattr(garbage, "table_configs", late)
        report = gc(db, dry_run=False, spark=spark)
        assert report.candidates == 0, "the clone names them"
        assert len(looks) > 3, "tables were read again"
        assert [row["n"] for row in db.table("clone").scan()] == [2] * 9


# --- the owner's side, without Spark -------------------------------------------------------------


def swept(db: ebla.Database, *paths: str) -> tuple[int, ...]:
    answer = carry_out(db, Sweep("gc", paths, {}, None))
    assert isinstance(answer, SweepResult)
    return answer.kept


def test_the_owner_removes_nothing_that_it_does_not_find_unused_itself(root: str) -> None:
    with ebla.open(root, settings=AT_ONCE) as db:
        table = flushed_thrice(db, "a")
        named = table.files()
        table.compact()
        unused = sorted(files(root) - set(table.files()))
        assert swept(db, *unused) == (0, 1, 2), "no round has found them before"
        db.gc(dry_run=False)
        memory = Candidates(coordination_of(db), engine_of(db).files)
        candidates, version = memory.read()
        assert sorted(candidates) == unused == sorted(named)
        own = table.files()[0]
        memory.remember({**candidates, own: 0, "metadata/other/file": 0}, version)
        engine_of(db).pending.adopt([unused[0]])
        assert swept(db, *unused, own, "metadata/other/file") == (0, 3, 4), "in use, named, of a table that is unknown"
        assert files(root) == {unused[0], own}
        assert [row["n"] for row in table.scan()] == [2] * 9


def test_the_owner_removes_nothing_if_it_cannot_read_a_table(root: str) -> None:
    with ebla.open(root, settings=AT_ONCE) as db:
        table = flushed_thrice(db, "a")
        bad = flushed_thrice(db, "bad")
        table.compact()
        db.gc(dry_run=False)
        unused = sorted(files(root) - set(table.files()) - set(bad.files()))
        lose_metadata(root, bad.stats()["id"])
        engine_of(db).metadata.reload(bad.stats()["id"])  # or it would know by heart
        with pytest.raises(EblaError):
            swept(db, *unused)
        assert files(root) >= set(unused)


def test_many_candidates_are_remembered_in_a_file(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebla.tablet.garbage.candidates.IN_NODE_MAX", 2)
    with ebla.open(root, settings=replace(AT_ONCE, garbage_age_seconds=3600.0)) as db:
        memory = Candidates(coordination_of(db), engine_of(db).files)
        assert memory.read() == ({}, None)
        many = {f"fragments/t/{n}": n for n in range(5)}
        memory.remember(many, None)
        found, version = memory.read()
        assert found == many
        (first,) = Path(root, "garbage").iterdir()
        memory.remember({**many, "more": 1}, version)
        (second,) = Path(root, "garbage").iterdir()
        assert first != second
        memory.remember(many, version)  # another round was faster
        assert memory.read()[0] == {**many, "more": 1}
        assert list(Path(root, "garbage").iterdir()) == [second]
        second.write_bytes(b"damaged")
        found, version = memory.read()
        assert found == {}, "they become candidates again"
        memory.remember({"one": 1}, version)
        assert memory.read()[0] == {"one": 1}
        assert list(Path(root, "garbage").iterdir()) == []


def test_a_catalog_that_lost_a_table_stops_the_job_and_the_owner(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=AT_ONCE) as db:
        lost = state_of(flushed_thrice(db, "lost")).id
        flushed_thrice(db, "kept").compact()
        assert gc(db, spark=spark, dry_run=False).candidates > 0
        for path in (f"tables/{lost}", "names/lost"):
            node = coordination_of(db).read(path)
            assert node is not None
            coordination_of(db).delete(path, node.version)
        before = files(root)
        looked = gc(db, spark=spark)
        assert looked == db.gc()
        assert (looked.lost_tables, looked.doomed) == ((lost,), ())
        with pytest.raises(Corruption, match="that nobody dropped"):
            gc(db, spark=spark, dry_run=False)
        # A job that looked before the table was lost has the owner look again.
        doomed = tuple(Candidates(coordination_of(db), engine_of(db).files).read()[0])
        with pytest.raises(Corruption, match="that nobody dropped"):
            engine_of(db).garbage.sweep(Sweep("job", doomed))
        assert files(root) == before
