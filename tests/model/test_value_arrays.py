from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ebla.errors import InvalidBatch
from ebla.model.value_arrays import array_of

POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])


@pytest.mark.parametrize(
    ("values", "to"),
    [
        ([1, None], pa.int8()),
        ([1, 2.5, None], pa.float64()),
        ([0.5, None], pa.float16()),
        ([Decimal("1.5"), 2, None], pa.decimal128(5, 2)),
        ([timedelta(seconds=1), None], pa.duration("s")),
        ([timedelta(microseconds=1), None], pa.duration("ns")),
        ([b"ab", None], pa.binary(2)),
        ([[1, None], None, []], pa.list_(pa.int8())),
        ([{"x": 1, "y": "a"}, {"x": 2}, {}, None], POINT),
        ([[{"x": 1, "y": "a"}], None], pa.large_list(POINT)),
        ([[1, 2], None], pa.list_(pa.int8(), 2)),
        ([datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("ms", "UTC")),
        ([], pa.list_(POINT)),
    ],
)
def test_python_values_come_back(values: list[Any], to: pa.DataType) -> None:
    array = array_of(values, to, "column 'c'")
    array.validate(full=True)
    assert array.type == to
    full = [{**dict.fromkeys(["x", "y"]), **value} if to == POINT and value is not None else value for value in values]
    assert array.to_pylist() == full


@pytest.mark.parametrize(
    ("value", "to", "message"),
    [
        (1.5, pa.decimal128(5, 2), "float"),
        (Decimal("1.255"), pa.decimal128(5, 2), "data loss"),
        (timedelta(microseconds=1), pa.duration("s"), "lose"),
        (b"abc", pa.binary(2), "length 2"),
        ({"x": 1, "z": 2}, POINT, "no field 'z'"),
        ({"x": "1"}, POINT, "str"),
        ([1, 300], pa.list_(pa.int8()), "300"),
        ([1.5], pa.list_(pa.int8()), "float"),
        (float("1e39"), pa.float32(), "too large"),
        pytest.param(10**5_000, pa.int64(), "a int", id="five thousand digits"),
        (pd.Timedelta(1_001), pa.duration("us"), "lose data: 1001"),
        (pd.Timedelta(1_000), pa.duration("ms"), "lose data"),
        (np.timedelta64(1_001, "ns"), pa.duration("us"), "lose data: 1001"),
        (pd.Timestamp(1_001), pa.timestamp("us"), "lose data: 1001"),
        (pd.Timestamp(1_001, tz="Asia/Tokyo"), pa.timestamp("us", "UTC"), "lose data: 1001"),
        (np.datetime64(1_001, "ns"), pa.timestamp("us"), "lose data: 1001"),
        (pd.Timestamp(1), pa.date32(), "give a date"),
        (np.datetime64(1, "ns"), pa.date32(), "time of day"),
        (time(0, 0, 0, 1), pa.time32("ms"), "lose data: 1"),
        (pa.scalar(1_001, pa.time64("ns")), pa.time64("us"), "lose data: 1001"),
        ([pd.Timedelta(1_001)], pa.list_(pa.duration("us")), "lose data: 1001"),
        ([1.5, 2], pa.list_(pa.int8(), 2), "float"),
        ([pd.Timedelta(1_001), None], pa.list_(pa.duration("us"), 2), "lose data: 1001"),
        ([1], pa.list_(pa.int8(), 2), "expected size"),
        ({"d": pd.Timedelta(1_001)}, pa.struct([("d", pa.duration("us"))]), "lose data: 1001"),
        (np.longdouble(1), pa.float64(), "longdouble"),
    ],
)
def test_python_values_that_do_not_fit_are_refused(value: object, to: pa.DataType, message: str) -> None:
    with pytest.raises(InvalidBatch, match=rf"column 'c' is .* does not take .*{message}"):
        array_of([value], to, "column 'c'")


class Colour(str, Enum):  # noqa: UP042 - whose str() is not its value
    RED = "r"


@pytest.mark.parametrize(
    ("value", "to", "stored"),
    [
        (pd.Timedelta(1_001), pa.duration("ns"), 1_001),
        (pd.Timedelta(2_000), pa.duration("us"), 2),
        (pd.Timedelta(10**6, unit="D"), pa.duration("s"), 86_400 * 10**6),
        (pd.Timestamp(1_001), pa.timestamp("ns"), 1_001),
        (np.timedelta64(3, "s"), pa.duration("ns"), 3 * 10**9),
        (pa.scalar(1_001, pa.time64("ns")), pa.time64("ns"), 1_001),
        (Colour.RED, pa.string(), "r"),
        (np.str_("x"), pa.string(), "x"),
        (np.array([1, 2]), pa.list_(pa.int8(), 2), [1, 2]),
    ],
)
def test_values_of_other_libraries_are_what_they_stand_for(value: object, to: pa.DataType, stored: object) -> None:
    array = array_of([value], to, "column 'c'")
    assert array.type == to
    assert (array.view(pa.int64()) if pa.types.is_temporal(to) else array).to_pylist() == [stored]
