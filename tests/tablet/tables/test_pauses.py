"""A pause holds the writers of its tablets, and nobody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from tests.support.inside import engine_of, state_of


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ebla.Table]:
    with ebla.open(tmp_path, settings=ebla.Settings(background_compaction=False)) as db:
        yield db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}), ["h", "p"])


def pause(table: ebla.Table, key: str) -> None:
    """Pause the tablet of a key."""
    tablet = state_of(table).view.metadata.tablet_for(key.encode())
    with engine_of(table).open_tables.lock:
        engine_of(table).pauses.begin(state_of(table), [tablet.id])


def go_on(table: ebla.Table) -> None:
    with engine_of(table).open_tables.lock:
        engine_of(table).pauses.end(state_of(table))


@pytest.mark.parametrize("is_range", [False, True], ids=["rows", "range"])
def test_writers_of_other_tablets_go_on_and_those_of_the_paused_one_wait(table: ebla.Table, is_range: bool) -> None:
    pause(table, "i")
    table.put({"k": "a", "n": 1})
    table.put([{"k": "b", "n": 1}, {"k": "z", "n": 1}])
    table.erase_range("b", "c")
    done = threading.Event()

    def write() -> None:
        if is_range:
            table.erase_range("a", "j")
        else:
            table.put([{"k": "a", "n": 2}, {"k": "i", "n": 2}])  # of a tablet that is paused and one that is not
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert not done.wait(0.05)
    assert [row["n"] for row in table.scan()] == [1, 1], "nothing of it is there before the pause is over"
    go_on(table)
    writer.join()
    assert [(row["k"], row["n"]) for row in table.scan()] == (
        [("z", 1)] if is_range else [("a", 2), ("i", 2), ("z", 1)]
    )


def test_while_a_tablet_is_split_the_others_are_written_and_are_not_flushed(
    table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.put([{"k": k, "n": 1} for k in "aijkz"])
    recutter, state = engine_of(table).recutter, state_of(table)
    save_last = recutter._save_last
    written: list[int] = []

    def save_and_write(*arguments: object) -> None:
        assert len(state.paused) == 1
        state.is_unsettled = True  # as while it is not known whether METADATA has it
        written.append(table.put({"k": "b", "n": 2}))
        written.append(table.put([{"k": "c", "n": 2}, {"k": "y", "n": 2}]))
        save_last(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(recutter, "_save_last", save_and_write)
    table.split("j")
    assert len(written) == 2
    held = {tablet.id for tablet in state.view.metadata.tablets if tablet.id in state.view.memory}
    assert held == {state.view.metadata.tablet_for(row).id for row in (b"a", b"z")}
    assert [row["k"] for row in table.scan()] == [*"abcijkyz"]
    assert not state.paused
