"""The life of a tablet: which steps there are, which there are not, and what becomes of requests on the way."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest

from ebla.errors import MissingFile, TableUnloaded
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.tablet.tables.door import Door
from ebla.tablet.tables.tablet_stages import Action, IllegalStep, LifeEvent, TabletStage, admits, step
from tests.crash.machine import bounded

S, E, A = TabletStage, LifeEvent, Action

LOADING = [E.LOAD, E.CONFIG_LOADED, E.LOG_REPLAYED, E.CONFIG_SAVED, E.FRAGMENTS_LOADED]
UNLOADING = [E.UNLOAD, E.FLUSHED, E.FINAL_SAVED]


def test_a_life_goes_through_all_states_in_order() -> None:
    states = [S.UNKNOWN]
    for event in LOADING + UNLOADING:
        states.append(step(states[-1], event).state)
    assert states == [0, 1, 2, 3, 4, 5, 6, 7, 0]


def test_a_tablet_is_never_served_before_its_log_is_replayed() -> None:
    """Whatever happens, in whatever order: between unknown and serving lie the replay and the saving of the config."""
    for script in itertools.product(E, repeat=4):
        state = S.UNKNOWN
        try:
            for event in script:
                state = step(state, event).state
        except IllegalStep:
            continue
        if "serve" in (admits(state, "read"), admits(state, "write")):
            assert script[:4] == (E.LOAD, E.CONFIG_LOADED, E.LOG_REPLAYED, E.CONFIG_SAVED)


def test_every_pair_of_state_and_event_is_a_step_or_is_refused() -> None:
    legal = set()
    for state, event in itertools.product(S, E):
        with contextlib.suppress(IllegalStep):
            legal.add((state, event, step(state, event).state))
    with pytest.raises(IllegalStep, match=r"ACTIVE.*flushed"):
        step(S.ACTIVE, E.FLUSHED)
    assert {before for before, event, _ in legal if event is E.LOAD} == {S.UNKNOWN, S.FINAL_SAVING}
    assert all(after is S.READ_ONLY for _, event, after in legal if event is E.UNLOAD)
    assert {before for before, event, _ in legal if event is E.IDLE} == {S.ACTIVE}
    assert {before for before, event, _ in legal if event is E.UNLOAD} == {S.FRAGMENTS_LOADING, S.ACTIVE}


def test_from_every_state_there_is_a_way_back_to_unknown() -> None:
    for begin in S:
        reached, todo = {begin}, [begin]
        while todo:
            state = todo.pop()
            for event in E:
                try:
                    after = step(state, event).state
                except IllegalStep:
                    continue
                if after not in reached:
                    reached.add(after)
                    todo.append(after)
        assert S.UNKNOWN in reached


def test_a_failed_load_leaves_nothing_and_a_failed_flush_leaves_the_tablet_served() -> None:
    for state in (S.CONFIG_LOADING, S.LOG_REPLAYING, S.CONFIG_SAVING):
        assert step(state, E.FAILED).state is S.UNKNOWN
        assert A.FAIL_REQUESTS in step(state, E.FAILED).actions
    assert admits(step(S.READ_ONLY, E.FAILED).state, "write") == "serve"
    assert step(S.FRAGMENTS_LOADING, E.FAILED).state is S.FRAGMENTS_LOADING


def test_requests_are_served_deferred_or_refused_as_the_table_in_the_module_says() -> None:
    assert [admits(state, "read") for state in S] == ["refuse", *["defer"] * 4, "serve", "serve", "refuse"]
    assert [admits(state, "write") for state in S] == ["refuse", *["defer"] * 3, "serve", "serve", "refuse", "refuse"]


# --- the door --------------------------------------------------------------------------------------


def tablet(name: str) -> TabletMetadata:
    return TabletMetadata(name, b"", None, "running", 1)


A1, B1 = tablet("a"), tablet("b")


def lazily() -> Door:
    door = Door("t", S.UNKNOWN)
    for event in LOADING[:4]:
        door.move_all(event)
    door.begin(["a", "b"])
    return door


def test_a_tablet_is_loaded_by_its_first_reader_and_writes_do_not_wait() -> None:
    door = lazily()
    loaded: list[str] = []

    def load(one: TabletMetadata) -> None:
        loaded.append(one.id)

    door.admit([A1, B1], "write", load)
    assert loaded == []
    assert not door.is_open
    door.admit([A1], "read", load)
    door.admit([A1], "read", load)
    assert loaded == ["a"]
    assert [door.state_of(name) for name in ("a", "b", "a child")] == [5, 4, 5]
    door.admit([A1, B1], "read", load)
    assert door.is_open


def test_a_load_that_fails_fails_its_reader_and_the_next_one_tries_again() -> None:
    door = lazily()

    def fail(one: TabletMetadata) -> None:
        raise MissingFile("it is gone")

    for _ in range(2):
        with pytest.raises(MissingFile):
            door.admit([A1], "read", fail)
    door.admit([A1], "read", lambda one: None)
    assert door.state_of("a") is S.ACTIVE
    assert door.state_of("b") is S.FRAGMENTS_LOADING


def test_readers_that_come_during_a_load_wait_for_it() -> None:
    door = lazily()
    begun, may_end = threading.Event(), threading.Event()
    loads: list[str] = []

    def slow(one: TabletMetadata) -> None:
        loads.append(one.id)
        begun.set()
        may_end.wait()

    first = threading.Thread(target=lambda: door.admit([A1], "read", slow))
    first.start()
    begun.wait()
    others = [threading.Thread(target=lambda: door.admit([A1], "read", slow)) for _ in range(3)]
    for other in others:
        other.start()
    door.admit([A1], "write", slow)
    may_end.set()
    for thread in (first, *others):
        bounded(thread.join)
    assert loads == ["a"]


def test_what_is_deferred_goes_on_when_the_table_is_served_and_is_refused_when_loading_fails() -> None:
    for is_good in (True, False):
        door = Door("t", S.UNKNOWN)
        door.move_all(E.LOAD)
        outcome: list[str] = []

        def write(door: Door = door, outcome: list[str] = outcome) -> None:
            try:
                door.admit([A1], "write", lambda one: None)
                outcome.append("served")
            except TableUnloaded as error:
                outcome.append(str(error))

        waiting = threading.Thread(target=write)
        waiting.start()
        door.move_all(E.CONFIG_LOADED)
        assert not outcome
        if is_good:
            door.move_all(E.LOG_REPLAYED)
            door.move_all(E.CONFIG_SAVED)
        else:
            door.move_all(E.FAILED, "the disk is gone")
        bounded(waiting.join)
        assert ("served" if is_good else "the disk is gone") in outcome[0]


def test_an_unloaded_table_lets_nobody_in_and_comes_back() -> None:
    door = Door("t")
    door.move_all(E.UNLOAD, "soon")
    door.admit([A1], "read", lambda one: None)
    with pytest.raises(TableUnloaded, match="soon"):
        door.admit([A1], "write", lambda one: None)
    door.move_all(E.FLUSHED)
    with pytest.raises(TableUnloaded):
        door.admit([A1], "read", lambda one: None)
    door.move_all(E.FINAL_SAVED)
    for event in LOADING[:4]:
        door.move_all(event)
    door.begin(["a"])
    door.admit([A1], "read", lambda one: None)
    assert door.is_open


def test_a_tablet_that_is_split_away_leaves_no_state() -> None:
    door = lazily()
    door.move(["a"], E.RETIRED)
    assert door.state_of("a") is S.ACTIVE, "like every tablet that has come later"
    door.admit([B1], "read", lambda one: None)
    assert door.is_open
