"""Load: what a DataFrame holds is what the table holds, in every mode, for every shape of data."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import ebla
from ebla.pipeline import JobProgress, load
from tests.pipeline.spark.test_types import STORED
from tests.support.inside import engine_of

DAY = date(2026, 1, 31)
USERS = "user string, day date, name string, age int"


def users(spark: SparkSession, *rows: tuple[object, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), USERS)


def rows_of(db: ebla.Database, table: str) -> list[dict[str, object]]:
    return [dict(row) for row in db.table(table).scan()]


# --- tables --------------------------------------------------------------------------------------


def test_a_table_is_made_from_the_columns_of_the_dataframe(spark: SparkSession, db: ebla.Database) -> None:
    done = load(db, "users", users(spark, ("bob", DAY, "Bob", None), ("ada", DAY, "Ada", 36)), key=["user", "day"])
    assert (done.rows, done.rejected, done.duplicates, done.repeated, done.created) == (2, 0, 0, False, True)
    assert db.table("users").schema.key_names == ("user", "day")
    assert rows_of(db, "users") == [
        {"user": "ada", "day": DAY, "name": "Ada", "age": 36},
        {"user": "bob", "day": DAY, "name": "Bob", "age": None},
    ]


def test_a_load_is_one_commit_that_readers_of_before_do_not_see(spark: SparkSession, db: ebla.Database) -> None:
    db.create_table(
        "users", ebla.Schema(key={"user": "string", "day": "date32"}, columns={"name": "string", "age": "int32"})
    )
    put = db.table("users").put({"user": "ada", "day": DAY, "name": "old"})
    done = load(db, "users", users(spark, ("ada", DAY, "new", 1), ("bob", DAY, "b", 2)), partitions=2)
    assert done.txn > put
    assert [row["name"] for row in db.table("users").scan(as_of=put)] == ["old"]
    assert [row["name"] for row in db.table("users").scan(as_of=done.txn)] == ["new", "b"]
    assert db.table("users").put({"user": "ada", "day": DAY, "age": 9}) > done.txn
    assert rows_of(db, "users")[0] == {"user": "ada", "day": DAY, "name": "new", "age": 9}


def test_a_load_that_a_change_of_the_schema_has_overtaken_is_a_conflict(spark: SparkSession, db: ebla.Database) -> None:
    schema = ebla.Schema(key={"user": "string", "day": "date32"}, columns={"name": "string", "age": "int32"})
    db.create_table("users", schema)
    frame = users(spark, ("ada", DAY, "Ada", 36))

    def overtake(progress: JobProgress) -> None:
        if progress.phase == "committing":
            db.alter_table("users", drop_columns=["age"], add_columns={"age": "int32"})

    with pytest.raises(ebla.Conflict, match="run the job again"):
        load(db, "users", frame, progress=overtake)
    assert rows_of(db, "users") == []
    load(db, "users", frame)
    assert rows_of(db, "users") == [{"user": "ada", "day": DAY, "name": "Ada", "age": 36}]


def test_what_was_loaded_survives_a_reopening(spark: SparkSession, root: str) -> None:
    with ebla.open(root) as db:
        load(db, "users", users(spark, ("ada", DAY, "Ada", 36)), key=["user", "day"])
        before = rows_of(db, "users")
    with ebla.open(root) as db:
        assert rows_of(db, "users") == before


def test_a_store_that_is_closed_or_open_elsewhere_is_loaded_by_its_root(spark: SparkSession, root: str) -> None:
    with ebla.open(root) as db:
        db.create_table(
            "users", ebla.Schema(key={"user": "string", "day": "date32"}, columns={"name": "string", "age": "int32"})
        )
        # The owner commits, here in this very process.
        load(root, "users", users(spark, ("ada", DAY, "Ada", 1)))
        assert len(rows_of(db, "users")) == 1
    load(root, "users", users(spark, ("bob", DAY, "Bob", 1)))
    load(Path(root), "others", users(spark, ("zoe", DAY, "Zoe", 1)), key=["user", "day"])
    with ebla.open(root, read_only=True) as db:
        assert [row["user"] for row in rows_of(db, "users")] == ["ada", "bob"]
        assert [row["user"] for row in rows_of(db, "others")] == ["zoe"]


def test_partitions_follow_the_tablets_and_files_do_not_overlap(spark: SparkSession, db: ebla.Database) -> None:
    frame = spark.range(5_000).selectExpr("concat('k', lpad(id, 5, '0')) AS k", "id AS n")
    done = load(db, "t", frame, key="k", splits=["k02000"], partitions=4)
    (tablet_a, tablet_b) = engine_of(db).table("t").view.metadata.tablets
    files = {ref for tablet in (tablet_a, tablet_b) for state in tablet.groups for ref in state.fragments}
    assert len(files) == done.files >= 3
    spans = sorted((ref.first, ref.last) for ref in files)
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    assert any(first == b"k02000" for first, _ in spans)
    assert db.table("t").scan().to_arrow().column("n").to_pylist() == list(range(5_000))


# --- modes ---------------------------------------------------------------------------------------


@pytest.fixture
def filled(db: ebla.Database) -> ebla.Table:
    schema = ebla.Schema(
        key={"k": "string"},
        groups=[
            ebla.Group("a", columns={"x": "int32", "y": "int32"}),
            ebla.Group("b", columns={"z": "int32"}),
            ebla.Group("c", families=["f"]),
        ],
    )
    table = db.create_table("t", schema)
    table.put([{"k": k, "x": 1, "y": 1, "z": 1, "f:old": b"1"} for k in ("p", "q")])
    table.flush()
    return table


def test_upsert_leaves_other_columns_untouched(spark: SparkSession, db: ebla.Database, filled: ebla.Table) -> None:
    load(db, "t", spark.createDataFrame([("p", 2, "v")], "k string, x int, `f:new` string"))
    assert dict(filled.get("p") or {}) == {"k": "p", "x": 2, "y": 1, "z": 1, "f:old": b"1", "f:new": b"v"}
    assert dict(filled.get("q") or {}) == {"k": "q", "x": 1, "y": 1, "z": 1, "f:old": b"1"}


def test_replace_replaces_whole_rows(spark: SparkSession, db: ebla.Database, filled: ebla.Table) -> None:
    load(db, "t", spark.createDataFrame([("p", 2)], "k string, x int"), mode="replace")
    assert dict(filled.get("p") or {}) == {"k": "p", "x": 2, "y": None, "z": None}
    assert dict(filled.get("q") or {})["z"] == 1


def test_overwrite_replaces_the_whole_table_at_once(spark: SparkSession, db: ebla.Database, filled: ebla.Table) -> None:
    before = db.snapshot()
    load(db, "t", spark.createDataFrame([("r", 2)], "k string, x int"), mode="overwrite")
    assert rows_of(db, "t") == [{"k": "r", "x": 2, "y": None, "z": None}]
    assert len(list(before.table("t").scan())) == 2


def test_overwriting_with_nothing_empties_the_table(spark: SparkSession, db: ebla.Database, filled: ebla.Table) -> None:
    assert load(db, "t", spark.createDataFrame([], "k string, x int"), mode="overwrite").rows == 0
    assert rows_of(db, "t") == []


def test_of_rows_with_one_key_the_last_wins(spark: SparkSession, db: ebla.Database) -> None:
    frame = spark.createDataFrame([(f"k{n % 7}", n) for n in range(700)], "k string, n int").repartition(1)
    in_order = frame.sortWithinPartitions("n")
    done = load(db, "t", in_order, key="k", partitions=3)
    assert (done.rows, done.duplicates) == (700, 693)
    assert [row["n"] for row in rows_of(db, "t")] == list(range(693, 700))


def test_duplicates_are_an_error_if_asked_for(spark: SparkSession, db: ebla.Database) -> None:
    frame = spark.createDataFrame([("a", 1, 1), ("a", 1, 2), ("b", 1, 3), ("a", 2, 4)], "k string, d int, n int")
    with pytest.raises(ebla.InvalidBatch, match=r"1 of 4 rows have the key of another.*Examples: \('a', 1\)"):
        load(db, "t", frame, key=["k", "d"], on_duplicate="error")
    assert db.tables() == []
    assert load(db, "t", frame.dropDuplicates(["k", "d"]), key=["k", "d"], on_duplicate="error").rows == 3


# --- shapes --------------------------------------------------------------------------------------


def test_every_type_is_loaded_as_a_put_would_store_it(spark: SparkSession, db: ebla.Database) -> None:
    from ebla.pipeline.spark.types import spark_schema, to_spark

    columns = {name: type_ for name, (type_, _) in STORED.items()}
    schema = ebla.Schema(key={"k": "int32"}, columns=columns)
    given = pa.table({"k": pa.array([2, 1], pa.int32()), **{n: pa.array([v, None], t) for n, (t, v) in STORED.items()}})
    db.create_table("loaded", schema)
    db.create_table("put", schema).put(given)
    load(db, "loaded", spark.createDataFrame(to_spark(given), spark_schema(given.schema)))
    assert db.table("loaded").scan().to_arrow().equals(db.table("put").scan().to_arrow())


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("int32", [-5, 0, 2**31 - 1]),
        ("uint64", [0, 1, 2**64 - 1]),
        ("float64", [-1.5, 0.0, 2.5]),
        ("bool", [False, True]),
        ("binary", [b"", b"\x00", b"\x00\xff", b"a"]),
        ("string", ["", "a", "ä", "𒀭"]),
        ("timestamp[us, tz=UTC]", [datetime(1905, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]),
        ("timestamp[ms]", [datetime(1905, 1, 1), datetime(2026, 1, 1)]),
        ("time64[us]", [(datetime(1970, 1, 1) + timedelta(hours=h)).time() for h in (0, 5, 23)]),
    ],
)
def test_keys_of_every_kind_keep_their_order(
    spark: SparkSession, db: ebla.Database, type_: str, values: list[object]
) -> None:
    from ebla.pipeline.spark.types import spark_schema, to_spark

    table = db.create_table("t", ebla.Schema(key={"k": type_, "i": "int8"}, columns={"n": "int64"}))
    stored = table.schema.key_types[0]
    given = pa.table(
        {"k": pa.array(values[::-1] * 3, stored), "i": pa.array([1, 2, 3] * len(values), pa.int8()).sort()}
    )
    given = given.append_column("n", pa.array(range(given.num_rows), pa.int64()))
    load(db, "t", spark.createDataFrame(to_spark(given), spark_schema(given.schema)), partitions=3)
    wanted = db.create_table("put", ebla.Schema(key={"k": type_, "i": "int8"}, columns={"n": "int64"}))
    wanted.put(given)
    assert table.scan().to_arrow().equals(wanted.scan().to_arrow())


def test_cells_come_as_columns_or_as_maps(spark: SparkSession, db: ebla.Database) -> None:
    frame = spark.createDataFrame(
        [
            ("a", "1", {"x": bytearray(b"\xff"), "ÿ": bytearray(b"")}),
            ("b", "", None),
            ("a", None, {"x": bytearray(b"2")}),
        ],
        "k string, `click:home` string, view map<string,binary>",
    )
    done = load(db, "t", frame, key="k")
    assert (done.rows, done.files) == (3, 1)
    assert rows_of(db, "t") == [
        {"k": "a", "click:home": b"1", "view:x": b"2", "view:ÿ": b""},
        {"k": "b", "click:home": b""},
    ]


def test_columns_of_other_types_are_cast_without_loss(spark: SparkSession, db: ebla.Database) -> None:
    schema = ebla.Schema(
        key={"k": "int32"}, columns={"n": "int16", "price": "decimal128(6, 2)", "day": "date32", "f": "float32"}
    )
    db.create_table("t", schema)
    frame = spark.sql("SELECT 7L AS k, 3.0D AS n, 12 AS price, TIMESTAMP_NTZ'2026-01-31' AS day, 0.1D AS f")
    load(db, "t", frame)
    (row,) = rows_of(db, "t")
    assert (row["k"], row["n"], row["price"], row["day"]) == (7, 3, Decimal("12.00"), DAY)


def test_text_becomes_what_the_columns_are(spark: SparkSession, db: ebla.Database) -> None:
    columns = {
        "n": "int32", "x": "float64", "ok": "bool", "price": "decimal128(6, 2)", "day": "date32",
        "at": "timestamp[us, tz=UTC]", "naive": "timestamp[s]", "clock": "time64[us]", "coarse": "time32[s]",
        "raw": "binary", "u": "uint8", "s": "string",
    }  # fmt: skip
    db.create_table("t", ebla.Schema(key={"k": "int32"}, columns=columns))
    texts = ["1", "-3", "2.5", "true", "12.5", "2026-01-31", "2026-01-31T12:00:00+02:00", "2026-01-31 12:00:00",
             "23:59:59.000001", "01:02:03", "ä", "255", "007"]  # fmt: skip
    load(db, "t", spark.createDataFrame([tuple(texts)], ["k", *columns]))
    put = db.create_table("put", ebla.Schema(key={"k": "int32"}, columns=columns))
    put.put(
        {"k": 1, "n": -3, "x": 2.5, "ok": True, "price": Decimal("12.5"), "day": DAY,
         "at": datetime(2026, 1, 31, 10, tzinfo=UTC), "naive": datetime(2026, 1, 31, 12),
         "clock": datetime(1970, 1, 1, 23, 59, 59, 1).time(),
         "coarse": datetime(1970, 1, 1, 1, 2, 3).time(), "raw": "ä".encode(), "u": 255, "s": "007"}
    )  # fmt: skip
    assert db.table("t").scan().to_arrow().equals(put.scan().to_arrow())


def test_names_may_differ_in_case_only_and_hold_dots(spark: SparkSession, db: ebla.Database) -> None:
    frame = spark.createDataFrame([(1, 2, 3, 4)], ["k", "K", "a.b", "a`b"])
    load(db, "t", frame, key="k")
    assert rows_of(db, "t") == [{"k": 1, "K": 2, "a.b": 3, "a`b": 4}]


# --- rejects -------------------------------------------------------------------------------------


def bad_users(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [
            ("ada", "2026-01-31", "36"),
            (None, "2026-01-31", "1"),
            ("bob", "soon", "2"),
            ("zoe", "2026-02-01", "many"),
            ("eve", "2026-02-01", None),
        ],
        "user string, day string, age string",
    )


@pytest.fixture
def typed_users(db: ebla.Database) -> ebla.Table:
    return db.create_table("users", ebla.Schema(key={"user": "string", "day": "date32"}, columns={"age": "uint8"}))


def test_rows_that_do_not_fit_fail_the_load_with_count_and_examples(
    spark: SparkSession, db: ebla.Database, typed_users: ebla.Table
) -> None:
    with pytest.raises(ebla.InvalidBatch) as failed:
        load(db, "users", bad_users(spark))
    said = str(failed.value)
    assert said.startswith("3 of 5 rows do not fit and nothing was loaded")
    assert "key column 'user' is null" in said
    assert "key column 'day' is date32[day] and does not take soon" in said
    assert "column 'age' is uint8 and does not take many" in said
    assert rows_of(db, "users") == []
    assert fragments(db) == []


def fragments(db: ebla.Database) -> list[str]:
    return sorted(path.name for path in (db.path / "fragments").rglob("*.parquet"))


def test_rejects_go_to_their_directory_and_the_rest_is_loaded(
    spark: SparkSession, db: ebla.Database, typed_users: ebla.Table, tmp_path: Path
) -> None:
    done = load(db, "users", bad_users(spark), rejects=tmp_path / "rejects", partitions=2, job="monday")
    assert (done.rows, done.rejected) == (2, 3)
    assert [row["user"] for row in rows_of(db, "users")] == ["ada", "eve"]
    files = sorted((tmp_path / "rejects").iterdir())
    assert [str(file) for file in files] == list(done.rejects_files)
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {line["row"]["user"]: line["reason"] for line in lines} == {
        None: "key column 'user' is null: a key has none",
        "bob": "key column 'day' is date32[day] and does not take soon",
        "zoe": "column 'age' is uint8 and does not take many",
    }
    assert {"user": "bob", "day": "soon", "age": "2"} in [line["row"] for line in lines]


def test_values_that_only_the_tasks_can_judge_are_rejected_too(
    spark: SparkSession, db: ebla.Database, tmp_path: Path
) -> None:
    db.create_table("t", ebla.Schema(key={"k": "uint8"}, columns={"n": "int8", "at": "timestamp[s]", "s": "string"}))
    frame = spark.sql(
        "SELECT * FROM VALUES (1, 300, TIMESTAMP_NTZ'2026-01-31', X'61'),"
        "(2, 1, TIMESTAMP_NTZ'2026-01-31 00:00:00.5', X'61'),"
        "(3, 3, NULL, X'61'), (4, 4, NULL, X'FF'), (-1, 5, NULL, X'61'), (256, 6, NULL, X'61') AS t(k, n, at, s)"
    )
    done = load(db, "t", frame, rejects=tmp_path / "r", partitions=2)
    assert (done.rows, done.rejected) == (1, 5)
    assert rows_of(db, "t") == [{"k": 3, "n": 3, "at": None, "s": "a"}]
    reasons = [
        json.loads(line)["reason"] for file in done.rejects_files for line in Path(file).read_text().splitlines()
    ]
    assert sum("'n'" in reason for reason in reasons) == 1
    assert sum("'at'" in reason for reason in reasons) == 1
    assert sum("'s'" in reason for reason in reasons) == 1
    assert sum("'k'" in reason for reason in reasons) == 2


def test_keys_that_are_too_long_are_rejected(spark: SparkSession, db: ebla.Database, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT k, 1 AS n FROM VALUES (repeat('x', 65536)), (repeat('x', 65537)), (repeat('ä', 40000)) AS t(k)"
    )
    done = load(db, "t", frame, key="k", rejects=tmp_path / "r")
    assert (done.rows, done.rejected) == (1, 2)
    # Zero bytes take two in the row of a composite key, so that only its encoding tells how long it is.
    composite = spark.createDataFrame([("\0" * 40_000, 1), ("fine", 1)], "k string, n int")
    done = load(db, "u", composite, key=["k", "n"], rejects=tmp_path / "r")
    assert (done.rows, done.rejected) == (1, 1)


def test_no_rejects_make_no_file(spark: SparkSession, db: ebla.Database, tmp_path: Path) -> None:
    done = load(db, "users", users(spark, ("ada", DAY, "Ada", 1)), key="user", rejects=tmp_path / "r")
    assert done.rejects_files == ()
    assert list((tmp_path / "r").iterdir()) == []


# --- progress and jobs ---------------------------------------------------------------------------


def test_progress_is_reported_phase_by_phase(spark: SparkSession, db: ebla.Database) -> None:
    seen: list[JobProgress] = []
    load(db, "t", spark.range(100).selectExpr("id AS k"), key="k", partitions=2, progress=seen.append)
    assert [phase for at, phase in enumerate(p.phase for p in seen) if at == 0 or seen[at - 1].phase != phase] == [
        "sampling", "writing", "committing",
    ]  # fmt: skip
    assert all(p.tasks_done <= p.tasks for p in seen)


def test_a_job_is_applied_once(spark: SparkSession, db: ebla.Database) -> None:
    first = load(db, "t", spark.createDataFrame([("a", 1)], "k string, n int"), key="k", job="nightly-1")
    again = load(db, "t", spark.createDataFrame([("b", 2)], "k string, n int"), key="k", job="nightly-1")
    assert (first.repeated, again.repeated, again.txn) == (False, True, first.txn)
    assert [row["k"] for row in rows_of(db, "t")] == ["a"]
    assert not load(db, "t", spark.createDataFrame([("b", 2)], "k string, n int"), job="nightly-2").repeated
