"""Every argument of every public call, with values that nobody should give it: an error of the tree, or an answer.

The net is drawn from the signatures: a method or an argument that is added is tried without being named here, and one
whose call needs other arguments fails until it has a line in `CALLS`.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ebla
from ebla.client.database import Database
from ebla.client.scan import Scan
from ebla.client.snapshot import Snapshot
from ebla.client.table import Table

SCHEMA = ebla.Schema(
    key={"user": "string", "n": "float64"},
    groups=[
        ebla.Group("profile", columns={"name": "string", "age": "int32", "tags": "list<string>"}),
        ebla.Group("events", families=["click"]),
    ],
)
KEY = ("ada", 1.0)
ROW = {"user": "ada", "n": 1.0, "name": "Ada", "age": 36, "tags": ["a"], "click:n": bytes(8)}


class Named(str):
    """Text that is another when it is asked to be plain, as enumerations of text are."""

    def __str__(self) -> str:
        return "another"


class Colour(str, Enum):  # noqa: UP042 - whose str() is not its value
    RED = "spare"


class Anything:
    """A class that is made of whatever there is."""

    def __init__(self, *given: object, **named: object) -> None:
        pass


class Undecided:
    """What can be asked nothing: pandas' frames and its NA are a little like that."""

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise TypeError("not to be compared")


STRANGE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "7": lambda: 7,
    "a long number": lambda: 10**5_000,
    "1.5": lambda: 1.5,
    "NaN": lambda: float("nan"),
    "a signalling NaN": lambda: Decimal("sNaN"),
    "numpy's 1": lambda: np.int64(1),
    "numpy's NaN": lambda: np.float32("nan"),
    "numpy's true": lambda: np.True_,
    "text": lambda: "strange",
    "no text": lambda: "",
    "half a character": lambda: "\ud800",
    "a zero byte": lambda: "a\0b",
    "a long text": lambda: "x" * 100_000,
    "numpy's text": lambda: np.str_("spare"),
    "a subclass of text": lambda: Named("spare"),
    "an enumeration": lambda: Colour.RED,
    "bytes": lambda: b"strange",
    "a list": list,
    "a list of lists": lambda: [[]],
    "a list of dicts": lambda: [{}],
    "a list of None": lambda: [None],
    "a list of text": lambda: ["spare"],
    "a list of numpy's text": lambda: [np.str_("age")],
    "a tuple": lambda: (),
    "a pair": lambda: (Undecided(), Undecided()),
    "a dict": dict,
    "a dict of lists": lambda: {"age": []},
    "a dict by numbers": lambda: {1: 2},
    "a dict of dicts": lambda: {"events": {"click": None}},
    "a dict by numpy's text": lambda: {np.str_("age"): np.str_("int64")},
    "a set": lambda: {1},
    "an iterator": lambda: iter([[], {}]),
    "a function": lambda: lambda *args: Undecided(),
    "a class": lambda: Anything,
    "an object": object,
    "what cannot be asked": Undecided,
    "NA": lambda: pd.NA,
    "NaT": lambda: pd.NaT,
    "a frame": lambda: pd.DataFrame({"a": [1, 2]}),
    "a frame without columns": pd.DataFrame,
    "a series": lambda: pd.Series([1, 2]),
    "a frame of polars": lambda: pl.DataFrame({"a": [1, 2]}),
    "a series of polars": lambda: pl.Series([1, 2]),
    "an expression of polars": lambda: pl.col("age") > 1,
    "an array": lambda: np.array([1, 2]),
    "an array of nothing": lambda: np.array(None),
    "an Arrow table": lambda: pa.table({"a": [1]}),
    "an Arrow array": lambda: pa.array([1, None]),
    "an Arrow scalar": lambda: pa.scalar(1),
    "an Arrow null": lambda: pa.scalar(None),
    "an Arrow type": pa.int8,
    "an expression": lambda: pc.field("age") > 1,
    "an expression of another type": lambda: pc.field("age") + 1,
    "a path": lambda: Path("strange"),
    "a date": lambda: datetime.date(2026, 1, 1),
    "a moment": lambda: datetime.datetime(1, 1, 1),
    "a duration": lambda: datetime.timedelta(days=1),
    "infinity": lambda: float("inf"),
    "a schema": lambda: SCHEMA,
    "a group": lambda: ebla.Group("g", columns={"x": "int8"}),
    "a group of nothing": lambda: ebla.Group([], columns=[]),  # type: ignore[arg-type]
    "an error": lambda: ValueError("mine"),
    "a memory view": lambda: memoryview(b"ab"),
    "a range": lambda: range(3),
}

