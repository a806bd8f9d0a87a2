"""Exports: one snapshot as plain files, and a manifest that is there when all of it is."""

from __future__ import annotations

import base64
import csv
import io
import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ebla
from ebla.errors import Corruption, MissingFile, RequestError, StoreNotFound, UnknownColumn, UnknownTable
from ebla.pipeline.scanning.export import ExportSummary, export
from ebla.pipeline.scanning.export_manifest import MANIFEST_NAME, check_export, read_manifest
from ebla.pipeline.spark.engine import SparkChoice
from ebla.pipeline.spark.progress import JobProgress
from tests.pipeline.tables import EVERYTHING, expected, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = date(2026, 1, 1)
PLAIN = ebla.Schema(key={"n": "int64"}, columns={"v": "string"})


@pytest.fixture(params=["in the process", "on Spark"])
def spark(request: pytest.FixtureRequest, spark: SparkSession) -> SparkChoice:
    """All of this holds for both engines."""
    return spark if request.param == "on Spark" else False


@pytest.fixture
def users(db: ebla.Database) -> ebla.Table:
    table = db.create_table("users", EVERYTHING, splits=[("u020",)])
    fill(table)
    return table


@pytest.fixture
def plain(db: ebla.Database) -> ebla.Table:
    table = db.create_table("plain", PLAIN)
    table.put([{"n": n, "v": f"v{n}"} for n in range(10)])
    return table


def data_files(path: Path) -> list[Path]:
    return sorted(path.glob("part-*"))


def others_in(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()} - {file.name for file in data_files(path)}


def test_parquet_has_the_rows_of_a_scan_in_types_that_others_read(
    spark: SparkChoice, db: ebla.Database, users: ebla.Table, tmp_path: Path
) -> None:
    path = tmp_path / "out" / "users"
    done = export(db, "users", path, spark=spark)
    found = pq.ParquetDataset(data_files(path)).read()
    rows = sorted(found.to_pylist(), key=lambda row: (row["user"], row["day"]))
    wanted = expected(users)
    for row in wanted:  # Parquet has no durations: Spark writes the number, and notes in the file what it means
        row["took"] = None if row["took"] is None else int(row["took"].total_seconds() * 1e6)
    assert rows == wanted
    assert str(found.schema.field("seen").type) == "timestamp[us, tz=UTC]"
    assert (done.rows, done.files, done.txn) == (len(rows), len(data_files(path)), users.scan().txn)
    assert others_in(path) == {MANIFEST_NAME}
    assert list(path.parent.iterdir()) == [path]
    if spark:
        assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"  # as it was


def test_the_manifest_says_what_the_files_are(spark: SparkChoice, root: str, users: ebla.Table, tmp_path: Path) -> None:
    path = tmp_path / "users"
    done = export(root, "users", path, columns=["age"], start="u010", stop=("u020", DAY), spark=spark)
    manifest = read_manifest(path)
    assert (manifest.table, manifest.format, manifest.key) == ("users", "parquet", ["user", "day"])
    assert [(c.name, c.type, c.written_as) for c in manifest.columns] == [
        ("user", "string", "string"),
        ("day", "date32[day]", "date"),
        ("age", "int32", "int"),
    ]
    assert (manifest.txn, manifest.rows, manifest.bytes) == (done.txn, done.rows, done.bytes)
    assert manifest.rows == users.scan("u010", ("u020", DAY), columns=["age"]).count()
    assert [file.name for file in manifest.files] == [file.name for file in data_files(path)]
    assert abs(datetime.fromisoformat(manifest.time) - datetime.now(UTC)).total_seconds() < 3600
    assert (manifest.start, manifest.stop, manifest.prefix) == ("'u010'", "('u020', datetime.date(2026, 1, 1))", None)
    assert check_export(path) == manifest


