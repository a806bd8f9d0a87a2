"""What increment and append return is what they stored, and what cannot be added is refused."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import ebla

COLUMNS: dict[str, Any] = {
    "i8": "int8", "i64": "int64", "u64": "uint64", "f16": "float16", "f32": "float32", "f64": "float64",
    "money": "decimal128(10, 2)", "long": "decimal128(38, 4)", "longest": "decimal256(76, 0)",
    "text": "string", "raw": "binary", "ints": "list<int64>", "floats": "list<float32>", "texts": "list<string>",
    "nested": "list<list<int32>>", "lengths": "list<duration[us]>", "prices": "list<decimal128(10, 2)>",
}  # fmt: skip


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ebla.Database]:
    with ebla.open(Path(tmp_path_factory.mktemp("sums"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(db: ebla.Database) -> ebla.Table:
    groups = [ebla.Group("typed", columns=COLUMNS), ebla.Group("cells", families=["c"])]
    return db.create_table("t", ebla.Schema(key={"k": "string"}, groups=groups))


@pytest.fixture
def table(shared: ebla.Table) -> Iterator[ebla.Table]:
    yield shared
    shared.erase_range()


INCREMENTS = [
    ("i8", 100), ("i64", np.int32(5)), ("u64", 2**63), ("f16", 0.1), ("f32", 0.1), ("f32", np.float32(0.1)),
    ("f64", 0.1), ("f32", 3),
    ("f64", float("inf")), ("money", 1), ("money", Decimal("0.1")), ("money", Decimal("1E+2")),
    ("long", Decimal("1234567890123456789012345678901234.5678")), ("longest", 10**70), ("c:n", 7), ("c:n", np.int8(-1)),
]  # fmt: skip


@pytest.mark.parametrize(("column", "by"), INCREMENTS, ids=[f"{column} {by!r}" for column, by in INCREMENTS])
def test_an_increment_returns_what_a_get_would(table: ebla.Table, column: str, by: Any) -> None:
    def stored() -> Any:
        value = table.get("a")[column]
        return int.from_bytes(value, "big", signed=True) if column.startswith("c:") else value

    for _ in range(1 if column in ("i8", "u64") else 3):
        returned = table.increment("a", column, by)
        assert (returned, type(returned), str(returned)) == (stored(), type(stored()), str(stored()))


def test_decimals_longer_than_pythons_context_are_added_exactly(table: ebla.Table) -> None:
    table.put({"k": "a", "long": Decimal("1" * 34 + ".0001"), "longest": Decimal("7" * 75)})
    with decimal.localcontext(prec=5):
        assert table.increment("a", "long", Decimal("0.0001")) == Decimal("1" * 34 + ".0002")
        assert table.increment("a", "longest", 1) == Decimal("7" * 74 + "8")


APPENDS = [
    ("text", "ab", "ab"), ("text", np.str_("ab"), "ab"), ("raw", b"x", b"x"), ("raw", bytearray(b"x"), b"x"),
    ("raw", memoryview(b"x"), b"x"), ("raw", np.bytes_(b"x"), b"x"), ("ints", [1, 2], [1, 2]), ("ints", (1, 2), [1, 2]),
    ("ints", np.array([1, 2]), [1, 2]), ("ints", np.array([], np.int64), []),
    ("ints", np.array([1, 2], np.uint8), [1, 2]),
    ("ints", pa.scalar([1, None]), [1, None]), ("ints", [None, np.int8(3)], [None, 3]),
    ("floats", np.array([0.1]), [0.10000000149011612]), ("texts", ("a", None), ["a", None]),
    ("nested", [(1,), np.array([2])], [[1], [2]]), ("prices", [1, Decimal("0.1")], [Decimal("1.00"), Decimal("0.10")]),
    ("c:log", b"x", b"x"), ("c:log", bytearray(b"x"), b"x"), ("c:log", memoryview(b"x"), b"x"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "suffix", "added"), APPENDS, ids=[f"{c} {type(s).__name__} {a!r}" for c, s, a in APPENDS]
)
def test_an_append_adds_at_the_end_and_returns_what_a_get_would(
    table: ebla.Table, column: str, suffix: Any, added: Any
) -> None:
    for times in (1, 2, 3):
        returned = table.append("a", column, suffix)
        assert returned == table.get("a")[column] == added * times
        assert type(returned) is type(added)
        assert repr(returned) == repr(table.get("a")[column])


REFUSED: list[tuple[str, Callable[[ebla.Table], object]]] = [
    ("a signalling NaN", lambda t: t.increment("a", "money", Decimal("sNaN"))),
    ("NaN", lambda t: t.increment("a", "money", Decimal("NaN"))),
    ("an infinite decimal", lambda t: t.increment("a", "money", Decimal("Infinity"))),
    ("a decimal of a million digits", lambda t: t.increment("a", "money", Decimal("1E+1000000"))),
    ("a decimal to a float", lambda t: t.increment("a", "f64", Decimal(1))),
    ("more digits than the column has", lambda t: t.increment("a", "money", Decimal("0.001"))),
    ("an integer that no float holds", lambda t: t.increment("a", "f64", 1 << 2000)),
    ("an integer too long to be printed", lambda t: t.increment("a", "i64", 10**5000)),
    ("a float to an integer", lambda t: t.increment("a", "i64", 0.5)),
    ("out of range", lambda t: t.increment("a", "i8", 128)),
    ("a truth", lambda t: t.increment("a", "i64", np.True_)),
    ("NA", lambda t: t.increment("a", "i64", pd.NA)),
    ("a frame", lambda t: t.increment("a", "i64", pd.DataFrame({"a": [1]}))),
    ("an array as a number", lambda t: t.increment("a", "i64", np.array([1]))),
    ("a complex number", lambda t: t.increment("a", "i64", np.complex128(1))),
    ("a number finer than Python's", lambda t: t.increment("a", "f64", np.longdouble(1))),
    ("nothing", lambda t: t.append("a", "ints", None)),
    ("nothing in text", lambda t: t.append("a", "text", pd.NA)),
    ("a number to a list", lambda t: t.append("a", "ints", 1)),
    ("text to a list", lambda t: t.append("a", "texts", "ab")),
    ("floats to integers", lambda t: t.append("a", "ints", np.array([1.0]))),
    ("a matrix to a list", lambda t: t.append("a", "ints", np.array([[1], [2]]))),
    ("an array without a shape", lambda t: t.append("a", "ints", np.array(1))),
    ("nanoseconds to microseconds", lambda t: t.append("a", "lengths", [pd.Timedelta(1)])),
    ("text to bytes", lambda t: t.append("a", "raw", "x")),
    ("bytes to text", lambda t: t.append("a", "text", b"x")),
    ("text to a cell", lambda t: t.append("a", "c:log", "x")),
    ("an array to a cell", lambda t: t.append("a", "c:log", np.array([1]))),
]  # fmt: skip


@pytest.mark.parametrize("mistake", [mistake for _, mistake in REFUSED], ids=[name for name, _ in REFUSED])
@pytest.mark.parametrize("row", [None, {"k": "a", "i64": 1, "i8": 1, "money": 1, "ints": [1, 2], "f64": 1.0}])
def test_what_cannot_be_added_is_refused_and_changes_nothing(
    table: ebla.Table, row: dict[str, Any] | None, mistake: Callable[[ebla.Table], object]
) -> None:
    if row is not None:
        table.put(row)
    before = table.get("a")
    with pytest.raises(ebla.RequestError):
        mistake(table)
    assert table.get("a") == before
