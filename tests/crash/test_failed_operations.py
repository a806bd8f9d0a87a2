"""An operation of the disk fails, and the process lives on: reads stay right, writes succeed truthfully or raise.

For every operation of the story: it fails with an I/O error without having happened, or after it has; a write stops
half way for want of space. Everything goes on after that, on the same open store. A step may raise an `EblaError`,
never anything else; what it was told must be true then, after the store is opened again, and after a crash.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence

import pytest

from ebla.errors import LogFailed, StoreError
from ebla.settings import Settings
from ebla.storage.log.log_format import SEGMENT_HEADER_BYTES
from tests.crash.journal import Expectations
from tests.crash.machine import Machine, bounded
from tests.crash.story import CALM, MIXED, RESTLESS, Step, create, put, story
from tests.support.simulated_files import Fault, FaultPlan, Operation

NOT_DONE = Fault(errno.EIO)
DONE_BUT_FAILED = Fault(errno.EIO, 1.0)
NO_SPACE = Fault(errno.ENOSPC, 0.5)

STORY = story()
EXPECTATIONS = Expectations(STORY)


def operations(settings: Settings) -> list[Operation]:
    """Return the operations of an undisturbed run."""
    machine = Machine(STORY, settings, EXPECTATIONS)
    bounded(machine.play)
    assert not machine.errors
    return list(machine.files.record())


def run_with(fault: Fault, number: int, settings: Settings, after_error: int = 1_000) -> Machine:
    """Play the story with one operation failing, and check all that can be seen of the store until its end."""
    machine = Machine(STORY, settings, EXPECTATIONS)
    machine.files.plan = FaultPlan(at={number: fault})
    looks = 2

    def look(step: Step) -> None:
        nonlocal looks
        if looks and machine.errors and machine.db is not None:
            looks -= 1
            machine.check(machine.db, machine.journal.statuses, f"open after {step.name}", thorough=looks == 0)

    machine.play(look, after_error=after_error)
    failed = next((operation for operation in machine.files.record() if operation.number == number), None)
    where = f"{failed} {fault}"
    statuses, nodes = tuple(machine.journal.statuses), machine.nodes.copy()
    crashed = machine.files.crash_images(number, 1)[-1]
    machine.check_disk(crashed, nodes, statuses, f"crashed after {where}")
    machine.check_disk(machine.files.restarted(), nodes, statuses, f"opened again after {where}")
    if machine.db is not None:
        machine.tried(machine.db.close)
    return machine


def sampled(all_operations: Iterable[Operation], places: Sequence[float]) -> Iterator[Operation]:
    """Choose some of each kind of operation in each directory: those at `places`, 0 the first and 1 the last."""
    classes: dict[tuple[str, str], list[Operation]] = {}
    for operation in all_operations:
        classes.setdefault((operation.kind, operation.path.partition("/")[0]), []).append(operation)
    for members in classes.values():
        yield from {members[int(place * (len(members) - 1))] for place in places}


@pytest.mark.parametrize(
    ("fault", "places"), [(NOT_DONE, (0.6,)), (DONE_BUT_FAILED, (0.3,))], ids=["not done", "done but failed"]
)
def test_a_failed_operation_is_survived_or_told(fault: Fault, places: Sequence[float]) -> None:
    errors = 0
    for operation in sampled(operations(CALM), places):
        errors += len(bounded(lambda number=operation.number: run_with(fault, number, CALM, after_error=6)).errors)
    assert errors, "not one step has noticed that a disk fails"


def _is_entry(operation: Operation) -> bool:
    return operation.kind == "write" and operation.path.startswith("log/") and operation.size > SEGMENT_HEADER_BYTES


def test_a_write_cut_short_for_want_of_space_is_survived_or_told() -> None:
    told = 0
    writes = [operation for operation in operations(CALM) if operation.kind == "write"]
    entries = sampled(filter(_is_entry, writes), (0.1, 0.3, 0.5, 0.7, 0.9))
    for operation in (*sampled(writes, (0.2, 0.8)), *entries):
        machine = bounded(lambda number=operation.number: run_with(NO_SPACE, number, CALM, after_error=6))
        # Saves of METADATA come from another thread, so the number may meet another operation than in the first run.
        hit = next(one for one in machine.files.record() if one.number == operation.number)
        if _is_entry(hit):
            assert any("no space" in str(error) for error in machine.errors)
            told += 1
    assert told, "not one write of the log was cut short"


def test_reads_go_on_when_the_log_cannot_be_synced_and_writing_resumes_on_reopening() -> None:
    machine = Machine([create("mixed", MIXED), put("mixed", {"user": "ada", "age": 1})], CALM)
    machine.play()
    assert machine.db is not None
    table = machine.db.table("mixed")
    machine.files.plan = FaultPlan.fail_when(lambda operation: operation.kind == "sync" and "log/" in operation.path)
    with pytest.raises(LogFailed, match="reads go on"):
        table.put({"user": "ada", "age": 2})
    machine.files.plan = FaultPlan()
    # The disk is well again, but what it holds is unknown: no later write may be built on it.
    for wait in ("durable", "logged", "none"):
        with pytest.raises(LogFailed):
            table.put({"user": "kurt", "age": 3}, wait=wait)
    assert table.get("ada")["age"] == 1
    assert [row["user"] for row in table.scan()] == ["ada"]
    machine.db.close()
    db = machine.open()
    assert db.table("mixed").get("ada")["age"] in (1, 2)
    assert db.table("mixed").get("kurt") is None
    db.table("mixed").put({"user": "kurt", "age": 4})
    assert db.table("mixed").get("kurt")["age"] == 4
    db.close()


def test_what_nobody_waited_for_is_not_lost_in_silence() -> None:
    machine = Machine([create("mixed", MIXED), put("mixed", {"user": "ada", "age": 1})], CALM)
    machine.play()
    assert machine.db is not None
    machine.files.plan = FaultPlan.fail_when(lambda operation: operation.path.startswith("log/"), errno.ENOSPC)
    machine.db.table("mixed").put({"user": "ada", "age": 2}, wait="none")
    with pytest.raises(LogFailed, match="no space"):
        machine.db.close()


def test_a_flush_that_failed_is_done_by_the_next_one() -> None:
    machine = Machine([create("mixed", MIXED), put("mixed", {"user": "ada", "age": 1, "click:a": b"x"})], CALM)
    machine.play()
    assert machine.db is not None
    table = machine.db.table("mixed")
    for directory in ("fragments/", "metadata/"):
        machine.files.plan = FaultPlan.fail_when(lambda op, at=directory: op.path.startswith(at), errno.ENOSPC)
        with pytest.raises(StoreError, match="space"):
            table.flush()
        assert not table.files()
        assert table.get("ada") == {"user": "ada", "name": None, "age": 1, "note": None, "click:a": b"x"}
        table.put({"user": "ada", "age": 1}, wait="logged")  # the log has its own luck
    machine.files.plan = FaultPlan()
    table.flush()
    assert len(table.files()) == 2
    assert table.get("ada") == {"user": "ada", "name": None, "age": 1, "note": None, "click:a": b"x"}
    machine.db.close()


def test_what_failed_flushes_leave_behind_is_removed_while_the_store_is_open() -> None:
    machine = Machine([create("mixed", MIXED), put("mixed", {"user": "ada", "age": 1})], CALM)
    machine.play()
    assert machine.db is not None
    table = machine.db.table("mixed")
    for directory in ("fragments/", "metadata/", "metadata/"):
        machine.files.plan = FaultPlan.fail_when(lambda op, at=directory: op.path.startswith(at), errno.ENOSPC)
        with pytest.raises(StoreError, match="space"):
            table.flush()
    machine.files.plan = FaultPlan()
    table.flush()
    report = machine.db.gc()
    assert (report.files, report.named, report.by_writers, report.candidates) == (3, 1, 0, 2)
    for _ in range(2):
        machine.db.gc(dry_run=False)
        machine.clock.advance(CALM.garbage_age_seconds + 1)
    assert machine.db.gc(dry_run=False).files == 1
    assert table.get("ada", columns=["age"]) == {"user": "ada", "age": 1}
    machine.db.close()


@pytest.mark.soak
@pytest.mark.parametrize("settings", [CALM, RESTLESS], ids=["calm", "restless"])
@pytest.mark.parametrize("fault", [NOT_DONE, DONE_BUT_FAILED, NO_SPACE], ids=["not done", "done but failed", "space"])
def test_every_failed_operation_is_survived_or_told(fault: Fault, settings: Settings) -> None:
    for operation in operations(settings):
        bounded(lambda number=operation.number: run_with(fault, number, settings))
