"""Texts into values: what a text says, or null; and which type all texts of a column are of."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ebla.pipeline.inputs.text_parsing import parse_texts, type_of_texts

MOMENT = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        (
            "int64",
            [" 12 ", "+7", "-0", "12.5", "0x1F", "1_0", "9223372036854775808", "", None],
            [12, 7, 0] + [None] * 6,
        ),
        ("uint8", ["255", "256", "-1"], [255, None, None]),
        (
            "float64",
            ["1e3", ".5", "5.", "-Infinity", "abc", "0x1p3", None],
            [1000.0, 0.5, 5.0, -float("inf"), *[None] * 3],
        ),
        ("bool", ["T", "no", "1", "maybe", None], [True, False, True, None, None]),
        (
            "date32[day]",
            ["2026-1-5", "2026", "2026-02-30", "2026-01-31T12:00"],
            [date(2026, 1, 5), date(2026, 1, 1), None, None],
        ),
        ("time32[s]", ["12:30:15", "12:30", "24:00:00", "12:30:15.5"], [45015, None, None, None]),
        ("time64[ns]", ["00:00:00.000001"], [1000]),
        (
            "duration[ms]",
            ["1 02:03:04.5", "-0 00:00:01", "5"],
            [timedelta(days=1, seconds=7384.5), timedelta(seconds=-1), None],
        ),
    ],
)
def test_a_text_is_what_it_says_or_nothing(kind: str, texts: list[Any], values: list[Any]) -> None:
    found = {str(one): one for one in (pa.int64(), pa.uint8(), pa.float64(), pa.bool_(), pa.date32())}
    found |= {str(one): one for one in (pa.time32("s"), pa.time64("ns"), pa.duration("ms"))}
    wanted = found["double" if kind == "float64" else kind]
    assert parse_texts(pa.array(texts, pa.string()), wanted).to_pylist() == values


def test_decimals_have_no_more_digits_than_their_column() -> None:
    texts = pa.array(["1.50", "1.500", "1.505", "1e2", "123456789.00"])
    values = parse_texts(texts, pa.decimal128(10, 2)).to_pylist()
    assert values == [Decimal("1.50"), Decimal("1.50"), None, Decimal("100.00"), None]


def test_moments_are_in_utc_unless_they_have_a_zone() -> None:
    texts = ["2026-01-31", "2026-01-31 12:30", "2026-01-31T12:30:15.123456789Z", "2026-01-31T12:30:15-02:30"]
    assert parse_texts(pa.array([*texts, "2026-01-31T12:30Z", "noon"]), MOMENT).to_pylist() == [
        datetime(2026, 1, 31, tzinfo=UTC),
        datetime(2026, 1, 31, 12, 30, tzinfo=UTC),
        datetime(2026, 1, 31, 12, 30, 15, 123456, tzinfo=UTC),
        datetime(2026, 1, 31, 15, 0, 15, tzinfo=UTC),
        None,
        None,
    ]
    before = parse_texts(pa.array(["1969-12-31T23:59:59.5", "0001-01-01"]), pa.timestamp("us")).to_pylist()
    assert before == [datetime(1969, 12, 31, 23, 59, 59, 500000), datetime(1, 1, 1)]


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", None, "", "-2"], pa.int64()),
        (["1", "2.5"], pa.float64()),
        (["1", "12345678901234567890"], pa.decimal128(20, 0)),
        (["2026-01-31", "2026-1-5"], pa.date32()),
        (["2026-01-31", "2026-01-31T12:00:00Z"], MOMENT),
        (["true", "FALSE"], pa.bool_()),
        (["true", "1"], pa.string()),
        (["1", "2026-01-31"], pa.string()),
        (["a"], pa.string()),
        ([None, ""], None),
    ],
)
def test_a_column_is_of_the_narrowest_type_that_all_of_its_texts_are_of(texts: list[Any], kind: pa.DataType) -> None:
    assert type_of_texts(pa.array(texts, pa.string())) == kind
