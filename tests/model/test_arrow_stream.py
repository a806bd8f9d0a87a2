from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import InvalidBatch, UnknownColumn
from ebla.model.arrow_stream import read_untrusted

MIB = 1 << 20


def stream_of(*tables: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, tables[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for table in tables:
            writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def read(data: Any, bytes_max: int = MIB) -> pa.Table:
    return read_untrusted(data, bytes_max, lambda schema: None)


def changed(data: bytes, old: int, new: int) -> bytes:
    """Replace an int64 that stands in the stream exactly as often as is harmless."""
    assert struct.pack("<q", old) in data
    return data.replace(struct.pack("<q", old), struct.pack("<q", new))


ROWS = pa.table(
    {
        "a": pa.array([1, None, 3]),
        "b": ["x", "y" * 100, None],
        "c": pa.array(["p", "q", "p"]).dictionary_encode(),
        "d": pa.array(["v" * 20, None, ""], pa.string_view()),
        "e": [[1], None, []],
        "f": [{"g": 1}, {"g": 2}, None],
    }
)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_valid_stream_comes_back(compression: str | None) -> None:
    assert read(stream_of(ROWS, compression=compression)).equals(ROWS)
    twice = read(stream_of(ROWS, ROWS, compression=compression))
    assert twice.equals(pa.concat_tables([ROWS, ROWS]))
    assert read(stream_of(ROWS.slice(0, 0), compression=compression)).equals(ROWS.slice(0, 0))


@given(st.lists(st.tuples(st.integers(-5, 5), st.none() | st.text(max_size=3)), max_size=5), st.booleans())
def test_any_rows_come_back(rows: list[tuple[int, str | None]], compress: bool) -> None:
    table = pa.table(
        {"a": pa.array([a for a, _ in rows], pa.int64()), "b": pa.array([b for _, b in rows], pa.string())}
    )
    assert read(stream_of(table, compression="lz4" if compress else None)).equals(table)


def test_the_schema_is_looked_at_before_the_rows() -> None:
    def refuse(schema: pa.Schema) -> None:
        raise UnknownColumn(f"seen {schema.names[0]}")

    data = bytearray(stream_of(ROWS))
    data[-200:-100] = b"\xff" * 100
    with pytest.raises(UnknownColumn, match="seen a"):
        read_untrusted(bytes(data), MIB, refuse)


def test_a_stream_longer_than_allowed_is_not_read() -> None:
    with pytest.raises(InvalidBatch, match="at most 100 are taken"):
        read(stream_of(ROWS), 100)


def test_a_stream_that_was_cut_between_messages_is_refused() -> None:
    whole = stream_of(ROWS)
    assert whole.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    with pytest.raises(InvalidBatch, match="cut off"):
        read(whole[:-8])
    with pytest.raises(InvalidBatch, match="cut off"):
        read(b"")
    with pytest.raises(InvalidBatch, match="3 bytes follow the end"):
        read(whole + b"abc")


def test_a_compressed_buffer_that_unfolds_too_far_is_refused() -> None:
    zeros = pa.table({"a": [bytes(8 * MIB)]})
    data = stream_of(zeros, compression="zstd")
    assert len(data) < 10_000
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidBatch, match="unfolds to more than"):
        read(data)
    assert pa.total_allocated_bytes() == before
    assert read(data, 16 * MIB).num_rows == 1


def test_a_compressed_buffer_that_lies_about_its_size_is_refused() -> None:
    data = stream_of(pa.table({"a": [b"x" * 5_003]}), compression="lz4")
    for size in (5_002, 5_004, 2**20 - 6_000, 2**40, 2**62, -2, -(2**63)):
        with pytest.raises(InvalidBatch):
            read(changed(data, 5_003, size))


def test_rows_that_take_no_space_are_counted() -> None:
    data = stream_of(pa.table({"a": pa.nulls(54_321)}))
    assert read(data).num_rows == 54_321
    for count in (2**21, 2**40, 2**60, -1, -(2**62)):
        with pytest.raises(InvalidBatch):
            read(changed(data, 54_321, count))


def test_delta_dictionaries_are_refused() -> None:
    first, second = (
        pa.record_batch({"a": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(values))})
        for values in (["x"], ["x", "y"])
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, first.schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
        writer.write_batch(first)
        writer.write_batch(second)
    with pytest.raises(InvalidBatch, match="delta dictionaries"):
        read(sink.getvalue())


def test_a_file_is_not_a_stream() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)
    with pytest.raises(InvalidBatch, match="not an Arrow IPC stream"):
        read(sink.getvalue())


def test_text_that_is_not_text_is_refused() -> None:
    data = stream_of(pa.table({"a": ["needle"]})).replace(b"needle", b"nee\xffle")
    with pytest.raises(InvalidBatch, match="not a valid Arrow IPC stream"):
        read(data)


def test_names_that_are_not_text_are_refused() -> None:
    zones = pa.array([[1]], pa.list_(pa.timestamp("us", "needle")))
    for table in (pa.table({"needle": [1]}), pa.table({"a": zones}), pa.table({"a": [{"needle": 1}]})):
        with pytest.raises(InvalidBatch, match="not a valid Arrow IPC stream"):
            read(stream_of(table).replace(b"needle", b"nee\xffle"))


def test_messages_in_the_wrong_order_are_refused() -> None:
    whole = stream_of(ROWS.select(["a"]))
    schema_bytes = 8 + struct.unpack_from("<i", whole, 4)[0]
    for data in (whole[schema_bytes:], whole[:schema_bytes] + whole):
        with pytest.raises(InvalidBatch, match="a schema followed by batches"):
            read(data)
