"""Short scans served from folds give what the whole scan gives, whatever happens to the files and in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ebla

SCHEMA = ebla.Schema(
    key={"k": "string"}, groups=[ebla.Group("g", columns={"a": "int64", "b": "string"}, block_bytes=4_096)]
)
SETTINGS = ebla.Settings(background_compaction=False)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "s", settings=SETTINGS) as database:
        yield database


def filled(db: ebla.Database, files: int = 4) -> ebla.Table:
    table = db.create_table("t", SCHEMA)
    for file in range(files):
        table.put([{"k": f"{n:05d}", "a": n, "b": "x" * 40} for n in range(file, 3_000, files)])
        table.flush()
    return table


def folds_of(db: ebla.Database) -> int:
    cache = db._store.cache
    return sum(1 for key in cache._priority if key[1:2] == ("fold",))


def agree(table: ebla.Table, dice: random.Random, **asked: Any) -> None:
    rows = list(table.scan(**asked))
    for _ in range(12):
        at, count = dice.randrange(3_000), dice.choice((1, 7, 50, 400))
        expected = [row for row in rows if row["k"] >= f"{at:05d}"][:count]
        for _ in range(3):  # a fold is made when it is asked for again
            assert list(table.scan(f"{at:05d}", limit=count, **asked)) == expected
        assert table.scan(f"{at:05d}", limit=count, **asked).to_arrow().to_pylist() == expected


def test_scans_that_come_again_are_served_from_folds(db: ebla.Database) -> None:
    table = filled(db)
    list(table.scan("01000", limit=10))
    assert folds_of(db) == 0
    list(table.scan("01001", limit=10))
    assert folds_of(db) == 1
    before = db.stats()["block_cache"]["entries"]
    assert [row["a"] for row in table.scan("01002", limit=3)] == [1002, 1003, 1004]
    assert db.stats()["block_cache"]["entries"] == before


def test_what_happens_after_a_fold_was_made_is_seen(db: ebla.Database) -> None:
    table, dice = filled(db), random.Random(3)
    agree(table, dice)
    assert folds_of(db)
    table.put([{"k": f"{n:05d}", "b": "partial"} for n in range(0, 3_000, 7)])
    agree(table, dice)
    table.put([{"k": f"{n:05d}+", "a": n} for n in range(0, 3_000, 11)])
    agree(table, dice)
    table.erase_many([f"{n:05d}" for n in range(0, 3_000, 5)])
    agree(table, dice)
    table.erase_range("01000", "01200")
    agree(table, dice)
    table.flush()
    agree(table, dice)
    table.split("01500")
    agree(table, dice)
    table.compact()
    agree(table, dice)


def test_readers_of_the_past_and_of_other_columns_get_what_is_theirs(db: ebla.Database) -> None:
    table, dice = filled(db), random.Random(5)
    with db.snapshot() as before:
        agree(table, dice)
        table.put([{"k": f"{n:05d}", "a": -1} for n in range(0, 3_000, 3)])
        table.flush()
        agree(table, dice)
        agree(table, dice, as_of=before.txn)
    agree(table, dice, columns=["b"])
    agree(table, dice, columns=["b", "a"])


def test_a_changed_schema_makes_folds_anew(db: ebla.Database) -> None:
    table, dice = filled(db), random.Random(7)
    agree(table, dice)
    db.alter_table("t", add_columns={"c": "int32"}, drop_columns=["b"])
    table = db.table("t")
    agree(table, dice)
    table.put([{"k": f"{n:05d}", "c": n} for n in range(0, 3_000, 13)])
    table.flush()
    agree(table, dice)


def test_groups_that_share_files_have_folds_of_their_own(db: ebla.Database) -> None:
    filled(db)
    db.alter_table("t", groups=[ebla.Group("h", columns={})], move={"b": "h"})
    table = db.table("t")
    for column in ("a", "b", "a"):
        agree(table, random.Random(11), columns=[column])
    assert folds_of(db)


def test_composite_keys_have_folds_too(db: ebla.Database) -> None:
    table = db.create_table("t", ebla.Schema(key={"a": "int64", "b": "string"}, columns={"v": "int64"}))
    for file in range(3):
        table.put([{"a": n // 10, "b": str(n % 10), "v": n} for n in range(file, 2_000, 3)])
        table.flush()
    for _ in range(3):
        assert [row["v"] for row in table.scan((50,), limit=20)] == list(range(500, 520))
    assert folds_of(db)


def test_nothing_is_pushed_out_of_a_full_cache(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "small", settings=replace(SETTINGS, block_cache_bytes=64 << 10)) as db:
        table, dice = filled(db), random.Random(9)
        agree(table, dice)
        assert folds_of(db) <= 2
