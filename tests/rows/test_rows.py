from __future__ import annotations

from collections import UserDict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebla
from ebla.errors import EblaError, InvalidBatch, InvalidKey, RequestError, UnknownColumn
from ebla.model.batch import PutBatch
from ebla.model.declaration import Group, Schema
from ebla.rows.rows import to_cells_batch, to_put_batch

USERS = Schema(
    key={"user": "string", "day": "date32"},
    groups=[
        Group("profile", columns={"name": "string", "age": "int32", "score": "float64", "photo": "binary"}),
        Group("more", columns={"seen": "timestamp[us, tz=UTC]", "tags": "list<string>", "small": "float32"}),
        Group("events", families=["click", "view"]),
    ],
).number()
PAIRS = Schema(key={"user": "string", "day": "date32"}, columns={"pair": "fixed_size_list<string>[2]"}).number()
CELLS = Schema(groups=[Group("all", families=["*"])]).number()
DAY = date(2026, 1, 1)
KEY = {"user": "ada", "day": DAY}
IDS = {column.name: str(column.id) for group in USERS.groups for column in group.columns}


def table(**columns: Any) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({"user": [f"u{at}" for at in range(rows)], "day": pa.array([DAY] * rows, pa.date32()), **columns})


def columns_of(put: PutBatch) -> list[dict[str, Any]]:
    if put.columns is None:
        return []
    put.columns.validate(full=True)
    return put.columns.to_pylist()  # type: ignore[no-any-return]


def cells_of(put: PutBatch) -> list[tuple[Any, ...]]:
    if put.cells is None:
        return []
    put.cells.validate(full=True)
    names = [name for name in put.cells.schema.names if name not in ("user", "day", "row")]
    assert names[:3] == ["family", "qualifier", "value"]
    key = "user" if "user" in put.cells.schema.names else "row"
    return [tuple(line[name] for name in (key, *names)) for line in put.cells.to_pylist()]


# --- dicts ---------------------------------------------------------------------------------------


def test_a_dict_with_all_columns_needs_no_set() -> None:
    row = {**KEY, "name": "Ada", "age": 36}
    put = to_put_batch(row, USERS)
    assert put.cells is None
    assert put.columns.schema == pa.schema(
        [("user", pa.string()), ("day", pa.date32()), ("name", pa.string()), ("age", pa.int32())]
    )
    assert columns_of(put) == [row]


def test_missing_is_untouched_and_none_sets_null() -> None:
    rows = [{**KEY, "name": "Ada"}, {**KEY, "age": None}, {**KEY, "age": 1, "name": None}, KEY]
    put = to_put_batch(rows, USERS)
    assert put.columns.schema.names == ["user", "day", "name", "age", "_set"]
    assert put.columns.schema.field("_set").type == pa.string()
    lines = columns_of(put)
    assert [line["name"] for line in lines] == ["Ada", None, None, None]
    assert [line["age"] for line in lines] == [None, None, 1, None]
    sets = [set(line["_set"].split()) for line in lines]
    assert sets == [{IDS["name"]}, {IDS["age"]}, {IDS["age"], IDS["name"]}, set()]


def test_rows_that_set_the_same_columns_in_another_order_need_no_set() -> None:
    put = to_put_batch([{**KEY, "name": "a", "age": 1}, {"age": 2, "name": "b", **KEY}], USERS)
    assert columns_of(put) == [{**KEY, "name": "a", "age": 1}, {**KEY, "name": "b", "age": 2}]


def test_a_row_with_only_cells_is_not_in_the_columns() -> None:
    put = to_put_batch({**KEY, "click:home": b"1", "view:x:y": b"2"}, USERS)
    assert put.columns is None
    assert cells_of(put) == [("ada", "click", "home", b"1"), ("ada", "view", "x:y", b"2")]
    assert put.cells.schema == pa.schema(
        [
            ("user", pa.string()),
            ("day", pa.date32()),
            ("family", pa.string()),
            ("qualifier", pa.string()),
            ("value", pa.binary()),
        ]
    )
    mixed = to_put_batch([{**KEY, "click:home": b"1"}, {"user": "bob", "day": DAY, "name": "Bob"}], USERS)
    assert columns_of(mixed) == [{"user": "bob", "day": DAY, "name": "Bob"}]
    assert cells_of(mixed) == [("ada", "click", "home", b"1")]


def test_a_row_with_nothing_but_its_key_is_made_to_exist() -> None:
    for rows in (KEY, [KEY], {**KEY, "click:home": None}, {**KEY, "click": {}}, table(**{"click:x": [None]})):
        put = to_put_batch(rows, USERS)
        assert put.cells is None
        assert [line["_set"] for line in columns_of(put)] == [""]
    put = to_put_batch([KEY, {"user": "bob", "day": DAY, "click:home": b"1"}], USERS)
    assert columns_of(put) == [{**KEY, "_set": ""}]
    assert cells_of(put) == [("bob", "click", "home", b"1")]


def test_a_row_without_cells_in_a_table_of_cells_is_refused() -> None:
    for rows in ({"row": b"a"}, [{"row": b"b", "f:q": b"1"}, {"row": b"a", "f:q": None}]):
        with pytest.raises(InvalidBatch, match="nothing to write"):
            to_put_batch(rows, CELLS)
    with pytest.raises(InvalidBatch, match=r"row 1 .* nothing to write"):
        to_put_batch(pa.table({"row": [b"a", b"b"], "f:q": pa.array([b"1", None])}), CELLS)


def test_a_dict_under_a_family_is_its_cells() -> None:
    put = to_put_batch({**KEY, "click": {"home": b"1", "gone": None, "": b"2"}, "view:": b"3"}, USERS)
    assert cells_of(put) == [("ada", "click", "home", b"1"), ("ada", "click", "", b"2"), ("ada", "view", "", b"3")]
    assert to_put_batch({**KEY, "name": "x", "click": None}, USERS).cells is None


