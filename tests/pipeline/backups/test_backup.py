"""Backups: one txn of some tables, full or incremental; and restores at any of them, new or in place."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import ebla
from ebla.clock import ManualClock
from ebla.pipeline.backups.backup import BackupSummary, backup
from ebla.pipeline.backups.checking import check_backup
from ebla.pipeline.backups.manifest import (
    LOCK_NAME,
    MANIFEST_NAME,
    BackupManifest,
    list_backups,
    read_manifest,
    remove_unfinished,
    write_manifest,
)
from ebla.pipeline.backups.restore import restore
from ebla.pipeline.spark.progress import JobProgress
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.garbage.job_intents import list_intents
from ebla.tablet.garbage.pins import Pins
from tests.pipeline.tables import EVERYTHING, fill
from tests.support.inside import coordination_of, engine_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = ebla.Schema(key={"n": "int64"}, columns={"v": "string"})
DAY = date(2026, 1, 1)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The place of backups."""
    return tmp_path / "backups"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[ebla.Database]:
    """Another store."""
    with ebla.open(tmp_path / "other") as opened:
        yield opened


@pytest.fixture
def plain(db: ebla.Database) -> ebla.Table:
    table = db.create_table("plain", PLAIN, splits=[5])
    table.put([{"n": n, "v": f"v{n}"} for n in range(10)])
    return table


def rows(table: ebla.Table, **more: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan(**more)]


def held(db: ebla.Database) -> tuple[object, ...]:
    """What keeps versions and files of a store from going, but for a file that its own flushes are just making."""
    deadline = time.monotonic() + 10
    while engine_of(db).pending.paths() and time.monotonic() < deadline:
        time.sleep(0.02)
    return (
        db.snapshots(),
        engine_of(db).pins.held_here(),
        [*list_intents(coordination_of(db)), *coordination_of(db).list("held")],
        set(engine_of(db).pending.paths()),
        [*(db.path / "bulk").glob("*.lock")],
    )


NOTHING: tuple[object, ...] = ({}, {}, [], set(), [])


def directories(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir()) if path.exists() else []


def files_in(db: ebla.Database) -> set[Path]:
    return set((db.path / "fragments").glob("*/*"))


# --- what is in a backup -----------------------------------------------------------------------------


def test_all_of_a_table_comes_back_in_another_store(
    spark: SparkSession, db: ebla.Database, other: ebla.Database, there: Path
) -> None:
    users = db.create_table("users", EVERYTHING, splits=[("u020",)])
    fill(users)
    done = backup(db, "users", there, spark=spark)
    assert (done.kind, done.base, done.rows, done.new_files) == ("full", None, users.scan().count(), done.files)
    assert held(db) == NOTHING
    manifest = read_manifest(there / done.id)
    assert manifest.txn == done.txn == users.scan().txn
    (saved,) = manifest.tables
    assert saved.key == {"user": "string", "day": "date32[day]"}
    assert [group.name for group in saved.groups] == ["profile", "events", "rest"]
    assert saved.groups[0].columns["price"] == "decimal128(12, 2)"
    assert len(saved.splits) == 1
    assert {file.path for file in manifest.files} == {
        str(file.relative_to(there / done.id)) for file in (there / done.id / "fragments").glob("*/*")
    }
    for file in users.files():
        assert (there / done.id / file).read_bytes() == (db.path / file).read_bytes()
    assert directories(there / done.id) == [MANIFEST_NAME, "fragments"]

    back = restore(there, other, "users", spark=spark)
    copy = other.table("users")
    assert (back.rows, back.backup, back.backup_txn, back.in_place) == (done.rows, done.id, done.txn, False)
    assert rows(copy) == rows(users)
    assert rows(copy, versions=5) == rows(users, versions=5)
    assert rows(copy, as_of=done.txn) == rows(users)
    assert copy.schema == users.schema
    assert [tablet["first"] for tablet in copy.tablets()] == [tablet["first"] for tablet in users.tablets()]
    assert held(other) == NOTHING
    assert other.verify().is_clean
    copy.put({"user": "u001", "day": DAY, "age": 77})
    copy.compact()
    assert (copy.get(("u001", DAY)) or {})["age"] == 77


