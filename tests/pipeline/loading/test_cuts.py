"""Cuts: partitions are even, and between tablets where that can be."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

import ebla
from ebla.model.keys import KeyCodec
from ebla.pipeline.loading.cuts import choose_cuts, key_of_cut

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


def test_the_key_of_a_cut_is_a_whole_one_or_its_first_columns_or_there_is_none() -> None:
    schema = ebla.Schema(key={"s": "string", "n": "int32"}, columns={}).number()
    codec = KeyCodec(schema.key)
    assert key_of_cut(schema.key, codec.encode(("a", 5))) == ("a", 5)
    assert key_of_cut(schema.key, codec.bound(("a",))) == ("a",)
    assert key_of_cut(schema.key, b"a") is None
    assert key_of_cut(schema.key, codec.encode(("a", 5))[:-1]) is None