def test_under_a_star_a_bare_name_is_a_cell_and_a_dict_a_family() -> None:
    put = to_put_batch({"row": b"r", "plain": b"1", "f:q": b"2", ":z": b"3", "fam": {"a": b"4"}}, CELLS)
    assert cells_of(put) == [
        (b"r", "", "plain", b"1"),
        (b"r", "f", "q", b"2"),
        (b"r", "", "z", b"3"),
        (b"r", "fam", "a", b"4"),
    ]


def test_cells_take_bytes_in_every_form_and_nothing_else() -> None:
    put = to_put_batch({"row": b"r", "f:a": bytearray(b"1"), "f:b": memoryview(b"2"), "f:c": b""}, CELLS)
    assert cells_of(put) == [(b"r", "f", "a", b"1"), (b"r", "f", "b", b"2"), (b"r", "f", "c", b"")]
    with pytest.raises(InvalidBatch, match=r"'f:a' in row 0 takes bytes, not a string: encode"):
        to_put_batch({"row": b"r", "f:a": "text"}, CELLS)
    with pytest.raises(InvalidBatch, match=r"'f:a' in row 1 takes bytes, not int"):
        to_put_batch([{"row": b"r", "f:a": b""}, {"row": b"r", "f:a": 5}], CELLS)
    with pytest.raises(InvalidBatch, match="one cell"):
        to_put_batch({"row": b"r", "f:a": {"q": b""}}, CELLS)
    with pytest.raises(InvalidBatch, match="is a family"):
        to_put_batch({**KEY, "click": b"1"}, USERS)
    with pytest.raises(InvalidBatch, match="qualifier is a string"):
        to_put_batch({**KEY, "click": {1: b"1"}}, USERS)


def test_any_iterable_of_mappings_is_rows() -> None:
    rows = [{**KEY, "name": "a"}, {**KEY, "name": "b"}]
    expected = to_put_batch(rows, USERS)
    for form in (tuple(rows), iter(rows), (row for row in rows), [UserDict(row) for row in rows]):
        assert to_put_batch(form, USERS) == expected
    assert to_put_batch(UserDict(rows[0]), USERS) == to_put_batch(rows[0], USERS)


@pytest.mark.parametrize("rows", ["text", 5, None, [1], [None], ["a"], [[("a", 1)]], object()])
def test_what_is_no_row_is_refused(rows: object) -> None:
    with pytest.raises(InvalidBatch, match=r"dict"):
        to_put_batch(rows, USERS)
    with pytest.raises(InvalidBatch, match=r"dict"):
        to_cells_batch(rows, USERS)


def test_no_rows_are_an_empty_put() -> None:
    for rows in ([], (), iter([]), table(name=pa.array([], pa.string())), pd.DataFrame({"user": [], "day": []})):
        assert to_put_batch(rows, USERS) == PutBatch(None, None)
    assert to_put_batch(table(name=pa.array([], pa.string())).to_batches(), USERS) == PutBatch()
    assert to_cells_batch([], USERS) == PutBatch()
    with pytest.raises(UnknownColumn):
        to_put_batch(table(nothing=pa.array([], pa.string())), USERS)


# --- names and keys ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nothing", "drag:x", "*:x", "name:x", "user:x", ":x", "", "*"])
def test_a_column_that_the_table_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(UnknownColumn):
        to_put_batch({**KEY, name: b"1"}, USERS)
    with pytest.raises(UnknownColumn):
        to_put_batch(table(**{name: [b"1"]}), USERS)


@pytest.mark.parametrize("name", ["_x", "_set", "_row", "_x:y"])
def test_names_with_an_underscore_in_front_belong_to_the_store(name: str) -> None:
    for schema in (USERS, CELLS):
        key = KEY if schema is USERS else {"row": b"r"}
        with pytest.raises(InvalidBatch, match="belong to the store"):
            to_put_batch({**key, name: b"1"}, schema)
        with pytest.raises(InvalidBatch, match="belong to the store"):
            to_put_batch(pa.Table.from_pylist([{**key, name: b"1"}]), schema)


def test_a_family_cannot_hide_a_column() -> None:
    schema = Schema(
        key={"k": "int8"}, groups=[Group("a", columns={"name": "string"}), Group("b", families=["*"])]
    ).number()
    for name in ("name:x", "k:x", "*:x"):
        with pytest.raises(UnknownColumn):
            to_put_batch({"k": 1, name: b"1"}, schema)
    for family in ("name", "k", "*", "a:b", "_x"):
        with pytest.raises(UnknownColumn):
            to_cells_batch([{"k": 1, "family": family, "qualifier": "q", "value": b""}], schema)
    assert cells_of_k(to_cells_batch([{"k": 1, "family": "", "qualifier": "q", "value": b""}], schema)) == [("", "q")]


def cells_of_k(put: PutBatch) -> list[tuple[str, str]]:
    return [(line["family"], line["qualifier"]) for line in put.cells.to_pylist()]


def test_a_missing_key_column_is_named() -> None:
    for rows in ({"user": "ada"}, [KEY, {"user": "ada"}], pa.table({"user": ["ada"]}), pd.DataFrame({"user": ["ada"]})):
        with pytest.raises(InvalidBatch, match="'day' is missing"):
            to_put_batch(rows, USERS)
    with pytest.raises(InvalidBatch, match="'user' is missing"):
        to_put_batch(pa.table({"name": ["x"]}), USERS)


