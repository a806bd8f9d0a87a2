from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.model.ranges import ALL, KeyRange, prefix_end, successor

# A small alphabet, so that rows meet each other and the ends of ranges.
rows = st.lists(st.sampled_from([0x00, 0x01, 0x61, 0xFE, 0xFF]), max_size=4).map(bytes)
ranges = st.builds(KeyRange, rows, st.none() | rows)


def test_first_belongs_to_the_range_and_last_does_not() -> None:
    between = KeyRange(b"b", b"d")
    assert [between.contains(row) for row in (b"a", b"b", b"c", b"c\xff\xff", b"d", b"e")] == [
        False,
        True,
        True,
        True,
        False,
        False,
    ]


def test_all_contains_the_empty_row_and_the_greatest() -> None:
    assert ALL.contains(b"")
    assert ALL.contains(b"\xff" * 100)
    assert KeyRange() == ALL


def test_a_range_is_a_value() -> None:
    assert {KeyRange(b"a"), KeyRange(b"a", None)} == {KeyRange(b"a")}
    with pytest.raises(FrozenInstanceError):
        KeyRange().first = b"x"  # type: ignore[misc]


def test_prefix_end_of_all_ff_is_none() -> None:
    assert prefix_end(b"") is None
    assert prefix_end(b"\xff\xff") is None
    assert prefix_end(b"a\xff") == b"b"
    assert prefix_end(b"ab") == b"ac"


@given(rows, rows)
def test_prefix_end_parts_rows_with_the_prefix_from_greater_ones(prefix: bytes, row: bytes) -> None:
    assert KeyRange(prefix, prefix_end(prefix)).contains(row) == row.startswith(prefix)
    assert KeyRange(prefix, prefix_end(prefix)).contains(prefix + row)


@given(rows, rows)
def test_nothing_lies_between_a_row_and_its_successor(row: bytes, other: bytes) -> None:
    assert successor(row) > row
    assert KeyRange(row, successor(row)).contains(other) == (other == row)


@given(ranges, ranges, rows)
def test_intersection_holds_exactly_the_rows_of_both(left: KeyRange, right: KeyRange, row: bytes) -> None:
    both = left.intersect(right)
    assert (both is not None and both.contains(row)) == (left.contains(row) and right.contains(row))
    assert both is None or not both.is_empty
    assert both == right.intersect(left)
    assert left.overlaps(right) == (both is not None)


@given(ranges, rows)
def test_an_empty_range_contains_no_row(range_: KeyRange, row: bytes) -> None:
    if range_.is_empty:
        assert not range_.contains(row)
        assert not range_.overlaps(ALL)
        assert KeyRange(b"x", b"x").covers(range_)
    else:
        assert range_.contains(range_.first)
        assert range_.overlaps(ALL)


@given(ranges, ranges, rows)
def test_covering_means_containing_every_row(outer: KeyRange, inner: KeyRange, row: bytes) -> None:
    if outer.covers(inner):
        assert outer.contains(row) or not inner.contains(row)
        assert inner.is_empty or outer.intersect(inner) == inner
    else:
        assert outer.intersect(inner) != inner
    assert ALL.covers(inner)
    assert inner.covers(inner)
