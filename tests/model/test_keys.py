from __future__ import annotations

import contextlib
import math
from collections import namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from enum import IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.errors import InvalidKey
from ebla.model.declaration import Schema
from ebla.model.keys import KeyCodec
from ebla.model.ranges import ALL, KeyRange
from ebla.model.schema import Column

# Few distinct characters, among them NUL and the escape byte, so that strings share prefixes.
few_bytes = st.lists(st.sampled_from([0x00, 0x01, 0x61, 0xFE, 0xFF]), max_size=5).map(bytes)
few_chars = st.text(st.sampled_from("\x00\x01aé\uffff\U0001f600"), max_size=4)
ns_years: dict[str, Any] = {"min_value": datetime(1700, 1, 1), "max_value": datetime(2200, 1, 1)}


def ints(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return st.one_of(st.integers(low, high), st.sampled_from([low, low + 1, 0, 1, high - 1, high]))


def whole(unit: str) -> Any:
    cut = {"s": 1_000_000, "ms": 1_000}[unit]
    return lambda moment: moment.replace(microsecond=moment.microsecond // cut * cut)


zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=11))])
# So far from the ends of time that every zone can show it.
zoned = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)
finite32 = st.floats(width=32, allow_nan=False)

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    **{t: ints(t.bit_width, signed=True) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{t: ints(t.bit_width, signed=False) for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    pa.float32(): finite32,
    pa.float64(): st.one_of(st.floats(allow_nan=False), st.sampled_from([0.0, -0.0, 5e-324, -5e-324, math.inf])),
    pa.string(): st.one_of(st.text(max_size=20), few_chars),
    pa.binary(): st.one_of(st.binary(max_size=20), few_bytes),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.time32("s"): st.times().map(whole("s")),
    pa.time32("ms"): st.times().map(whole("ms")),
    pa.time64("us"): st.times(),
    pa.time64("ns"): st.times(),
    pa.timestamp("s"): st.datetimes().map(whole("s")),
    pa.timestamp("ms"): st.datetimes().map(whole("ms")),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("ns"): st.datetimes(**ns_years),
    pa.timestamp("s", "Europe/Paris"): zoned.map(whole("s")),
    pa.timestamp("us", "UTC"): zoned,
    pa.timestamp("us", "+05:30"): zoned,
}
TYPES = list(VALUES)


def codec_of(*types: pa.DataType, **options: Any) -> KeyCodec:
    return KeyCodec([Column(at + 1, f"k{at}", type_) for at, type_ in enumerate(types)], **options)


def arrays_of(types: Any, keys: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([key[at] for key in keys], type_) for at, type_ in enumerate(types)]


@st.composite
def key_lists(draw: st.DrawFn, columns_min: int = 1) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:
    # Strings twice as often: they are what makes composite keys hard.
    type_ = st.one_of(st.sampled_from(TYPES), st.sampled_from([pa.string(), pa.binary()]))
    types = draw(st.lists(type_, min_size=columns_min, max_size=4))
    return types, draw(st.lists(st.tuples(*(VALUES[type_] for type_ in types)), max_size=8))


def check_keys(types: list[pa.DataType], keys: list[tuple[Any, ...]]) -> None:
    codec = codec_of(*types)
    rows = [codec.encode(key) for key in keys]
    for left, left_row in zip(keys, rows, strict=True):
        for right, right_row in zip(keys, rows, strict=True):
            assert (left < right) == (left_row < right_row), (left, right, left_row, right_row)
            assert (left == right) == (left_row == right_row), (left, right, left_row, right_row)
    assert [codec.decode(row) for row in rows] == keys
    columns = arrays_of(types, keys)
    encoded = codec.encode_arrays(columns)
    encoded.validate(full=True)
    assert encoded.type == pa.binary()
    assert encoded.to_pylist() == rows
    assert codec.encode_many(keys).to_pylist() == rows
    decoded = codec.decode_arrays(encoded)
    for column, back in zip(columns, decoded, strict=True):
        back.validate(full=True)
        assert back.type == column.type
        if not pa.types.is_floating(back.type):  # -0.0 comes back as 0.0, which only Python finds equal
            assert back.equals(column)
    assert list(zip(*(back.to_pylist() for back in decoded), strict=True)) == keys
    # The same out of the middle of longer arrays, as a sliced batch has them.
    for first in range(min(3, len(keys))):
        parts = [column.slice(first, len(keys) - first - first // 2) for column in columns]
        assert codec.encode_arrays(parts).to_pylist() == rows[first : len(keys) - first // 2]
        sliced = codec.decode_arrays(encoded.slice(first, len(keys) - first - first // 2))
        assert [back.to_pylist() for back in sliced] == [part.to_pylist() for part in parts]


@pytest.mark.parametrize("type_", TYPES, ids=str)
@settings(max_examples=30)
@given(data=st.data())
def test_a_key_of_one_column_keeps_its_order_and_comes_back(type_: pa.DataType, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.tuples(VALUES[type_]), max_size=6))
    check_keys([type_], keys)
    codec = codec_of(type_)
    assert [codec.encode(key[0]) for key in keys] == [codec.encode(key) for key in keys]


@given(key_lists(columns_min=2))
def test_a_composite_key_keeps_its_order_and_comes_back(case: tuple[list[pa.DataType], list[tuple[Any, ...]]]) -> None:
    check_keys(*case)


@given(st.lists(st.tuples(few_bytes, few_bytes, few_chars, few_bytes), max_size=6))
def test_strings_with_nul_bytes_keep_their_order_in_every_place(keys: list[tuple[Any, ...]]) -> None:
    check_keys([pa.binary(), pa.binary(), pa.string(), pa.binary()], keys)


@given(key_lists(), st.data())
def test_a_prefix_range_holds_exactly_the_keys_with_the_prefix(
    case: tuple[list[pa.DataType], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    types, keys = case
    if len(types) == 1 and types[0] in (pa.string(), pa.binary()):
        types, keys = [*types, pa.int8()], [(*key, 7) for key in keys]
    codec = codec_of(*types)
    for of in keys:
        prefix = of[: data.draw(st.integers(0, len(types)))]
        range_ = codec.prefix_range(prefix)
        for key in keys:
            assert range_.contains(codec.encode(key)) == (key[: len(prefix)] == prefix)
        # A bound is below every key with the prefix, and not below any smaller key.
        bound = codec.bound(prefix)
        for key in keys:
            assert (codec.encode(key) < bound) == (key[: len(prefix)] < prefix)


@given(st.lists(few_chars, max_size=8), few_chars)
def test_a_prefix_of_a_single_string_is_a_prefix_of_its_text(texts: list[str], prefix: str) -> None:
    for codec, of, keys in (
        (codec_of(pa.string()), prefix, texts),
        (codec_of(pa.binary()), prefix.encode(), [text.encode() for text in texts]),
    ):
        range_ = codec.prefix_range(of)
        assert range_ == codec.string_prefix_range(of) == codec.prefix_range((of,))
        for key in keys:
            assert range_.contains(codec.encode(key)) == key.startswith(of)  # type: ignore[arg-type]


def test_the_layout_of_a_row_is_the_documented_one() -> None:
    codec = codec_of(pa.string(), pa.date32())
    assert codec.encode(("ada", date(2026, 1, 1))).hex(" ") == "61 64 61 00 00 80 00 4f e6"
    assert codec_of(pa.binary(), pa.binary()).encode((b"a\0b", b"c\0")) == b"a\0\xffb\0\0c\0"
    assert codec_of(pa.int16()).encode(-1) == b"\x7f\xff"
    assert codec_of(pa.uint16()).encode(1) == b"\x00\x01"
    assert codec_of(pa.float64()).encode(1.0).hex() == "bff0000000000000"
    assert codec_of(pa.float64()).encode(-1.0).hex() == "400fffffffffffff"
    assert codec_of(pa.bool_(), pa.bool_()).encode((True, False)) == b"\1\0"


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()], ids=str)
def test_every_nan_is_one_key_after_infinity(type_: pa.DataType) -> None:
    codec = codec_of(type_)
    width = type_.bit_width // 8
    kind = np.dtype(f"u{width}")
    quiet = np.array([math.nan], f"f{width}").view(kind)
    odd = (quiet | kind.type(5)).view(f"f{width}")
    negative = (quiet | kind.type(1 << (8 * width - 1))).view(f"f{width}")
    rows = codec.encode_arrays([pa.array(np.concatenate([quiet.view(f"f{width}"), odd, negative]), type_)]).to_pylist()
    assert set(rows) == {codec.encode(math.nan)}
    assert codec.encode(math.nan) > codec.encode(math.inf)
    assert math.isnan(codec.decode(rows[0])[0])
    assert math.isnan(codec.decode_arrays(pa.array(rows))[0][0].as_py())


def test_minus_zero_is_zero() -> None:
    for type_ in (pa.float32(), pa.float64()):
        codec = codec_of(type_)
        assert codec.encode(-0.0) == codec.encode(0.0) == codec.encode(0)
        row = codec.encode_arrays([pa.array([-0.0], type_)])[0].as_py()
        assert row == codec.encode(0.0)
        assert math.copysign(1, codec.decode(row)[0]) == 1
    # Rounding to a float32 can make one, too.
    assert codec_of(pa.float32()).encode(-1e-60) == codec_of(pa.float32()).encode(0.0)


def test_buffers_may_be_longer_than_what_they_hold() -> None:
    def padded(array: pa.Array) -> pa.Array:
        buffers = [buffer and pa.py_buffer(buffer.to_pybytes() + b"xyz") for buffer in array.buffers()]
        return pa.Array.from_buffers(array.type, len(array), buffers)

    for types, keys in (
        ([pa.binary(), pa.int32()], [(b"a", 1), (b"b\0", 2)]),
        ([pa.string()], [("a",), ("b",)]),
        ([pa.float64(), pa.string()], [(0.5, "a"), (1.5, "b")]),
        ([pa.int16()], [(1,), (2,)]),
    ):
        codec = codec_of(*types)
        rows = codec.encode_arrays([padded(array) for array in arrays_of(types, keys)])
        assert rows.to_pylist() == [codec.encode(key) for key in keys]
        assert codec.decode_arrays(padded(rows)) == arrays_of(types, keys)


def test_a_single_binary_or_string_key_is_not_copied() -> None:
    for type_, values in ((pa.binary(), [b"b", b"a\0"]), (pa.string(), ["b", "a\0"])):
        array = pa.array(values, type_)
        rows = codec_of(type_).encode_arrays([array])
        back = codec_of(type_).decode_arrays(rows)[0]
        addresses = {a.buffers()[2].address for a in (array, rows, back)}
        assert len(addresses) == 1
    key = b"k" * 16
    assert codec_of(pa.binary()).encode(key) is key


def test_zoned_timestamps_are_compared_as_moments_and_come_back_with_their_zone() -> None:
    codec = codec_of(pa.timestamp("us", "Europe/Paris"))
    paris = ZoneInfo("Europe/Paris")
    # The hour that comes twice: half past two in summer time is before half past two in winter time.
    summer = datetime(2025, 10, 26, 2, 30, tzinfo=paris, fold=0)
    winter = datetime(2025, 10, 26, 2, 30, tzinfo=paris, fold=1)
    assert codec.encode(summer) < codec.encode(winter)
    assert codec.encode(summer) == codec.encode(summer.astimezone(UTC))
    arrays = codec.encode_arrays([pa.array([summer, winter], codec.types[0])])
    assert arrays.to_pylist() == [codec.encode(summer), codec.encode(winter)]
    (back,) = codec.decode(codec.encode(winter))
    assert back.utcoffset() == timedelta(hours=1)
    assert (back, back.tzinfo) == (winter, pa.scalar(0, codec.types[0]).as_py().tzinfo)
    assert codec.decode_arrays(arrays)[0].type == pa.timestamp("us", "Europe/Paris")


def test_nanoseconds_are_kept() -> None:
    codec = codec_of(pa.timestamp("ns"))
    moment = pd.Timestamp("2026-01-01 00:00:00.000000001")
    rows = codec.encode_arrays([pa.array([moment.value, moment.value + 1], pa.int64()).cast(pa.timestamp("ns"))])
    assert codec.encode(moment) == rows[0].as_py() < rows[1].as_py()
    assert codec.encode(np.datetime64(moment.value, "ns")) == rows[0].as_py()
    assert codec.decode(rows[0].as_py()) == (moment,)
    with pytest.raises(InvalidKey, match="lose"):
        codec_of(pa.timestamp("us")).encode(moment)


class Colour(IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("type_", "given_", "plain"),
    [
        (pa.int32(), np.int64(7), 7),
        (pa.int32(), pa.scalar(7, pa.int8()), 7),
        (pa.int32(), Colour.RED, 3),
        (pa.float64(), 7, 7.0),
        (pa.float64(), np.float32(0.5), 0.5),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.bool_(), np.bool_(True), True),
        (pa.string(), np.str_("a"), "a"),
        (pa.string(), pa.scalar("a", pa.large_string()), "a"),
        (pa.binary(), bytearray(b"a"), b"a"),
        (pa.binary(), memoryview(b"a"), b"a"),
        (pa.binary(), pa.scalar(b"a"), b"a"),
        (pa.date32(), datetime(2026, 1, 2), date(2026, 1, 2)),
        (pa.date32(), np.datetime64("2026-01-02"), date(2026, 1, 2)),
        (pa.timestamp("us"), date(2026, 1, 2), datetime(2026, 1, 2)),
        (pa.timestamp("ms"), np.datetime64("2026-01-02T00:00:01"), datetime(2026, 1, 2, 0, 0, 1)),
        (pa.timestamp("us"), pd.Timestamp("2026-01-02"), datetime(2026, 1, 2)),
        (
            pa.timestamp("us", "UTC"),
            pa.scalar(5, pa.timestamp("ms", "Asia/Tokyo")),
            datetime(1970, 1, 1, 0, 0, 0, 5000, UTC),
        ),
    ],
)
def test_other_forms_of_a_value_are_the_same_key(type_: pa.DataType, given_: object, plain: object) -> None:
    codec = codec_of(type_)
    assert codec.encode(given_) == codec.encode(plain)
    assert codec.encode_many([given_, plain]).to_pylist() == [codec.encode(plain)] * 2
    pair = codec_of(type_, type_)
    assert pair.encode((given_, plain)) == pair.encode((plain, plain))


@pytest.mark.parametrize(
    ("type_", "bad", "message"),
    [
        (pa.int8(), 128, "128"),
        (pa.uint8(), -1, "-1"),
        (pa.uint64(), 1 << 64, "uint64"),
        (pa.int64(), 1.0, "float"),
        (pa.int64(), True, "bool"),
        (pa.int64(), "1", "str"),
        (pa.bool_(), 1, "int"),
        (pa.float32(), 1e300, "too large"),
        (pa.float64(), (1 << 53) + 1, "9007199254740993"),
        (pa.float64(), "x", "str"),
        (pa.string(), b"a", "decode"),
        (pa.string(), "\ud800", "surrogates"),
        (pa.string(), 5, "int"),
        (pa.binary(), "a", "encode"),
        (pa.date32(), datetime(2026, 1, 1, 5), "date"),
        (pa.date32(), datetime(2026, 1, 1, tzinfo=UTC), "date"),
        (pa.date32(), 5, "int"),
        (pa.timestamp("us"), datetime(2026, 1, 1, tzinfo=UTC), "no time zone"),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1), "has a time zone"),
        (pa.timestamp("us", "UTC"), date(2026, 1, 1), "date"),
        (pa.timestamp("s"), datetime(2026, 1, 1, 0, 0, 0, 1), "lose"),
        (pa.timestamp("ns"), datetime(9999, 1, 1), "out of bounds"),
        (pa.timestamp("us"), 5, "int"),
        (pa.time32("s"), time(0, 0, 0, 1), "lose"),
        (pa.time64("us"), time(0, tzinfo=UTC), "time zone"),
        (pa.time64("us"), datetime(2026, 1, 1), "datetime"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(type_: pa.DataType, bad: object, message: str) -> None:
    with pytest.raises(InvalidKey, match=rf"key column 'k0'.*{message}"):
        codec_of(type_).encode(bad)
    with pytest.raises(InvalidKey, match=rf"key column 'k0'.*{message}"):
        codec_of(type_, pa.int8()).encode((bad, 1))
    with pytest.raises(InvalidKey, match=rf"key column 'k0'.*{message}"):
        codec_of(type_).encode_many([bad])


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_null_is_no_key(type_: pa.DataType) -> None:
    with pytest.raises(InvalidKey, match="'k0' cannot be null"):
        codec_of(type_).encode(None)
    with pytest.raises(InvalidKey, match="'k1' cannot be null"):
        codec_of(pa.int8(), type_).encode((1, None))
    with pytest.raises(InvalidKey, match="null"):
        codec_of(type_).encode_many([None])
    with pytest.raises(InvalidKey, match=r"'k0' has 2 nulls, the first in row 1"):
        codec_of(type_).encode_arrays([pa.concat_arrays([zero(type_), pa.nulls(2, type_)])])


def zero(type_: pa.DataType) -> pa.Array:
    if type_ in (pa.string(), pa.binary()):
        return pa.array([b""]).cast(type_)
    return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(bytes(8))])


def test_keys_of_the_wrong_shape_are_refused() -> None:
    pair, single = codec_of(pa.string(), pa.int32()), codec_of(pa.int32())
    for bad in ("ada", ("ada",), ("ada", 1, 2), {"k0": "ada"}, {"k0": "ada", "x": 1}, {"k1": 1}, [], None):
        with pytest.raises(InvalidKey, match=r"a tuple of 2 \(k0: string, k1: int32\)"):
            pair.encode(bad)
    for bad in ((), (1, 2), {"x": 1}):
        with pytest.raises(InvalidKey, match=r"one value \(k0: int32\)"):
            single.encode(bad)
    with pytest.raises(InvalidKey, match="tuple of 2"):
        pair.bound(("ada", 1, 2))
    with pytest.raises(InvalidKey, match="tuple of 2"):
        pair.prefix_range({"k1": 1})
    with pytest.raises(InvalidKey, match="single string"):
        pair.string_prefix_range("a")
    with pytest.raises(InvalidKey, match="encode"):
        codec_of(pa.binary()).prefix_range("a")


def test_a_key_may_be_a_tuple_a_list_or_a_mapping() -> None:
    codec = codec_of(pa.string(), pa.int32())
    pair = namedtuple("pair", "k0 k1")
    row = codec.encode(("ada", 1))
    assert codec.encode(["ada", 1]) == codec.encode({"k1": 1, "k0": "ada"}) == codec.encode(pair("ada", 1)) == row
    mixed = [("ada", 1), ["ada", 1], {"k0": "ada", "k1": 1}]
    assert codec.encode_many(mixed).to_pylist() == [row] * 3
    assert codec_of(pa.string()).encode_many(["a", ("b",), {"k0": "c"}]).to_pylist() == [b"a", b"b", b"c"]


def test_arrow_columns_of_keys_are_cast_and_encoded() -> None:
    codec = codec_of(pa.string(), pa.int32())
    table = pa.table({"k1": pa.array([1, 2], pa.int8()), "k0": pa.array(["a", "b"]).dictionary_encode()})
    assert codec.encode_many(table).to_pylist() == [codec.encode(("a", 1)), codec.encode(("b", 2))]
    assert codec.encode_many(table.to_batches()[0]).to_pylist() == codec.encode_many(table).to_pylist()
    assert codec_of(pa.binary()).encode_many(pa.chunked_array([[b"x"], [b"y"]])).to_pylist() == [b"x", b"y"]
    with pytest.raises(InvalidKey, match="not the columns"):
        codec.encode_many(table.select(["k0"]))
    with pytest.raises(InvalidKey, match="give a table"):
        codec.encode_many(table["k0"])
    with pytest.raises(InvalidKey, match="300"):
        codec_of(pa.int8()).encode_many(pa.array([1, 300]))


def test_no_keys_are_no_rows() -> None:
    for types in ([pa.binary()], [pa.string()], [pa.int64()], [pa.string(), pa.int64()], [pa.bool_(), pa.string()]):
        codec = codec_of(*types)
        empty = [pa.array([], type_) for type_ in types]
        assert codec.encode_arrays(empty).equals(pa.array([], pa.binary()))
        assert codec.decode_arrays(pa.array([], pa.binary())) == empty
        assert codec.encode_many([]).equals(pa.array([], pa.binary()))


def test_arrays_must_have_exactly_the_types_of_the_key() -> None:
    codec = codec_of(pa.string(), pa.int32())
    with pytest.raises(InvalidKey, match="'k1' is int32, not int64: cast it"):
        codec.encode_arrays([pa.array(["a"]), pa.array([1])])
    with pytest.raises(InvalidKey, match="not 1 columns"):
        codec.encode_arrays([pa.array(["a"])])
    with pytest.raises(InvalidKey, match="'k1' has 2 rows, not 1"):
        codec.encode_arrays([pa.array(["a"]), pa.array([1, 2], pa.int32())])


def test_a_row_may_be_as_long_as_allowed_and_no_longer() -> None:
    for codec, fits, long in (
        (codec_of(pa.binary(), key_bytes_max=10), b"x" * 10, b"x" * 11),
        (codec_of(pa.string(), key_bytes_max=10), "é" * 5, "é" * 5 + "x"),
        (codec_of(pa.string(), pa.int8(), key_bytes_max=10), ("x" * 7, 1), ("x" * 8, 1)),
        (codec_of(pa.binary(), pa.int8(), key_bytes_max=10), (b"\0" * 3 + b"x", 1), (b"\0" * 4, 1)),
    ):
        assert len(codec.encode(fits)) == len(codec.encode_many([fits])[0].as_py())
        with pytest.raises(InvalidKey, match=r"11 bytes: at most 10 are allowed"):
            codec.encode(long)
        with pytest.raises(InvalidKey, match=r"row 2 has 11 bytes: at most 10 are allowed"):
            codec.encode_many([fits, fits, long])
    assert len(codec_of(pa.binary()).encode(b"x" * 65_536)) == 65_536
    with pytest.raises(InvalidKey, match="65537"):
        codec_of(pa.binary()).encode(b"x" * 65_537)


@pytest.mark.parametrize(
    ("types", "row"),
    [
        ([pa.int32()], b""),
        ([pa.int32()], b"abc"),
        ([pa.int32()], b"abcde"),
        ([pa.bool_()], b"\2"),
        ([pa.string()], b"\xff"),
        ([pa.float64()], b"\xff" * 8),
        ([pa.float64()], b"\0" * 8),
        ([pa.float64()], b"\x7f" + b"\xff" * 7),
        ([pa.string(), pa.int8()], b"abc"),
        ([pa.string(), pa.int8()], b"abc\0"),
        ([pa.string(), pa.int8()], b"abc\0\0"),
        ([pa.string(), pa.int8()], b"abc\0\0ab"),
        ([pa.string(), pa.int8()], b"abc\0x\0\0a"),
        ([pa.string(), pa.string()], b"\xff\0\0a"),
        ([pa.string(), pa.string()], b"a\0\0\xff"),
        ([pa.int16(), pa.string(), pa.binary()], b"a"),
        ([pa.int16(), pa.string(), pa.binary()], b"\0\0\0\0"[:3]),
    ],
)
def test_bytes_that_are_no_key_are_refused(types: list[pa.DataType], row: bytes) -> None:
    codec = codec_of(*types)
    with pytest.raises(InvalidKey):
        codec.decode(row)
    with pytest.raises(InvalidKey):
        codec.decode_arrays(pa.array([row]))


@given(key_lists(), st.lists(st.one_of(few_bytes, st.binary(max_size=24)), min_size=1, max_size=4))
def test_any_bytes_decode_to_a_key_with_that_row_or_are_refused(
    case: tuple[list[pa.DataType], list[tuple[Any, ...]]], rows: list[bytes]
) -> None:
    codec = codec_of(*case[0])
    try:
        decoded = codec.decode_arrays(pa.array(rows, pa.binary()))
    except InvalidKey:
        return
    assert codec.encode_arrays(decoded).to_pylist() == rows
    for row in rows:
        # Single values may besides lie outside what Python's own types can say.
        with contextlib.suppress(InvalidKey):
            key = codec.decode(row)
            if not any(pa.types.is_temporal(type_) and getattr(type_, "unit", "") == "ns" for type_ in case[0]):
                assert codec.encode(key) == row


def test_rows_to_decode_are_binary_and_not_null() -> None:
    for bad in (pa.array(["a"]), pa.array([b"a", None]), pa.array([1])):
        with pytest.raises(InvalidKey, match="binary and never null"):
            codec_of(pa.binary()).decode_arrays(bad)


def test_an_empty_prefix_is_every_row() -> None:
    assert codec_of(pa.string(), pa.int8()).prefix_range(()) == ALL
    assert codec_of(pa.string()).prefix_range("") == ALL
    assert codec_of(pa.int8()).prefix_range(()) == ALL
    assert codec_of(pa.int8()).prefix_range(-1) == KeyRange(b"\x7f", b"\x7f\0")
    assert codec_of(pa.uint8(), pa.int8()).prefix_range(255) == KeyRange(b"\xff", None)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_bound_is_turned_back_into_the_columns_it_was_made_of(length: int) -> None:
    columns = {"name": "string", "n": "int32", "day": "date32"}
    codec = KeyCodec(Schema(key=columns, columns={"v": "int64"}).number().key)
    key = ("ada\x00", -5, date(2026, 1, 1))[:length]
    assert codec.decode_bound(codec.bound(key)) == key
    with pytest.raises(InvalidKey):
        codec.decode_bound(codec.bound(key)[:-1])