def test_null_keys_are_counted() -> None:
    rows = [KEY, {"user": None, "day": DAY}, {"user": None, "day": DAY}]
    for form in (
        rows,
        pa.Table.from_pylist(rows, pa.schema([("user", pa.string()), ("day", pa.date32())])),
        pd.DataFrame(rows),
    ):
        with pytest.raises(InvalidKey, match=r"'user' has 2 nulls, the first in row 1"):
            to_put_batch(form, USERS)
    with pytest.raises(InvalidKey, match=r"'user' has 1 nulls"):
        to_put_batch({"user": None, "day": DAY, "name": "x"}, USERS)
    with pytest.raises(InvalidKey, match=r"'user' has 1 nulls"):
        to_put_batch(table(name=["x"]).set_column(0, "user", pa.nulls(1)), USERS)


def test_a_column_given_twice_is_refused() -> None:
    twice = pa.Table.from_arrays([*table(name=["x"]).columns, pa.array(["y"])], names=["user", "day", "name", "name"])
    with pytest.raises(InvalidBatch, match="'name' is given more than once"):
        to_put_batch(twice, USERS)
    frame = pd.DataFrame([["a", DAY, "x", "y"]], columns=["user", "day", "name", "name"])
    with pytest.raises(InvalidBatch, match="'name' is given more than once"):
        to_put_batch(frame, USERS)


# --- Arrow ---------------------------------------------------------------------------------------


def test_a_batch_that_fits_is_passed_on_as_it_is() -> None:
    batch = table(name=["x", "y"], age=pa.array([1, None], pa.int32())).to_batches()[0]
    for _ in range(2):
        assert to_put_batch(batch, USERS).columns is batch
    sliced = batch.slice(1)
    assert to_put_batch(sliced, USERS).columns is sliced


def test_chunks_order_and_decoration_do_not_matter() -> None:
    given_ = table(name=["x", "y", "z"]).select(["name", "day", "user"])
    given_ = pa.concat_tables([given_.slice(0, 1), given_.slice(1)])
    fields = [pa.field(f.name, f.type, nullable=False, metadata={"a": "b"}) for f in given_.schema]
    given_ = given_.cast(pa.schema(fields)).replace_schema_metadata({"c": "d"})
    put = to_put_batch(given_, USERS)
    plain = pa.schema([("user", pa.string()), ("day", pa.date32()), ("name", pa.string())])
    assert put.columns.schema.equals(plain, check_metadata=True)
    assert put.columns.to_pylist() == given_.select(["user", "day", "name"]).to_pylist()


@pytest.mark.parametrize(
    ("name", "given_", "expected"),
    [
        ("age", pa.array([1, None], pa.int8()), [1, None]),
        ("age", pa.array([1, None], pa.uint64()), [1, None]),
        ("age", pa.array([1.0, None]), [1, None]),
        ("age", pa.nulls(2), [None, None]),
        ("age", pa.array([7, None]).dictionary_encode(), [7, None]),
        ("score", pa.array([1, None]), [1.0, None]),
        ("score", pa.array([0.5, None], pa.float32()), [0.5, None]),
        ("small", pa.array([0.1, None]), [float(np.float32(0.1)), None]),
        ("name", pa.array(["x", None], pa.large_string()), ["x", None]),
        ("name", pa.array(["x" * 20, None], pa.string_view()), ["x" * 20, None]),
        ("name", pa.array(["x", None]).dictionary_encode(), ["x", None]),
        ("name", pa.array([b"x", None]), ["x", None]),
        ("photo", pa.array(["é", None]), ["é".encode(), None]),
        ("photo", pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
        ("photo", pa.array([b"a" * 16, None], pa.uuid()), [b"a" * 16, None]),
        (
            "seen",
            pa.array([5, None], pa.timestamp("ms", "Asia/Tokyo")),
            [datetime(1970, 1, 1, 0, 0, 0, 5000, UTC), None],
        ),
        ("tags", pa.array([["a", None], None], pa.large_list(pa.large_string())), [["a", None], None]),
        ("tags", pa.array([[], None], pa.list_(pa.null())), [[], None]),
        ("tags", pa.array([["a"], None], pa.list_(pa.field("element", pa.string(), nullable=False))), [["a"], None]),
    ],
)
def test_columns_of_other_types_are_cast_without_loss(name: str, given_: pa.Array, expected: list[Any]) -> None:
    for rows in (table(**{name: given_}), table(**{name: given_}).slice(0, 2)):
        put = to_put_batch(rows, USERS)
        assert [line[name] for line in columns_of(put)] == expected
        assert put.columns.schema.field(name).type == USERS.resolve(name).column.type  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "given_", "message"),
    [
        ("age", pa.array([1, 2**40]), f"{2**40} of row 1"),
        ("age", pa.array([1.0, 1.5]), "1.5 of row 1"),
        ("age", pa.array([1.0, float("nan")]), "nan of row 1"),
        ("age", pa.array(["1", "2"]), "does not take string"),
        ("age", pa.array([True, False]), "does not take bool"),
        ("name", pa.array([1, 2]), "does not take int64"),
        ("name", pa.array([b"a", b"\xff"]), r"b'\\xff' of row 1"),
        ("score", pa.array([1, 2**60]), f"{2**60} of row 1"),
        ("small", pa.array([1.0, 1e300]), r"1e\+300 of row 1: it is too large"),
        ("seen", pa.array([1, 1001], pa.timestamp("ns", "UTC")), "of row 0.*lose"),
        ("seen", pa.array([1, 2], pa.timestamp("us")), "with a time zone|has a time zone"),
        ("seen", pa.array([1, 2]), "the unit of a bare number is a guess"),
        ("tags", pa.array([["a"], [b"\xff"]]), "of row 1"),
        ("tags", pa.array(["a", "b"]), "does not take string"),
        (
            "day",
            pa.array([datetime(2026, 1, 1), datetime(2026, 1, 1, 5)], pa.timestamp("us")),
            "of row 1: it has a time of day",
        ),
    ],
)
def test_what_would_be_lost_is_refused_and_named(name: str, given_: pa.Array, message: str) -> None:
    rows = table(name=["a", "b"])
    at = rows.schema.get_field_index(name)
    rows = rows.set_column(at, name, given_) if at >= 0 else rows.append_column(name, given_)
    with pytest.raises(InvalidBatch, match=rf"column '{name}' is .*{message}"):
        to_put_batch(rows, USERS)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("age", 2**31, "2147483648"),
        ("age", 1.5, "float"),
        ("age", True, "bool"),
        ("age", "1", "str"),
        ("name", 1, "int"),
        ("name", b"x", "decode"),
        ("name", "\ud800", "surrogates"),
        ("photo", "x", "encode"),
        ("score", "x", "str"),
        ("small", 1e300, "too large"),
        ("seen", datetime(2026, 1, 1), "has a time zone"),
        ("seen", 5, "int"),
        ("tags", "ab", "str"),
        ("tags", ["a", 1], "int"),
    ],
)
def test_values_of_the_wrong_type_are_refused_and_named(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidBatch, match=rf"column '{name}' is .*{message}"):
        to_put_batch({**KEY, name: value}, USERS)
    with pytest.raises(InvalidBatch, match=rf"column '{name}' is .* of row 1: .*"):
        to_put_batch([{**KEY, name: None}, {**KEY, name: value}], USERS)


