"""Files for a load: formats by name, text kept as text until the table says what it is, broken lines kept."""

from __future__ import annotations

import gzip
import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import ebla
from ebla.pipeline import load
from ebla.pipeline.inputs.input_files import InputFiles, check_files, format_of
from ebla.pipeline.inputs.source_files import read_files
from ebla.pipeline.spark.engine import SparkChoice
from tests.pipeline.loading.test_load import rows_of

SCHEMA = ebla.Schema(
    key={"user": "string", "day": "date32"},
    groups=[
        ebla.Group("a", columns={"zip": "string", "price": "decimal128(6, 2)", "tags": "list<string>"}),
        ebla.Group("c", families=["click"]),
    ],
)


@pytest.fixture(params=["in the process", "on Spark"])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> SparkChoice:
    """Where the files are read."""
    return spark if request.param == "on Spark" else False


def test_the_name_tells_the_format(tmp_path: Path) -> None:
    assert format_of(["a.csv"]) == format_of(["a.CSV.gz", "b.tsv"]) == "csv"
    assert format_of(["x/a.jsonl"]) == format_of(["a.json"]) == "json"
    assert format_of(["s3://b/a.orc"]) == "orc"
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "part-0.snappy.parquet").write_text("")
    assert format_of([str(tmp_path)]) == "parquet"
    with pytest.raises(ebla.RequestError, match="do not tell their format: give one of csv, json, parquet, orc"):
        format_of(["rows"])
    with pytest.raises(ebla.RequestError, match=r"several formats \(csv, orc\)"):
        format_of(["a.csv", "a.orc"])


def test_missing_files_are_told_before_spark_starts(tmp_path: Path) -> None:
    with pytest.raises(ebla.RequestError, match=r"there is no file .*nowhere\.csv"):
        check_files([str(tmp_path / "nowhere.csv")])
    with pytest.raises(ebla.RequestError, match="at least one file"):
        check_files([])


def test_a_pattern_that_matches_nothing_is_an_error_of_ours(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ebla.RequestError, match=r"cannot be read as csv.*does not exist"):
        read_files(spark, [f"{tmp_path}/*.csv"], "csv")
    with pytest.raises(ebla.RequestError, match="there are no files in"):
        InputFiles([f"{tmp_path}/*.csv"]).files()


def test_csv_for_a_table_is_text_until_the_column_says_what_it_is(
    engine: SparkChoice, db: ebla.Database, tmp_path: Path
) -> None:
    db.create_table("t", SCHEMA)
    with gzip.open(tmp_path / "rows.csv.gz", "wt", encoding="utf-8") as file:
        file.write(
            'user,day,zip,price,click:home,click\nada,2026-01-31,007,1.5,,\n"b,ö",2026-02-01,"","",1,"{""x"": ""y""}"\n'
        )
        file.write("short,2026-01-31\nzoe,2026-01-31,1,1,,oops\nzoe,2026-01-31,1,1.234,,\n")
    done = load(db, "t", InputFiles([str(tmp_path / "rows.csv.gz")]), rejects=tmp_path / "r", spark=engine)
    assert (done.rows, done.rejected) == (2, 3)
    assert rows_of(db, "t") == [
        {"user": "ada", "day": date(2026, 1, 31), "zip": "007", "price": Decimal("1.50"), "tags": None},
        {
            "user": "b,ö",
            "day": date(2026, 2, 1),
            "zip": "",
            "price": None,
            "tags": None,
            "click:home": b"1",
            "click:x": b"y",
        },
    ]
    lines = [json.loads(line) for file in done.rejects_files for line in Path(file).read_text().splitlines()]
    assert {"reason": "the line cannot be read", "row": {"line": "short,2026-01-31"}} in lines
    (unfit,) = (line for line in lines if "does not take 1.234" in line["reason"])
    assert (unfit["row"]["user"], unfit["row"]["price"]) == ("zoe", "1.234")


