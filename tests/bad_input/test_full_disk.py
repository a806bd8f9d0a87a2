"""A full disk: the log stops, reads go on, the error says so; when there is room again, reopening goes on writing."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebla.client.database import Database
from ebla.client.embedded.opening import wire
from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.errors import EblaError, LogFailed, StoreError
from ebla.model.declaration import Group, Schema
from ebla.settings import KIB, Settings
from tests.crash.machine import bounded
from tests.support.inside import engine_of
from tests.support.simulated_files import FaultPlan, SimulatedFiles

SCHEMA = Schema(
    key={"k": "string"},
    groups=[Group("typed", columns={"n": "int64", "text": "string"}), Group("cells", families=["c"])],
)
CALM = Settings(log_segment_bytes=8 * KIB, recent_row_slots=1 << 8)
RESTLESS = Settings(
    log_segment_bytes=8 * KIB,
    recent_row_slots=1 << 8,
    flush_bytes=8 * KIB,
    memory_bytes_max=32 * KIB,
    log_bytes_max=32 * KIB,
)


class Disk:
    """A disk of so many bytes, with a store on it."""

    def __init__(self, bytes_max: int | None) -> None:
        self.files = SimulatedFiles(bytes_max=bytes_max)
        self.nodes = MemoryStore()
        self.clock = ManualClock()

    def open(self, settings: Settings) -> Database:
        self.clock.advance(60)
        coordination = MemoryCoordination(self.nodes, self.clock)
        return wire(Path("simulated"), self.files, coordination, self.clock, settings, None)

    def used(self) -> int:
        return sum(len(inode.data) for inode in self.files._names.values())


def row(n: int) -> dict[str, Any]:
    return {"k": f"k{n:05d}", "n": n, "text": f"text {n} " * 10, "c:q": b"%d" % n}


def fill(table: Any, begin: int = 0) -> tuple[int, EblaError]:
    """Write until it fails; return how many rows were acknowledged, and the error."""
    for n in range(begin, 100_000):
        try:
            table.put(row(n))
        except EblaError as error:
            return n, error
    raise AssertionError("the disk never got full")


@pytest.mark.parametrize("settings", [CALM, RESTLESS], ids=["calm", "restless"])
def test_on_a_full_disk_writing_stops_reading_goes_on_and_room_brings_writing_back(settings: Settings) -> None:
    disk = Disk(bytes_max=100 * KIB)
    db = disk.open(settings)
    table = db.create_table("t", SCHEMA, ["k00050"])
    count, error = bounded(lambda: fill(table))
    assert count > 20
    assert isinstance(error, StoreError)
    assert "space" in str(error)

    def check(table: Any, more: int = 0) -> int:
        rows = [dict(one) for one in table.scan()]
        assert rows[:count] == [row(n) for n in range(count)], "nothing acknowledged is lost"
        assert len(rows) - count <= more
        assert table.get(f"k{count - 1:05d}") == row(count - 1)
        return len(rows)

    check(table)
    for wait in ("durable", "logged"):
        with pytest.raises(EblaError):
            bounded(lambda wait=wait: table.put({"k": "later"}, wait=wait))
    check(table)
    bounded(lambda: closed(db))

    # Still full: it opens, or says why not; what it answers is right.
    opened = outcome_of(lambda: disk.open(settings))
    if isinstance(opened, Database):
        check(opened.table("t"), more=1)
        bounded(lambda: closed(opened))
    else:
        assert "space" in str(opened)

    disk.files.bytes_max = None
    db = disk.open(settings)
    table = db.table("t")
    found = check(table, more=1)  # the one that failed may be there as a whole
    for n in range(found, found + 50):
        table.put(row(n))
    table.flush()
    assert [dict(one) for one in table.scan()] == [row(n) for n in range(found + 50)]
    db.close()
    db = disk.open(settings)
    assert [dict(one) for one in db.table("t").scan()] == [row(n) for n in range(found + 50)]
    db.close()


def outcome_of(work: Callable[[], Any]) -> Any:
    """Return what `work` returns, or the `StoreError` that it raises."""
    try:
        return work()
    except StoreError as error:
        return error


def closed(db: Database) -> None:
    error = outcome_of(db.close)
    assert error is None or "space" in str(error)


def test_the_log_says_that_there_is_no_space_and_what_to_do() -> None:
    disk = Disk(bytes_max=None)
    db = disk.open(CALM)
    table = db.create_table("t", SCHEMA)
    table.put(row(0))
    disk.files.bytes_max = disk.used() + 10
    with pytest.raises(LogFailed, match=r"no space.*free space.*reopen.*reads go on"):
        table.put(row(1))
    assert LogFailed.advice == "stop"
    assert [one["n"] for one in table.scan()] == [0]
    db.close()


def test_a_flush_without_room_leaves_everything_in_memory_and_in_the_log() -> None:
    disk = Disk(bytes_max=None)
    db = disk.open(CALM)
    table = db.create_table("t", SCHEMA)
    table.put([row(n) for n in range(200)])
    disk.files.bytes_max = disk.used() + 500
    with pytest.raises(StoreError, match="space"):
        table.flush()
    assert not table.files()
    assert not disk.files.list(f"fragments/{table.stats()['id']}"), "the half-written file was removed"
    assert [dict(one) for one in table.scan()] == [row(n) for n in range(200)]
    disk.files.bytes_max = None
    table.flush()  # no reopening is needed: it is the log alone that must not go on
    table.put(row(200))
    assert [dict(one) for one in table.scan()] == [row(n) for n in range(201)]
    db.close()


def test_writers_do_not_wait_for_ever_for_memory_that_cannot_be_flushed() -> None:
    disk = Disk(bytes_max=None)
    db = disk.open(RESTLESS)
    table = db.create_table("t", SCHEMA)
    table.put(row(0))
    # The log has room, but no fragment can be written.
    disk.files.plan = FaultPlan.fail_when(lambda operation: operation.path.startswith("fragments/"), errno.ENOSPC)
    count, error = bounded(lambda: fill(table, 1))
    assert isinstance(error, StoreError)
    assert "space" in str(error)
    assert 1 < count < 2_000, "memory is bounded"
    assert [dict(one) for one in table.scan()] == [row(n) for n in range(count)]
    disk.files.plan = FaultPlan()
    bounded(lambda: put_until_taken(table, row(count)))
    assert len(list(table.scan())) == count + 1
    db.close()


def put_until_taken(table: Any, one: dict[str, Any]) -> None:
    """Repeat a put that is refused because memory is full, until the background has made room."""
    while (refusal := outcome_of(lambda: table.put(one))) and isinstance(refusal, StoreError):
        assert "space" in str(refusal)


def many_files(disk: Disk, **more: Any) -> tuple[Database, Any, list[dict[str, Any]]]:
    """A store whose table has files enough to be merged, and its rows."""
    db = disk.open(Settings(log_segment_bytes=8 * KIB, recent_row_slots=1 << 8, background_compaction=False, **more))
    table = db.create_table("t", SCHEMA)
    for n in range(12):
        table.put([row(i) | {"n": -n} for i in range(n, 300, 3)])
        table.flush()
    return db, table, [dict(one) for one in table.scan()]


def test_a_compaction_without_room_changes_nothing_and_is_done_when_there_is_some() -> None:
    disk = Disk(bytes_max=None)
    db, table, expected = many_files(disk, history_seconds=0.0)
    named = table.files()
    there = disk.files.list(f"fragments/{table.stats()['id']}")
    disk.files.bytes_max = disk.used() + 4 * KIB  # the log may go on for a while
    with pytest.raises(StoreError, match=r"space.*free space and retry"):
        table.compact()
    assert table.files() == named
    assert disk.files.list(f"fragments/{table.stats()['id']}") == there, "the half-written file was removed"
    assert engine_of(db).pending.paths() == frozenset()
    assert [dict(one) for one in table.scan()] == expected
    table.put(row(999))
    disk.files.bytes_max = None
    table.compact()
    assert len(table.files()) == 2
    assert [dict(one) for one in table.scan()] == [*expected, row(999)]
    db.close()


def test_the_background_tells_that_there_is_no_room_and_goes_on_when_there_is() -> None:
    disk = Disk(bytes_max=None)
    db, table, expected = many_files(disk)
    db.close()
    disk.files.plan = FaultPlan.fail_when(lambda operation: operation.path.startswith("fragments/"), errno.ENOSPC)
    db = disk.open(Settings(log_segment_bytes=8 * KIB, recent_row_slots=1 << 8))
    table = db.table("t")

    def until(is_so: Callable[[], bool]) -> None:
        while not is_so():
            engine_of(db).compactor.wake()
            time.sleep(0.001)

    bounded(lambda: until(lambda: "space" in (db.stats()["compactions"]["failure"] or "")))
    table.put(row(999))
    assert [dict(one) for one in table.scan()] == [*expected, row(999)]
    disk.files.plan = FaultPlan()
    disk.clock.advance(61)  # it is not tried again and again
    bounded(lambda: until(lambda: table.stats()["groups"]["typed"]["fragments_deep"] < 10))
    bounded(lambda: until(lambda: db.stats()["compactions"]["failure"] is None))
    assert [dict(one) for one in table.scan()] == [*expected, row(999)]
    db.close()
