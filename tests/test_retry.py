"""Trying again: attempts and pauses."""

from __future__ import annotations

from ebla.clock import ManualClock
from ebla.retry import RACES, Retries


def test_attempts_are_numbered_and_a_pause_lies_between_two_of_them() -> None:
    clock = ManualClock()
    seen = [(attempt, clock.monotonic_seconds()) for attempt in Retries(3, 0.5).attempts(clock)]
    assert seen == [(0, 0.0), (1, 0.5), (2, 1.0)]


def test_no_pause_follows_the_attempt_that_succeeds() -> None:
    clock = ManualClock()
    for attempt in Retries(3, 0.5).attempts(clock):
        if attempt == 1:
            break
    assert clock.monotonic_seconds() == 0.5


def test_attempts_at_once_can_be_counted_again_and_again() -> None:
    assert list(RACES) == list(RACES) == [*range(8)]
