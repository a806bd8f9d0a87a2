"""Reading a store from another process: beside a writer that flushes and deletes its log, and after its death.

A read-only opening sees everything that was acknowledged before it began, no commit in part, and nothing that comes
later; it takes no lock, and the writer goes on.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ebla
from ebla.client.embedded.opening import open_alone
from tests.recovery.process import ROOT, Held, writer
from tests.recovery.work import SCHEMA, SMALL, SPLITS, TABLE, Work
from tests.support.inside import engine_of

THREADS = 2
FAR = 1 << 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with ebla.open(path, settings=SMALL) as db:
        table = db.create_table(TABLE, SCHEMA, SPLITS)
        for number in range(3):
            Work(0).act(number, table)
    return path


def listing(path: Path) -> dict[str, str]:
    """Return all files of a store with what is in them."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def test_a_reader_sees_all_that_was_acknowledged_and_the_writer_goes_on(path: Path) -> None:
    held = Held(THREADS)
    with writer(path, [3, 0]) as process:
        for _ in range(4):
            process.read_lines(60)
            process.drain()
            synced = list(process.synced)
            with ebla.open(path, read_only=True) as db:
                counts = held.find(db, synced, [FAR] * THREADS)
                before = list(db.table(TABLE).scan())
                process.read_lines(60)  # the reader is open, and the writer gets on
                assert list(db.table(TABLE).scan()) == before, "what a reader sees does not change"
                assert all(acked >= count for acked, count in zip(process.acked, counts, strict=True))
                with pytest.raises(ebla.ReadOnly):
                    db.table(TABLE).put({"place": "a", "thread": 9, "row": 9, "number": 9})
                with pytest.raises(ebla.ReadOnly):
                    db.drop_table(TABLE)
        process.finish()
    with ebla.open(path, read_only=True) as db:
        assert held.find(db, process.acked, process.acked) == process.acked


def test_a_reader_works_without_a_writer_and_changes_no_file(path: Path) -> None:
    before = listing(path)
    with ebla.open(path, read_only=True) as db:
        Held(1).find(db, [3], [3])
        assert db.read_only
        assert db.tables() == [TABLE]
    assert listing(path) == before


def test_a_reader_works_after_the_death_of_the_writer_and_leaves_recovery_to_the_next_one(path: Path) -> None:
    with writer(path, [3]) as process:
        process.read_lines(50)
        process.kill()
    logs = {name: digest for name, digest in listing(path).items() if name.startswith(("log/", "metadata/"))}
    with ebla.open(path, read_only=True) as db:
        seen = Held(1).find(db, process.synced, [process.acked[0] + 1])
    assert {name: digest for name, digest in listing(path).items() if name in logs} == logs
    with ebla.open(path, settings=SMALL) as db:
        assert Held(1).find(db, process.synced, [process.acked[0] + 1]) == seen


def test_a_reader_outlives_the_writer_it_was_opened_beside(path: Path) -> None:
    with writer(path, [3]) as process:
        process.read_lines(80)
        with ebla.open(path, read_only=True) as db:
            before = list(db.table(TABLE).scan())
            process.kill()
            assert list(db.table(TABLE).scan()) == before
            with ebla.open(path, settings=SMALL) as next_writer:  # nor does a reader keep the next writer out
                next_writer.table(TABLE).put({"place": "z", "thread": -1, "row": 0, "number": 1})
                next_writer.table(TABLE).flush()
                assert list(db.table(TABLE).scan()) == before


def test_a_reader_may_open_while_tables_come_and_go(path: Path) -> None:
    script = (
        "import sys, ebla\n"
        "db = ebla.open(sys.argv[1])\n"
        "for n in range(100_000):\n"
        "    t = db.create_table(f't{n % 3}', ebla.Schema(columns={'v': 'int64'}))\n"
        "    t.put({'row': b'x', 'v': n})\n"
        "    print(n, flush=True)\n"
        "    db.drop_table(t.name)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        for _ in range(40):
            assert process.stdout.readline()
            with ebla.open(path, read_only=True) as db:
                assert TABLE in db.tables()
                for name in set(db.tables()) - {TABLE}:
                    assert len(list(db.table(name).scan())) <= 1
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_second_writer_is_refused_at_once_and_told_who_has_the_store(path: Path) -> None:
    with writer(path, [3]) as process:
        process.read_lines(5)
        with pytest.raises(ebla.StoreLocked, match=f"process {process.process.pid} .*read_only"):
            ebla.open(path)
        process.read_lines(5)
        process.kill()
    with ebla.open(path) as db:  # the lock went with the process
        with pytest.raises(ebla.StoreLocked, match="this process"):
            open_alone(path)
        db.table(TABLE).put({"place": "a", "thread": 9, "row": 9, "number": 9})
    with ebla.open(path) as db:
        assert db.table(TABLE).get(("a", 9, 9))["number"] == 9


def test_there_is_nothing_to_read_where_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(ebla.StoreNotFound):
        ebla.open(tmp_path / "nothing", read_only=True)
    with pytest.raises(ebla.StoreNotFound):
        ebla.open(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").write_bytes(b"text")
    with pytest.raises(ebla.StoreNotFound, match="file"):
        ebla.open(tmp_path / "file")
    assert os.listdir(tmp_path) == ["file"]


def test_a_reader_whose_files_were_merged_and_removed_is_told_to_open_again_and_nothing_is_lost(tmp_path: Path) -> None:
    settings = ebla.Settings(background_compaction=False, history_seconds=0.0, garbage_age_seconds=0.0)
    schema = ebla.Schema(key={"k": "int64"}, columns={"n": "int64"})
    with ebla.open(tmp_path, settings=settings) as db:
        table = db.create_table("t", schema, splits=[50])
        table.put([{"k": k, "n": 1} for k in range(100)])
        table.flush()
        db.snapshot("monday")
        before = ebla.open(tmp_path, read_only=True)
        assert before.table("t").get(1) == {"k": 1, "n": 1}  # one tablet is loaded, the other is not
        table.put([{"k": k, "n": 2} for k in range(100)])
        table.compact()
        db.gc(dry_run=False)
        assert len(db.gc(dry_run=False).removed) > 0
        engine_of(before).fragments.forget(list(engine_of(before).table("t").view.metadata.files()))
        old = before.table("t")
        for read in (lambda: old.get(2), lambda: old.get(60), lambda: old.get_many([2, 60]), lambda: list(old.scan())):
            with pytest.raises(ebla.HistoryGone, match="open it again"):
                read()
        before.close()
        with ebla.open(tmp_path, read_only=True) as again:
            assert [row["n"] for row in again.snapshot("monday").table("t").scan()] == [1] * 100
        (tmp_path / table.files()[0]).unlink()  # this one is lost
        with ebla.open(tmp_path, read_only=True) as again, pytest.raises(ebla.MissingFile, match="backup"):
            list(again.table("t").scan())
