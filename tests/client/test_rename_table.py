"""Tables that get other names: at once, for everybody, and for good; or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from tests.support.inside import engine_of

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"n": "int64"})


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "store") as database:
        yield database


def test_a_renamed_table_is_the_same_table(db: ebla.Database) -> None:
    table = db.create_table("old", SCHEMA, splits=[50])
    txn = table.put([{"k": 1, "n": 1}, {"k": 60, "n": 2}])
    scan = iter(table.scan())
    assert next(scan)["k"] == 1
    renamed = db.rename_table("old", "new")
    assert (renamed.name, table.name, db.tables()) == ("new", "new", ["new"])
    assert [row["k"] for row in scan] == [60]
    table.put({"k": 1, "n": 3})
    assert db.table("new").get(1) == {"k": 1, "n": 3}
    assert db.table("new").get(1, as_of=txn) == {"k": 1, "n": 1}
    with pytest.raises(ebla.UnknownTable, match="old"):
        db.table("old")
    db.table("new").flush()
    db.close()
    for read_only in (True, False):
        with ebla.open(db.path, read_only=read_only) as again:
            assert again.tables() == ["new"]
            assert [row["n"] for row in again.table("new").scan()] == [3, 2]


def test_the_old_name_is_free_and_may_be_taken_back(db: ebla.Database) -> None:
    db.create_table("t", SCHEMA).put({"k": 1, "n": 1})
    db.rename_table("t", "u")
    db.create_table("t", SCHEMA).put({"k": 2, "n": 2})
    with pytest.raises(ebla.TableExists) as taken:
        db.rename_table("u", "t")
    assert str(taken.value) == "there is a table 't' already: choose another name, or drop it first"
    assert db.tables() == ["t", "u"]
    db.drop_table("t")
    db.rename_table("u", "t")
    assert db.rename_table("t", "t").name == "t"
    assert [row["k"] for row in db.table("t").scan()] == [1]


@pytest.mark.parametrize("name", ["", "a b", "../x", 7, None])
def test_what_is_no_name_is_refused(db: ebla.Database, name: str) -> None:
    db.create_table("t", SCHEMA)
    with pytest.raises(ebla.EblaError):
        db.rename_table("t", name)
    with pytest.raises(ebla.EblaError):
        db.rename_table(name, "u")
    assert db.tables() == ["t"]


def test_a_table_that_is_not_there_or_cannot_be_written_is_not_renamed(db: ebla.Database) -> None:
    with pytest.raises(ebla.UnknownTable):
        db.rename_table("t", "u")
    db.create_table("t", SCHEMA)
    with ebla.open(db.path, read_only=True) as reading, pytest.raises(ebla.ReadOnly):
        reading.rename_table("t", "u")


@pytest.mark.parametrize("swapped", [False, True])
def test_a_table_that_is_renamed_while_all_are_listed_is_on_the_list(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch, swapped: bool
) -> None:
    ids = {db.create_table(name, SCHEMA).stats()["id"] for name in ("a", "m", "z")}
    coordination = engine_of(db).metadata.directory._coordination
    read = coordination.read
    renames = iter([[("m", "x"), ("a", "m"), ("x", "a")] if swapped else [("m", "b")]])

    def slow(path: str) -> object:
        found = read(path)
        if path.endswith("/a"):
            for old, new in next(renames, []):
                db.rename_table(old, new)
        return found

    monkeypatch.setattr(coordination, "read", slow)
    assert {entry.table_id for entry in engine_of(db).metadata.list_tables()} == ids
    assert next(renames, None) is None


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("asked", ["t", "u"])
@pytest.mark.parametrize("error", [ebla.OutcomeUnknown("lost"), KeyboardInterrupt()], ids=["unknown", "interrupt"])
def test_a_renaming_of_unknown_outcome_is_settled_before_the_next_use(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch, is_done: bool, asked: str, error: BaseException
) -> None:
    table = db.create_table("t", SCHEMA)
    table.put({"k": 1, "n": 1})
    rename = engine_of(db).metadata.rename_table

    def lost(table_id: str, name: str, named_txn: int) -> None:
        if is_done:
            rename(table_id, name, named_txn)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(engine_of(db).metadata, "rename_table", lost)
        with pytest.raises(type(error)):
            db.rename_table("t", "u")
    there = "u" if is_done else "t"
    if asked == there:
        assert db.table(asked).get(1) == {"k": 1, "n": 1}
    else:
        with pytest.raises(ebla.UnknownTable):
            db.table(asked)
    table.put({"k": 2, "n": 2})
    assert (table.name, db.tables()) == (there, [there])
    db.create_table("t" if is_done else "u", SCHEMA)
    db.close()
    with ebla.open(db.path) as again:
        assert again.tables() == ["t", "u"]
        assert [row["k"] for row in again.table(there).scan()] == [1, 2]


def test_of_those_who_rename_drop_and_create_at_once_each_is_told_the_truth(db: ebla.Database) -> None:
    problems: list[BaseException] = []

    def work(own: str) -> None:
        try:
            for n in range(15):
                table = db.create_table(f"{own}{n}", SCHEMA)
                table.put({"k": n, "n": n})
                try:
                    db.rename_table(f"{own}{n}", "shared")
                except ebla.TableExists:
                    db.drop_table(f"{own}{n}")
                    continue
                assert table.name == "shared"
                assert [row["k"] for row in db.table("shared").scan()] == [n]
                db.rename_table("shared", f"{own}-{n}")
                assert db.table(f"{own}-{n}").get(n) == {"k": n, "n": n}
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(own,)) for own in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert "shared" not in db.tables()
    for name in db.tables():
        assert [row["k"] for row in db.table(name).scan()] == [int(name[2:])]
