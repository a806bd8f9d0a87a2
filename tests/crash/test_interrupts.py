"""An interrupt at a moment that hurts: what was being done has happened, and nobody was told.

Afterwards the store goes on in the same process, and is opened again: nothing that was acknowledged is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from ebla.client.database import Database
from ebla.coordination.memory import Fault, MemoryCoordination
from ebla.errors import LogFailed, OutcomeUnknown, TableExists, UnknownTable
from ebla.metadata.server.transaction import MetadataServer
from ebla.service.job_orders import BulkCommit
from ebla.tablet.tables.door import Door
from ebla.tablet.tables.pauses import Pauses
from ebla.tablet.write.commit_log import CommitLog
from ebla.tablet.write.gate import Gate
from ebla.tablet.write.sequencer import Sequencer
from tests.crash.machine import Machine, bounded
from tests.crash.story import CALM, MIXED, create, put
from tests.support.inside import abandon, carry_out, engine_of, state_of


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine([create("mixed", MIXED), put("mixed", {"user": "ada", "age": 1})], CALM)
    machine.play()
    assert machine.db is not None
    machine.db.table("mixed").flush()
    yield machine
    if machine.db is not None:
        bounded(machine.db.close)


@contextmanager
def interrupted(kind: type, method: str, *, before: bool = False, skipped: int = 0) -> Iterator[None]:
    """Let a call of a method be interrupted when it is done, or `before` it begins; expect the interrupt."""
    original: Callable[..., Any] = getattr(kind, method)
    calls: list[str] = []

    def call(*args: Any, **options: Any) -> Any:
        calls.append(method)
        is_meant = len(calls) == skipped + 1
        if is_meant and before:
            raise KeyboardInterrupt
        answer = original(*args, **options)
        if is_meant:
            raise KeyboardInterrupt
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, call)
        with pytest.raises(KeyboardInterrupt):
            yield


def check(machine: Machine, column: str, expected: list[Any]) -> None:
    """Assert what a column of the table holds: now, after a crash, and after closing it."""
    for end in (None, abandon, Database.close):
        if end is not None:
            assert machine.db is not None
            bounded(partial(end, machine.db))
            machine.open()
        assert machine.db is not None
        assert [row[column] for row in machine.db.table("mixed").scan()] == expected


def test_what_is_written_after_an_interrupted_alteration_is_not_lost(machine: Machine) -> None:
    assert machine.db is not None
    table = machine.db.table("mixed")
    with interrupted(MemoryCoordination, "compare_and_set"):
        machine.db.alter_table("mixed", drop_columns=["name"], add_columns={"profile": {"name": "string"}})
    bounded(lambda: table.put({"user": "ada", "name": "Ada"}))
    bounded(lambda: table.put({"user": "kurt", "name": "Kurt"}))
    assert table.schema.version == 2
    check(machine, "name", ["Ada", "Kurt"])


def test_nothing_is_written_to_a_table_whose_drop_was_interrupted_after_it_happened(machine: Machine) -> None:
    assert machine.db is not None
    table = machine.db.table("mixed")
    with interrupted(MemoryCoordination, "multi"):
        machine.db.drop_table("mixed")
    with pytest.raises(UnknownTable):
        bounded(lambda: table.put({"user": "ada", "age": 2}))
    assert machine.db.tables() == []
    machine.db.create_table("mixed", MIXED).put({"user": "kurt", "age": 3})
    check(machine, "age", [3])


def test_a_table_whose_drop_was_interrupted_before_it_happened_is_written_as_before(machine: Machine) -> None:
    assert machine.db is not None
    with interrupted(MemoryCoordination, "multi", before=True):
        machine.db.drop_table("mixed")
    bounded(lambda: machine.db.table("mixed").put({"user": "kurt", "age": 3}))
    check(machine, "age", [1, 3])


@pytest.mark.parametrize("operation", ["create", "clone"])
def test_a_table_is_served_whose_creation_was_interrupted_after_it_happened(machine: Machine, operation: str) -> None:
    db = machine.db
    assert db is not None
    with interrupted(MemoryCoordination, "multi"):
        db.create_table("new", MIXED) if operation == "create" else db.clone_table("mixed", "new")
    assert db.tables() == ["mixed", "new"]
    db.table("new").put({"user": "ada", "age": 7})
    with pytest.raises(TableExists):
        db.create_table("new", MIXED)
    assert [row["age"] for row in db.table("new").scan()] == [7]
    check(machine, "age", [1])


@pytest.mark.parametrize("before", [False, True], ids=["after it happened", "before it happened"])
def test_what_is_written_after_an_interrupted_unloading_is_not_lost(machine: Machine, before: bool) -> None:
    db = machine.db
    assert db is not None
    with interrupted(MemoryCoordination, "compare_and_set", before=before):
        db.unload_table("mixed")
    bounded(lambda: db.load_table("mixed"))
    bounded(lambda: db.table("mixed").put({"user": "kurt", "age": 3}))
    check(machine, "age", [1, 3])


def test_what_is_written_after_an_interrupted_loading_is_not_lost(machine: Machine) -> None:
    db = machine.db
    assert db is not None
    db.unload_table("mixed")
    with interrupted(MemoryCoordination, "compare_and_set"):
        db.load_table("mixed")
    bounded(lambda: db.load_table("mixed"))
    bounded(lambda: db.table("mixed").put({"user": "kurt", "age": 3}))
    check(machine, "age", [1, 3])


def test_a_table_is_served_whose_unloading_ended_in_a_flush_of_unknown_outcome(machine: Machine) -> None:
    db = machine.db
    assert db is not None
    db.table("mixed").put({"user": "emmy", "age": 2})

    def lose_replies(name: str, paths: tuple[str, ...]) -> Fault | None:
        if not paths[0].startswith("tables/"):
            return None
        return Fault.FAIL_BEFORE if name in ("read", "list") else Fault.LOSE_REPLY

    machine.faults = lose_replies
    with pytest.raises(OutcomeUnknown):
        db.unload_table("mixed")
    machine.faults = None
    bounded(lambda: db.table("mixed").put({"user": "kurt", "age": 3}))
    check(machine, "age", [1, 2, 3])
    assert machine.db is not None
    machine.db.unload_table("mixed")
    machine.db.load_table("mixed")
    check(machine, "age", [1, 2, 3])


def test_others_write_the_log_if_the_one_about_to_is_interrupted(machine: Machine) -> None:
    db = machine.db
    assert db is not None
    with interrupted(CommitLog, "_drain_once", before=True):
        db.table("mixed").put({"user": "emmy", "age": 2})
    bounded(lambda: db.table("mixed").put({"user": "kurt", "age": 3}))
    check(machine, "age", [1, 2, 3])


def test_nobody_waits_for_a_commit_that_was_interrupted_when_it_had_its_txn(machine: Machine) -> None:
    db = machine.db
    assert db is not None
    with interrupted(Sequencer, "allocate"):
        db.table("mixed").put({"user": "emmy", "age": 2})
    for work in (db.sync, lambda: db.clone_table("mixed", "other"), lambda: db.table("mixed").put({"user": "kurt"})):
        with pytest.raises(LogFailed, match="reopen"):
            bounded(work, 20)
    check(machine, "age", [1])


@pytest.mark.parametrize("operation", ["alter", "split"])
@pytest.mark.parametrize("moment", ["when it has begun", "before it ends"])
def test_writers_go_on_after_a_pause_that_was_interrupted(machine: Machine, operation: str, moment: str) -> None:
    db = machine.db
    assert db is not None
    method, before = ("begin", False) if moment == "when it has begun" else ("end", True)
    with interrupted(Pauses, method, before=before):
        if operation == "alter":
            db.alter_table("mixed", drop_columns=["name"])
        else:
            db.table("mixed").split("k")
    bounded(lambda: db.table("mixed").put({"user": "kurt", "age": 3}))
    check(machine, "age", [1, 3])


@pytest.mark.parametrize("has_files", [False, True], ids=["a txn passes", "bulk commit"])
def test_writers_go_on_after_a_bulk_commit_that_was_interrupted_when_it_had_its_txn(
    machine: Machine, has_files: bool
) -> None:
    db = machine.db
    assert db is not None
    with interrupted(Gate, "close"):
        if has_files:
            table = db.table("mixed")
            carry_out(db, BulkCommit("job", state_of(table).id, table.schema.version, ()))
        else:
            engine_of(db).passing.pass_txn()
    bounded(lambda: db.table("mixed").put({"user": "kurt", "age": 3}))
    check(machine, "age", [1, 3])


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("operation", "step"), [*(("unload", n) for n in range(3)), *(("load", n) for n in range(4))])
def test_a_table_comes_back_after_its_unloading_or_loading_was_interrupted_at_any_step(
    machine: Machine, operation: str, step: int, before: bool
) -> None:
    db = machine.db
    assert db is not None
    if operation == "load":
        db.unload_table("mixed")
    with interrupted(Door, "move_all", skipped=step, before=before):
        db.unload_table("mixed") if operation == "unload" else db.load_table("mixed")
    bounded(lambda: db.load_table("mixed"))
    assert bounded(lambda: db.table("mixed").get("ada"))["age"] == 1
    bounded(lambda: db.table("mixed").put({"user": "kurt", "age": 3}))
    check(machine, "age", [1, 3])


def test_a_tablet_is_loaded_by_others_if_the_one_about_to_is_interrupted(machine: Machine) -> None:
    assert machine.db is not None
    bounded(machine.db.close)
    db = machine.open()
    with interrupted(Door, "_may_pass"):
        db.table("mixed").get("ada")
    assert bounded(lambda: db.table("mixed").get("ada"))["age"] == 1


def test_no_file_is_removed_that_is_read_after_an_interrupted_compaction(machine: Machine) -> None:
    db = machine.db
    assert db is not None
    table = db.table("mixed")
    table.put({"user": "kurt", "age": 3})
    table.flush()
    with interrupted(MetadataServer, "commit"):
        table.compact()
    for _ in range(3):
        db.gc(dry_run=False)
        machine.clock.advance(CALM.garbage_age_seconds + 1)
    named = {ref.file for tablet in state_of(table).view.metadata.tablets for g in tablet.groups for ref in g.fragments}
    assert named == {path for path in machine.files._names if path.startswith("fragments/")}
    check(machine, "age", [1, 3])