def test_key_values_of_the_wrong_type_are_refused_and_named() -> None:
    for key in (
        {"user": b"ada", "day": DAY},
        {"user": "ada", "day": 5},
        {"user": "ada", "day": datetime(2026, 1, 1, 5)},
    ):
        with pytest.raises(InvalidKey, match=r"key column '(user|day)' is"):
            to_put_batch({**key, "name": "x"}, USERS)
        with pytest.raises(InvalidKey, match=r"key column '(user|day)' is .*row 1"):
            to_put_batch([KEY, key], USERS)


def test_columns_of_cells_become_cells_where_they_are_not_null() -> None:
    rows = table(
        **{
            "click:a": pa.array([b"1", None, b"3"]),
            "name": ["x", "y", "z"],
            "view:t": pa.array(["é", None, ""], pa.large_string()),
            "view:none": pa.nulls(3),
            "view:d": pa.array([b"k", None, b"k"]).dictionary_encode(),
        }
    )
    for given_ in (rows, pa.concat_tables([rows.slice(0, 1), rows.slice(1)])):
        put = to_put_batch(given_, USERS)
        assert [line["name"] for line in columns_of(put)] == ["x", "y", "z"]
        assert "_set" not in put.columns.schema.names
        assert sorted(cells_of(put)) == [
            ("u0", "click", "a", b"1"),
            ("u0", "view", "d", b"k"),
            ("u0", "view", "t", "é".encode()),
            ("u2", "click", "a", b"3"),
            ("u2", "view", "d", b"k"),
            ("u2", "view", "t", b""),
        ]
    with pytest.raises(InvalidBatch, match="'click:a' holds cells"):
        to_put_batch(table(**{"click:a": [1]}), USERS)
    with pytest.raises(InvalidBatch, match="'click' is a family"):
        to_put_batch(table(click=[b"x"]), USERS)


ENTRY = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
MAPS = [[("a", b"1"), ("b", None)], None, [], [("c", b"2"), ("a", b"3")]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(MAPS, pa.map_(pa.string(), pa.binary())),
        pa.array(MAPS, pa.map_(pa.large_string(), pa.large_binary())),
        pa.array([m and [(k, v and v.decode()) for k, v in m] for m in MAPS], pa.map_(pa.string(), pa.string())),
        pa.array([m and [{"key": k, "value": v} for k, v in m] for m in MAPS], pa.large_list(ENTRY)),
        pa.array([None if m is None else dict(m) for m in MAPS], pa.struct([(name, pa.binary()) for name in "abc"])),
    ],
    ids=["map", "large map", "string map", "list of pairs", "struct"],
)
def test_a_map_under_a_family_is_its_cells(column: pa.Array) -> None:
    expected = [("u0", "click", "a", b"1"), ("u3", "click", "a", b"3"), ("u3", "click", "c", b"2")]
    rows = table(click=column)
    assert sorted(cells_of(to_put_batch(rows, USERS))) == expected
    assert sorted(cells_of(to_put_batch(rows.slice(2), USERS))) == expected[1:]
    assert [line["user"] for line in columns_of(to_put_batch(rows, USERS))] == ["u1", "u2"]
    renamed = rows.rename_columns({"click": "click:"})
    assert sorted(cells_of(to_put_batch(renamed, USERS))) == expected
    with pytest.raises(InvalidBatch, match="one cell"):
        to_put_batch(rows.rename_columns({"click": "click:x"}), USERS)
    star = pa.table({"row": [b"0", b"1", b"2", b"3"], "fam": column}).take([0, 3])
    assert {line[1] for line in cells_of(to_put_batch(star, CELLS))} == {"fam"}


def test_entries_under_a_null_map_are_not_cells() -> None:
    offsets, keys, values = pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), pa.array([b"1", b"2"])
    under = pa.MapArray.from_arrays(offsets, keys, values, mask=pa.array([True, False]))
    assert cells_of(to_put_batch(table(click=under), USERS)) == [("u1", "click", "b", b"2")]


