"""The same job in the process and on Spark: the same rows, files with the same content, the same word about them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ebla
from ebla.pipeline.change_feed.changes import changes, json_lines
from ebla.pipeline.inputs.input_files import InputFiles
from ebla.pipeline.loading import in_process
from ebla.pipeline.loading.load import load
from ebla.pipeline.scanning.export import ExportFormat, export
from ebla.pipeline.scanning.export_manifest import ExportManifest, check_export
from ebla.pipeline.scanning.scan import scan
from tests.pipeline.tables import EVERYTHING, FULL_ROW, fill
from tests.support.inside import engine_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = date(2026, 1, 1)
NUMBERS = ebla.Schema(
    key={"n": "int64"},
    columns={
        "double": "float64",
        "single": "float32",
        "fine": "decimal128(30, 10)",
        "huge": "decimal256(60, 5)",
        "text": "string",
        "day": "date32",
        "at": "time64[ns]",
        "took": "duration[s]",
        "deep": "list<struct<took: duration[us], at: timestamp[s, tz=UTC], raw: binary, name: string>>",
    },
)
MANY = [
    {
        "n": 0,
        "double": 12345678.9,
        "single": 0.1,
        "fine": Decimal("0.0000001"),
        "huge": Decimal("1e40"),
        "text": "",
        "day": date(1, 1, 1),
        "at": time(1, 2, 3),
        "took": timedelta(days=-1),
        "deep": [
            {"took": timedelta(days=1, seconds=1.5), "at": datetime(1999, 1, 1, tzinfo=UTC), "raw": b"\0", "name": ""}
        ],
    },
    {"n": 1, "double": 1e7, "single": 1e10, "fine": Decimal(0), "text": 'a "quote", a comma', "deep": []},
    {"n": 2, "double": 9.9e-4, "single": 3.4e38, "text": "two\nlines\r\n", "deep": [None, {"took": None}]},
    {"n": 3, "double": float("nan"), "single": float("-inf"), "text": "\x01\t\\ ü 🎈", "deep": None},
    {"n": 4, "double": float("inf"), "single": -0.0, "text": None, "took": timedelta(seconds=1)},
    {"n": 5, "double": -1e300, "single": 16777216.0, "text": " blanks "},
    {"n": 6, "double": 0.001, "single": 0.001, "text": "'"},
    {"n": 7, "double": 100.0, "single": 100.0, "text": "#"},
]


def content(path: Path, format: ExportFormat) -> list[Any]:
    files = sorted(path.glob("part-*"))
    if format == "parquet":
        return sorted(map(repr, pq.ParquetDataset(files).read().to_pylist()))  # by their text: NaN is not itself
    texts = [file.read_bytes() for file in files]
    if format == "csv":
        assert len({text.partition(b"\n")[0] for text in texts}) == 1
        texts = [text.partition(b"\n")[2] for text in texts]
    return sorted(b"".join(texts).splitlines())


def described(manifest: ExportManifest) -> dict[str, Any]:
    """What a manifest says, but for which files there are: that is a matter of how many tasks there were."""
    told = msgspec.to_builtins(manifest)
    assert told.pop("bytes") == sum(file["bytes"] for file in told.pop("files"))
    return told


TEXT_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
CSV_OPTIONS = {
    "header": "true", "escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"
}  # fmt: skip


def written_by_spark(rows: DataFrame, path: Path, format: ExportFormat) -> Path:
    """Have Spark itself write rows, with as little help as it needs for what a format has no words for."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, BinaryType, DayTimeIntervalType, MapType, StructType

    columns = []
    for field in rows.schema.fields:
        value = F.col(f"`{field.name}`")
        if format != "parquet" and isinstance(field.dataType, DayTimeIntervalType):
            value = F.expr(f"`{field.name}` div interval '0.000001' second")
        elif format == "csv" and isinstance(field.dataType, BinaryType):
            value = F.base64(value)
        elif format == "csv" and isinstance(field.dataType, (ArrayType, MapType, StructType)):
            value = F.to_json(value, TEXT_OPTIONS)
        columns.append(value.alias(field.name))
    options = {"parquet": {}, "csv": TEXT_OPTIONS | CSV_OPTIONS, "json": TEXT_OPTIONS}[format]
    conf = rows.sparkSession.conf
    conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # the default is one Parquet gave up long ago
    try:
        rows.select(columns).write.format(format).options(**options).save(f"file://{path}")
    finally:
        conf.unset("spark.sql.parquet.outputTimestampType")
    return path


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_exports_hold_what_spark_itself_would_write(
    spark: SparkSession, db: ebla.Database, tmp_path: Path, format: ExportFormat
) -> None:
    fill(db.create_table("users", EVERYTHING, splits=[("u020",)]))
    db.create_table("numbers", NUMBERS).put(MANY)
    asked: dict[str, dict[str, Any]] = {"users": {"start": "u003", "stop": "u030"}, "numbers": {}}
    for table, more in asked.items():
        as_of = db.table(table).scan().txn
        for name, engine in (("spark", spark), ("process", False)):
            export(db, table, tmp_path / name / table, format=format, as_of=as_of, spark=engine, **more)
        one, other = (tmp_path / name / table for name in ("spark", "process"))
        own = written_by_spark(scan(db, table, as_of=as_of, spark=spark, **more), tmp_path / "own" / table, format)
        assert content(one, format) == content(other, format) == content(own, format)
        assert described(check_export(one)) == described(check_export(other))


