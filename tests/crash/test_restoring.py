"""A crash, or a failing disk or service, at each step of bringing in a table: it is there as a whole, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebla.coordination.memory import Fault as Lost
from tests.crash.episodes import FAULTS, Episodes
from tests.crash.machine import Machine, bounded
from tests.crash.story import CALM, MIXED, Step, compact, create, drop, erase, erase_range, flush, gc, put, reopen
from tests.support.bringing import bring

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
RESTORES = Episodes(STORY, EAGER, lambda step: step.name.startswith("restore"))


def check_requests(fault: Lost, share: int) -> None:
    """Let requests to the coordination service get lost, those of a restore, one in each run."""
    machine = RESTORES.machine()
    seen: list[tuple[str, int]] = []
    machine.faults = lambda name, paths: seen.append((name, len(machine.journal.statuses)))
    bounded(machine.play)
    changing = [
        n
        for n, (name, begun) in enumerate(seen)
        if name not in ("read", "list", "watch") and RESTORES.is_meant(STORY[begun - 1])
    ]
    # The one by which a table takes the place of another is always among them.
    multis = [n for n in changing if seen[n][0] == "multi"]
    assert len(multis) >= 4
    assert len(changing) > 12
    for number in sorted({*changing[:: max(1, len(changing) // share)], multis[1]}):
        machine = RESTORES.machine()
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
    RESTORES.crash(images_max=10)


def test_an_operation_that_fails_is_survived_or_told() -> None:
    assert RESTORES.fail_some(FAULTS["not done"], 3)


@pytest.mark.parametrize("fault", [Lost.LOSE_REPLY, Lost.DELAY])
def test_a_request_to_the_coordination_service_that_is_lost_is_survived_or_told(fault: Lost) -> None:
    check_requests(fault, share=1)


@pytest.mark.soak
def test_every_crash_and_every_failure_of_a_restore() -> None:
    RESTORES.everything()
    for request in Lost:
        check_requests(request, share=10_000)