def test_of_two_cells_for_one_place_the_later_row_comes_later() -> None:
    rows = pa.table(
        {
            "row": [b"k", b"k"],
            "f:q": pa.array([None, b"second"]),
            "f": pa.array([[("q", b"first")], None], pa.map_(pa.string(), pa.binary())),
        }
    )
    for order in (["row", "f:q", "f"], ["row", "f", "f:q"]):
        assert [line[-1] for line in cells_of(to_put_batch(rows.select(order), CELLS))] == [b"first", b"second"]
    same = pa.table({"row": [b"k", b"k"], ":q": pa.array([None, b"second"]), "q": pa.array([b"first", None])})
    for order in (["row", ":q", "q"], ["row", "q", ":q"]):
        assert [line[-1] for line in cells_of(to_put_batch(same.select(order), CELLS))] == [b"first", b"second"]


def test_damaged_arrow_data_is_refused() -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")])
    with pytest.raises(InvalidBatch, match="damaged"):
        to_put_batch(table(name=bad).to_batches()[0], USERS)


def test_a_remembered_plan_belongs_to_its_schema() -> None:
    one = Schema(key={"k": "int64"}, columns={"v": "int32"}).number()
    two = Schema(key={"k": "int64"}, columns={"v": "string"}).number()
    rows = pa.table({"k": [1], "v": pa.array([1], pa.int32())})
    for _ in range(2):
        assert to_put_batch(rows, one).columns.schema.field("v").type == pa.int32()
        with pytest.raises(InvalidBatch):
            to_put_batch(rows, two)
    # More shapes than are remembered, and the first again.
    wide = Schema(key={"k": "int64"}, groups=[Group("c", families=["*"])]).number()
    for at in [*range(300), 0]:
        assert cells_of_k(to_put_batch({"k": 1, f"f:{at}": b""}, wide)) == [("f", str(at))]
        assert cells_of_k(to_put_batch(pa.table({"k": [1], f"f:{at}": [b""]}), wide)) == [("f", str(at))]


# --- frames --------------------------------------------------------------------------------------


def test_a_pandas_frame_is_rows() -> None:
    frame = pd.DataFrame(
        {
            "user": ["a", "b"],
            "day": pd.to_datetime(["2026-01-01", "2026-01-02"]),
            "name": ["x", None],
            "age": [1.0, None],
            "seen": pd.to_datetime(["2026-01-01", None]).tz_localize("Europe/Paris"),
            "click:home": [b"1", None],
            "view": [[("q", b"2")], None],
        }
    )
    put = to_put_batch(frame, USERS)
    assert [(line["day"], line["name"], line["age"]) for line in columns_of(put)] == [
        (date(2026, 1, 1), "x", 1),
        (date(2026, 1, 2), None, None),
    ]
    assert columns_of(put)[0]["seen"] == datetime(2025, 12, 31, 23, tzinfo=UTC)
    assert cells_of(put) == [("a", "click", "home", b"1"), ("a", "view", "q", b"2")]
    # An index with names holds columns, one without is left out.
    assert to_put_batch(frame.set_index(["user", "day"]), USERS).columns.num_rows == 2
    assert columns_of(to_put_batch(frame[frame["user"] == "b"], USERS))[0]["user"] == "b"
    dicts = frame.drop(columns=["view"]).assign(click=[{"p": b"1"}, {"q": b"2"}])
    assert ("b", "click", "q", b"2") in cells_of(to_put_batch(dicts, USERS))
    with pytest.raises(InvalidBatch):
        to_put_batch(frame.assign(name=[1, "x"]), USERS)
    with pytest.raises(UnknownColumn):
        to_put_batch(frame.assign(nothing=1), USERS)


def test_a_polars_frame_is_rows() -> None:
    frame = pl.DataFrame(
        {
            "user": ["a", "b"],
            "day": [DAY, DAY],
            "name": pl.Series(["x", None], dtype=pl.Categorical),
            "age": pl.Series([1, None], dtype=pl.Int64),
            "seen": pl.Series([datetime(2026, 1, 1), None]).dt.replace_time_zone("UTC"),
            "tags": [["t"], None],
            "click:home": [b"1", None],
            "view": [[{"key": "q", "value": b"2"}], None],
            "click:none": [None, None],
        }
    )
    streamed = pa.table(frame)  # through Arrow's C interface the strings are views
    assert pa.types.is_string_view(streamed.schema.field("user").type)
    for form in (frame, streamed):
        put = to_put_batch(form, USERS)
        assert [(line["name"], line["age"], line["tags"]) for line in columns_of(put)] == [("x", 1, ["t"]), (None,) * 3]
        assert cells_of(put) == [("a", "click", "home", b"1"), ("a", "view", "q", b"2")]
    assert to_put_batch(frame.clear(), USERS) == PutBatch()


class Stream:
    """Somebody else's container that speaks Arrow."""

    def __init__(self, inner: pa.Table) -> None:
        self._inner = inner

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._inner.__arrow_c_stream__(requested_schema)


def test_whatever_speaks_arrow_is_rows() -> None:
    rows = table(name=["x", "y"])
    expected = to_put_batch(rows, USERS)
    for form in (Stream(rows), pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()), stream_of(rows)):
        assert to_put_batch(form, USERS) == expected


# --- limits --------------------------------------------------------------------------------------