def test_spark_reads_what_was_exported_as_it_reads_its_own(
    spark: SparkSession, db: ebla.Database, tmp_path: Path
) -> None:
    db.create_table("numbers", NUMBERS).put(MANY)
    export(db, "numbers", tmp_path / "exported")
    written_by_spark(scan(db, "numbers", spark=spark), tmp_path / "own", "parquet")
    one, other = (spark.read.parquet(f"file://{tmp_path / name}").orderBy("n") for name in ("exported", "own"))
    assert one.schema.json() == other.schema.json()
    assert repr(one.collect()) == repr(other.collect())


def test_an_export_of_no_rows_says_what_the_columns_are(spark: SparkSession, db: ebla.Database, tmp_path: Path) -> None:
    db.create_table("numbers", NUMBERS)
    kinds: tuple[ExportFormat, ...] = ("parquet", "csv", "json")
    for kind in kinds:
        for name, engine in (("spark", spark), ("process", False)):
            assert export(db, "numbers", tmp_path / name / kind, format=kind, spark=engine).rows == 0
        one, other = (tmp_path / name / kind for name in ("spark", "process"))
        assert described(check_export(one)) == described(check_export(other))
        assert len(list(one.glob("part-*"))) == len(list(other.glob("part-*"))) == 1
    names = pq.read_schema(next(other.parent.glob("parquet/part-*"))).names
    assert names == db.table("numbers").scan().to_arrow().schema.names


# --- changes -----------------------------------------------------------------------------------------


def test_changes_are_the_same(spark: SparkSession, db: ebla.Database, root: str) -> None:
    users = db.create_table("users", EVERYTHING, splits=[("u020",)])
    fill(users)
    since = users.scan().txn
    users.put([{"user": "new", "day": DAY, **FULL_ROW}, {"user": "u003", "day": DAY, "age": 99}])
    users.flush()
    users.erase(("u012", DAY))
    users.erase_range("u030", "u035")
    part: dict[str, Any] = {"before": True, "columns": ["age", "took", "click"], "start": "n", "stop": "u031"}
    for first in (since, 0):
        for asked in (dict[str, Any](), part):
            frame = changes(db, "users", first, spark=spark, **asked)
            for source in (db, root):
                stream = changes(source, "users", first, spark=False, **asked)
                assert isinstance(stream, pa.RecordBatchReader)
                found = stream.read_all()
                assert found.schema.names == frame.columns
                assert found.num_rows
                wanted = sorted(frame.toArrow().to_pylist(), key=lambda row: (row["user"], row["day"]))
                assert found.to_pylist() == wanted
            again = changes(root, "users", first, spark=False, **asked)
            assert sorted(json_lines(again)) == sorted(json_lines(frame))
    assert changes(db, "users", db.table("users").scan().txn, spark=False).read_all().num_rows == 0


def test_changes_that_nobody_reads_hold_nothing(db: ebla.Database) -> None:
    table = db.create_table("numbers", NUMBERS)
    since = table.put(MANY)
    table.put({"n": 3})
    stream = changes(db, "numbers", since, spark=False)
    assert engine_of(db).pins.oldest() is not None
    del stream
    assert engine_of(db).pins.oldest() is None
    changes(db, "numbers", since, spark=False).read_all()
    assert engine_of(db).pins.oldest() is None