def test_increments_have_what_is_new_and_each_can_be_restored(
    spark: SparkSession, db: ebla.Database, other: ebla.Database, there: Path
) -> None:
    """Between them tablets are cut, files merged, the schema changed, the table dropped and made anew."""
    schema = ebla.Schema(
        key={"k": "string"},
        groups=[
            ebla.Group("g", columns={"a": "int64", "b": "string"}),
            ebla.Group("cells", families=["tag"], max_versions="all"),
        ],
    )
    table = db.create_table("t", schema)
    expected: dict[str, list[Any]] = {}
    done: list[BackupSummary] = []

    def keep() -> None:
        since = done[-1].id if done else None
        # By turns as the owner of the store, and as somebody else.
        done.append(backup(db if len(done) % 2 else str(db.path), ["t"], there, since=since, spark=spark))
        expected[done[-1].id] = [rows(db.table("t")), rows(db.table("t"), versions=9)]

    table.put([{"k": f"k{n:02}", "a": n, "b": "x", "tag:v": b"0"} for n in range(30)])
    table.flush()
    keep()
    keep()
    assert (done[1].new_files, done[1].files, done[1].kind) == (0, done[0].files, "incremental")
    table.put([{"k": "k03", "a": 100}, {"k": "k20", "tag:v": b"1"}, {"k": "new", "tag:w": b"1"}])
    table.erase_range("k10", "k15")
    keep()
    assert 0 < done[2].new_bytes < done[2].bytes
    table.split("k12")
    db.alter_table("t", add_columns={"g": {"c": "int64"}}, rename={"a": "z"}, drop_columns=["b"])
    table = db.table("t")
    table.put([{"k": "k04", "c": 5, "z": None}])
    keep()
    table.compact()
    table.erase_many(["k05", "k25"])
    keep()
    db.clone_table("t", "second")
    db.drop_table("t")
    db.clone_table("second", "t").put({"k": "clone", "z": 1})
    keep()
    db.drop_table("t")
    db.create_table("t", schema).put({"k": "anew", "b": "y"})
    keep()
    assert held(db) == NOTHING
    assert [one.id for one in list_backups(there).complete] == [one.id for one in done]
    assert read_manifest(there / done[3].id).chain[:1] == [done[0].id]
    assert read_manifest(there / done[6].id).chain == []  # nothing of the one before is in it
    for number, one in enumerate(done):
        if number == 1:
            continue  # it is the first once more
        restore(there, other if number % 2 else str(other.path), f"t{number}", of="t", at=one.txn if number else one.id)
        found = other.table(f"t{number}")
        assert [rows(found), rows(found, versions=9)] == expected[one.id]
        assert sorted(found.schema.resolve(name).group.name for name in ("tag:v",)) == ["cells"]


def test_several_tables_are_of_one_moment_and_empty_ones_come_along(
    spark: SparkSession, db: ebla.Database, plain: ebla.Table, other: ebla.Database, there: Path
) -> None:
    db.create_table("empty", PLAIN, splits=[1, 2], fixed=True)
    done = backup(db, None, there, spark=spark)
    assert (done.tables, done.rows) == (("empty", "plain"), 10)
    assert restore(there, other, "empty", spark=spark).files == 0
    assert (len(other.table("empty").tablets()), other.table("empty").scan().count()) == (3, 0)
    with pytest.raises(ebla.CannotSplit, match="fixed"):
        other.table("empty").split(7)
    with pytest.raises(ebla.RequestError, match="has no table 'something', it has empty, plain: say which"):
        restore(there, other, "something", spark=spark)
    assert restore(there, other, "something", of="plain", spark=spark).rows == 10


def test_a_backup_beside_writers_is_one_moment(
    spark: SparkSession, root: str, there: Path, other: ebla.Database
) -> None:
    """Each commit raises all rows of a table by one; flushes, merges and garbage go on meanwhile."""
    settings = Settings(flush_bytes=4_096, memory_bytes_max=65_536, garbage_age_seconds=0.0, history_seconds=0.0)
    with ebla.open(root, settings=settings) as db:
        table = db.create_table("t", ebla.Schema(key={"n": "int64"}, columns={"v": "int64"}), splits=[10])
        table.put([{"n": n, "v": 0} for n in range(20)])
        stop = threading.Event()

        def write() -> None:
            version = 0
            while not stop.wait(0.003):
                version += 1
                table.put([{"n": n, "v": version} for n in range(20)])

        def care() -> None:
            while not stop.wait(0.05):
                table.compact()
                db.gc(dry_run=False)

        threads = [threading.Thread(target=work) for work in (write, care)]
        for thread in threads:
            thread.start()
        try:
            done = [
                backup(source, "t", there, since=since, spark=spark)
                for source, since in ((db, None), (root, "last"), (db, "last"))
            ]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert held(db) == NOTHING
    seen = []
    for number, one in enumerate(done):
        assert restore(there, other, f"t{number}", of="t", at=one.id, spark=spark).rows == 20
        (version,) = {row["v"] for row in rows(other.table(f"t{number}"))}
        seen.append(version)
    assert seen == sorted(seen)
    assert seen[0] < seen[2]


