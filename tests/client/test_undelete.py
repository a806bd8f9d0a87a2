"""A dropped table can be brought back while it is retained: its name is free at once, and whoever has it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.client.database import Database
from ebla.client.embedded.opening import open_alone, wire
from ebla.clock import SystemClock
from ebla.coordination.service import Operation
from ebla.coordination.sqlite import SqliteCoordination
from ebla.errors import OutcomeUnknown, Unavailable
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.serve.local_table import LocalTable
from tests.support.inside import abandon, engine_of

SCHEMA = ebla.Schema(key={"k": "string"}, columns={"v": "int64"})
KEPT = ebla.Settings(drop_retention_seconds=3_600.0, garbage_age_seconds=0.0, background_compaction=False)


class ManualClock(SystemClock):
    """The time, and what a test adds to it."""

    added_microseconds = 0

    def microseconds(self) -> int:
        return super().microseconds() + self.added_microseconds

    def sleep(self, seconds: float) -> None:
        """What would be waited for has come."""


def opened(root: Path, clock: ManualClock | None = None, **changes: Any) -> Database:
    if clock is None:
        return open_alone(root, settings=KEPT)
    files = LocalFiles(root)
    lock = files.lock("LOCK")
    service = SqliteCoordination(root / "coordination.sqlite", clock)
    return wire(root, files, service, clock, KEPT, lock, **changes)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with opened(tmp_path / "s") as database:
        yield database


def rows(table: ebla.Table) -> dict[str, int]:
    return {row["k"]: row["v"] for row in table.scan()}


def test_the_name_is_free_at_once_and_old_handles_read_and_write_on(db: Database) -> None:
    old = db.create_table("t", SCHEMA)
    old.put({"k": "a", "v": 1})
    db.drop_table("t")
    assert db.tables() == []
    assert "t" not in db.stats()["tables"]
    assert db.table("sys.tables").count() == 0
    with pytest.raises(ebla.UnknownTable):
        db.table("t")
    old.put({"k": "b", "v": 2})
    new = db.create_table("t", SCHEMA)
    new.put({"k": "z", "v": 9})
    old.flush()
    old.put({"k": "c", "v": 3})
    assert old.get("a") == {"k": "a", "v": 1}
    assert (rows(old), rows(new), rows(db.table("t"))) == ({"a": 1, "b": 2, "c": 3}, {"z": 9}, {"z": 9})
    with pytest.raises(ebla.TableExists):
        db.undelete_table("t")
    back = db.undelete_table("t", new_name="back")
    assert (back.name, rows(back), db.tables()) == ("back", {"a": 1, "b": 2, "c": 3}, ["back", "t"])
    assert old.name == "back"
    db.drop_table("t", purge=True)
    with pytest.raises(ebla.UnknownTable):
        new.put({"k": "y", "v": 1})
    assert db.dropped_tables() == []


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("is_crashed", [False, True])
def test_everything_written_before_and_after_the_drop_is_there_after_reopening(
    tmp_path: Path, is_flushed: bool, is_crashed: bool
) -> None:
    db = opened(tmp_path / "s")
    table = db.create_table("t", SCHEMA)
    table.put({"k": "a", "v": 1})
    if is_flushed:
        table.flush()
    db.drop_table("t")
    table.put({"k": "b", "v": 2})
    (dropped,) = db.dropped_tables()
    abandon(db) if is_crashed else db.close()
    with opened(tmp_path / "s") as db:
        assert db.tables() == []
        assert db.dropped_tables() == [dropped]
        assert rows(db.undelete_table("t")) == {"a": 1, "b": 2}
        assert db.dropped_tables() == []
        db.table("t").put({"k": "c", "v": 3})
    with opened(tmp_path / "s") as db:
        assert rows(db.table("t")) == {"a": 1, "b": 2, "c": 3}
        assert not db.verify().findings


def test_a_retained_table_is_no_garbage_and_no_finding(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as db:
        table = db.create_table("t", SCHEMA)
        table.put({"k": "a", "v": 1})
        table.flush()
        files = table.files()
        db.drop_table("t")
        for _ in range(3):
            assert db.gc(dry_run=False).removed == ()
        assert not db.verify().findings
        assert not db.repair(dry_run=False).findings
        assert db.tables() == []
    assert ebla.status(tmp_path / "s").tables == ()
    with opened(tmp_path / "s") as db:
        back = db.undelete_table("t")
        assert back.files() == files
        assert rows(back) == {"a": 1}


def test_tables_of_one_name_are_told_apart_by_their_ids(db: Database) -> None:
    for value in (1, 2):
        db.create_table("t", SCHEMA).put({"k": "a", "v": value})
        db.drop_table("t")
    second, first = db.dropped_tables()
    assert (first.name, second.name) == ("t", "t")
    assert first.dropped < second.dropped
    assert (first.until - first.dropped).total_seconds() == 3_600
    with pytest.raises(ebla.RequestError, match=f"several tables 't' were dropped.*{second.id}.*{first.id}"):
        db.undelete_table("t")
    assert rows(db.undelete_table("t", id=first.id)) == {"a": 1}
    assert rows(db.undelete_table("t", id=second.id, new_name="u")) == {"a": 2}


def test_what_is_not_there_to_be_brought_back_is_told(db: Database) -> None:
    db.create_table("t", SCHEMA)
    for given in ({"name": "t"}, {"name": "u"}, {"name": "t", "id": "x"}):
        with pytest.raises(ebla.UnknownTable, match="no dropped table has the name"):
            db.undelete_table(**given)
    db.drop_table("t")
    with pytest.raises(ebla.SchemaError):
        db.undelete_table("t", new_name="not a name")
    with pytest.raises(ebla.RequestError, match="purge is True or False"):
        db.drop_table("t", purge=1)
    assert [table.name for table in db.dropped_tables()] == ["t"]


def test_a_table_is_purged_when_its_time_is_over_and_its_files_go(tmp_path: Path) -> None:
    clock = ManualClock()
    with ebla.open(tmp_path / "s"):
        pass
    with opened(tmp_path / "s", clock) as db:
        table = db.create_table("t", SCHEMA)
        table.put({"k": "a", "v": 1})
        table.flush()
        files = table.files()
        db.drop_table("t")
        clock.added_microseconds = 3_599_000_000
        db.gc(dry_run=False)
        assert rows(table) == {"a": 1}
        clock.added_microseconds = 3_601_000_000
        db.gc(dry_run=False)
        db.gc(dry_run=False)
        assert db.dropped_tables() == []
        with pytest.raises(ebla.UnknownTable):
            table.put({"k": "b", "v": 2})
        with pytest.raises(ebla.UnknownTable):
            db.undelete_table("t")
        assert not any((tmp_path / "s" / file).exists() for file in files)
        assert db.create_table("t", SCHEMA).count() == 0
    with opened(tmp_path / "s") as db:
        assert (db.tables(), db.dropped_tables()) == (["t"], [])


def test_without_a_retention_a_dropped_table_is_gone_at_once(tmp_path: Path) -> None:
    with open_alone(tmp_path / "s", settings=ebla.Settings(drop_retention_seconds=0)) as db:
        table = db.create_table("t", SCHEMA)
        db.drop_table("t")
        assert db.dropped_tables() == []
        with pytest.raises(ebla.UnknownTable):
            table.put({"k": "a", "v": 1})


def test_how_long_a_table_is_kept_is_said_when_it_is_dropped_and_not_by_who_comes_later(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as db:
        db.create_table("t", SCHEMA)
        db.drop_table("t")
        (dropped,) = db.dropped_tables()
    with open_alone(tmp_path / "s", settings=ebla.Settings(drop_retention_seconds=0)) as db:
        db.gc(dry_run=False)
        assert db.dropped_tables() == [dropped]


def test_a_clone_keeps_its_files_when_its_origin_is_purged(db: Database) -> None:
    origin = db.create_table("t", SCHEMA)
    origin.put({"k": "a", "v": 1})
    clone = db.clone_table("t", "u")
    db.drop_table("t", purge=True)
    for _ in range(3):
        db.gc(dry_run=False)
    assert rows(clone) == {"a": 1}


def test_a_dropped_table_is_flushed_and_compacted_like_any_other(db: Database) -> None:
    table = db.create_table("t", SCHEMA)
    table.put({"k": "a", "v": 1})
    db.drop_table("t")
    for value in range(3):
        table.put({"k": "b", "v": value})
        table.flush()
    table.compact()
    table.split("b")
    assert (len(table.files()), rows(table)) == (2, {"a": 1, "b": 2}) or rows(table) == {"a": 1, "b": 2}
    assert rows(db.undelete_table("t")) == {"a": 1, "b": 2}


def test_metadata_on_several_disks_keeps_a_dropped_table(tmp_path: Path) -> None:
    places = [tmp_path / "m1", tmp_path / "m2"]
    with open_alone(tmp_path / "s", settings=KEPT, metadata=places) as db:
        table = db.create_table("t", SCHEMA)
        table.put({"k": "a", "v": 1})
        db.drop_table("t")
        table.put({"k": "b", "v": 2})
        table.flush()
    with open_alone(tmp_path / "s", settings=KEPT) as db:
        assert rows(db.undelete_table("t")) == {"a": 1, "b": 2}
        db.drop_table("t", purge=True)
        assert db.dropped_tables() == []


class Unreliable(SqliteCoordination):
    """A coordination service that fails at the step that a test chooses: before or after it is done."""

    fail_at: int | None = None
    is_done_first = False
    then_down = False
    steps = 0

    def _step(self, do: Callable[[], Any]) -> Any:
        self.steps += 1
        if self.fail_at is not None and self.steps > self.fail_at and self.then_down:
            raise Unavailable("the service is down")
        if self.steps != self.fail_at:
            return do()
        if self.is_done_first:
            do()
        raise OutcomeUnknown("the reply was lost")

    def multi(self, operations: Sequence[Operation]) -> Any:
        return self._step(lambda: super(Unreliable, self).multi(operations))

    def compare_and_set(self, path: str, value: bytes, version: int) -> int:
        return int(self._step(lambda: super(Unreliable, self).compare_and_set(path, value, version)))


@pytest.mark.parametrize("operation", ["drop", "undelete", "purge"])
@pytest.mark.parametrize("is_done_first", [False, True])
@pytest.mark.parametrize("then_down", [False, True])
def test_a_lost_reply_at_any_step_loses_no_row(
    tmp_path: Path, operation: str, is_done_first: bool, then_down: bool
) -> None:
    """Each step is cut off; then the process dies, and the store is either before the operation or after it."""
    root, step = tmp_path / "s", 0
    while True:
        step += 1
        path = root / str(step)
        with opened(path) as db:
            table = db.create_table("t", SCHEMA)
            table.put({"k": "a", "v": 1})
            if operation != "drop":
                db.drop_table("t")
                table.put({"k": "b", "v": 2})
        clock = ManualClock()
        files = LocalFiles(path)
        service = Unreliable(path / "coordination.sqlite", clock)
        db = wire(path, files, service, clock, KEPT, files.lock("LOCK"))
        if operation == "purge":
            clock.added_microseconds = 3_601_000_000
        service.steps, service.fail_at = 0, step
        service.is_done_first, service.then_down = is_done_first, then_down
        failed: Exception | None = None
        try:
            if operation == "drop":
                db.drop_table("t")
            elif operation == "undelete":
                db.undelete_table("t")
            else:
                engine_of(db).lifecycle.purge_due()
        except ebla.EblaError as error:
            failed = error
        is_over = service.steps < step
        service.fail_at = None
        if failed is None and operation == "undelete":
            assert rows(db.table("t")) == {"a": 1, "b": 2}
        written = {"a": 1} if operation == "drop" else {"a": 1, "b": 2}
        if operation == "drop":
            table_of(db).put({"k": "b", "v": 2})  # it is found out first what became of the drop
            written["b"] = 2
        abandon(db)
        with opened(path) as db:
            there = [*db.tables(), *(table.name for table in db.dropped_tables())]
            if operation != "purge":
                assert there == ["t"]
                found = db.table("t") if db.tables() else db.undelete_table("t")
                assert rows(found) == written
            elif there:
                assert rows(db.undelete_table("t")) == written
            else:
                assert failed is None or is_done_first or not isinstance(failed, Unavailable)
            assert not [one for one in db.verify().findings if one.kind != "orphan"]
        if is_over:
            break
    assert step > 1


def table_of(db: Database) -> ebla.Table:
    """Return the only table that is served, whatever it is called, as somebody has it who opened it before."""
    (state,) = engine_of(db).served_tables().values()
    return ebla.Table(LocalTable(engine_of(db), state))
