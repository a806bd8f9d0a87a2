"""What a merge may rely on: by txns of files alone."""

from __future__ import annotations

from ebla.metadata.values.table_metadata import FragmentRef, RangeErasure
from ebla.tablet.upkeep.present import Present, gone_erasures, has_roots, is_dense, is_rooted, present_of


def made(txn_min: int, txn_max: int, history_txn: int = 0, cleared_txn: int = 0) -> FragmentRef:
    name = f"f{txn_min}-{txn_max}-{history_txn}"
    return FragmentRef(name, 9, 9, b"a", b"z", txn_min, txn_max, 1, history_txn=history_txn, cleared_txn=cleared_txn)


def test_current_and_history_are_put_apart_at_the_newest_txn_that_is_merged() -> None:
    assert present_of([made(10, 20), made(30, 40)], [], (), 5, None) == Present(40, True, 40)


def test_nothing_is_put_apart_where_no_read_reaches_back() -> None:
    assert present_of([made(10, 20)], [], (), 20, None) == Present()


def test_what_is_not_flushed_ends_the_present() -> None:
    assert present_of([made(10, 40)], [], (), 5, 31) == Present(30, True, 30)


def test_a_range_erasure_is_part_of_the_present_unless_another_file_is_older() -> None:
    erasures = (RangeErasure(b"b", b"c", 50),)
    assert present_of([made(10, 40)], [], erasures, 5, None).txn == 50
    assert present_of([made(10, 40)], [made(60, 70)], erasures, 5, None).txn == 50
    assert present_of([made(10, 40)], [made(45, 70)], erasures, 5, None) == Present(40, True, 40)
    assert present_of([made(10, 40)], [], erasures, 5, 45).txn == 40


def test_another_current_file_that_is_as_old_keeps_erasures_in_what_is_current() -> None:
    assert not present_of([made(30, 40)], [made(10, 20)], (), 5, None).is_rooted
    assert present_of([made(30, 40)], [made(50, 60)], (), 5, None).is_rooted


def test_history_is_needed_as_long_as_any_that_is_there() -> None:
    assert present_of([made(30, 40)], [made(10, 20, 50)], (), 5, None).history_txn == 50
    assert present_of([made(30, 40)], [made(10, 20, 35)], (), 5, None).history_txn == 40
    assert present_of([made(30, 40)], [made(10, 20, 50)], (), 50, 60) == Present(), "all of it may go"


def test_a_merge_of_history_is_needed_as_long_as_the_longest_needed_of_it() -> None:
    assert present_of([made(10, 20, 35), made(15, 30, 60)], [made(1, 70)], (), 5, None) == Present(0, False, 60)


def test_history_that_something_outside_replaced_lies_between_the_inputs() -> None:
    inputs = [made(5, 5), made(30, 30)]
    assert is_dense(inputs, [made(20, 20, 30)], None), "what replaced it is one of the inputs"
    assert not is_dense(inputs, [made(20, 20, 35)], None), "what replaced it may be newer than all of them"
    assert not has_roots(inputs, [made(20, 20, 35)], 30, 1)
    assert has_roots(inputs, [made(20, 20, 35)], 30, 35), "nobody reads it"
    assert not is_dense(inputs, [made(20, 20)], None)


def test_history_keeps_a_merge_from_being_rooted_until_nobody_reads_it() -> None:
    assert not is_rooted([made(10, 20, 50)], 30)
    assert is_rooted([made(10, 20, 50)], 50)


def test_a_range_erasure_stays_for_history_and_not_for_files_that_are_clear_of_it() -> None:
    erasure = RangeErasure(b"b", b"c", 30)
    assert gone_erasures([erasure], [made(10, 40, cleared_txn=30)], 30) == (erasure,)
    assert gone_erasures([erasure], [made(10, 40)], 30) == ()
    assert gone_erasures([erasure], [made(10, 20, 45)], 30) == ()
    assert gone_erasures([erasure], [made(10, 20, 45)], 45) == (erasure,)
