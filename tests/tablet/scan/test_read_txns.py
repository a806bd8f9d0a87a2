"""At which txn is read: not before a table was there, and not at one that nobody was given yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ebla
from ebla.settings import Settings

NUMBERS = ebla.Schema(key={"k": "string"}, columns={"n": "int64"})
QUIET = Settings(background_compaction=False)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "data", settings=QUIET) as opened:
        opened.create_table("other", NUMBERS).put({"k": "a", "n": 7})
        yield opened


def numbers(table: ebla.Table, **options: Any) -> list[int]:
    return [row["n"] for row in table.scan(**options)]


def made(db: ebla.Database, name: str = "t", n: int = 1) -> ebla.Table:
    table = db.create_table(name, NUMBERS)
    table.put({"k": "a", "n": n})
    return table


# --- before a table was there ---


def before_it_was_made(db: ebla.Database) -> list[Any]:
    """Moments before the table `t`, which is made last; one of each kind."""
    txn = db.table("other").put({"k": "b", "n": 8})
    db.snapshot("named")
    moments = [txn, np.int64(txn), datetime.now(UTC), db.snapshot(), "named"]
    made(db)
    return moments


def test_a_read_as_of_a_moment_before_the_table_was_made_says_so(db: ebla.Database) -> None:
    moments = before_it_was_made(db)
    table = db.table("t")
    reads: list[Callable[[Any], object]] = [
        lambda moment: table.scan(as_of=moment),
        lambda moment: table.get("a", as_of=moment),
        lambda moment: table.get_many(["a"], as_of=moment),
        lambda moment: (
            table.scan(resume=ebla.Position(db.snapshot(moment).txn, None))
            if isinstance(moment, str)
            else table.scan(as_of=moment)
        ),
    ]
    for moment in moments:
        for read in reads:
            with pytest.raises(ebla.UnknownTable, match="there was no table 't' yet"):
                read(moment)
    assert numbers(table) == [1]
    assert numbers(table, as_of=datetime.now(UTC) + timedelta(milliseconds=1)) == [1]


def test_a_table_is_there_from_the_moment_it_was_made_on_without_a_commit(db: ebla.Database) -> None:
    table = db.create_table("empty", NUMBERS)
    snapshot = db.snapshot()
    assert numbers(snapshot.table("empty")) == []
    assert numbers(table, as_of=snapshot) == []
    assert numbers(table, resume=table.scan().position) == []
    with ebla.open(db.path, read_only=True) as reader:
        now = reader.snapshot()
        assert numbers(now.table("empty")) == []
        assert numbers(reader.table("empty"), as_of=now.txn) == []


def test_when_a_table_was_made_is_known_after_reopening_and_to_readers(db: ebla.Database) -> None:
    early = before_it_was_made(db)[0]
    root = db.path
    with ebla.open(root, read_only=True) as reader, pytest.raises(ebla.UnknownTable, match="no table 't' yet"):
        reader.table("t").scan(as_of=early)
    db.close()
    with ebla.open(root) as again:
        with pytest.raises(ebla.UnknownTable, match="no table 't' yet"):
            again.table("t").get("a", as_of=early)
        assert numbers(again.table("t")) == [1]


def test_a_clone_has_the_past_of_its_origin_and_no_more(db: ebla.Database) -> None:
    early = db.sync()
    first = made(db).put({"k": "a", "n": 2})
    db.table("t").put({"k": "a", "n": 3})
    clone = db.clone_table("t", "clone")
    assert numbers(clone, as_of=first) == [2]
    with pytest.raises(ebla.UnknownTable, match="no table 'clone' yet"):
        clone.scan(as_of=early)


# --- snapshots, after the name of a table has gone to another ---


def made_anew(db: ebla.Database) -> None:
    made(db, n=9)


def cloned(db: ebla.Database) -> None:
    db.clone_table("other", "t")


def renamed(db: ebla.Database) -> None:
    db.rename_table("other", "t")


@pytest.mark.parametrize("again", [made_anew, cloned, renamed])
def test_a_held_snapshot_does_not_show_what_got_the_name_of_a_table_later(
    db: ebla.Database, again: Callable[[ebla.Database], None]
) -> None:
    made(db)
    held, named = db.snapshot(), db.snapshot("named")
    assert numbers(held.table("t")) == numbers(named.table("t")) == [1]
    shown = held.table("t")
    db.drop_table("t")
    again(db)
    for snapshot in (held, named, db.snapshot("named")):
        with pytest.raises(ebla.UnknownTable, match="has the name since txn"):
            snapshot.table("t")
    with pytest.raises(ebla.UnknownTable, match="dropped"):
        shown.scan()
    after = db.snapshot()
    assert numbers(after.table("t")) == numbers(db.table("t"))
    root = db.path
    db.close()
    with ebla.open(root, read_only=True) as reader:
        with pytest.raises(ebla.UnknownTable, match="has the name since txn"):
            reader.snapshot("named").table("t")
        assert numbers(reader.snapshot().table("t")) == numbers(reader.table("t")), "that of now shows the new one"


def test_a_table_that_was_renamed_is_read_as_of_a_snapshot_by_its_new_name(db: ebla.Database) -> None:
    made(db)
    held = db.snapshot()
    table = db.rename_table("t", "u")
    table.put({"k": "a", "n": 2})
    assert numbers(table, as_of=held) == [1]
    with pytest.raises(ebla.UnknownTable, match="shows its own past"):
        held.table("u")


# --- sync ---


def test_sync_of_a_txn_that_nobody_was_given_is_refused(db: ebla.Database) -> None:
    newest = db.table("other").put({"k": "b", "n": 1})
    assert db.sync(newest) >= newest
    assert db.sync(np.int64(newest)) >= newest
    for later in (newest + (1 << 30), 1 << 62):
        with pytest.raises(ebla.RequestError, match="was not given out yet"):
            db.sync(later)


def test_sync_in_a_store_that_is_open_for_reading_knows_no_later_txn(db: ebla.Database) -> None:
    with ebla.open(db.path, read_only=True) as reader:
        later = db.table("other").put({"k": "b", "n": 1})
        assert reader.sync() < later
        with pytest.raises(ebla.RequestError, match="open it again"):
            reader.sync(later)


def test_sync_takes_the_txn_of_a_read_that_is_ahead_of_all_commits(tmp_path: Path) -> None:
    expiring = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"n": "int64"}, max_age="30d")])
    with ebla.open(tmp_path, settings=QUIET) as db:
        table = db.create_table("t", expiring)
        table.put({"k": "a", "n": 1})
        row = table.get("a")
        assert row is not None
        assert row.txn > db.stats()["txn_committed"]
        db.sync(row.txn)


# --- scans that follow newer commits ---


@pytest.mark.parametrize("limit", [None, 20])
def test_a_scan_that_follows_newer_commits_has_the_txn_of_what_it_read_last(
    db: ebla.Database, limit: int | None
) -> None:
    table = made(db)
    table.put([{"k": f"b{number}", "n": number} for number in range(10)])
    table.flush()
    table.split("b5")
    scan = table.scan(latest=True, limit=limit)
    begun = scan.txn
    rows = iter(scan)
    next(rows)
    assert scan.txn == begun
    newer = table.put({"k": "b6", "n": -1})
    assert next(row["n"] for row in rows if row["k"] == "b6") == -1
    assert scan.txn == scan.position.txn == newer
    assert table.scan().txn == newer


def test_a_scan_of_one_snapshot_keeps_its_txn(db: ebla.Database) -> None:
    table = made(db)
    scan = table.scan()
    begun = scan.txn
    table.put({"k": "b", "n": 2})
    assert scan.to_arrow().num_rows == 1
    assert scan.txn == begun


def test_tables_are_made_while_others_write_and_take_snapshots(db: ebla.Database) -> None:
    """What a snapshot shows of a table depends on nothing but whether it was taken before it was made."""
    stop = threading.Event()
    writer = threading.Thread(target=lambda: _write(db.table("other"), stop))
    writer.start()
    try:
        for number in range(10):
            before = db.snapshot()
            table = made(db, f"t{number}")
            with pytest.raises(ebla.UnknownTable):
                before.table(f"t{number}")
            assert numbers(db.snapshot().table(f"t{number}")) == [1]
            assert numbers(table) == [1]
    finally:
        stop.set()
        writer.join()


def _write(table: ebla.Table, stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        table.put({"k": "w", "n": number}, wait="none" if number % 8 else "durable")
