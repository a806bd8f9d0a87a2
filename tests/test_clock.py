from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.clock import TXNS_PER_MICROSECOND, ManualClock, SystemClock, TxnClock, microseconds_of, txn_at
from ebla.errors import ClockSkew


class Disk:
    """Remembers the bound like a store does, and can be made to fail."""

    def __init__(self) -> None:
        self.bound = 0
        self.writes = 0
        self.broken = False

    def reserve(self, bound: int) -> None:
        if self.broken:
            raise OSError("disk gone")
        self.bound = bound
        self.writes += 1


def started(clock: ManualClock, disk: Disk, reserve_seconds: float = 10.0) -> TxnClock:
    return TxnClock(clock, disk.bound, disk.reserve, reserve_seconds=reserve_seconds, skew_seconds_max=60.0)


def test_a_txn_carries_its_microsecond() -> None:
    clock = ManualClock(1_000_000)
    txns = started(clock, Disk())
    assert microseconds_of(txns.next()) == 1_000_000
    clock.advance(2.5)
    assert microseconds_of(txns.next()) == 3_500_000


def test_every_commit_has_a_microsecond_to_itself_while_the_clock_stands_still() -> None:
    clock = ManualClock(5)
    txns = started(clock, Disk())
    assert [txns.next() for _ in range(3)] == [5 << 10, 6 << 10, 7 << 10]


def test_a_block_of_txns_lies_in_one_microsecond_that_nothing_shares() -> None:
    clock, disk = ManualClock(5), Disk()
    txns = started(clock, disk, reserve_seconds=0.0)
    assert txns.next() == 5 << 10
    first = txns.next_block(TXNS_PER_MICROSECOND)
    assert first == 6 << 10
    assert txns.last == txn_at(6) == disk.bound
    assert txns.next() == 7 << 10


def test_txn_at_is_the_last_of_its_microsecond() -> None:
    assert microseconds_of(txn_at(7)) == 7
    assert microseconds_of(txn_at(7) + 1) == 8


def test_a_clock_set_back_does_not_take_txns_back() -> None:
    clock = ManualClock(10_000_000)
    txns = started(clock, Disk())
    before = txns.next()
    clock.set_microseconds(1)
    assert txns.next() == before + (1 << 10)
    assert txns.last == before + (1 << 10)


def test_a_restart_begins_above_the_persisted_bound() -> None:
    clock, disk = ManualClock(10_000_000), Disk()
    before = [started(clock, disk).next() for _ in range(3)]
    clock.set_microseconds(1)
    txns = started(clock, disk)
    assert txns.last == disk.bound
    assert txns.next() > max(before)
    assert before == sorted(set(before))


def test_the_bound_is_written_before_a_txn_is_given_out() -> None:
    clock, disk = ManualClock(10_000_000), Disk()
    txns = started(clock, disk)
    disk.broken = True
    with pytest.raises(OSError, match="disk gone"):
        txns.next()
    assert txns.last == 0
    disk.broken = False
    assert txns.next() <= disk.bound


def test_the_bound_is_written_once_per_reserved_span() -> None:
    clock, disk = ManualClock(10_000_000), Disk()
    txns = started(clock, disk)
    for _ in range(95):
        txns.next()
        clock.advance(0.1)
    assert disk.writes == 1
    clock.advance(1.0)
    txns.next()
    assert disk.writes == 2


def test_releasing_lets_the_next_start_follow_physical_time() -> None:
    clock, disk = ManualClock(10_000_000), Disk()
    txns = started(clock, disk)
    last = txns.next()
    txns.release()
    assert disk.bound == last
    clock.advance(0.001)
    assert microseconds_of(started(clock, disk).next()) == clock.microseconds()
    # A clock that was released goes on working, and reserves again first.
    assert last < txns.next() <= disk.bound


def test_observing_pushes_the_clock_forward_and_never_back() -> None:
    clock, disk = ManualClock(10_000_000), Disk()
    txns = started(clock, disk)
    ahead = txn_at(12_000_000)
    txns.observe(ahead)
    assert txns.last == ahead
    txns.observe(5)
    assert txns.next() == ahead + 1


