"""Recent rows: they may say "perhaps changed" too often, never "unchanged" wrongly."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.tablet.write.recent_rows import RecentRows

row = st.binary(max_size=20)
COMMITS = st.lists(st.tuples(st.lists(row, max_size=5), st.sampled_from([11, 22])), max_size=20)


def array(rows: list[bytes]) -> pa.Array:
    return pa.array(rows, pa.binary())


@given(COMMITS, st.lists(row, max_size=5), st.integers(0, 25), st.sampled_from([1, 4, 1024]))
def test_a_row_that_changed_is_never_called_unchanged(
    commits: list[tuple[list[bytes], int]], others: list[bytes], since: int, slots: int
) -> None:
    recent = RecentRows(slots, floor_txn=3)
    newest: dict[tuple[bytes, int], int] = {}
    for txn, (rows, salt) in enumerate(commits, start=4):
        recent.change(recent.slots_of(array(rows), salt), txn)
        newest.update({(row, salt): txn for row in rows})
    for salt in (11, 22):
        asked = [*others, *(row for row, of in newest if of == salt)]
        changed = recent.changed_after(recent.slots_of(array(asked), salt), since)
        for row, may_have in zip(asked, changed, strict=True):
            assert may_have or newest.get((row, salt), 0) <= since


def test_what_was_before_the_start_is_not_known() -> None:
    recent = RecentRows(8, floor_txn=100)
    slots = recent.slots_of(array([b"a", b"b"]), 0)
    assert recent.changed_after(slots, 99).all()
    assert not recent.changed_after(slots, 100).any()


def test_with_slots_enough_other_rows_are_not_suspected() -> None:
    recent = RecentRows(1 << 16, floor_txn=0)
    recent.change(recent.slots_of(array([b"changed-%d" % n for n in range(100)]), 7), 5)
    others = recent.changed_after(recent.slots_of(array([b"other-%d" % n for n in range(1_000)]), 7), 4)
    assert others.sum() < 20


def test_rows_of_two_tables_have_different_slots() -> None:
    recent = RecentRows(1 << 16, floor_txn=0)
    rows = array([b"%d" % n for n in range(100)])
    assert (recent.slots_of(rows, 12345) != recent.slots_of(rows, 54321)).all()


@given(st.lists(row, min_size=1, max_size=10), st.integers(0, 2**63))
def test_one_row_has_the_slot_that_it_has_among_many(rows: list[bytes], salt: int) -> None:
    recent = RecentRows(1 << 10, 0)
    assert recent.slots_of(array(rows), salt).tolist() == [recent.slot_of(row, salt) for row in rows]


def test_a_range_erasure_may_have_changed_any_row() -> None:
    recent = RecentRows(8, 0)
    recent.change_all(9)
    assert recent.changed_after(recent.slots_of(array([b"x"]), 0), 8).all()
    assert recent.newest(0) == 9


def test_changes_of_watched_rows_are_pointed_out() -> None:
    recent = RecentRows(1 << 16, 0)
    rows = array([b"a", b"b", b"c"])
    slots = recent.slots_of(rows, 1)
    assert recent.change(slots, 1).tolist() == []
    recent.watch(recent.slot_of(b"b", 1))
    assert recent.change(slots, 2).tolist() == [1]
    assert recent.newest(recent.slot_of(b"b", 1)) == 2


def test_the_number_of_slots_is_a_power_of_two() -> None:
    with pytest.raises(AssertionError):
        RecentRows(1000, 0)