# --- loads -------------------------------------------------------------------------------------------

TYPED = ebla.Schema(
    key={"k": "int32", "s": "string"},
    groups=[
        ebla.Group(
            "a",
            columns={
                "whole": "uint8",
                "number": "float64",
                "money": "decimal128(10, 2)",
                "flag": "bool",
                "day": "date32",
                "moment": "timestamp[us, tz=UTC]",
                "local": "timestamp[ms]",
                "at": "time32[ms]",
                "took": "duration[ms]",
                "raw": "binary",
            },
        ),
        ebla.Group("c", families=["f"]),
    ],
)
TYPED_CSV = '''k,s,whole,number,money,flag,day,moment,local,at,took,raw,f:x,f
1,a,1,1.5,1.5,true,2026-01-31,2026-01-31T12:30:15Z,2026-01-31T12:30:15.001,12:30:15,1 02:03:04.5,xyz,c,
 2 ,b,255,1e3,-0.01,F,2026-1-5,2026-01-31 12:30:15.123456+02:00,2026-01-31,01:02:03.004,-0 00:00:00.001,,,"{""y"": 1}"
3,c,+7,NaN,100,no,2026,2026-01-31 12:30,2026-01-31 12:30,23:59:00,0 00:00:00,"",,
4,,,-Infinity,,1,,,,,,,,
5,"a, ""b""",,.5,1.500,yes,2026-01-31T00:00:00,,,,,,,
x,a,,,,,,,,,,,,
6,,256,,,,,,,,,,,
,a,,,,,,,,,,,,
1.5,a,,,,,,,,,,,,
99999999999,a,,,,,,,,,,,,
7,d,,abc,,,,,,,,,,
8,d,,,1.005,,,,,,,,,
9,d,,,,maybe,,,,,,,,
10,d,,,,,2026-01-31T12:00:00,,,,,,,
11,d,,,,,2026-02-30,,,,,,,
12,d,,,,,,noon,,,,,,
13,d,,,,,,,2026-01-31T12:30:15.0001,,,,,
14,d,,,,,,,,25:00:00,,,,
18,d,,,,,,,,23:59,,,,
19,d,,,,,,2026-01-31T12:30Z,,,,,,
15,d,,,,,,,,,long,,,
16,d,,,,,,,,,,,,[]
17
1,a,2,,,,,,,,,,,
'''
GUESSED = {
    "guessed.csv": """id,whole,number,day,moment,flag,text,mixed,huge,nothing
1,1,1,2026-01-31,2026-01-31,true,a,1,1,
2,-5,2.5,2026-02-01,2026-02-01T10:00:00Z,FALSE,"b,c",x,12345678901234567890,
3,,1e3,,,,"",2026-01-01,2,
""",
    "guessed.json": """{"z": 1, "id": "a", "n": 1, "deep": {"b": 1, "a": [1, 2.5]}, "mixed": 1, "day": "2026-01-31"}
{"id": "b", "n": 2.5, "deep": {"c": "x"}, "nothing": null, "mixed": "x", "list": [{"p": 1}, {"q": null}]}
{"id": "c", "n": null, "flag": true, "empty": [], "mixed": [1]}
""",
}


