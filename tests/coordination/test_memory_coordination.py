"""The twin does what a network and a crash do, and only when it is told to."""

from __future__ import annotations

import pytest

from ebla.clock import ManualClock
from ebla.coordination.memory import Fault, MemoryCoordination, MemoryStore
from ebla.coordination.service import LeaseHeld, LeaseLost, VersionConflict
from ebla.errors import Closed, OutcomeUnknown, Unavailable


class Script:
    """Faults for the coming writes, one after the other."""

    def __init__(self, *faults: Fault | None) -> None:
        self.faults = list(faults)

    def __call__(self, name: str, paths: tuple[str, ...]) -> Fault | None:
        if name in ("read", "list", "watch"):
            return None
        return self.faults.pop(0) if self.faults else None


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def service(store: MemoryStore, clock: ManualClock) -> MemoryCoordination:
    return MemoryCoordination(store, clock)


def test_a_request_that_fails_before_is_not_carried_out(service: MemoryCoordination) -> None:
    service.faults = Script(Fault.FAIL_BEFORE)
    with pytest.raises(Unavailable):
        service.create("a", b"")
    assert service.read("a") is None


def test_a_lost_request_and_a_lost_reply_look_alike(service: MemoryCoordination) -> None:
    service.faults = Script(Fault.LOSE_REQUEST, Fault.LOSE_REPLY)
    with pytest.raises(OutcomeUnknown) as request:
        service.create("a", b"")
    assert service.read("a") is None
    with pytest.raises(OutcomeUnknown) as reply:
        service.create("a", b"")
    assert service.read("a") is not None
    assert str(request.value) == str(reply.value)


def test_a_delayed_request_lands_later_if_it_still_fits(service: MemoryCoordination, store: MemoryStore) -> None:
    version = service.create("a", b"1")
    service.faults = Script(Fault.DELAY)
    with pytest.raises(OutcomeUnknown):
        service.compare_and_set("a", b"2", version)
    assert service.read("a").value == b"1"
    assert store.deliver() == 1
    assert service.read("a").value == b"2"
    assert store.deliver() == 0


def test_repeating_a_delayed_compare_and_set_keeps_it_from_landing_twice(
    service: MemoryCoordination, store: MemoryStore
) -> None:
    version = service.create("a", b"1")
    service.faults = Script(Fault.DELAY)
    with pytest.raises(OutcomeUnknown):
        service.compare_and_set("a", b"2", version)
    newer = service.compare_and_set("a", b"2", version)
    service.compare_and_set("a", b"3", newer)
    assert store.deliver() == 0
    assert service.read("a").value == b"3"


def test_a_read_that_is_told_to_fail_is_unavailable(service: MemoryCoordination) -> None:
    service.faults = lambda name, paths: Fault.LOSE_REPLY
    for use in (lambda: service.read("a"), lambda: service.list(""), lambda: service.watch("a", print)):
        with pytest.raises(Unavailable):
            use()


def test_what_a_crashed_client_wrote_survives_and_its_watches_do_not(
    service: MemoryCoordination, store: MemoryStore, clock: ManualClock
) -> None:
    calls: list[str] = []
    service.create("a", b"1")
    service.watch("a", calls.append)
    service.crash()
    with pytest.raises(Closed):
        service.read("a")
    other = MemoryCoordination(store, clock)
    other.compare_and_set("a", b"2", other.read("a").version)
    assert calls == []


def test_a_client_can_die_on_the_way(service: MemoryCoordination, store: MemoryStore) -> None:
    def die(name: str, paths: tuple[str, ...]) -> None:
        service.crash()

    service.faults = die
    with pytest.raises(Closed):
        service.create("a", b"")
    assert store.nodes == {}


# --- leases under faults -------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY])
@pytest.mark.parametrize("before", [0, 1])
def test_a_lease_is_taken_though_replies_are_lost(
    service: MemoryCoordination, store: MemoryStore, fault: Fault, before: int
) -> None:
    for _ in range(before):
        service.lease("l", "earlier", 1).release()
    service.faults = Script(fault, fault)
    lease = service.lease("l", "me", 1)
    store.deliver()
    assert lease.is_held
    lease.renew()
    with pytest.raises(LeaseHeld, match="me"):
        service.lease("l", "other", 1)


def test_a_lease_whose_taking_stays_unknown_says_so(service: MemoryCoordination) -> None:
    service.faults = Script(*[Fault.LOSE_REQUEST] * 100)
    with pytest.raises(OutcomeUnknown):
        service.lease("l", "me", 1)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY])
def test_a_lease_is_renewed_though_replies_are_lost(
    service: MemoryCoordination, store: MemoryStore, clock: ManualClock, fault: Fault
) -> None:
    lease = service.lease("l", "me", 10)
    for _ in range(3):
        clock.advance(6)
        service.faults = Script(fault, fault)
        lease.renew()
        store.deliver()
    assert lease.is_held
    lease.release()
    service.lease("l", "other", 1)


def test_a_renewal_that_stays_unknown_does_not_lengthen_the_holding(
    service: MemoryCoordination, clock: ManualClock
) -> None:
    lease = service.lease("l", "me", 10)
    clock.advance(6)
    service.faults = Script(*[Fault.LOSE_REPLY] * 100)
    with pytest.raises(OutcomeUnknown):
        lease.renew()
    assert lease.is_held
    clock.advance(5)
    assert not lease.is_held


def test_a_lease_taken_over_after_the_time_of_day_jumped_is_lost_at_the_next_renewal(
    service: MemoryCoordination, clock: ManualClock
) -> None:
    lease = service.lease("l", "me", 10)
    clock.set_microseconds(clock.microseconds() + 60_000_000)
    other = service.lease("l", "other", 10)
    assert lease.is_held  # by its own steady clock: this is what epochs are for
    assert other.epoch > lease.epoch
    with pytest.raises(LeaseLost):
        lease.renew()
    assert not lease.is_held


def test_a_released_lease_stays_with_its_new_holder_when_a_delayed_renewal_arrives(
    service: MemoryCoordination, store: MemoryStore
) -> None:
    lease = service.lease("l", "me", 10)
    service.faults = Script(*[Fault.DELAY] * 8)
    with pytest.raises(OutcomeUnknown):
        lease.renew()
    lease.release()
    other = service.lease("l", "other", 10)
    assert store.deliver() == 0
    other.renew()


def test_a_conflict_is_a_conflict_whatever_the_faults(service: MemoryCoordination) -> None:
    service.create("a", b"")
    service.faults = Script(Fault.LOSE_REPLY)
    with pytest.raises(VersionConflict):
        service.compare_and_set("a", b"", 9)