def test_csv_for_a_new_table_gets_types_from_its_values(engine: SparkChoice, db: ebla.Database, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("k\tday\tn\nx\t2026-01-31\t1\n")
    (tmp_path / "b.tsv").write_text("k\tday\tn\ny\t2026-02-01\t2\n")
    load(db, "t", InputFiles([str(tmp_path / "a.tsv"), str(tmp_path / "b.tsv")]), key="k", spark=engine)
    assert rows_of(db, "t") == [
        {"k": "x", "day": date(2026, 1, 31), "n": 1},
        {"k": "y", "day": date(2026, 2, 1), "n": 2},
    ]
    assert db.table("t").scan().schema.field("n").type == "int64", "larger numbers may come"


def test_values_of_several_lines_are_read_if_asked_for(engine: SparkChoice, db: ebla.Database, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('k,s\n1,"two\nlines"\n')
    load(db, "t", InputFiles([str(tmp_path / "a.csv")], multiline=True), key="k", spark=engine)
    assert rows_of(db, "t") == [{"k": 1, "s": "two\nlines"}]


def test_csv_without_a_header_has_the_columns_of_the_table(
    engine: SparkChoice, db: ebla.Database, tmp_path: Path
) -> None:
    db.create_table("t", SCHEMA)
    (tmp_path / "a.csv").write_text("ada,2026-01-31,12\n")
    files = InputFiles([str(tmp_path / "a.csv")], header=False)
    load(db, "t", files, spark=engine)
    assert [(row["user"], row["zip"]) for row in rows_of(db, "t")] == [("ada", "12")]
    with pytest.raises(ebla.RequestError, match="a new table needs names"):
        load(db, "new", files, key="user", spark=engine)


def test_json_lines_keep_lists_cells_and_broken_lines(engine: SparkChoice, db: ebla.Database, tmp_path: Path) -> None:
    db.create_table("t", SCHEMA)
    (tmp_path / "rows.jsonl").write_text(
        '{"user": "ada", "day": "2026-01-31", "price": 1.5, "zip": 7, "tags": ["ä", null], "click": {"a": "1"}}\n'
        '{"user": "bob", "day": "2026-01-31", "click:b": "2"}\n'
        '{"user": "bob", "day": \n'
    )
    done = load(db, "t", InputFiles([str(tmp_path / "rows.jsonl")]), rejects=tmp_path / "r", spark=engine)
    assert (done.rows, done.rejected) == (2, 1)
    day = date(2026, 1, 31)
    assert rows_of(db, "t") == [
        {"user": "ada", "day": day, "zip": "7", "price": Decimal("1.50"), "tags": ["ä", None], "click:a": b"1"},
        {"user": "bob", "day": day, "zip": None, "price": None, "tags": None, "click:b": b"2"},
    ]


@pytest.mark.parametrize("format_", ["parquet", "orc"])
def test_parquet_and_orc_keep_their_types(
    spark: SparkSession, engine: SparkChoice, db: ebla.Database, tmp_path: Path, format_: str
) -> None:
    query = "SELECT 'a' AS k, 1.25BD AS d, array(1, 2) AS l, TIMESTAMP'2026-01-31 00:00:00Z' AS t"
    spark.sql(query).write.format(format_).save(str(tmp_path / "in"))
    load(db, "t", InputFiles([str(tmp_path / "in")]), key="k", spark=engine)
    (row,) = rows_of(db, "t")
    assert (row["d"], row["l"]) == (Decimal("1.25"), [1, 2])


def test_a_file_that_is_not_what_its_name_says_is_an_error_of_ours(
    engine: SparkChoice, db: ebla.Database, tmp_path: Path
) -> None:
    (tmp_path / "x.parquet").write_bytes(b"these are no columns at all")
    with pytest.raises(ebla.RequestError, match="cannot be read as parquet") as failed:
        load(db, "t", InputFiles([str(tmp_path / "x.parquet")]), key="k", spark=engine)
    assert "\n" not in str(failed.value)
    assert db.tables() == []


# --- in the process ------------------------------------------------------------------------------


def test_what_only_spark_reads_is_refused_in_the_process_and_left_to_spark(db: ebla.Database, tmp_path: Path) -> None:
    (tmp_path / "in" / "day=1").mkdir(parents=True)
    (tmp_path / "in" / "day=1" / "a.csv").write_text("k\n1\n")
    for paths, said in (([str(tmp_path / "in")], "has a column in its name"), (["s3://b/a.csv"], "not a path of this")):
        assert InputFiles(paths).bytes() is None
        with pytest.raises(ebla.RequestError, match=said):
            load(db, "t", InputFiles(paths), key="k", spark=False)
    assert db.tables() == []


def test_files_that_differ_are_read_in_the_columns_of_the_first_or_refused(db: ebla.Database, tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": pa.array([1], pa.int64()), "s": ["x"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"k": pa.array([2], pa.int32())}), tmp_path / "2.parquet")
    load(db, "t", InputFiles([f"{tmp_path}/*.parquet"]), key="k", spark=False)
    assert rows_of(db, "t") == [{"k": 1, "s": "x"}, {"k": 2, "s": None}]
    pq.write_table(pa.table({"k": ["three"]}), tmp_path / "3.parquet")
    (tmp_path / "a.csv").write_text("k,s\n1,x\n")
    (tmp_path / "b.csv").write_text("s,k\n1,x\n")
    for pattern, said in (("*.parquet", "cannot be read as parquet"), ("*.csv", "load them one after the other")):
        with pytest.raises(ebla.RequestError, match=said):
            load(db, "t", InputFiles([f"{tmp_path}/{pattern}"]), spark=False)
    assert db.table("t").scan().count() == 2


def test_columns_of_dictionaries_and_long_texts_are_loaded_and_rejected_as_plain_ones(
    db: ebla.Database, tmp_path: Path
) -> None:
    rows = pa.table(
        {"k": pa.array(["1", "x", "3"]).dictionary_encode(), "s": pa.array(["a", "b", "c"], pa.large_string())}
    )
    db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"s": "string"}))
    done = load(db, "t", rows, rejects=tmp_path / "r")
    assert [(row["k"], row["s"]) for row in rows_of(db, "t")] == [(1, "a"), (3, "c")]
    (line,) = Path(done.rejects_files[0]).read_text().splitlines()
    said = "key column 'k' is int64 and does not take x"
    assert json.loads(line) == {"reason": said, "row": {"k": "x", "s": "b"}}
