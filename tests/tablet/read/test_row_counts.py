"""How many rows there are: each counted once, and an estimate called one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.settings import Settings
from tests.support.inside import engine_of

GROUPS = ebla.Schema(
    key={"k": "string"},
    groups=[
        ebla.Group("a", columns={"n": "int64"}, block_bytes=4096),
        ebla.Group("b", columns={"s": "string"}),
        ebla.Group("c", families=["f"]),
    ],
)
PLAIN = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("a", columns={"n": "int64"}, block_bytes=4096)])


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "data", settings=Settings(background_compaction=False)) as opened:
        yield opened


def rows(first: int, last: int, **values: Any) -> list[dict[str, Any]]:
    return [{"k": f"{number:05}", "n": number, **values} for number in range(first, last)]


def counts(table: ebla.Table) -> list[tuple[int, bool]]:
    return [(tablet["rows"], tablet["is_exact"]) for tablet in table.tablets()]


def test_rows_count_once_however_many_groups_they_are_in(db: ebla.Database) -> None:
    table = db.create_table("t", GROUPS)
    table.put(rows(0, 300, s="text", **{"f:x": b"1", "f:y": b"2"}))
    assert counts(table) == [(300, False)], "what is in memory counts as well"
    table.flush()
    assert counts(table) == [(300, False)], "rows of one group need not be those of another"


def test_rows_of_one_group_that_lie_side_by_side_are_counted_exactly(db: ebla.Database) -> None:
    table = db.create_table("t", PLAIN)
    assert counts(table) == [(0, True)]
    table.put(rows(0, 300))
    table.flush()
    table.put(rows(300, 350))
    assert counts(table) == [(350, True)]
    with ebla.open(db.path, read_only=True) as reader:
        assert counts(reader.table("t")) == [(350, True)], "also of what is read from the log"


def test_a_file_that_tablets_share_counts_in_each_by_its_rows_there(db: ebla.Database) -> None:
    table = db.create_table("t", PLAIN)
    table.put(rows(0, 5_000))
    table.flush()
    whole = table.tablets()[0]
    table.split("00700")
    table.split("03333")
    assert len(table.files()) == 1
    assert counts(table) == [(700, True), (2_633, True), (1_667, True)]
    assert sum(tablet["bytes"] for tablet in table.tablets()) == pytest.approx(whole["bytes"], abs=2)
    table.compact()
    assert counts(table) == [(700, True), (2_633, True), (1_667, True)]


def test_updates_and_erasures_that_were_not_merged_make_it_an_estimate(db: ebla.Database) -> None:
    table = db.create_table("t", PLAIN)
    table.put(rows(0, 100))
    table.flush()
    table.put(rows(50, 60))
    assert counts(table) == [(110, False)]
    table.erase("00000")
    table.flush()
    assert counts(table) == [(111, False)]


def test_many_cells_of_a_row_are_one_row(db: ebla.Database) -> None:
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=[ebla.Group("c", families=["f"])]))
    table.put([{"k": f"{number:03}", **{f"f:{cell}": b"1" for cell in range(5)}} for number in range(40)])
    assert counts(table) == [(40, False)]
    table.flush()
    assert counts(table) == [(40, False)]


def test_files_that_groups_share_count_once_in_sizes(db: ebla.Database) -> None:
    table = db.create_table(
        "t",
        ebla.Schema(
            key={"k": "string"},
            groups=[
                ebla.Group("a", columns={"n": "int64", "m": "int64"}),
                ebla.Group("b", columns={"s": "string"}),
            ],
        ),
    )
    table.put(rows(0, 300, m=1))
    table.flush()
    size = sum((db.path / file).stat().st_size for file in table.files())
    db.alter_table("t", move={"m": "b"})
    stats = table.stats()
    assert (stats["fragments"], stats["fragment_bytes"]) == (1, size)
    assert [(tablet["fragments"], tablet["rows"], tablet["bytes"]) for tablet in table.tablets()] == [(1, 300, size)]


def test_a_file_that_is_not_there_does_not_keep_the_tablets_from_being_listed(db: ebla.Database) -> None:
    table = db.create_table("t", PLAIN)
    table.put(rows(0, 100))
    table.flush()
    table.split("00050")
    engine_of(db).fragments.forget(table.files())
    for file in table.files():
        (db.path / file).unlink()
    assert [tablet["rows"] for tablet in table.tablets()] == [100, 100]


def test_system_tables_count_what_tablets_share_once(db: ebla.Database) -> None:
    table = db.create_table("t", PLAIN)
    table.put(rows(0, 101))
    table.flush()
    table.split("00050")
    table.put(rows(0, 101))  # who leads the tablets is known when they are written
    whole = db.table("sys.tables").get("t")
    assert whole is not None
    parts = list(db.table("sys.tablets").scan())
    assert whole["records"] == sum(part["records"] for part in parts) == 101
    assert whole["bytes"] == sum(part["bytes"] for part in parts)
    (server,) = db.table("sys.servers").scan()
    assert server["bytes"] == whole["bytes"]
    json.dumps(table.tablets())  # plain values
