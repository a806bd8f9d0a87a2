"""The row cache never gives a row that is not the newest, and never holds more than it may."""

from __future__ import annotations

import datetime as dt
import itertools
import sys
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ebla
from ebla.client.database import Database
from ebla.client.embedded.opening import wire
from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.tablet.read.row_cache import ENTRY_BYTES, LEFT_BYTES_MAX, LEFT_MAX, CachedRows, RowCache, row_bytes
from ebla.tablet.write.recent_rows import RecentRows
from tests.support.inside import state_of
from tests.support.simulated_files import FaultPlan, Operation, SimulatedFiles

SALT = 5
NAMES = [f"field{n}" for n in range(10)]


class Cached:
    """A row cache, and the commits that its rows are subject to."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        self.recent = RecentRows(1 << 12, 0)
        self.all = CachedRows(self.recent, bytes_max)
        self.cache = RowCache(self.all)

    def in_turn(self) -> list[bytes]:
        return [row for _, row in self.all._turns]

    def put(self, row: bytes, value: int, read_at: int, size: int = 10) -> None:
        self.cache.put(row, {"n": value}, size, self.recent.slot_of(row, SALT), read_at)

    def commit(self, txn: int, *rows: bytes) -> None:
        array = pa.array(rows, pa.binary())
        watched = self.recent.change(self.recent.slots_of(array, SALT), txn)
        if len(watched):
            self.cache.drop(array, watched)

    def commit_one(self, txn: int, row: bytes) -> None:
        if len(self.recent.change(self.recent.slot_of(row, SALT), txn)):
            self.cache.leave(row, txn)


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
    assert world.in_turn() == [*rows[4:16], b"00", rows[16], b"02", rows[17]]
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


def test_any_row_is_worth_keeping_while_half_of_the_room_is_free() -> None:
    world = Cached(bytes_max=100 * (ENTRY_BYTES + 10))
    kept = 0
    while world.cache.wants(b"%04d" % kept, was_read=False):
        world.put(b"%04d" % kept, 1, read_at=5, size=6)
        kept += 1
    assert kept == 50


def test_a_row_is_worth_keeping_when_it_is_asked_for_again() -> None:
    world = Cached(bytes_max=20_000)
    for n in range(35):
        world.put(b"%d" % n, 1, read_at=5)
    cache = world.cache
    assert [cache.wants(row, was_read=False) for row in (b"a", b"b", b"a", b"a")] == [False, False, True, True]


def test_a_row_for_which_a_file_was_read_is_worth_keeping_at_once() -> None:
    assert Cached().cache.wants(b"a", was_read=True)


def test_tables_share_one_bound_and_the_oldest_row_of_any_goes_first() -> None:
    world = Cached(bytes_max=16 * (ENTRY_BYTES + 10))
    others = [RowCache(world.all) for _ in range(3)]
    for n in range(12):
        world.put(b"%02d" % n, 1, read_at=1, size=8)
    world.cache.used.add(b"00")
    for n in range(6):
        others[n % 3].put(b"%02d" % n, {}, 8, 1, 1)
    assert list(world.cache.rows) == [b"00", *(b"%02d" % n for n in range(3, 12))]
    assert [len(other.rows) for other in others] == [2, 2, 2]
    others[0].clear(1)
    world.put(b"12", 1, read_at=1, size=8)
    assert len(world.cache.rows) == 11
    assert sum(cache.stats()["bytes"] for cache in (world.cache, *others)) == 15 * (ENTRY_BYTES + 10)


# --- rows that are changed one by one ------------------------------------------------------------


def test_a_row_that_changes_is_out_until_its_writer_takes_it_back() -> None:
    world = Cached()
    world.put(b"a", 1, read_at=5)
    world.commit_one(6, b"a")
    assert world.cache.rows == {}
    assert world.cache.taken_back(b"a", 6) == {"n": 1}
    assert world.cache.taken_back(b"a", 6) is None
    world.put(b"a", 2, read_at=6)
    assert world.cache.rows == {b"a": {"n": 2}}


@pytest.mark.parametrize("again", ["one", "many", "range"])
def test_a_row_that_changes_again_is_taken_back_by_neither_writer(again: str) -> None:
    world = Cached()
    world.put(b"a", 1, read_at=5)
    world.commit_one(6, b"a")
    if again == "one":
        world.commit_one(7, b"a")
    elif again == "many":
        world.commit(7, b"a", b"b")
    else:
        world.cache.clear(7)
    assert [world.cache.taken_back(b"a", txn) for txn in (6, 7)] == [None, None]
    world.put(b"a", 2, read_at=6)
    assert world.cache.rows == {}


def test_a_writer_does_not_take_back_what_another_one_changes() -> None:
    world = Cached()
    world.commit_one(6, b"a")
    world.put(b"a", 2, read_at=6)  # by a reader
    world.commit_one(7, b"a")
    assert world.cache.taken_back(b"a", 6) is None
    assert world.cache.taken_back(b"a", 7) == {"n": 2}


def test_rows_whose_commits_never_end_are_not_kept_for_ever() -> None:
    world = Cached()
    for n in range(LEFT_MAX + 10):
        world.put(b"%d" % n, n, read_at=n)
        world.commit_one(n + 1, b"%d" % n)
    assert len(world.cache._left) == 10


def test_large_rows_are_not_laid_aside() -> None:
    world = Cached(bytes_max=64 << 20)
    for row, size in ((b"a", LEFT_BYTES_MAX - 1_000), (b"b", LEFT_BYTES_MAX)):
        world.put(row, 1, read_at=5, size=size)
        world.commit_one(6, row)
    assert [world.cache.taken_back(row, 6) for row in (b"a", b"b")] == [{"n": 1}, None]
    assert world.cache.rows == {}


# --- interrupts ----------------------------------------------------------------------------------


def test_rows_are_not_served_though_their_clearing_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Cached(bytes_max=16 * (ENTRY_BYTES + 10))
    rows = [b"%02d" % n for n in range(16)]
    for row in rows:
        world.put(row, 1, read_at=1, size=8)
    remove, removed = world.all.remove, itertools.count()

    def interrupted(*given: Any) -> int:
        if next(removed) == 5:
            raise KeyboardInterrupt
        return remove(*given)

    with monkeypatch.context() as patched:
        patched.setattr(world.all, "remove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            world.cache.clear(2)
    assert world.cache.rows == {}
    for row in [*rows, *rows, *(b"x" + row for row in rows)]:
        world.put(row, 2, read_at=3, size=7)
    assert sorted(world.cache.rows) == [b"x" + row for row in rows]
    assert world.cache.stats()["bytes"] == world.all._bytes == 16 * (ENTRY_BYTES + 10)


def test_a_row_whose_putting_is_interrupted_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Cached(bytes_max=16 * (ENTRY_BYTES + 10))
    add = world.all.add

    def interrupted(*given: Any) -> None:
        add(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(world.all, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            world.put(b"00", 1, read_at=1, size=8)
    for n in range(40):
        world.put(b"%02d" % (n % 30), n, read_at=1, size=8)
    assert len(world.cache.rows) == 16
    assert world.cache.stats()["bytes"] == 16 * (ENTRY_BYTES + 10)


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
    return wire(Path("simulated"), files, nodes, clock, ebla.Settings(), None)


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


PLAIN = {
    "flag": ("bool", True),
    "small": ("int8", -5),
    "large": ("uint64", (1 << 64) - 1),
    "real": ("float64", -0.0),
    "text": ("string", "höher"),
    "raw": ("binary", b"\0\xff"),
    "day": ("date32", dt.date(2026, 2, 3)),
    "day64": ("date64", dt.date(2026, 2, 3)),
    "clock": ("time64[us]", dt.time(1, 2, 3, 4)),
    "moment": ("timestamp[us]", dt.datetime(2026, 1, 2, 3, 4, 5, 6)),
    "fine": ("timestamp[ns]", dt.datetime(2026, 1, 2, 3, 4, 5, 6)),
    "zoned": ("timestamp[us, tz=Europe/Rome]", dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)),
}


@pytest.mark.parametrize("until", ["durable", "logged"])
def test_a_put_of_one_row_leaves_in_the_cache_what_a_reader_would_find(until: Any) -> None:
    columns = {name: kind for name, (kind, _) in PLAIN.items()}
    groups = [ebla.Group("g", columns=columns), ebla.Group("h", columns={"m": "int64", "list": "list<int64>"})]
    with open_with(ManualClock()) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "string", "d": "float64"}, groups=groups))
        table.put({"k": "a", "d": 0.5, "m": 1, "list": [1, 2]})
        assert table.get(("a", 0.5)) == table.get(("a", 0.5))  # asked for again
        for name, (_, value) in PLAIN.items():
            for put in (value, None, value):
                txn = table.put({"k": "a", "d": 0.5, name: put}, wait=until)
                cached = state_of(table).row_cache.rows[state_of(table).codec.encode(("a", 0.5))]
                past_the_cache = table.get(("a", 0.5), as_of=txn)
                assert cached == past_the_cache
                assert list(cached) == list(past_the_cache)
                assert [*map(type, cached.values())] == [*map(type, past_the_cache.values())]
                assert repr(table.get(("a", 0.5))) == repr(past_the_cache)


def test_a_put_of_all_columns_of_a_row_is_in_the_cache_at_once() -> None:
    with open_with(ManualClock()) as db:
        groups = [ebla.Group("g", columns={"b": "int64", "a": "string"}), ebla.Group("h", columns={"c": "int64"})]
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=groups))
        txn = table.put({"c": 1, "a": "x", "k": "one", "b": None})
        assert table.stats()["row_cache"]["rows"] == 1
        assert list(table.get("one").items()) == list(table.get("one", as_of=txn).items())
        table.put({"k": "two", "a": "x", "b": 2})
        table.put({"k": "three", "a": "x", "b": 2, "c": 3}, wait="none")
        assert table.stats()["row_cache"]["rows"] == 1
        table.erase("one")
        assert table.get("one") is None
        table.put({"c": 1, "a": "y", "k": "one", "b": 7})
        db.alter_table("t", add_columns={"h": {"d": "int64"}})
        table.put({"c": 1, "a": "y", "k": "one", "b": 8})
        assert table.get("one") == {"k": "one", "b": 8, "a": "y", "c": 1, "d": None}


def test_rows_of_cells_keep_their_cells_when_a_column_is_put() -> None:
    groups = [ebla.Group("g", columns={"n": "int64"}), ebla.Group("h", families=["f"])]
    with open_with(ManualClock()) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=groups))
        table.put({"k": "a", "n": 1, "f:x": b"1"})
        for _ in range(2):
            assert table.get("a") == {"k": "a", "n": 1, "f:x": b"1"}
        table.put({"k": "a", "n": 2})
        assert table.stats()["row_cache"]["rows"] == 1
        assert table.get("a") == {"k": "a", "n": 2, "f:x": b"1"}
        table.put({"k": "a", "f:y": b"2"})
        assert table.get("a") == {"k": "a", "n": 2, "f:x": b"1", "f:y": b"2"}


def test_a_commit_that_fails_leaves_nothing_of_it_in_the_cache() -> None:
    fails = threading.Event()

    def fail(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.startswith("log/") and fails.is_set():
            raise OSError("no more")

    db = open_with(ManualClock(), FaultPlan(when=fail))
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
    table.put({"k": "a", "n": 1})
    fails.set()
    with pytest.raises(ebla.EblaError):
        table.put({"k": "a", "n": 2})
    assert state_of(table).row_cache.rows == {}


def test_readers_beside_writers_of_one_row_never_see_it_go_back(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ebla.open(tmp_path) as db:
            table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"a": "int64", "b": "int64"}))
            table.put({"k": 0, "a": 0, "b": 0})
            done = threading.Event()

            def write(column: str) -> None:
                for n in range(1, 301):
                    table.put({"k": 0, column: n})
                    assert table.get(0)[column] == n  # nobody else writes it

            def read() -> None:
                last = {"a": 0, "b": 0}
                while not done.is_set():
                    row = table.get(0)
                    assert all(row[name] >= last[name] for name in last)
                    last = {name: row[name] for name in last}

            with ThreadPoolExecutor(4) as pool:
                readers = [pool.submit(read) for _ in range(2)]
                writers = [pool.submit(write, name) for name in ("a", "b")]
                wait(writers)
                done.set()
                for one in (*writers, *readers):
                    one.result()
            assert dict(table.get(0)) == {"k": 0, "a": 300, "b": 300}
    finally:
        sys.setswitchinterval(before)


def test_a_put_whose_row_python_cannot_show_is_done_all_the_same() -> None:
    late = dt.datetime(9999, 12, 31, 23, 59, tzinfo=dt.UTC)  # in Tokyo it is the year 10000 then
    with open_with(ManualClock()) as db:
        kind = pa.timestamp("us", "Asia/Tokyo")
        values = db.create_table("values", ebla.Schema(key={"k": "int64"}, columns={"at": kind}))
        values.put({"k": 1, "at": late})
        keys = db.create_table("keys", ebla.Schema(key={"at": kind}, columns={"n": "int64"}))
        keys.put({"at": late, "n": 1})
        assert [table.scan().count() for table in (values, keys)] == [1, 1]


def test_commits_that_nobody_waits_for_lay_nothing_aside() -> None:
    with open_with(ManualClock()) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"n": "int64", "m": "int64"}))
        for k in range(5):
            table.put({"k": k, "n": 1, "m": 1})
            table.put({"k": k, "n": 2}, wait="none")
        assert state_of(table).row_cache._left == {}
        db.sync()
        assert [table.get(k)["n"] for k in range(5)] == [2] * 5
