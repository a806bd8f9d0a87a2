"""Turns: puts that come at the same time are committed as one, or each by himself, and nobody is left waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ebla
from ebla.errors import Conflict, InvalidBatch, OutcomeUnknown
from ebla.tablet.write.turns import TOGETHER_MAX, Turns, _Request
from tests.support.inside import state_of


class World:
    """Turns of which the first is held until told otherwise, and what was done in them."""

    def __init__(self, together: Callable[[Sequence[str]], int | None]) -> None:
        self.turns = Turns()
        self.done: list[list[str]] = []
        self.answers: dict[str, int | BaseException] = {}
        self._together = together
        self._may_go_on = threading.Event()
        self._threads: list[threading.Thread] = []

    def alone(self, item: str) -> int:
        if item == "first":
            self._may_go_on.wait()
        self.done.append([item])
        return len(item)

    def together(self, items: Sequence[str]) -> int | None:
        txn = self._together(items)
        if txn is not None:
            self.done.append(list(items))
        return txn

    def _take(self, item: str) -> None:
        try:
            self.answers[item] = self.turns.take(item, self.alone, self.together)
        except BaseException as error:
            self.answers[item] = error

    def run(self, *items: str) -> dict[str, int | BaseException]:
        """Let the items come one after the other while somebody called first has the turn."""
        for at, item in enumerate(["first", *items]):
            thread = threading.Thread(target=self._take, args=(item,))
            thread.start()
            self._threads.append(thread)
            while at and self.turns.waiting < at:
                thread.join(0.001)
        self._may_go_on.set()
        for thread in self._threads:
            thread.join()
        return self.answers


def test_who_comes_during_a_turn_is_served_in_the_next_one() -> None:
    world = World(lambda items: 77)
    assert world.run("a", "b", "c") == {"first": 5, "a": 77, "b": 77, "c": 77}
    assert world.done == [["first"], ["a", "b", "c"]]
    assert world.turns.take("again", world.alone, world.together) == 5


def test_a_turn_serves_no_more_than_it_may() -> None:
    world = World(lambda items: 77)
    world.run(*(f"{n:02}" for n in range(TOGETHER_MAX + 3)))
    assert [len(items) for items in world.done] == [1, TOGETHER_MAX, 3]


def test_what_does_not_go_together_is_done_by_each_alone() -> None:
    world = World(lambda items: None)
    assert world.run("a", "bb", "ccc") == {"first": 5, "a": 1, "bb": 2, "ccc": 3}
    assert sorted(world.done) == [["a"], ["bb"], ["ccc"], ["first"]]


@pytest.mark.parametrize(
    ("raised", "told"),
    [(Conflict("no"), Conflict), (KeyboardInterrupt(), OutcomeUnknown), (ValueError(), OutcomeUnknown)],
)
def test_what_stops_a_turn_is_told_to_all_of_it(raised: BaseException, told: type[BaseException]) -> None:
    def fail(items: Sequence[str]) -> int | None:
        raise raised

    world = World(fail)
    answers = world.run("a", "b", "c")
    assert answers["a"] is raised
    assert all(isinstance(answers[item], told) for item in "bc")
    assert world.turns.take("again", world.alone, world.together) == 5


def test_who_gives_up_waiting_keeps_nobody_from_his_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = _Request.wait

    def interrupted(request: _Request) -> None:
        if request.item == "at once":
            raise KeyboardInterrupt
        wait(request)
        if request.item == "in its turn":
            raise KeyboardInterrupt

    monkeypatch.setattr(_Request, "wait", interrupted)
    turns = Turns()
    with pytest.raises(KeyboardInterrupt):
        turns.take("holder", lambda _: turns.take("at once", len, len), len)
    assert turns.waiting == 0
    world = World(lambda items: 77)
    answers = world.run("in its turn", "b", "c")
    assert isinstance(answers.pop("in its turn"), KeyboardInterrupt)
    assert answers == {"first": 5, "b": 77, "c": 77}


# --- puts ----------------------------------------------------------------------------------------


def put_at_once(table: ebla.Table, batches: Sequence[pa.RecordBatch]) -> list[int | ebla.EblaError]:
    """Put batches from a thread each, all of them while somebody else has the turn."""
    turns = state_of(table).turns
    answers: list[Any] = [None] * len(batches)

    def put(at: int) -> None:
        try:
            answers[at] = table.put(batches[at])
        except ebla.EblaError as error:
            answers[at] = error

    threads = [threading.Thread(target=put, args=(at,)) for at in range(len(batches))]

    def hold(item: Any) -> int:
        for at, thread in enumerate(threads):
            thread.start()
            while turns.waiting <= at:
                thread.join(0.001)
        return 0

    turns.take(None, hold, lambda items: None)
    for thread in threads:
        thread.join()
    return answers


def rows(numbers: Sequence[int], value: int, **more: Any) -> pa.RecordBatch:
    return pa.record_batch(
        {"k": pa.array(numbers, pa.int64()), "n": pa.array([value] * len(numbers), pa.int64()), **more}
    )


@pytest.fixture
def table(tmp_path: Path) -> Any:
    with ebla.open(tmp_path) as database:
        schema = ebla.Schema(key={"k": "int64"}, columns={"n": "int64", "m": "int64"})
        yield database.create_table("t", schema, splits=[10])


def held(table: ebla.Table) -> dict[int, int]:
    return {row["k"]: row["n"] for row in table.scan()}


def test_puts_of_different_rows_are_one_commit(table: ebla.Table) -> None:
    txns = put_at_once(table, [rows(range(at, 20, 4), at) for at in range(4)])
    assert len(set(txns)) == 1
    assert held(table) == {k: k % 4 for k in range(20)}
    assert table.scan(as_of=txns[0]).to_arrow().num_rows == 20
    assert table.scan(as_of=txns[0] - 1).to_arrow().num_rows == 0


def test_puts_of_one_row_are_commits_of_their_own(table: ebla.Table) -> None:
    txns = put_at_once(table, [rows([5], value) for value in range(4)])
    assert len(set(txns)) == 4
    assert table.get(5)["n"] == txns.index(max(txns))
    assert [table.get(5, as_of=txn)["n"] for txn in txns] == [0, 1, 2, 3]


def test_a_wrong_put_is_refused_and_those_beside_it_are_not(table: ebla.Table) -> None:
    wrong = pa.record_batch({"k": pa.array([1, None], pa.int64()), "n": pa.array([1, 2], pa.int64())})
    answers = put_at_once(table, [rows([0], 1), wrong, rows([2], 1, x=pa.array([1])), rows([3], 1)])
    assert [isinstance(answer, int) for answer in answers] == [True, False, False, True]
    assert isinstance(answers[1], InvalidBatch | ebla.InvalidKey)
    assert held(table) == {0: 1, 3: 1}


def test_puts_of_different_columns_are_not_mixed(table: ebla.Table) -> None:
    table.put([{"k": k, "n": 7, "m": 7} for k in range(4)])
    m = pa.record_batch({"k": pa.array([2, 3], pa.int64()), "m": pa.array([1, 1], pa.int64())})
    put_at_once(table, [rows([0, 1], 1), m])
    found = [(row["n"], row["m"]) for row in table.scan()]
    assert found == [(1, 7), (1, 7), (7, 1), (7, 1)]


def test_puts_that_were_done_together_are_in_the_log(tmp_path: Path) -> None:
    database = ebla.open(tmp_path)
    table = database.create_table("t", ebla.Schema(key={"k": "int64"}, columns={"n": "int64"}))
    put_at_once(table, [rows([at], at) for at in range(8)])
    with ebla.open(tmp_path, read_only=True) as other:
        assert held(other.table("t")) == {at: at for at in range(8)}
    database.close()


def test_who_is_interrupted_as_his_turn_begins_gives_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(turns, "_do", interrupt)
        with pytest.raises(KeyboardInterrupt):
            turns.take("first", lambda item: 1, lambda items: 1)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(turns.take, "second", lambda item: 2, lambda items: 2).result(30) == 2
