"""What newcomers try: a clear error of the tree, or the answer that they meant."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ebla
from ebla.settings import Settings

PEOPLE = ebla.Schema(key={"user": "string", "day": "int32"}, columns={"n": "int32", "name": "string"})


@pytest.fixture
def people(db: ebla.Database) -> ebla.Table:
    table = db.create_table("people", PEOPLE)
    table.put([{"user": "ada", "day": 1, "n": 1, "name": "Ada"}, {"user": "bob", "day": 2, "n": 2}])
    return table


@pytest.mark.parametrize(
    "mistake",
    [
        lambda t: t.scan(where=5),
        lambda t: t.scan(where="n >"),
        lambda t: t.scan(limit="5"),
        lambda t: t.scan(limit=2.5),
        lambda t: t.scan(limit=-1),
        lambda t: t.scan(versions="all"),
        lambda t: t.scan(versions=0),
        lambda t: t.scan(resume="x"),
        lambda t: t.get(("ada", 1), as_of=1.5),
        lambda t: t.get(("ada", 1), as_of="no such snapshot"),
        lambda t: t.get_many(None),
        lambda t: t.get_many("ada"),
        lambda t: t.get_many(5),
        lambda t: t.increment(("ada", 1), "n", "1"),
        lambda t: t.append(("ada", 1), "n", 5),
        lambda t: t.transact(("ada", 1), lambda row: 5),
        lambda t: t.transact(("ada", 1), lambda row: {"user": "eve", "day": 1, "n": 9}),
        lambda t: t.transact(("ada", 1), {"n": 9}),
        lambda t: t.put({"user": "ada", "day": 1, "n": 9}, if_unchanged_since="monday"),
        lambda t: t.put({"user": "ada", "day": 1, "n": 9}, if_unchanged_since=datetime(2026, 1, 1)),
        lambda t: ebla.time_of("monday"),
        lambda t: ebla.verify(5),
    ],
    ids=["where a number", "where cut off", "limit as text", "limit 2.5", "limit -1", "versions as text", "versions 0",
         "resume as text",
         "as_of 1.5", "as_of unknown", "keys None", "keys text", "keys a number", "increment by text",
         "append to a number", "transact returns a number", "transact returns another key", "transact with a dict",
         "unchanged since text", "unchanged since a time", "the time of text", "verify a number"],
)  # fmt: skip
def test_a_wrong_argument_is_refused_and_changes_nothing(
    people: ebla.Table, mistake: Callable[[ebla.Table], object]
) -> None:
    before = list(people.scan())
    with pytest.raises(ebla.RequestError):
        mistake(people)
    assert list(people.scan()) == before


@pytest.mark.parametrize("key", [["user"], "user"], ids=["a list", "text"])
def test_a_schema_that_maps_nothing_is_refused(db: ebla.Database, key: Any) -> None:
    with pytest.raises(ebla.SchemaError, match="map names to types"):
        db.create_table("t", ebla.Schema(key=key, columns={"n": "int32"}))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"key": {"k": "string"}, "columns": {"n": "int"}}, "column 'n': unknown type 'int'"),
        ({"key": {"k": str}, "columns": {"n": "int32"}}, "column 'k': a type is an Arrow type or its name"),
        ({"groups": [ebla.Group("g", families=["f"], max_age="30 days")]}, "an age is written like 30d"),
        ({"groups": [ebla.Group("g", families=["f", "f"])]}, "two of 'f' in group 'g'"),
    ],
    ids=["a type of Python's", "a class", "an age in words", "a family twice"],
)
def test_a_schema_that_cannot_be_is_told_with_the_place(db: ebla.Database, schema: dict[str, Any], said: str) -> None:
    with pytest.raises(ebla.SchemaError, match=said):
        db.create_table("t", ebla.Schema(**schema))


def test_an_addition_says_what_the_column_or_cell_takes(db: ebla.Database) -> None:
    groups = [ebla.Group("g", columns={"price": "decimal128(10, 2)"}), ebla.Group("cells", families=["f"])]
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=groups))
    table.put({"k": "a", "price": Decimal("1.10")})
    with pytest.raises(ebla.RequestError, match=r"'price' is decimal.*add a Decimal"):
        table.increment("a", "price", 0.1)
    with pytest.raises(ebla.RequestError, match=r"'price'.*give a Decimal"):
        table.put({"k": "a", "price": 1.1})
    with pytest.raises(ebla.RequestError, match="cell 'f:log' takes bytes"):
        table.append("a", "f:log", "text")
    assert table.increment("a", "price", Decimal("0.10")) == Decimal("1.20")
    assert table.append("a", "f:log", b"text") == b"text"


def test_a_filter_that_does_not_fit_says_what_would(db: ebla.Database) -> None:
    columns = {"price": "decimal128(10, 2)", "seen": "timestamp[us, tz=UTC]"}
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns=columns))
    table.put({"k": "a", "price": Decimal("1.10"), "seen": datetime(2026, 1, 2, tzinfo=UTC)})
    for wrong in (pc.field("price") > 1, pc.field("seen") > datetime(2026, 1, 1), pc.field("seen") > "2026-01-01"):
        with pytest.raises(ebla.RequestError, match=r"values of their own types, which pa\.scalar"):
            table.scan(where=wrong).to_arrow()
    assert table.scan(where=pc.field("price") > pa.scalar(Decimal(1), pa.decimal128(10, 2))).count() == 1
    assert table.scan(where=pc.field("seen") > datetime(2026, 1, 1, tzinfo=UTC)).count() == 1


def test_a_tablet_is_told_by_its_keys(people: ebla.Table) -> None:
    people.split(("b",))
    with pytest.raises(ebla.CannotSplit, match="begins at 'b' already"):
        people.split(("b",))
    with pytest.raises(ebla.CannotSplit, match=r"does not have \('a', 1\)"):
        people.split(("a", 1), tablet=people.tablets()[1]["id"])
    with pytest.raises(ebla.CannotJoin, match="the same tablet"):
        people.join(("a", 0), ("a", 9))


def test_a_printed_schema_can_be_read(db: ebla.Database) -> None:
    groups = [ebla.Group("g", columns={"n": "int32", "s": "list<string>"}), ebla.Group("cells", families=["f", "h"])]
    table = db.create_table("t", ebla.Schema(key={"k": "string", "day": "date32"}, groups=groups))
    assert str(table.schema).splitlines() == [
        "key: k string, day date32[day]",
        "group g: n int32, s list<item: string>",
        "group cells: f:..., h:...",
    ]


def test_a_scan_says_what_it_is_and_what_to_do_with_it(people: ebla.Table) -> None:
    scan = people.scan(columns=["n"])
    assert repr(scan).startswith(f"<ebla.Scan of user, day, n at txn {scan.txn}: iterate it")


@pytest.mark.parametrize("path", [None, 5, b"data", "s3://bucket/x", "file:///tmp/x"], ids=str)
def test_what_is_no_local_directory_is_no_store(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ebla.RequestError):
        ebla.open(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "numbers",
    [{"memory_bytes_max": -1}, {"memory_bytes_max": 0}, {"flush_bytes": "48"}, {"history_seconds": -0.5}],
    ids=lambda numbers: next(iter(numbers)) + str(next(iter(numbers.values()))),
)
def test_settings_that_cannot_be_are_refused_when_they_are_made(numbers: dict[str, Any]) -> None:
    with pytest.raises(ebla.RequestError, match=next(iter(numbers))):
        Settings(**numbers)


def test_settings_are_settings(tmp_path: Path) -> None:
    with pytest.raises(ebla.RequestError, match=r"ebla\.Settings"):
        ebla.open(tmp_path / "s", settings={"memory_bytes_max": 1})  # type: ignore[arg-type]


def test_a_closed_database_answers_nothing(tmp_path: Path) -> None:
    db = ebla.open(tmp_path / "s")
    table = db.create_table("people", PEOPLE)
    table.put({"user": "ada", "day": 1, "n": 1})
    assert table.get(("ada", 1))["n"] == 1  # from now on it is in the row cache
    scan = table.scan()
    db.close()
    for read in (
        lambda: table.get(("ada", 1)),
        lambda: table.get(("ada", 1), ["n"]),
        lambda: table.get_many([("ada", 1)]),
        lambda: list(table.scan()),
        lambda: list(scan),
        lambda: table.put({"user": "ada", "day": 1, "n": 2}),
    ):
        with pytest.raises(ebla.Closed):
            read()


def test_a_dropped_table_answers_nothing_also_when_its_name_is_taken_again(
    db: ebla.Database, people: ebla.Table
) -> None:
    assert people.get(("ada", 1)) is not None
    db.drop_table("people")
    db.create_table("people", PEOPLE)
    for read in (lambda: people.get(("ada", 1)), lambda: people.get_many([("ada", 1)]), lambda: list(people.scan())):
        with pytest.raises(ebla.UnknownTable, match="dropped"):
            read()
    assert db.table("people").get(("ada", 1)) is None


def test_a_snapshot_that_was_let_go_answers_nothing(db: ebla.Database, people: ebla.Table) -> None:
    with db.snapshot() as held:
        assert held.table("people").get(("ada", 1))["n"] == 1
    with pytest.raises(ebla.Closed, match="let go"):
        held.table("people")


def test_a_snapshot_can_be_read_by_its_name(db: ebla.Database, people: ebla.Table) -> None:
    db.snapshot("monday")
    people.put({"user": "ada", "day": 1, "n": 9})
    assert people.get(("ada", 1), as_of="monday")["n"] == 1
    assert [row["n"] for row in people.scan(as_of="monday")] == [1, 2]


def test_a_time_without_a_zone_is_utc_wherever_one_is(
    db: ebla.Database, people: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = ebla.time_of(people.put({"user": "ada", "day": 1, "n": 5}))
    people.put({"user": "ada", "day": 1, "n": 6})
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert now.tzinfo is UTC
    assert people.get(("ada", 1), as_of=now.replace(tzinfo=None)) == people.get(("ada", 1), as_of=now)
    assert people.get(("ada", 1), as_of=now)["n"] == 5
    with pytest.raises(ebla.UnknownTable, match="no table 'people' yet"):
        people.get(("ada", 1), as_of=datetime(1970, 1, 2))


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_keys_may_be_a_frame(people: ebla.Table, make: Callable[[dict[str, list[Any]]], Any]) -> None:
    keys = make({"user": ["bob", "eve", "ada"], "day": [2, 1, 1]})
    found = people.get_many(keys)
    assert found.column("_found").to_pylist() == [True, False, True]
    assert found.column("n").to_pylist() == [2, None, 1]
    people.erase_many(keys)
    assert people.scan().count() == 0


def test_what_holds_an_open_store_says_what_to_send_to_another_process_instead(
    db: ebla.Database, people: ebla.Table
) -> None:
    with db.snapshot() as held:
        for one in (db, people, people.scan(), held):
            with pytest.raises(TypeError, match=f"an ebla.{type(one).__name__} stays in the process .* send the path"):
                pickle.dumps(one)
    row = people.get(("ada", 1))
    assert pickle.loads(pickle.dumps(row)) == row
    assert pickle.loads(pickle.dumps(people.schema)) == people.schema


def test_a_row_whose_key_is_not_a_number_can_be_changed(db: ebla.Database) -> None:
    table = db.create_table("t", ebla.Schema(key={"k": "float64"}, columns={"n": "int32"}))
    nan = float("nan")
    table.put({"k": nan, "n": 1})
    table.transact(nan, lambda row: {**row, "n": row["n"] + 1})  # type: ignore[dict-item]
    assert table.get(nan)["n"] == 2
    for other in (0.0, None, "x", pd.NA, [nan], pd.Series([nan])):
        with pytest.raises(ebla.RequestError):
            table.transact(nan, lambda row, other=other: {"k": other, "n": 5})  # type: ignore[misc]
    assert [row["n"] for row in table.scan()] == [2]
