"""Values as text: lines of JSON and CSV as Spark writes them, which `test_both_ways` compares with Spark's own."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa

from ebla.pipeline.spark.spark_text import csv_columns, csv_header, csv_lines, json_lines

ROWS = pa.record_batch(
    {
        "number": pa.array([1.0, 1e7, 9.9e-4, float("nan")]),
        "money": pa.array([Decimal("0.00"), None, Decimal("1.50"), Decimal(-3)], pa.decimal128(10, 2)),
        "text": ["", 'a "b", c', None, "two\nlines"],
        "raw": pa.array([b"\x00\xff", b"", None, b"x"]),
        "took": pa.array(
            [timedelta(days=1, seconds=0.5), None, timedelta(0), timedelta(seconds=-1)], pa.duration("us")
        ),
        "seen": pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC), None, None, None], pa.timestamp("us", "UTC")),
        "deep": pa.array([{"day": date(1, 1, 1), "list": ["a", None]}, None, {"day": None, "list": []}, None]),
        "cells": pa.array([[("b", b"1"), ("a", None)], [], None, []], pa.map_(pa.string(), pa.binary())),
    }
)


def test_a_row_is_a_json_object_with_its_nulls() -> None:
    assert json_lines(ROWS).to_pylist() == [
        '{"number":1.0,"money":0.00,"text":"","raw":"AP8=","took":"INTERVAL \'1 00:00:00.5\' DAY TO SECOND",'
        '"seen":"2026-01-31T12:00:00.000000Z","deep":{"day":"0001-01-01","list":["a",null]},"cells":{"b":"MQ==","a":null}}',
        '{"number":1.0E7,"money":null,"text":"a \\"b\\", c","raw":"","took":null,"seen":null,"deep":null,"cells":{}}',
        '{"number":9.9E-4,"money":1.50,"text":null,"raw":null,"took":"INTERVAL \'0 00:00:00\' DAY TO SECOND",'
        '"seen":null,"deep":{"day":null,"list":[]},"cells":null}',
        '{"number":"NaN","money":-3.00,"text":"two\\nlines","raw":"eA==",'
        '"took":"INTERVAL \'-0 00:00:01\' DAY TO SECOND","seen":null,"deep":null,"cells":{}}',
    ]


def test_a_part_of_a_batch_is_written_as_the_same_rows_of_all_of_it() -> None:
    for begin in range(ROWS.num_rows):
        part = ROWS.slice(begin, 2)
        assert json_lines(part).to_pylist() == json_lines(ROWS).to_pylist()[begin : begin + 2]
        assert csv_lines(csv_columns(part)).to_pylist() == csv_lines(csv_columns(ROWS)).to_pylist()[begin : begin + 2]


def test_csv_quotes_what_needs_it_and_tells_null_from_empty() -> None:
    assert csv_header(["plain", "a,b"]) == 'plain,"a,b"'
    assert csv_lines(csv_columns(ROWS.select(["number", "text", "raw", "took", "cells"]))).to_pylist() == [
        '1.0,"",AP8=,86400500000,"{""b"":""MQ=="",""a"":null}"',
        '1.0E7,"a ""b"", c","",,{}',
        "9.9E-4,,,0,",
        'NaN,"two\nlines",eA==,-1000000,{}',
    ]
