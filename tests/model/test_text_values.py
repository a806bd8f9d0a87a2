"""Text and JSON become values of a column's type, and come back the same."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.errors import InvalidBatch
from ebla.model.column_types import parse_type
from ebla.model.text_values import bytes_from_text, from_json, from_text, text_from_bytes, to_json, to_text, type_text

SAMPLES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, None, False]),
    (pa.int8(), [-128, 127, None]),
    (pa.int64(), [2**63 - 1, -(2**63), None]),
    (pa.uint64(), [2**64 - 1, 0, None]),
    (pa.float32(), [1.5, -0.0, None]),
    (pa.float64(), [0.1, 1e300, math.inf, -math.inf, None]),
    (pa.string(), ["", "null", "base64:AA", "zwei\nZeilen, \"quoted\" 'and' so", "ümläut", None]),
    (pa.binary(), [b"", b"text", b"\xff\x00", b"base64:AA", "ü".encode(), None]),
    (pa.date32(), [date(1969, 12, 31), date(9999, 12, 31), None]),
    (pa.timestamp("us"), [datetime(2026, 1, 31, 12, 30, 0, 5), None]),
    (pa.timestamp("ns"), [datetime(2026, 1, 31, 12, 30, 0, 5), None]),
    (pa.timestamp("ms", "Europe/Berlin"), [datetime(2026, 1, 31, 12, 30), None]),
    (pa.timestamp("s", "UTC"), [datetime(1900, 1, 1), None]),
    (pa.time64("us"), [time(23, 59, 59, 999_999), None]),
    (pa.time32("s"), [time(1, 2, 3), None]),
    (pa.duration("us"), [timedelta(seconds=1.5), timedelta(days=-1), None]),
    (pa.decimal128(38, 10), [Decimal("12345678901234567890.0000000001"), Decimal("-0.1"), None]),
    (pa.decimal256(60, 2), [Decimal("-12345678901234567890123456789012345678901234567890.25"), None]),
    (pa.binary(2), [b"ab", b"\xff\x00", None]),
    (pa.list_(pa.float32(), 2), [[0.5, None], None, [1.0, 2.0]]),
    (pa.list_(pa.binary(1), 2), [[b"a", None], None, [b"\xff", b"b"]]),
    (pa.list_(pa.date32()), [[date(2026, 1, 1), None], [], None, [date(2026, 1, 2)]]),
    (pa.list_(pa.list_(pa.int32())), [[[1], None, [2, 3]], None, []]),
    (
        pa.struct([pa.field("x", pa.binary()), pa.field("y", pa.list_(pa.float64()))]),
        [{"x": b"\xff", "y": [0.5]}, None, {"x": None, "y": None}],
    ),
    (pa.map_(pa.string(), pa.binary()), [[("home", b"1"), ("", b"\xff")], [], None]),
]


@pytest.mark.parametrize(("kind", "values"), SAMPLES, ids=lambda given: str(given)[:30])
def test_json_round_trip_keeps_every_value(kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, kind)
    wire = msgspec.json.decode(msgspec.json.encode(to_json(array)))
    assert from_json(wire, kind, "c").equals(array)
    assert to_json(array.slice(1)) == to_json(array)[1:]


@pytest.mark.parametrize(("kind", "values"), SAMPLES, ids=lambda given: str(given)[:30])
def test_text_round_trip_keeps_every_value(kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, kind)
    assert from_text(to_text(array), kind, "c").equals(array)


def test_not_a_number_survives_both_ways() -> None:
    array = pa.array([math.nan, 1.0])
    assert to_json(array) == ["NaN", 1.0]
    assert math.isnan(from_json(["NaN", 1.0], pa.float64(), "c")[0].as_py())
    assert math.isnan(from_text(["NaN"], pa.float64(), "c")[0].as_py())


@given(st.binary(max_size=20))
@settings(max_examples=300)
def test_any_bytes_survive_as_text(value: bytes) -> None:
    assert bytes_from_text(text_from_bytes(value)) == value


@pytest.mark.parametrize("kind", [kind for kind, _ in SAMPLES if not pa.types.is_map(kind)], ids=str)
def test_a_type_is_named_as_create_takes_it(kind: pa.DataType) -> None:
    assert parse_type(type_text(kind)) == kind


def test_numbers_may_be_text_where_json_would_round() -> None:
    assert from_json(["9223372036854775807", 1], pa.int64(), "c").to_pylist() == [2**63 - 1, 1]
    assert from_json([12, "12.50", 0.5], pa.decimal128(10, 2), "c").to_pylist() == [
        Decimal("12.00"),
        Decimal("12.50"),
        Decimal("0.50"),
    ]


def test_timestamp_without_offset_is_utc_in_a_column_with_a_zone() -> None:
    kind = pa.timestamp("us", "UTC")
    texts = ["2026-01-31", "2026-01-31T01:00:00", "2026-01-31 02:00:00+02:00", "2026-01-31T00:00:00Z"]
    hours = [moment.hour for moment in from_text(texts, kind, "c").to_pylist()]
    assert hours == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, "int32"),
        (2**31, "int32"),
        (2**70, "int64"),
        (True, "int32"),
        (1, "bool"),
        (1, "string"),
        ({"a": 1}, "string"),
        ("x", "float64"),
        ("2026-13-01", "date32"),
        (20260101, "date32"),
        ("2026-01-01T00:00:00Z", "timestamp[us]"),
        ("12.505", "decimal128(10, 2)"),
        ("base64:?", "binary"),
        (5, "binary"),
        ([1], "list<string>"),
        ({"z": 1}, "struct<x: int32>"),
        ("25:00", "time32[s]"),
    ],
)
def test_a_value_that_does_not_fit_is_named(value: Any, kind: str) -> None:
    with pytest.raises(InvalidBatch, match="column 'age': ") as caught:
        from_json([None, value], parse_type(kind), "age")
    assert repr(value) in str(caught.value)
