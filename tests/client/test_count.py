"""`count` says how many rows a scan gives, whatever lies where, and reads little where files can tell."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ebla
from ebla.storage.fragment.fragment_file import FragmentFile

ROWS = 3_000


def numbers(db: ebla.Database, name: str = "numbers", **settings: Any) -> ebla.Table:
    group = ebla.Group("g", columns={"v": "int64"}, block_bytes=1024, **settings)
    return db.create_table(name, ebla.Schema(key={"k": "int64"}, groups=[group]))


def batch(first: int, last: int, step: int = 1) -> pa.Table:
    keys = list(range(first, last, step))
    return pa.table({"k": keys, "v": keys})


@pytest.fixture
def blocks_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks of files were decoded, call by call."""
    seen: list[int] = []
    real = FragmentFile.read_blocks

    def noting(self: FragmentFile, begin: int, end: int, names: Any) -> pa.Table:
        seen.append(end - begin)
        return real(self, begin, end, names)

    monkeypatch.setattr(FragmentFile, "read_blocks", noting)
    return seen


def test_rows_of_files_that_do_not_lie_on_each_other_are_counted_without_reading_them(
    db: ebla.Database, blocks_read: list[int]
) -> None:
    table = numbers(db)
    for first in (0, ROWS):
        table.put(batch(first, first + ROWS))
        table.flush()
    blocks_read.clear()
    assert table.count() == 2 * ROWS
    assert table.scan().count() == 2 * ROWS
    assert blocks_read == []


def test_a_part_of_a_file_is_counted_by_the_blocks_at_its_ends(db: ebla.Database, blocks_read: list[int]) -> None:
    table = numbers(db)
    table.put(batch(0, ROWS))
    table.flush()
    blocks_read.clear()
    assert table.count(100, ROWS - 7) == ROWS - 107
    assert sum(blocks_read) <= 2


def test_a_few_newer_rows_make_only_their_surroundings_be_read(db: ebla.Database, blocks_read: list[int]) -> None:
    table = numbers(db)
    table.put(batch(0, ROWS))
    table.flush()
    table.put({"k": 1_000, "v": 1})
    table.put({"k": ROWS, "v": 1})
    table.erase(2_000)
    blocks_read.clear()
    assert table.count() == ROWS
    assert sum(blocks_read) <= 8


def test_rows_are_counted_where_the_filter_is_true_and_as_of(db: ebla.Database) -> None:
    table = numbers(db)
    before = table.put(batch(0, 100))
    table.erase_range(50)
    assert table.count(where="v < 10 or k >= 45") == 15
    assert table.count(as_of=before) == 100
    assert table.count(as_of=before, where="v < 60", start=20) == 40
    with db.snapshot() as now:
        table.erase_range()
        assert (table.count(), now.table("numbers").count()) == (0, 50)


def test_the_beginning_of_a_key_is_counted(db: ebla.Database) -> None:
    schema = ebla.Schema(key={"shop": "string", "n": "int32"}, columns={"v": "int64"})
    table = db.create_table("orders", schema)
    table.put([{"shop": shop, "n": n} for shop in "abc" for n in range(4)])
    table.flush()
    table.put({"shop": "b", "n": 9})
    assert (table.count(prefix=("b",)), table.count(("b", 2), ("c", 1)), table.count()) == (5, 4, 13)


def test_a_count_of_rows_is_a_read_like_any_other(db: ebla.Database) -> None:
    table = numbers(db)
    with pytest.raises(ebla.RequestError, match="either prefix, or start and stop"):
        table.count(1, prefix=2)
    assert db.table("sys.tables").count(where="name = numbers") == 1
    db.drop_table("numbers")
    with pytest.raises(ebla.UnknownTable):
        table.count()


GROUPS = [
    ebla.Group("g", columns={"v": "int64"}, block_bytes=1024),
    ebla.Group("h", columns={"w": "int64"}, block_bytes=1024, max_versions=3),
    ebla.Group("c", families=["f"], block_bytes=1024),
]


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_count_is_the_length_of_the_scan_after_any_history(tmp_path: Path, groups: int, seed: int) -> None:
    dice = random.Random(seed)
    settings = ebla.Settings(background_compaction=False)
    with ebla.open(tmp_path / "store", settings=settings) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, groups=GROUPS[:groups]))
        txns = [table.put({"k": 500, "v": 0})]
        for _ in range(30):
            low = dice.randrange(1_000)
            high = low + dice.choice([1, 3, 60, 400])
            columns = ["v", *(["w"] if groups > 1 else []), *(["f:x"] if groups > 2 else [])]
            match dice.randrange(8):
                case 0 | 1 | 2:
                    name = dice.choice(columns)
                    rows = [{"k": k, name: b"1" if name == "f:x" else k} for k in range(low, high, dice.choice([1, 7]))]
                    txns.append(table.put(rows))
                case 3:
                    txns.append(table.erase_range(low, high))
                case 4:
                    txns.append(table.erase_many(list(range(low, high, 5))))
                case 5 | 6:
                    table.flush()
                case 7:
                    table.compact() if dice.random() < 0.3 else table.split(low) if low % 97 and len(
                        table.tablets()
                    ) < 4 else None
            for as_of in (None, dice.choice(txns)):
                start, stop = sorted((dice.randrange(-10, 1_500), dice.randrange(-10, 1_500)))
                for columns_asked in (None, ["v"]):
                    whole = table.scan(columns=columns_asked, as_of=as_of)
                    part = table.scan(start, stop, columns=columns_asked, as_of=as_of)
                    assert whole.count() == whole.to_arrow().num_rows
                    assert part.count() == part.to_arrow().num_rows
                assert table.count(start, stop, as_of=as_of) == table.scan(start, stop, as_of=as_of).to_arrow().num_rows
