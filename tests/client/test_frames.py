"""Rows that were taken as a frame and are put again are the same rows, whatever their types."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ebla
from ebla.model.column_types import is_key_type, parse_type

LARGE = 2**53 + 1  # the first integer that a float64 does not have
UNITS = ("s", "ms", "us", "ns")


def viewed(kind: str, *numbers: int | None) -> tuple[str, pa.Array]:
    """Return an array of a type by the numbers that lie behind it, so that also those are there that Python has not."""
    type_ = parse_type(kind)
    return kind, pa.array(numbers, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)


def plain(kind: str, *values: Any) -> tuple[str, pa.Array]:
    return kind, pa.array(values, parse_type(kind))


def integers(kind: str) -> tuple[str, pa.Array]:
    bits, is_signed = int(kind.lstrip("uint")), kind.startswith("i")
    low = -(1 << bits - 1) if is_signed else 0
    return plain(kind, low, low + 1, 0, 1, None, low + (1 << bits) - 1, min(LARGE, 100 if bits < 64 else LARGE))


FLOATS = [0.5, -0.0, np.inf, np.nan, 3]
SMALL_DECIMALS = [Decimal("1.10"), None, Decimal("-999.99"), Decimal("0.00")]
COLUMNS = dict(
    [
        *(integers(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
        plain("bool", True, None, False),
        *(plain(f"float{bits}", *np.array(FLOATS, f"f{bits // 8}"), None) for bits in (16, 32, 64)),
        plain("string", "", "a\0b", None, "é", "nan", "None", "<NA>"),
        plain("binary", b"", b"\0\xff", None, b"nan"),
        plain("fixed_size_binary[3]", b"abc", None, b"\0\0\0"),
        viewed("date32", 0, -719_162, -719_163, None, 2_932_896, 2_932_897),
        viewed("date64", 0, -719_162 * 86_400_000, None, 2_932_897 * 86_400_000),
        viewed("time32[s]", 0, None, 86_399),
        viewed("time32[ms]", 1, None, 86_399_999),
        viewed("time64[us]", 1, None, 86_399_999_999),
        viewed("time64[ns]", 1, None, 1_000, 86_399_999_999_999),
        *(viewed(f"timestamp[{unit}]", 0, -1, None, 1_001, 1 << 55, -(1 << 63)) for unit in UNITS),
        *(viewed(f"timestamp[{unit}, tz={zone}]", 0, None, 1_001) for unit in UNITS for zone in ("UTC", "Asia/Tokyo")),
        viewed("timestamp[us, tz=+05:30]", 0, None, 1_001),
        *(viewed(f"duration[{unit}]", 0, -1, None, 1_001, 1 << 50, -(1 << 63)) for unit in UNITS),
        plain("decimal32(5, 2)", *SMALL_DECIMALS),
        plain("decimal64(18, 2)", *SMALL_DECIMALS),
        plain("decimal128(38, 2)", *SMALL_DECIMALS, Decimal("9" * 36 + ".99")),
        plain("decimal256(50, 2)", *SMALL_DECIMALS, Decimal("9" * 36 + ".99")),
        plain("list<int64>", [1, 2], [LARGE, None], [], None, [LARGE]),
        plain("list<bool>", [True, None], [], None, [False]),
        plain("list<float32>", [1.5, None], [float("nan")], [], None, [1.5]),
        plain("list<string>", ["a", None], [], None, [""]),
        plain("list<binary>", [b"a", None], [], None, [b""]),
        plain("list<date32>", [date(2026, 1, 1), None], [], None),
        plain("list<timestamp[ns, tz=UTC]>", [1_001, None], [], None, [7]),
        plain("list<duration[us]>", [1_001, None], [], None, [7]),
        plain("list<decimal128(10, 2)>", SMALL_DECIMALS, [], None, [Decimal("1.00")]),
        plain("list<list<int32>>", [[1, None], None, []], [], None, [[1], [2, 3]]),
        plain("list<struct<n: int64>>", [{"n": LARGE}, {"n": None}, None], [], None, [{"n": 1}]),
        plain("fixed_size_list<int64>[2]", [1, 2], [LARGE, None], None),
        plain("fixed_size_list<float64>[2]", [1, float("nan")], [1.5, None], None),
        plain("struct<n: int64, f: float64>", {"n": LARGE, "f": 1.5}, {"n": None, "f": np.nan}, None, {"n": 1}),
        plain("struct<at: timestamp[ns], in: struct<n: int8>>", {"at": 1_001, "in": {"n": 1}}, {"at": None}, None),
        plain("struct<l: list<int64>, b: bool>", {"l": [LARGE, None], "b": None}, {"l": None, "b": True}, None),
    ]
)  # fmt: skip


def samples(values: pa.Array, dice: random.Random) -> Iterator[pa.Array]:
    """Yield all values, each alone, some, and those that are not null: a frame's types depend on what is there."""
    count = len(values)
    some = [sorted(dice.sample(range(count), dice.randrange(1, count))) for _ in range(6)]
    for chosen in ([*range(count)], *([at] for at in range(count)), *some):
        yield values.take(pa.array(chosen, pa.int64()))
    yield values.drop_null()


