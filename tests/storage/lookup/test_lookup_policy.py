"""Lookup files are made where they pay, and those go that were not asked for longest."""

from __future__ import annotations

from ebla.storage.lookup.lookup_policy import (
    DECODED_POINTS,
    STAYS_ROUNDS,
    Held,
    decoded_points,
    is_for_many,
    is_worth_making,
    who_goes,
)


def test_a_file_is_made_when_its_readers_have_paid_for_it() -> None:
    assert not is_worth_making(1_000_000, 2_499 * DECODED_POINTS)
    assert is_worth_making(1_000_000, 2_500 * DECODED_POINTS)


def test_many_rows_are_looked_up_one_by_one_while_they_are_few_or_blocks_have_no_room() -> None:
    assert is_for_many(6_400, 99, 10, 1_000)
    assert not is_for_many(6_400, 100, 10, 1_000)
    assert is_for_many(6_400, 6_400, 251, 1_000)


def test_nobody_goes_while_there_is_room() -> None:
    assert who_goes({}, 10, 10, 1) == []
    assert who_goes({"a": Held(5, 1)}, 5, 10, 1) == []


def test_those_go_that_were_not_asked_for_longest_and_no_more_than_must() -> None:
    now = 3 * STAYS_ROUNDS
    held = {"a": Held(4, 9), "b": Held(4, 3), "c": Held(4, 8)}
    assert who_goes(held, 4, 12, now) == ["b"]
    assert who_goes(held, 5, 12, now) == ["b", "c"]
    assert who_goes(held, 12, 12, now) == ["b", "c", "a"]


def test_what_was_asked_for_of_late_stays() -> None:
    now = 3 * STAYS_ROUNDS
    held = {"a": Held(4, now), "b": Held(4, now - STAYS_ROUNDS)}
    assert who_goes(held, 4, 8, now) is None
    assert who_goes(held, 4, 8, now + 1) == ["b"]


def test_what_is_larger_than_all_the_room_is_not_made() -> None:
    assert who_goes({"a": Held(4, 0)}, 13, 12, 1_000) is None


def test_a_row_out_of_a_large_block_counts_for_more() -> None:
    assert decoded_points(0) == decoded_points(256 << 10) == DECODED_POINTS
    assert decoded_points(1 << 20) > 1.5 * DECODED_POINTS
