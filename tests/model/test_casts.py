from __future__ import annotations

import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import InvalidBatch, InvalidKey
from ebla.model.casts import cast_array, cast_bytes, castable, text_lengths
from ebla.model.value_arrays import array_of

POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])


@pytest.mark.parametrize(
    ("given_", "to"),
    [
        (pa.array([1, None]), pa.decimal128(5, 2)),
        (pa.array([Decimal("1.25"), None]), pa.decimal256(40, 3)),
        (pa.array([Decimal("3"), None]), pa.int8()),
        (pa.array([1, None], pa.int8()), pa.float16()),
        (pa.array([1.5, math.inf, math.nan, None]), pa.float16()),
        (pa.array([date(2026, 1, 1), None]), pa.timestamp("s")),
        (pa.array([date(2026, 1, 1), None]), pa.date64()),
        (pa.array([1_000, None], pa.duration("us")), pa.duration("ms")),
        (pa.array([1_000, None], pa.time64("us")), pa.time32("ms")),
        (pa.array([{"y": "a", "x": 1}, None]), POINT),
        (pa.array([[{"x": 1, "y": None}], None]), pa.list_(POINT)),
        (pa.array([[[1.0], None], None]), pa.list_(pa.list_(pa.int8()))),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), pa.list_(pa.int16())),
        (pa.array([["a", "b"], None], pa.list_(pa.string_view())), pa.large_list(pa.string())),
        (pa.ListArray.from_arrays([0, 2], pa.array(["a", "b"]).dictionary_encode()), pa.list_(pa.binary())),
    ],
)
def test_a_cast_keeps_every_value(given_: pa.Array, to: pa.DataType) -> None:
    assert castable(given_.type, to)
    for array in (given_, pa.concat_arrays([given_, given_]).slice(1), given_.slice(0, 0)):
        result = cast_array(array, to, "column 'c'")
        result.validate(full=True)
        assert result.type == to
        for before, after in zip(array.to_pylist(), result.to_pylist(), strict=True):
            assert plain(before) == plain(after)


def plain(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode()
    return datetime.combine(value, time.min) if type(value) is date else value


@pytest.mark.parametrize(
    ("given_", "to", "message"),
    [
        (pa.array([1, 100_000]), pa.float16(), "100000 of row 1"),
        (pa.array([1, 2_049]), pa.float16(), "2049 of row 1: it would be rounded"),
        (pa.array([1, 1_000]), pa.decimal128(5, 2), "1000 of row 1"),
        (pa.array([1.5]), pa.decimal128(5, 2), "does not take double"),
        (pa.array([Decimal("1.5")]), pa.float64(), "does not take decimal"),
        (pa.array([Decimal("1.5")]), pa.int64(), "of row 0"),
        (pa.array([{"x": 1}]), POINT, "does not take struct"),
        (pa.array([{"x": 1, "y": "a", "z": 1}]), POINT, "does not take struct"),
        (pa.array([{"x": 1, "y": "a"}, {"x": 2**40, "y": "a"}]), POINT, "of row 1"),
        (pa.array([[1.0], [1e300]]), pa.list_(pa.float32()), "of row 1: it is too large"),
        (pa.array([[1], [2]], pa.list_view(pa.int64())), pa.list_(pa.int64()), "does not take list_view"),
        (pa.array([1], pa.timestamp("us", "UTC")), pa.timestamp("us"), "no time zone"),
        (pa.array([1], pa.timestamp("us", "UTC")), pa.date32(), "does not take timestamp"),
        (pa.RunEndEncodedArray.from_arrays([1], [5]), pa.int64(), "does not take run_end_encoded"),
        (pa.array([1]), pa.bool_(), "does not take int64"),
        (pa.array([1.0, 2.0**53]), pa.int64(), "of row 1: a float of this size may stand for several"),
        (pa.array([1.0, -math.inf]), pa.int64(), "of row 1"),
        (pa.array([1.0, 2.0**24], pa.float32()), pa.int64(), "of row 1: a float of this size"),
        (pa.array([[1.0, 1e300]]), pa.list_(pa.float32(), 2), "of row 0: it is too large"),
        (pa.array([[1.0, 2.0**60]]), pa.list_(pa.int64(), 2), "of row 0: a float of this size"),
        (pa.array([[1], [1, 2]]), pa.list_(pa.int64(), 2), "of row 0"),
        (pa.array([0, 2**60], pa.timestamp("ms")), pa.timestamp("us"), f"{2**60} of row 1.*out of bounds"),
        (pa.array([2**60], pa.timestamp("ms", "No/where")), pa.timestamp("us", "UTC"), f"{2**60} of row 0"),
    ],
)
def test_a_cast_that_would_lose_something_is_refused(given_: pa.Array, to: pa.DataType, message: str) -> None:
    with pytest.raises(InvalidBatch, match=message):
        cast_array(given_, to, "column 'c'")


def test_what_a_slice_or_a_dictionary_leaves_out_does_no_harm() -> None:
    lists = pa.array([[2**40], [1], [2**40]])
    assert cast_array(lists.slice(1, 1), pa.list_(pa.int8()), "c").to_pylist() == [[1]]
    unused = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array([1, 2**40]))
    assert cast_array(unused, pa.int8(), "c").to_pylist() == [1, 1]
    with pytest.raises(InvalidBatch, match="of row 1"):
        cast_array(pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), unused.dictionary), pa.int8(), "c")


def test_the_first_value_that_does_not_fit_is_named() -> None:
    for at in (0, 1, 2, 511, 998, 999):
        numbers = np.zeros(1_000, np.int64)
        numbers[at:] = 300
        with pytest.raises(InvalidKey, match=rf"the thing is int8 and does not take 300 of row {at}: "):
            cast_array(pa.array(numbers), pa.int8(), "the thing", InvalidKey)
        with pytest.raises(InvalidKey, match=rf"the thing is int8 and does not take 300 of row {at}: "):
            array_of(numbers.tolist(), pa.int8(), "the thing", InvalidKey)


texts = st.lists(st.none() | st.text(max_size=20), max_size=6)


@given(texts, st.sampled_from([pa.string(), pa.large_string(), pa.string_view(), pa.binary_view()]), st.integers(0, 3))
def test_lengths_of_texts_are_their_bytes(values: list[str | None], type_: pa.DataType, first: int) -> None:
    array = pa.array(values, pa.string()).cast(type_).slice(first)
    assert text_lengths(array).tolist() == [0 if v is None else len(v.encode()) for v in values[first:]]


@given(texts, st.lists(st.integers(0, 5), max_size=10))
def test_the_size_of_a_cast_is_not_underestimated(values: list[str | None], indices: list[int]) -> None:
    plain_array = pa.array(values, pa.string())
    arrays = [(plain_array, plain_array), (plain_array.cast(pa.string_view()), plain_array)]
    if values:
        picked = pa.array([index % len(values) for index in indices], pa.int8())
        arrays.append((pa.DictionaryArray.from_arrays(picked, plain_array), plain_array.take(picked)))
    for given_, expected in arrays:
        assert cast_bytes(given_, pa.binary()) >= expected.nbytes - 16
        lists = pa.ListArray.from_arrays(pa.array([0, len(given_)], pa.int32()), given_)
        assert cast_bytes(lists, pa.list_(pa.binary())) >= expected.nbytes - 16
    assert cast_bytes(pa.nulls(100), pa.decimal256(5, 2)) >= 3_200
