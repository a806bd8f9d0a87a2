"""spark.read.format("ebla"): the rows of table.scan(), at one snapshot for each load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import ebla
from tests.pipeline.tables import EVERYTHING, expected, fill, register_watched, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = date(2026, 1, 1)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def users(db: ebla.Database) -> ebla.Table:
    table = db.create_table("users", EVERYTHING, splits=[("u015",), ("u030",)])
    fill(table)
    return table


def load(spark: SparkSession, root: str, table: str = "users", **options: object) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("ebla").options(root=root, **given).load(table)


def test_a_load_has_the_rows_of_a_scan(spark: SparkSession, root: str, users: ebla.Table) -> None:
    found = load(spark, root)
    assert found.columns == users.scan().schema.names
    assert rows_of(found) == expected(users)


def test_an_empty_table_has_no_rows_and_all_columns(spark: SparkSession, root: str, db: ebla.Database) -> None:
    db.create_table("users", EVERYTHING)
    found = load(spark, root)
    assert found.columns[:3] == ["user", "day", "name"]
    assert found.collect() == []


def test_columns_and_key_ranges_are_options(spark: SparkSession, root: str, users: ebla.Table) -> None:
    found = load(spark, root, columns="age,click:home", start="u012", stop='["u020", "2026-01-02"]')
    wanted = expected(users, columns=["age", "click:home"], start="u012", stop=("u020", date(2026, 1, 2)))
    assert found.columns == ["user", "day", "age", "click:home"]
    assert rows_of(found) == wanted
    assert rows_of(load(spark, root, prefix="u003")) == expected(users, prefix="u003")


def test_as_of_is_a_txn_or_a_time(spark: SparkSession, root: str, users: ebla.Table) -> None:
    before, wanted = users.scan().txn, expected(users)
    moment = datetime.now(UTC)
    users.erase_range()
    assert rows_of(load(spark, root, as_of=before)) == wanted
    assert rows_of(load(spark, root, as_of=moment.isoformat())) == wanted
    assert load(spark, root).count() == 0


def test_as_of_before_the_table_was_made_is_refused(spark: SparkSession, root: str, db: ebla.Database) -> None:
    early = db.create_table("other", EVERYTHING).scan().txn
    users = db.create_table("users", EVERYTHING)
    for moment in (early, "2020-01-01T00:00:00"):
        with pytest.raises(PySparkException, match="there was no table 'users' yet"):
            load(spark, root, as_of=moment)
    assert load(spark, root, as_of=users.scan().txn).count() == 0


# --- schemas ---------------------------------------------------------------------------------------


def test_a_schema_chooses_columns_and_their_order(spark: SparkSession, root: str, users: ebla.Table) -> None:
    found = spark.read.format("ebla").schema("age int, user string").options(root=root).load("users")
    assert found.columns == ["age", "user"]
    wanted = [{"age": row["age"], "user": row["user"]} for row in expected(users, columns=["age"])]
    assert sorted(map(str, found.toArrow().to_pylist())) == sorted(map(str, wanted))


def test_a_schema_of_the_key_alone_has_every_row(spark: SparkSession, root: str, users: ebla.Table) -> None:
    found = spark.read.format("ebla").schema("day date, user string").options(root=root).load("users")
    assert found.count() == users.scan().count()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("age string", "column 'age' of 'users' is int, not string"),
        ("`no:such:column` string, `x y` int, age int", "UnknownColumn"),
        ("age int not null", "column 'age' has nulls, and the schema given says it has none"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(
    spark: SparkSession, root: str, db: ebla.Database, schema: str, said: str
) -> None:
    users = db.create_table("users", ebla.Schema(key={"user": "string"}, columns={"age": "int32"}))
    users.put({"user": "ada"})
    with pytest.raises(PySparkException, match=said) as raised:
        spark.read.format("ebla").schema(schema).options(root=root).load("users").collect()
    assert "Traceback" not in str(raised.value)


# --- one snapshot ----------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [None, "user string, age int"])
def test_all_actions_of_a_load_see_one_snapshot(
    spark: SparkSession, root: str, db: ebla.Database, schema: str | None
) -> None:
    users = db.create_table("users", ebla.Schema(key={"user": "string"}, columns={"age": "int32"}))
    users.put([{"user": f"u{n}", "age": n} for n in range(10)])
    reader = spark.read.format("ebla").options(root=root)
    found = (reader if schema is None else reader.schema(schema)).load("users")
    if schema is not None:
        found.count()  # Spark makes the source at the first action, if it need not ask for the schema
    users.put([{"user": f"new{n}", "age": 0} for n in range(5)])
    users.erase("u1")
    users.flush()
    assert len(found.collect()) == 10
    users.erase_range()
    assert sorted(row.user for row in found.collect()) == [f"u{n}" for n in range(10)]
    assert len(found.where("age >= 5").collect()) == 5


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_filters_are_not_shared_between_frames_of_one_load(
    spark: SparkSession, root: str, users: ebla.Table, pushdown: str
) -> None:
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, pushdown)
    try:
        found = load(spark, root)
        one, other = found.where("user = 'u001'"), found.where("user = 'u020' and day = date'2026-01-02'")
        assert [row.user for row in one.union(other).collect()] == ["u001", "u001", "u020"]
        assert len(found.collect()) == users.scan().count()
    finally:
        spark.conf.set(PUSHDOWN, before)


# --- who reads ---------------------------------------------------------------------------------------


def test_every_step_runs_in_a_process_that_has_nothing_of_ours(
    spark: SparkSession, root: str, users: ebla.Table, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    register_watched(spark)
    found = spark.read.format("watched").options(root=root, table=f"users|{log}").load()
    assert found.count() == users.scan().count()
    steps = [line.split() for line in log.read_text().splitlines()]
    assert {step for step, _ in steps} == {"schema", "reader", "partitions", "read"}
    assert str(os.getpid()) not in {process for _, process in steps}


WRITER = """
import sys, ebla
with ebla.open(sys.argv[1]) as db:
    users = db.create_table("users", ebla.Schema(key={"n": "int64"}, columns={"v": "string"}))
    users.put([{"n": n, "v": "flushed"} for n in range(50)])
    users.flush()
    users.put([{"n": n, "v": "in the log"} for n in range(40, 60)])
    for line in iter(lambda: print("ready", flush=True) or sys.stdin.readline(), ""):
        users.put({"n": int(line), "v": "later"})
