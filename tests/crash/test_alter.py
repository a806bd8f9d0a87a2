"""A crash, or a failing disk, at each step of a change of the schema: the old one or the new one, and every row.

The story has rows in files, in memory and in the log alone when the schema changes. Columns and families move, are
dropped and come again, and are widened; that the names stay the same lets every later step mean something either way.
"""

from __future__ import annotations

import pytest

from tests.crash.journal import Expectations
from tests.crash.machine import Machine, Moment, bounded
from tests.crash.story import CALM, Step, story_of_alterations
from tests.crash.test_crash_points import check_all, played
from tests.crash.test_failed_operations import DONE_BUT_FAILED, NO_SPACE, NOT_DONE
from tests.support.simulated_files import Fault, FaultPlan

STORY = story_of_alterations()
EXPECTATIONS = Expectations(STORY)


def during_alterations(machine: Machine) -> list[int]:
    """Return the numbers of the operations that belong to a change of the schema, of an undisturbed run."""
    numbers: list[int] = []
    before = 0

    def note(step: Step) -> None:
        nonlocal before
        count = len(list(machine.files.record()))
        if step.kind == "alter":
            numbers.extend(range(before, count))
        before = count

    bounded(lambda: machine.play(note))
    assert not machine.errors
    return numbers


def test_after_a_crash_at_any_step_of_an_alteration_the_store_has_the_old_schema_or_the_new() -> None:
    machine, moments = played(CALM, STORY)
    altering = [moment for moment in moments if _is_altering(moment)]
    assert len(altering) > 30
    assert bounded(lambda: check_all(machine, altering[::2], disks_max=1), 600) > len(altering) // 2


def _is_altering(moment: Moment) -> bool:
    return moment.statuses[-1:] == ("begun",) and STORY[len(moment.statuses) - 1].kind == "alter"


@pytest.mark.parametrize(
    "fault", [NOT_DONE, DONE_BUT_FAILED, NO_SPACE], ids=["not done", "done but failed", "no space"]
)
def test_an_operation_that_fails_during_an_alteration_is_survived_or_told(fault: Fault) -> None:
    numbers = during_alterations(Machine(STORY, CALM, EXPECTATIONS))
    errors = 0
    for number in numbers[:: len(numbers) // 8]:
        errors += len(bounded(lambda at=number: run_with(fault, at)).errors)
    assert errors


def run_with(fault: Fault, number: int) -> Machine:
    """Play the story with one operation failing; whatever was told must be true, also of the store opened again."""
    machine = Machine(STORY, CALM, EXPECTATIONS)
    machine.files.plan = FaultPlan(at={number: fault})
    machine.play(after_error=4)
    where = f"operation {number} {fault}"
    statuses, nodes = tuple(machine.journal.statuses), machine.nodes.copy()
    if machine.db is not None:
        machine.check(machine.db, statuses, f"open after {where}")
    machine.check_disk(machine.files.crash_images(number, 1)[-1], nodes, statuses, f"crashed after {where}")
    machine.check_disk(machine.files.restarted(), nodes, statuses, f"opened again after {where}")
    if machine.db is not None:
        machine.tried(machine.db.close)
    return machine


@pytest.mark.soak
def test_every_crash_and_every_failure_of_an_alteration() -> None:
    machine, moments = played(CALM, STORY, lambda operation: True)
    bounded(lambda: check_all(machine, moments, disks_max=8), 3_600)
    for number in during_alterations(Machine(STORY, CALM, EXPECTATIONS)):
        for fault in (NOT_DONE, DONE_BUT_FAILED, NO_SPACE):
            bounded(lambda at=number, how=fault: run_with(how, at))
