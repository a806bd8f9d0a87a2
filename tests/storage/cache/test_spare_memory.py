"""Spare memory is given back when the process has grown by much, and not all the time."""

from __future__ import annotations

from ebla.clock import ManualClock
from ebla.storage.cache.spare_memory import MUCH_BYTES, PAUSE_SECONDS, TRIM_BYTES, TRIM_PAUSE_SECONDS, SpareMemory


class World:
    """A process that is as large as the test says, and what was tried to make it smaller."""

    def __init__(self, resident: int | None = 500 << 20, arrow_spare: int = 0) -> None:
        self.clock = ManualClock()
        self.resident = resident
        self.arrow_spare = arrow_spare
        self.done: list[str] = []
        self.spare = SpareMemory(self.clock, lambda: self.resident, self.release, lambda: self.done.append("trim"))
        self.spare.look()

    def release(self) -> None:
        self.done.append("release")
        if self.resident is not None:
            self.resident -= self.arrow_spare

    def grow(self, size_bytes: int) -> list[str]:
        assert self.resident is not None
        self.resident += size_bytes
        return self.look()

    def look(self) -> list[str]:
        self.done = []
        self.spare.look()
        return self.done


def test_arrow_gives_back_when_the_process_has_grown_by_much() -> None:
    world = World()
    assert world.grow(MUCH_BYTES - 1) == []
    assert world.grow(1) == ["release"]
    world.clock.advance(PAUSE_SECONDS)
    assert world.grow(MUCH_BYTES - 1) == [], "counted from what it was after the last time"


def test_it_is_not_tried_again_at_once() -> None:
    world = World(arrow_spare=MUCH_BYTES)
    assert world.grow(MUCH_BYTES) == ["release"]
    assert world.grow(MUCH_BYTES) == []
    world.clock.advance(PAUSE_SECONDS)
    assert world.look() == ["release"]


def test_the_rest_is_given_back_if_that_was_not_enough() -> None:
    world = World(arrow_spare=MUCH_BYTES)
    assert world.grow(TRIM_BYTES + MUCH_BYTES - 1) == ["release"]
    world.clock.advance(PAUSE_SECONDS)
    assert world.grow(MUCH_BYTES + 1) == ["release", "trim"]
    world.clock.advance(PAUSE_SECONDS)
    assert world.grow(TRIM_BYTES + MUCH_BYTES) == ["release"], "some seconds after the last time"
    world.clock.advance(TRIM_PAUSE_SECONDS)
    assert world.look() == ["trim"]


def test_who_has_somebody_waiting_does_only_what_is_quick() -> None:
    world = World()
    assert world.resident is not None
    world.resident += TRIM_BYTES + MUCH_BYTES
    world.spare.look(quickly=True)
    assert world.done == ["release"]
    world.clock.advance(PAUSE_SECONDS)
    assert world.look() == ["trim"]


def test_growth_is_counted_from_the_least_that_it_was() -> None:
    world = World()
    assert world.grow(-MUCH_BYTES) == []
    assert world.grow(MUCH_BYTES) == ["release"]


def test_nothing_is_tried_where_the_system_does_not_tell_the_size() -> None:
    world = World(None)
    assert world.look() == []
    world.spare.give_back()
    assert world.done == ["release", "trim"]


def test_the_allocators_take_the_calls() -> None:
    spare = SpareMemory(ManualClock())
    spare.look()
    spare.give_back()
