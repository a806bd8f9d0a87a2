"""The row cache never gives a row that is not the newest, and never holds more than it may."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ebla
from ebla.client.database import Database
from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.tablet.recent_rows import RecentRows
from ebla.tablet.row_cache import ENTRY_BYTES, RowCache, row_bytes
from tests.support.simulated_files import FaultPlan, Operation, SimulatedFiles

SALT = 5
NAMES = [f"field{n}" for n in range(10)]


class Cached:
    """A row cache, and the commits that its rows are subject to."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        self.recent = RecentRows(1 << 12, 0)
        self.cache = RowCache(self.recent, bytes_max)

    def put(self, row: bytes, value: int, read_at: int, size: int = 10) -> None:
        self.cache.put(row, {"n": value}, size, self.recent.slot_of(row, SALT), read_at)

    def commit(self, txn: int, *rows: bytes) -> None:
        array = pa.array(rows, pa.binary())
        watched = self.recent.change(self.recent.slots_of(array, SALT), txn)
        if len(watched):
            self.cache.drop(array, watched)


def test_a_row_that_was_read_is_kept() -> None:
    world = Cached()
    world.put(b"a", 1, read_at=5)
    assert world.cache.rows[b"a"] == {"n": 1}
    assert world.cache.stats()["rows"] == 1


def test_a_commit_takes_its_rows_out_and_leaves_others() -> None:
    world = Cached()
    world.put(b"a", 1, read_at=5)
    world.put(b"b", 2, read_at=5)
    world.commit(6, b"a", b"c")
    assert list(world.cache.rows) == [b"b"]


def test_a_row_that_changed_since_it_was_read_is_not_kept() -> None:
    world = Cached()
    world.commit(6, b"a")
    world.put(b"a", 1, read_at=5)
    assert world.cache.rows == {}
    world.put(b"a", 2, read_at=6)
    assert world.cache.rows == {b"a": {"n": 2}}


def test_a_row_read_before_a_range_erasure_is_not_kept_after_it() -> None:
    world = Cached()
    world.put(b"a", 1, read_at=5)
    world.cache.clear(7)
    assert world.cache.rows == {}
    world.put(b"a", 1, read_at=6)
    assert world.cache.rows == {}
    world.put(b"a", 2, read_at=7)
    assert world.cache.rows == {b"a": {"n": 2}}


def test_the_oldest_rows_go_when_the_bytes_are_used_up() -> None:
    world = Cached(bytes_max=16 * (ENTRY_BYTES + 11))
    for n in range(40):
        world.put(b"%d" % (n % 10) + b"%d" % (n // 10), n, read_at=1, size=8)
        assert world.cache.stats()["bytes"] <= 16 * (ENTRY_BYTES + 11)
    assert len(world.cache.rows) == 16
    assert world.cache.rows[b"93"] == {"n": 39}
    world.cache.drop(pa.array([b"93"], pa.binary()), np.array([0]))
    assert len(world.cache.rows) == 15
    assert world.cache.stats()["bytes"] == 15 * (ENTRY_BYTES + 10)


def test_a_row_that_was_found_since_its_turn_came_last_stays() -> None:
    world = Cached(bytes_max=16 * (ENTRY_BYTES + 10))
    rows = [b"%02d" % n for n in range(20)]
    for row in rows[:16]:
        world.put(row, 1, read_at=1, size=8)
    world.cache.used.update((b"00", b"02"))
    for row in rows[16:18]:
        world.put(row, 1, read_at=1, size=8)
    assert list(world.cache.rows) == [*rows[4:16], b"00", rows[16], b"02", rows[17]]
    assert world.cache.used == set()


def test_new_rows_find_room_where_all_rows_are_in_use() -> None:
    world = Cached(bytes_max=16 * (ENTRY_BYTES + 10))
    for n in range(40):
        world.put(b"%02d" % n, 1, read_at=1, size=8)
        world.cache.used.update(world.cache.rows)
    assert len(world.cache.rows) == 16
    assert b"39" in world.cache.rows


def test_what_was_found_and_has_gone_at_the_same_moment_is_not_remembered_for_ever() -> None:
    world = Cached()
    for n in range(100):
        world.put(b"%02d" % n, 1, read_at=n)
        world.commit(n + 1, b"%02d" % n)
        world.cache.used.add(b"%02d" % n)  # by a reader that had it just before
        assert len(world.cache.used) <= 1


def test_a_row_too_large_for_the_cache_is_not_kept() -> None:
    world = Cached(bytes_max=1000)
    world.put(b"a", 1, read_at=1, size=1000)
    assert world.cache.rows == {}


def test_a_row_is_worth_keeping_when_it_is_asked_for_again() -> None:
    cache = Cached().cache
    assert [cache.wants(row) for row in (b"a", b"b", b"a", b"a")] == [False, False, True, True]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: {"k": n + 1_000, "a": n * 1.5, "b": f"text {n}"},
        lambda n: {"k": b"key %d" % n, **{name: b"%0100d" % (n + at) for at, name in enumerate(NAMES)}},
        lambda n: {"k": n + 1_000, **{name: n * 1_000 + at for at, name in enumerate(NAMES)}},
        lambda n: {
            "k": n + 1_000,
            "list": [f"item {n} {i}" for i in range(50)],
            "one": {"x": [n * 1.5], "y": b"%d" % n},
        },
    ],
    ids=["short", "long", "numbers", "nested"],
)
def test_a_row_counts_as_what_it_takes_in_memory(make: Callable[[int], dict[str, Any]]) -> None:
    cache = Cached(bytes_max=1 << 30).cache
    cache.put(b"first", {}, 0, 1, 1)
    counted = cache.stats()["bytes"]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n in range(500):
        row = make(n)
        cache.put(b"row %d" % n, row, row_bytes(row), 1, 1)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.9 * taken <= cache.stats()["bytes"] - counted <= 1.4 * taken


def test_names_that_only_one_row_has_count_too() -> None:
    row = {f"family:{'q' * 100}{n}": b"" for n in range(10)}
    assert row_bytes(row, names_too=True) >= row_bytes(row) + 1_000


# --- in a store ----------------------------------------------------------------------------------


def open_with(clock: ManualClock, plan: FaultPlan | None = None) -> Database:
    files, nodes = SimulatedFiles(plan), MemoryCoordination(MemoryStore(), clock)
    return Database.wire(Path("simulated"), files, nodes, clock, ebla.Settings(), None)


def test_a_get_before_a_range_erasure_is_committed_leaves_nothing_stale_behind() -> None:
    may_sync = threading.Event()
    may_sync.set()

    def wait_for_it(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.startswith("log/"):
            may_sync.wait()

    with open_with(ManualClock(), FaultPlan(when=wait_for_it)) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
        table.put({"k": "a", "n": 1})
        assert table.get("a")["n"] == 1
        may_sync.clear()
        table.erase_range(wait="none")
        assert table.get("a")["n"] == 1  # asked for again, and not erased yet
        may_sync.set()
        db.sync()
        assert table.get("a") is None


def test_a_row_that_expires_without_a_commit_is_not_served_from_the_cache() -> None:
    clock = ManualClock()
    groups = [ebla.Group("g", columns={"n": "int64"}, max_age="10s"), ebla.Group("h", columns={"m": "int64"})]
    with open_with(clock) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=groups))
        table.put({"k": "a", "n": 1})
        assert [table.get("a")["n"] for _ in range(3)] == [1, 1, 1]
        clock.advance(60)
        table.put({"k": "b", "m": 2})  # time is known by commits
        assert table.get("a") is None
        assert [row["k"] for row in table.scan()] == ["b"]
