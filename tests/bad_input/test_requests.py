"""Requests that cannot be right: a typed error that says why, and a store that is as it was, also when reopened."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ebla
from ebla.settings import KIB, Settings

LIMITS = Settings(value_bytes_max=1_000, batch_bytes_max=64 * KIB)
SCHEMA = ebla.Schema(
    key={"user": "string", "day": "date32"},
    groups=[
        ebla.Group("profile", columns={"name": "string", "age": "int32", "score": "float64", "tags": "list<string>"}),
        ebla.Group("events", families=["click"]),
    ],
)
DAY = datetime.date(2026, 1, 1)
KEY = ("ada", DAY)
ROW: dict[str, Any] = {"user": "ada", "day": DAY, "name": "Ada", "age": 36, "click:home": b"1"}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    """A store that must be the same after the test as before it, also after it was opened again."""
    path = tmp_path / "store"
    opened = ebla.open(path, settings=LIMITS)
    table = opened.create_table("users", SCHEMA, [("m",)])
    table.put([ROW, {"user": "zoe", "day": DAY, "age": 1}])
    before = contents(opened)
    txn = opened.stats()["txn_committed"]
    yield opened
    assert contents(opened) == before
    assert opened.stats()["txn_committed"] == txn, "nothing was committed"
    opened.close()
    with ebla.open(path) as again:
        assert contents(again) == before


def contents(db: ebla.Database) -> dict[str, Any]:
    return {name: [dict(row) for row in db.table(name).scan(versions=9)] for name in db.tables()}


def refused(error: type[Exception], match: str, request: Callable[[ebla.Database], object]) -> Any:
    return pytest.param(error, match, request, id=match[:30])


def put(rows: object, **options: Any) -> Callable[[ebla.Database], object]:
    return lambda db: db.table("users").put(rows, **options)


def key_table(**columns: Any) -> pa.Table:
    return pa.table({"user": ["bob"], "day": pa.array([DAY]), **columns})


NAMES = [
    refused(ebla.UnknownTable, "no table 'nobody'", lambda db: db.table("nobody")),
    refused(ebla.UnknownTable, "'nobody': the store has users", lambda db: db.drop_table("nobody")),
    refused(ebla.TableExists, "already", lambda db: db.create_table("users", SCHEMA)),
    refused(ebla.UnknownColumn, "nmae", put({**ROW, "nmae": "x"})),
    refused(ebla.UnknownColumn, "family|no column", put({**ROW, "view:home": b"x"})),
    refused(ebla.UnknownColumn, "height", put(key_table(height=[3]))),
    refused(ebla.UnknownColumn, "weight", lambda db: db.table("users").get(KEY, columns=["weight"])),
    refused(ebla.UnknownColumn, "girth", lambda db: db.table("users").scan(columns=["girth"])),
    refused(ebla.UnknownColumn, "depth", lambda db: list(db.table("users").scan(where=pc.field("depth") > 1))),
    refused(ebla.UnknownColumn, "width", lambda db: db.table("users").erase(KEY, columns=["width"])),
    refused(ebla.UnknownColumn, "count", lambda db: db.table("users").increment(KEY, "count")),
    refused(ebla.RequestError, "_txn", put({**ROW, "_txn": 1})),
    refused(ebla.UnknownColumn, "surrogate", lambda db: db.table("users").get(KEY, columns=["click:\ud800"])),
    refused(ebla.UnknownColumn, "surrogate", lambda db: db.table("users").erase(KEY, columns=["click:\ud800"])),
    refused(ebla.UnknownColumn, "surrogate", lambda db: db.table("users").append(KEY, "click:\ud800", b"x")),
]

TYPES = [
    refused(ebla.InvalidBatch, "age", put({**ROW, "age": "old"})),
    refused(ebla.InvalidBatch, "age.*|.*int32", put({**ROW, "age": 1 << 40})),
    refused(ebla.InvalidBatch, "name", put({**ROW, "name": 5})),
    refused(ebla.InvalidBatch, "tags", put({**ROW, "tags": "not a list"})),
    refused(ebla.InvalidBatch, "click:home", put({**ROW, "click:home": 7})),
    refused(ebla.InvalidBatch, "score", put(key_table(score=["high"]))),
    refused(ebla.InvalidBatch, "age", put(key_table(age=pa.array([1 << 40], pa.int64())))),
    refused(ebla.InvalidBatch, "rows are", put(17)),
    refused(ebla.InvalidBatch, "rows are", put("text")),
    refused(ebla.InvalidBatch, "collect", put(pl.LazyFrame({"k": [1]}))),
    refused(ebla.InvalidBatch, "a Series is one column", put(pl.Series("k", [1]))),
    refused(ebla.InvalidBatch, "a Series is one column", put(pd.DataFrame({"k": [1]}).iloc[0])),
    refused(ebla.InvalidBatch, "dict|row", put([1, 2, 3])),
    refused(ebla.RequestError, "increment", lambda db: db.table("users").increment(KEY, "name")),
    refused(ebla.RequestError, "counter|bytes", lambda db: db.table("users").increment(KEY, "click:home")),
    refused(ebla.RequestError, "append", lambda db: db.table("users").append(KEY, "name", 5)),
    refused(ebla.RequestError, "wait", put(ROW, wait="maybe")),
    refused(ebla.RequestError, "as_of", lambda db: db.table("users").get(KEY, as_of="yesterday")),
    refused(ebla.RequestError, "limit", lambda db: db.table("users").scan(limit=-1)),
    refused(ebla.RequestError, "version", lambda db: db.table("users").scan(versions=0)),
    refused(ebla.RequestError, "where", lambda db: list(db.table("users").scan(where=pc.field("age") > "x"))),
    refused(ebla.RequestError, "columns", lambda db: db.table("users").erase(KEY, columns="name")),
]

UNHASHABLE: list[Any] = [[], {}, set()]

STRANGE = [
    *(
        refused(ebla.UnknownTable, "no table", lambda db, name=name, use=use: use(db, name))
        for name in UNHASHABLE
        for use in (
            lambda db, name: db.table(name),
            lambda db, name: db.drop_table(name),
            lambda db, name: db.clone_table(name, "other"),
            lambda db, name: db.unload_table(name),
            lambda db, name: db.alter_table(name, drop_columns=["age"]),
        )
    ),
    refused(ebla.RequestError, "list of names", lambda db: db.table("users").get(KEY, columns=[["age"]])),
    refused(ebla.RequestError, "list of names", lambda db: db.table("users").scan(columns=[{}])),
    refused(ebla.RequestError, "whole number", lambda db: db.table("users").scan(versions=None)),
    refused(ebla.RequestError, "whole number", lambda db: db.table("users").scan(versions=1.5)),
    refused(ebla.RequestError, "NaT", lambda db: db.table("users").get(KEY, as_of=pd.NaT)),
    refused(ebla.CannotSplit, "no tablet", lambda db: db.table("users").split(tablet=["x"])),
    refused(ebla.InvalidBatch, "a Series is one column", put(pl.Series("k", [1]), replace=True)),
    refused(ebla.SchemaError, "lists names", lambda db: db.alter_table("users", add_families={"events": 1})),
    refused(ebla.SchemaError, "no group", lambda db: db.alter_table("users", drop_groups=[{}])),
    refused(ebla.SchemaError, "no group", lambda db: db.alter_table("users", move={"age": []})),
]

KEYS = [
    refused(ebla.RequestError, "user|key", put({"day": DAY, "name": "x"})),
    refused(ebla.RequestError, "null|None", put({**ROW, "user": None})),
    refused(ebla.RequestError, "null|None", put([ROW, {**ROW, "day": None}])),
    refused(ebla.RequestError, "null", put(pa.table({"user": pa.array(["a", None]), "day": pa.array([DAY, DAY])}))),
    refused(ebla.RequestError, "day", put(pa.table({"user": ["a"], "name": ["x"]}))),
    refused(ebla.RequestError, "day", put({**ROW, "day": "the first"})),
    refused(ebla.RequestError, "bytes|long", put({**ROW, "user": "x" * (64 * KIB + 1)})),
    refused(ebla.RequestError, "bytes|long", put({**ROW, "user": "\0" * (40 * KIB)})),
    refused(ebla.InvalidKey, "column|key", lambda db: db.table("users").get("ada")),
    refused(ebla.InvalidKey, "column|key", lambda db: db.table("users").get(("ada", DAY, 3))),
    refused(ebla.InvalidKey, "null|None", lambda db: db.table("users").get((None, DAY))),
    refused(ebla.InvalidKey, ".", lambda db: db.table("users").erase(("ada", "monday"))),
    refused(ebla.InvalidKey, ".", lambda db: db.table("users").get_many([KEY, ("ada", None)])),
    refused(ebla.InvalidKey, ".", lambda db: db.table("users").erase_many([KEY, 5])),
    refused(ebla.RequestError, ".", lambda db: db.table("users").erase_range(("a", DAY, 1))),
    refused(ebla.RequestError, "prefix", lambda db: db.table("users").scan(("a",), prefix=("b",))),
    refused(ebla.RequestError, "bytes|long", lambda db: db.table("users").erase(("x" * (65 * KIB), DAY))),
]

SIZES = [
    refused(ebla.InvalidBatch, "name.*1000|1000.*name|name", put({**ROW, "name": "x" * 1_001})),
    refused(ebla.InvalidBatch, "click:home", put({**ROW, "click:home": b"x" * 1_001})),
    refused(ebla.InvalidBatch, "name", put([ROW, {**ROW, "user": "b", "name": "x" * 1_001}])),
    refused(ebla.InvalidBatch, "name", put(key_table(name=["x" * 1_001]))),
    refused(ebla.RequestError, "name", lambda db: db.table("users").append(KEY, "name", "x" * 999)),
    refused(
        ebla.InvalidBatch,
        "at once|fewer|bytes",
        put([{**ROW, "user": f"u{n}", "name": "x" * 900} for n in range(200)]),
    ),
]

TABLES = [
    refused(ebla.SchemaError, "Schema", lambda db: db.create_table("t", {"a": "int"})),
    refused(ebla.SchemaError, "at least one group", lambda db: db.create_table("t", ebla.Schema())),
    refused(
        ebla.SchemaError,
        "stands both",
        lambda db: db.create_table(
            "t", ebla.Schema(groups=[ebla.Group("a", columns={"x": "int64"}), ebla.Group("b", columns={"x": "string"})])
        ),
    ),
    refused(ebla.SchemaError, "unknown type", lambda db: db.create_table("t", ebla.Schema(columns={"x": "integer?"}))),
    refused(
        ebla.SchemaError,
        "key column",
        lambda db: db.create_table("t", ebla.Schema(key={"k": "list<int32>"}, columns={"x": "int64"})),
    ),
    refused(
        ebla.SchemaError,
        "at most one group",
        lambda db: db.create_table(
            "t", ebla.Schema(groups=[ebla.Group("a", families=["*"]), ebla.Group("b", families=["*"])])
        ),
    ),
    refused(ebla.SchemaError, "'_'", lambda db: db.create_table("t", ebla.Schema(columns={"_txn": "int64"}))),
    *(
        refused(ebla.SchemaError, "name", lambda db, name=name, make=make: make(db, name))
        for name in ("", "a b", "../up", "a/b", "x" * 129, "META", "sys.a", "tab\nle", "naïve", None, 7)
        for make in (
            lambda db, name: db.create_table(name, SCHEMA),
            lambda db, name: db.clone_table("users", name),
        )
    ),
]

SPLITS = [
    refused(ebla.RequestError, "ascending", lambda db: db.create_table("t", SCHEMA, [("m",), ("c",)])),
    refused(ebla.RequestError, "ascending", lambda db: db.create_table("t", SCHEMA, [("m",), ("m",)])),
    refused(ebla.RequestError, ".", lambda db: db.create_table("t", SCHEMA, [(5,)])),
    refused(ebla.RequestError, ".", lambda db: db.create_table("t", SCHEMA, [(None,)])),
    refused(ebla.RequestError, ".", lambda db: db.create_table("t", SCHEMA, [("a", DAY, 1)])),
    refused(ebla.RequestError, ".", lambda db: db.create_table("t", SCHEMA, [("x" * 70_000,)])),
    refused(ebla.RequestError, "list of keys", lambda db: db.create_table("t", SCHEMA, 5)),
    refused(ebla.RequestError, "list of keys", lambda db: db.create_table("t", SCHEMA, "mno")),
    refused(ebla.RequestError, "empty", lambda db: db.create_table("t", ebla.Schema(columns={"x": "int8"}), [b""])),
    refused(
        ebla.RequestError,
        "at most",
        lambda db: db.create_table("t", ebla.Schema(columns={"x": "int8"}), [b"%06d" % n for n in range(10_001)]),
    ),
]


@pytest.mark.parametrize(("error", "match", "request_"), [*NAMES, *TYPES, *STRANGE, *KEYS, *SIZES, *TABLES, *SPLITS])
def test_a_wrong_request_is_refused_and_changes_nothing(
    db: ebla.Database, error: type[Exception], match: str, request_: Callable[[ebla.Database], object]
) -> None:
    assert issubclass(error, ebla.RequestError)
    with pytest.raises(error, match=match) as caught:
        request_(db)
    assert str(caught.value)
    assert caught.value.advice == "fix"  # type: ignore[attr-defined]


def stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_random_bytes_are_not_a_batch(db: ebla.Database) -> None:
    dice = random.Random(1)
    for size in (0, 1, 7, 8, 100, 1_000, 10_000):
        with pytest.raises(ebla.InvalidBatch):
            db.table("users").put(dice.randbytes(size))
        with pytest.raises(ebla.InvalidBatch):
            db.table("users").put_cells(dice.randbytes(size))


def test_a_damaged_stream_is_refused_or_means_what_it_says(tmp_path: Path) -> None:
    dice = random.Random(2)
    table = pa.table(
        {
            "user": [f"u{n}" for n in range(20)],
            "day": pa.array([DAY] * 20),
            "name": [None if n % 3 else "n" * n for n in range(20)],
            "age": pa.array(range(20), pa.int32()),
            "click:home": pa.array([b"x" * n for n in range(20)], pa.binary()),
        }
    )
    whole = stream_of(table)
    with ebla.open(tmp_path / "s", settings=LIMITS) as db:
        users = db.create_table("users", SCHEMA)
        for _ in range(200):
            damaged = bytearray(whole)
            for _ in range(dice.choice([1, 1, 3])):
                damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
            before = users.scan().to_arrow()
            try:
                users.put(bytes(damaged), wait="logged")
            except ebla.RequestError:
                assert users.scan().to_arrow().equals(before)
        for cut in range(0, len(whole), 131):
            with pytest.raises(ebla.RequestError):
                users.put(whole[:cut])
        taken = users.scan().to_arrow()
        taken.validate(full=True)
    with ebla.open(tmp_path / "s") as db:
        assert db.table("users").scan().to_arrow().equals(taken)


def test_unsorted_and_repeated_rows_are_taken_and_the_last_wins(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "s") as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int32"}, columns={"v": "int64", "w": "int64"}), [5])
        table.put(
            [
                {"k": 9, "v": 1},
                {"k": 1, "v": 2},
                {"k": 9, "v": 3},
                {"k": -4, "v": 4},
                {"k": 9, "w": 5},
                {"k": 1, "v": None},
            ]
        )
        expected = [{"k": -4, "v": 4, "w": None}, {"k": 1, "v": None, "w": None}, {"k": 9, "v": 3, "w": 5}]
        assert [dict(row) for row in table.scan()] == expected
        table.put(pa.table({"k": pa.array([3, 1, 3, 2], pa.int32()), "v": [1, 2, 3, 4]}))
        assert [row["v"] for row in table.scan(1, 4)] == [2, 4, 3]
        table.flush()
        assert [row["v"] for row in table.scan(1, 4)] == [2, 4, 3]
        cells = db.create_table("c", ebla.Schema(groups=[ebla.Group("g", families=["f"])]))
        cells.put_cells(
            pa.table(
                {
                    "row": [b"b", b"a", b"b", b"b"],
                    "family": ["f"] * 4,
                    "qualifier": ["q", "q", "q", "q"],
                    "value": [b"1", b"2", b"3", b"4"],
                    "timestamp": [7, 7, 7, 6],
                }
            )
        )
        assert [dict(row) for row in cells.scan()] == [{"row": b"a", "f:q": b"2"}, {"row": b"b", "f:q": b"3"}]


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"if_absent": True}, {"replace": True, "if_absent": True}])
@pytest.mark.parametrize("rows", [[], (), key_table().slice(0, 0), key_table(**{"click:home": [b"1"]}).slice(0, 0)])
def test_a_put_of_no_rows_does_nothing(db: ebla.Database, rows: Any, options: dict[str, bool]) -> None:
    assert db.table("users").put(rows, **options) <= db.snapshot().txn
    db.sync()


def test_an_erasure_of_no_rows_does_nothing(db: ebla.Database) -> None:
    table = db.table("users")
    for columns in (None, [], ["age"], ["age", "click:home"]):
        table.erase_many([], columns)
    table.erase(("nobody", DAY), ["age"])
    table.erase_range(("b",), ("b",))
    db.sync()


def test_one_bad_row_among_many_good_ones_stops_them_all(db: ebla.Database) -> None:
    rows = [{"user": f"u{n:04d}", "day": DAY, "age": n} for n in range(500)]
    rows[400]["age"] = "x"
    with pytest.raises(ebla.InvalidBatch, match="age"):
        db.table("users").put(rows)
    rows[400]["age"], rows[499]["user"] = 1, None
    with pytest.raises(ebla.RequestError):
        db.table("users").put(rows)


def test_the_largest_key_and_value_that_are_allowed_are_kept(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "s", settings=Settings(value_bytes_max=100_000)) as db:
        table = db.create_table("t", ebla.Schema(columns={"v": "binary"}))
        table.put({"row": b"k" * (64 * KIB), "v": b"v" * 100_000})
        table.flush()
        assert table.get(b"k" * (64 * KIB))["v"] == b"v" * 100_000
        with pytest.raises(ebla.RequestError, match=r"bytes|long"):
            table.put({"row": b"k" * (64 * KIB + 1), "v": b""})
    with ebla.open(tmp_path / "s") as db:
        assert len(list(db.table("t").scan())) == 1


def test_a_failed_function_of_a_transaction_changes_nothing(db: ebla.Database) -> None:
    def fails(row: object) -> dict[str, Any]:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        db.table("users").transact(KEY, fails)
    with pytest.raises(ebla.InvalidBatch):
        db.table("users").transact(KEY, lambda row: {"age": "old"})
    with pytest.raises(ebla.Conflict):
        db.table("users").put(ROW, if_absent=True)
    with pytest.raises(ebla.Conflict):
        db.table("users").put(ROW, if_unchanged_since=0)
