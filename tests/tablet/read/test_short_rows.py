"""Short scans out of lookup files give the rows that long ones do, and leave what is not simple to these."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.model.projection import spread
from ebla.storage.lookup.lookup_policy import SHORT_SCAN_POINTS
from ebla.tablet.read.short_rows import SHORT_ROWS_MAX, ShortRows, Taken
from tests.support.inside import engine_of

DAY = datetime.date(2026, 1, 2)
SCHEMA = ebla.Schema(
    key={"user": "string", "day": "date32"},
    groups=[
        ebla.Group("typed", columns={"n": "int64", "name": "string", "at": "timestamp[us]"}),
        ebla.Group("more", columns={"extra": "string", "free:b": "int64"}, max_versions="all"),
        ebla.Group("cells", families=["click", "*"], max_versions=3),
    ],
)
PLAIN = ebla.Schema(columns={"v": "int64", "w": "string"})


def opened(path: Path) -> ebla.Database:
    """Open a store that makes lookup files when it is told to, and lays nothing aside for scans."""
    settings = ebla.Settings(background_compaction=False, row_cache_bytes=0, block_cache_bytes=0, lookup_at_once=True)
    return ebla.open(path, settings=settings)


def make(db: ebla.Database) -> None:
    engine_of(db).lookup_maker.round()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Taken | None]:
    """What short scans were given row by row; None where they were not."""
    given: list[Taken | None] = []
    take = ShortRows.take

    def noted(*arguments: Any) -> Taken | None:
        given.append(None)
        given[-1] = take(*arguments)
        return given[-1]

    monkeypatch.setattr(ShortRows, "take", noted)
    return given


def by_arrow(scan: ebla.Scan) -> list[dict[str, Any]]:
    return [spread(row, scan._stream.projection) for row in scan.to_arrow().to_pylist()]


def fill(table: ebla.Table) -> None:
    rows = [{"user": f"u{n:02d}", "day": DAY, "n": n, "name": None, "extra": "x", "free:b": n} for n in range(60)]
    table.put([{**row, "click:home": b"1", "other:q": b"2", "plain": b"3"} for row in rows])
    table.flush()
    table.put([{"user": f"u{n:02d}", "day": DAY, "n": -n, "click:away": b"4"} for n in range(0, 60, 3)])
    table.put([{"user": f"v{n:02d}", "day": DAY, "at": datetime.datetime(2026, 1, 1)} for n in range(10)])
    table.erase_many([(f"u{n:02d}", DAY) for n in range(0, 60, 7)])
    table.erase(("u05", DAY), columns=["name", "click:home"])
    table.flush()
    table.put_cells([{"user": "u01", "day": DAY, "family": "click", "qualifier": "home", "value": b"9"}])


COLUMNS = (None, ["n"], ["extra", "click"], ["click:home", "other:q"], ["*"], [])


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("splits", [None, [("u20",), ("u21",)]])
def test_a_short_scan_gives_what_arrow_does(tmp_path: Path, taken: list[Any], in_memory: bool, splits: Any) -> None:
    with opened(tmp_path) as db:
        table = db.create_table("t", SCHEMA, splits=splits)
        fill(table)
        if not in_memory:
            table.flush()
        else:
            table.put({"user": "u30", "day": DAY, "n": 7})
            table.put({"user": "u30a", "day": DAY, "n": 8, "click:x": b""})
        make(db)
        for columns in COLUMNS:
            taken.clear()
            for start in (None, ("u",), ("u05",), ("u29",), ("v05",), ("w",), ("a",)):
                for limit in (0, 1, 3, 40, SHORT_ROWS_MAX):
                    scan = table.scan(start, columns=columns, limit=limit)
                    assert list(scan) == by_arrow(scan), columns
            scan = table.scan(("u10",), ("u12",), limit=50, columns=columns)
            assert list(scan) == by_arrow(scan), columns
            assert len(taken) > 20
            assert None not in taken


def test_single_puts_over_files_are_read_row_by_row(tmp_path: Path, taken: list[Any]) -> None:
    """More of them than there may be blocks of several rows; some rows put again and again, some between others."""
    with opened(tmp_path) as db:
        table = db.create_table("t", PLAIN)
        table.put([{"row": b"%04d" % n, "v": n, "w": f"w{n}"} for n in range(0, 400, 2)])
        table.flush()
        make(db)
        for n in range(50):
            table.put({"row": b"%04d" % (n * 7), "v": -n})
            if n % 5 == 0:
                table.put({"row": b"%04d" % (n * 7), "w": "again"})
        for start, limit in [(b"", 100), (b"0007", 1), (b"0008", 20), (b"0100", 128), (b"0390", 50), (b"0399", 5)]:
            for columns in (None, ["w", "v"], ["v"]):
                scan = table.scan(start, limit=limit, columns=columns)
                assert [dict(row) for row in scan] == by_arrow(table.scan(start, limit=limit, columns=columns))
        assert None not in taken
        assert list(next(iter(table.scan(columns=["w", "v"], limit=1)))) == ["row", "w", "v"]
        bounded = table.scan(b"0010", b"0020", limit=100)
        assert [row["row"] for row in bounded] == [b"0010", b"0012", b"0014", b"0016", b"0018"]


def test_the_position_of_a_short_scan_is_that_of_its_last_row(tmp_path: Path, taken: list[Any]) -> None:
    with opened(tmp_path) as db:
        table = db.create_table("t", SCHEMA)
        fill(table)
        table.flush()
        make(db)
        everything = list(table.scan())
        scan = table.scan(limit=4)
        rows = iter(scan)
        assert scan.position.key is None
        first = next(rows)
        assert scan.position.key == (first["user"], DAY)
        assert [first, *rows] == everything[:4]
        assert list(table.scan(limit=5, resume=scan.position)) == everything[4:9]
        assert None not in taken


def test_rows_at_a_moment_are_those_of_that_moment(tmp_path: Path, taken: list[Any]) -> None:
    with opened(tmp_path) as db:
        table = db.create_table("t", PLAIN)
        txn = table.put([{"row": b"%d" % n, "v": 1, "w": "a"} for n in range(5)])
        table.put([{"row": b"%d" % n, "v": 2} for n in range(9)])
        table.flush()
        make(db)
        assert [row["v"] for row in table.scan(limit=100, as_of=txn)] == [1] * 5
        assert [row["v"] for row in table.scan(limit=100)] == [2] * 9
        assert [row["w"] for row in table.scan(limit=6)] == [*["a"] * 5, None]
        assert None not in taken


def test_what_is_not_simple_is_left_to_arrow(tmp_path: Path, taken: list[Any]) -> None:
    with opened(tmp_path) as db:
        table = db.create_table("t", PLAIN)
        table.put([{"row": b"%03d" % n, "v": n, "w": "a"} for n in range(700)])
        table.flush()
        assert len(list(table.scan(limit=5))) == 5  # there is no lookup file yet
        assert taken.pop() is None
        make(db)
        for scan, count in (
            (table.scan(limit=SHORT_ROWS_MAX + 1), SHORT_ROWS_MAX + 1),
            (table.scan(limit=5, where="v > 3"), 5),
            (table.scan(limit=5, reverse=True), 5),
            (table.scan(limit=5, versions=2), 5),
            (table.scan(limit=5, latest=True), 5),
            (table.scan(), 700),
        ):
            assert len(list(scan)) == count
        assert taken == []
        table.erase_many([b"%03d" % n for n in range(600)])
        table.flush()
        make(db)
        assert [row["v"] for row in table.scan(limit=5)] == [600, 601, 602, 603, 604]
        table.erase_range(b"", b"602")
        assert [row["v"] for row in table.scan(limit=2)] == [602, 603]


def test_files_that_are_scanned_by_few_rows_again_and_again_are_worth_a_lookup_file(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        table = db.create_table("t", PLAIN)
        table.put([{"row": b"%03d" % n, "v": n, "w": "a"} for n in range(700)])
        table.flush()
        for _ in range(700 // SHORT_SCAN_POINTS - 1):
            list(table.scan(b"300", limit=3))
        assert not engine_of(db).lookups.take_worth()
        list(table.scan(b"300", limit=3))
        assert engine_of(db).lookups.take_worth()


def test_a_damaged_lookup_file_is_let_go_of_by_a_short_scan(tmp_path: Path, taken: list[Any]) -> None:
    with opened(tmp_path) as db:
        table = db.create_table("t", PLAIN)
        table.put([{"row": b"%03d" % n, "v": n, "w": "a"} for n in range(700)])
        table.flush()
        make(db)
        (lookup,) = (tmp_path / "lookup").glob("*")
        assert [row["v"] for row in table.scan(limit=2)] == [0, 1]
        lookup.write_bytes(b"\0" * lookup.stat().st_size)
        assert [row["v"] for row in table.scan(b"001", limit=2)] == [1, 2]
        assert taken[-1] is None
        assert not lookup.exists()


def test_a_row_with_very_many_versions_is_left_to_arrow(tmp_path: Path, taken: list[Any]) -> None:
    with opened(tmp_path) as db:
        table = db.create_table(
            "t", ebla.Schema(groups=[ebla.Group("g", columns={"v": "int64", "w": "string"}, max_versions="all")])
        )
        table.put({"row": b"a", "v": 0, "w": ""})
        for n in range(300):
            table.put({"row": b"b", "v": n, "w": "x"})
        table.flush()
        make(db)
        assert [row["v"] for row in table.scan(limit=5)] == [0, 299]
        assert taken == [None]
        assert table.get(b"b") == {"row": b"b", "v": 299, "w": "x"}
