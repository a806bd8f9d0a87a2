"""Bulk commits under crashes, failing disks and a coordination service that loses messages: whole, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebla.client.database import Database
from ebla.client.embedded.opening import wire
from ebla.client.table import Table
from ebla.clock import ManualClock
from ebla.coordination.memory import Fault, MemoryCoordination, MemoryStore
from ebla.direct.bulk_writer import BulkWriter
from ebla.errors import Closed, EblaError, OutcomeUnknown, UnknownTable
from ebla.service.job_orders import BulkCommit, BulkResult
from ebla.settings import Settings
from tests.direct.bulk_world import NUMBERS, a_by_k, numbers
from tests.support.inside import abandon, carry_out, engine_of, state_of
from tests.support.simulated_files import Fault as DiskFault
from tests.support.simulated_files import FaultPlan, Operation, SimulatedCrash, SimulatedFiles

BEFORE = {key: key for key in range(10)}
AFTER = BEFORE | {key: key + 100 for key in range(5, 15)}
BOUND_SECONDS = 30.0

FaultsOf = Callable[[str, tuple[str, ...]], Fault | None]


class World:
    """A store with some rows on a simulated disk, and a job that is ready to be committed."""

    def __init__(self) -> None:
        self.files = SimulatedFiles()
        self.nodes = MemoryStore()
        self.clock = ManualClock()
        self.faults: FaultsOf | None = None
        self.db = self.open()
        self.table = self.db.create_table("t", NUMBERS, splits=[(7,)])
        self.table.put(numbers(range(10)))
        self.commit = self.written("job")

    def open(self, files: SimulatedFiles | None = None, nodes: MemoryStore | None = None) -> Database:
        self.clock.advance(60)
        coordination = MemoryCoordination(nodes or self.nodes, self.clock, faults=self._on_request)
        files = files or self.files
        return wire(Path("simulated"), files, coordination, self.clock, Settings(), None)

    def _on_request(self, name: str, paths: tuple[str, ...]) -> Fault | None:
        return None if self.faults is None else self.faults(name, paths)

    def written(self, job: str) -> BulkCommit:
        schema, table_id = self.table.schema, state_of(self.table).id
        fragments = []
        for partition, keys in enumerate((range(5, 12), range(10, 15))):  # they overlap: two layers
            writer = BulkWriter(self.files, table_id, schema, job, partition, stamp_microseconds=1, is_sorted=True)
            writer.write(numbers(keys, add=100))
            fragments += writer.finish()
        return BulkCommit(job, table_id, schema.version, tuple(fragments))

    def reopened(self) -> Table:
        """The table as the next process finds it."""
        abandon(self.db)
        self.files = self.files.restarted()
        self.db = self.open()
        return self.db.table("t")


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.faults = None
    abandon(made.db)


def test_at_every_moment_of_a_commit_a_crash_leaves_all_of_it_or_nothing(world: World) -> None:
    moments: list[tuple[str, SimulatedFiles, MemoryStore, list[BulkResult]]] = []
    results: list[BulkResult] = []

    def moment(label: str) -> None:
        moments.append((label, world.files.restarted(), world.nodes.copy(), list(results)))

    world.files.plan = FaultPlan(when=lambda operation: moment(f"{operation.kind} {operation.path}"))
    world.faults = lambda name, paths: moment(f"{name} {paths}")
    results.append(carry_out(world.db, world.commit))
    moment("done")
    world.files.plan, world.faults = FaultPlan(), None
    assert len(moments) > 5
    outcomes = []
    for label, files, nodes, told in moments:
        for disk in [*files.crash_images(1, 3), files.restarted()]:
            db = world.open(disk, nodes.copy())
            found = a_by_k(db.table("t"))
            assert found in (BEFORE, AFTER), label
            assert found == AFTER or not told, label
            outcomes.append(found == AFTER)
            again = carry_out(db, world.commit)
            assert again.repeated == (found == AFTER), label
            assert a_by_k(db.table("t")) == AFTER, label
            newer = db.table("t").put(numbers([3], add=1_000))
            assert newer > again.txn
            assert a_by_k(db.table("t"), as_of=again.txn) == AFTER, label
            abandon(db)
    assert set(outcomes) == {True, False}


def operations_of(world: World) -> int:
    before = len(world.files.record())
    carry_out(world.db, world.commit)
    return len(world.files.record()) - before


@pytest.mark.parametrize("effect", [0.0, 1.0])
def test_a_failing_disk_refuses_the_commit_and_the_store_goes_on(effect: float) -> None:
    count = operations_of(World())
    assert count >= 3
    refused = 0
    for number in range(count):
        world = World()
        at = len(world.files.record()) + number
        world.files.plan = FaultPlan.fail_at(at, effect=effect)
        try:
            carry_out(world.db, world.commit)
        except EblaError:
            refused += 1
            world.files.plan = FaultPlan()
            assert a_by_k(world.table) == BEFORE
            world.table.put(numbers([20]))
            assert a_by_k(world.table) == BEFORE | {20: 20}
            assert not carry_out(world.db, world.commit).repeated
        assert a_by_k(world.table).items() >= AFTER.items()
        assert a_by_k(world.reopened()).items() >= AFTER.items()
        abandon(world.db)
    assert refused


def requests_of(world: World) -> list[str]:
    seen: list[str] = []
    world.faults = lambda name, paths: seen.append(name)
    carry_out(world.db, world.commit)
    return seen


@pytest.mark.parametrize("fault", list(Fault))
def test_one_lost_message_is_settled_by_asking_again(fault: Fault) -> None:
    seen = requests_of(World())
    for number, name in enumerate(seen):
        world = World()
        count = iter(range(10_000))
        world.faults = lambda name, paths, at=number, count=count: fault if next(count) == at else None
        try:
            carry_out(world.db, world.commit)
        except OutcomeUnknown:
            pytest.fail(f"{fault} of {name} could have been settled")
        except EblaError:  # definitely not done: so it never is
            assert fault is Fault.FAIL_BEFORE or name in ("read", "list")
            world.faults = None
            world.nodes.deliver()
            assert a_by_k(world.table) == BEFORE
            world.table.put(numbers([3], add=7))
            world.table.put(numbers([3]))
            assert not carry_out(world.db, world.commit).repeated
        world.faults = None
        world.nodes.deliver()
        assert a_by_k(world.table) == AFTER
        world.table.put(numbers([3]))
        assert a_by_k(world.reopened()) == AFTER
        abandon(world.db)


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.DELAY])
def test_an_outcome_that_stays_unknown_stops_the_writes_until_reopening(world: World, fault: Fault) -> None:
    snapshot = world.db.snapshot()
    lost = False

    def faults(name: str, paths: tuple[str, ...]) -> Fault | None:
        nonlocal lost
        if name == "CompareAndSet" and paths[0].startswith("tables/"):
            lost = True
            return fault
        return fault if lost else None

    world.faults = faults
    with pytest.raises(OutcomeUnknown, match="job job"):
        carry_out(world.db, world.commit)
    world.faults = None
    assert a_by_k(world.table) == a_by_k(world.table, as_of=snapshot) == BEFORE
    with pytest.raises(EblaError):
        world.table.put(numbers([3], add=1))
    with pytest.raises(EblaError):
        carry_out(world.db, world.commit)
    with pytest.raises(EblaError):
        a_by_k(world.table, as_of=snapshot.txn + (10 << 20))  # it would be above the commit that may be there
    world.nodes.deliver()
    assert a_by_k(world.table) == BEFORE
    table = world.reopened()
    assert a_by_k(table) == (BEFORE if fault is Fault.LOSE_REQUEST else AFTER)
    assert carry_out(world.db, world.commit).repeated == (fault is not Fault.LOSE_REQUEST)
    assert a_by_k(table) == AFTER
    assert a_by_k(table, as_of=snapshot.txn) == BEFORE


def test_an_interrupted_save_stops_the_writes(world: World) -> None:
    world.files.plan = FaultPlan(
        when=lambda operation: DiskFault(None) if operation.path.startswith("metadata/") else None
    )
    with pytest.raises(SimulatedCrash):
        carry_out(world.db, world.commit)
    with pytest.raises(EblaError):
        world.table.put(numbers([3], add=1))


def test_a_table_dropped_during_the_commit_is_unknown_and_the_store_goes_on(world: World) -> None:
    other = world.db.create_table("other", NUMBERS)
    is_dropped = False

    def drop(operation: Operation) -> None:
        nonlocal is_dropped
        if not is_dropped and operation.path.startswith(f"metadata/{state_of(world.table).id}/"):
            is_dropped = True
            engine_of(world.db).metadata.drop_table("t")

    world.files.plan = FaultPlan(when=drop)
    with pytest.raises(UnknownTable, match="dropped"):
        carry_out(world.db, world.commit)
    other.put(numbers([1]))
    assert a_by_k(other) == {1: 1}


# --- the gate ------------------------------------------------------------------------------------


class Held:
    """Holds a bulk commit at its compare-and-set until `release`."""

    def __init__(self, world: World) -> None:
        self.reached, self._go = threading.Event(), threading.Event()
        self.results: list[object] = []
        world.faults = self._on_request
        self._world = world
        self.thread = self.start(lambda: carry_out(world.db, world.commit))
        assert self.reached.wait(BOUND_SECONDS)

    def _on_request(self, name: str, paths: tuple[str, ...]) -> Fault | None:
        if name == "CompareAndSet" and paths[0].startswith("tables/"):
            self.reached.set()
            assert self._go.wait(BOUND_SECONDS)
        return None

    def start(self, work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                self.results.append(work())
            except EblaError as error:
                self.results.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def release(self, *threads: threading.Thread) -> None:
        self._go.set()
        for thread in (self.thread, *threads):
            thread.join(BOUND_SECONDS)
            assert not thread.is_alive()


def test_nobody_gets_a_txn_while_a_commit_is_under_way_and_reading_goes_on(world: World) -> None:
    newest = world.db.snapshot().txn
    held = Held(world)
    put = held.start(lambda: world.table.put(numbers([6], add=1_000)))
    later = newest + (1 << 34)  # some seconds
    scan = held.start(lambda: a_by_k(world.table, as_of=later))
    put.join(0.1)
    scan.join(0.1)
    assert put.is_alive()
    assert scan.is_alive()
    assert world.db.snapshot().txn == newest
    assert a_by_k(world.table) == a_by_k(world.table, as_of=newest) == BEFORE
    assert world.table.get(6) == {"k": 6, "a": 6, "b": None}
    assert a_by_k(world.table, read_uncommitted=True) == BEFORE
    held.release(put, scan)
    bulk, txn, rows = sorted(held.results, key=lambda one: (isinstance(one, dict), isinstance(one, int)))
    assert isinstance(bulk, BulkResult)
    assert newest < bulk.txn < txn
    assert rows in (AFTER, AFTER | {6: 1_006})
    assert a_by_k(world.table) == AFTER | {6: 1_006}
    assert a_by_k(world.table, as_of=bulk.txn) == AFTER
    assert a_by_k(world.table, as_of=bulk.txn - 2) == BEFORE


def test_a_conditional_put_that_waits_for_a_commit_learns_what_it_changed(world: World) -> None:
    read = world.table.get(6)
    other = world.table.get(2)
    held = Held(world)
    conflicting = held.start(lambda: world.table.put({"k": 6, "a": 0}, if_unchanged_since=read.txn))
    fine = held.start(lambda: world.table.put({"k": 2, "a": 0}, if_unchanged_since=other.txn))
    held.release(conflicting, fine)
    assert sorted(type(one).__name__ for one in held.results) == ["BulkResult", "Conflict", "int"]
    assert a_by_k(world.table) == AFTER | {2: 0}


def test_closing_waits_for_a_commit_under_way(world: World) -> None:
    held = Held(world)
    closing = held.start(world.db.close)
    closing.join(0.1)
    assert closing.is_alive()
    held.release(closing)
    assert any(isinstance(one, BulkResult) for one in held.results)
    world.faults = None
    assert a_by_k(world.reopened()) == AFTER


def test_a_closed_store_commits_nothing(world: World) -> None:
    world.db.close()
    with pytest.raises(Closed):
        engine_of(world.db).orders.commit_bulk(world.commit)
    assert a_by_k(world.reopened()) == BEFORE
