"""Pending files are let go when METADATA names them, or certainly never will."""

from __future__ import annotations

import pytest

import ebla
from ebla.tablet.flush.pending_files import PendingFiles


def test_files_are_let_go_when_their_fate_is_settled_and_stay_while_it_is_not() -> None:
    pending = PendingFiles(iter("abcd").__next__)
    begun: list[str] = []
    with pending.until_settled(begun):
        begun.append(pending.new_path("t"))
        assert pending.paths() == {*begun}
    assert not pending.paths()
    for error, stays in ((ebla.Conflict("no"), False), (ebla.OutcomeUnknown("?"), True), (KeyboardInterrupt(), True)):
        path = pending.new_path("t")
        with pytest.raises(type(error)), pending.until_settled([path]):
            raise error
        assert (path in pending.paths()) == stays
