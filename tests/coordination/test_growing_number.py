"""A number on record only grows, whoever raises it, whatever becomes of a request."""

from __future__ import annotations

import pytest

from ebla.clock import ManualClock
from ebla.coordination.growing_number import GrowingNumber
from ebla.coordination.memory import Fault, MemoryCoordination, MemoryStore
from ebla.errors import Corruption, Unavailable


class Mark(GrowingNumber):
    NODE = "mark"
    CALLED = "a mark"


@pytest.fixture
def coordination() -> MemoryCoordination:
    return MemoryCoordination(MemoryStore(), ManualClock())


def test_it_begins_at_zero_and_is_never_lowered(coordination: MemoryCoordination) -> None:
    one, other = Mark(coordination), Mark(coordination)
    assert one.read() == 0
    one.raise_to(7)
    other.raise_to(5)
    assert one.read() == other.read() == 7
    other.raise_to(9)
    one.raise_to(8)
    assert one.read() == 9


def test_a_reply_that_is_lost_is_looked_for(coordination: MemoryCoordination) -> None:
    faults = iter([Fault.LOSE_REPLY])
    coordination.faults = lambda name, paths: next(faults, None) if name != "read" else None
    Mark(coordination).raise_to(3)
    assert Mark(coordination).read() == 3


def test_a_service_that_refuses_is_told_and_nothing_is_on_record(coordination: MemoryCoordination) -> None:
    coordination.faults = lambda name, paths: Fault.LOSE_REQUEST if name != "read" else None
    with pytest.raises(Unavailable, match="a mark cannot be put on record"):
        Mark(coordination).raise_to(3)
    assert Mark(coordination).read() == 0


def test_what_is_no_number_is_told(coordination: MemoryCoordination) -> None:
    coordination.put("mark", b"seven", None)
    with pytest.raises(Corruption, match="not a mark"):
        Mark(coordination).read()
