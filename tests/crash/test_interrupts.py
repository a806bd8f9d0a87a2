"""An interrupt at a moment that hurts: what was being done has happened, and nobody was told.

Afterwards the store goes on in the same process, and is opened again: nothing that was acknowledged is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ebla.coordination.memory import MemoryCoordination
from tests.crash.machine import Machine, bounded
from tests.crash.story import CALM, MIXED, create, put


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
def interrupted(kind: type, method: str, *, before: bool = False) -> Iterator[None]:
    """Let the first call of a method be interrupted when it is done, or `before` it begins; expect the interrupt."""
    original: Callable[..., Any] = getattr(kind, method)
    calls: list[str] = []

    def call(*args: Any, **options: Any) -> Any:
        calls.append(method)
        is_first = len(calls) == 1
        if is_first and before:
            raise KeyboardInterrupt
        answer = original(*args, **options)
        if is_first:
            raise KeyboardInterrupt
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, call)
        with pytest.raises(KeyboardInterrupt):
            yield


def check(machine: Machine, column: str, expected: list[Any]) -> None:
    """Assert what a column of the table holds: now, after a crash, and after closing it."""
    for end in (None, "_crash", "close"):
        if end is not None:
            assert machine.db is not None
            bounded(getattr(machine.db, end))
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
