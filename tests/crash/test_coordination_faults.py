"""The coordination service fails, loses requests and replies, or carries them out late: the files must not care.

For every request of the story: it is refused, lost on the way there, lost on the way back, or delayed until the next
step has begun. One such fault is to be survived; if the service stays away, steps raise, and what they raise is true.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebla.coordination.memory import Fault
from ebla.settings import Settings
from tests.crash.journal import Expectations
from tests.crash.machine import Machine, bounded
from tests.crash.story import CALM, RESTLESS, Step, story

STORY = story()
EXPECTATIONS = Expectations(STORY)

Request = tuple[str, tuple[str, ...]]


def requests(settings: Settings) -> list[Request]:
    """Return the requests of an undisturbed run."""
    machine = Machine(STORY, settings, EXPECTATIONS)
    seen: list[Request] = []
    machine.faults = lambda name, paths: seen.append((name, paths))
    bounded(machine.play)
    assert not machine.errors
    return seen


def run_with(fault: Fault, hits: Callable[[int], bool], settings: Settings) -> Machine:
    """Play the story with some requests failing, and check all that can be seen of the store until its end."""
    machine = Machine(STORY, settings, EXPECTATIONS)
    count = 0
    looks = 2

    def faults(name: str, paths: tuple[str, ...]) -> Fault | None:
        nonlocal count
        count += 1
        return fault if hits(count - 1) else None

    def look(step: Step) -> None:
        nonlocal looks
        machine.nodes.deliver()
        if looks and machine.errors and machine.db is not None:
            looks -= 1
            machine.check(machine.db, machine.journal.statuses, f"still open, after {step.name}", thorough=False)

    machine.faults = faults
    machine.play(look)
    machine.faults = None
    machine.nodes.deliver()
    statuses = tuple(machine.journal.statuses)
    machine.check_disk(machine.files.restarted(), machine.nodes, statuses, f"after {fault} ({hits})")
    if machine.db is not None:
        machine._tried(machine.db.close)
    return machine


@pytest.mark.parametrize("fault", list(Fault))
def test_one_lost_request_or_reply_is_survived_or_told(fault: Fault) -> None:
    changing = [n for n, (name, _) in enumerate(requests(CALM)) if name not in ("read", "list", "watch")]
    assert len(changing) > 30
    for number in changing[:: len(changing) // 6]:
        bounded(lambda number=number: run_with(fault, lambda n: n == number, CALM))
