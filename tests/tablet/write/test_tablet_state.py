"""What a server keeps of one tablet: indices, which of them the log holds, up to where it may be read and flushed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebla.storage.log.log_entry import Reply
from ebla.tablet.write.tablet_state import TabletState


def test_indices_count_the_commits_of_the_tablet() -> None:
    state = TabletState()
    assert [state.allocate(txn) for txn in (10, 20, 35)] == [1, 2, 3]
    assert (state.index, state.committed_index) == (3, 0)


def test_the_safe_txn_is_below_every_commit_that_the_log_does_not_hold() -> None:
    state = TabletState()
    assert state.safe_txn(99) == 99
    state.allocate(10)
    state.allocate(20)
    assert state.safe_txn(99) == 9
    state.commit(1)
    assert (state.safe_txn(99), state.committed_index) == (19, 1)
    state.commit(2)
    assert (state.safe_txn(99), state.committed_index) == (99, 2)


def test_what_a_replay_finds_is_committed_and_later_indices_are_greater() -> None:
    state = TabletState()
    state.saw_index(7)
    state.saw_index(3)
    assert (state.index, state.committed_index, state.safe_txn(50)) == (7, 7, 50)
    assert state.allocate(60) == 8


@given(st.lists(st.booleans()))
def test_no_order_of_commits_lets_the_safe_txn_fall_or_pass_an_uncommitted_one(steps: list[bool]) -> None:
    state, txn, safe = TabletState(), 0, 0
    open_txns: list[int] = []
    for is_new in steps:
        if is_new:
            txn += 3
            state.allocate(txn)
            open_txns.append(txn)
        elif open_txns:
            open_txns.pop(0)
            state.commit(state.committed_index + 1)
        now = state.safe_txn(txn)
        assert now >= safe
        assert all(now < one for one in open_txns)
        assert state.committed_index <= state.index
        safe = now


def test_a_tablet_remembers_what_it_answered_and_nothing_else() -> None:
    state = TabletState()
    assert state.answered(("ada", 1)) is None
    state.remember([Reply("ada", 1, 10)])
    assert state.answered(("ada", 1)) == 10
    assert state.answered(("ada", 2)) is None
    assert state.answered(("bob", 1)) is None
