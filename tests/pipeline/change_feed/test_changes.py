"""Changes between two txns: what was inserted, updated and erased, whatever files and memory it is in."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ebla
from ebla.client.moments import txn_of
from ebla.errors import HistoryGone, RequestError
from ebla.model.ranges import ALL, KeyRange
from ebla.pipeline import changes
from ebla.pipeline.change_feed.change_plan import steps, touched_rows
from ebla.pipeline.change_feed.changes import BEFORE, CHANGE, outcome, txn_since
from ebla.pipeline.spark.types import to_spark
from ebla.settings import Settings
from tests.pipeline.scanning.test_scan_random import QUIET, SHAPES, Story
from tests.support.inside import engine_of
from tests.support.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = 24
POINTS = ebla.Schema(key={"k": "string"}, columns={"n": "int64", "s": "string"})


def by_key(rows: list[dict[str, Any]], key: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {repr([row[name] for name in key]): row for row in rows}


def check(found: list[dict[str, Any]], table: ebla.Table, since: int, until: int, **asked: Any) -> None:
    """Fail unless these are the differences between two scans, and rows that were set to what they were."""
    key = table.key_names
    old, new = (by_key(to_spark(table.scan(as_of=txn, **asked).to_arrow()).to_pylist(), key) for txn in (since, until))
    changed = by_key(found, key)
    assert len(changed) == len(found)
    assert changed.keys() >= {at for at in old.keys() | new.keys() if repr(old.get(at)) != repr(new.get(at))}
    for at, row in changed.items():
        kind = "erase" if at not in new else "update" if at in old else "insert"
        assert row[CHANGE] == kind
        values = {name: value for name, value in row.items() if name not in (CHANGE, BEFORE)}
        if kind != "erase":
            assert repr(values) == repr(new[at])
        before = None if at not in old else {name: value for name, value in old[at].items() if name not in key}
        assert repr(row[BEFORE]) == repr(before)


@pytest.mark.parametrize("seed", seeds(8, SEEDS))
def test_changes_are_the_difference_of_two_scans(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    with ebla.open(tmp_path / "store", settings=QUIET) as db:
        story = Story(db, SHAPES[seed % len(SHAPES)], dice)
        story.tell()
        state = engine_of(db).table("t")
        for columns in (None, dice.sample(list(story.shape.columns), 1)):
            since, until = sorted(dice.sample([*story.txns, story.table.scan().txn], 2))
            projection = state.projection(columns)
            parts = state.view, state.reader, projection
            rows = touched_rows(*parts, ALL, since, until)
            ranges = [step.range for step in steps(*parts, ALL, since, until, dice.choice([1, 3, 10]))]
            assert [at.last for at in ranges[:-1]] == [at.first for at in ranges[1:]]
            assert not ranges or (ranges[0].first, ranges[-1].last) == (b"", None)
            in_steps = [row for at in ranges for row in touched_rows(*parts, at, since, until).to_pylist()]
            assert in_steps == rows.to_pylist()
            found = to_spark(outcome(state, projection, rows, since, until, before=True)).to_pylist()
            check(found, story.table, since, until, columns=columns)
            bare = to_spark(outcome(state, projection, rows, since, until, before=False)).to_pylist()
            assert repr(bare) == repr([{name: row[name] for name in row if name != BEFORE} for row in found])


@pytest.mark.parametrize("flushes", [1, 5])
def test_tasks_get_even_shares_of_what_changed(flushes: int, db: ebla.Database) -> None:
    group = ebla.Group("default", columns={"n": "int64"}, block_bytes=4096)
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=[group]))
    for turn in range(flushes):
        table.put([{"k": f"{n:05}", "n": n} for n in range(turn, 6_000, flushes)])
        table.flush()
    state = engine_of(db).table("t")
    parts = state.view, state.reader, state.projection(None)
    until = db.snapshot().txn
    for records_max, tasks, count in [(10_000, 2, 2), (10_000, 3, 3), (2_000, 2, 4), (2_000, 1, 3)]:
        found = steps(*parts, ALL, 1, until, records_max, tasks)
        shares = [len(touched_rows(*parts, step.range, 1, until)) for step in found]
        assert len(shares) == count
        assert max(shares) < 1.4 * 6_000 / count, shares
    half = KeyRange(b"", b"03000")
    assert len(steps(*parts, half, 1, until, 10_000, 2)) == 2


def test_changes_come_as_a_frame(db: ebla.Database, root: str, spark: SparkSession) -> None:
    table = db.create_table("t", POINTS, splits=["050"])
    table.put([{"k": f"{n:03}", "n": n, "s": "old"} for n in range(100)])
    since = table.flush() or db.snapshot().txn
    table.put([{"k": "007", "n": -7}, {"k": "new", "n": 1}])
    table.flush()
    table.erase("060")
    until = table.erase_range("090", "092")
    table.put({"k": "001", "n": 0})
    for source in (db, root):
        rows = {row["k"]: row for row in changes(source, "t", since, until, before=True, spark=spark).collect()}
        assert {key: row[CHANGE] for key, row in rows.items()} == {
            "007": "update",
            "new": "insert",
            "060": "erase",
            "090": "erase",
            "091": "erase",
        }
        assert (rows["007"]["n"], rows["007"]["s"], rows["007"][BEFORE]["n"]) == (-7, "old", 7)
        assert rows["new"][BEFORE] is None
        assert (rows["060"]["n"], rows["060"][BEFORE]["s"]) == (None, "old")
    assert changes(db, "t", since, start="05", columns=["n"], spark=spark).columns == ["k", "n", CHANGE]
    assert changes(db, "t", since, start="05", spark=spark).count() == 4
    assert changes(db, "t", db.snapshot().txn, spark=spark).count() == 0


def test_only_files_with_changes_are_opened(db: ebla.Database, spark: SparkSession) -> None:
    table = db.create_table("t", POINTS)
    table.put([{"k": f"{n:03}", "n": n} for n in range(100)])
    table.flush()
    since = db.snapshot().txn
    table.put([{"k": f"{n:03}", "n": -n} for n in range(3)])
    table.flush()
    (old,) = (
        ref for ref in engine_of(db).table("t").view.metadata.tablets[0].groups[0].fragments if ref.txn_max <= since
    )
    state = engine_of(db).table("t")
    Path(db.path, old.file).rename(Path(db.path, old.file + ".away"))
    state.reader.forget([old.file])
    rows = touched_rows(state.view, state.reader, state.projection(None), ALL, since, db.snapshot().txn)
    assert rows.to_pylist() == [b"000", b"001", b"002"]


def test_since_the_beginning_all_rows_are_inserts(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=Settings(history_seconds=0, background_compaction=False)) as db:
        table = db.create_table("t", POINTS, splits=["050"])
        table.put([{"k": f"{n:03}", "n": n} for n in range(100)])
        table.erase("007")
        table.compact()
        table.put({"k": "008", "n": -8})
        for before in (False, True):
            rows = {row["k"]: row for row in changes(db, "t", 0, before=before, spark=spark).collect()}
            assert len(rows) == 99
            assert {row[CHANGE] for row in rows.values()} == {"insert"}
            assert (rows["008"]["n"], rows["099"]["n"]) == (-8, 99)
            assert not before or rows["008"][BEFORE] is None
        frame = changes(db, "t", 0, spark=spark)
        assert engine_of(db).pins.oldest() == table.scan().txn
        del frame


def test_since_a_moment_after_the_newest_commit_nothing_has_changed() -> None:
    now = datetime.now(UTC)
    newest = txn_of(now - timedelta(hours=1))
    assert txn_since(now, newest) == newest
    assert txn_since(now - timedelta(hours=2), newest) < newest
    assert txn_since(now + timedelta(hours=1), newest) > newest  # which is refused, as is a txn that is not there yet
    assert txn_since(newest + 1, newest) == newest + 1


def test_what_cannot_be_is_refused(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=Settings(history_seconds=0, background_compaction=False)) as db:
        table = db.create_table("t", POINTS)
        since = table.put({"k": "a", "n": 1})
        until = table.put({"k": "a", "n": 2})
        with pytest.raises(RequestError, match="later than until"):
            changes(db, "t", until, since, spark=spark)
        for unknown in ("as_of", "where", "wehre"):
            with pytest.raises(TypeError, match=f"'{unknown}'"):
                changes(*(db, "t", since), **{"spark": spark, unknown: until})  # type: ignore[call-overload]
        table.flush()
        table.put({"k": "a", "n": 3})
        table.compact()
        with pytest.raises(HistoryGone):
            changes(db, "t", since - 1, spark=spark)
        with pytest.raises(HistoryGone):
            changes(db, "t", 0, since, spark=spark)  # all that was there then is not there any more
        assert engine_of(db).pins.oldest() is None
