"""The bound of the txns given out, on record: only its own writes move it, also those it never heard back from."""

from __future__ import annotations

import pytest

from ebla.clock import SystemClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.errors import StoreError
from ebla.tablet.opening import ClockBound


class Interrupted(MemoryCoordination):
    """Writes, and is interrupted before it can say so."""

    interrupts = 0

    def compare_and_set(self, path: str, value: bytes, version: int) -> int:
        written = super().compare_and_set(path, value, version)
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return written


def test_an_interrupt_in_the_middle_of_a_reservation_is_not_taken_for_another_process() -> None:
    coordination = Interrupted(MemoryStore(), SystemClock())
    bound = ClockBound(coordination, "server")
    bound.reserve(10)
    coordination.interrupts = 1
    with pytest.raises(KeyboardInterrupt):
        bound.reserve(20)
    bound.reserve(30)
    assert ClockBound(coordination, "server").txn == 30


def test_another_process_that_reserves_is_told() -> None:
    store = MemoryStore()
    bound, other = (ClockBound(MemoryCoordination(store, SystemClock()), "server") for _ in range(2))
    bound.reserve(10)
    with pytest.raises(StoreError, match="another process writes this store"):
        other.reserve(20)
