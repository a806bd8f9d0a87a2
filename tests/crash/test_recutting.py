"""A crash, or a failing disk, at each step of a split, a join, or an unload: the old tablets or the new, and every row.

The story has rows in files, in memory and in the log alone when tablets are cut. After each crash what was begun is
finished, and nothing may change by that.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebla.clock import ManualClock
from tests.crash.episodes import FAULTS, Episodes
from tests.crash.machine import Machine, Moment, bounded, open_store
from tests.crash.story import (
    CALM,
    MIXED,
    Step,
    compact,
    create,
    erase,
    erase_range,
    flush,
    join,
    put,
    reopen,
    split,
    unload,
)
from tests.crash.test_crash_points import played
from tests.support.inside import abandon, engine_of, state_of
from tests.support.simulated_files import Fault, FaultPlan

USERS = ("ada", "bob", "emmy", "kurt", "max", "rosa", "sofia", "tim")


def story() -> list[Step]:
    return [
        create("mixed", MIXED),
        put("mixed", [{"user": user, "age": 1, "note": user, "click:a": b"1"} for user in USERS]),
        flush("mixed"),
        put("mixed", [{"user": user, "age": 2, "view:b": b"2"} for user in USERS[::2]]),
        erase_range("mixed", "e", "l"),
        put("mixed", {"user": "kurt", "age": 3}, "none"),
        split("mixed", "kurt"),
        put("mixed", [{"user": "ada", "age": 4}, {"user": "tim", "age": 4}], "none"),
        erase("mixed", "max"),
        compact("mixed"),
        put("mixed", [{"user": "bob", "click:a": b"5"}, {"user": "rosa", "click:a": b"5"}], "none"),
        split("mixed", "rosa"),
        put("mixed", {"user": "emmy", "age": 6}),
        join("mixed", "a", "kurt"),
        put("mixed", {"user": "sofia", "age": 7}, "none"),
        unload("mixed"),
        join("mixed", "a", "z"),
        put("mixed", {"user": "tim", "age": 8}, "none"),
        reopen(),
        put("mixed", {"user": "ada", "age": 9}),
    ]


STORY = story()
CUTTING = Episodes(STORY, CALM, lambda step: step.name.startswith(("split", "join", "unload")))


def check(machine: Machine, moment: Moment, seed: int) -> int:
    """Open what a crash may leave, finish what was begun, and go on; the rows are the same all the time."""
    checked = 0
    for disk in moment.disks(seed, 1):
        clock = ManualClock(machine.clock.microseconds() + 60_000_000)
        nodes = moment.nodes.copy()
        db = open_store(disk, nodes, clock, replace(machine.settings, open_files_max=256, scan_batch_rows=1_000))
        where = f"crashed at {moment.label}"
        machine.check(db, moment.statuses, where, thorough=False)
        table = db.table("mixed")
        engine_of(db).recutter.finish_begun(state_of(table))
        assert {tablet["state"] for tablet in table.tablets()} == {"running"}, where
        machine.check(db, moment.statuses, f"{where}, then finished", thorough=False)
        state_of(table).view.metadata.check()
        abandon(db)
        again = open_store(disk, nodes, clock, machine.settings)
        machine.check(again, moment.statuses, f"{where}, finished, and opened again", thorough=False)
        abandon(again)
        checked += 1
    return checked


def test_after_a_crash_at_any_step_tablets_are_the_old_or_the_new_and_what_was_begun_is_finished() -> None:
    machine, moments = played(CALM, STORY)
    cutting = [moment for moment in moments if CUTTING.is_within(moment)]
    assert len(cutting) > 60
    assert {moment.label.split()[0] for moment in cutting} >= {"CompareAndSet"}
    assert bounded(lambda: sum(check(machine, m, n) for n, m in enumerate(cutting[::5])), 600) > len(cutting) // 5


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_after_a_crash_at_every_operation_and_on_many_disks(seed: int) -> None:
    machine, moments = played(CALM, STORY, wanted=lambda operation: True)
    bounded(lambda: [check(machine, moment, 1_000 * seed + n) for n, moment in enumerate(moments[8:])], 3_600)


def run_with(fault: Fault, number: int) -> Machine:
    """Play the story with one operation failing, and check the store after it and when it is opened again."""
    machine = CUTTING.machine()
    machine.files.plan = FaultPlan(at={number: fault})
    machine.play()
    if machine.db is not None:
        machine.check(machine.db, machine.journal.statuses, f"open after operation {number}")
    statuses, nodes = tuple(machine.journal.statuses), machine.nodes.copy()
    for disk in (machine.files.crash_images(number, 1)[-1], machine.files.restarted()):
        clock = ManualClock(machine.clock.microseconds() + 60_000_000)
        db = open_store(disk, nodes.copy(), clock, CALM)
        machine.check(db, statuses, f"opened again after operation {number}", thorough=False)
        abandon(db)
    if machine.db is not None:
        machine.tried(machine.db.close)
    return machine


@pytest.mark.parametrize("fault", FAULTS)
def test_an_operation_that_fails_is_survived_or_told(fault: str) -> None:
    numbers = CUTTING.operations()
    errors = 0
    for number in numbers[:: max(1, len(numbers) // 5)]:
        errors += len(bounded(lambda at=number: run_with(FAULTS[fault], at)).errors)
    assert errors


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
def test_every_operation_that_fails_is_survived_or_told(fault: str) -> None:
    for number in CUTTING.operations():
        bounded(lambda at=number: run_with(FAULTS[fault], at))
