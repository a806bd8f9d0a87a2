"""Threads that read while one writes: every answer at a snapshot is the model's answer at that txn.

    writer     random changes from a seed, to store and model
    readers    at snapshots of their own: (txn, question, answer)  --kept-->  judged when the writer is done

Because the model forgets nothing it can be asked about any txn afterwards, so readers and model need no lock.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .comparing import as_rows, compare
from .forms import as_key
from .pair import TINY, Pair
from .reference import Cell, Key, Row
from .strategies import PAST, SHAPES, WAITS, Shape

THREADED = {shape.name: shape for shape in SHAPES if shape.name in ("plain", "columns_and_cells", "purging")}


def random_step(both: Pair, dice: random.Random) -> None:
    """Make one change, or flush, chosen by the dice."""
    table = dice.choice(("first", "second"))
    shape = both.shapes[table]
    key = dice.choice(shape.keys)
    match dice.choices(range(10), weights=(8, 4, 2, 3, 2, 2, 1, 2, 2, 1))[0]:
        case 0:
            both.put(table, shape.random_rows(dice, dice.randint(1, 8)), wait=dice.choice(WAITS))
        case 1:
            both.put(table, shape.random_rows(dice, dice.randint(1, 3)), replace=True)
        case 2:
            both.put(table, shape.random_rows(dice, 2), if_absent=True)
        case 3 if shape.cells:
            family, _, qualifier = dice.choice(shape.cells).partition(":")
            both.put_cells(table, [Cell(key, family, qualifier, b"%d" % dice.randint(0, 9), dice.choice(PAST))])
        case 4:
            both.erase(table, key)
        case 5:
            both.erase(table, key, dice.sample(shape.columns, 2))
        case 6:
            both.erase_range(table, key, dice.choice(shape.keys))
        case 7:
            both.increment(table, key, "n", dice.randint(-3, 3))
        case 8:
            both.put(table, shape.random_rows(dice, 1), if_unchanged_since=both.remembered(table, dice.randint(0, 3)))
        case _:
            both.flush(table)


class Answer(NamedTuple):
    """What a reader was told: at `txn`, of one row or (`key` None) of the whole table."""

    txn: int
    table: str
    key: Key | None
    versions: int
    rows: list[Row | None]


class Reader(threading.Thread):
    """Reads at snapshots of its own choosing and keeps every answer, to be judged when the writer is done."""

    def __init__(self, both: Pair, seed: int, done: threading.Event, answers_max: int) -> None:
        super().__init__(daemon=True)
        self.database = both.database
        self.shapes = both.shapes
        self.dice = random.Random(seed)
        self.done = done
        self.answers_max = answers_max
        self.answers: list[Answer] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.done.is_set() and len(self.answers) < self.answers_max:
                self.read_once()
        except BaseException as failure:
            self.failure = failure

    def read_once(self) -> None:
        name = self.dice.choice(list(self.shapes))
        match self.dice.randint(0, 2):
            case 0:
                key = self.dice.choice(self.shapes[name].keys)
                with self.database.snapshot() as snapshot:
                    self.keep(snapshot.txn, name, key, 1, [snapshot.table(name).get(as_key(key))])
            case 1:
                versions = self.dice.choice((1, 3))
                scan = self.database.table(name).scan(versions=versions)
                rows = list(scan)
                self.keep(scan.txn, name, None, versions, rows)
            case _ if self.answers:
                # An answer at a moment never changes, so an old moment may be asked again.
                old = self.dice.choice(self.answers)
                self.keep(old.txn, old.table, None, 1, list(self.database.table(old.table).scan(as_of=old.txn)))

    def keep(self, txn: int, name: str, key: Key | None, versions: int, rows: list[Any]) -> None:
        self.answers.append(Answer(txn, name, key, versions, as_rows(rows)))

    def judge(self, both: Pair) -> None:
        """Compare every answer with the model at its moment."""
        if self.failure is not None:
            raise self.failure
        for answer in self.answers:
            model = both.model.table(answer.table)
            if answer.key is None:
                expected: Any = model.scan(as_of=answer.txn, versions=answer.versions)
            else:
                expected = [model.get(answer.key, as_of=answer.txn)]
            label = f"a thread read {answer.table} {answer.key or ''} at {answer.txn}"
            compare(answer.rows, as_rows(expected), model, label)


def walk_with_readers(path: Path, shape: Shape, seed: int, *, steps: int, reader_count: int, answers_max: int) -> None:
    both = Pair(path, {"first": shape, "second": dataclasses.replace(shape, splits=None)}, TINY)
    done = threading.Event()
    readers = [Reader(both, seed * 100 + number, done, answers_max) for number in range(reader_count)]
    dice = random.Random(seed)
    try:
        for reader in readers:
            reader.start()
        for _ in range(steps):
            random_step(both, dice)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    for reader in readers:
        reader.judge(both)
    assert all(reader.answers for reader in readers)
    both.check_all(deeply=True)
    both.reopen()
    both.check_all()
    both.close()


@pytest.mark.parametrize("name", THREADED)
def test_readers_in_threads_see_the_model_at_their_snapshot(tmp_path: Path, name: str) -> None:
    walk_with_readers(tmp_path / "store", THREADED[name], seed=1, steps=120, reader_count=3, answers_max=80)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("name", THREADED)
def test_readers_in_threads_see_the_model_for_long(tmp_path: Path, name: str, seed: int) -> None:
    walk_with_readers(tmp_path / "store", THREADED[name], seed, steps=400, reader_count=4, answers_max=300)