def test_a_value_longer_than_allowed_is_refused_and_named() -> None:
    fits, long = b"x" * 1_000, b"x" * 1_001
    for name in ("photo", "click:home"):
        dicts = [{**KEY, name: fits}, {**KEY, name: fits}, {**KEY, name: long}]
        for rows in (dicts, table(**{name: [fits, fits, long]}), table(**{name: [fits, fits, long]}).slice(1)):
            with pytest.raises(InvalidBatch, match=rf"'{name}' has a value of 1001 bytes in row [12]: at most 1000"):
                to_put_batch(rows, USERS, value_bytes_max=1_000)
        assert to_put_batch(table(**{name: [fits] * 9}), USERS, value_bytes_max=1_000) != PutBatch()
        assert to_put_batch(dicts[:2], USERS, value_bytes_max=1_000) != PutBatch()
    with pytest.raises(InvalidBatch, match=r"'photo' has a value of 1001 bytes in row 0"):
        to_put_batch({**KEY, "photo": long}, USERS, value_bytes_max=1_000)
    with pytest.raises(InvalidBatch, match=r"'tags' has a value of 1001 bytes in row 1"):
        to_put_batch(table(tags=[["a"], ["a", long.decode()]]), USERS, value_bytes_max=1_000)
    pairs = pa.array([None, ["a", "b"], ["a", long.decode()]], pa.list_(pa.string(), 2))
    with pytest.raises(InvalidBatch, match=r"'pair' has a value of 1001 bytes in row 2"):
        to_put_batch(table(pair=pairs), PAIRS, value_bytes_max=1_000)
    maps = pa.array([[("a", b"")], [("a", b""), ("b", long)]], pa.map_(pa.string(), pa.binary()))
    with pytest.raises(InvalidBatch, match=r"'view' has a value of 1001 bytes in row 1"):
        to_put_batch(table(view=maps), USERS, value_bytes_max=1_000)
    with pytest.raises(InvalidBatch, match="1001 bytes"):
        to_put_batch(table(photo=pa.array([fits, long]).dictionary_encode()), USERS, value_bytes_max=1_000)
    cells = [{**KEY, "family": "click", "qualifier": "q", "value": value} for value in (fits, long)]
    with pytest.raises(InvalidBatch, match=r"'value' has a value of 1001 bytes in row 1"):
        to_cells_batch(cells, USERS, value_bytes_max=1_000)


def test_a_put_larger_than_allowed_is_refused() -> None:
    rows = table(photo=[b"x" * 100] * 100)
    for form in (rows, rows.to_batches()[0], rows.to_pylist(), stream_of(rows)):
        with pytest.raises(InvalidBatch, match="at most 5000"):
            to_put_batch(form, USERS, batch_bytes_max=5_000)
    assert to_put_batch(rows.slice(7, 20), USERS, batch_bytes_max=5_000).columns.num_rows == 20


def test_a_small_batch_that_unfolds_to_a_large_one_is_refused() -> None:
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int8()), pa.array([b"x" * 10_000]))
    long_key = {"row": b"k" * 10_000}
    many = pa.array([[(str(at), b"") for at in range(1_000)]], pa.map_(pa.string(), pa.binary()))
    for rows, schema in (
        (table(photo=dictionary), USERS),
        (table(**{"click:x": dictionary}), USERS),
        (pa.table({"row": [b"k"], "f:" + "q" * 5_000: [b""]}).take([0] * 1_000), CELLS),
        (pa.table({**{name: [value] for name, value in long_key.items()}, "f": many}), CELLS),
        ({**long_key, "f": {str(at): b"" for at in range(1_000)}}, CELLS),
    ):
        with pytest.raises(InvalidBatch, match="bytes"):
            to_put_batch(rows, schema, batch_bytes_max=1_000_000)


def test_a_qualifier_longer_than_allowed_is_refused() -> None:
    long = "q" * 65_537
    for rows in (
        {"row": b"r", f"f:{long}": b""},
        {"row": b"r", "f": {long: b""}},
        pa.table({"row": [b"r"], f"f:{long}": [b""]}),
        pa.table({"row": [b"r"], "f": pa.array([[(long, b"")]], pa.map_(pa.string(), pa.binary()))}),
    ):
        with pytest.raises(InvalidBatch, match="at most 65536"):
            to_put_batch(rows, CELLS)
    with pytest.raises(InvalidBatch, match="at most 65536"):
        to_cells_batch([{"row": b"r", "family": "f", "qualifier": long, "value": b""}], CELLS)


# --- long form -----------------------------------------------------------------------------------


def test_cells_in_long_form() -> None:
    lines = [
        {**KEY, "family": "click", "qualifier": "a", "value": b"1", "timestamp": 5},
        {**KEY, "family": "view", "qualifier": "", "value": b"", "timestamp": None},
        {**KEY, "family": "click", "qualifier": "a", "value": b"2", "timestamp": datetime(1970, 1, 1, 0, 0, 0, 7)},
        {**KEY, "family": "click", "qualifier": "b", "value": b"2", "timestamp": datetime(1970, 1, 1, 0, 0, 0, 8, UTC)},
    ]
    put = to_cells_batch(lines, USERS)
    assert put.columns is None
    assert put.cells.schema.field("timestamp").type == pa.int64()
    assert cells_of(put) == [
        ("ada", "click", "a", b"1", 5),
        ("ada", "view", "", b"", None),
        ("ada", "click", "a", b"2", 7),
        ("ada", "click", "b", b"2", 8),
    ]
    assert to_cells_batch(put.cells, USERS) == put
    assert to_cells_batch(pa.Table.from_batches([put.cells]), USERS) == put
    assert to_cells_batch(pl.from_arrow(put.cells), USERS) == put
    assert to_cells_batch(pd.DataFrame(put.cells.to_pylist()), USERS) == put
    assert to_cells_batch(stream_of(pa.Table.from_batches([put.cells])), USERS) == put
    without = [{name: value for name, value in line.items() if name != "timestamp"} for line in lines]
    assert "timestamp" not in to_cells_batch(without, USERS).cells.schema.names


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        (pa.array([2], pa.timestamp("s")), 2_000_000),
        (pa.array([2], pa.timestamp("ms", "Asia/Tokyo")), 2_000),
        (pa.array([2], pa.timestamp("us")), 2),
        (pa.array([2_000], pa.timestamp("ns")), 2),
        (pa.array([2], pa.int32()), 2),
        (pa.array([-2]), -2),
        (pa.array([None], pa.timestamp("s")), None),
    ],
)
def test_a_timestamp_is_microseconds_in_the_end(stamp: pa.Array, expected: int | None) -> None:
    lines = table(family=["click"], qualifier=["q"], value=[b"v"], timestamp=stamp)
    assert to_cells_batch(lines, USERS).cells.column("timestamp").to_pylist() == [expected]


