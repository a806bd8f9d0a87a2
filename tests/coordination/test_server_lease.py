"""Leases of servers: the holder stops before a watcher takes them, whatever the clocks do."""

from __future__ import annotations

import pytest

from ebla.clock import ManualClock
from ebla.coordination.memory import Fault, MemoryCoordination, MemoryStore
from ebla.coordination.server_lease import (
    MARGIN_SECONDS,
    RENEW_SECONDS,
    TTL_SECONDS,
    LeaseWatch,
    ServerLease,
    lease_path,
)
from ebla.coordination.service import LeaseHeld
from ebla.errors import OutcomeUnknown, StaleRoute


class World:
    """A server and a watcher, each with a clock of its own."""

    def __init__(self) -> None:
        self.nodes = MemoryStore()
        self.faults: list[Fault] = []
        self.own_clock, self.other_clock = ManualClock(), ManualClock()
        self.own = MemoryCoordination(self.nodes, self.own_clock, faults=self._fault)
        self.other = MemoryCoordination(self.nodes, self.other_clock)
        self.watch = LeaseWatch(self.other, self.other_clock)

    def _fault(self, operation: str, paths: tuple[str, ...]) -> Fault | None:
        return self.faults.pop() if self.faults and operation != "read" else None

    def lease(self, owner: str = "A@here") -> ServerLease:
        return ServerLease(self.own, "A", owner, in_background=False)

    def pass_seconds(self, seconds: float) -> None:
        self.own_clock.advance(seconds)
        self.other_clock.advance(seconds)


@pytest.fixture
def world() -> World:
    return World()


def test_a_lease_that_is_renewed_is_never_taken(world: World) -> None:
    lease = world.lease()
    for _ in range(20):
        assert not world.watch.is_over("A")
        world.pass_seconds(RENEW_SECONDS)
        lease.renew()
    assert lease.is_held
    lease.check_answer()
    lease.check_commit()


def test_a_silent_holder_has_stopped_when_its_lease_is_taken(world: World) -> None:
    lease = world.lease()
    assert not world.watch.is_over("A")
    for _ in range(round((TTL_SECONDS + MARGIN_SECONDS) / 0.1)):
        assert not world.watch.is_over("A")
        world.pass_seconds(0.1)
    world.pass_seconds(0.1)
    assert not lease.is_held
    assert world.watch.is_over("A")
    with pytest.raises(StaleRoute):
        lease.check_answer()
    with pytest.raises(OutcomeUnknown):
        lease.check_commit()


def test_a_holder_that_comes_back_late_does_not_get_its_lease_back(world: World) -> None:
    """As after SIGSTOP and SIGCONT: its clock stood still, so that it believes to be in time."""
    lease = world.lease()
    world.watch.is_over("A")
    world.other_clock.advance(TTL_SECONDS + MARGIN_SECONDS)
    assert world.watch.is_over("A")
    lease.renew()
    assert not lease.is_held
    assert world.watch.is_over("A")
    assert world.lease().number > lease.number


def test_the_watcher_counts_by_its_own_clock_alone(world: World) -> None:
    lease = world.lease()
    world.watch.is_over("A")
    world.own_clock.set_microseconds(0)
    world.other_clock.set_microseconds(1 << 60)
    assert not world.watch.is_over("A")
    assert lease.is_held


def test_a_renewal_of_unknown_outcome_is_settled_by_the_next(world: World) -> None:
    lease = world.lease()
    for fault in (Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.FAIL_BEFORE):
        world.faults = [fault]
        world.pass_seconds(RENEW_SECONDS)
        lease.renew()
        assert lease.is_held


def test_a_released_lease_is_over_at_once(world: World) -> None:
    lease = world.lease()
    lease.release()
    assert world.watch.is_over("A")
    assert world.watch.is_over("B")  # it never had one


def test_two_servers_with_one_uuid_are_told_apart(world: World) -> None:
    world.lease()
    with pytest.raises(LeaseHeld):
        world.lease("A@there")


def test_the_server_started_again_ends_its_own_old_lease_at_once(world: World) -> None:
    former = world.lease()
    again = world.lease()
    assert again.number > former.number
    former.renew()
    assert not former.is_held
    assert again.is_held


def test_taking_a_lease_that_is_renewed_at_that_moment_fails(world: World) -> None:
    lease = world.lease()
    world.watch.is_over("A")
    world.other_clock.advance(TTL_SECONDS + MARGIN_SECONDS)
    read = world.other.read

    def renewed_after_the_read(path: str) -> object:
        node = read(path)
        if path == lease_path("A"):
            lease.renew()
        return node

    world.other.read = renewed_after_the_read  # type: ignore[method-assign, assignment]
    assert not world.watch.is_over("A")
    assert lease.is_held
