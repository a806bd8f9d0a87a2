"""What every coordination service keeps, whichever it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ebla.coordination.service import (
    VALUE_BYTES_MAX,
    Check,
    CompareAndSet,
    CoordinationConflict,
    CoordinationService,
    Create,
    Delete,
    InvalidNode,
    LeaseHeld,
    LeaseLost,
    NodeExists,
    NodeMissing,
    NodeNotEmpty,
    VersionConflict,
)
from ebla.errors import Closed, Conflict, ReadOnly
from tests.contract.coordination_worlds import WORLDS, World, make_world

PATIENCE_SECONDS = 20


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = make_world(request.param, request)
    yield world
    world.close()


@pytest.fixture
def service(world: World) -> CoordinationService:
    return world.client()


class Bell:
    """A callback that can be waited for."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.paths: list[str] = []

    def __call__(self, path: str) -> None:
        self.paths.append(path)
        self.event.set()

    def wait(self) -> None:
        assert self.event.wait(PATIENCE_SECONDS), "the watch did not fire"
        self.event.clear()


# --- nodes ---------------------------------------------------------------------------------------


def test_what_was_created_can_be_read_by_every_client(world: World, service: CoordinationService) -> None:
    version = service.create("tables/a", b"\0value\xff")
    for client in (service, world.client(), world.reader()):
        node = client.read("tables/a")
        assert node is not None
        assert (node.value, node.version) == (b"\0value\xff", version)


def test_a_missing_node_reads_as_none(service: CoordinationService) -> None:
    service.create("a/b", b"")
    assert service.read("a") is None
    assert service.read("a/b/c") is None


def test_creating_twice_is_refused_and_changes_nothing(service: CoordinationService) -> None:
    service.create("a", b"1")
    with pytest.raises(NodeExists):
        service.create("a", b"2")
    assert service.read("a").value == b"1"


def test_compare_and_set_gives_a_greater_version(service: CoordinationService) -> None:
    version = service.create("a", b"1")
    newer = service.compare_and_set("a", b"2", version)
    assert newer > version
    assert (service.read("a").value, service.read("a").version) == (b"2", newer)


def test_compare_and_set_to_the_same_value_is_a_change_too(service: CoordinationService) -> None:
    version = service.create("a", b"1")
    assert service.compare_and_set("a", b"1", version) > version


def test_compare_and_set_of_a_stale_version_is_refused(service: CoordinationService) -> None:
    version = service.create("a", b"1")
    newer = service.compare_and_set("a", b"2", version)
    for wrong in (version, newer + 1, -1):
        with pytest.raises(VersionConflict):
            service.compare_and_set("a", b"3", wrong)
    assert service.read("a").value == b"2"


def test_a_missing_node_cannot_be_set_or_deleted(service: CoordinationService) -> None:
    with pytest.raises(NodeMissing):
        service.compare_and_set("a", b"", 1)
    with pytest.raises(NodeMissing):
        service.delete("a", 1)


def test_delete_removes_the_node_of_the_expected_version_only(service: CoordinationService) -> None:
    version = service.create("a", b"1")
    newer = service.compare_and_set("a", b"2", version)
    with pytest.raises(VersionConflict):
        service.delete("a", version)
    service.delete("a", newer)
    assert service.read("a") is None
    service.create("a", b"again")
    assert service.read("a").value == b"again"


def test_a_node_with_others_below_it_cannot_be_deleted(service: CoordinationService) -> None:
    version = service.create("a", b"")
    below = service.create("a/b/c", b"")
    service.create("a0", b"a neighbour in the order, not below")
    with pytest.raises(NodeNotEmpty):
        service.delete("a", version)
    service.delete("a/b/c", below)
    service.delete("a", version)


def test_errors_of_a_node_are_conflicts_that_name_it(service: CoordinationService) -> None:
    with pytest.raises(CoordinationConflict, match="a/b") as raised:
        service.compare_and_set("a/b", b"", 1)
    assert isinstance(raised.value, Conflict)
    assert raised.value.path == "a/b"


