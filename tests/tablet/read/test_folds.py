"""Short scans served from folds give what the whole scan gives, whatever happens to the files and in memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.tablet.read.folds import LAID_OVER_MAX, Fold
from ebla.tablet.read.reader import Reader
from tests.support.inside import engine_of, state_of

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


def kept(db: ebla.Database) -> dict[Any, Fold]:
    cache = engine_of(db).cache
    return {key: cache.peek(key) for key in list(cache._priority) if key[1:2] == ("fold",)}


def folds_of(db: ebla.Database) -> int:
    return len(kept(db))


def agree(table: ebla.Table, dice: random.Random, **asked: Any) -> None:
    rows = list(table.scan(**asked))
    for _ in range(12):
        at, count = dice.randrange(3_000), dice.choice((1, 7, 50, 400))
        expected = [row for row in rows if row["k"] >= f"{at:05d}"][:count]
        for _ in range(3):  # a fold is made at the first or second time
            assert list(table.scan(f"{at:05d}", limit=count, **asked)) == expected
        assert table.scan(f"{at:05d}", limit=count, **asked).to_arrow().to_pylist() == expected


def test_scans_that_come_again_are_served_from_folds(db: ebla.Database) -> None:
    table = filled(db)
    list(table.scan("01000", limit=10))
    assert folds_of(db) == 1
    before = db.stats()["block_cache"]["entries"]
    assert [row["a"] for row in table.scan("01002", limit=3)] == [1002, 1003, 1004]
    assert db.stats()["block_cache"]["entries"] == before


def test_a_cache_that_is_half_full_takes_folds_that_are_asked_for_again(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "small", settings=replace(SETTINGS, block_cache_bytes=520 << 10)) as db:
        table = filled(db)
        for n in range(0, 3_000, 10):
            for file in range(4):
                table.get(f"{n + file:05d}")
        assert db.stats()["block_cache"]["bytes"] > engine_of(db).cache.room // 2
        list(table.scan("01000", limit=10))
        assert folds_of(db) == 0
        list(table.scan("01001", limit=10))
        assert folds_of(db) == 1


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


def test_a_block_that_two_tablets_share_is_given_to_each_as_far_as_it_is_theirs(db: ebla.Database) -> None:
    table, dice = filled(db, files=1), random.Random(4)
    for at in ("01500", "01510", "02000"):
        agree(table, dice)
        table.split(at)
    for start in ("01490", "01505", "01999"):
        assert [row["a"] for row in table.scan(start, limit=40)] == list(range(int(start), int(start) + 40))
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


def test_newer_records_are_laid_over_a_fold_until_it_is_moved_on(db: ebla.Database) -> None:
    table = filled(db)
    for _ in range(2):
        list(table.scan("01000", limit=10))
    (made,) = kept(db).values()
    table.put({"k": "01003", "a": -1})
    table.put({"k": "01003+", "a": -2})
    expected = ["01000", "01001", "01002", "01003", "01003+", "01004"]
    for _ in range(LAID_OVER_MAX):
        assert [row["k"] for row in table.scan("01000", limit=6)] == expected
        assert list(kept(db).values()) == [made]
    assert [row["k"] for row in table.scan("01000", limit=6)] == expected
    (moved,) = kept(db).values()
    assert moved.txn > made.txn
    assert {"k": "01003", "a": -1, "b": "x" * 40} in table.scan("01000", limit=6)


def test_a_flush_moves_a_fold_on_and_does_not_end_it(db: ebla.Database) -> None:
    table = filled(db)
    for _ in range(2):
        list(table.scan("01000", limit=10))
    ((key, made),) = kept(db).items()
    table.put([{"k": f"{n:05d}", "b": "new"} for n in range(900, 1_100)])
    table.flush()
    assert [row["b"] for row in table.scan("01000", limit=10)] == ["new"] * 10
    assert kept(db)[key].txn > made.txn


def test_what_is_not_committed_is_in_no_fold(db: ebla.Database) -> None:
    table = filled(db)
    for _ in range(4):
        table.put({"k": "01003", "a": -1}, wait="none")
        assert table.scan("01003", limit=1, read_uncommitted=True).to_arrow().to_pylist()[0]["a"] == -1
    assert folds_of(db) == 0


def test_a_fold_does_not_keep_more_than_its_own_in_memory(db: ebla.Database) -> None:
    table = filled(db, files=1)
    table.get_many([f"{n:05d}" for n in range(3_000)])  # decodes blocks many at a time
    table.put({"k": "01003", "a": -1})
    for _ in range(2):
        list(table.scan("01000", limit=10))
    (fold,) = kept(db).values()
    assert fold.block.records.get_total_buffer_size() < 3 * fold.block.records.nbytes


@pytest.mark.parametrize("seed", range(2))
def test_short_scans_agree_with_long_ones_whatever_happens(db: ebla.Database, seed: int) -> None:
    dice, rows = random.Random(seed), 600
    schema = replace(SCHEMA, groups=[replace(SCHEMA.groups[0], block_bytes=1_024)])
    table = db.create_table("t", schema)

    def some() -> str:
        return f"{dice.randrange(rows):05d}" + dice.choice(("", "", "+"))

    def whole() -> list[dict[str, Any]]:
        return [{"k": some(), "a": dice.randrange(99), "b": "y" * dice.randrange(60)} for _ in range(80)]

    steps = [
        lambda: table.put(whole()),
        lambda: table.put([{"k": some(), "a": dice.randrange(99)} for _ in range(20)]),
        lambda: table.put({"k": some(), "b": "one"}),
        lambda: table.put({"k": some(), "b": "later"}, wait="none"),
        lambda: table.erase_many([some() for _ in range(8)]),
        lambda: table.erase_range(*sorted((some(), some()))) if dice.random() < 0.3 else None,
        table.flush,
        lambda: table.compact() if dice.random() < 0.3 else None,
        lambda: table.split(splits.pop()) if splits else None,
    ]
    splits = ["00200", "00400"]
    moves = 0
    for _ in range(6):
        table.put(whole())
        table.flush()
    with db.snapshot() as past:
        for _ in range(25):
            before = kept(db)
            dice.choice(steps)()
            for asked in ({"read_uncommitted": True}, {}, {"as_of": past.txn}, {"latest": True}):
                if not asked:
                    db.sync()  # from here on, nothing changes between two scans
                every = list(table.scan(**asked))
                for _ in range(3):
                    start, count = some(), dice.choice((1, 5, 40, 200))
                    expected = list(islice((row for row in every if row["k"] >= start), count))
                    for _ in range(2):
                        assert list(table.scan(start, limit=count, **asked)) == expected
            after = kept(db)
            moves += sum(after[key] is not before[key] for key in before.keys() & after.keys())
    assert moves > 10


def test_readers_beside_a_writer_see_their_snapshot_in_folds(db: ebla.Database) -> None:
    table = filled(db)
    wrong: list[Any] = []
    done = threading.Event()

    def read(seed: int) -> None:
        dice = random.Random(seed)
        while not done.is_set():
            start = f"{dice.randrange(1_000, 1_300):05d}"
            short = table.scan(start, limit=20)
            if list(short) != list(islice(table.scan(start, as_of=short.txn), 20)):
                wrong.append((start, short.txn))

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    for reader in readers:
        reader.start()
    dice = random.Random(9)
    for n in range(250):
        at = dice.randrange(1_000, 1_300)
        if n % 5 == 0:
            table.erase(f"{at:05d}")
        else:
            table.put({"k": f"{at:05d}" + dice.choice(("", "+")), "a": n}, wait=dice.choice(("none", "durable")))
        if n % 100 == 99:
            table.flush()
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert folds_of(db)


def test_a_row_with_a_long_history_is_folded_like_any_other(db: ebla.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebla.tablet.read.folds.RECORDS_MAX", 300)
    table = filled(db, files=1)
    for n in range(40):
        table.put([{"k": "01003", "a": -n * 100 - i, "b": "y" * 40} for i in range(100)], wait="none")
    table.flush()
    for _ in range(3):
        rows = list(table.scan("01002", limit=3))
    assert [row["a"] for row in rows] == [1002, -3999, 1004]
    assert folds_of(db) == 1


def test_a_file_with_several_records_per_row_is_folded_too(db: ebla.Database) -> None:
    table = filled(db, files=1)
    table.put([{"k": f"{n:05d}", "a": -n} for n in range(0, 3_000, 2)])
    with db.snapshot() as whole:
        table.erase("01003")
        with db.snapshot() as erased:
            table.put({"k": "01003", "b": "again"})
            table.compact()
            for _ in range(3):
                assert [row["b"][:5] for row in table.scan("01003", limit=2)] == ["again", "xxxxx"]
                assert [row["a"] for row in table.scan("01002", limit=3)] == [-1002, None, -1004]
                assert [row["a"] for row in table.scan("01002", limit=3, as_of=whole.txn)] == [-1002, 1003, -1004]
                assert [row["a"] for row in table.scan("01002", limit=3, as_of=erased.txn)] == [-1002, -1004, 1005]
            assert folds_of(db) == 1
            agree(table, random.Random(13))
            agree(table, random.Random(13), as_of=erased.txn)


def test_a_scan_goes_from_file_to_file_over_what_is_between_them(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.create_table("t", SCHEMA)
    for first in (0, 1_000, 2_000):
        table.put([{"k": f"{n:05d}", "a": n, "b": "x"} for n in range(first, first + 500)])
        table.flush()
    dice = random.Random(17)
    agree(table, dice)
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "read", None)  # the long way
        assert [row["a"] for row in table.scan("00498", limit=4)] == [498, 499, 1000, 1001]
        assert list(table.scan("00600", "00700", limit=4)) == []
    with db.snapshot() as before:
        steps = [
            lambda: table.put({"k": "00700", "a": 700}),
            table.flush,
            lambda: table.erase_range("00400", "01100"),
            lambda: table.put([{"k": "00499", "b": "y"}, {"k": "01600", "b": "y"}]),
            lambda: table.split("00600"),
            table.compact,
        ]
        for step in steps:
            step()
            agree(table, dice)
            agree(table, dice, as_of=before.txn)


def test_what_a_compaction_replaced_makes_room_for_the_folds_of_what_it_wrote(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "small", settings=replace(SETTINGS, block_cache_bytes=512 << 10)) as db:
        table = filled(db, files=8)
        for _ in range(3):
            for at in range(0, 3_000, 10):
                list(table.scan(f"{at:05d}", limit=10))
        cache = engine_of(db).cache
        assert cache.stats()["bytes"] > cache.room * 3 // 4
        table.put([{"k": f"{n:05d}", "a": -n} for n in range(0, 3_000, 7)])
        table.compact()
        assert {key[0] for key in cache._priority} <= set(state_of(table).view.metadata.files())
        table.put({"k": "01000", "b": "y"})
        table.flush()
        for _ in range(3):
            assert [row["a"] for row in table.scan("01000", limit=3)] == [1000, -1001, 1002]
        assert folds_of(db) == 1


def test_what_a_fold_takes_is_counted_without_what_blocks_have_beyond_it(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(db, files=3)
    monkeypatch.setattr("ebla.tablet.read.folds.RECORDS_MAX", 0)
    for at in range(0, 3_000, 10):
        list(table.scan(f"{at:05d}", limit=10))
    assert folds_of(db) == 0
    base = state_of(table).view.metadata.tablets[0].groups[0].fragments[0]
    first, last = (int(row[:5]) for row in state_of(table).reader.fragment(base).first_rows[1:3])
    for records_max, made in ((last - first - 1, 0), (last - first, 1)):
        monkeypatch.setattr("ebla.tablet.read.folds.RECORDS_MAX", records_max)
        for _ in range(2):
            list(table.scan(f"{first:05d}", limit=10))
        assert folds_of(db) == made
