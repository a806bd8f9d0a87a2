"""Schemas, groups and keys as text become what the API takes."""

from __future__ import annotations

from datetime import date

import msgspec
import pytest

from ebla.cli.tables.schema_text import (
    age_text,
    bound_from_text,
    group_from_text,
    key_from_components,
    schema_from_json,
    schema_from_options,
    schema_to_json,
)
from ebla.errors import EblaError, InvalidBatch, InvalidKey, SchemaError
from ebla.model.declaration import Group, Schema, parse_age

USERS = Schema(
    key={"user": "string", "day": "date32"},
    columns={"name": "string", "position": "struct<x: float64, y: list<int32>>"},
    groups=[
        Group(
            "events",
            families=["click", "*"],
            max_versions=3,
            max_age="90m",
            purge_join="and",
            in_memory=True,
            lookup_at_once=True,
        )
    ],
)


def test_options_say_the_same_as_the_python_form() -> None:
    given = schema_from_options(
        ["user:string", "day:date32"],
        ["name:string", "position:struct<x: float64, y: list<int32>>"],
        ["events: families=click, *; max_versions=3; max_age=90m; purge_join=and; in_memory; lookup_at_once"],
    )
    assert given.number() == USERS.number()


def test_described_schema_can_be_created_again() -> None:
    text = msgspec.json.encode(schema_to_json("users", USERS.number()))
    again, splits = schema_from_json(text, "users.json")
    assert again.number() == USERS.number()
    assert splits == []


def test_group_columns_may_have_types_with_commas() -> None:
    group = group_from_text("g:columns=a:decimal128(10, 2), b:struct<x: int32, y: string>;compression=zstd")
    assert group.columns == {"a": "decimal128(10, 2)", "b": "struct<x: int32, y: string>"}
    assert group.compression == "zstd"


@pytest.mark.parametrize(
    "text",
    [
        "events",
        ":families=a",
        "g:familys=a",
        "g:families=a;max_versions=many",
        "g:families=a;in_memory=maybe",
        "g:columns=a",
    ],
)
def test_unreadable_group_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        group_from_text(text)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"kee": {}}', b'{"groups": [{"families": []}]}', b"\xff\xfe"])
def test_json_that_is_no_schema_is_refused(text: bytes) -> None:
    with pytest.raises(SchemaError, match=r"x\.json is not a schema"):
        schema_from_json(text, "x.json")


def test_a_column_named_twice_is_refused() -> None:
    with pytest.raises(SchemaError, match="twice"):
        schema_from_options([], ["a:int32", "a:string"], [])


@pytest.mark.parametrize("age", ["30d", "2w", "36h", "90m", "45s", "1500us"])
def test_age_is_written_as_it_is_read(age: str) -> None:
    assert parse_age(age_text(parse_age(age))) == parse_age(age)


def test_keys_have_the_types_of_their_columns() -> None:
    schema = USERS.number()
    assert key_from_components(["ada", "2026-01-01"], schema) == ("ada", date(2026, 1, 1))
    assert bound_from_text("ada", schema) == ("ada",)
    assert bound_from_text('["ada", "2026-01-01"]', schema) == ("ada", date(2026, 1, 1))
    assert bound_from_text('["[odd"]', schema) == ("[odd",)
    number = Schema(key={"id": "int64"}, columns={"a": "int32"}).number()
    assert key_from_components(["-7"], number) == -7
    assert bound_from_text("[7]", number) == 7
    binary = Schema(columns={"a": "int32"}).number()
    assert key_from_components(["base64:/w=="], binary) == b"\xff"


@pytest.mark.parametrize("text", ["[", "[]", '["a", "2026-01-01", "b"]', '["a", 7]', "{}x["])
def test_unfit_bounds_are_refused_or_taken_as_text(text: str) -> None:
    schema = USERS.number()
    if not text.startswith("["):
        assert bound_from_text(text, schema) == (text,)
        return
    with pytest.raises((InvalidKey, InvalidBatch)):
        bound_from_text(text, schema)


def test_wrong_number_of_key_values_names_the_key() -> None:
    with pytest.raises(EblaError, match="the key is USER DAY: give 2"):
        key_from_components(["ada"], USERS.number())