def test_a_txn_too_far_ahead_is_refused_and_changes_nothing() -> None:
    clock, disk = ManualClock(10_000_000), Disk()
    txns = started(clock, disk)
    first = txns.next()
    with pytest.raises(ClockSkew, match="60 s"):
        txns.observe(txn_at(10_000_000 + 60_000_001))
    assert txns.last == first
    txns.observe(txn_at(10_000_000 + 60_000_000))


def test_an_own_txn_is_observed_even_after_the_clock_was_set_far_back() -> None:
    clock = ManualClock(10_000_000_000)
    txns = started(clock, Disk())
    first = txns.next()
    clock.set_microseconds(1)
    txns.observe(first)
    assert txns.next() == first + (1 << 10)


def test_an_observed_txn_is_not_given_out_after_a_restart() -> None:
    clock, disk = ManualClock(10_000_000), Disk()
    seen = txn_at(40_000_000)
    started(clock, disk, reserve_seconds=1.0).observe(seen)
    assert started(clock, disk).next() > seen


steps = st.lists(
    st.one_of(
        st.just(("next", 0)),
        st.tuples(st.just("set"), st.integers(0, 200_000_000)),
        st.tuples(st.just("observe"), st.integers(0, 300_000_000)),
        st.just(("restart", 0)),
        st.just(("release", 0)),
        st.just(("fail", 0)),
        st.just(("mend", 0)),
    ),
    max_size=60,
)


@given(steps, st.floats(0, 5))
def test_txns_grow_and_stay_below_the_bound_whatever_happens(
    script: list[tuple[str, int]], reserve_seconds: float
) -> None:
    clock, disk = ManualClock(100_000_000), Disk()
    txns, greatest = started(clock, disk, reserve_seconds), 0
    for step, argument in script:
        try:
            if step == "next":
                txn = txns.next()
                assert txn > greatest
                greatest = txn
            elif step == "observe":
                txns.observe(txn_at(argument))
                greatest = max(greatest, txn_at(argument))
            elif step == "set":
                clock.set_microseconds(argument)
            elif step == "restart":
                txns = started(clock, disk, reserve_seconds)
            elif step == "release":
                txns.release()
            else:
                disk.broken = step == "fail"
        except (OSError, ClockSkew):
            pass
        assert greatest <= disk.bound
        assert txns.last >= greatest


def test_threads_never_get_the_same_txn() -> None:
    txns = TxnClock(SystemClock(), reserve_seconds=0.0)
    taken: list[list[int]] = [[] for _ in range(4)]

    def take(mine: list[int]) -> None:
        mine.extend(txns.next() for _ in range(2_000))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in taken)
    assert len({txn for mine in taken for txn in mine}) == 8_000


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(1_000_000)
    clock.sleep(1.5)
    assert (clock.microseconds(), clock.monotonic_seconds()) == (2_500_000, 1.5)
    clock.set_microseconds(0)
    assert (clock.microseconds(), clock.monotonic_seconds()) == (0, 1.5)
    with pytest.raises(ValueError, match="forwards"):
        clock.advance(-1)


def test_the_system_clock_counts_microseconds_since_1970() -> None:
    clock = SystemClock()
    assert clock.microseconds() > 1_700_000_000_000_000
    before = clock.monotonic_seconds()
    clock.sleep(0.0)
    assert clock.monotonic_seconds() >= before


def test_what_a_tablet_has_already_is_passed_however_far_ahead_it_is() -> None:
    clock = ManualClock()
    bounds: list[int] = []
    txns = TxnClock(clock, reserve=bounds.append)
    ahead = txn_at(clock.microseconds() + 3_600_000_000)
    with pytest.raises(ClockSkew):
        txns.observe(ahead)
    txns.pass_by(ahead)
    assert txns.next() > ahead
    assert bounds[0] >= ahead
    txns.pass_by(5)
    assert txns.last > ahead
