"""Requests to tables and stores as a whole happen once, however often they are sent."""

from __future__ import annotations

from typing import Any

import pytest

from ebla.errors import Conflict, OutcomeUnknown, Unavailable
from ebla.rpc.serving.works import Works, wait_for


def outcome_of(works: Works, number: int, carry_out: Any, *, is_repeat: bool = False) -> Any:
    work = works.begin(("lane", number), is_repeat, lambda progress: carry_out())
    assert wait_for(work, 10)
    return work.outcome.result()


class Failing:
    """Raises an error as often as it is told, then answers."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error = error
        self.times = times
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "done"


def test_a_repetition_gets_the_reply_of_the_first() -> None:
    works, done = Works(), Failing(Conflict("never"), 0)
    assert [outcome_of(works, 1, done) for _ in range(3)] == ["done"] * 3
    assert done.calls == 1


def test_what_came_to_nothing_is_tried_again_by_its_repetition() -> None:
    """Else a client that waits for a master to come back is told again and again what was so at first."""
    works, failing = Works(), Failing(Unavailable("no majority yet"), 1)
    with pytest.raises(Unavailable):
        outcome_of(works, 1, failing)
    assert outcome_of(works, 1, failing, is_repeat=True) == "done"
    assert failing.calls == 2


def test_what_failed_for_good_or_may_have_happened_is_not_tried_again() -> None:
    for error in (Conflict("no"), OutcomeUnknown("who knows")):
        works, failing = Works(), Failing(error, 1)
        for _ in range(2):
            with pytest.raises(type(error)):
                outcome_of(works, 1, failing)
        assert failing.calls == 1


def test_a_repetition_of_what_is_not_known_here_is_not_carried_out() -> None:
    with pytest.raises(OutcomeUnknown):
        Works().begin(("lane", 1), True, lambda progress: None)
