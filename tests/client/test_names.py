"""Names of tables that change hands: who drops, creates and clones at the same time, and what is served afterwards."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import ebla
from ebla.tablet.tables.table_state import TableState
from tests.support.inside import engine_of

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"n": "int64"})


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "store") as database:
        yield database


def test_a_table_that_is_made_while_another_of_its_name_is_dropped_is_served(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.create_table("t", SCHEMA).put({"k": 1, "n": 1})
    drop = engine_of(db).metadata.drop_table

    def make() -> None:
        db.create_table("t", SCHEMA).put({"k": 2, "n": 2})

    making = threading.Thread(target=make)

    def dropped(name: str) -> str:
        found = drop(name)
        making.start()  # the name is free in METADATA, and the one who drops is not done yet
        making.join(0.2)
        return found

    monkeypatch.setattr(engine_of(db).metadata, "drop_table", dropped)
    db.drop_table("t")
    making.join()
    assert [row["k"] for row in db.table("t").scan()] == [2]
    db.table("t").put({"k": 3, "n": 3})
    db.table("t").flush()
    db.close()
    with ebla.open(db.path) as again:
        assert [row["k"] for row in again.table("t").scan()] == [2, 3]


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("request_", ["split", "join", "alter", "clone", "unload"])
def test_who_changes_a_table_that_is_dropped_meanwhile_is_told_so(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch, request_: str, is_told: bool
) -> None:
    table = db.create_table("t", SCHEMA, splits=[50])
    table.put([{"k": 1, "n": 1}, {"k": 60, "n": 1}])
    requests = {
        "split": lambda: table.split(20),
        "join": lambda: table.join(1, 60),
        "alter": lambda: db.alter_table("t", add_columns={"m": "int64"}),
        "clone": lambda: db.clone_table("t", "u"),
        "unload": lambda: db.unload_table("t"),
    }
    flush, tables, metadata = engine_of(db).flusher.flush_table, engine_of(db).open_tables, engine_of(db).metadata
    drops = iter([db.drop_table if is_told else metadata.drop_table])

    def dropped_first(state: TableState, tablets: Collection[str] | None = None) -> None:
        next(drops, lambda name: None)("t")
        flush(state, tablets)

    monkeypatch.setattr(engine_of(db).flusher, "flush_table", dropped_first)
    with pytest.raises(ebla.UnknownTable):
        requests[request_]()
    monkeypatch.undo()
    if not is_told:  # METADATA was the first to know
        tables.remove("t")
    assert db.tables() == []
    again = db.create_table("t", SCHEMA)
    again.put({"k": 2, "n": 2})
    assert [row["k"] for row in again.scan()] == [2]
