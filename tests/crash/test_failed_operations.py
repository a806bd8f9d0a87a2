"""An operation of the disk fails, and the process lives on: reads stay right, writes succeed truthfully or raise.

For every operation of the story: it fails with an I/O error without having happened, or after it has; a write stops
half way for want of space. Everything goes on after that, on the same open store. A step may raise an `EblaError`,
never anything else; what it was told must be true then, after the store is opened again, and after a crash.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

import pytest

from ebla.settings import Settings
from tests.crash.journal import Expectations
from tests.crash.machine import Machine, bounded
from tests.crash.story import CALM, RESTLESS, Step, story
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


def run_with(fault: Fault, number: int, settings: Settings) -> Machine:
    """Play the story with one operation failing, and check all that can be seen of the store until its end."""
    machine = Machine(STORY, settings, EXPECTATIONS)
    machine.files.plan = FaultPlan(at={number: fault})
    looks = 3

    def look(step: Step) -> None:
        nonlocal looks
        if looks and machine.errors and machine.db is not None:
            looks -= 1
            machine.check(machine.db, machine.journal.statuses, f"still open, after {step.name}")

    machine.play(look)
    failed = next((op for op in machine.files.record() if op.number == number), None)
    where = f"{failed} {fault}"
    statuses = tuple(machine.journal.statuses)
    killed, nodes = machine.files.restarted(), machine.nodes.copy()
    for disk in machine.files.crash_images(number, 1)[-2:]:
        machine.check_disk(disk, nodes, statuses, f"crashed after {where}")
    machine.check_disk(killed, nodes, statuses, f"opened again after {where}", thorough=True)
    if machine.db is not None:
        machine._tried(machine.db.close)
    return machine


def sampled(all_operations: Iterable[Operation]) -> Iterator[Operation]:
    """Choose the first, one from the middle and the last of each kind of operation in each directory."""
    classes: dict[tuple[str, str], list[Operation]] = {}
    for operation in all_operations:
        classes.setdefault((operation.kind, operation.path.partition("/")[0]), []).append(operation)
    for members in classes.values():
        yield from {members[0], members[len(members) // 2], members[-1]}


@pytest.mark.parametrize("fault", [NOT_DONE, DONE_BUT_FAILED], ids=["not done", "done but failed"])
def test_a_failed_operation_is_survived_or_told(fault: Fault) -> None:
    for operation in sampled(operations(CALM)):
        bounded(lambda number=operation.number: run_with(fault, number, CALM))


def test_a_write_cut_short_for_want_of_space_is_survived_or_told() -> None:
    for operation in sampled(op for op in operations(CALM) if op.kind == "write"):
        bounded(lambda number=operation.number: run_with(NO_SPACE, number, CALM))


@pytest.mark.soak
@pytest.mark.parametrize("settings", [CALM, RESTLESS], ids=["calm", "restless"])
@pytest.mark.parametrize("fault", [NOT_DONE, DONE_BUT_FAILED, NO_SPACE], ids=["not done", "done but failed", "space"])
def test_every_failed_operation_is_survived_or_told(fault: Fault, settings: Settings) -> None:
    for operation in operations(settings):
        bounded(lambda number=operation.number: run_with(fault, number, settings))
