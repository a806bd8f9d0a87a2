"""Work divided among tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebla.pipeline.spark.portions import portions_of


def test_small_things_share_a_portion_and_large_ones_begin() -> None:
    assert portions_of([3, 50, 4, 2], lambda size: size, 6) == [[50], [4], [3, 2]]


@given(st.lists(st.integers(0, 40)), st.integers(1, 50))
def test_nothing_is_lost_and_only_what_stands_alone_is_too_large(sizes: list[int], bytes_max: int) -> None:
    portions = portions_of(sizes, lambda size: size, bytes_max)
    assert [size for portion in portions for size in portion] == sorted(sizes, reverse=True)
    assert all(portion and (len(portion) == 1 or sum(portion) <= bytes_max) for portion in portions)


def test_things_of_one_size_stay_in_their_order() -> None:
    assert portions_of(["b1", "a1", "c2"], lambda name: int(name[1]), 9) == [["c2", "b1", "a1"]]