def long(**changes: Any) -> pa.Table:
    lines = {"family": ["click"], "qualifier": ["q"], "value": [b"v"], **changes}
    return table(**{name: column for name, column in lines.items() if column is not None})


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        (long(family=["drag"]), UnknownColumn, "no family 'drag'"),
        (long(family=["name"]), UnknownColumn, "name"),
        (long(family=pa.nulls(1, pa.string())), InvalidBatch, "'family' has 1 nulls, the first in row 0"),
        (long(qualifier=pa.nulls(1)), InvalidBatch, "'qualifier' has 1 nulls"),
        (long(value=pa.nulls(1, pa.binary())), InvalidBatch, "'value' has 1 nulls"),
        (long(value=[5]), InvalidBatch, "'value' is binary"),
        (long(value=None), InvalidBatch, "'value' is missing"),
        (long(extra=[1]), UnknownColumn, "no column 'extra'"),
        (long(_txn=[1]), InvalidBatch, "belong to the store"),
        (long(timestamp=["x"]), InvalidBatch, "'timestamp' is a timestamp or an int64"),
        (long(timestamp=pa.array([1], pa.timestamp("ns"))), InvalidBatch, "lose"),
        (long().drop_columns("day"), InvalidBatch, "'day' is missing"),
        (long().set_column(0, "user", pa.nulls(1, pa.string())), InvalidKey, "'user' has 1 nulls"),
        ([{**KEY, "family": "click", "qualifier": "q", "value": "text"}], InvalidBatch, "encode"),
        ([{**KEY, "family": "click", "qualifier": "q", "value": None}], InvalidBatch, "'value' has 1 nulls"),
        ([{**KEY, "family": "click", "qualifier": "q", "value": b"", "timestamp": "x"}], InvalidBatch, "timestamp"),
        ([{**KEY, "family": "click", "qualifier": "q"}], InvalidBatch, "'value' is missing"),
    ],
)
def test_cells_that_do_not_fit_are_refused(lines: object, error: type[EblaError], message: str) -> None:
    with pytest.raises(error, match=message):
        to_cells_batch(lines, USERS)


# --- the same rows in every form -----------------------------------------------------------------

plain_rows = st.fixed_dictionaries(
    {"user": st.text(st.sampled_from("ab\0"), max_size=2), "day": st.dates(date(1990, 1, 1), date(2100, 1, 1))},
)
values = {
    "name": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    "age": st.none() | st.integers(-(2**31), 2**31 - 1),
    "score": st.none() | st.floats(allow_nan=False),
    "photo": st.none() | st.binary(max_size=3),
    "seen": st.none() | st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    "tags": st.none() | st.lists(st.text("ab", max_size=2), max_size=2),
    "click:home": st.none() | st.binary(max_size=3),
    "view:x": st.none() | st.binary(max_size=3),
    "click": st.none() | st.dictionaries(st.sampled_from(["home", "b"]), st.none() | st.binary(max_size=2), max_size=2),
}


def effects(put: PutBatch) -> tuple[list[Any], list[Any]]:
    """What a put does, whatever the order of columns: sets by row, and cells with the order of each place kept."""
    sets = []
    names = {str(column.id): column.name for group in USERS.groups for column in group.columns}
    for line in columns_of(put):
        key, given_ = (line.pop("user"), line.pop("day")), line.pop("_set", None)
        sets.append((key, {names[id_]: line[names[id_]] for id_ in given_.split()} if given_ is not None else line))
    lines = (
        [(x["user"], x["day"], x["family"], x["qualifier"], x["value"]) for x in put.cells.to_pylist()]
        if put.cells
        else []
    )
    return sets, sorted(lines, key=lambda line: line[:4])