def test_an_export_has_the_rows_that_the_filter_lets_through(
    spark: SparkChoice, db: ebla.Database, plain: ebla.Table, tmp_path: Path
) -> None:
    done = export(db, "plain", tmp_path / "some", columns=[], where=pc.field("v") > "v6", spark=spark)
    found = pq.ParquetDataset(data_files(tmp_path / "some")).read()
    assert (sorted(found["n"].to_pylist()), found.schema.names, done.rows) == ([7, 8, 9], ["n"], 3)
    assert read_manifest(tmp_path / "some").where == '(v > "v6")'
    assert read_manifest(tmp_path / "some").prefix is None


def test_keywords_that_an_export_does_not_have_are_refused_by_name(
    spark: SparkChoice, db: ebla.Database, plain: ebla.Table, tmp_path: Path
) -> None:
    for unknown in ("limit", "wehre", "colums"):
        with pytest.raises(TypeError, match=f"'{unknown}'"):
            export(db, "plain", tmp_path / "some", spark=spark, **{unknown: 1})
    assert not (tmp_path / "some").exists()


def test_csv_has_words_for_everything(spark: SparkChoice, db: ebla.Database, users: ebla.Table, tmp_path: Path) -> None:
    users.put({"user": "quoted", "day": DAY, "name": ' "a",\n b '})
    export(db, "users", tmp_path / "csv", format="csv", spark=spark)
    texts = [file.read_bytes().decode() for file in data_files(tmp_path / "csv")]
    rows = [row for text in texts for row in csv.DictReader(io.StringIO(text, newline=""))]
    assert len(rows) == users.scan().count()
    by_key = {(row["user"], row["day"]): row for row in rows}
    full = by_key["u003", "2026-01-01"]
    assert full == {
        "user": "u003",
        "day": "2026-01-01",
        "name": "Ünï☃🎈",
        "age": "-7",
        "small": "65535",
        "big": "18446744073709551615",
        "score": "1.5",
        "price": "12345.67",
        "seen": "2026-01-31T12:30:15.123456Z",
        "local": "1969-12-31T23:59:59.001000",
        "fine": "2026-01-31T12:30:15.123456",
        "at": "86398",
        "took": "86400005000",
        "raw": "AP8=",
        "is_new": "true",
        "tags": '["a",null,"ß"]',
        "place": '{"x":1.0,"y":null}',
        "click": '{"":"AA==","home":"MQ=="}',
        "view": '{"x":"Mg=="}',
        "*": '{"other:thing":"Mw=="}',
    }
    assert by_key["quoted", "2026-01-01"]["name"] == ' "a",\n b '
    assert by_key["u001", "2026-01-02"]["score"] == ""


def test_json_has_words_for_everything(
    spark: SparkChoice, db: ebla.Database, users: ebla.Table, tmp_path: Path
) -> None:
    export(db, "users", tmp_path / "json", format="json", spark=spark)
    lines = [line for file in data_files(tmp_path / "json") for line in file.read_text().splitlines()]
    rows: dict[Any, Any] = {(row["user"], row["day"]): row for row in map(json.loads, lines)}
    assert len(rows) == users.scan().count()
    full = rows["u003", "2026-01-01"]
    assert base64.b64decode(full["raw"]) == b"\x00\xff"
    assert full["click"] == {"": "AA==", "home": "MQ=="}
    assert full["tags"] == ["a", None, "ß"]
    assert full["place"] == {"x": 1.0, "y": None}
    assert (full["took"], full["at"], full["price"]) == (86_400_005_000, 86_398, 12345.67)
    assert full["seen"] == "2026-01-31T12:30:15.123456Z"
    assert rows["u001", "2026-01-02"]["score"] is None


def test_an_export_is_one_snapshot(spark: SparkChoice, root: str, plain: ebla.Table, tmp_path: Path) -> None:
    before = plain.scan().txn
    plain.erase_range()
    assert export(root, "plain", tmp_path / "now", spark=spark).rows == 0
    assert export(root, "plain", tmp_path / "before", as_of=before, spark=spark).rows == 10
    assert read_manifest(tmp_path / "before").txn == before
    assert pq.ParquetDataset(data_files(tmp_path / "now")).read().schema.names == ["n", "v"]


