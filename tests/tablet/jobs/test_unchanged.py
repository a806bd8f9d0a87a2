"""Bulk commits that are refused because somebody changed a row since the job read it, and those that are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import ebla
from ebla.errors import Conflict
from ebla.service.job_orders import BulkCommit
from ebla.settings import Settings
from tests.direct.bulk_world import NUMBERS, a_by_k, numbers, written
from tests.support.inside import carry_out

WRITTEN = range(5, 15)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "store", settings=replace(Settings(), background_compaction=False)) as opened:
        opened.create_table("t", NUMBERS, splits=[(7,)]).put(numbers(range(20)))
        yield opened


def commit_since(table: ebla.Table, since: int | None) -> BulkCommit:
    return msgspec.structs.replace(written(table, "job", numbers(WRITTEN, add=100)), unchanged_since=since)


Change = Callable[[ebla.Table], object]

CHANGES: dict[str, Change] = {
    "put": lambda table: table.put(numbers([14], add=7)),
    "erased": lambda table: table.erase(5),
    "range erased": lambda table: table.erase_range(12, 40),
    "flushed": lambda table: (table.put(numbers([9], add=7)), table.flush()),
    "flushed after a range was erased": lambda table: (table.erase_range(0, 6), table.flush()),
    "compacted": lambda table: (table.put(numbers([9], add=7)), table.compact()),
}
OTHERS: dict[str, Change] = {
    "nothing": lambda table: None,
    "put": lambda table: table.put(numbers([*range(5), *range(15, 40)], add=7)),
    "range erased": lambda table: table.erase_range(15, 40),
    "flushed": lambda table: (table.put(numbers([4, 15], add=7)), table.flush()),
    "compacted": lambda table: (table.put(numbers([4, 15], add=7)), table.compact()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_is_refused_if_one_of_its_rows_changed_since(db: ebla.Database, change: str) -> None:
    table = db.table("t")
    commit = commit_since(table, table.put(numbers([30])))
    CHANGES[change](table)
    before = a_by_k(table)
    with pytest.raises(Conflict, match="read it again"):
        carry_out(db, commit)
    assert a_by_k(table) == before
    table.put(numbers([1], add=9))  # the gate is open again


@pytest.mark.parametrize("change", OTHERS)
def test_a_commit_is_taken_if_only_other_rows_changed_since(db: ebla.Database, change: str) -> None:
    table = db.table("t")
    commit = commit_since(table, table.put(numbers([30])))
    OTHERS[change](table)
    before = a_by_k(table)
    carry_out(db, commit)
    assert a_by_k(table) == before | {key: key + 100 for key in WRITTEN}


def test_a_commit_that_does_not_say_when_it_read_overwrites(db: ebla.Database) -> None:
    table = db.table("t")
    commit = commit_since(table, None)
    CHANGES["put"](table)
    carry_out(db, commit)
    assert a_by_k(table)[14] == 114


def test_the_conflict_names_a_row(db: ebla.Database) -> None:
    table = db.table("t")
    commit = commit_since(table, table.put(numbers([30])))
    CHANGES["put"](table)
    with pytest.raises(Conflict, match="row 14 of 't' changed"):
        carry_out(db, commit)


def test_a_change_in_another_group_is_a_change_of_the_row(tmp_path: Path) -> None:
    schema = ebla.Schema(
        key={"k": "int64"},
        groups=[ebla.Group("g", columns={"a": "int64"}), ebla.Group("h", columns={"c": "int64"})],
    )
    with ebla.open(tmp_path / "two") as db:
        table = db.create_table("t", schema)
        commit = commit_since(table, table.put(numbers(range(20))))
        table.put({"k": 9, "c": 1})
        with pytest.raises(Conflict):
            carry_out(db, commit)
