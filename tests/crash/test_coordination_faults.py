"""The coordination service fails, loses requests and replies, or carries them out late: nothing may be lost by that.

For every request of the story: it is refused, lost on the way there, lost on the way back, or delayed until the next
step has begun. One lost reply is survived in silence; if the service stays away, steps raise, and what they raise is
true: `Unavailable` means that nothing was changed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebla.coordination.memory import Fault
from ebla.errors import OutcomeUnknown, TableExists, Unavailable, UnknownTable
from ebla.settings import Settings
from tests.crash.journal import Expectations
from tests.crash.machine import Machine, bounded, contents_of
from tests.crash.story import CALM, MIXED, PLAIN, RESTLESS, Step, create, put, story

STORY = story()
EXPECTATIONS = Expectations(STORY)
READS = ("read", "list", "watch")

Request = tuple[str, tuple[str, ...]]


def requests(settings: Settings) -> list[Request]:
    """Return the requests of an undisturbed run."""
    machine = Machine(STORY, settings, EXPECTATIONS)
    seen: list[Request] = []
    machine.faults = lambda name, paths: seen.append((name, paths))
    bounded(machine.play)
    assert not machine.errors
    return seen


def run_with(fault: Fault, hits: Callable[[int], bool], settings: Settings, after_error: int = 1_000) -> Machine:
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
            machine.check(machine.db, machine.journal.statuses, f"open after {step.name}", thorough=False)

    machine.faults = faults
    machine.play(look, after_error=after_error)
    machine.faults = None
    machine.nodes.deliver()
    statuses = tuple(machine.journal.statuses)
    machine.check_disk(machine.files.restarted(), machine.nodes, statuses, f"after {fault}")
    if machine.db is not None:
        machine.tried(machine.db.close)
    return machine


@pytest.mark.parametrize("fault", list(Fault))
def test_one_fault_is_survived_or_told(fault: Fault) -> None:
    changing = [number for number, (name, _) in enumerate(requests(CALM)) if name not in READS]
    assert len(changing) > 30
    offset = list(Fault).index(fault)
    for number in changing[1 + offset :: 17]:
        machine = bounded(lambda number=number: run_with(fault, lambda n: n == number, CALM, after_error=6))
        if fault is not Fault.FAIL_BEFORE:
            assert not machine.errors, "a single lost message is repeated, not handed on"


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.LOSE_REQUEST, Fault.DELAY])
def test_an_outage_is_told_truthfully(fault: Fault) -> None:
    errors = 0
    for begin in range(3, len(requests(CALM)), 25):
        machine = bounded(lambda begin=begin: run_with(fault, lambda n: begin <= n < begin + 40, CALM, after_error=6))
        errors += len(machine.errors)
    assert errors


@pytest.mark.soak
@pytest.mark.parametrize("settings", [CALM, RESTLESS], ids=["calm", "restless"])
@pytest.mark.parametrize("length", [1, 12, 200])
@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_is_survived_or_told(fault: Fault, length: int, settings: Settings) -> None:
    for begin in range(len(requests(settings))):
        bounded(lambda begin=begin: run_with(fault, lambda n: begin <= n < begin + length, settings))


def started() -> Machine:
    machine = Machine([create("mixed", MIXED, ["h"]), put("mixed", {"user": "ada", "age": 1})], CALM)
    machine.play()
    assert not machine.errors
    return machine


def test_a_lost_reply_of_the_clock_bound_does_not_stop_the_writers() -> None:
    machine = started()
    assert machine.db is not None
    table = machine.db.table("mixed")
    lost: list[str] = []

    def lose_once(name: str, paths: tuple[str, ...]) -> Fault | None:
        if not lost and paths[0].startswith("clocks/"):
            lost.append(name)
            return Fault.LOSE_REPLY
        return None

    machine.faults = lose_once
    for _ in range(3):
        machine.clock.advance(3_600)
        assert table.increment("ada", "age", 1) > 1
    assert lost == ["multi"]
    assert table.get("ada")["age"] == 4
    machine.db.close()


def test_a_write_whose_metadata_cannot_be_saved_is_of_unknown_outcome_and_not_lost() -> None:
    machine = started()
    assert machine.db is not None
    table = machine.db.table("mixed")
    machine.faults = lambda name, paths: (
        Fault.FAIL_BEFORE if name not in READS and paths[0].startswith("tables/") else None
    )
    # The first write to the second tablet has to tell METADATA where its log is.
    with pytest.raises(OutcomeUnknown, match="in the log"):
        bounded(lambda: table.put({"user": "kurt", "age": 2}))
    assert table.get("kurt")["age"] == 2
    with pytest.raises(Unavailable):
        table.flush()
    machine.faults = None
    machine.tried(machine.db.close)
    db = machine.open()
    assert db.table("mixed").get("kurt")["age"] == 2
    assert db.table("mixed").get("ada")["age"] == 1
    db.table("mixed").put({"user": "kurt", "age": 3})
    db.close()


def test_closing_does_not_fail_because_the_service_is_away() -> None:
    machine = started()
    assert machine.db is not None
    machine.db.table("mixed").put({"user": "ada", "name": "x" * 4_000}, wait="none")
    machine.faults = lambda name, paths: Fault.FAIL_BEFORE
    machine.db.close()
    machine.faults = None
    db = machine.open()
    assert db.table("mixed").get("ada")["name"] == "x" * 4_000
    db.close()


def test_a_table_that_was_created_is_not_said_to_be_unavailable() -> None:
    machine = started()
    assert machine.db is not None
    created: list[str] = []

    def lose_the_reply_and_then_be_away(name: str, paths: tuple[str, ...]) -> Fault | None:
        if name == "multi" and not created:
            created.append(name)
            return Fault.LOSE_REPLY
        return Fault.FAIL_BEFORE if created and name == "read" and paths[0].startswith("tables/") else None

    machine.faults = lose_the_reply_and_then_be_away
    try:
        machine.db.create_table("plain", PLAIN)
    except Unavailable:
        assert "names/plain" not in machine.nodes.nodes, "unavailable means that nothing was changed"
    finally:
        machine.faults = None
        machine.db.close()


@pytest.mark.parametrize("later", [["bob"], ["zoe"], ["ada", "zoe"], []], ids=["here", "elsewhere", "both", "nowhere"])
def test_a_flush_that_landed_unknown_does_not_take_later_commits_with_it(later: list[str]) -> None:
    machine = started()
    assert machine.db is not None
    table = machine.db.table("mixed")
    table.put({"user": "ada", "age": 2, "click:a": b"1"})

    def lose_replies(name: str, paths: tuple[str, ...]) -> Fault | None:
        if not paths[0].startswith("tables/"):
            return None
        return Fault.FAIL_BEFORE if name in READS else Fault.LOSE_REPLY

    machine.faults = lose_replies
    with pytest.raises(OutcomeUnknown):
        table.flush()
    machine.faults = None
    # Written after the flush that is in METADATA without our knowing it: to the same tablet, or to another.
    machine.clock.advance(1)
    for number, user in enumerate(later):
        table.put({"user": user, "age": 10 + number, "click:a": b"2"})
    expected = contents_of(machine.db)
    assert [row["user"] for row in expected["mixed"]] == sorted({"ada", *later})
    for _ in range(2):
        table.flush()
        assert contents_of(machine.db) == expected
    assert machine.db.stats()["memory_bytes"] == 0
    machine.db.close()
    db = machine.open()
    assert contents_of(db) == expected
    assert db.stats()["memory_bytes"] == 0
    db.close()


def away_after(fate: Fault) -> Callable[[str, tuple[str, ...]], Fault | None]:
    """Return faults for which the first multi meets `fate`, and nothing gets through after that."""
    met: list[str] = []

    def faults(name: str, paths: tuple[str, ...]) -> Fault | None:
        if name == "multi" and not met:
            met.append(name)
            return fate
        return Fault.FAIL_BEFORE if met else None

    return faults


@pytest.mark.parametrize("fate", [Fault.LOSE_REPLY, Fault.DELAY, Fault.LOSE_REQUEST])
def test_nothing_written_after_a_drop_of_unknown_outcome_is_lost(fate: Fault) -> None:
    machine = started()
    assert machine.db is not None
    table = machine.db.table("mixed")
    machine.faults = away_after(fate)
    with pytest.raises(OutcomeUnknown):
        bounded(lambda: machine.db.drop_table("mixed"))
    with pytest.raises(Unavailable):  # as long as nobody can tell
        bounded(lambda: table.put({"user": "ada", "age": 2}))
    machine.faults = None
    was_dropped = fate is Fault.LOSE_REPLY
    if was_dropped:
        with pytest.raises(UnknownTable):
            table.put({"user": "ada", "age": 2})
        assert machine.db.tables() == []
    else:
        table.put({"user": "ada", "age": 2})
        machine.nodes.deliver()  # too late to land
        table.put({"user": "bob", "age": 3})
        table.flush()
        table.put({"user": "cy", "age": 4})
    machine.db.close()
    db = machine.open()
    assert db.tables() == ([] if was_dropped else ["mixed"])
    if not was_dropped:
        assert [row["age"] for row in db.table("mixed").scan()] == [2, 3, 4]
    db.close()


@pytest.mark.parametrize("fate", [Fault.LOSE_REPLY, Fault.DELAY, Fault.LOSE_REQUEST])
def test_a_creation_of_unknown_outcome_is_settled_before_the_next_use(fate: Fault) -> None:
    machine = started()
    assert machine.db is not None
    machine.faults = away_after(fate)
    with pytest.raises(OutcomeUnknown):
        bounded(lambda: machine.db.create_table("plain", PLAIN))
    assert machine.db.tables() == ["mixed"]
    machine.faults = None
    was_created = fate is Fault.LOSE_REPLY
    if was_created:
        assert machine.db.tables() == ["mixed", "plain"]
        machine.db.table("plain").put({"row": b"a"})
        with pytest.raises(TableExists):
            machine.db.create_table("plain", PLAIN)
    else:
        with pytest.raises(UnknownTable):
            machine.db.table("plain")
        machine.nodes.deliver()  # too late to land
        assert machine.db.tables() == ["mixed"]
        machine.db.create_table("plain", PLAIN).put({"row": b"a"})
    machine.db.close()
    db = machine.open()
    assert [row["row"] for row in db.table("plain").scan()] == [b"a"]
    db.close()
