"""The short way of a single row: the same records, and the same refusals, as the long way."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebla
from ebla.clock import microseconds_of
from ebla.errors import RequestError
from ebla.model.declaration import Group, Schema
from ebla.model.keys import KeyCodec
from ebla.model.schema import TableSchema
from ebla.rows.rows import to_put_batch
from ebla.storage.record.cell_block import CellBlock
from ebla.storage.record.records import Run
from ebla.storage.record.row_block import RowBlock
from ebla.tablet.read.row_cells import cell_lists
from ebla.tablet.write.admission import Admission
from ebla.tablet.write.row_admission import RowAdmission, RowMutation

KINDS = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "small": pa.uint16(),
    "number": pa.int32(),
    "wide": pa.int64(),
    "huge": pa.uint64(),
    "real": pa.float64(),
    "text": pa.string(),
    "raw": pa.binary(),
    "day": pa.date32(),
    "day_ms": pa.date64(),
    "local": pa.timestamp("us"),
    "moment": pa.timestamp("ns", "UTC"),
    "clock": pa.time64("us"),
}
UNUSUAL_KINDS = {"coarse": pa.timestamp("s"), "narrow": pa.float32(), "items": pa.list_(pa.int64())}
SCHEMA = Schema(
    key={"user": pa.string(), "at": pa.int64()},
    groups=[
        Group("one", columns={name: kind for at, (name, kind) in enumerate(KINDS.items()) if at % 2}),
        Group("two", columns={name: kind for at, (name, kind) in enumerate(KINDS.items()) if not at % 2}),
        Group("rare", columns=UNUSUAL_KINDS),
        Group("cells", families=["*"]),
        Group("tags", families=["tags"]),
    ],
).number()
VALUE_BYTES_MAX = 4_000
TXN = 7_000_000
CELLS = ["cell:x", "cell:y", "cell:\u00e9\U0001f600", "other:x", "tags:x", "bare", "tags:a longer name"]


def admissions(schema: TableSchema) -> tuple[RowAdmission, Admission]:
    codec = KeyCodec(schema.key)
    return RowAdmission(schema, codec, VALUE_BYTES_MAX, 10 * VALUE_BYTES_MAX), Admission(schema, codec)


SHORT, LONG = admissions(SCHEMA)

NATURAL: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "tiny": st.integers(-128, 127),
    "small": st.integers(0, 65_535),
    "number": st.integers(-(1 << 31), (1 << 31) - 1),
    "wide": st.integers(-(1 << 63), (1 << 63) - 1),
    "huge": st.integers(0, (1 << 64) - 1),
    "real": st.floats(allow_nan=False),
    "text": st.text(max_size=20),
    "raw": st.binary(max_size=20),
    "day": st.dates(),
    "day_ms": st.dates(),
    "local": st.datetimes(),
    "moment": st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    "clock": st.times(),
}
# What is not natural for most columns, or beyond what they hold: much of it is refused, some is converted.
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False),
    st.booleans(),
    st.sampled_from(["", "text", "\ud800", "x" * (VALUE_BYTES_MAX + 1), b"", b"raw", b"x" * (VALUE_BYTES_MAX + 1)]),
    st.sampled_from([date(1, 1, 1), date(9999, 12, 31), datetime(1, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)]),
    st.sampled_from([datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2))), time(1, 2, 3), time(1, tzinfo=UTC)]),
    st.sampled_from([[1], (1,), {}, {"a": b"1"}, object(), bytearray(b"a"), pa.scalar(1), timedelta(1)]),
)


@st.composite
def dicts(draw: st.DrawFn, unusual: bool) -> dict[Any, Any]:
    row: dict[Any, Any] = {"user": draw(st.text(max_size=10)), "at": draw(NATURAL["wide"])}
    for name in draw(st.lists(st.sampled_from(list(KINDS)), unique=True)):
        row[name] = draw(NATURAL[name] | st.none())
    for name in draw(st.lists(st.sampled_from(CELLS), unique=True)):
        row[name] = draw(st.binary(max_size=20))
    if unusual:
        others = ["user", "at", *KINDS, *UNUSUAL_KINDS, "cell:x", "family:", "_txn", "nobody", 7]
        for name in draw(st.lists(st.sampled_from(others), min_size=1, max_size=3)):
            row[name] = draw(ANYTHING)
        for name in draw(st.lists(st.sampled_from(["user", "at"]), max_size=1)):
            row.pop(name, None)
    names = draw(st.permutations(list(row)))
    return {name: row[name] for name in names}


def block_of(mutation: RowMutation, at: int) -> RowBlock | CellBlock:
    _, plan, values, size_bytes = mutation.parts[at]
    return plan.block(mutation.row, values, TXN, size_bytes, 1)


def check_same(row: dict[Any, Any], mutation: RowMutation) -> None:
    batch = to_put_batch(row, SCHEMA, value_bytes_max=VALUE_BYTES_MAX, batch_bytes_max=10 * VALUE_BYTES_MAX)
    expected = LONG.put(batch)
    assert mutation.rows.equals(expected.rows)
    assert [part.group.id for part in mutation.parts] == list(expected.groups)
    for at, part in enumerate(expected.groups.values()):
        block = block_of(mutation, at)
        records = part.stamped(microseconds_of(TXN))
        assert block.plan.schema_bytes == part.schema_bytes
        assert block.records.schema.equals(records.schema)
        assert block.records.equals(records)
        block.records.validate(full=True)
        read = pa.ipc.read_record_batch(pa.py_buffer(block.message), records.schema)
        read.validate(full=True)
        assert read.equals(records)
        assert block.message == block.records.serialize().to_pybytes()
        assert len(block) == records.num_rows
        if isinstance(block, CellBlock):
            assert block.lists == cell_lists(Run(records, TXN))


@settings(max_examples=150)
@given(dicts(unusual=False))
def test_a_row_of_plain_values_becomes_the_same_records_and_the_same_log_bytes(row: dict[Any, Any]) -> None:
    mutation = SHORT.put(row)
    if len(row) == 2:
        assert mutation is None  # a row that only shall exist goes the long way
    else:
        assert mutation is not None
        check_same(row, mutation)


@settings(max_examples=200)
@given(dicts(unusual=True))
def test_what_the_short_way_takes_is_taken_the_same_by_the_long_way(row: dict[Any, Any]) -> None:
    mutation = SHORT.put(row)
    if mutation is not None:
        check_same(row, mutation)


@pytest.mark.parametrize(
    "row",
    [
        {"user": "ada", "at": 1},
        {"user": "ada", "wide": 1},
        {"user": "ada", "at": None, "wide": 1},
        {"user": b"ada", "at": 1, "wide": 1},
        {"user": "ada", "at": True, "wide": 1},
        {"user": "\ud800", "at": 1, "wide": 1},
        {"user": "ada", "at": 1 << 63, "wide": 1},
        {"user": "a" * 70_000, "at": 1, "wide": 1},
        {"user": "ada", "at": 1, "wide": 1 << 63},
        {"user": "ada", "at": 1, "huge": -1},
        {"user": "ada", "at": 1, "wide": 1.0},
        {"user": "ada", "at": 1, "real": 1},
        {"user": "ada", "at": 1, "text": "\ud800"},
        {"user": "ada", "at": 1, "text": "x" * (VALUE_BYTES_MAX + 1)},
        {"user": "ada", "at": 1, "day": datetime(2026, 1, 1)},
        {"user": "ada", "at": 1, "local": datetime(2026, 1, 1, tzinfo=UTC)},
        {"user": "ada", "at": 1, "moment": datetime(2026, 1, 1)},
        {"user": "ada", "at": 1, "moment": datetime(1, 1, 1, tzinfo=UTC)},
        {"user": "ada", "at": 1, "clock": time(1, tzinfo=UTC)},
        {"user": "ada", "at": 1, "narrow": 1.5},
        {"user": "ada", "at": 1, "wide": 1, "cell:x": None},
        {"user": "ada", "at": 1, "wide": 1, "cell:x": "1"},
        {"user": "ada", "at": 1, "wide": 1, "cell:x": b"x" * (VALUE_BYTES_MAX + 1)},
        {"user": "ada", "at": 1, "cell:": b"1"},
        {"user": "ada", "at": 1, "cell": {"x": b"1"}},
        {"user": "ada", "at": 1, "bare": b"1", ":bare": b"2"},
        {"user": "ada", "at": 1, "text:x": b"1"},
        {"user": "ada", "at": 1, "_set": "1"},
        {"user": "ada", "at": 1, 7: "1"},
    ],
)
def test_what_is_unusual_or_wrong_is_left_to_the_long_way(row: dict[Any, Any]) -> None:
    assert SHORT.put(row) is None


def test_a_wrong_row_is_refused_by_a_table_as_it_ever_was(tmp_path: Any) -> None:
    with ebla.open(tmp_path) as database:
        table = database.create_table("t", Schema(key={"k": "string"}, columns={"n": "int64", "s": "string"}))
        for row, told in [
            ({"k": "a", "n": 1 << 63}, "'n'"),
            ({"k": "a", "n": "1"}, "'n'"),
            ({"k": None, "n": 1}, "'k'"),
            ({"k": "a", "s": "\ud800"}, "'s'"),
            ({"k": "a", "nobody": 1}, "nobody"),
        ]:
            with pytest.raises(RequestError, match=told):
                table.put(row)
        table.put({"k": "a", "n": 1})
        assert [dict(row) for row in table.scan()] == [{"k": "a", "n": 1, "s": None}]


def test_shapes_are_forgotten_before_they_are_too_many() -> None:
    short, _ = admissions(SCHEMA)
    for number in range(1_000):
        assert short.put({"user": "ada", "at": 1, f"nobody {number}": 1}) is None
    assert len(short._shapes) <= 256
    assert short.put({"user": "ada", "at": 1, "wide": 2}) is not None


def test_errors_of_the_codec_do_not_come_through() -> None:
    schema = Schema(key={"k": "binary"}, columns={"n": "int64"}).number()
    short = RowAdmission(schema, KeyCodec(schema.key, key_bytes_max=3), 100, 1_000)
    assert short.put({"k": b"abc", "n": 1}) is not None
    assert short.put({"k": b"abcd", "n": 1}) is None
