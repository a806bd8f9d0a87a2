"""Listeners that users add: they hear of one tablet or of all, and may do anything in a callback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ebla

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"n": "int64"})


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "store", settings=ebla.Settings(background_compaction=False)) as database:
        yield database


class Heard(ebla.TabletListener):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_fragments_changed(self, event: ebla.FragmentsChanged) -> None:
        self.events.append(event)

    def on_range_changed(self, event: ebla.RangeChanged) -> None:
        self.events.append(event)

    def on_unloaded(self, event: ebla.Unloaded) -> None:
        self.events.append(event)

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def test_a_listener_hears_of_files_cuts_and_unloading(db: ebla.Database) -> None:
    table = db.create_table("t", SCHEMA)
    heard = Heard()
    db.add_listener(heard)
    table.put([{"k": k, "n": k} for k in range(100)])
    table.flush()
    assert heard.kinds() == ["FragmentsChanged"]
    assert [ref.file for ref in heard.events[0].added] == table.files()
    assert heard.events[0].table == table.stats()["id"]
    table.split(50)
    assert heard.kinds()[1:] == ["RangeChanged"]
    assert list(heard.events[1].successors) == [tablet["id"] for tablet in table.tablets()]
    db.unload_table("t")
    assert heard.kinds()[2:] == ["Unloaded", "Unloaded"]
    db.remove_listener(heard)
    db.load_table("t")
    table.join(1, 60)
    assert len(heard.events) == 4


def test_a_listener_of_one_tablet_hears_of_no_other(db: ebla.Database) -> None:
    table = db.create_table("t", SCHEMA, splits=[50])
    second = table.tablets()[1]["id"]
    heard = Heard()
    db.add_listener(heard, second)
    table.put({"k": 1, "n": 1})
    table.flush()
    assert heard.events == []
    table.put({"k": 60, "n": 1})
    table.flush()
    assert [event.tablet for event in heard.events] == [second]
    db.remove_listener(heard, second)


def test_a_callback_may_write_and_remove_itself(db: ebla.Database) -> None:
    table = db.create_table("t", SCHEMA)

    class Once(ebla.TabletListener):
        def on_fragments_changed(self, event: ebla.FragmentsChanged) -> None:
            table.put({"k": 2, "n": 2})
            db.remove_listener(self)

    db.add_listener(Once())
    for _ in range(2):
        table.put({"k": 1, "n": 1})
        table.flush()
    assert [row["k"] for row in table.scan()] == [1, 2]
    table.erase(2)
    table.flush()
    assert table.get(2) is None


def test_what_cannot_be_added_or_removed_is_refused(db: ebla.Database) -> None:
    heard = Heard()
    with pytest.raises(ebla.RequestError, match=r"ebla\.TabletListener"):
        db.add_listener(print)
    with pytest.raises(ebla.RequestError, match="by its id"):
        db.add_listener(heard, 7)
    with pytest.raises(ebla.RequestError, match="was not added"):
        db.remove_listener(heard)
    db.add_listener(heard)
    with pytest.raises(ebla.RequestError, match="was not added"):
        db.remove_listener(heard, "another")
    db.remove_listener(heard)
    with pytest.raises(ebla.RequestError, match="was not added"):
        db.remove_listener(heard)