def reject_lines(directory: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for file in sorted(directory.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return sorted((line["reason"], json.dumps(line["row"], sort_keys=True)) for line in lines)


def loaded(db: ebla.Database, table: str, path: Path, engine: Any, rejects: Path, **more: Any) -> dict[str, Any]:
    """Load a file, and tell all that should not depend on where."""
    done = load(db, table, InputFiles([str(path)]), rejects=rejects, spark=engine, **more)
    found = db.table(table).scan().to_arrow()
    return {
        "counts": (done.rows, done.rejected, done.duplicates, done.created),
        "columns": found.schema,
        "rows": [repr(row) for row in found.to_pylist()],
        "rejects": reject_lines(rejects),
    }


DIVIDED_CSV = "k,s,v\n" + "".join(f"{n * 7919 % 997 - 400},{chr(97 + n % 7)},{n}\n" for n in range(3_000)) + "x,a,1\n"


@pytest.mark.parametrize("on_spark", [False, True])
@pytest.mark.parametrize("splits", [[], [(-100,), (0, "d"), (250, "c")]])
@pytest.mark.parametrize("mode", ["upsert", "overwrite"])
def test_rows_are_divided_among_tablets_and_sorted_so_that_the_last_of_a_key_wins(
    request: pytest.FixtureRequest, db: ebla.Database, tmp_path: Path, on_spark: bool, splits: list[Any], mode: Any
) -> None:
    (tmp_path / "rows.csv").write_text(DIVIDED_CSV)
    columns = {"v": "int32"}
    table = db.create_table("t", ebla.Schema(key={"k": "int16", "s": "string"}, columns=columns), splits=splits)
    table.put({"k": 32_000, "s": "old", "v": 0})
    engine = request.getfixturevalue("spark") if on_spark else False
    found = loaded(db, "t", tmp_path / "rows.csv", engine, tmp_path / "rejects", mode=mode, partitions=3)
    wanted = {(n * 7919 % 997 - 400, chr(97 + n % 7)): n for n in range(3_000)}
    if mode == "upsert":
        wanted[32_000, "old"] = 0
    assert found["counts"] == (3_000, 1, 3_000 - len(wanted) + (mode == "upsert"), False)
    assert found["rows"] == [repr({"k": k, "s": s, "v": wanted[k, s]}) for k, s in sorted(wanted)]
    assert [reason for reason, _ in found["rejects"]] == ["key column 'k' is int16 and does not take x"]


def test_texts_become_the_same_values_and_the_same_rows_are_rejected(
    spark: SparkSession, db: ebla.Database, tmp_path: Path
) -> None:
    (tmp_path / "typed.csv").write_text(TYPED_CSV)
    found = []
    for name, engine in (("spark", spark), ("process", False)):
        db.create_table(name, TYPED)
        found.append(loaded(db, name, tmp_path / "typed.csv", engine, tmp_path / f"rejects-{name}"))
    assert found[0]["counts"] == found[1]["counts"] == (5, 19, 1, False)
    assert found[0]["rows"] == found[1]["rows"]
    on_spark, in_process = found[0]["rejects"], found[1]["rejects"]
    assert [row for _, row in on_spark] == [row for _, row in in_process]
    assert {reason for reason, _ in on_spark} == {reason for reason, _ in in_process}


@pytest.mark.parametrize("name", GUESSED)
def test_a_new_table_gets_the_same_columns_and_rows(
    spark: SparkSession, db: ebla.Database, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text(GUESSED[name])
    one, other = (
        loaded(db, table, tmp_path / name, engine, tmp_path / f"rejects-{table}", key="id")
        for table, engine in (("spark", spark), ("process", False))
    )
    assert one == other


def test_rows_of_arrow_are_loaded_without_spark(db: ebla.Database) -> None:
    rows = pa.table({"k": [3, 1, 2, 1], "v": ["c", "a", "b", "z"]})
    done = load(db, "t", rows, key="k", splits=[2])
    assert (done.rows, done.duplicates, done.created) == (4, 1, True)
    assert [(row["k"], row["v"]) for row in db.table("t").scan()] == [(1, "z"), (2, "b"), (3, "c")]
    load(db, "t", pa.RecordBatchReader.from_batches(rows.schema, rows.slice(0, 1).to_batches()), mode="overwrite")
    assert db.table("t").scan().count() == 1
    with pytest.raises(ebla.RequestError, match="Arrow is loaded by this process"):
        load(db, "t", rows, spark=True)


def test_more_rows_than_memory_may_hold_are_divided_and_sorted_on_disk(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "MEMORY_BYTES_MAX", 20_000)
    monkeypatch.setattr(in_process, "PARTITION_BYTES", 100_000)
    monkeypatch.setattr(in_process, "BATCH_ROWS", 1_000)
    monkeypatch.setattr(in_process, "SAMPLE_ROWS_MAX", 500)
    keys = [n * 7919 % 20_011 for n in range(20_000)]
    rows = pa.table({"k": [*keys, *keys[:50]], "v": [*range(20_000), *range(-50, 0)]})
    done = load(db, "t", rows, key="k")
    assert (done.rows, done.duplicates) == (20_050, 50)
    assert done.files > 3
    found = db.table("t").scan().to_arrow()
    assert found["k"].to_pylist() == sorted(keys)
    wanted = dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
    assert found["v"].to_pylist() == [wanted[key] for key in sorted(keys)]
