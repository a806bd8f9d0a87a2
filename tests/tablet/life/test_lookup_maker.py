"""Lookup files are made where rows are read one by one, never needed to be right, and gone with their fragment."""

from __future__ import annotations

import datetime
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.storage.lookup.lookup_policy import DECODED_POINTS
from ebla.tablet.life.lookup_maker import LookupMaker, heirs
from tests.support.inside import engine_of

SCHEMA = ebla.Schema(
    key={"user": "string", "day": "date32"},
    groups=[
        ebla.Group(
            "typed", columns={"n": "int64", "name": "string", "at": "timestamp[us]", "price": "decimal128(10, 2)"}
        ),
        ebla.Group("more", columns={"extra": "string"}, max_versions="all"),
        ebla.Group("cells", families=["click", "*"], max_versions=3),
    ],
)
DAY = datetime.date(2026, 1, 2)
ROWS = 120


def opened(path: Path, **settings: Any) -> ebla.Database:
    """Open a store that makes lookup files when it is told to."""
    chosen = {"background_compaction": False, "row_cache_bytes": 0, "block_cache_bytes": 0, "lookup_at_once": True}
    chosen |= settings
    return ebla.open(path, settings=ebla.Settings(**chosen))


def row_of(number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"user": f"u{number:03d}", "day": DAY, "n": number, "name": None if number % 5 == 0 else "é"}
    row |= {"at": datetime.datetime(2026, 1, 1, 0, 0, number % 60), "price": None, "extra": "x" * (number % 7)}
    return row | {"click:home": b"%d" % number, "free:a": b"1", "lang": b"fr"}


def fill(table: ebla.Table) -> None:
    """Put rows so that there are fragments that lie on each other, with partial puts and erasures of all kinds."""
    table.put([row_of(number) for number in range(ROWS)])
    table.flush()
    table.put([{"user": f"u{n:03d}", "day": DAY, "n": -n, "click:home": b"again"} for n in range(0, ROWS, 3)])
    table.erase_many([(f"u{n:03d}", DAY) for n in range(0, ROWS, 10)])
    table.erase(("u007", DAY), columns=["name", "click:home"])
    table.flush()
    table.put([row_of(number) for number in range(0, ROWS, 20)])
    table.erase_range(("u100",), ("u108",))
    table.flush()


def answers(table: ebla.Table) -> list[Any]:
    keys = [(f"u{number:03d}", DAY) for number in range(-1, ROWS + 2)]
    return [
        [table.get(key) for key in keys],
        [table.get(key, columns=["extra", "click:home"]) for key in keys],
        [table.get(key, versions=2) for key in keys[:20]],
        table.get_many(keys).to_pylist(),
    ]


def maker_of(db: ebla.Database) -> LookupMaker:
    return engine_of(db).lookup_maker


def lookups_at(path: Path) -> list[Path]:
    return sorted((path / "lookup").glob("*")) if (path / "lookup").exists() else []


def finds(db: ebla.Database) -> int:
    return engine_of(db).report.counters().lookup_finds_total


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A store without lookup files, and what it answers; closed, to be copied."""
    path = tmp_path_factory.mktemp("filled") / "store"
    with opened(path, lookup_bytes_max=0) as db:
        table = db.create_table("t", SCHEMA)
        fill(table)
        maker_of(db).round()
        assert lookups_at(path) == []
        return path, answers(table)


@pytest.fixture
def truth(filled: tuple[Path, list[Any]], tmp_path: Path) -> tuple[Path, list[Any]]:
    """A store of one's own without lookup files, and what it answers."""
    return Path(shutil.copytree(filled[0], tmp_path / "store")), filled[1]


def made(path: Path) -> None:
    with opened(path) as db:
        maker_of(db).round()
    assert len(lookups_at(path)) == len(list(path.glob("fragments/*/*.parquet"))) > 3


def test_answers_with_lookup_files_are_those_without(truth: tuple[Path, list[Any]]) -> None:
    path, expected = truth
    made(path)
    with opened(path) as db:
        assert answers(db.table("t")) == expected
        assert finds(db) > 2 * ROWS


def test_a_conflict_is_found_by_lookup_files(truth: tuple[Path, list[Any]]) -> None:
    path, _ = truth
    made(path)
    with opened(path, recent_row_slots=1) as db:
        table = db.table("t")
        old = table.get(("u001", DAY))
        assert old is not None
        table.put({"user": "u002", "day": DAY, "n": 1})
        before = finds(db)
        table.put({"user": "u001", "day": DAY, "n": 1}, if_unchanged_since=old.txn)
        assert finds(db) > before
        with pytest.raises(ebla.Conflict):
            table.put({"user": "u001", "day": DAY, "n": 2}, if_unchanged_since=old.txn)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 1_000):
        data[at] ^= 1
    path.write_bytes(data)


