"""The sequencer as scripts of events: what is allocated, committed and stable, and who is told."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import EblaError, LogFailed, TimedOut
from ebla.tablet.write.sequencer import Sequencer


def state(sequencer: Sequencer) -> tuple[int, int, int]:
    return sequencer.allocated, sequencer.committed, sequencer.stable


def allocated(*txns: int) -> Sequencer:
    sequencer = Sequencer()
    for txn in txns:
        sequencer.allocate(txn)
    return sequencer


class TestProgress:
    def test_it_begins_where_the_log_ended(self) -> None:
        assert state(Sequencer(7)) == (7, 7, 7)

    def test_without_dependencies_what_is_committed_is_stable(self) -> None:
        sequencer = allocated(1, 2, 3)
        assert state(sequencer) == (3, 0, 0)
        sequencer.commit(2)
        assert state(sequencer) == (3, 2, 2)

    def test_txns_are_allocated_and_committed_in_order(self) -> None:
        sequencer = allocated(5)
        with pytest.raises(AssertionError):
            sequencer.allocate(5)
        with pytest.raises(AssertionError):
            sequencer.commit(6)
        sequencer.commit(5)
        with pytest.raises(AssertionError):
            sequencer.commit(4)


class TestFutureDependencies:
    def test_a_txn_and_all_after_it_wait_for_its_dependencies(self) -> None:
        sequencer = allocated(1, 2, 3)
        sequencer.add_future_dependencies(2, 1)
        sequencer.commit(3)
        assert state(sequencer) == (3, 3, 1)
        sequencer.resolve_future_dependencies(2, 1)
        assert sequencer.stable == 3

    def test_all_of_several_dependencies_must_be_resolved(self) -> None:
        sequencer = allocated(1)
        sequencer.add_future_dependencies(1, 2)
        sequencer.add_future_dependencies(1, 1)
        sequencer.commit(1)
        sequencer.resolve_future_dependencies(1, 2)
        assert sequencer.stable == 0
        sequencer.resolve_future_dependencies(1, 1)
        assert sequencer.stable == 1

    def test_a_dependency_on_a_later_txn_is_met_when_that_is_committed(self) -> None:
        sequencer = allocated(1, 2, 3)
        sequencer.add_future_dependencies(1, 1)
        sequencer.commit(2)
        sequencer.resolve_future_dependencies(1, 1, future_txn=3)
        assert sequencer.stable == 0
        sequencer.commit(3)
        assert sequencer.stable == 3

    def test_of_several_later_txns_the_latest_counts(self) -> None:
        sequencer = allocated(1, 2, 3)
        sequencer.add_future_dependencies(1, 2)
        sequencer.commit(1)
        sequencer.resolve_future_dependencies(1, 1, future_txn=3)
        sequencer.resolve_future_dependencies(1, 1, future_txn=2)
        sequencer.commit(2)
        assert sequencer.stable == 0
        sequencer.commit(3)
        assert sequencer.stable == 3

    def test_dependencies_resolved_before_the_commit_do_not_hold_it_back(self) -> None:
        sequencer = allocated(1)
        sequencer.add_future_dependencies(1, 1)
        sequencer.resolve_future_dependencies(1, 1)
        sequencer.commit(1)
        assert sequencer.stable == 1

    def test_the_first_open_dependency_of_many_decides(self) -> None:
        sequencer = allocated(1, 2, 3, 4)
        for txn in (2, 4):
            sequencer.add_future_dependencies(txn, 1)
        sequencer.commit(4)
        assert sequencer.stable == 1
        sequencer.resolve_future_dependencies(2, 1)
        assert sequencer.stable == 3

    def test_more_resolved_than_announced_is_a_mistake(self) -> None:
        sequencer = allocated(1)
        sequencer.add_future_dependencies(1, 1)
        with pytest.raises(AssertionError):
            sequencer.resolve_future_dependencies(1, 2)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["allocate", "commit", "add", "resolve", "resolve later"]), st.integers(0, 5)),
    max_size=40,
)


@given(EVENTS)
def test_stable_never_passes_an_open_dependency_never_goes_back_and_gets_there(events: list[tuple[str, int]]) -> None:
    """Any script of events, against a definition that looks at every txn."""
    sequencer = Sequencer()
    open_: dict[int, int] = {}
    later: dict[int, int] = {}
    allocated_, committed, stable = 0, 0, 0

    def expected() -> int:
        txn = 0
        while txn < committed and not open_.get(txn + 1) and later.get(txn + 1, 0) <= committed:
            txn += 1
        return txn

    for event, number in events:
        if event == "allocate":
            allocated_ += 1
            sequencer.allocate(allocated_)
        elif event == "commit":
            committed = min(allocated_, committed + number)
            sequencer.commit(committed)
        elif event == "add" and allocated_ > committed:
            # As in the store: announced under the commit lock, before the txn can be committed.
            sequencer.add_future_dependencies(allocated_, 1)
            open_[allocated_] = open_.get(allocated_, 0) + 1
        elif event.startswith("resolve") and any(open_.values()):
            txn = next(txn for txn, count in open_.items() if count)
            future = min(allocated_, txn + number) if event == "resolve later" and number else 0
            sequencer.resolve_future_dependencies(txn, 1, future)
            open_[txn] -= 1
            later[txn] = max(future, later.get(txn, 0))
        assert sequencer.stable >= stable
        stable = sequencer.stable
        assert state(sequencer) == (allocated_, committed, expected())


class TestWaiting:
    def test_callbacks_run_once_in_order_of_their_txns(self) -> None:
        sequencer = allocated(1, 2, 3)
        told: list[Any] = []
        for txn in (3, 1, 2, 1):
            sequencer.add_commit_callback(txn, lambda error, txn=txn: told.append((txn, error)))
        assert told == []
        sequencer.commit(2)
        assert told == [(1, None), (1, None), (2, None)]
        sequencer.commit(3)
        assert told[3:] == [(3, None)]

    def test_a_callback_for_what_is_committed_runs_at_once(self) -> None:
        told: list[Any] = []
        Sequencer(5).add_commit_callback(5, told.append)
        assert told == [None]

    def test_a_callback_may_use_the_sequencer(self) -> None:
        sequencer = allocated(1, 2)
        seen: list[int] = []
        sequencer.add_commit_callback(1, lambda _: sequencer.commit(2))
        sequencer.add_commit_callback(2, lambda _: seen.append(sequencer.committed))
        sequencer.commit(1)
        assert seen == [2]

    def test_waiters_wake_when_their_txn_is_committed_and_when_it_is_stable(self) -> None:
        sequencer = allocated(1, 2)
        sequencer.add_future_dependencies(1, 1)
        woken: list[str] = []
        threads = [
            threading.Thread(target=lambda: (sequencer.wait_committed(2), woken.append("committed"))),
            threading.Thread(target=lambda: (sequencer.wait_stable(2), woken.append("stable"))),
        ]
        for thread in threads:
            thread.start()
        sequencer.commit(2)
        threads[0].join()
        assert woken == ["committed"]
        sequencer.resolve_future_dependencies(1, 1)
        threads[1].join()
        assert woken == ["committed", "stable"]

    def test_a_wait_that_is_over_returns_even_after_a_failure(self) -> None:
        sequencer = allocated(1, 2)
        sequencer.commit(1)
        sequencer.fail(LogFailed("the disk is full"))
        sequencer.wait_committed(1)
        sequencer.wait_stable(1)
        assert (sequencer.committed, sequencer.stable) == (1, 1)

    def test_a_wait_that_takes_too_long_says_so(self) -> None:
        with pytest.raises(TimedOut, match=r"0\.0 s"):
            allocated(1).wait_committed(1, timeout_seconds=0.0)


class TestFailure:
    def test_everybody_who_waits_gets_the_error(self) -> None:
        sequencer = allocated(1, 2)
        sequencer.commit(1)
        told: list[Any] = []
        sequencer.add_commit_callback(2, told.append)
        raised: list[EblaError] = []

        def wait() -> None:
            try:
                sequencer.wait_committed(2)
            except EblaError as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        failure = LogFailed("the disk is full")
        sequencer.fail(failure)
        thread.join()
        assert raised == [failure]
        assert told == [failure]

    def test_who_comes_later_gets_it_too(self) -> None:
        sequencer = allocated(1)
        failure = LogFailed("the disk is full")
        sequencer.fail(failure)
        sequencer.fail(LogFailed("and again"))
        with pytest.raises(LogFailed, match="full"):
            sequencer.wait_stable(1)
        told: list[Any] = []
        sequencer.add_commit_callback(1, told.append)
        assert told == [failure]