# What a call needs besides the strange argument.
CALLS: dict[str, dict[str, Any]] = {
    "connect": {"address": "nowhere/cluster.json"},
    "Database.create_table": {"name": "made", "schema": SCHEMA},
    "Database.table": {"name": "users"},
    "Database.drop_table": {"name": "spare"},
    "Database.rename_table": {"name": "spare", "new_name": "renamed"},
    "Database.undelete_table": {"name": "gone"},
    "Database.clone_table": {"origin": "users", "name": "cloned"},
    "Database.alter_table": {"name": "spare"},
    "Database.unload_table": {"name": "spare"},
    "Database.load_table": {"name": "users"},
    "Database.move_tablet": {"table": "users", "tablet": "a", "server": "b"},
    "Database.recover_tablet": {"tablet": "a", "accept_loss": True, "server": "b"},
    "Database.add_listener": {"listener": ebla.TabletListener()},
    "Database.remove_listener": {"listener": ebla.TabletListener()},
    "Database.begin_job": {"job": "job", "table": "users"},
    "Database.end_job": {"job": "job"},
    "Table.put": {"rows": ROW},
    "Table.put_cells": {"cells": [{"user": "a", "n": 1.0, "family": "click", "qualifier": "n", "value": bytes(8)}]},
    "Table.erase": {"key": KEY},
    "Table.erase_many": {"keys": [KEY]},
    "Table.increment": {"key": KEY, "column": "age"},
    "Table.append": {"key": KEY, "column": "name", "suffix": "x"},
    "Table.transact": {"key": KEY, "change": lambda row: {"age": 1}},
    "Table.get": {"key": KEY},
    "Table.get_many": {"keys": [KEY]},
    "Snapshot.table": {"name": "users"},
    "salvage": {"file": "fragments/a/b.parquet"},
    "time_of": {"txn": 1 << 60},
    "Position": {"txn": 1 << 60, "key": None},
    "Group": {"name": "g", "columns": {"x": "int8"}},
    "Schema": {"columns": {"x": "int8"}},
}
# Needs Spark; takes what jobs have made, and nobody types; ends the store.
LEFT_OUT = {"Database.spark", "Database.commit_bulk", "Database.carry_out", "Database.wire", "Database.close"}
METHODS = [
    f"{owner.__name__}.{name}"
    for owner in (Database, Table, Snapshot, Scan)
    for name, _ in inspect.getmembers(owner, inspect.isfunction)
    if not name.startswith("_") and f"{owner.__name__}.{name}" not in LEFT_OUT
]
FUNCTIONS = [name for name in ebla.__all__ if inspect.isfunction(getattr(ebla, name))]
VALUES = ["Group", "Position", "Schema", "Settings"]


def parameters(call: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(call).parameters if name != "self"]


def use(answer: object) -> None:
    """Do with an answer what makes it work: a scan reads nothing before."""
    if isinstance(answer, Scan):
        answer.to_arrow()
    elif isinstance(answer, Snapshot):
        answer.release()
    elif isinstance(answer, Database):
        answer.close()
    elif isinstance(answer, ebla.Schema):
        answer.number()
    elif isinstance(answer, ebla.Group):
        ebla.Schema(groups=[answer]).number()


def refused(call: Callable[[], object], what: str) -> bool:
    """Tell whether a call is refused; fail if that is not by an error of the tree, with something to say."""
    try:
        use(call())
    except ebla.EblaError as error:
        return bool(str(error)) or pytest.fail(f"{what} was refused without a word")
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error
    return False


def contents(db: ebla.Database) -> dict[str, Any]:
    return {name: db.table(name).scan().to_arrow() for name in db.tables() if name != "spare"}


def make_ready(db: ebla.Database) -> None:
    """Have the tables that calls need, and no others."""
    for name in db.tables():
        if name not in ("users", "spare"):
            db.drop_table(name)
    if "spare" not in db.tables():
        db.create_table("spare", SCHEMA)
    if db.table("users").get(KEY) != ROW:
        db.table("users").put(ROW, wait="logged")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ebla.Database]:
    """A store that can be read and written after whatever was asked of it, also when it is opened again."""
    monkeypatch.chdir(tmp_path)
    with ebla.open(tmp_path / "store") as opened:
        opened.create_table("users", SCHEMA)
        make_ready(opened)
        yield opened
        make_ready(opened)
        assert all(type(name) is str for name in [*opened.tables(), *opened.snapshots()])
        before = contents(opened)
    with ebla.open(tmp_path / "store") as again:
        assert contents(again) == before