def deleted(path: Path) -> None:
    path.unlink()


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def stale(path: Path) -> None:
    others = sorted(path.parent.glob("*"))
    path.write_bytes(others[others.index(path) - 1].read_bytes())


@pytest.mark.parametrize("harm", [cut, emptied, flipped, deleted, stale, directory], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("while_open", [False, True])
def test_the_answer_is_right_whatever_becomes_of_lookup_files(
    truth: tuple[Path, list[Any]], harm: Callable[[Path], None], while_open: bool
) -> None:
    path, expected = truth
    made(path)
    db = opened(path)
    if while_open:
        assert answers(db.table("t")) == expected
    for lookup in lookups_at(path):
        harm(lookup)
    assert answers(db.table("t")) == expected
    db.close()
    for lookup in lookups_at(path):
        if lookup.is_dir():
            lookup.rmdir()
    made(path)  # they are rebuilt
    with opened(path) as db:
        assert answers(db.table("t")) == expected
        assert finds(db) > 2 * ROWS


def test_what_is_found_damaged_is_made_again_by_the_next_round(truth: tuple[Path, list[Any]]) -> None:
    path, expected = truth
    made(path)
    with opened(path, lookup_at_once=False) as db:
        maker_of(db).round()
        assert answers(db.table("t")) == expected
        there = lookups_at(path)
        largest = max(there, key=lambda lookup: lookup.stat().st_size)
        cut(largest)
        assert answers(db.table("t")) == expected
        assert largest not in lookups_at(path)
        assert engine_of(db).report.counters().lookup_damaged_total == 1
        maker_of(db).round()
        assert lookups_at(path) == there
        assert answers(db.table("t")) == expected
        counters = engine_of(db).report.counters()
        assert (counters.lookup_damaged_total, counters.lookup_made_total) == (1, 1)


def test_what_people_removed_is_made_again_when_it_is_missed(truth: tuple[Path, list[Any]]) -> None:
    path, expected = truth
    made(path)
    with opened(path, lookup_at_once=False) as db:
        maker_of(db).round()  # it knows of those that are there
        there = lookups_at(path)
        for lookup in there:
            lookup.unlink()
        assert answers(db.table("t")) == expected
        maker_of(db).round()
        assert lookups_at(path) == there
        assert answers(db.table("t")) == expected
        assert finds(db) > ROWS


def test_a_full_disk_leaves_the_fragments_to_answer(
    truth: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected = truth
    with opened(path) as db:
        create = engine_of(db).files.create

        def full(name: str) -> Any:
            if name.startswith("lookup/"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return create(name)

        monkeypatch.setattr(engine_of(db).files, "create", full)
        maker_of(db).round()
        counters = engine_of(db).report.counters()
        assert counters.lookup_failed_total > 0
        assert counters.lookup_files == 0
        assert lookups_at(path) == []
        assert answers(db.table("t")) == expected


def test_a_lookup_file_goes_with_its_fragment(truth: tuple[Path, list[Any]]) -> None:
    path, expected = truth
    made(path)
    with opened(path, history_seconds=0) as db:
        table = db.table("t")
        before = lookups_at(path)
        table.compact()
        maker_of(db).round()
        after = lookups_at(path)
        assert set(before).isdisjoint(after)
        assert len(after) == len({ref.file for ref in _refs(db) if not ref.history_txn})
        assert answers(table)[0] == expected[0]
        (path / "lookup" / "x.lookup.new").write_bytes(b"of a process that was killed")
        db.drop_table("t")
        maker_of(db).round()
        assert lookups_at(path) == []


def test_a_row_that_is_history_does_not_come_back_by_a_lookup_file(tmp_path: Path) -> None:
    with opened(tmp_path, lookup_at_once=False) as db:
        table = db.create_table("t", ebla.Schema(columns={"v": "int64", "w": "string"}))
        table.put([{"row": b"%d" % n, "v": n, "w": "x"} for n in range(20)])
        there = table.get(b"0")
        assert there is not None
        table.flush()
        table.erase(b"0")  # the first: what is current begins behind it
        table.flush()
        table.compact()
        assert any(ref.history_txn for ref in _refs(db))
        for ref in _refs(db):
            engine_of(db).lookups.note_cost(ref.file, 1, 1)
        maker_of(db).round()
        assert len(lookups_at(tmp_path)) == len(_refs(db))
        before = finds(db)
        assert table.get(b"0") is None
        assert table.get(b"0", columns=["w"]) is None
        assert finds(db) == before, "history is looked at by who reads of old alone"
        assert table.get(b"0", as_of=there.txn) == {"row": b"0", "v": 0, "w": "x"}
        assert finds(db) > before
        assert table.get_many([b"0", b"6"]).column("v").to_pylist() == [None, 6]


def _refs(db: ebla.Database) -> list[Any]:
    (table,) = engine_of(db).open_tables.all()
    return [ref for tablet in table.view.metadata.tablets for state in tablet.groups for ref in state.fragments]


def test_what_is_read_by_row_again_and_again_gets_a_lookup_file_and_nothing_else_does(tmp_path: Path) -> None:
    with opened(tmp_path, lookup_at_once=False, block_cache_bytes=0) as db:
        read, unread = (db.create_table(name, ebla.Schema(columns={"v": "int64"})) for name in ("read", "unread"))
        for table in (read, unread):
            table.put([{"row": b"%d" % n, "v": n} for n in range(1_000)])
            table.flush()
        assert 3 * DECODED_POINTS > 1_000
        for key in (b"1", b"2"):
            read.get(key)
        maker_of(db).round()
        assert lookups_at(tmp_path) == []
        read.get(b"3")
        assert unread.scan().to_arrow().num_rows == 1_000
        unread.get_many([b"%d" % n for n in range(100)])
        maker_of(db).round()
        (lookup,) = lookups_at(tmp_path)
        (fragment,) = (ref.file for ref in _refs_of(db, "read"))
        assert lookup.stem == Path(fragment).stem
        assert [read.get(b"%d" % n) for n in (1, 999, 1_000)] == [
            {"row": b"1", "v": 1},
            {"row": b"999", "v": 999},
            None,
        ]
        assert finds(db) == 3


def test_what_a_compaction_puts_in_the_place_of_a_looked_up_fragment_gets_a_lookup_file(tmp_path: Path) -> None:
    with opened(tmp_path, lookup_at_once=False, history_seconds=0) as db:
        read, unread = (db.create_table(name, ebla.Schema(columns={"v": "int64"})) for name in ("read", "unread"))
        for _ in range(2):
            for table in (read, unread):
                table.put([{"row": b"%d" % n, "v": n} for n in range(1_000)])
                table.flush()
        for _ in range(3):
            read.get(b"1")
        maker_of(db).round()
        assert {path.stem for path in lookups_at(tmp_path)} == {Path(ref.file).stem for ref in _refs_of(db, "read")}
        read.compact()
        unread.compact()
        maker_of(db).round()
        assert {path.stem for path in lookups_at(tmp_path)} == {Path(ref.file).stem for ref in _refs_of(db, "read")}


def test_a_group_can_ask_for_lookup_files_at_once(tmp_path: Path) -> None:
    with opened(tmp_path, lookup_at_once=False) as db:
        groups = [
            ebla.Group("read", columns={"v": "int64"}, lookup_at_once=True),
            ebla.Group("scanned", columns={"w": "int64"}),
        ]
        table = db.create_table("t", ebla.Schema(groups=groups))
        table.put([{"row": b"%03d" % n, "v": n, "w": n} for n in range(100)])
        table.flush()
        maker_of(db).round()
        (lookup,) = lookups_at(tmp_path)
        assert table.get(b"007", columns=["v"]) == {"row": b"007", "v": 7}
        assert finds(db) == 1
        table.get(b"007", columns=["w"])
        assert finds(db) == 1
        db.alter_table("t", change_groups={"scanned": {"lookup_at_once": True}, "read": {"lookup_at_once": False}})
        maker_of(db).round()
        assert len(lookups_at(tmp_path)) == 2
        assert lookup in lookups_at(tmp_path), "what is there and counts stays"
        table.put({"row": b"100", "v": 1, "w": 1})
        table.flush()
        maker_of(db).round()
        assert len(lookups_at(tmp_path)) == 3


def test_heirs_are_new_fragments_of_a_group_that_lost_one_with_a_lookup_file() -> None:
    before = {"a": ("t", 1), "b": ("t", 2), "c": ("u", 1)}
    after = {"b": ("t", 2), "d": ("t", 1), "e": ("u", 1), "f": ("t", 2)}
    assert heirs(before, after, ["a", "b"]) == {"d"}
    assert heirs(before, after, ["c"]) == {"e"}
    assert heirs(before, after, []) == set()


def test_many_rows_are_looked_up_while_few_of_a_fragment_were_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path, block_cache_bytes=64 << 20) as db:
        table = db.create_table("t", ebla.Schema(columns={"v": "int64", "d": "date32", "w": "decimal128(9, 1)"}))
        table.put([{"row": b"%05d" % n, "v": n, "d": DAY, "w": None} for n in range(20_000)])
        table.flush()
        maker_of(db).round()
        keys = [b"%05d" % n for n in (7, 19_999, 20_000, 3, 7)]
        found = table.get_many(keys)
        assert found.column("v").to_pylist() == [7, 19_999, None, 3, 7]
        assert found.column("d").to_pylist() == [DAY, DAY, None, DAY, DAY]
        assert finds(db) == 4
        assert engine_of(db).cache.stats()["entries"] == 0
        for begin in range(0, 400, 100):
            assert table.get_many([b"%05d" % n for n in range(begin, begin + 100)]).column("v").null_count == 0
        assert finds(db) < 404
        assert engine_of(db).cache.stats()["entries"] > 0


def _refs_of(db: ebla.Database, name: str) -> list[Any]:
    metadata = engine_of(db).table(name).view.metadata
    return [ref for tablet in metadata.tablets for state in tablet.groups for ref in state.fragments]


def test_lookup_files_take_no_more_disk_than_they_may(truth: tuple[Path, list[Any]]) -> None:
    path, expected = truth
    made(path)
    sizes = [lookup.stat().st_size for lookup in lookups_at(path)]
    for lookup in lookups_at(path):
        lookup.unlink()
    bytes_max = sum(sizes) // 2
    with opened(path, lookup_bytes_max=bytes_max) as db:
        maker_of(db).round()
        counters = engine_of(db).report.counters()
        assert 0 < counters.lookup_bytes <= counters.lookup_limit_bytes == bytes_max
        assert sum(lookup.stat().st_size for lookup in lookups_at(path)) == counters.lookup_bytes
        assert answers(db.table("t")) == expected


def test_lookup_files_can_be_kept_in_another_directory(truth: tuple[Path, list[Any]], tmp_path: Path) -> None:
    path, expected = truth
    with opened(path, lookup_directory=str(tmp_path / "fast")) as db:
        maker_of(db).round()
        assert answers(db.table("t")) == expected
        assert finds(db) > 2 * ROWS
    assert lookups_at(path) == []
    assert len(list((tmp_path / "fast").glob("*/lookup/*"))) > 3


def test_columns_of_another_type_or_nested_are_read_from_the_fragment(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        nested = db.create_table("nested", ebla.Schema(columns={"v": "list<int64>"}))
        nested.put({"row": b"a", "v": [1, 2]})
        wide = db.create_table("wide", ebla.Schema(columns={"v": "int32", "w": "string"}))
        wide.put({"row": b"a", "v": 1, "w": "x"})
        for table in (nested, wide):
            table.flush()
        maker_of(db).round()
        assert len(lookups_at(tmp_path)) == 1
        assert nested.get(b"a") == {"row": b"a", "v": [1, 2]}
        db.alter_table("wide", change_types={"v": "float64"}, rename={"w": "called"})
        maker_of(db).round()
        found = db.table("wide").get(b"a")
        assert found == {"row": b"a", "v": 1.0, "called": "x"}
        assert isinstance(found["v"], float)


def test_a_dropped_and_added_column_does_not_come_back_by_a_lookup_file(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        table = db.create_table("t", ebla.Schema(columns={"v": "int64", "w": "string"}))
        table.put({"row": b"a", "v": 1, "w": "old"})
        table.flush()
        maker_of(db).round()
        db.alter_table("t", drop_columns=["w"])
        db.alter_table("t", add_columns={"w": "string"})
        assert db.table("t").get(b"a") == {"row": b"a", "v": 1, "w": None}


def test_a_process_that_only_reads_uses_lookup_files_and_makes_none(truth: tuple[Path, list[Any]]) -> None:
    path, expected = truth
    made(path)
    there = lookups_at(path)
    there[0].unlink()
    with ebla.open(path, read_only=True) as db:
        assert answers(db.table("t")) == expected
        assert finds(db) > 100
    assert lookups_at(path) == there[1:]


def test_verify_and_garbage_collection_leave_lookup_files_out(
    truth: tuple[Path, list[Any]],
) -> None:
    path, _ = truth
    made(path)
    with opened(path, garbage_age_seconds=0.0) as db:
        assert not db.verify().findings
        db.gc(dry_run=False)
        db.gc(dry_run=False)
    assert len(lookups_at(path)) > 3
