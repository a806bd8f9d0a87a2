"""Scans: windows that cover the range exactly, whatever happens to the table between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ebla
from ebla.client.embedded.opening import wire
from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.errors import RequestError, UnknownColumn
from ebla.model.declaration import Group, Schema
from ebla.model.filters import with_columns_of
from ebla.model.projection import Projection
from ebla.model.ranges import ALL, KeyRange
from ebla.tablet.read.windows import WINDOW_GROWTH, cut, even_window_rows, lie_on_each_other
from ebla.tablet.scan import scan_windows
from ebla.tablet.scan.scan_windows import ScanWindows
from ebla.tablet.scan.scanner import Scanner, ScanRequest
from tests.support.inside import engine_of, state_of
from tests.support.simulated_files import SimulatedFiles

# --- cutting -------------------------------------------------------------------------------------

row = st.binary(max_size=3)
MARKS = st.lists(st.tuples(row, st.integers(1, 10)), max_size=20).map(sorted)
SHARES = st.builds(KeyRange, row, st.none() | row).filter(lambda share: not share.is_empty)


@given(st.integers(0, 10_000), st.integers(1, 500), st.integers(1, 8))
def test_even_windows_are_small_enough_and_few(rows: int, largest: int, threads: int) -> None:
    each = even_window_rows(rows, largest, threads)
    assert 1 <= each <= largest
    windows = -(-rows // each)
    fewest = -(-rows // largest)
    assert fewest <= windows < fewest + 2 * threads
    if rows >= threads * largest:
        assert windows >= threads


@given(SHARES, MARKS, st.integers(1, 20), st.integers(1, 50))
def test_windows_follow_each_other_and_cover_the_range_exactly(
    share: KeyRange, marks: list[tuple[bytes, int]], first: int, largest: int
) -> None:
    windows = cut(share, marks, first, largest)
    assert windows[0][0].first == share.first
    assert windows[-1][0].last == share.last
    for (before, _), (after, _) in pairwise(windows):
        assert before.last == after.first
    assert not any(window.is_empty for window, _ in windows)
    assert sum(rows for _, rows in windows) == sum(rows for _, rows in marks)


@given(MARKS, st.integers(1, 20), st.integers(1, 50))
def test_windows_are_as_large_as_asked_for_and_grow(marks: list[tuple[bytes, int]], first: int, largest: int) -> None:
    windows = cut(ALL, marks, first, largest)
    size = min(first, largest)
    for _, rows in windows[:-1]:
        assert rows >= size
        size = min(largest, size * WINDOW_GROWTH)


def test_a_range_without_marks_is_one_window() -> None:
    assert cut(KeyRange(b"a", b"b"), [], 10, 10) == [(KeyRange(b"a", b"b"), 0)]


# --- scanning a table ----------------------------------------------------------------------------

SCHEMA = Schema(
    key={"k": "string"},
    groups=[
        Group("a", columns={"n": "int64", "even": "bool"}),
        Group("b", columns={"m": "int64"}),
        Group("c", families=["*"]),
    ],
)


class World:
    """A table of 60 rows in three tablets, partly in fragments and partly in memory, read in tiny windows."""

    def __init__(self) -> None:
        clock = ManualClock()
        nodes = MemoryCoordination(MemoryStore(), clock)
        settings = ebla.Settings(scan_batch_rows=7)
        self.db = wire(Path("simulated"), SimulatedFiles(), nodes, clock, settings, None)
        self.table = self.db.create_table("t", SCHEMA, splits=["k20", "k40"])
        self.expected = [self.row(n) for n in range(60)]
        self.table.put([row for row in self.expected if row["n"] % 3 == 0])
        self.table.flush()
        self.table.put([row for row in self.expected if row["n"] % 3 == 1])
        self.table.flush()
        self.table.put([{**row, "m": -1} for row in self.expected if row["n"] % 3])
        self.table.put([row for row in self.expected if row["n"] % 3])

    def row(self, n: int) -> dict[str, Any]:
        row: dict[str, Any] = {"k": f"k{n:02d}", "n": n, "even": n % 2 == 0, "m": n * 10}
        return {**row, "f:q": b"%d" % n} if n % 5 == 0 else row

    def scanner(self, **given: Any) -> Scanner:
        request = {"projection": Projection.of(self.table.schema), "as_of": self.db.sync(), **given}
        return Scanner(engine_of(self.db).scan_parts, state_of(self.table), ScanRequest(**request))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(scan_windows, "FIRST_WINDOW_ROWS", 2)
    monkeypatch.setattr(scan_windows, "MEMORY_STRIDE", 3)
    monkeypatch.setattr(scan_windows, "INLINE_ROWS", 8)
    made = World()
    yield made
    made.db.close()


def keys(rows: list[dict[str, Any]]) -> list[str]:
    return [row["k"] for row in rows]


class TestWindows:
    def windows(self, world: World, key_range: KeyRange, *, reverse: bool = False) -> list[KeyRange]:
        scanned = world.scanner(key_range=key_range, reverse=reverse)._scanned
        plan = ScanWindows(scanned, short=None, enough=None, whole=False).plan
        found, rest = [], key_range
        while rest is not None:
            of_tablet, rest = plan(rest)
            found += [window for window, _ in of_tablet]
        return found

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("key_range", [ALL, KeyRange(b"k05", b"k45"), KeyRange(b"k21", b"k22"), KeyRange(b"k59")])
    def test_the_windows_of_all_tablets_cover_the_range(self, world: World, key_range: KeyRange, reverse: bool) -> None:
        windows = self.windows(world, key_range, reverse=reverse)
        if reverse:
            windows.reverse()
        assert windows[0].first == key_range.first
        assert windows[-1].last == key_range.last
        assert all(before.last == after.first for before, after in pairwise(windows))

    def test_a_long_scan_has_many_windows_and_an_empty_range_none(self, world: World) -> None:
        assert len(self.windows(world, ALL)) > 5
        assert list(world.scanner(key_range=KeyRange(b"b", b"a")).tables()) == []


class TestRows:
    def test_all_rows_come_once_and_in_order(self, world: World) -> None:
        assert list(world.table.scan()) == world.expected

    def test_reverse_is_the_same_backwards(self, world: World) -> None:
        assert list(world.table.scan(reverse=True)) == world.expected[::-1]

    @pytest.mark.parametrize("limit", [0, 1, 2, 7, 8, 59, 60, 61])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_a_limit_is_kept_exactly(self, world: World, limit: int, reverse: bool) -> None:
        ordered = world.expected[::-1] if reverse else world.expected
        assert list(world.table.scan(limit=limit, reverse=reverse)) == ordered[:limit]

    @pytest.mark.parametrize(
        ("start", "stop"), [("k10", "k50"), ("k19", "k21"), (None, "k20"), ("k20", None), ("x", "y")]
    )
    def test_start_belongs_to_the_range_and_stop_does_not(
        self, world: World, start: str | None, stop: str | None
    ) -> None:
        expected = [r["k"] for r in world.expected if (start or "") <= r["k"] and (stop is None or r["k"] < stop)]
        assert keys(list(world.table.scan(start, stop))) == expected
        assert keys(list(world.table.scan(start, stop, reverse=True))) == expected[::-1]

    def test_where_is_applied_before_the_limit(self, world: World) -> None:
        found = list(world.table.scan(where=pc.field("even"), limit=5))
        assert found == [row for row in world.expected if row["even"]][:5]

    def test_where_may_name_columns_that_are_not_asked_for(self, world: World) -> None:
        found = world.table.scan(columns=["n"], where=pc.field("m") > 500).to_arrow()
        assert found.schema.names == ["k", "n"]
        assert found["n"].to_pylist() == list(range(51, 60))

    def test_batches_are_never_empty_and_never_larger_than_the_setting(self, world: World) -> None:
        batches = list(world.table.scan().to_batches())
        assert all(0 < batch.num_rows <= 7 for batch in batches)
        assert pa.Table.from_batches(batches).num_rows == 60

    def test_a_scan_can_be_used_again_and_gives_the_same(self, world: World) -> None:
        scan = world.table.scan()
        first = scan.to_arrow()
        world.table.put({"k": "k00", "n": -1})
        assert scan.to_arrow().equals(first)
        assert scan.count() == 60


class TestChangesUnderneath:
    def test_a_flush_and_later_writes_in_the_middle_change_nothing(self, world: World) -> None:
        scan = iter(world.table.scan())
        found = [next(scan) for _ in range(5)]
        world.table.put([{"k": row["k"], "n": -1} for row in world.expected])
        world.table.erase_range("k30", "k50")
        world.table.flush()
        found += scan
        assert found == world.expected

    def test_latest_follows_newer_commits(self, world: World) -> None:
        scan = iter(world.table.scan(latest=True))
        next(scan)
        world.table.erase_range("k20")
        assert {row["k"] for row in scan} <= {f"k{n:02d}" for n in range(20)}

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("taken", [0, 1, 19, 20, 21, 40, 59, 60])
    def test_a_scan_goes_on_after_the_last_row_it_gave_at_the_same_txn(
        self, world: World, taken: int, reverse: bool
    ) -> None:
        scan = world.table.scan(reverse=reverse)
        rows = iter(scan)
        found = [next(rows) for _ in range(taken)]
        position = scan.position
        world.table.erase_range()
        world.table.put({"k": "k30", "n": 1})
        found += world.table.scan(reverse=reverse, resume=position)
        assert found == (world.expected[::-1] if reverse else world.expected)

    def test_a_scan_that_is_dropped_half_way_leaves_the_store_usable(self, world: World) -> None:
        for _ in range(20):
            next(iter(world.table.scan()))
        assert world.table.scan().count() == 60


class TestWhere:
    def projection(self, *columns: str) -> Projection:
        return Projection.of(SCHEMA.number(), list(columns) or None)

    def test_the_columns_that_it_names_are_added(self) -> None:
        wider = with_columns_of((pc.field("m") > 1) & (pc.field("f:q") == b"x"), self.projection("n"))
        assert wider.arrow_schema.names == ["k", "n", "m", "f:q"]

    def test_what_is_there_stays_as_it_is(self) -> None:
        narrow = self.projection("f:")
        assert [(o.name, o.kind) for o in with_columns_of(pc.field("n") > 1, narrow).outputs] == [
            ("f", "family"),
            ("n", "typed"),
        ]
        everything = self.projection()
        assert with_columns_of(pc.field("n") > 1, everything).outputs == everything.outputs

    def test_an_unknown_column_is_named(self) -> None:
        plain = Projection.of(Schema(key={"k": "string"}, columns={"n": "int64"}).number())
        with pytest.raises(UnknownColumn, match="where names 'nn'"):
            with_columns_of(pc.field("nn") > 1, plain)

    def test_a_filter_that_does_not_fit_the_types_is_refused(self) -> None:
        with pytest.raises(RequestError, match="where cannot be used"):
            with_columns_of(pc.field("n") > "text", self.projection("n"))
        with pytest.raises(RequestError, match="where cannot be used"):
            with_columns_of(pc.field("n") + 1, self.projection("n"))

    def test_the_rest_of_a_table_survives_a_filter(self, world: World) -> None:
        found = list(world.table.scan(where=pc.field("n") == 5))
        assert found == [{"k": "k05", "n": 5, "even": False, "m": 50, "f:q": b"5"}]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], False),
        ([(b"a", b"c")], False),
        ([(b"d", b"f"), (b"a", b"c")], False),
        ([(b"a", b"c"), (b"c", b"d")], True),
        ([(b"a", b"z"), (b"x", b"y"), (b"b", b"c")], True),
        ([(b"a", b"a"), (b"a", b"a")], True),
    ],
    ids=["none", "one", "side by side", "a row in common", "one over others", "the same row"],
)
def test_sources_that_have_rows_in_common_are_told(spans: list[tuple[bytes, bytes]], expected: bool) -> None:
    assert lie_on_each_other(spans) is expected