def test_list_gives_the_nodes_directly_below_sorted(service: CoordinationService) -> None:
    for path in ("t/b", "t/a", "t/a/below", "t/c/only-below", "t0", "s", "t"):
        service.create(path, b"")
    assert service.list("t") == ["t/a", "t/b"]
    assert service.list("t/c") == ["t/c/only-below"]
    assert service.list("") == ["s", "t", "t0"]
    assert service.list("nothing") == []


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", ".", "a/..", "a/./b", "a\0b", "a\nb", b"a", None])
def test_a_path_that_cannot_be_is_refused(service: CoordinationService, path: str) -> None:
    for use in (
        lambda: service.read(path),
        lambda: service.create(path, b""),
        lambda: service.delete(path, 1),
        lambda: service.lease(path, "me", 1),
    ):
        with pytest.raises(InvalidNode):
            use()


def test_a_value_that_cannot_be_is_refused(service: CoordinationService) -> None:
    service.create("largest", bytes(VALUE_BYTES_MAX))
    assert len(service.read("largest").value) == VALUE_BYTES_MAX
    with pytest.raises(InvalidNode):
        service.create("too-large", bytes(VALUE_BYTES_MAX + 1))
    with pytest.raises(InvalidNode):
        service.create("text", "text")
    assert service.list("") == ["largest"]


def test_names_need_not_be_ascii(service: CoordinationService) -> None:
    service.create("tables/été 漢", b"1")
    assert service.list("tables") == ["tables/été 漢"]
    assert service.read("tables/été 漢").value == b"1"


# --- multi ---------------------------------------------------------------------------------------


def test_a_multi_does_all(service: CoordinationService) -> None:
    old = service.create("old", b"")
    kept = service.create("kept", b"1")
    results = service.multi(
        [Create("new", b"n"), CompareAndSet("kept", b"2", kept), Delete("old", old), Check("new", 1)]
    )
    assert results == [service.read("new").version, service.read("kept").version, None, None]
    assert service.read("new").value == b"n"
    assert service.read("kept").value == b"2"
    assert service.read("old") is None


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (Create("there", b""), NodeExists),
        (CompareAndSet("there", b"", 99), VersionConflict),
        (CompareAndSet("missing", b"", 1), NodeMissing),
        (Delete("there", 99), VersionConflict),
        (Check("there", 99), VersionConflict),
        (Check("missing", 1), NodeMissing),
    ],
)
def test_a_multi_with_one_failing_operation_does_nothing(
    service: CoordinationService, failing: Create | CompareAndSet | Delete | Check, error: type[Exception]
) -> None:
    version = service.create("there", b"1")
    gone = service.create("gone", b"1")
    with pytest.raises(error):
        service.multi([Create("new", b""), CompareAndSet("there", b"2", version), Delete("gone", gone), failing])
    assert service.read("new") is None
    assert (service.read("there").value, service.read("there").version) == (b"1", version)
    assert service.read("gone") is not None


def test_operations_of_a_multi_see_those_before_them(service: CoordinationService) -> None:
    version = service.create("a", b"1")
    service.multi([Delete("a", version), Create("a", b"2"), Create("a/b", b"")])
    assert service.read("a").value == b"2"
    with pytest.raises(NodeNotEmpty):
        service.multi([Create("c", b""), Create("c/d", b""), Delete("c", 1)])
    assert service.read("c") is None


def test_a_multi_of_nothing_is_refused(service: CoordinationService) -> None:
    with pytest.raises(InvalidNode):
        service.multi([])


def test_of_many_threads_that_compare_and_set_one_wins_each_time(world: World, service: CoordinationService) -> None:
    service.create("counter", b"0")
    clients = [world.client() for _ in range(2)] + [service]

    def count(client: CoordinationService) -> int:
        conflicts = 0
        for _ in range(20):
            while True:
                node = client.read("counter")
                try:
                    client.compare_and_set("counter", str(int(node.value) + 1).encode(), node.version)
                    break
                except VersionConflict:
                    conflicts += 1
        return conflicts

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(count, clients * 2))
    assert service.read("counter").value == b"120"


# --- watches -------------------------------------------------------------------------------------