def same(left: pa.Array, right: pa.Array) -> bool:
    """Tell whether two arrays are of one type and have the same values, of which NaN is one."""
    if left.type != right.type or not left.is_null().equals(right.is_null()):
        return False
    if pa.types.is_struct(left.type):
        return all(map(same, left.flatten(), right.flatten()))
    if pa.types.is_nested(left.type):
        lengths = [pc.list_value_length(side) for side in (left, right)]
        return lengths[0].equals(lengths[1]) and same(left.flatten(), right.flatten())
    if pa.types.is_floating(left.type):
        numbers = [np.asarray(side.drop_null()) for side in (left, right)]
        return np.array_equal(*numbers, equal_nan=True)
    return bool(left.equals(right))


def one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ebla.Database]:
    with ebla.open(Path(tmp_path_factory.mktemp("frames"))) as opened:
        yield opened


def put_in(table: ebla.Table, columns: dict[str, Any]) -> pa.Table:
    table.erase_range()
    table.put(pa.table(columns), wait="logged")
    return table.scan().to_arrow()


@pytest.mark.parametrize("form", ["to_pandas", "to_polars"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_goes_through_a_frame_and_back(db: ebla.Database, kind: str, form: str) -> None:
    number = [*COLUMNS].index(kind)
    schema = ebla.Schema(key={"k": "int32"}, columns={"v": kind, "n": "int64"})
    table, other = (db.create_table(f"{form}.{number}.{name}", schema) for name in ("from", "to"))
    for values in samples(COLUMNS[kind], random.Random(kind)):
        count = len(values)
        whole = put_in(table, {"k": pa.array(range(count), pa.int32()), "v": values, "n": pa.array(range(count))})
        other.erase_range()
        if form == "to_polars" and not fits_polars(values):
            with pytest.raises(ebla.RequestError, match=r"'v'.*to_arrow"):
                table.scan().to_polars()
            continue
        frame = getattr(table.scan(), form)()
        assert list(frame.columns) == ["k", "v", "n"]
        other.put(frame, wait="logged")
        back = other.scan().to_arrow()
        assert same(one(back["v"]), one(whole["v"])), (values, frame)
        assert back["n"].equals(whole["n"])


def fits_polars(values: pa.Array) -> bool:
    """Tell whether polars, which has no seconds, has the values."""
    kind = values.type
    if (pa.types.is_timestamp(kind) or pa.types.is_duration(kind)) and kind.unit == "s":
        return all(abs(number) < 2**63 // 1_000 for number in values.view(pa.int64()).drop_null().to_pylist())
    return True


@pytest.mark.parametrize("form", ["to_pandas", "to_polars"])
@pytest.mark.parametrize("kind", [kind for kind in COLUMNS if is_key_type(parse_type(kind))])
def test_a_key_goes_through_a_frame_and_back(db: ebla.Database, kind: str, form: str) -> None:
    number = [*COLUMNS].index(kind)
    schema = ebla.Schema(key={"k": kind}, columns={"n": "int64"})
    table, other = (db.create_table(f"key.{form}.{number}.{name}", schema) for name in ("from", "to"))
    keys = COLUMNS[kind].drop_null()
    keys = keys.filter(pa.array([fits_polars(keys.slice(at, 1)) for at in range(len(keys))]))
    whole = put_in(table, {"k": keys, "n": pa.array(range(len(keys)))})
    other.put(getattr(table.scan(), form)())
    back = other.scan().to_arrow()
    assert same(one(back["k"]), one(whole["k"]))
    assert back["n"].equals(whole["n"])
    found = other.get_many(getattr(table.scan(columns=[]), form)())
    assert found["n"].equals(whole["n"])


def dtypes(table: ebla.Table) -> dict[str, str]:
    return {name: str(dtype) for name, dtype in table.scan().to_pandas().dtypes.items()}


def test_a_column_is_of_numpy_where_numpy_has_its_values(db: ebla.Database) -> None:
    columns = {"i": "int64", "u": "uint8", "b": "bool", "f": "float64", "t": "timestamp[us]", "s": "int16"}
    table = db.create_table("dtypes", ebla.Schema(key={"k": "int32"}, columns=columns))
    row: dict[str, Any] = {"i": LARGE, "u": 5, "b": True, "f": 0.5, "t": None, "s": 1}
    table.put({"k": 1, **row})
    usual = {"k": "int32", "i": "int64", "u": "uint8", "b": "bool", "f": "float64", "t": "datetime64[us]", "s": "int16"}
    assert dtypes(table) == usual
    table.put({"k": 2, **dict.fromkeys(row), "s": 2})
    nullable = {"i": "Int64", "u": "UInt8", "b": "boolean"}
    assert dtypes(table) == usual | nullable
    table.put({"k": 2, "f": float("nan")})
    assert dtypes(table) == usual | nullable | {"f": "double[pyarrow]"}
    assert table.scan().to_pandas()["i"].tolist() == [LARGE, pd.NA]
    assert table.scan(columns=["i"]).to_pandas()["i"].sum() == LARGE


@pytest.mark.parametrize("replace", [False, True])
def test_rows_of_a_frame_taken_from_others_are_put_whatever_their_index(db: ebla.Database, replace: bool) -> None:
    table = db.create_table(f"index.{replace}", ebla.Schema(key={"k": "int32"}, columns={"n": "int64", "m": "int8"}))
    table.put([{"k": n, "n": n, "m": 1} for n in range(4)])
    frame = table.scan(columns=["n"]).to_pandas()
    table.put(frame[frame["n"] > 1].assign(n=9).iloc[::-1], replace=replace)
    left = None if replace else 1
    assert [(row["n"], row["m"]) for row in table.scan()] == [(0, 1), (1, 1), (9, left), (9, left)]


REFUSED: list[tuple[str, Sequence[float], Any]] = [
    ("int64", [1.5], np.float64), ("int64", [2.0**53], np.float64), ("int64", [-(2.0**53)], np.float64),
    ("uint64", [2.0**60], np.float64), ("int64", [2.0**24], np.float32), ("int8", [2048.0], np.float16),
    ("int64", [1.0, float("inf")], np.float64), ("int8", [128.0], np.float64), ("uint8", [-1.0], np.float64),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "numbers", "width"), REFUSED, ids=[f"{k} {n} {w.__name__}" for k, n, w in REFUSED])
@pytest.mark.parametrize("make", ["pandas", "polars", "arrow", "lists", "fixed lists", "structs"])
def test_floats_that_may_stand_for_several_integers_are_no_integers(
    db: ebla.Database, kind: str, numbers: Sequence[float], width: Any, make: str
) -> None:
    floats = np.array(numbers, np.float64 if make == "polars" and width is np.float16 else width)
    wide = {"lists": f"list<{kind}>", "fixed lists": f"fixed_size_list<{kind}>[1]", "structs": f"struct<x: {kind}>"}
    name = f"no.{make.replace(' ', '')}.{kind}"
    schema = ebla.Schema(key={"k": "int32"}, columns={"v": wide.get(make, kind)})
    table = db.table(name) if name in db.tables() else db.create_table(name, schema)
    keys = np.arange(len(numbers), dtype=np.int32)
    frames: dict[str, Any] = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}
    if make in frames:
        rows = frames[make]({"k": keys, "v": floats})
    elif make == "structs":
        rows = pa.table({"k": keys, "v": pa.StructArray.from_arrays([pa.array(floats)], names=["x"])})
    else:
        offsets = pa.array(range(len(numbers) + 1), pa.int32())
        rows = pa.table({"k": keys, "v": pa.ListArray.from_arrays(offsets, pa.array(floats))})
    with pytest.raises(ebla.InvalidBatch, match=r"row \d"):
        table.put(rows)
    assert table.scan().count() == 0


def test_floats_that_are_one_integer_each_are_taken_and_nan_of_pandas_is_null(db: ebla.Database) -> None:
    table = db.create_table("whole", ebla.Schema(key={"k": "int32"}, columns={"v": "int64"}))
    largest = float(2**53 - 1)
    table.put(pd.DataFrame({"k": np.arange(4, dtype=np.int32), "v": [largest, -largest, -0.0, float("nan")]}))
    assert table.scan().to_arrow()["v"].to_pylist() == [2**53 - 1, 1 - 2**53, 0, None]
    with pytest.raises(ebla.InvalidBatch, match="nan"):
        table.put(pa.table({"k": pa.array([1], pa.int32()), "v": [float("nan")]}))


def test_what_pandas_calls_missing_is_null_in_a_dict_too(db: ebla.Database) -> None:
    columns = {"i": "int64", "s": "string", "t": "timestamp[us]", "d": "duration[s]", "l": "list<int8>"}
    table = db.create_table("missing", ebla.Schema(key={"k": "int32"}, columns=columns))
    full = {"k": 1, "i": 1, "s": "a", "t": pd.Timestamp(0), "d": pd.Timedelta(0), "l": [1]}
    table.put(full)
    table.put({"k": 1, "i": pd.NA, "s": pd.NA, "t": pd.NaT, "d": pd.NaT, "l": [pd.NA, 2]})
    assert table.get(1) == {"k": 1, "i": None, "s": None, "t": None, "d": None, "l": [None, 2]}
    for wrong in ({"k": pd.NA}, {"k": pd.NaT}, {"k": 1, "i": pd.NaT}, {"k": 1, "s": float("nan")}):
        with pytest.raises(ebla.RequestError):
            table.put({"i": 1, **wrong})


def test_polars_is_given_no_decimal_that_it_has_not(db: ebla.Database) -> None:
    columns = {"v": "decimal256(60, 2)", "l": "list<decimal256(60, 2)>"}
    table = db.create_table("decimals", ebla.Schema(key={"k": "int32"}, columns=columns))
    table.put({"k": 1, "v": Decimal("1.25"), "l": [Decimal("0.25")]})
    assert table.scan().to_polars().to_dicts() == [{"k": 1, "v": Decimal("1.25"), "l": [Decimal("0.25")]}]
    table.put({"k": 1, "v": Decimal("9" * 58)})
    with pytest.raises(ebla.RequestError, match=r"column 'v' is decimal256\(60, 2\).*to_arrow"):
        table.scan().to_polars()