"""


@pytest.fixture
def other_process(root: str) -> Iterator[Any]:
    """Another process that has the store open for writing, and puts a row for every number it is sent."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def put(number: int | None = None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        if number is not None:
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
        assert process.stdout.readline() == "ready\n"

    put()
    try:
        yield put
    finally:
        process.communicate(timeout=60)


def test_a_store_is_read_and_written_while_another_process_has_it_open(
    spark: SparkSession, root: str, other_process: Any
) -> None:
    found = load(spark, root)
    assert [row.v for row in found.collect()] == ["flushed"] * 40 + ["in the log"] * 20
    other_process(1000)
    assert (len(found.collect()), len(load(spark, root).collect())) == (60, 61)
    more = spark.range(2000, 2010).selectExpr("id as n", "'from Spark' as v")
    more.write.format("ebla").options(root=root).mode("append").save("users")
    other_process(3000)
    assert len(load(spark, root).collect()) == 72


# --- what is not there -----------------------------------------------------------------------------


def test_a_store_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as raised:
        load(spark, str(tmp_path / "nowhere"))
    first = str(raised.value).splitlines()[0]
    assert f"ebla.errors.StoreNotFound: there is no store at {tmp_path / 'nowhere'}" in first
    assert not (tmp_path / "nowhere").exists()


def test_a_table_that_is_not_there_is_named(spark: SparkSession, root: str, users: ebla.Table) -> None:
    with pytest.raises(PySparkException) as raised:
        load(spark, root, "usres")
    assert (
        "ebla.errors.UnknownTable: there is no table 'usres': the store has users" in str(raised.value).splitlines()[0]
    )


def test_a_misspelt_option_is_refused(spark: SparkSession, root: str, users: ebla.Table) -> None:
    with pytest.raises(PySparkException, match="there is no option 'asof'"):
        load(spark, root, asof="1")


def test_a_table_that_was_dropped_and_made_anew_is_not_taken_for_the_one_loaded(
    spark: SparkSession, root: str, db: ebla.Database, users: ebla.Table
) -> None:
    found = load(spark, root)
    db.drop_table("users")
    db.create_table("users", EVERYTHING)
    with pytest.raises(PySparkException, match="was dropped"):
        found.collect()