CHANGES: list[Callable[[CoordinationService], object]] = [
    lambda client: client.create("tables/b", b""),
    lambda client: client.compare_and_set("tables/a", b"2", client.read("tables/a").version),
    lambda client: client.delete("tables/a", client.read("tables/a").version),
    lambda client: client.create("tables/a/below/far", b""),
    lambda client: client.multi([Create("elsewhere", b""), Create("tables/c", b"")]),
    # Back to what it was before anybody looked: a change all the same.
    lambda client: client.multi([Create("tables/d", b""), Delete("tables/d", 1)]),
]


@pytest.mark.parametrize("change", range(len(CHANGES)))
@pytest.mark.parametrize("whose", ["own", "other client's"])
def test_a_watch_fires_after_a_change_at_or_below_its_path(
    world: World, service: CoordinationService, change: int, whose: str
) -> None:
    service.create("tables/a", b"1")
    bell = Bell()
    service.watch("tables", bell)
    CHANGES[change](service if whose == "own" else world.client())
    bell.wait()
    assert set(bell.paths) == {"tables"}


def test_a_watch_of_everything_fires_for_anything(world: World, service: CoordinationService) -> None:
    bell = Bell()
    service.watch("", bell)
    world.client().create("a/b/c", b"")
    bell.wait()


def test_a_watch_fires_again_for_every_later_change(world: World, service: CoordinationService) -> None:
    bell = Bell()
    service.watch("a", bell)
    other = world.client()
    version = other.create("a", b"")
    bell.wait()
    for _ in range(3):
        version = other.compare_and_set("a", b"", version)
        bell.wait()


def test_a_watch_through_a_reader_fires(world: World) -> None:
    reader = world.reader()
    bell = Bell()
    reader.watch("a", bell)
    world.client().create("a", b"")
    bell.wait()


def test_a_cancelled_watch_does_not_fire(service: CoordinationService) -> None:
    cancelled, other = Bell(), Bell()
    watch = service.watch("a", cancelled)
    service.watch("a", other)
    watch.cancel()
    watch.cancel()
    service.create("a", b"")
    other.wait()
    assert cancelled.paths == []


def test_a_watch_cancelled_by_another_on_the_way_does_not_fire(service: CoordinationService) -> None:
    fired: list[str] = []
    bell = Bell()
    watches = {}

    def cancelling(name: str, other: str) -> Callable[[str], None]:
        def callback(path: str) -> None:
            fired.append(name)
            watches[other].cancel()

        return callback

    watches["one"] = service.watch("a", cancelling("one", "two"))
    watches["two"] = service.watch("a", cancelling("two", "one"))
    service.watch("a", bell)
    version = service.create("a", b"")
    bell.wait()
    service.compare_and_set("a", b"", version)
    bell.wait()
    assert len(set(fired)) == 1


def test_a_watch_may_use_the_service_and_sees_the_change(service: CoordinationService) -> None:
    seen: list[Any] = []
    done = threading.Event()

    def look(path: str) -> None:
        seen.append(service.read("a"))
        if service.read("a") is not None and service.read("answer") is None:
            service.create("answer", b"")
        done.set()

    service.watch("a", look)
    service.create("a", b"1")
    assert done.wait(PATIENCE_SECONDS)
    assert seen[-1].value == b"1"


def test_a_watch_that_raises_does_not_stop_the_others(service: CoordinationService) -> None:
    def broken(path: str) -> None:
        raise RuntimeError("planted")

    bell = Bell()
    service.watch("a", broken)
    service.watch("a", bell)
    version = service.create("a", b"")
    bell.wait()
    service.compare_and_set("a", b"", version)
    bell.wait()


# --- leases --------------------------------------------------------------------------------------


def test_a_lease_is_held_by_one_owner_at_a_time(world: World, service: CoordinationService) -> None:
    lease = service.lease("master", "one", 10)
    assert lease.is_held
    assert lease.path == "master"
    with pytest.raises(LeaseHeld, match="one") as raised:
        world.client().lease("master", "two", 10)
    assert raised.value.owner == "one"