# --- the directory -----------------------------------------------------------------------------------


def quick(db: ebla.Database, path: Path, spark: SparkChoice, **more: Any) -> ExportSummary:
    return export(db, "plain", path, spark=spark, **more)


def test_an_export_that_is_there_is_replaced_only_when_asked_and_at_the_end(
    spark: SparkChoice, db: ebla.Database, plain: ebla.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.mkdir()
    assert quick(db, path, spark).rows == 10
    plain.put({"n": 100})
    with pytest.raises(RequestError, match="is not empty"):
        quick(db, path, spark)

    def fail(progress: JobProgress) -> None:
        if progress.phase == "checking":  # everything is written by now, but for the manifest
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(db, path, spark, overwrite=True, progress=fail)
    assert check_export(path).rows == 10
    assert quick(db, path, spark, overwrite=True).rows == 11
    assert check_export(path).rows == 11
    assert [entry.name for entry in tmp_path.iterdir() if "out" in entry.name] == ["out"]


def test_an_export_that_fails_leaves_nothing(
    spark: SparkChoice, root: str, db: ebla.Database, plain: ebla.Table, tmp_path: Path
) -> None:
    plain.flush()
    (Path(root) / plain.files()[0]).write_bytes(b"this is no Parquet file any more")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Exception, match=r"(?i)parquet"):
        quick(db, tmp_path / "out", spark)
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_no_export_is_never_overwritten(
    spark: SparkChoice, db: ebla.Database, plain: ebla.Table, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(RequestError, match="something else than an export"):
        quick(db, tmp_path / "mine", spark, overwrite=True)
    with pytest.raises(RequestError, match="is a file"):
        quick(db, tmp_path / "mine" / "letter.txt", spark, overwrite=True)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_a_store_is_no_place_for_an_export(spark: SparkChoice, db: ebla.Database, plain: ebla.Table) -> None:
    for path in (db.path / "out", db.path, db.path.parent):
        with pytest.raises(RequestError, match="export to another place"):
            quick(db, path, spark, overwrite=True)
    with pytest.raises(RequestError, match="not a path of this machine"):
        export(db, "plain", "s3://bucket/out", spark=spark)


def test_what_is_wrong_is_said_before_anything_is_written(
    spark: SparkChoice, db: ebla.Database, plain: ebla.Table, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="format is 'parquet', 'csv' or 'json', not 'xml'"):
        export(db, "plain", tmp_path / "out", format="xml", spark=spark)  # type: ignore[arg-type]
    with pytest.raises(UnknownTable, match="palin"):
        export(db, "palin", tmp_path / "out", spark=spark)
    with pytest.raises(UnknownColumn):
        export(db, "plain", tmp_path / "out", columns=["no"], spark=spark)
    with pytest.raises(StoreNotFound):
        export(tmp_path / "nowhere", "plain", tmp_path / "out", spark=spark)
    assert not (tmp_path / "out").exists()


# --- the manifest --------------------------------------------------------------------------------------


def test_files_that_are_not_as_they_were_are_found(
    spark: SparkChoice, db: ebla.Database, plain: ebla.Table, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    quick(db, path, spark, format="csv")
    check_export(path)
    one = data_files(path)[0]
    content = one.read_bytes()
    one.write_bytes(content.replace(b"v3", b"w3"))
    with pytest.raises(Corruption, match="checksum"):
        check_export(path)
    one.unlink()
    with pytest.raises(MissingFile, match="is gone"):
        check_export(path)
    (path / MANIFEST_NAME).write_text("{}")
    with pytest.raises(Corruption, match="not the manifest"):
        read_manifest(path)
    (path / MANIFEST_NAME).unlink()
    with pytest.raises(MissingFile, match="did not finish"):
        read_manifest(path)
