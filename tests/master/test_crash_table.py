"""A crash before every single durable step of an operation, then a restart: the table says what is found.

Run on the real thing: METADATA files on a disk that forgets what was not synced, and the coordination service. An
operation has one step that decides. A restart after a crash before it finds everything as it was; after it, everything
as if the operation had finished. There is no third state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from ebla.errors import EblaError
from ebla.master.settings import MasterSettings
from ebla.metadata.values.clone import cloned
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.model.schema_change import Alteration
from tests.master.master_world import SCHEMA, MasterWorld, real_durable
from tests.metadata.metadata_world import SimulatedCrash, World
from tests.support.simulated_files import Fault, FaultPlan

SETTINGS = MasterSettings(replication=2, retention_seconds=10.0, assignment_timeout_seconds=5.0)

# What a restarted master knows, as people would say it: tables by name with the states and epochs of their tablets,
# names of deleted tables, how many were purged, how many tablets are on record as replaced.
Found = tuple[dict[str, str], list[str], int, int]


class Case(NamedTuple):
    prepare: Callable[[MasterWorld], None]
    operate: Callable[[MasterWorld], Any]
    decides: str  # the request to the coordination service that decides
    before: Found
    after: Found
    transactions: int = 1  # the first decides; later ones are of the cleaner, and do not show here
    decided_by: int = 0  # which of them


def _nothing(world: MasterWorld) -> None:
    pass


def _created(world: MasterWorld) -> None:
    world.create("users", [b"m"])


def _clone(world: MasterWorld) -> TableMetadata:
    return cloned(world.metadata("users"), "copied", iter("ab").__next__)


def _joined(world: MasterWorld) -> None:
    _created(world)
    world.join("s1", "s2")


def _assigned(world: MasterWorld) -> None:
    _joined(world)
    world.round()


def _running(world: MasterWorld) -> None:
    _assigned(world)
    for server in ("s1", "s2"):
        world.beat(server, world.reported("users", server))


def _deleted(world: MasterWorld) -> None:
    _created(world)
    world.run(world.master.delete_table("users"))


def _overdue(world: MasterWorld) -> None:
    _assigned(world)
    world.clock.advance(6)


def _unretained(world: MasterWorld) -> None:
    _deleted(world)
    world.clock.advance(11)


def _third(world: MasterWorld) -> None:
    """A third server has joined, so that a replica should move to it."""
    world.create("users", [b"g", b"m", b"t"])
    world.join("s1", "s2")
    world.settle("users", ["s1", "s2"])
    world.beat("s3", host="host-s3", full=True)


def _first_leader_reports(world: MasterWorld) -> None:
    leader = world.metadata().tablets[0].leader
    assert leader is not None
    world.beat(leader, world.reported("users", leader))


def _report(world: MasterWorld) -> None:
    for server in ("s1", "s2"):
        world.beat(server, world.reported("users", server))


def _decide_and_begin(world: MasterWorld) -> None:
    world.round()
    world.round()


CASES = {
    "create": Case(
        _nothing,
        lambda world: world.create("users", [b"m"]),
        "multi tables/",
        before=({}, [], 0, 0),
        after=({"users": "preparing preparing"}, [], 0, 0),
    ),
    "rename": Case(
        _created,
        lambda world: world.run(world.master.rename_table("users", "people")),
        "multi tables/",
        before=({"users": "preparing preparing"}, [], 0, 0),
        after=({"people": "preparing preparing"}, [], 0, 0),
    ),
    "clone": Case(
        _created,
        lambda world: world.run(world.master.bring_table("copy", _clone(world))),
        "multi tables/",
        before=({"users": "preparing preparing"}, [], 0, 0),
        after=({"copy": "running running", "users": "preparing preparing"}, [], 0, 0),
    ),
    "replacement": Case(
        _created,
        lambda world: world.run(
            world.master.bring_table("users", _clone(world), replacing=world.metadata("users").table_id)
        ),
        "multi tables/",
        before=({"users": "preparing preparing"}, [], 0, 0),
        after=({"users": "running running"}, ["users"], 0, 0),
    ),
    "alter": Case(
        _created,
        lambda world: world.run(world.master.alter_table("users", Alteration(add_columns={"city": "string"}))),
        "CompareAndSet tables/",
        before=({"users": "preparing preparing"}, [], 0, 0),
        after=({"users": "preparing preparing, version 2"}, [], 0, 0),
    ),
    "delete": Case(
        _created,
        lambda world: world.run(world.master.delete_table("users")),
        "multi tables/",
        before=({"users": "preparing preparing"}, [], 0, 0),
        after=({}, ["users"], 0, 0),
    ),
    "undelete": Case(
        _deleted,
        lambda world: world.run(world.master.undelete_table("users")),
        "multi tables/",
        before=({}, ["users"], 0, 0),
        after=({"users": "preparing preparing"}, [], 0, 0),
    ),
    "purge": Case(
        _unretained,
        lambda world: world.round(),
        "CompareAndSet tables/",
        before=({}, ["users"], 0, 0),
        after=({}, [], 1, 0),
        transactions=2,  # the first puts on record that it cannot come back
        decided_by=1,
    ),
    "assignment: creating": Case(
        _joined,
        lambda world: world.round(),
        "CompareAndSet tables/",
        before=({"users": "preparing preparing"}, [], 0, 0),
        after=({"users": "creating@2 creating@2"}, [], 0, 0),
    ),
    "assignment: running": Case(
        _assigned,
        _first_leader_reports,
        "CompareAndSet tables/",
        before=({"users": "creating@2 creating@2"}, [], 0, 0),
        after=({"users": "running@2 creating@2"}, [], 0, 0),
    ),
    "assignment: replaced": Case(
        _overdue,
        lambda world: world.round(),
        "CompareAndSet tables/",
        before=({"users": "creating@2 creating@2"}, [], 0, 0),
        after=({"users": "creating@2 creating@2"}, [], 0, 2),
        transactions=2,
    ),
    "assignment: moved": Case(
        _third,
        _decide_and_begin,
        "CompareAndSet tables/",
        before=({"users": "running@2 running@2 running@2 running@2"}, [], 0, 0),
        after=({"users": "running@2+1 running@2+1 running@2 running@2"}, [], 0, 0),
    ),
}


def _told(tablet: TabletMetadata) -> str:
    learning = f"+{len(tablet.replicas) - len(tablet.in_sync)}" if len(tablet.replicas) > len(tablet.in_sync) else ""
    return f"{tablet.state}@{tablet.epoch}{learning}" if tablet.epoch > 1 else tablet.state


def found(world: MasterWorld) -> Found:
    catalog = world.master.catalog
    for info in catalog.tables.values():
        info.metadata.check()
    states = {info.name: " ".join(map(_told, info.metadata.tablets)) for info in catalog.named()}
    for info in catalog.named():
        if info.metadata.schema.version > 1:
            states[info.name] += f", version {info.metadata.schema.version}"
    deleted = [info.name for info in catalog.deleted.values()]
    replaced = sum(len(info.metadata.replaced) for info in catalog.tables.values())
    return states, deleted, len(catalog.tombstones), replaced


def _steps(disk: World, world: MasterWorld, crash_before: int | None) -> list[str]:
    """Have the steps of the durable side noted, and everything stopped before one of them."""
    steps: list[str] = []

    def note(label: str) -> bool:
        steps.append(label)
        return len(steps) - 1 == crash_before

    def on_disk(operation: Any) -> Fault | None:
        return Fault(None) if note(f"disk {operation.kind} {operation.path}") else None

    def on_the_way(name: str, paths: tuple[str, ...]) -> None:
        if note(f"{name} {' '.join(paths)}"):
            disk.files.crash()
            raise SimulatedCrash

    disk.files.plan = FaultPlan(when=on_disk)
    world.durable.metadata_server.client.faults = on_the_way
    return steps


def _prepared(case: Case) -> tuple[World, MasterWorld]:
    disk = World()
    world = MasterWorld(real_durable(disk), SETTINGS)
    case.prepare(world)
    return disk, world


@pytest.mark.parametrize("name", CASES)
def test_crash_before_every_step_leaves_all_or_nothing_and_one_step_decides(name: str) -> None:
    case = CASES[name]
    disk, world = _prepared(case)
    assert found(world) == case.before
    steps = _steps(disk, world, None)
    case.operate(world)
    assert found(world) == case.after
    deciding = [at for at, step in enumerate(steps) if step.startswith(case.decides)]
    assert len(deciding) == case.transactions, steps

    for crash_before in range(len(steps) + 1):
        disk, world = _prepared(case)
        _steps(disk, world, crash_before)
        try:
            case.operate(world)
        except SimulatedCrash:
            pass
        else:
            assert crash_before == len(steps)
        expected = case.after if crash_before > deciding[case.decided_by] else case.before
        for later in disk.after_crash(crash_before):
            restarted = MasterWorld(real_durable(later), SETTINGS)
            assert found(restarted) == expected, steps[: crash_before + 1]


@pytest.mark.parametrize("name", CASES)
def test_what_a_crash_left_can_be_gone_on_with(name: str) -> None:
    """After any crash, the restarted master brings the table into service, or takes the name again."""
    case = CASES[name]
    disk, world = _prepared(case)
    steps = _steps(disk, world, None)
    case.operate(world)
    for crash_before in range(0, len(steps), 2):
        disk, world = _prepared(case)
        _steps(disk, world, crash_before)
        with pytest.raises(SimulatedCrash):
            case.operate(world)
        again = MasterWorld(real_durable(disk.after_crash(crash_before)[-1]), SETTINGS)
        for name_free in ("users", "people"):
            if name_free not in again.master.catalog.names:
                again.create(name_free)
        again.join("s1", "s2", "s3")
        again.round()
        for table in [*again.master.catalog.names]:
            for server in ("s1", "s2", "s3"):
                again.beat(server, again.reported(table, server))
            assert {tablet.state for tablet in again.metadata(table).tablets} == {"running"}


def test_started_tablets_are_running_after_a_crash_once_the_leader_was_heard() -> None:
    """The report of each tablet's leader decides: one METADATA transaction per report."""
    disk = World()
    world = MasterWorld(real_durable(disk), SETTINGS)
    _assigned(world)
    leaders = {tablet.id: tablet.leader for tablet in world.metadata().tablets}
    _report(world)
    for later in disk.after_crash(0):
        restarted = MasterWorld(real_durable(later), SETTINGS)
        assert found(restarted)[0] == {"users": "running@2 running@2"}
        assert {tablet.id: tablet.leader for tablet in restarted.metadata().tablets} == leaders


def test_definite_failure_leaves_everything_as_it_was() -> None:
    world = MasterWorld()

    def fail(label: str) -> None:
        raise EblaError("no space")

    world.durable.step = fail
    with pytest.raises(EblaError, match="no space"):
        world.create("users")
    world.durable.step = lambda label: None
    assert world.master.stopped is None
    assert not world.master.catalog.tables
    world.create("users")
    assert world.metadata().schema == SCHEMA
