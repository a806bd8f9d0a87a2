"""Events of tablets: what is told, to whom, in which order, and with which locks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import ebla
from ebla.metadata.values.table_metadata import FragmentRef, GroupState, TableMetadata, initial_metadata
from ebla.model.ranges import KeyRange
from ebla.service.listener import Event, FragmentsChanged, RangeChanged, TabletListener, Unloaded
from ebla.settings import KIB, Settings
from ebla.tablet.tables.events import Events, events_between
from tests.crash.machine import BOUND_SECONDS, bounded
from tests.support.inside import engine_of, state_of

SCHEMA = ebla.Schema(key={"k": "string"}, columns={"n": "int64"})
TEXTS = ebla.Schema(key={"k": "string"}, columns={"s": "string"})
NUMBERED = SCHEMA.number()
(GROUP,) = NUMBERED.group_by_id


class Heard(TabletListener):
    """Writes down what it hears, and does something about it if it was told to."""

    def __init__(self, react: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self.react = react

    def hear(self, event: Event) -> None:
        self.events.append(event)
        self.react(event)

    def on_fragments_changed(self, event: FragmentsChanged) -> None:
        self.hear(event)

    def on_range_changed(self, event: RangeChanged) -> None:
        self.hear(event)

    def on_unloaded(self, event: Unloaded) -> None:
        self.hear(event)


def table(files: dict[str, tuple[str, ...]]) -> TableMetadata:
    metadata = initial_metadata("t", NUMBERED, ["a", "b"], [b"m"])
    made = []
    for tablet in metadata.tablets:
        row = tablet.first or b"a"
        refs = tuple(FragmentRef(name, 1, 1, row, row, 1, 1, 1) for name in files.get(tablet.id, ()))
        made.append(tablet.with_group(GroupState(GROUP, refs)))
    return metadata.with_tablets(made)


def change(events: Events, before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]) -> None:
    events.note(table(before), table(after))


def names(refs: tuple[FragmentRef, ...]) -> list[str]:
    return [ref.file for ref in refs]


def test_added_and_replaced_fragments_are_told_by_tablet_and_group() -> None:
    before, after = table({"a": ("1", "2")}), table({"a": ("3", "2"), "b": ("4",)})
    first, second = events_between(before, after)
    assert isinstance(first, FragmentsChanged)
    assert (first.table, first.tablet, first.group) == ("t", "a", GROUP)
    assert (names(first.removed), names(first.added)) == (["1"], ["3"])
    assert isinstance(second, FragmentsChanged)
    assert (second.tablet, names(second.removed), names(second.added)) == ("b", [], ["4"])
    assert not list(events_between(after, after.with_txnid("x", 7)))


def test_a_split_and_a_join_are_told_with_the_successors() -> None:
    halves = table({})
    whole = initial_metadata("t", NUMBERED, ["whole"])
    (split,) = events_between(whole, halves)
    assert split == RangeChanged("t", "whole", KeyRange(), ("a", "b"))
    assert list(events_between(halves, whole)) == [
        RangeChanged("t", "a", KeyRange(b"", b"m"), ("whole",)),
        RangeChanged("t", "b", KeyRange(b"m", None), ("whole",)),
    ]


def test_a_listener_hears_of_its_tablet_or_of_all_and_of_each_event_once() -> None:
    events = Events()
    one, every, both = Heard(), Heard(), Heard()
    events.add(one, "a")
    events.add(every)
    events.add(both)
    events.add(both, "b")
    change(events, {}, {"a": ("1",), "b": ("2",)})
    assert not one.events, "nothing is told before it is delivered"
    events.deliver()
    assert [event.tablet for event in one.events] == ["a"]
    assert [event.tablet for event in every.events] == ["a", "b"]
    assert [event.tablet for event in both.events] == ["a", "b"]
    events.remove(both)
    change(events, {}, {"a": ("1",), "b": ("2",)})
    events.deliver()
    assert [event.tablet for event in both.events] == ["a", "b", "b"], "every add needs a remove of its own"


def test_a_listener_that_is_added_in_a_callback_hears_after_that_event() -> None:
    events = Events()
    late = Heard()
    first = Heard(lambda event: events.add(late) if event.tablet == "a" else None)
    events.add(first)
    change(events, {}, {"a": ("1",), "b": ("2",)})
    events.deliver()
    assert [event.tablet for event in late.events] == ["b"]


def test_a_listener_that_is_removed_in_a_callback_still_hears_that_event() -> None:
    events = Events()
    gone = Heard()
    first = Heard(lambda event: events.remove(gone) if event.tablet == "a" else None)
    events.add(first)
    events.add(gone)
    change(events, {}, {"a": ("1",), "b": ("2",)})
    events.deliver()
    assert [event.tablet for event in gone.events] == ["a"]


def test_what_a_callback_changes_is_told_after_what_it_was_told() -> None:
    events = Events()

    def react(event: Event) -> None:
        if len(heard.events) == 1:
            change(events, {"b": ("2",)}, {})
            events.deliver()  # further up, somebody is delivering already
            assert len(heard.events) == 1

    heard = Heard(react)
    events.add(heard)
    change(events, {}, {"a": ("1",), "b": ("2",)})
    events.deliver()
    assert [(event.tablet, names(event.removed)) for event in heard.events if isinstance(event, FragmentsChanged)] == [
        ("a", []),
        ("b", []),
        ("b", ["2"]),
    ]


def test_a_listener_that_fails_keeps_no_other_from_hearing() -> None:
    events = Events()

    def fail(event: Event) -> None:
        raise ValueError("it must not")

    heard = Heard()
    events.add(Heard(fail))
    events.add(heard)
    change(events, {}, {"a": ("1",)})
    events.deliver()
    assert len(heard.events) == 1


def test_events_of_several_threads_are_told_one_at_a_time_and_none_is_lost() -> None:
    events = Events()
    inside = 0
    most = 0

    def react(event: Event) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        inside -= 1

    heard = Heard(react)
    events.add(heard)

    def work() -> None:
        for _ in range(200):
            change(events, {}, {"a": ("1",)})
            events.deliver()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events.deliver()
    assert (len(heard.events), most) == (800, 1)


def test_a_store_tells_of_flushes_compactions_splits_joins_and_drops_with_no_lock_held(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False)) as db:
        table = db.create_table("t", SCHEMA)
        store = engine_of(db)

        def react(event: Event) -> None:
            if not isinstance(event, Unloaded):
                table.put({"k": "from a callback", "n": 1}, wait="logged")  # needs the commit lock, and the log

        heard = Heard(react)
        store.events.add(heard)

        def kinds() -> list[str]:
            told = [type(event).__name__ for event in heard.events]
            heard.events.clear()
            return told

        table.put([{"k": f"{n:03}", "n": n} for n in range(100)])
        assert kinds() == []
        bounded(table.flush)
        assert kinds() == ["FragmentsChanged"]
        bounded(table.flush)
        bounded(table.compact)
        kinds()
        bounded(lambda: table.split("050"))
        assert kinds()[-1] == "RangeChanged"
        bounded(lambda: table.join("000", "099"))
        assert kinds()[-2:] == ["RangeChanged", "RangeChanged"]
        bounded(lambda: db.unload_table("t"))
        assert kinds()[-1:] == ["Unloaded"]
        bounded(lambda: db.load_table("t"))
        assert kinds() == []
        bounded(lambda: db.drop_table("t"))
        assert kinds() == ["Unloaded"]
        store.events.remove(heard)


def test_a_listener_may_write_whoever_delivers_the_event(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False)) as db:
        table, fresh, other = (db.create_table(name, SCHEMA) for name in ("t", "fresh", "other"))
        table.put([{"k": f"{n:03}", "n": n} for n in range(100)])
        heard = Heard(lambda event: None if isinstance(event, FragmentsChanged) else _write(other))
        engine_of(db).events.add(heard)

        def split_and_write() -> None:
            with engine_of(db).events.held():  # so that another thread may come to deliver what happens here
                table.split("050")
                fresh.put({"k": "000", "n": 1})  # the first write to a tablet: METADATA is saved, on another thread

        bounded(split_and_write)
        assert other.get("told") is not None
        engine_of(db).events.remove(heard)


def _write(table: ebla.Table) -> None:
    table.put({"k": "told", "n": 1})


def test_a_listener_may_write_more_than_memory_takes(tmp_path: Path) -> None:
    settings = Settings(background_compaction=False, flush_bytes=16 * KIB, memory_bytes_max=32 * KIB)
    with ebla.open(tmp_path, settings=settings) as db:
        table, other = db.create_table("t", TEXTS), db.create_table("other", TEXTS)
        written = threading.Event()

        def write_much(event: Event) -> None:
            if event.table == state_of(table).id and not written.is_set():
                for n in range(4):
                    other.put({"k": str(n), "s": "x" * 16 * KIB})
                written.set()

        heard = Heard(write_much)
        engine_of(db).events.add(heard)
        table.put({"k": "1", "s": "x" * 24 * KIB})  # flushed in the background, by the thread that makes room
        assert bounded(lambda: written.wait(BOUND_SECONDS)), "the listener waits for the thread that it is told by"
        assert other.scan().count() == 4
        engine_of(db).events.remove(heard)


def test_a_listener_may_ask_for_tables_when_a_doubt_is_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False)) as db:
        db.create_table("t", SCHEMA)
        drop = engine_of(db).metadata.drop_table

        def lost_reply(name: str) -> None:
            drop(name)
            raise ebla.OutcomeUnknown("no answer")

        monkeypatch.setattr(engine_of(db).metadata, "drop_table", lost_reply)
        with pytest.raises(ebla.OutcomeUnknown):
            db.drop_table("t")
        seen: list[list[str]] = []
        heard = Heard(lambda event: seen.append(db.tables()))
        engine_of(db).events.add(heard)
        assert bounded(db.tables) == []
        assert seen == [[]]
        engine_of(db).events.remove(heard)
