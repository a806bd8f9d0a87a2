"""Cuts: partitions are even, between tablets where that can be, and Spark finds that of a row as Ebla does."""

from __future__ import annotations

import random
from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import ebla
from ebla.model.keys import KeyCodec
from ebla.pipeline.loading.cuts import choose_cuts, key_of_cut, partition_by_comparing, partition_by_encoding
from ebla.pipeline.spark.types import spark_schema, to_spark

rows = st.binary(min_size=1, max_size=3)


@given(st.lists(rows, unique=True).map(sorted), st.lists(rows).map(sorted), st.integers(1, 12))
def test_cuts_ascend_and_cut_off_something(bounds: list[bytes], sample: list[bytes], partitions: int) -> None:
    cuts = choose_cuts(bounds, sample, partitions)
    assert all(before < after for before, after in pairwise(cuts))
    assert all(cuts)
    assert set(cuts) <= {*bounds, *sample}


@given(st.lists(rows, unique=True, max_size=6).map(sorted), st.integers(2, 8), st.integers(0, 10_000))
def test_no_partition_has_much_more_than_its_share(bounds: list[bytes], partitions: int, seed: int) -> None:
    dice = random.Random(seed)
    sample = sorted(dice.randbytes(8) for _ in range(400))
    edges = [b"", *choose_cuts(bounds, sample, partitions), b"\xff" * 9]
    sizes = [sum(low <= row < high for row in sample) for low, high in pairwise(edges)]
    assert max(sizes) <= 2.3 * len(sample) / partitions + 1


def test_tablets_are_the_partitions_where_they_are_even() -> None:
    sample = sorted(bytes([first, second]) for first in range(4) for second in range(50))
    assert choose_cuts([b"\x01", b"\x02", b"\x03"], sample, 4) == [b"\x01", b"\x02", b"\x03"]


def test_a_large_tablet_is_cut_and_small_ones_are_joined() -> None:
    sample = [*(bytes([0, number]) for number in range(90)), b"\x01", b"\x02", b"\x03"]
    cuts = choose_cuts([b"\x01", b"\x02", b"\x03"], sample, 3)
    assert len([cut for cut in cuts if cut < b"\x01"]) == 2
    assert not set(cuts) & {b"\x02", b"\x03"}


def test_without_a_sample_the_tablets_are_divided_evenly() -> None:
    assert choose_cuts([b"b", b"c", b"d"], [], 2) == [b"c"]
    assert choose_cuts([b"b", b"c", b"d"], [], 9) == [b"b", b"c", b"d"]
    assert choose_cuts([], [], 9) == []


def test_one_frequent_key_does_not_make_empty_partitions() -> None:
    assert choose_cuts([], [b"k"] * 100, 4) == [b"k"]


# --- the partition of a row ----------------------------------------------------------------------

KEY = {"s": "string", "d": "date32", "n": "uint16", "f": "float64", "t": "timestamp[ms]", "z": "timestamp[us, tz=UTC]"}
MOMENTS = [datetime(1969, 12, 31, 23, 59, 59, 999_000), datetime(1970, 1, 1), datetime(2026, 3, 4, 5, 6, 7, 8_000)]


def keys(count: int) -> list[tuple[object, ...]]:
    dice = random.Random(7)
    return [
        (
            dice.choice(["", "a", "a\0", "a\0b", "ä", "𒀭", "z'\"\\`"]),
            date(1970, 1, 1) + timedelta(days=dice.choice([-1, 0, 1, 20_000])),
            dice.choice([0, 1, 65_535]),
            dice.choice([float("-inf"), -1.5, -0.0, 0.0, 2.5, float("inf"), float("nan")]),
            dice.choice(MOMENTS),
            dice.choice(MOMENTS).replace(tzinfo=UTC),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("how", [partition_by_comparing, partition_by_encoding])
def test_spark_finds_the_partition_of_every_row(spark: SparkSession, how) -> None:  # type: ignore[no-untyped-def]
    schema = ebla.Schema(key=KEY, columns={}).number()
    codec = KeyCodec(schema.key)
    given = keys(300)
    encoded = [codec.encode(key) for key in given]
    # Whole keys, and the first columns of some: what tablets begin with.
    cuts = sorted(
        {*random.Random(1).sample(encoded, 12), *(codec.bound(key[: n % 5 + 1]) for n, key in enumerate(given[:9]))}
    )
    cuts = [cut for cut in cuts if cut]
    table = pa.table(
        {
            name: pa.array(column, schema.key_types[at])
            for at, (name, column) in enumerate(zip(KEY, zip(*given, strict=True), strict=True))
        }
    )
    frame = spark.createDataFrame(to_spark(table), spark_schema(table.schema))
    place = how(schema.key, [F.col(name) for name in KEY], cuts)
    assert place is not None
    found = [row[0] for row in frame.coalesce(1).select(place).collect()]
    assert found == [bisect_right(cuts, row) for row in encoded]


def test_a_cut_that_is_no_key_is_left_to_encoding() -> None:
    schema = ebla.Schema(key={"s": "string", "n": "int32"}, columns={}).number()
    codec = KeyCodec(schema.key)
    assert key_of_cut(schema.key, codec.encode(("a", 5))) == ("a", 5)
    assert key_of_cut(schema.key, codec.bound(("a",))) == ("a",)
    assert key_of_cut(schema.key, b"a") is None
    assert key_of_cut(schema.key, codec.encode(("a", 5))[:-1]) is None
    assert partition_by_comparing(schema.key, [], [b"a"]) is None
