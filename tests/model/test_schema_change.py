"""The next schema: what a request makes of the one in force, step by step, or why it cannot be."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ebla.errors import SchemaError, UnknownColumn
from ebla.model.declaration import Group, Schema
from ebla.model.schema import TableSchema
from ebla.model.schema_change import Alteration, altered, is_lossless

START = Schema(
    key={"k": "string"},
    groups=[
        Group("x", columns={"a": "int32", "b": "string"}),
        Group("y", columns={"c": "int64"}),
        Group("p", families=["f"]),
        Group("q", families=["g", "*"]),
    ],
).number()


def shape(schema: TableSchema) -> dict[str, list[str]]:
    """Return the names in each group."""
    return {g.name: [c.name for c in g.columns] + [f.name for f in g.families] for g in schema.groups}


def ids(schema: TableSchema) -> dict[str, int]:
    named = {column.name: column.id for group in schema.groups for column in group.columns}
    return named | {family.name: family.id for group in schema.groups for family in group.families}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"add_columns": {"y": {"d": "date32"}}}, {"y": ["c", "d"]}),
        ({"drop_columns": ["a"]}, {"x": ["b"]}),
        ({"rename": {"a": "b", "b": "a"}}, {"x": ["b", "a"]}),
        ({"rename": {"f": "g", "g": "f"}}, {"p": ["g"], "q": ["f", "*"]}),
        ({"move": {"a": "y"}}, {"x": ["b"], "y": ["c", "a"]}),
        ({"move": {"*": "p"}}, {"p": ["f", "*"], "q": ["g"]}),
        ({"groups": [Group("z", columns={})], "move": {"c": "z"}, "drop_groups": ["y"]}, {"z": ["c"], "y": None}),
        ({"drop_columns": ["a"], "rename": {"b": "a"}, "move": {"a": "y"}}, {"x": [], "y": ["c", "a"]}),
        ({"drop_families": ["g"], "add_families": {"p": ["g"]}}, {"p": ["f", "g"], "q": ["*"]}),
        ({"change_groups": {"x": {"name": "z"}}}, {"z": ["a", "b"], "x": None}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_a_request_makes_the_next_version(request_: dict[str, object], expected: dict[str, list[str] | None]) -> None:
    new = altered(START, Alteration(**request_))
    assert new.version == 2
    wanted = {name: names for name, names in (shape(START) | expected).items() if names is not None}
    assert shape(new) == wanted


def test_ids_are_kept_by_what_is_renamed_or_moved_and_never_given_out_again() -> None:
    moved = altered(START, Alteration(drop_families=["h"], rename={"a": "n", "f": "h", "g": "f"}, move={"c": "x"}))
    assert ids(moved)["n"] == ids(START)["a"]
    assert ids(moved)["f"] == ids(START)["g"]
    assert ids(moved)["c"] == ids(START)["c"]
    used = {*ids(START).values(), *(group.id for group in START.groups), *(column.id for column in START.key)}
    again = altered(moved, Alteration(drop_columns=["n", "b"], drop_families=["f"]))
    again = altered(again, Alteration(add_columns={"x": {"n": "int32"}}, add_families={"p": ["f"]}))
    assert used.isdisjoint((ids(again)["n"], ids(again)["f"]))
    assert again.next_id > max(ids(again).values())


def test_a_column_knows_since_when_it_has_its_name_and_its_type() -> None:
    renamed = altered(START, Alteration(rename={"a": "n"}))
    widened = altered(renamed, Alteration(change_types={"n": "int64"}, add_columns={"x": {"e": "bool"}}))
    n, _, e = widened.groups[0].columns
    assert (n.named_since, n.typed_since, e.named_since, widened.typed_since) == (2, 3, 3, 3)


def test_a_dropped_family_is_remembered_with_the_txn_up_to_which_it_is_gone() -> None:
    once = altered(START, Alteration(drop_families=["f", "loose"]), 100)
    assert [(one.name, one.txn, one.version) for one in once.dropped] == [("f", 100, 2), ("loose", 100, 2)]
    again = altered(altered(once, Alteration(add_families={"p": ["f"]}), 200), Alteration(drop_groups=["p"]), 300)
    assert [(one.name, one.txn) for one in again.dropped] == [("f", 300), ("loose", 100)]


@pytest.mark.parametrize(
    ("request_", "error", "told"),
    [
        ({"rename": {"f": "new"}}, SchemaError, "may hold cells of 'new'"),
        ({"rename": {"f": "*"}}, SchemaError, "cannot be called"),
        ({"rename": {"*": "z"}}, UnknownColumn, "to rename"),
        ({"add_families": {"p": ["*"]}}, SchemaError, "at most one group"),
        ({"add_families": ["h"]}, SchemaError, "say which is meant"),
        ({"add_families": {"p": None}}, SchemaError, "lists names"),
        ({"add_families": {"p": "h"}}, SchemaError, "lists names"),
        ({"move": {"a": "p"}}, SchemaError, "holds families"),
        ({"move": {"f": "x"}}, SchemaError, "holds columns"),
        ({"add_columns": {"x": {"f": "int32"}}}, SchemaError, "stands both"),
        ({"change_groups": {"x": {"max_versions": 0}}}, SchemaError, "at least 1"),
        ({"change_groups": {"x": {"name": "y"}}}, SchemaError, "already"),
        ({"drop_groups": ["x", "x"]}, SchemaError, "no group 'x'"),
        ({"groups": ["z"]}, SchemaError, "list of ebla.Group"),
        ({"rename": ["a"]}, SchemaError, "is a dict"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_said(request_: dict[str, object], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        altered(START, Alteration(**request_))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.uint32(), pa.int64(), True),
        (pa.uint32(), pa.int32(), False),
        (pa.int32(), pa.uint64(), False),
        (pa.int32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.int16(), pa.float32(), True),
        (pa.int32(), pa.float32(), False),
        (pa.float32(), pa.float64(), True),
        (pa.decimal128(6, 2), pa.decimal128(8, 4), True),
        (pa.decimal128(6, 2), pa.decimal128(8, 5), False),
        (pa.int32(), pa.decimal128(12, 2), True),
        (pa.date32(), pa.timestamp("ms"), True),
        (pa.date32(), pa.timestamp("ns"), False),
        (pa.time32("ms"), pa.time64("us"), True),
        (pa.timestamp("us"), pa.timestamp("ns"), False),
        (pa.string(), pa.binary(), False),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), True),
    ],
    ids=str,
)
def test_a_type_is_widened_where_every_value_fits(old: pa.DataType, new: pa.DataType, expected: bool) -> None:
    assert is_lossless(old, new) is expected
