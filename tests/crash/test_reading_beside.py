"""A read-only opening on the simulated disk: at every moment of the story, and while the story goes on under it.

It must see everything that was acknowledged before it began, and no commit without those before it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebla.client.database import Database
from ebla.client.embedded.opening import wire
from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from tests.crash.machine import Machine, Moment, bounded
from tests.crash.story import CALM, MIXED, PLAIN, RESTLESS, create, put, story
from tests.support.simulated_files import SimulatedFiles


def open_for_reading(files: Any, nodes: MemoryStore, on_request: Any = None) -> Database:
    clock = ManualClock()
    coordination = MemoryCoordination(nodes, clock, faults=on_request, read_only=True)
    return wire(Path("simulated"), files, coordination, clock, CALM, None, read_only=True)


def test_a_reader_opens_at_every_moment_of_the_story_and_changes_nothing() -> None:
    machine = Machine(story(), CALM)
    moments: list[Moment] = []
    machine.capture(moments, lambda operation: operation.kind != "write" or "log/" in operation.path)
    bounded(machine.play)
    for number, moment in enumerate(moments[::6]):
        if "store" not in moment.nodes.nodes:
            continue
        files = moment.files.restarted()
        with open_for_reading(files, moment.nodes.copy()) as db:
            machine.check(db, moment.statuses, f"reading at moment {number} ({moment.label})", thorough=False)
        assert not files.record(), "a reader changes no file"


class Interleaved:
    """The disk as a reader sees it while somebody works on it: before every look, a step of the story is played."""

    def __init__(self, machine: Machine, steps_max: int) -> None:
        self._machine = machine
        self._files: SimulatedFiles = machine.files
        self._left = steps_max

    def play(self, *_: object) -> None:
        if self._left and not self._machine.is_over:
            self._left -= 1
            self._machine.step()

    def list(self, directory: str) -> Any:
        self.play()
        return self._files.list(directory)

    def read(self, path: str) -> bytes:
        self.play()
        return self._files.read(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


@pytest.mark.parametrize("settings", [CALM, RESTLESS], ids=["calm", "restless"])
def test_a_reader_that_opens_while_the_story_goes_on_sees_what_came_before_it(settings: Any) -> None:
    steps = story()
    machine = Machine(steps, settings)

    def run() -> None:
        machine.open()
        machine.step()
        while not machine.is_over:
            before = tuple(machine.journal.statuses)
            beside = Interleaved(machine, steps_max=5)
            with open_for_reading(beside, machine.nodes, beside.play) as db:
                begun = len(machine.journal.statuses)
                statuses = before + ("begun",) * (begun - len(before))
                machine.check(db, statuses, f"a reader beside steps {len(before)} to {begun}", thorough=False)
            assert not machine.errors

    bounded(run, 120)


def test_a_table_that_is_dropped_while_a_reader_opens_is_not_there_and_no_error() -> None:
    machine = Machine([create("mixed", MIXED), create("plain", PLAIN), put("mixed", {"user": "ada", "age": 1})], CALM)
    machine.play()
    writer = machine.db
    assert writer is not None

    def drop_meanwhile(name: str, paths: tuple[str, ...]) -> None:
        if name == "read" and paths[0].startswith("tables/") and "plain" in writer.tables():
            writer.drop_table("plain")

    with open_for_reading(machine.files, machine.nodes, drop_meanwhile) as db:
        assert db.tables() == ["mixed"]
        assert db.table("mixed").get("ada")["age"] == 1
    writer.close()