def test_a_released_lease_can_be_taken_at_once_with_a_greater_epoch(world: World, service: CoordinationService) -> None:
    first = service.lease("master", "one", 10)
    first.release()
    first.release()
    assert not first.is_held
    second = world.client().lease("master", "two", 10)
    assert second.epoch > first.epoch
    with pytest.raises(LeaseLost):
        first.renew()


def test_an_expired_lease_can_be_taken_over_with_a_greater_epoch(world: World, service: CoordinationService) -> None:
    first = service.lease("master", "one", 10)
    world.pass_time(10.5)
    assert not first.is_held
    second = world.client().lease("master", "two", 10)
    assert second.epoch > first.epoch
    assert second.is_held
    with pytest.raises(LeaseLost):
        first.renew()
    first.release()
    assert second.is_held
    second.renew()


def test_a_renewed_lease_lasts_longer(world: World, service: CoordinationService) -> None:
    lease = service.lease("master", "one", 10)
    for _ in range(3):
        world.pass_time(6)
        lease.renew()
    world.pass_time(6)
    assert lease.is_held
    with pytest.raises(LeaseHeld):
        world.client().lease("master", "two", 10)


def test_a_lease_that_ran_out_cannot_be_renewed_even_if_nobody_took_it(
    world: World, service: CoordinationService
) -> None:
    lease = service.lease("master", "one", 10)
    world.pass_time(11)
    with pytest.raises(LeaseLost):
        lease.renew()
    assert service.lease("master", "one", 10).epoch > lease.epoch


def test_an_owner_may_take_its_own_lease_again_and_the_former_one_is_lost(service: CoordinationService) -> None:
    first = service.lease("master", "one", 10)
    second = service.lease("master", "one", 10)
    assert second.epoch > first.epoch
    with pytest.raises(LeaseLost):
        first.renew()
    second.renew()


def test_epochs_grow_over_many_holders(world: World) -> None:
    epochs = []
    for owner in ("a", "b", "a", "c"):
        lease = world.client().lease("master", owner, 10)
        epochs.append(lease.epoch)
        if owner == "b":
            world.pass_time(20)
        else:
            lease.release()
    assert epochs == sorted(set(epochs))


def test_taking_a_lease_fires_a_watch(world: World, service: CoordinationService) -> None:
    bell = Bell()
    service.watch("master", bell)
    lease = world.client().lease("master", "one", 10)
    bell.wait()
    lease.release()
    bell.wait()


@pytest.mark.parametrize(("owner", "ttl_seconds"), [("", 1), ("me", 0), ("me", -1)])
def test_a_lease_needs_an_owner_and_a_time(service: CoordinationService, owner: str, ttl_seconds: float) -> None:
    with pytest.raises(InvalidNode):
        service.lease("master", owner, ttl_seconds)


# --- life ----------------------------------------------------------------------------------------


def test_a_reader_changes_nothing(world: World, service: CoordinationService) -> None:
    service.create("a", b"1")
    reader = world.reader()
    for use in (
        lambda: reader.create("b", b""),
        lambda: reader.compare_and_set("a", b"2", 1),
        lambda: reader.delete("a", 1),
        lambda: reader.multi([Check("a", 1)]),
        lambda: reader.lease("l", "me", 1),
    ):
        with pytest.raises(ReadOnly):
            use()
    assert service.list("") == ["a"]
    assert reader.read("a").value == b"1"


def test_a_closed_client_refuses_everything_and_the_others_go_on(world: World, service: CoordinationService) -> None:
    other = world.client()
    service.create("a", b"1")
    bell, others_bell = Bell(), Bell()
    service.watch("a", bell)
    other.watch("a", others_bell)
    service.close()
    service.close()
    for use in (
        lambda: service.read("a"),
        lambda: service.create("b", b""),
        lambda: service.list(""),
        lambda: service.watch("a", bell),
        lambda: service.lease("l", "me", 1),
    ):
        with pytest.raises(Closed):
            use()
    other.compare_and_set("a", b"2", other.read("a").version)
    others_bell.wait()
    assert bell.paths == []


def test_a_service_is_closed_by_with(world: World) -> None:
    with world.client() as service:
        service.create("a", b"")
    with pytest.raises(Closed):
        service.read("a")