def expected_effects(rows: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    sets, lines = [], []
    for row in rows:
        key, mine = (row["user"], row["day"]), []
        for name, value in row.items():
            if name == "click":
                mine += [
                    (*key, "click", qualifier, cell) for qualifier, cell in (value or {}).items() if cell is not None
                ]
            elif ":" in name and value is not None:
                mine.append((*key, *name.split(":"), value))
        typed = {name: value for name, value in row.items() if name in IDS}
        if typed or not mine:
            sets.append((key, typed))
        lines += mine
    return sets, sorted(lines, key=lambda line: line[:4])


@st.composite
def wide_rows(draw: st.DrawFn, *, same: bool) -> list[dict[str, Any]]:
    names = st.lists(st.sampled_from(sorted(values)), unique=True)
    shape = draw(names)
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        chosen = shape if same else draw(names)
        rows.append({**draw(plain_rows), **{name: draw(values[name]) for name in chosen}})
    return rows


@given(wide_rows(same=False))
def test_dicts_of_any_shape_do_what_they_say(rows: list[dict[str, Any]]) -> None:
    assert effects(to_put_batch(rows, USERS)) == expected_effects(rows)
    for row in rows:
        assert effects(to_put_batch(row, USERS)) == expected_effects([row])


ARROW = pa.schema(
    [
        *((column.name, column.type) for column in USERS.key),
        *((column.name, column.type) for group in USERS.groups for column in group.columns),
        ("click:home", pa.binary()),
        ("view:x", pa.binary()),
        ("click", pa.map_(pa.string(), pa.binary())),
    ]
)


@given(wide_rows(same=True), st.booleans())
def test_dicts_arrow_and_streams_of_the_same_rows_are_the_same_put(rows: list[dict[str, Any]], compress: bool) -> None:
    schema = pa.schema([ARROW.field(name) for name in rows[0]])
    arrow = pa.Table.from_pylist(rows, schema)
    assert effects(to_put_batch(arrow, USERS)) == expected_effects(rows)
    assert effects(to_put_batch(stream_of(arrow, compression="lz4" if compress else None), USERS)) == expected_effects(
        rows
    )
    if "click" not in rows[0]:
        assert effects(to_put_batch(pl.from_arrow(arrow), USERS)) == expected_effects(rows)


# --- untrusted bytes -----------------------------------------------------------------------------


def stream_of(rows: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


STREAMS = [
    stream_of(rows, compression=compression)
    for rows in (
        table(name=["x", None], age=pa.array([1, 2], pa.int32()), tags=[["a"], []]),
        table(name=pa.array(["x", "y"]).dictionary_encode(), photo=pa.array([b"x" * 20, b""], pa.binary_view())),
        table(**{"click:x": [b"1", None]}, view=pa.array([[("a", b"1")], None], pa.map_(pa.string(), pa.binary()))),
        table(age=pa.nulls(2), seen=pa.array([1, None], pa.timestamp("ms", "UTC"))),
    )
    for compression in (None, "zstd")
]


def check_refused_or_sound(data: bytes) -> None:
    for read in (to_put_batch, to_cells_batch):
        before = pa.total_allocated_bytes()
        try:
            put = read(data, USERS)
        except RequestError:
            continue
        for half in (put.columns, put.cells):
            if half is not None:
                half.validate(full=True)
        assert pa.total_allocated_bytes() - before < 64 * 2**20


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidBatch):
        to_put_batch(data, USERS)
    with pytest.raises(InvalidBatch):
        to_put_batch(b"\xff\xff\xff\xff" + data, USERS)


@settings(max_examples=400)
@given(st.sampled_from(STREAMS), st.data())
def test_a_damaged_stream_is_refused_or_harmless(stream: bytes, data: st.DataObject) -> None:
    damaged = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        kind = data.draw(st.sampled_from(["flip", "byte", "number", "cut", "insert"]))
        if kind == "flip":
            damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "byte":
            damaged[at] = data.draw(st.sampled_from([0x00, 0x7F, 0x80, 0xFF]))
        elif kind == "number":
            at -= at % 8
            damaged[at : at + 8] = data.draw(st.integers(-(2**63), 2**63 - 1)).to_bytes(8, "little", signed=True)
        elif kind == "insert":
            damaged[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        elif at:
            del damaged[at:]
    check_refused_or_sound(bytes(damaged))


def test_every_flipped_bit_of_a_stream_is_refused_or_harmless() -> None:
    stream = STREAMS[1]
    for at in range(len(stream)):
        damaged = bytearray(stream)
        damaged[at] ^= 1 << (at % 8)
        check_refused_or_sound(bytes(damaged))


def test_every_cut_of_a_stream_is_refused() -> None:
    for stream in STREAMS[:2]:
        for length in range(len(stream)):
            with pytest.raises(InvalidBatch):
                to_put_batch(stream[:length], USERS)


def test_a_stream_may_come_in_any_bytes_like_form() -> None:
    stream = STREAMS[0]
    expected = to_put_batch(stream, USERS)
    for form in (bytearray(stream), memoryview(stream), pa.py_buffer(stream), memoryview(b"x" + stream)[1:]):
        assert to_put_batch(form, USERS) == expected
    # What a caller does to its buffer afterwards is its own business.
    buffer = bytearray(stream)
    put = to_put_batch(buffer, USERS)
    buffer[:] = bytes(len(buffer))
    assert put == expected


def test_a_stream_with_other_columns_is_refused_before_its_rows_are_read() -> None:
    for rows in (table(nothing=[1]), table(age=["x"]), table(age=pa.RunEndEncodedArray.from_arrays([1], [5]))):
        with pytest.raises((UnknownColumn, InvalidBatch)):
            to_put_batch(stream_of(rows), USERS)
    with pytest.raises(InvalidBatch, match="'value' is binary"):
        to_cells_batch(stream_of(long(value=[5])), USERS)


def test_schemas_with_columns_and_a_star_take_both() -> None:
    schema = Schema(groups=[Group("a", columns={"n": "int64"}), Group("b", families=["*"])]).number()
    put = to_put_batch({"row": b"r", "n": 1, "x": b"2", "f:q": b"3"}, schema)
    assert columns_of(put) == [{"row": b"r", "n": 1}]
    assert cells_of(put) == [(b"r", "", "x", b"2"), (b"r", "f", "q", b"3")]


def test_of_rows_of_a_polars_frame_that_replace_the_last_of_each_key_counts_whatever_it_holds(tmp_path: Path) -> None:
    values = [
        {"s": {"x": n, "t": f"text {n}"}, "l": [f"{n}"], "n": [{"b": b"%d" % n}], "p": [b"1", b"2"]} for n in (1, 2, 3)
    ]
    rows = [{"k": k, **row} for k, row in zip("aba", values, strict=True)]
    with ebla.open(tmp_path) as db:
        types = {"s": pa.struct([("x", pa.int64()), ("t", pa.string())]), "l": pa.list_(pa.string())}
        types |= {"n": pa.list_(pa.struct([("b", pa.binary())])), "p": pa.list_(pa.binary(), 2)}
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns=types))
        frame = pl.DataFrame(rows, schema_overrides={"p": pl.Array(pl.Binary, 2)})
        table.put(frame, replace=True)
        assert list(table.scan()) == [rows[2], rows[1]]
