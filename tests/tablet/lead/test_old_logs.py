"""Logs of former runs: kept while a tablet may need them, and no longer."""

from __future__ import annotations

import pytest

from ebla.errors import Unavailable
from ebla.service.requests import Put
from ebla.tablet.lead.old_logs import LOOK_SECONDS, OldLogs
from ebla.tablet.lead.taking_over import Offered
from tests.tablet.lead.world import Run, World


@pytest.fixture
def world() -> World:
    return World()


def started_again(world: World) -> tuple[Run, Run]:
    """Return a run that led two tablets and died, and the next of the same server."""
    world.create()
    first = world.start("A", 1)
    world.give(first, "t0", "t1")
    first.table().write(Put([{"k": 1, "v": "1", "n": 1}, {"k": 101, "v": "101", "n": 1}]))
    first.store.abandon()
    world.runs.remove(first)
    return first, world.start("A", 2)


def take(world: World, run: Run, tablet: str) -> None:
    own = world.tablet(tablet)
    assert run.taker.take([Offered(world.table_id, tablet, own.replicas[0].assignment_id)]) == {}


def logs_of(world: World, run: Run) -> OldLogs:
    return OldLogs(world.files, run.coordination, run.metadata, run.clock, run.server, 2)


def test_a_log_stays_while_a_tablet_names_it(world: World) -> None:
    first, again = started_again(world)
    logs = logs_of(world, again)
    take(world, again, "t0")
    assert [logs.sweep(), logs.sweep(), logs.sweep()] == [[], [], []]
    take(world, again, "t1")
    assert again.table().get((101,)) is not None
    assert [logs.sweep(), logs.sweep()] == [[], [first.store.server]]
    assert list(world.files.list(f"log/{first.store.server}")) == []
    assert logs.sweep() == []
    assert again.table().get((1,)) is not None


def test_the_log_of_this_run_is_never_looked_at(world: World) -> None:
    _, again = started_again(world)
    take(world, again, "t0")
    take(world, again, "t1")
    again.table().write(Put({"k": 2, "v": "2", "n": 2}))
    logs = logs_of(world, again)
    logs.sweep()
    logs.sweep()
    assert list(world.files.list(f"log/{again.store.server}"))


def test_a_log_that_is_gone_is_empty_for_whoever_is_sent_to_it(world: World) -> None:
    """A change of the old run that lands late names its log: nothing in it was promised."""
    first, again = started_again(world)
    take(world, again, "t0")
    take(world, again, "t1")
    logs = logs_of(world, again)
    logs.sweep()
    logs.sweep()
    other = world.start("B")
    end, portion, _ = other.taker._replay(first.store.server, [], [])
    assert (end.segment, end.offset, portion.entries) == ("", 0, 0)


def test_an_error_means_that_everything_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = started_again(world)
    take(world, again, "t0")
    take(world, again, "t1")
    logs = logs_of(world, again)
    logs.sweep_if_due()

    def fail(table_id: str) -> None:
        raise Unavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(again.metadata, "refresh", fail)
        again.clock.advance(LOOK_SECONDS)
        logs.sweep_if_due()
    assert list(world.files.list(f"log/{first.store.server}"))
    again.clock.advance(LOOK_SECONDS)
    logs.sweep_if_due()
    assert list(world.files.list(f"log/{first.store.server}"))  # it has to be seen unnamed twice in a row
    again.clock.advance(LOOK_SECONDS)
    logs.sweep_if_due()
    assert not list(world.files.list(f"log/{first.store.server}"))
