"""A crash, or a failing disk or service, at each step of bringing in a table: it is there as a whole, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebla.coordination.memory import Fault as Lost
from tests.crash.journal import Expectations
from tests.crash.machine import Machine, bounded
from tests.crash.story import CALM, MIXED, Step, compact, create, drop, erase, erase_range, flush, gc, put, reopen
from tests.crash.test_crash_points import check_all, played
from tests.crash.test_failed_operations import DONE_BUT_FAILED, NO_SPACE, NOT_DONE
from tests.support.bringing import bring
from tests.support.simulated_files import Fault, FaultPlan

EAGER = replace(CALM, garbage_age_seconds=0.0)


def restore(origin: str, table: str, *, in_place: bool = False) -> Step:
    # To the model it is a clone, which may take the place of another table.
    return Step(
        f"restore {origin} as {table}",
        "clone",
        table,
        lambda db: bring(db, origin, db, table, in_place=in_place),
        origin=origin,
    )


STORY = [
    create("mixed", MIXED, ["h"]),
    put("mixed", [{"user": "ada", "name": "Ada", "age": 36, "click:home": b"1"}, {"user": "kurt", "view:top": b"b"}]),
    flush("mixed"),
    put("mixed", [{"user": "emmy", "age": 53}, {"user": "ada", "age": 37}], "logged"),
    erase_range("mixed", "k", "l"),
    put("mixed", {"user": "kurt", "note": "again"}, "none"),
    restore("mixed", "second"),
    put("mixed", {"user": "ada", "age": 38}, "none"),
    put("second", {"user": "ada", "age": 1_000, "click:home": b"2"}, "none"),
    erase("second", "emmy", wait="none"),
    gc(),
    restore("second", "mixed", in_place=True),
    put("mixed", {"user": "rosa", "name": "Rosa"}, "none"),
    gc(),
    compact("mixed"),
    drop("second"),
    gc(),
    restore("mixed", "third"),
    restore("third", "mixed", in_place=True),
    put("mixed", {"user": "zuse", "note": "relay"}),
    gc(),
    reopen(),
    restore("mixed", "second"),
    gc(),
    reopen(),
]
EXPECTATIONS = Expectations(STORY)


def is_restore(begun: int) -> bool:
    return STORY[begun - 1].name.startswith("restore")


def check_crashes(share: int, disks_max: int) -> None:
    machine, moments = played(EAGER, STORY)
    restoring = [one for one in moments if one.statuses[-1:] == ("begun",) and is_restore(len(one.statuses))]
    assert len(restoring) > 30
    chosen = restoring[:: max(1, len(restoring) // share)]
    assert bounded(lambda: check_all(machine, chosen, disks_max=disks_max), 3_600) >= len(chosen)


def check_failures(fault: Fault, share: int) -> None:
    """Let operations on files fail, those of a restore, one in each run."""
    machine = Machine(STORY, EAGER, EXPECTATIONS)
    numbers: list[int] = []
    before = 0

    def note(step: Step) -> None:
        nonlocal before
        count = len(list(machine.files.record()))
        if step.name.startswith("restore"):
            numbers.extend(range(before, count))
        before = count

    bounded(lambda: machine.play(note))
    assert not machine.errors
    errors = 0
    for number in numbers[:: max(1, len(numbers) // share)]:
        machine = Machine(STORY, EAGER, EXPECTATIONS)
        machine.files.plan = FaultPlan(at={number: fault})
        bounded(lambda one=machine: one.play(after_error=4))
        errors += len(machine.errors)
        check(machine, f"operation {number} {fault}")
    assert errors


def check_requests(fault: Lost, share: int) -> None:
    """Let requests to the coordination service get lost, those of a restore, one in each run."""
    machine = Machine(STORY, EAGER, EXPECTATIONS)
    seen: list[tuple[str, int]] = []
    machine.faults = lambda name, paths: seen.append((name, len(machine.journal.statuses)))
    bounded(machine.play)
    changing = [
        n for n, (name, begun) in enumerate(seen) if name not in ("read", "list", "watch") and is_restore(begun)
    ]
    # The one by which a table takes the place of another is always among them.
    multis = [n for n in changing if seen[n][0] == "multi"]
    assert len(multis) >= 4
    assert len(changing) > 12
    for number in sorted({*changing[:: max(1, len(changing) // share)], multis[1]}):
        machine = Machine(STORY, EAGER, EXPECTATIONS)
        requests = iter(range(1_000_000))
        machine.faults = lambda name, paths, at=number, them=requests: fault if next(them) == at else None
        bounded(lambda one=machine: one.play(lambda step: one.nodes.deliver() and None, after_error=4))
        machine.faults = None
        machine.nodes.deliver()
        check(machine, f"request {number} {fault}")


def check(machine: Machine, where: str) -> None:
    """Whatever was told must be true, of the store that is open and of the one that is opened again."""
    statuses, nodes = tuple(machine.journal.statuses), machine.nodes.copy()
    if machine.db is not None:
        machine.check(machine.db, statuses, f"open after {where}")
    machine.check_disk(machine.files.restarted(), nodes, statuses, f"opened again after {where}")
    if machine.db is not None:
        machine.tried(machine.db.close)


def test_after_a_crash_at_any_step_the_table_is_there_as_a_whole_or_not_at_all() -> None:
    check_crashes(share=10, disks_max=1)


def test_an_operation_that_fails_is_survived_or_told() -> None:
    check_failures(NOT_DONE, share=3)


@pytest.mark.parametrize("fault", [Lost.LOSE_REPLY, Lost.DELAY])
def test_a_request_to_the_coordination_service_that_is_lost_is_survived_or_told(fault: Lost) -> None:
    check_requests(fault, share=1)


@pytest.mark.soak
def test_every_crash_and_every_failure_of_a_restore() -> None:
    check_crashes(share=10_000, disks_max=8)
    for operation in (NOT_DONE, DONE_BUT_FAILED, NO_SPACE):
        check_failures(operation, share=10_000)
    for request in Lost:
        check_requests(request, share=10_000)
