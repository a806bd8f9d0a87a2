"""Sorting by machine words must be what sorting by bytes is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from ebla.model.order import (
    common_prefix_length,
    is_strictly_sorted,
    key_hash_of,
    key_hashes,
    key_words,
    lower_bound,
    lower_bounds,
    newest_first,
    sort_rows,
    upper_bound,
    word_of,
)

# Rows of few letters, some behind a prefix longer than a word: many are equal, tie in a word, or begin another.
letters = st.lists(st.sampled_from([0x00, 0x01, 0x61, 0xFF]), max_size=11).map(bytes)
row = st.builds(lambda prefix, rest: prefix + rest, st.sampled_from([b"", b"12345678", b"long-prefix-"]), letters)
rows = st.lists(row, max_size=30)
same_length = st.integers(0, 20).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), max_size=20))
any_rows = rows | same_length | st.lists(st.binary(max_size=40), max_size=20)


def array(of: list[bytes]) -> pa.Array:
    """Return the rows as a slice in the middle of a larger array: offsets do not begin at zero."""
    return pa.array([b"before", *of, b"after"], pa.binary()).slice(1, len(of))


@given(any_rows)
@example([])
@example([b""])
@example([b"a", b"a\0"])
def test_rows_are_sorted_as_python_sorts_them_and_stably(of: list[bytes]) -> None:
    order, repeats = sort_rows(array(of))
    assert order.tolist() == sorted(range(len(of)), key=of.__getitem__)
    ordered = sorted(of)
    assert repeats.tolist() == [False] * bool(of) + [a == b for a, b in pairwise(ordered)]


@given(any_rows)
def test_sorting_may_skip_what_all_rows_share(of: list[bytes]) -> None:
    prefixed = [b"shared/" + row for row in of]
    skip = common_prefix_length(min(prefixed), max(prefixed)) if prefixed else 0
    assert skip >= 7 or not of
    order, repeats = sort_rows(array(prefixed), skip)
    whole_order, whole_repeats = sort_rows(array(prefixed))
    assert order.tolist() == whole_order.tolist()
    assert repeats.tolist() == whole_repeats.tolist()


@given(any_rows, st.integers(0, 25))
def test_the_word_of_one_row_is_the_word_of_many(of: list[bytes], skip: int) -> None:
    assert key_words(array(of), skip).tolist() == [word_of(row, skip) for row in of]


@given(row, row, st.integers(0, 9))
def test_words_never_contradict_the_order_of_rows(one: bytes, other: bytes, skip: int) -> None:
    skip = min(skip, common_prefix_length(one, other))
    small, great = sorted([one, other])
    assert word_of(small, skip) <= word_of(great, skip)


@given(any_rows)
def test_the_hash_of_one_row_is_the_hash_of_many(of: list[bytes]) -> None:
    assert key_hashes(array(of)).tolist() == [key_hash_of(row) for row in of]


def test_hashes_tell_rows_of_usual_keys_apart() -> None:
    counted = [b"user%012d" % number for number in range(20_000)]
    lengths = [b"x" * number for number in range(64)]
    for of in (counted, lengths):
        assert len(set(key_hashes(pa.array(of, pa.binary())).tolist())) == len(of)
    slots = key_hashes(pa.array(counted, pa.binary())) & np.uint64(1023)
    assert np.bincount(slots.astype(np.int64), minlength=1024).max() < 60


@given(row, row, row)
def test_rows_between_two_share_their_common_prefix(one: bytes, two: bytes, three: bytes) -> None:
    first, between, last = sorted([one, two, three])
    length = common_prefix_length(first, last)
    assert first[:length] == between[:length] == last[:length]
    assert first[: length + 1] != last[: length + 1] or length == min(len(first), len(last))


@given(any_rows, row, st.integers(0, 5))
def test_bounds_are_those_of_bisect(of: list[bytes], asked: bytes, begin: int) -> None:
    of, begin = sorted(of), min(begin, len(of))
    for one in {asked, *of[:3]}:
        assert lower_bound(array(of), one, begin) == bisect_left(of, one, begin)
        assert upper_bound(array(of), one, begin) == bisect_right(of, one, begin)


@given(any_rows)
def test_strictly_sorted_means_no_row_twice(of: list[bytes]) -> None:
    assert is_strictly_sorted(array(of)) == (of == sorted(set(of)))
    assert is_strictly_sorted(array(sorted(set(of))))


@given(st.lists(st.tuples(row, st.integers(1, 5)), max_size=30))
def test_within_a_row_the_newest_comes_first(records: list[tuple[bytes, int]]) -> None:
    txns = np.array([txn for _, txn in records], dtype=np.int64)
    order, repeats = sort_rows(array([row for row, _ in records]))
    arranged = newest_first(order, repeats, txns)
    expected = sorted(range(len(records)), key=lambda at: (records[at][0], -records[at][1]))
    assert arranged.tolist() == expected


def test_an_array_without_a_data_buffer_is_sorted() -> None:
    empties = pa.array([b"", b""], pa.binary())
    order, repeats = sort_rows(empties)
    assert order.tolist() == [0, 1]
    assert repeats.tolist() == [False, True]


@given(st.lists(st.integers(0, 40), max_size=30), st.sampled_from([0, 8, 9, 17]))
def test_rows_that_differ_only_in_their_middle_are_told_apart(numbers: list[int], ending: int) -> None:
    rows = [b"the same" + b"%02d" % number + b"the same as well."[:ending] for number in numbers]
    order, repeats = sort_rows(array(rows))
    assert order.tolist() == sorted(range(len(rows)), key=rows.__getitem__)
    assert repeats.tolist() == [at > 0 and rows[order[at]] == rows[order[at - 1]] for at in range(len(rows))]


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=30), st.lists(st.binary(max_size=12), max_size=12))
def test_many_lower_bounds_are_found_as_each_of_them_is(rows: list[bytes], bounds: list[bytes]) -> None:
    rows.sort()
    inside = [bound for bound in bounds + rows if rows[0] < bound <= rows[-1]]
    array = pa.array(rows, pa.binary())
    assert lower_bounds(array, inside) == [lower_bound(array, bound) for bound in inside]