def test_a_store_that_another_process_holds_is_backed_up_and_restored_into(
    spark: SparkSession, root: str, plain: ebla.Table, db: ebla.Database, there: Path
) -> None:
    plain.flush()
    db.close()
    script = (
        "import ebla, sys\n"
        f"with ebla.open({root!r}) as db:\n"
        "    db.table('plain').put({'n': 10, 'v': 'in memory'})\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
        "    print(db.snapshots(), len(list(db.table('back').scan())), db.table('plain').scan().count(), flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        with ebla.open(root, read_only=True) as reading:
            assert backup(reading, "plain", there, spark=spark).rows == 11
        assert restore(there, root, "back", of="plain", spark=spark).rows == 11
        assert restore(there, root, "plain", in_place=True, spark=spark).rows == 11
        owner.stdin.close()
        assert owner.stdout.read() == "{} 11 11\n"
    assert owner.returncode == 0


# --- in place ----------------------------------------------------------------------------------------


def test_in_place_a_table_is_what_it_was(
    spark: SparkSession, db: ebla.Database, plain: ebla.Table, there: Path
) -> None:
    before = backup(db, "plain", there, spark=spark)
    expected = rows(plain)
    db.alter_table("plain", add_columns={"more": "int64"})
    damage = db.table("plain").erase_range(2, 8)
    with pytest.raises(ebla.TableExists, match="in_place=True"):
        restore(there, db, "plain", spark=spark)
    with pytest.raises(ebla.UnknownTable, match="without in_place"):
        restore(there, db, "nobody", of="plain", in_place=True, spark=spark)
    done = restore(there, db, "plain", in_place=True, spark=spark)
    assert rows(db.table("plain")) == expected
    assert db.tables() == ["plain"]
    assert done.txn > (damage or 0) > before.txn
    with pytest.raises(ebla.HistoryGone):
        rows(db.table("plain"), as_of=damage)
    after = backup(db, "plain", there, since="last", spark=spark)
    restore(there, db, "copy", of="plain", at=after.id, spark=spark)
    assert rows(db.table("copy")) == expected


# --- what goes wrong ---------------------------------------------------------------------------------


def test_a_backup_that_fails_leaves_nothing_and_holds_nothing(
    spark: SparkSession, db: ebla.Database, plain: ebla.Table, there: Path
) -> None:
    for source in (db, str(db.path)):
        for phase in ("copying", "counting"):

            def fail(progress: JobProgress, at: str = phase) -> None:
                if progress.phase == at:
                    assert engine_of(db).pins.oldest() is not None
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                backup(source, "plain", there, spark=spark, progress=fail)
            assert directories(there) == []
            assert held(db) == NOTHING
    plain.flush()
    (db.path / plain.files()[0]).unlink()
    with pytest.raises(ebla.MissingFile, match=r"fragments.*\.parquet is gone.*ebla verify"):
        backup(db, "plain", there, spark=spark)
    assert directories(there) == []


def test_what_a_killed_backup_has_left_is_known_and_goes(
    spark: SparkSession, db: ebla.Database, plain: ebla.Table, there: Path
) -> None:
    script = (
        "import os, ebla.pipeline as pipeline\n"
        "import ebla.pipeline.backups.backup\n"
        "import sys\n"
        "module = sys.modules['ebla.pipeline.backups.backup']\n"
        "module.copy_files = lambda *more: os._exit(9)\n"
        f"module.backup({str(db.path)!r}, 'plain', {str(there)!r}, spark=False)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    (left,) = engine_of(db).pins.all()
    assert left.name.startswith("backup-")
    assert left.expires_microseconds is not None
    found = list_backups(there)
    assert (len(found.complete), len(found.unfinished)) == (0, 1)
    assert backup(db, "plain", there, spark=spark).rows == 10
    assert Pins(coordination_of(db), ManualClock(left.expires_microseconds)).remove_expired() == [left.name]
    assert held(db) == NOTHING
    with LocalFiles(there / found.unfinished[0]).lock(LOCK_NAME):  # somebody is still at it
        assert remove_unfinished(there, found.unfinished) == []
    assert remove_unfinished(there, found.unfinished) == found.unfinished
    assert len(list_backups(there).complete) == len(directories(there)) == 1


def test_a_table_that_is_offline_dropped_or_altered_meanwhile_is_backed_up_as_it_was(
    spark: SparkSession, db: ebla.Database, plain: ebla.Table, there: Path
) -> None:
    expected = rows(plain)

    def alter(progress: JobProgress) -> None:
        if progress.phase == "counting" and "more" not in str(db.table("plain").schema):
            db.alter_table("plain", add_columns={"more": "int64"})

    def drop(progress: JobProgress) -> None:
        if progress.phase == "counting" and "plain" in db.tables():
            db.drop_table("plain")
            for _ in range(2):
                db.gc(dry_run=False)

    db.unload_table("plain")
    assert backup(db, "plain", there, spark=spark).rows == 10  # offline, it is counted from the copies
    db.load_table("plain")
    first = backup(db, "plain", there, spark=spark, progress=alter)
    second = backup(db, "plain", there, spark=spark, progress=drop)
    assert (first.rows, second.rows, db.tables()) == (10, 10, [])
    restore(there, db, "first", of="plain", at=first.id, spark=spark)
    restore(there, db, "second", of="plain", at=second.id, spark=spark)
    assert rows(db.table("first")) == expected
    assert rows(db.table("second")) == [{**row, "more": None} for row in expected]


def tampered(manifest: BackupManifest, directory: Path, **changes: Any) -> None:
    """Write a manifest that is right in itself, and says something else."""
    (directory / MANIFEST_NAME).unlink()
    write_manifest(directory, msgspec.structs.replace(manifest, **changes))


def test_what_is_missing_or_damaged_is_named_before_anything_changes(
    spark: SparkSession, db: ebla.Database, plain: ebla.Table, other: ebla.Database, there: Path
) -> None:
    first = backup(db, "plain", there, spark=spark)
    plain.put({"n": 3, "v": "newer"})
    second = backup(db, "plain", there, since=first.txn, spark=spark)
    manifest = read_manifest(there / second.id)
    assert manifest.chain == [first.id]
    file = manifest.own_files()[0]
    path = there / second.id / file.path

    def refused(kind: type[Exception], match: str, **more: Any) -> None:
        with pytest.raises(kind, match=match):
            restore(there, other, "t", of="plain", spark=spark, **more)
        assert other.tables() == []
        assert held(other) == NOTHING
        assert files_in(other) == set()

    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    refused(ebla.Corruption, f"{path.name}.*SHA-256")
    path.write_bytes(content[:-1])
    refused(ebla.Corruption, f"{path.name}.*bytes")
    path.unlink()
    refused(ebla.MissingFile, f"{path.name} is gone")
    path.write_bytes(content)

    (there / first.id).rename(there / "elsewhere")
    refused(ebla.MissingFile, f"{second.id} builds on {first.id}, which is not in")
    (there / first.id).mkdir()
    refused(ebla.MissingFile, f"builds on {first.id}, which has no {MANIFEST_NAME}")
    assert remove_unfinished(there, list_backups(there).unfinished) == []  # others need what is in it
    (there / first.id).rmdir()
    (there / "elsewhere").rename(there / first.id)
    base = read_manifest(there / first.id)
    tampered(base, there / first.id, txn=second.txn + 1)
    refused(ebla.Corruption, "out of order", at=second.id)
    tampered(base, there / first.id, store="another")
    refused(ebla.Corruption, "another store", at=second.id)
    tampered(base, there / first.id)

    (saved,) = manifest.tables
    checked = check_backup(there, spark=spark)
    assert (checked.id, checked.rows, checked.files) == (second.id, 10, second.files)
    tampered(manifest, there / second.id, tables=[msgspec.structs.replace(saved, checksum="0" * 32)])
    refused(ebla.Corruption, "10 rows with checksum")
    with pytest.raises(ebla.Corruption, match="10 rows with checksum"):
        check_backup(there, second.id, spark=spark)
    assert restore(there, other, "unchecked", of="plain", check=False, spark=spark).rows is None
    other.drop_table("unchecked")
    tampered(manifest, there / second.id)
    text = (there / second.id / MANIFEST_NAME).read_text()
    (there / second.id / MANIFEST_NAME).write_text(text.replace('"rows":10', '"rows":11'))
    with pytest.raises(ebla.Corruption, match="checksum is wrong"):
        restore(there, other, "t", of="plain", at=second.id, spark=spark)
    (there / second.id / MANIFEST_NAME).write_text(json.dumps({"format_version": 99, "sha256": "", "manifest": {}}))
    assert "format 99" in list_backups(there).damaged[second.id]
    (there / first.id / MANIFEST_NAME).rename(there / "manifest")
    assert remove_unfinished(there, [first.id]) == []  # nobody knows what the later one needs
    (there / "manifest").rename(there / first.id / MANIFEST_NAME)
    with pytest.raises(ebla.Corruption, match=f"the newest that can be read is {first.id}"):
        restore(there, other, "t", of="plain", spark=spark)  # older rows than asked for would be a surprise
    assert restore(there, other, "t", of="plain", at=first.id, spark=spark).backup == first.id
    assert backup(db, "plain", there, since="last", spark=spark).base == first.id


def test_a_table_is_never_replaced_by_another_that_is_alone_in_the_backup(
    spark: SparkSession, db: ebla.Database, plain: ebla.Table, there: Path
) -> None:
    precious = db.create_table("precious", PLAIN)
    precious.put({"n": 1, "v": "mine"})
    backup(db, "plain", there, spark=spark)
    for in_place, name in ((True, "precious"), (False, "misspelt")):
        with pytest.raises(ebla.RequestError, match=f"has no table '{name}', it has plain: say which"):
            restore(there, db, name, in_place=in_place, spark=spark)
    assert rows(precious) == [{"n": 1, "v": "mine"}]
    assert db.tables() == ["plain", "precious"]


def test_a_restore_that_is_interrupted_changes_nothing(
    spark: SparkSession, db: ebla.Database, plain: ebla.Table, there: Path
) -> None:
    backup(db, "plain", there, spark=spark)
    before = files_in(db)
    for phase in ("copying", "checking"):

        def fail(progress: JobProgress, at: str = phase) -> None:
            if progress.phase == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            restore(there, db, "plain", in_place=True, spark=spark, progress=fail)
        assert (files_in(db), held(db)) == (before, NOTHING)
    assert plain.get(3) == {"n": 3, "v": "v3"}


def test_requests_that_cannot_be_are_refused(
    spark: SparkSession, db: ebla.Database, plain: ebla.Table, other: ebla.Database, there: Path, tmp_path: Path
) -> None:
    def refused(kind: type[Exception], match: str, tables: Any = "plain", path: Any = there, **more: Any) -> None:
        with pytest.raises(kind, match=match):
            backup(db, tables, path, spark=spark, **more)
        assert held(db) == NOTHING

    refused(ebla.MissingFile, "there is no backup in", since="last")
    refused(ebla.UnknownTable, "nobody", tables=["plain", "nobody"])
    refused(ebla.RequestError, "or one twice", tables=["plain", "plain"])
    refused(ebla.RequestError, "no table is named", tables=[])
    refused(ebla.RequestError, "not a path of this machine", path="s3://bucket/there")
    refused(ebla.RequestError, "one in the other", path=db.path / "backups")
    (tmp_path / "file").write_text("")
    refused(ebla.RequestError, "is a file", path=tmp_path / "file")
    with pytest.raises(ebla.StoreNotFound):
        backup(tmp_path / "nowhere", "plain", there, spark=spark)
    with pytest.raises(ebla.MissingFile, match="not a directory"):
        restore(tmp_path / "nowhere", db, "plain", spark=spark)
    done = backup(db, "plain", there, spark=spark)
    refused(ebla.RequestError, "there is no backup 17 in .* there are", since=17)
    other.create_table("plain", PLAIN)
    with pytest.raises(ebla.RequestError, match="of another store"):
        backup(other, "plain", there, since=done.id, spark=spark)
    tampered(read_manifest(there / done.id), there / done.id, txn=done.txn + (1 << 40))
    refused(ebla.RequestError, "an old copy", since="last")
    for more, match in (
        ({"at": "2000"}, "there is no backup 2000"),
        ({"at": True}, "named by its id or its txn"),
        ({"of": "nobody"}, "has no table 'nobody'"),
        ({"table": "META"}, "system table"),
        ({"table": "a b"}, "table name"),
    ):
        with pytest.raises(ebla.RequestError, match=match):
            restore(there, db, **{"table": "new", "of": "plain", "spark": spark, **more})  # type: ignore[arg-type]
    assert db.tables() == ["plain"]
