"""Bloom filters that pyarrow wrote, read here: what is in a row group is never denied."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.storage.fragment.bloom import bitset_of, key_hash, may_contain


def bitset(keys: list[bytes], kind: pa.DataType = pa.binary(), distinct: int | None = None) -> bytes:  # noqa: B008
    """Write the keys with a bloom filter and take it out of the file."""
    sink = io.BytesIO()
    options = {"key": {"ndv": distinct or max(1, len(keys)), "fpp": 0.01}}
    pq.write_table(pa.table({"key": pa.array(keys, kind)}), sink, bloom_filter_options=options)
    file = pq.ParquetFile(io.BytesIO(sink.getvalue()))
    column = file.metadata.row_group(0).column(0)
    offset, length = column.bloom_filter_offset, column.bloom_filter_length
    return bitset_of(sink.getvalue()[offset : offset + length])


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=50))
@settings(deadline=None, max_examples=50)
def test_a_key_that_was_written_is_never_denied(keys: list[bytes]) -> None:
    bits = bitset(keys)
    assert all(may_contain(bits, key_hash(key)) for key in keys)


@pytest.mark.parametrize("count", [1, 10, 1_000, 5_000])
def test_few_others_are_taken_for_written(count: int) -> None:
    bits = bitset([b"in-%08d" % number for number in range(count)])
    assert len(bits) % 32 == 0
    assert all(may_contain(bits, key_hash(b"in-%08d" % number)) for number in range(count))
    others = 2_000
    wrong = sum(may_contain(bits, key_hash(b"out-%08d" % number)) for number in range(others))
    assert wrong < 0.03 * others


def test_strings_are_known_by_their_bytes() -> None:
    bits = bitset(["grüße", ""], pa.string())
    assert may_contain(bits, key_hash("grüße".encode()))
    assert may_contain(bits, key_hash(b""))


def test_a_filter_made_for_fewer_keys_still_denies_none() -> None:
    keys = [b"%d" % number for number in range(2_000)]
    bits = bitset(keys, distinct=10)
    assert all(may_contain(bits, key_hash(key)) for key in keys)


@pytest.mark.parametrize("size", [32, 64, 4096])
@pytest.mark.parametrize("header", [0, 12, 20, 31])
def test_the_header_is_cut_off_whatever_its_length(size: int, header: int) -> None:
    assert bitset_of(b"h" * header + b"b" * size) == b"b" * size
