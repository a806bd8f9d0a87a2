"""Assignment, placement and cleaning: durable before anything is asked for, replaced in time, deleted when late."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ebla.master.messages import CreateTablet, DeleteTablet, RemovedTablet
from ebla.master.placement import Loads, choose_replicas
from ebla.master.settings import MasterSettings
from ebla.master.writes import UndeleteTable
from ebla.metadata.values.clone import cloned
from tests.master.master_world import MasterWorld

SETTINGS = MasterSettings(assignment_timeout_seconds=10.0, silent_after_seconds=60.0, retention_seconds=0.0)


def test_request_goes_out_only_after_creating_is_durable() -> None:
    world = MasterWorld()
    world.create()
    world.join("s1")
    operation = world.master.round()
    write = next(operation)
    assert world.requests() == []
    answer = world.durable.write(write)
    assert world.requests() == []
    with pytest.raises(StopIteration):
        operation.send(answer)
    ((server, request),) = world.requests()
    assert server == "s1"
    assert isinstance(request, CreateTablet)
    assert request.epoch == world.metadata().tablets[0].epoch == 2


def test_nothing_is_assigned_while_there_are_too_few_servers() -> None:
    world = MasterWorld(settings=MasterSettings(replication=3))
    world.create()
    world.join("s1")
    world.round()
    assert world.metadata().tablets[0].state == "preparing"
    world.join("s2")
    world.round()
    assert world.metadata().tablets[0].state == "creating"
    assert len(world.metadata().tablets[0].in_sync) == 2, "a majority of three"


def test_server_that_has_not_sent_a_full_report_gets_nothing() -> None:
    world = MasterWorld()
    world.create()
    world.beat("s1", host="h1", has_report=False)
    world.round()
    assert world.metadata().tablets[0].state == "preparing"


def test_tablet_that_is_not_reported_in_time_gives_way_and_is_deleted_when_it_comes_late() -> None:
    world = MasterWorld(settings=SETTINGS)
    (first,) = world.create().tablets
    world.join("s1")
    world.round()
    late = world.reported("users", "s1")
    world.clock.advance(9)
    world.round()
    assert world.metadata().tablets[0].id == first.id, "too early"
    world.clock.advance(2)
    world.round()
    (second,) = world.metadata().tablets
    assert second.id != first.id
    assert (second.first, second.last, second.state) == (b"", None, "creating")
    assert [one.tablet for one in world.metadata().replaced] == [first.id]
    world.beat("s1", late)
    deletes = [request for _, request in world.requests() if isinstance(request, DeleteTablet)]
    assert [(one.tablet, one.assignment_id) for one in deletes] == [(first.id, late[0].assignment_id)]
    assert world.metadata().tablets[0].state == "creating"
    world.beat("s1", world.reported("users", "s1"))
    assert world.metadata().tablets[0].state == "running"


def test_new_master_gives_the_leader_the_time_again() -> None:
    world = MasterWorld(settings=SETTINGS)
    (first,) = world.create().tablets
    world.join("s1")
    world.round()
    world.clock.advance(100)
    world.restart()
    world.join("s1")
    world.round()
    assert world.metadata().tablets[0].id == first.id
    world.clock.advance(11)
    world.beat("s1", has_report=False)
    world.round()
    assert world.metadata().tablets[0].id != first.id


def test_nothing_is_replaced_while_there_is_nobody_to_replace_it() -> None:
    world = MasterWorld(settings=SETTINGS)
    (first,) = world.create().tablets
    world.join("s1")
    world.round()
    world.clock.advance(1000)  # s1 is dead by then
    world.round()
    assert world.metadata().tablets[0].id == first.id


def test_two_rounds_at_the_same_time_assign_once() -> None:
    world = MasterWorld()
    world.create()
    world.join("s1", "s2")
    first = world.master.round()
    write = next(first)
    world.round()
    assert world.durable.changes == 0
    with pytest.raises(StopIteration):
        first.send(world.durable.write(write))
    assert world.durable.changes == 1


def test_of_two_masters_that_assign_the_same_tablet_one_is_refused() -> None:
    world = MasterWorld()
    world.create()
    old = world.master
    world.join("s1", "s2")
    operation = old.round()
    write = next(operation)
    world.restart()
    world.join("s1", "s2")
    world.round()
    (tablet,) = world.metadata().tablets
    answer = world.durable.write(write)
    assert isinstance(answer[0], Exception)
    read = operation.send(answer)
    with pytest.raises(StopIteration):
        operation.send(world.durable.write(read))
    assert old.locate("users", b"a").tablet == tablet


# --- placement -----------------------------------------------------------------------------------


def _loads(hosts: dict[str, str], **replicas: int) -> Loads:
    return Loads(hosts, {server: replicas.get(server, 0) for server in hosts}, dict.fromkeys(hosts, 0))


def test_many_tablets_are_spread_evenly_with_their_leaders() -> None:
    loads = _loads({f"s{number}": f"h{number}" for number in range(8)})
    random = Random(3)
    chosen = [choose_replicas(loads, 3, random) for _ in range(800)]
    replicas = Counter(server for one in chosen if one for server in one)
    leaders = Counter(one[0] for one in chosen if one)
    assert max(replicas.values()) - min(replicas.values()) <= 12
    assert max(leaders.values()) - min(leaders.values()) <= 12


def test_replicas_go_to_different_hosts_while_there_are_any() -> None:
    hosts = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "c1": "c"}
    for seed in range(50):
        chosen = choose_replicas(_loads(hosts), 3, Random(seed))
        assert chosen is not None
        assert {hosts[server] for server in chosen} == {"a", "b", "c"}
        more = choose_replicas(_loads(hosts), 4, Random(seed))
        assert more is not None
        assert len(set(more)) == 4


def test_empty_server_does_not_get_everything_at_once() -> None:
    """Two are drawn, so that a server takes at most about twice its share."""
    hosts = {f"s{number}": f"h{number}" for number in range(10)}
    loads = _loads(hosts, **{f"s{number}": 1000 for number in range(1, 10)})
    random = Random(1)
    chosen = Counter(choose_replicas(loads, 1, random) for _ in range(200))
    assert 20 < chosen[("s0",)] < 60


def test_tablets_of_a_new_table_are_spread_over_two_servers_that_have_as_many() -> None:
    for seed in range(100):
        loads, random = _loads({"s1": "h1", "s2": "h2"}), Random(seed)
        chosen = Counter(choose_replicas(loads, 1, random) for _ in range(4))
        assert chosen == {("s1",): 2, ("s2",): 2}


def test_too_few_servers_are_no_choice() -> None:
    assert choose_replicas(_loads({"s1": "h1"}), 2, Random(1)) is None
    assert choose_replicas(_loads({}), 1, Random(1)) is None


# --- cleaning ------------------------------------------------------------------------------------


def _deleted_in_service(retention_seconds: float) -> MasterWorld:
    settings = MasterSettings(replication=2, retention_seconds=retention_seconds, silent_after_seconds=20.0)
    world = MasterWorld(settings=settings)
    world.create("users", [b"m"])
    world.join("s1", "s2")
    world.settle("users", ["s1", "s2"])
    return world


def test_deleted_table_is_purged_when_every_server_has_confirmed_and_not_before() -> None:
    world = _deleted_in_service(10.0)
    reported = {server: world.reported("users", server) for server in ("s1", "s2")}
    table_id = world.metadata().table_id
    world.run(world.master.delete_table("users"))
    world.round()
    assert table_id in world.master.catalog.deleted
    world.clock.advance(11)
    for server in ("s1", "s2"):
        world.beat(server, has_report=False)
        world.round()
        assert table_id in world.master.catalog.deleted
        removed = [RemovedTablet(one.tablet, one.assignment_id) for one in reported[server]]
        assert {request.tablet for to, request in world.requests() if to == server} <= {one.tablet for one in removed}
        world.beat(server, removed=removed)
    world.round()
    assert table_id not in world.master.catalog.tables
    assert table_id in world.master.catalog.tombstones
    assert not world.durable.metadata
    world.restart()
    assert not world.master.catalog.tables
    assert table_id in world.master.catalog.tombstones


def test_server_that_is_silent_confirms_nothing_until_people_say_that_it_is_gone() -> None:
    world = _deleted_in_service(0.0)
    reported = world.reported("users", "s1")
    table_id = world.metadata().table_id
    world.run(world.master.delete_table("users"))
    world.beat("s1", removed=[RemovedTablet(one.tablet, one.assignment_id) for one in reported])
    world.clock.advance(1000)
    world.round()
    assert table_id in world.master.catalog.deleted
    world.restart()
    world.join("s1")
    world.round()
    assert table_id in world.master.catalog.deleted
    world.master.servers.forget("s2")
    world.round()
    assert table_id in world.master.catalog.tombstones


def test_table_that_another_master_brought_back_is_not_purged() -> None:
    world = _deleted_in_service(0.0)
    reported = {server: world.reported("users", server) for server in ("s1", "s2")}
    table_id = world.metadata().table_id
    world.run(world.master.delete_table("users"))
    for server in ("s1", "s2"):
        world.beat(server, removed=[RemovedTablet(one.tablet, one.assignment_id) for one in reported[server]])
    world.durable.write(UndeleteTable(table_id, "users"))
    world.round()
    assert table_id not in world.master.catalog.tombstones
    world.round()
    assert world.metadata().table_id == table_id


def test_replaced_tablet_is_forgotten_but_for_its_id() -> None:
    world = MasterWorld(settings=SETTINGS)
    (first,) = world.create().tablets
    world.join("s1")
    world.round()
    late = world.reported("users", "s1", state="creating")
    world.beat("s1", late)
    world.clock.advance(11)
    world.round()
    assert [(one.tablet, one.servers) for one in world.metadata().replaced] == [(first.id, ("s1",))]
    world.beat("s1", removed=[RemovedTablet(one.tablet, one.assignment_id) for one in late])
    world.round()
    assert [(one.tablet, one.servers) for one in world.metadata().replaced] == [(first.id, ())]
    world.restart()
    world.join("s1")
    world.beat("s1", late)
    assert [request.tablet for _, request in world.requests() if isinstance(request, DeleteTablet)] == [first.id]


def test_a_table_with_a_past_has_tablets_that_are_offered_and_never_replaced_by_empty_ones() -> None:
    world = MasterWorld()
    world.create("users", [b"m"])
    world.join("s1")
    world.settle("users")
    world.run(world.master.bring_table("copy", cloned(world.metadata("users"), "copied", iter("ab").__next__)))
    clone = world.metadata("copy")
    assert [(one.id, one.state, one.leader) for one in clone.tablets] == [
        ("a", "running", None),
        ("b", "running", None),
    ]
    world.round()
    targets = [one.target.server for one in world.metadata("copy").tablets if one.target is not None]
    assert targets == ["s1", "s1"]
