"""A crash, or a failing disk, at each step of a clone, a compaction and a round of garbage: no row is lost by any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.crash.journal import Expectations
from tests.crash.machine import Machine, Moment, bounded
from tests.crash.story import CALM, Step, story_of_care
from tests.crash.test_crash_points import check_all, played
from tests.crash.test_failed_operations import DONE_BUT_FAILED, NO_SPACE, NOT_DONE
from tests.support.simulated_files import Fault, FaultPlan

EAGER = replace(CALM, garbage_age_seconds=0.0)
STORY = story_of_care()
EXPECTATIONS = Expectations(STORY)
CARE = ("clone", "gc", "compact", "drop")


def is_care(step: Step) -> bool:
    return step.name.split()[0] in CARE


def operations_of_care(machine: Machine) -> list[int]:
    """Return the numbers of the operations that belong to a step of care, of an undisturbed run."""
    numbers: list[int] = []
    before = 0

    def note(step: Step) -> None:
        nonlocal before
        count = len(list(machine.files.record()))
        if is_care(step):
            numbers.extend(range(before, count))
        before = count

    bounded(lambda: machine.play(note))
    assert not machine.errors
    return numbers


def test_the_story_ends_with_few_files() -> None:
    machine = Machine(STORY, EAGER, EXPECTATIONS)
    bounded(machine.play)
    assert not machine.errors
    assert machine.db is not None
    named = {file for name in machine.db.tables() for file in machine.db.table(name).files()}
    assert machine.db.gc(dry_run=False).files <= 2 * len(named)
    machine.db.close()


def test_after_a_crash_at_any_step_of_care_every_row_is_there() -> None:
    machine, moments = played(EAGER, STORY)
    caring = [moment for moment in moments if _is_caring(moment)]
    assert len(caring) > 30
    assert bounded(lambda: check_all(machine, caring[:: max(1, len(caring) // 40)], disks_max=1), 600) > 20


def _is_caring(moment: Moment) -> bool:
    return moment.statuses[-1:] == ("begun",) and is_care(STORY[len(moment.statuses) - 1])


@pytest.mark.parametrize(
    "fault", [NOT_DONE, DONE_BUT_FAILED, NO_SPACE], ids=["not done", "done but failed", "no space"]
)
def test_an_operation_that_fails_during_a_step_of_care_is_survived_or_told(fault: Fault) -> None:
    numbers = operations_of_care(Machine(STORY, EAGER, EXPECTATIONS))
    errors = 0
    for number in numbers[:: len(numbers) // 10]:
        errors += len(bounded(lambda at=number: run_with(fault, at)).errors)
    assert errors


def run_with(fault: Fault, number: int) -> Machine:
    """Play the story with one operation failing; whatever was told must be true, also of the store opened again."""
    machine = Machine(STORY, EAGER, EXPECTATIONS)
    machine.files.plan = FaultPlan(at={number: fault})
    machine.play(after_error=4)
    where = f"operation {number} {fault}"
    statuses, nodes = tuple(machine.journal.statuses), machine.nodes.copy()
    if machine.db is not None:
        machine.check(machine.db, statuses, f"open after {where}")
    machine.check_disk(machine.files.restarted(), nodes, statuses, f"opened again after {where}")
    if machine.db is not None:
        machine.tried(machine.db.close)
    return machine


@pytest.mark.soak
def test_every_crash_and_every_failure_of_care() -> None:
    machine, moments = played(EAGER, STORY, lambda operation: True)
    bounded(lambda: check_all(machine, moments, disks_max=8), 3_600)
    for number in operations_of_care(Machine(STORY, EAGER, EXPECTATIONS)):
        for fault in (NOT_DONE, DONE_BUT_FAILED, NO_SPACE):
            bounded(lambda at=number, how=fault: run_with(how, at))
