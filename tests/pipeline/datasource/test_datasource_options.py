"""The options of format("ebla"), as text."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

import pytest

import ebla
from ebla.errors import InvalidKey, RequestError
from ebla.model.schema import TableSchema
from ebla.pipeline.datasource.datasource_options import Address, ReadOptions, WriteOptions, key_from_text, moment

AT = {"root": "/data", "path": "users"}


def schema_of(**key: str) -> TableSchema:
    return ebla.Schema(key=key, columns={"v": "int32"}).number()


def test_the_path_or_an_option_names_the_table() -> None:
    assert ReadOptions.of(AT).address == Address("/data", "users")
    assert ReadOptions.of({"root": "/data", "table": "users"}).address == Address("/data", "users")
    assert WriteOptions.of({**AT, "table": "users"}).address == Address("/data", "users")


def test_a_relative_root_is_made_absolute_because_workers_may_run_elsewhere() -> None:
    assert ReadOptions.of({"root": "data", "table": "t"}).address.root.startswith("/")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "users"}, "which store"),
        ({"root": "/data"}, "which table"),
        ({**AT, "table": "others"}, "give one of them"),
        ({**AT, "asof": "1"}, "no option 'asof'"),
        ({**AT, "as_of": " "}, "the name of a snapshot"),
        ({**AT, "columns": " , "}, "columns is empty"),
        ({**AT, "columns": "[1]"}, "not a JSON array of names"),
        ({**AT, "prefix": "a", "start": "b"}, "either the option prefix"),
    ],
)
def test_options_that_say_nothing_sensible_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        ReadOptions.of(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({**AT, "operation": "upsert"}, "operation is put, replace or erase"),
        ({**AT, "as_of": "1"}, "no option 'as_of'"),
        ({}, r"INSERT INTO users WITH \(root="),
    ],
)
def test_options_to_write_with_are_checked_too(options: dict[str, str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        WriteOptions.of(options)


def test_what_spark_adds_for_its_catalog_is_passed_over() -> None:
    given = {**AT, "provider": "ebla", "owner": "me", "option.root": "/data"}
    assert ReadOptions.of(given) == ReadOptions.of(AT)


def test_columns_are_a_list_with_commas_or_json() -> None:
    assert ReadOptions.of({**AT, "columns": "name, age"}).columns == ("name", "age")
    assert ReadOptions.of({**AT, "columns": '["a,b", "click:home"]'}).columns == ("a,b", "click:home")


def test_a_moment_is_a_txn_or_a_time_in_utc() -> None:
    assert moment("12345") == 12345
    assert moment("monday") == "monday"
    assert moment("2026-01-31T12:00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert moment("2026-01-31T13:00:00+01:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("ada", {"a": "string"}, "ada"),
        ("12", {"a": "int32"}, 12),
        ("true", {"a": "bool"}, True),
        ("1.5", {"a": "float64"}, 1.5),
        ("2026-01-31", {"a": "date32"}, date(2026, 1, 31)),
        ("12:30:00", {"a": "time32[s]"}, time(12, 30)),
        ("2026-01-31T12:00:00", {"a": "timestamp[us]"}, datetime(2026, 1, 31, 12)),
        ("2026-01-31", {"a": "timestamp[us, tz=UTC]"}, datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T13:00:00+01:00", {"a": "timestamp[us, tz=UTC]"}, datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("abc", {"a": "binary"}, b"abc"),
        ("base64:AP8=", {"a": "binary"}, b"\x00\xff"),
        ('["ada"]', {"a": "string", "b": "date32"}, ("ada",)),
        ('["ada", "2026-01-31"]', {"a": "string", "b": "date32"}, ("ada", date(2026, 1, 31))),
        ("[7, true]", {"a": "int64", "b": "bool"}, (7, True)),
        ("ada", {"a": "string", "b": "date32"}, ("ada",)),
    ],
)
def test_keys_are_written_as_text_or_json(text: str, key: dict[str, str], value: Any) -> None:
    assert key_from_text(text, schema_of(**key)) == value


@pytest.mark.parametrize("text", ["[]", '["a", "b", "c"]', '["a"', '["ada", "no day"]'])
def test_a_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidKey):
        key_from_text(text, schema_of(a="string", b="date32"))


def test_no_text_is_no_key() -> None:
    assert key_from_text(None, schema_of(a="string")) is None
