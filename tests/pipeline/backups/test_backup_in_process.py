"""Backups, restores and checks in this process: the same as on Spark, and each reads what the other has made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

import ebla
from ebla.pipeline.backups.backup import backup
from ebla.pipeline.backups.checking import check_backup
from ebla.pipeline.backups.manifest import MANIFEST_NAME, BackupManifest, read_manifest
from ebla.pipeline.backups.restore import restore
from ebla.pipeline.care.verify import verify
from ebla.pipeline.spark.progress import JobProgress
from tests.pipeline.tables import EVERYTHING, fill
from tests.pipeline.test_without_spark import without_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NANOSECONDS = ebla.Schema(key={"at": "timestamp[ns]"}, columns={"took": "duration[ns]", "n": "uint64"})


def nanoseconds(numbers: Sequence[int]) -> pa.Table:
    """Rows that differ in nanoseconds."""
    columns = [pa.array(numbers, kind) for kind in (pa.timestamp("ns"), pa.duration("ns"))]
    return pa.table([*columns, pa.array([7] * len(numbers), pa.uint64())], ["at", "took", "n"])


@pytest.fixture
def users(db: ebla.Database) -> ebla.Table:
    """A table of everything that there is, in several files of several tablets, and a small one beside it."""
    made = db.create_table("users", EVERYTHING, splits=[("u020",)])
    fill(made)
    fine = db.create_table("fine", NANOSECONDS)
    fine.put(nanoseconds(range(5)))
    made.flush()
    fine.flush()
    return made


@pytest.fixture
def other(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "other") as opened:
        yield opened


def content(manifest: BackupManifest) -> dict[str, Any]:
    """What a manifest says, but for its own name and the clock."""
    said: dict[str, Any] = msgspec.to_builtins(manifest)
    ids = {manifest.id: "this", manifest.base: "base"}
    for file in said["files"]:
        file["backup"] = ids[file["backup"]]
    return {name: value for name, value in said.items() if name not in ("id", "base", "chain")}


def test_manifests_are_the_same_and_each_way_restores_what_the_other_made(
    spark: SparkSession, db: ebla.Database, users: ebla.Table, other: ebla.Database, tmp_path: Path
) -> None:
    ways: dict[str, SparkSession | bool | None] = {"spark": spark, "here": False, "small": None}
    places = {name: tmp_path / name for name in ways}
    full = {name: backup(db, None, places[name], spark=way) for name, way in ways.items()}
    expected = content(read_manifest(Path(full["spark"].path)))
    assert [content(read_manifest(Path(full[name].path))) for name in ("here", "small")] == [expected, expected]
    assert all(table["checksum"] for table in expected["tables"])
    for name, (other_name, way) in zip(ways, [("here", spark), ("spark", False), ("spark", None)], strict=True):
        table = f"of_{name}"
        done = restore(places[other_name], other, table, of="users", spark=way)
        assert done.rows == users.scan().count()
        assert other.table(table).scan().to_arrow().equals(users.scan().to_arrow())
        assert check_backup(places[other_name], spark=way).rows == full[name].rows
    users.erase_range()
    done_again = {name: backup(db, "users", places[name], since="last", spark=way) for name, way in ways.items()}
    assert {one.rows for one in done_again.values()} == {0}
    assert len({str(content(read_manifest(Path(one.path)))) for one in done_again.values()}) == 1


def test_what_differs_only_below_microseconds_has_another_checksum(db: ebla.Database, tmp_path: Path) -> None:
    found = set()
    for took in (1, 2):
        table = db.create_table(f"t{took}", NANOSECONDS)
        table.put(nanoseconds([took]).set_column(0, "at", pa.array([0], pa.timestamp("ns"))))
        done = backup(db, f"t{took}", tmp_path / "there", spark=False)
        found.add(read_manifest(Path(done.path)).tables[0].checksum)
    assert len(found) == 2


def test_what_is_damaged_in_a_backup_is_found_in_process(db: ebla.Database, users: ebla.Table, tmp_path: Path) -> None:
    there = tmp_path / "there"
    done = backup(db, None, there, spark=False)
    file = next(Path(done.path).glob("fragments/*/*"))
    whole = file.read_bytes()
    file.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    for call in (check_backup, lambda path, **way: restore(path, db, "back", of="users", **way)):
        with pytest.raises(ebla.Corruption, match="SHA-256"):
            call(there, spark=False)
    assert sorted(db.tables()) == ["fine", "users"]
    file.unlink()
    with pytest.raises(ebla.MissingFile, match=file.name):
        check_backup(there, spark=False)


def test_a_manifest_of_the_first_format_is_compared_by_the_number_of_rows(
    db: ebla.Database, users: ebla.Table, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    done = backup(db, "users", there, spark=False)
    file = Path(done.path) / MANIFEST_NAME
    kept = json.loads(file.read_bytes())["manifest"]

    def rewrite(rows: int) -> None:
        kept["tables"][0] |= {"rows": rows, "checksum": "f" * 32}  # as Spark had summed them up
        body = json.dumps(kept)
        digest = hashlib.sha256(body.encode()).hexdigest()
        file.write_text(f'{{"format_version": 1, "sha256": "{digest}", "manifest": {body}}}')

    rewrite(users.scan().count())
    assert check_backup(there, spark=False).rows == restore(there, db, "back", of="users", spark=False).rows
    rewrite(7)
    with pytest.raises(ebla.Corruption, match="and had 7"):
        check_backup(there, spark=False)


def test_progress_is_reported_of_what_is_done_in_process(db: ebla.Database, users: ebla.Table, tmp_path: Path) -> None:
    seen: list[JobProgress] = []
    backup(db, "users", tmp_path / "there", spark=False, progress=seen.append)
    assert [(one.tasks_done, one.tasks) for one in seen if one.phase == "copying"][-1] == (1, 1)
    assert seen[-1].phase == "counting"
    assert seen[-1].tasks_done == seen[-1].tasks > 0


def test_verifying_in_process_reports_what_spark_does(
    spark: SparkSession, db: ebla.Database, users: ebla.Table
) -> None:
    def reports() -> list[tuple[Any, ...]]:
        found = [verify(db, spark=way) for way in (spark, False, None)]
        return [(one.tables, one.files, one.rows, one.bytes, one.findings) for one in found]

    assert reports()[0][4] == ()
    assert len(set(map(str, reports()))) == 1
    damaged, gone, *_ = users.files()
    whole = (db.path / damaged).read_bytes()
    # More than the header of a page, which no checksum covers, and which may mean the same with another bit.
    (db.path / damaged).write_bytes(whole[:40] + bytes(byte ^ 1 for byte in whole[40:200]) + whole[200:])
    (db.path / gone).unlink()
    told = reports()
    assert {finding.kind for finding in told[0][4]} == {"damaged", "missing"}
    assert len(set(map(str, told))) == 1


def test_all_of_it_works_where_spark_is_not_installed(db: ebla.Database, users: ebla.Table, tmp_path: Path) -> None:
    expected = users.scan().count()
    told = without_spark(
        """
import json, sys
import ebla
import ebla.pipeline as pipeline

root, there, other = sys.argv[1:]
first = pipeline.backup(root, None, there)
second = pipeline.backup(root, "users", there, since="last")
with ebla.open(other) as db:
    restored = pipeline.restore(there, db, "back", of="users", at=second.id)
    rows = db.table("back").scan().count()
report = pipeline.verify(root)
checked = pipeline.check_backup(there, first.id)
pruned = pipeline.prune_backups(there, keep=1)
try:
    pipeline.backup(root, None, there, spark=True)
except ebla.MissingExtra as error:
    print(error)
print(json.dumps([first.rows, second.kind, restored.rows, rows, checked.rows, report.findings, pruned.doomed]))
""",
        str(db.path),
        str(tmp_path / "there"),
        str(tmp_path / "other"),
    )
    missing, result = told.splitlines()
    assert missing == 'backup needs pyspark, which is not installed: pip install "ebla[spark]"'
    assert json.loads(result) == [expected + 5, "incremental", expected, expected, expected + 5, [], []]
    assert len(list((tmp_path / "there").iterdir())) == 2  # nothing of the one that needed Spark
