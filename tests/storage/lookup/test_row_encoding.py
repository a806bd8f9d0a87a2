"""Rows of Arrow columns as bytes: what is decoded is what Arrow gives to Python."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from ebla.storage.lookup.row_encoding import RECORDS_MAX, can_encode, column_of, encode_rows, logical_of

DAY = datetime.date(2026, 1, 2)
MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, 127, 0]),
    (pa.int32(), [-(1 << 31), (1 << 31) - 1, 7]),
    (pa.int64(), [-(1 << 63), (1 << 63) - 1, 0]),
    (pa.uint64(), [(1 << 64) - 1, 0, 1 << 63]),
    (pa.float32(), [1.5, -0.1, float("inf")]),
    (pa.float64(), [0.1, -1e300, float("-inf")]),
    (pa.bool_(), [True, False, True]),
    (pa.string(), ["", "é\0", "x" * 70_000]),
    (pa.large_string(), ["a", "", "bc"]),
    (pa.binary(), [b"", b"\xff\0", b"y" * 300]),
    (pa.large_binary(), [b"", b"1", b"22"]),
    (pa.binary(3), [b"abc", b"\0\0\0", b"xyz"]),
    (pa.date32(), [DAY, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    (pa.date64(), [DAY, datetime.date(1970, 1, 1), DAY]),
    (pa.timestamp("us"), [MOMENT, datetime.datetime(1, 1, 1), MOMENT]),
    (pa.timestamp("s", "UTC"), [MOMENT.replace(microsecond=0, tzinfo=datetime.UTC)] * 3),
    (pa.time32("s"), [datetime.time(1, 2, 3)] * 3),
    (pa.time64("us"), [datetime.time(1, 2, 3, 4)] * 3),
    (pa.duration("us"), [datetime.timedelta(seconds=-3)] * 3),
    (pa.decimal128(20, 3), [decimal.Decimal("-1.250"), decimal.Decimal("99999.999"), decimal.Decimal("0.000")]),
    (pa.decimal256(50, 3), [decimal.Decimal("-1.250")] * 3),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
]


def decoded(records: pa.RecordBatch, fields: list[str]) -> list[list[Any]]:
    rows = encode_rows(records, fields)
    data = rows.data.to_pybytes()
    begins = [0, *rows.ends[:-1].tolist()]
    return [msgspec.msgpack.decode(data[a:b]) for a, b in zip(begins, rows.ends.tolist(), strict=True)]


@pytest.mark.parametrize("has_nulls", [False, True])
@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_a_value_of_every_type_comes_back_as_arrow_gives_it(
    kind: pa.DataType, values: list[Any], has_nulls: bool
) -> None:
    values = [None, *values, None] if has_nulls else [*values]
    column = pa.array(values, kind)
    assert can_encode(column.type.value_type if pa.types.is_dictionary(kind) else kind)
    rows = [b"row%d" % n for n in range(len(values))]
    batch = pa.record_batch([pa.array(rows), column], names=["_row", "1"])
    make = logical_of(kind) or (lambda value: value)
    for part, begin in ((batch, 0), (batch.slice(1, 2), 1)):  # also where the buffers begin before the values
        found = decoded(part, ["1"])
        assert [row for row, _ in found] == rows[begin : begin + len(found)]
        shown = [None if value is None else make(value) for _, value in found]
        assert shown == part.column("1").to_pylist()
        again = column_of([value for _, value in found], kind)
        assert again.equals(part.column("1").dictionary_decode() if pa.types.is_dictionary(kind) else part.column("1"))


def test_records_of_a_row_stand_one_after_the_other_behind_its_key() -> None:
    batch = pa.record_batch(
        {"_row": [b"a", b"a", b"b", b"c", b"c"], "_txn": [5, 4, 9, 2, 1], "1": ["v", None, "", "w", "x"]}
    )
    assert decoded(batch, ["_txn", "1"]) == [[b"a", 5, "v", 4, None], [b"b", 9, ""], [b"c", 2, "w", 1, "x"]]
    assert encode_rows(batch, ["_txn", "1"]).firsts.tolist() == [0, 2, 3]


def test_of_a_row_with_too_many_records_there_is_the_key_alone() -> None:
    many = RECORDS_MAX + 1
    rows = [b"a", *[b"b"] * many, *[b"c"] * RECORDS_MAX]
    batch = pa.record_batch({"_row": rows, "1": np.arange(len(rows)), "2": [str(n) for n in range(len(rows))]})
    found = decoded(batch, ["1", "2"])
    assert found[0] == [b"a", 0, "0"]
    assert found[1] == [b"b"]
    assert len(found[2]) == 1 + 2 * RECORDS_MAX
    assert encode_rows(batch, ["1", "2"]).firsts.tolist() == [0, 1, 1 + many]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())]
)
def test_nested_values_are_left_to_the_fragment(kind: pa.DataType) -> None:
    assert not can_encode(kind)
