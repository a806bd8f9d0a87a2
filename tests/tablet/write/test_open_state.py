"""Whether a store is open here, and for what: each state refuses with its own error."""

from __future__ import annotations

import pytest

from ebla.errors import Closed, ReadOnly
from ebla.tablet.write.open_state import OpenState


def test_a_store_without_a_log_is_read_only() -> None:
    state = OpenState()
    state.check_open()
    with pytest.raises(ReadOnly):
        state.writable_log()


def test_a_store_that_is_closing_is_closed_to_readers_and_writers() -> None:
    state = OpenState()
    state.is_closing = True
    with pytest.raises(Closed, match="open it again"):
        state.check_open()
    with pytest.raises(Closed):
        state.writable_log()


def test_a_forked_process_is_told_whose_the_store_is() -> None:
    state = OpenState()
    state.is_closing = state.is_inherited = True
    with pytest.raises(Closed, match="forked"):
        state.check_open()
