"""Scans under way: what they hold is bounded, and whatever happens they give each row of their snapshot once."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ebla
from ebla.clock import ManualClock
from ebla.model.ranges import KeyRange
from ebla.service.listener import RangeChanged, TabletListener
from ebla.settings import Settings
from ebla.tablet.read.windows import Window, after
from ebla.tablet.scan import scan_windows
from ebla.tablet.scan.scan_progress import ScanProgress
from ebla.tablet.scan.scanners import Scanners
from ebla.tablet.tables.events import Events
from tests.crash.machine import bounded
from tests.support.inside import engine_of


class Held:
    """Something that can be let go."""

    def __init__(self) -> None:
        self.releases = 0

    def release(self) -> None:
        self.releases += 1


def test_the_least_recently_used_is_let_go_first() -> None:
    scanners = Scanners(ManualClock(), 2, 60.0)
    one, two, three = Held(), Held(), Held()
    for each in (one, two, one, three):
        scanners.touch(each)
    assert [one.releases, two.releases, three.releases] == [0, 1, 0]
    scanners.touch(two)
    assert [one.releases, two.releases, three.releases] == [1, 1, 0]
    assert scanners.stats() == {"live": 2, "evicted": 2, "expired": 0}


def test_what_is_unused_for_long_is_let_go_and_what_has_ended_is_not_touched() -> None:
    clock = ManualClock()
    scanners = Scanners(clock, 10, 60.0)
    old, ended, young = Held(), Held(), Held()
    scanners.touch(old)
    scanners.touch(ended)
    scanners.leave(ended)
    clock.advance(59)
    scanners.touch(young)
    clock.advance(1)
    scanners.expire()
    assert [old.releases, ended.releases, young.releases] == [1, 0, 0]
    scanners.leave(old)  # it ends without noticing
    assert scanners.stats() == {"live": 1, "evicted": 0, "expired": 1}


# --- progress --------------------------------------------------------------------------------------

ROWS = [b"%03d" % n for n in range(200)]


class Delayed(Future[list[bytes]]):
    """A future that is worked out when it is asked for."""


class Table:
    """Rows that are cut into tablets, which change."""

    def __init__(self) -> None:
        self.borders: list[bytes] = [b"050", b"120"]
        self.reads: list[KeyRange] = []

    def tablet(self, rest: KeyRange, reverse: bool) -> KeyRange:
        bounds = [b"", *self.borders, None]
        tablets = [KeyRange(a or b"", b) for a, b in pairwise(bounds)]
        shares = [share for one in tablets if (share := one.intersect(rest)) is not None]
        return shares[-1] if reverse else shares[0]

    def plan(self, rest: KeyRange, reverse: bool) -> tuple[list[Window], KeyRange | None]:
        share = self.tablet(rest, reverse)
        held = [row for row in ROWS if share.contains(row)]
        cuts = held[7::7]
        bounds: list[Any] = [share.first, *cuts, share.last]
        windows = [(KeyRange(a, b), 7) for a, b in pairwise(bounds)]
        return windows[::-1] if reverse else windows, after(rest, share, reverse=reverse)

    def read(self, window: KeyRange, reverse: bool) -> list[bytes]:
        self.reads.append(window)
        found = [row for row in ROWS if window.contains(row)]
        return found[::-1] if reverse else found


@dataclass
class WindowsOf:
    """The windows of a table, in one direction; what is read ahead is there at once."""

    table: Table
    reverse: bool
    inline_rows: int

    def plan(self, rest: KeyRange) -> tuple[list[Window], KeyRange | None]:
        return self.table.plan(rest, self.reverse)

    def read(self, window: KeyRange) -> list[bytes]:
        return self.table.read(window, self.reverse)

    def read_ahead(self, window: KeyRange) -> Future[list[bytes]]:
        future = Delayed()
        future.set_result(self.read(window))
        return future


def progress_of(
    table: Table, rows: KeyRange, reverse: bool, inline: int, scanners: Scanners, events: Events
) -> ScanProgress[list[bytes]]:
    return ScanProgress(
        "t",
        rows,
        reverse=reverse,
        windows=WindowsOf(table, reverse, inline),
        ahead_max=2,
        scanners=scanners,
        events=events,
    )


happenings = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["release", "changed", "split", "join", "expire"])), max_size=30
)
ends = st.none() | st.integers(0, 200).map(lambda n: b"%03d" % n)


@given(happenings, st.booleans(), st.sampled_from([0, 100]), ends, ends)
def test_every_row_is_given_once_in_order_whatever_happens_in_between(
    script: list[tuple[int, str]], reverse: bool, inline: int, first: bytes | None, last: bytes | None
) -> None:
    rows = KeyRange(first or b"", last)
    table, events, clock = Table(), Events(), ManualClock()
    scanners = Scanners(clock, 3, 60.0)
    progress = progress_of(table, rows, reverse, inline, scanners, events)
    found: list[bytes] = []
    steps = iter(progress)
    for count, happening in [*script, (1_000, "end")]:
        for _ in range(count):
            window = next(steps, None)
            if window is None:
                break
            found += window
        if happening == "release":
            progress.release()
        elif happening == "changed":
            progress.on_range_changed(RangeChanged("t", "x", KeyRange(), ()))
        elif happening == "split":
            table.borders = sorted({*table.borders, b"%03d" % (len(found) % 200 or 1)})
        elif happening == "join" and table.borders:
            table.borders.pop(len(found) % len(table.borders))
        elif happening == "expire":
            clock.advance(60)
            scanners.expire()
    expected = [row for row in ROWS if rows.contains(row)]
    assert found == (expected[::-1] if reverse else expected)
    assert scanners.stats()["live"] == 0
    assert not events._listeners


def test_what_is_read_ahead_is_bounded_and_goes_when_the_scan_is_let_go() -> None:
    table = Table()
    progress = progress_of(table, KeyRange(), False, 0, Scanners(ManualClock(), 9, 9.0), Events())
    steps = iter(progress)
    assert next(steps) == ROWS[:7]
    assert len(table.reads) == 3
    progress.release()
    assert not progress._ahead
    assert next(steps) == ROWS[7:14], "it goes on after what it gave"


@pytest.mark.parametrize("inline", [0, 100])
def test_a_window_that_is_under_way_when_the_scan_is_let_go_is_not_given_twice(inline: int) -> None:
    progress = progress_of(Table(), KeyRange(), False, inline, Scanners(ManualClock(), 9, 9.0), Events())
    next_window = progress._next

    def let_go_at_once() -> Any:
        found = next_window()
        progress.release()  # as another thread may, between any two steps of the one that reads
        return found

    progress._next = let_go_at_once  # type: ignore[method-assign]
    assert [row for window in progress for row in window] == ROWS


def test_a_scan_gets_on_although_the_tablets_change_more_quickly_than_it_plans() -> None:
    table = Table()
    progress = progress_of(table, KeyRange(), False, 100, Scanners(ManualClock(), 9, 9.0), Events())
    plan = table.plan
    plans = 0

    def changed_meanwhile(rest: KeyRange, reverse: bool) -> Any:
        nonlocal plans
        plans += 1
        assert plans <= len(ROWS), "it plans, and reads nothing"
        progress.on_range_changed(RangeChanged("t", "x", KeyRange(), ()))
        return plan(rest, reverse)

    table.plan = changed_meanwhile  # type: ignore[method-assign]
    assert [row for window in progress for row in window] == ROWS


# --- in a store ------------------------------------------------------------------------------------

SCHEMA = ebla.Schema(key={"k": "string"}, columns={"n": "int64"})


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_windows, "FIRST_WINDOW_ROWS", 8)
    monkeypatch.setattr(scan_windows, "INLINE_ROWS", 16)
    monkeypatch.setattr(scan_windows, "MEMORY_STRIDE", 4)


def filled(db: ebla.Database) -> ebla.Table:
    table = db.create_table("t", SCHEMA)
    table.put([{"k": f"{n:04}", "n": n} for n in range(1000)])
    return table


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_that_are_let_go_give_the_rows_of_their_snapshot(tmp_path: Path, reverse: bool) -> None:
    settings = Settings(scanners_max=2, background_compaction=False, scan_batch_rows=20)
    with ebla.open(tmp_path, settings=settings) as db:
        table = filled(db)
        expected = [dict(row) for row in table.scan(reverse=reverse)]
        scans: list[Iterator[Any]] = [iter(table.scan(reverse=reverse)) for _ in range(4)]
        found: list[list[Any]] = [[] for _ in scans]

        def offline_and_back() -> None:
            db.unload_table("t")
            db.load_table("t")

        changes = [
            table.flush,
            lambda: table.split("0500"),
            lambda: table.put([{"k": f"{n:04}", "n": -n} for n in range(0, 1000, 3)]),
            lambda: table.erase_range("0700", "0800"),
            table.compact,
            lambda: table.split("0250"),
            offline_and_back,
            lambda: table.join("0000", "0300"),
            lambda: table.join("0000", "0999"),
            table.compact,
        ]
        for change in changes:
            for scan, rows in zip(scans, found, strict=True):
                rows += [dict(row) for row in islice(scan, 60)]
            change()
        for scan, rows in zip(scans, found, strict=True):
            rows += [dict(row) for row in scan]
            assert rows == expected
        stats = db.stats()["scanners"]
        assert stats["evicted"] > 0
        assert stats["live"] == 0


@pytest.mark.usefixtures("small_windows")
def test_an_expired_scan_goes_on_and_its_snapshot_is_pinned(tmp_path: Path) -> None:
    settings = Settings(
        scanner_expiry_seconds=0.0, history_seconds=0.0, background_compaction=False, scan_batch_rows=20
    )
    with ebla.open(tmp_path, settings=settings) as db:
        table = filled(db)
        scan = table.scan()
        rows = iter(scan)
        found = [next(rows)["n"] for _ in range(10)]
        table.put([{"k": f"{n:04}", "n": -1} for n in range(1000)])
        table.compact()
        engine_of(db).scanners.expire()
        found += [row["n"] for row in rows]
        assert found == list(range(1000))
        assert db.stats()["scanners"]["expired"] > 0
        table.compact()
        with pytest.raises(ebla.HistoryGone):
            list(table.scan(as_of=scan.txn))  # nobody holds it any more


@pytest.mark.usefixtures("small_windows")
def test_a_scan_under_way_is_told_that_the_store_was_closed(tmp_path: Path) -> None:
    db = ebla.open(tmp_path, settings=Settings(background_compaction=False, scan_batch_rows=20))
    table = filled(db)
    scans = [iter(table.scan(reverse=reverse)) for reverse in (False, True)]
    for at, scan in enumerate(scans):
        assert len(list(islice(scan, 50 * at + 1))) == 50 * at + 1
    told: list[BaseException] = []

    def read() -> None:
        try:
            table.scan().to_arrow()
        except BaseException as error:
            told.append(error)

    is_over = threading.Event()
    pool = engine_of(db).scan_pool
    busy = [pool.submit(is_over.wait, 20) for _ in range(2)]
    reading = threading.Thread(target=read)
    reading.start()
    while not pool._work_queue.qsize():
        time.sleep(0.001)
    closing = threading.Thread(target=db.close)
    closing.start()
    reading.join(20)  # it waits for a window that nobody will come to read
    is_over.set()
    closing.join()
    assert all(one.result() for one in busy)
    assert [type(error) for error in told] == [ebla.Closed]
    for scan in scans:
        with pytest.raises(ebla.Closed):
            list(scan)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("where", ["pins", "scanners", "events"])
def test_a_scan_that_is_cleared_away_in_the_middle_of_anything_ends(tmp_path: Path, where: str) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False, scan_batch_rows=20)) as db:
        store = engine_of(db)
        others = list(store.events._listeners[None])
        scan: Any = iter(filled(db).scan())
        assert len(list(islice(scan, 50))) == 50
        assert len(store.pins.held_here()) == store.scanners.stats()["live"] == 1
        circle: list[Any] = [scan]
        circle.append(circle)
        del scan, circle
        parts: dict[str, Any] = {"pins": store.pins, "scanners": store.scanners, "events": store.events}

        def collect() -> None:
            with parts[where]._lock:  # as whoever is in there does, when he makes one object too many
                gc.collect()

        bounded(collect, 10)
        assert not store.pins.held_here()
        assert store.scanners.stats()["live"] == 0
        store.events.add(unheard := TabletListener())
        store.events.remove(unheard)
        assert store.events._listeners[None] == others


def test_a_short_scan_is_not_among_those_under_way(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=replace(Settings(), background_compaction=False)) as db:
        table = filled(db)
        assert len(list(table.scan(limit=10))) == 10
        assert len(list(table.scan("0100", "0200"))) == 100
        assert db.stats()["scanners"] == {"live": 0, "evicted": 0, "expired": 0}
        assert engine_of(db).scanners._entered == 0
