"""Tablets that are split and joined by themselves, and that are left alone."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.metadata.values.changes import TabletAt
from ebla.metadata.values.recutting import BeginSplit
from ebla.metadata.values.table_metadata import FragmentRef, GroupState, TableMetadata, TabletMetadata, initial_metadata
from ebla.settings import KIB, Settings
from ebla.tablet.life.shape import Limits, joinable, maybe_too_large
from tests.crash.machine import bounded
from tests.support.inside import engine_of, state_of

SCHEMA = ebla.Schema(key={"k": "string"}, columns={"v": "binary"})
SMALL = Settings(
    background_compaction=False,
    tablet_bytes_max=256 * KIB,
    join_bytes_max=64 * KIB,
    join_after_seconds=0.0,
    history_seconds=0.0,
    block_cache_bytes=1024 * KIB,
)
NUMBERED = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"v": "binary"}, block_bytes=4 * KIB)])


def fill(table: ebla.Table, begin: int, end: int, size: int = 512) -> None:
    """Rows that cannot be compressed."""
    chance = random.Random(begin)
    table.put([{"k": f"{n:06}", "v": chance.randbytes(size)} for n in range(begin, end)])
    table.flush()


def shape_all(db: ebla.Database) -> int:
    """Let the shaper do all there is to do; return how much that was."""
    return bounded(lambda: sum(1 for _ in itertools.takewhile(bool, iter(engine_of(db).shaper.work, None))))


def sized(*sizes: int | None) -> TableMetadata:
    """A table whose tablets have one file of each size, or never had anything."""
    rows = [b"%02d" % n for n in range(1, len(sizes))]
    metadata = initial_metadata("t", SCHEMA.number(), [f"t{n}" for n in range(len(sizes))], rows)
    (group,) = metadata.schema.group_by_id

    def filled(tablet: TabletMetadata, size: int | None) -> TabletMetadata:
        if size is None:
            return tablet
        last = (tablet.first or b"0") + b"x"
        ref = FragmentRef(f"{tablet.id}.parquet", 1, size, tablet.first, last, 1, 1, 1)
        return tablet.with_group(GroupState(group, (ref,) if size else (), (), 1, 1))

    return metadata.with_tablets([filled(t, s) for t, s in zip(metadata.tablets, sizes, strict=True)])


LIMITS = Limits(1000, 100, 60.0)


def test_small_neighbours_are_joined_the_smallest_first() -> None:
    found = joinable(sized(60, 30, 20, 200, 90, 5), LIMITS, lambda tablet: 60.0)
    assert [(left.id, right.id) for left, right in found] == [("t1", "t2"), ("t0", "t1"), ("t4", "t5")]


def test_young_tablets_and_tablets_that_never_had_anything_are_not_joined() -> None:
    assert not joinable(sized(1, 1), LIMITS, lambda tablet: 59.0)
    assert not joinable(sized(None, None, 5, None), LIMITS, lambda tablet: 60.0)
    assert len(joinable(sized(0, 5, 0), LIMITS, lambda tablet: 60.0)) == 2, "emptied tablets are"


def test_a_join_never_leaves_what_is_split_again() -> None:
    settings = Settings(tablet_bytes_max=100, join_bytes_max=90)
    assert Limits.of(settings).join_bytes == 25
    assert Limits.of(Settings(tablet_bytes_max=0, join_bytes_max=90)).join_bytes == 90


def test_only_the_large_are_looked_at_closer_and_0_means_never() -> None:
    metadata = sized(900, 1001, None, 5000)
    assert [tablet.id for tablet in maybe_too_large(metadata, LIMITS)] == ["t1", "t3"]
    assert not maybe_too_large(metadata, Limits(0, 0, 0))
    assert not joinable(metadata, Limits(0, 0, 0), lambda tablet: 1.0)


def test_a_tablet_that_grows_is_split_and_its_parts_are_small_enough(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=SMALL) as db:
        table = db.create_table("t", NUMBERED)
        fill(table, 0, 2000)
        assert shape_all(db) >= 3
        count = len(table.tablets())
        assert 4 <= count <= 12
        assert shape_all(db) == 0, "what was split is not split again, nor joined"
        rows = [table.scan(t["first"], t["last"]).count() for t in table.tablets()]
        assert sum(rows) == 2000
        assert max(rows) <= 4 * min(rows)
        table.compact()
        assert shape_all(db) == 0
        assert len(table.tablets()) == count


def test_versions_do_not_make_a_tablet_large(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=replace(SMALL, compact_runs_min=100, compact_runs_max=100)) as db:
        table = db.create_table("t", NUMBERED)
        for _ in range(10):
            fill(table, 0, 200)
        assert sum(tablet["bytes"] for tablet in table.tablets()) > SMALL.tablet_bytes_max
        assert shape_all(db) == 0


def test_one_huge_row_is_left_alone(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=SMALL) as db:
        table = db.create_table("t", NUMBERED)
        fill(table, 0, 1, size=512 * KIB)
        assert shape_all(db) == 0
        assert [tablet["state"] for tablet in table.tablets()] == ["running"]


def test_tablets_that_are_emptied_are_joined(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=SMALL) as db:
        table = db.create_table("t", NUMBERED)
        fill(table, 0, 2000)
        shape_all(db)
        assert len(table.tablets()) >= 4
        table.erase_range("000050", None)
        table.compact()
        shape_all(db)
        assert len(table.tablets()) == 1
        assert table.scan().count() == 50


def test_a_fixed_table_is_left_alone(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=SMALL) as db:
        table = db.create_table("t", NUMBERED, fixed=True)
        fill(table, 0, 2000)
        assert shape_all(db) == 0
        assert len(table.tablets()) == 1


def test_what_was_begun_is_finished_first(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=SMALL) as db:
        table = db.create_table("t", NUMBERED)
        fill(table, 0, 10)
        (tablet,) = state_of(table).view.metadata.tablets
        begin = BeginSplit(TabletAt(tablet.id, tablet.epoch), b"000004", ("left", "right"))
        engine_of(db).metadata.commit(state_of(table).id, [begin])
    with ebla.open(tmp_path, settings=replace(SMALL, join_bytes_max=0)) as db:
        assert shape_all(db) == 1
        assert [tablet["id"] for tablet in db.table("t").tablets()] == ["left", "right"]


def test_a_split_that_fails_is_tried_again_later_and_holds_up_no_other_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=SMALL) as db:
        bad, good = db.create_table("bad", NUMBERED), db.create_table("good", NUMBERED)
        for table in (bad, good):
            fill(table, 0, 1000)
        shaper = engine_of(db).shaper
        split = engine_of(db).recutter.split

        def failing(state: Any, row: Any, tablet: Any = None) -> Any:
            if state.name == "bad":
                raise ebla.StoreError("no luck")
            return split(state, row, tablet)

        monkeypatch.setattr(engine_of(db).recutter, "split", failing)
        shape_all(db)
        assert (len(bad.tablets()), len(good.tablets()) > 1) == (1, True)
        assert "no luck" in str(shaper.failure)
        monkeypatch.undo()
        assert shape_all(db) == 0, "not before some time has passed"
        shaper._not_before.clear()
        shape_all(db)
        assert len(bad.tablets()) > 1


@pytest.mark.parametrize("what", ["split", "drop", "unload"])
def test_a_table_that_others_change_before_it_is_split_is_looked_at_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    with ebla.open(tmp_path, settings=replace(SMALL, join_bytes_max=0)) as db:
        table = db.create_table("t", NUMBERED)
        fill(table, 0, 1500)
        recutter = engine_of(db).recutter
        choose = recutter.choose

        def overtaken(state: Any, tablet: Any) -> bytes | None:
            monkeypatch.undo()
            row = choose(state, tablet)
            match what:
                case "split":
                    table.split("000010")
                case "drop":
                    db.drop_table("t")
                case "unload":
                    db.unload_table("t")
            return row

        monkeypatch.setattr(recutter, "choose", overtaken)
        assert shape_all(db) == 0
        assert engine_of(db).shaper.failure is None
        assert not caplog.records
        if what == "unload":
            db.load_table("t")
        assert (shape_all(db) > 0) == (what != "drop")


def test_the_background_splits_by_itself(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=replace(SMALL, background_compaction=True, join_bytes_max=0)) as db:
        table = db.create_table("t", NUMBERED)
        fill(table, 0, 1500)

        def wait() -> None:
            while len(table.tablets()) < 3:
                table.get("000001")

        bounded(wait)
        assert table.scan().count() == 1500