OWNERS: dict[str, type] = {"Database": Database, "Table": Table, "Snapshot": Snapshot, "Scan": Scan}


@pytest.mark.parametrize("method", METHODS)
def test_a_strange_argument_of_a_method_is_refused_or_understood(store: ebla.Database, method: str) -> None:
    owner, _, name = method.partition(".")
    with store.snapshot() as snapshot:
        for parameter in parameters(getattr(OWNERS[owner], name)):
            for value, make in STRANGE.items():
                users = store.table("users")
                one = {"Database": store, "Table": users, "Snapshot": snapshot, "Scan": users.scan()}[owner]
                call = partial(getattr(one, name), **{**CALLS.get(method, {}), parameter: make()})
                before = users.scan().to_arrow(), store.tables()
                what = f"{method}({parameter}={value})"
                if refused(call, what):
                    after = users.scan().to_arrow(), store.tables()
                    assert after == before, f"{what} was refused and did something"
                else:
                    make_ready(store)


@pytest.mark.parametrize("function", [*FUNCTIONS, *VALUES])
def test_a_strange_argument_of_a_function_is_refused_or_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    monkeypatch.chdir(tmp_path)
    call = getattr(ebla, function)
    path = {"path": tmp_path / "store"} if "path" in parameters(call) else {}
    for parameter in parameters(call):
        for value, make in STRANGE.items():
            arguments = {**path, **CALLS.get(function, {}), parameter: make()}
            refused(partial(call, **arguments), f"{function}({parameter}={value})")


@pytest.mark.parametrize("parameter", ["txn", "key"])
def test_a_strange_position_is_refused_or_understood(store: ebla.Database, parameter: str) -> None:
    users = store.table("users")
    for value, make in STRANGE.items():
        position = ebla.Position(**{"txn": users.scan().txn, "key": KEY, parameter: make()})
        refused(partial(users.scan, resume=position), f"Position({parameter}={value})")


def enumerated(name: str) -> Any:
    names: Any = Enum("Names", {"ONE": name}, type=str)
    return names.ONE


@pytest.mark.parametrize("text", [np.str_, Named, enumerated])
def test_names_are_plain_text_whatever_they_come_as(tmp_path: Path, text: Callable[[str], Any]) -> None:
    with ebla.open(text(str(tmp_path / "store"))) as db:
        schema = ebla.Schema(
            key={text("k"): text("string")},
            groups=[
                ebla.Group(text("g"), columns={text("n"): text("int32")}, compression=text("zstd")),
                ebla.Group(text("cells"), families=[text("f")]),
            ],
        )
        db.create_table(text("made"), schema)
        db.clone_table(text("made"), text("cloned"))
        db.rename_table(text("cloned"), text("renamed"))
        db.alter_table(
            text("made"),
            add_columns={text("g"): {text("m"): text("int64")}},
            add_families={text("cells"): [text("h")]},
            rename={text("n"): text("number")},
            groups=[ebla.Group(text("new"), columns={})],
            move={text("m"): text("new")},
            change_groups={text("g"): {text("compression"): text("lz4")}},
        )
        table = db.table(text("made"))
        table.put({text("k"): text("a"), text("number"): 1, text("f:x"): b"1", text("h"): {text("y"): b"2"}})
        table.increment(text("a"), text("number"))
        table.append(text("a"), text("f:x"), b"1")
        row = table.get(text("a"), [text("number"), text("f:x"), text("h")])
        db.snapshot(text("held"))
        names = [*db.tables(), *db.snapshots(), *row, row["k"], *table.scan(columns=[text("m")]).schema.names]
        assert {type(name) for name in names} == {str}
        table.erase(text("a"), [text("f:x")])
    with ebla.open(tmp_path / "store") as db:
        assert db.tables() == ["made", "renamed"]
        assert dict(db.table("made").scan().to_arrow().to_pylist()[0]) == {
            "k": "a",
            "number": 2,
            "f": [],
            "h": [("y", b"2")],
            "m": None,
        }
        assert list(db.snapshots()) == ["held"]
