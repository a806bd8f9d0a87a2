"""Store and model under any interleaving: every operation, with flushes, reopenings and crashes in between.

One Hypothesis state machine per table shape. Each has two tables of that shape in one store, and so in one log: `first`
is split where the shape says so, `second` is one tablet. The steps are in `pair.py`; the machine only chooses them.

`make test` runs the same few examples every time; `make soak` runs many, and others each time. A failure prints the
steps that lead to it, and at the end the rows that differ and what was written to them.

The last test is the same walk from a plain seed, with threads that read while it writes.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ebla.schema import Group, Schema

from .pair import ROOMY, TINY, Pair, as_key, as_rows, compare
from .reference import Cell, Key, Row
from .strategies import ADDABLE, APPENDABLE, PAST, SHAPES, Filter, Shape

WAITS = ("durable", "durable", "logged", "none")
ARROW_FORMS = ("table", "batch", "ipc", "pandas", "polars", "map", "list")
THROUGH = ("dicts", "dicts", "arrow", "batches")


def machine_for(shape: Shape) -> type[RuleBasedStateMachine]:
    """Return the state machine for tables of one shape."""
    tables = st.sampled_from(("first", "second"))
    moments = st.integers(0, 30)
    when = st.none() | moments
    keys = shape.key_strategy()
    numbers = st.integers(0, 3)
    addable = {name: ADDABLE[kind] for name, kind in shape.types.items() if kind in ADDABLE}
    addable |= {name: (1, -1, 1000) for name in shape.cells if name.endswith(":n")}
    appendable = {name: APPENDABLE[kind] for name, kind in shape.types.items() if kind in APPENDABLE}
    appendable |= {name: (b"", b"b", b"\x00") for name in shape.cells if name.endswith(":a")}
    # What is decided by reading first cannot be foretold where rows vanish by themselves.
    foretold = not shape.expires

    def choice(pools: dict[str, tuple[Any, ...]]) -> st.SearchStrategy[tuple[str, Any]]:
        return st.sampled_from([(name, value) for name, pool in pools.items() for value in pool])

    @st.composite
    def scans(draw: st.DrawFn) -> dict[str, Any]:
        columns = draw(shape.projections())
        start, stop = draw(st.just((None, None)) | shape.ranges())
        asked: dict[str, Any] = {"start": start, "stop": stop, "columns": columns}
        if start is None and stop is None and shape.has_prefixes and draw(st.booleans()):
            asked["prefix"] = draw(shape.prefixes())
        asked["versions"] = draw(st.sampled_from((1, 1, 2, 3, 100)))
        if asked["versions"] == 1:
            asked["where"] = draw(st.none() | shape.filters(columns))
        asked["limit"] = draw(st.none() | st.integers(0, 5))
        asked["reverse"] = draw(st.booleans())
        return asked

    class Machine(RuleBasedStateMachine):
        """Store and model of one shape."""

        def __init__(self) -> None:
            super().__init__()
            self.directory = Path(tempfile.mkdtemp(prefix="ebla-model-"))
            self.pair: Pair | None = None
            self.watchful = True

        @initialize(tiny=st.booleans(), watchful=st.booleans())
        def open(self, tiny: bool, watchful: bool) -> None:
            unsplit = dataclasses.replace(shape, splits=None)
            self.pair = Pair(self.directory / "store", {"first": shape, "second": unsplit}, TINY if tiny else ROOMY)
            # Reading everything after every step warms every cache, so in half of the runs it is not done.
            self.watchful = watchful

        @property
        def both(self) -> Pair:
            assert self.pair is not None
            return self.pair

        # --- puts -----------------------------------------------------------------------------

        @rule(table=tables, row=shape.rows(), wait=st.sampled_from(WAITS))
        def put_row(self, table: str, row: Row, wait: str) -> None:
            self.both.put(table, [row], "dict", wait=wait)

        @rule(table=tables, rows=shape.row_lists(), wait=st.sampled_from(WAITS))
        def put_list(self, table: str, rows: list[Row], wait: str) -> None:
            self.both.put(table, rows, wait=wait)

        @rule(table=tables, rows=shape.batches(), form=st.sampled_from(ARROW_FORMS), replace=st.booleans())
        def put_arrow(self, table: str, rows: list[Row], form: str, replace: bool) -> None:
            self.both.put(table, rows, form, replace=replace)

        @rule(table=tables, seed=st.integers(0, 99), count=st.integers(10, 60))
        def put_many(self, table: str, seed: int, count: int) -> None:
            self.both.put(table, shape.random_rows(random.Random(seed), count))

        @rule(table=tables, rows=shape.row_lists())
        def replace(self, table: str, rows: list[Row]) -> None:
            self.both.put(table, rows, replace=True)

        @precondition(lambda self: foretold)
        @rule(table=tables, rows=shape.row_lists(), replace=st.booleans())
        def put_if_absent(self, table: str, rows: list[Row], replace: bool) -> None:
            self.both.put(table, rows, if_absent=True, replace=replace)

        @rule(table=tables, rows=shape.row_lists(), moment=moments)
        def put_if_unchanged(self, table: str, rows: list[Row], moment: int) -> None:
            self.both.put(table, rows, if_unchanged_since=self.both.remembered(table, moment))

        @rule(table=tables, row=shape.rows())
        def put_after_reading(self, table: str, row: Row) -> None:
            self.both.put_unchanged(table, row)

        @precondition(lambda self: bool(shape.cells))
        @rule(table=tables, cells=shape.cell_lists() if shape.cells else st.nothing(), as_timestamps=st.booleans())
        def put_cells(self, table: str, cells: list[Cell], as_timestamps: bool) -> None:
            self.both.put_cells(table, cells, as_timestamps=as_timestamps)

        # --- erasures -------------------------------------------------------------------------

        @rule(table=tables, key=keys)
        def erase(self, table: str, key: Key) -> None:
            self.both.erase(table, key)

        @precondition(lambda self: foretold or bool(shape.cells))
        @rule(table=tables, key=keys, columns=shape.erasable())
        def erase_columns(self, table: str, key: Key, columns: list[str]) -> None:
            self.both.erase(table, key, columns)

        @rule(table=tables, some=st.lists(keys, min_size=1, max_size=4))
        def erase_many(self, table: str, some: list[Key]) -> None:
            self.both.erase_many(table, some)

        @rule(table=tables, ends=shape.ranges())
        def erase_range(self, table: str, ends: tuple[Key | None, Key | None]) -> None:
            self.both.erase_range(table, *ends)

        # --- read, change and write in one ----------------------------------------------------

        @precondition(lambda self: foretold and bool(addable))
        @rule(table=tables, key=keys, chosen=choice(addable))
        def increment(self, table: str, key: Key, chosen: tuple[str, Any]) -> None:
            self.both.increment(table, key, *chosen)

        @precondition(lambda self: foretold and bool(appendable))
        @rule(table=tables, key=keys, chosen=choice(appendable))
        def append(self, table: str, key: Key, chosen: tuple[str, Any]) -> None:
            self.both.append(table, key, *chosen)

        @precondition(lambda self: foretold)
        @rule(table=tables, row=shape.rows(), nothing=st.booleans())
        def transact(self, table: str, row: Row, nothing: bool) -> None:
            key = tuple(row[name] for name in shape.key_names)
            changes = {name: value for name, value in row.items() if name not in shape.key_names}
            self.both.transact(table, key, None if nothing or not changes else changes)

        # --- reads ----------------------------------------------------------------------------

        @rule(table=tables, key=keys, columns=shape.projections(), moment=when, odd=st.booleans())
        def get(self, table: str, key: Key, columns: list[str] | None, moment: int | None, odd: bool) -> None:
            self.both.check_get(table, key, columns, moment, by_name=odd, uncommitted=odd and moment is None)

        @rule(table=tables, some=st.lists(keys, min_size=1, max_size=6), columns=shape.projections(), moment=when)
        def get_many(self, table: str, some: list[Key], columns: list[str] | None, moment: int | None) -> None:
            self.both.check_get_many(table, some, columns, moment)

        @rule(table=tables, asked=scans(), moment=when, as_of_time=st.booleans(), through=st.sampled_from(THROUGH))
        def scan(self, table: str, asked: dict[str, Any], moment: int | None, as_of_time: bool, through: str) -> None:
            self.both.check_scan(table, moment=moment, as_of_time=as_of_time, through=through, **asked)

        @rule(table=tables, choice=st.sampled_from(("latest", "read_uncommitted")))
        def scan_by_choice(self, table: str, choice: str) -> None:
            self.both.check_scan(table, options={choice: True})

        @rule(table=tables, reverse=st.booleans(), versions=st.sampled_from((1, 2)))
        def begin_scan(self, table: str, reverse: bool, versions: int) -> None:
            self.both.begin_scan(table, reverse=reverse, versions=versions)

        @rule(number=numbers, count=st.none() | st.integers(1, 4))
        def continue_scan(self, number: int, count: int | None) -> None:
            self.both.continue_scan(number, count)

        @rule()
        def take_snapshot(self) -> None:
            self.both.take_snapshot()

        @rule(number=numbers, table=tables, key=keys)
        def read_snapshot(self, number: int, table: str, key: Key) -> None:
            self.both.check_snapshot(number, table, key)

        @rule(number=numbers)
        def release_snapshot(self, number: int) -> None:
            self.both.release_snapshot(number)

        # --- the life of the store ------------------------------------------------------------

        @rule(table=tables)
        def flush(self, table: str) -> None:
            self.both.flush(table)

        @rule(in_order=st.booleans())
        def reopen(self, in_order: bool) -> None:
            if in_order:
                self.both.reopen()
            else:
                self.both.crash()

        @rule(table=tables)
        def recreate(self, table: str) -> None:
            self.both.recreate(table)

        @rule(table=tables, key=keys, wrong=st.sampled_from(("column", "type", "key", "no key", "bytes")))
        def refuse(self, table: str, key: Key, wrong: str) -> None:
            row = shape.key_row(key)
            bad: dict[str, Any] = {
                "column": row | {"no such column": 1},
                "type": row | {shape.columns[0]: object()},
                "key": row | {shape.key_names[-1]: None},
                "no key": {name: value for name, value in row.items() if name != shape.key_names[-1]},
                "bytes": b"these bytes are no Arrow stream",
            }
            good = shape.random_rows(random.Random(0), 1)[0]
            self.both.refuse(table, lambda t: t.put(bad[wrong] if wrong == "bytes" else [good, bad[wrong]]))

        # --- always ---------------------------------------------------------------------------

        # Hypothesis takes the rule with the fewest arguments and the first name for the simplest, and tries it most.
        @rule()
        def agree(self) -> None:
            self.both.check_all()

        @invariant()
        def store_and_model_agree(self) -> None:
            if self.pair is not None and self.watchful:
                self.pair.check_all()

        def teardown(self) -> None:
            try:
                if self.pair is not None:
                    self.pair.check_all(deeply=True)
                    self.pair.close()
            finally:
                shutil.rmtree(self.directory, ignore_errors=True)

    Machine.__qualname__ = Machine.__name__ = f"Machine_{shape.name}"
    return Machine


CHECKS_OFF = tuple(HealthCheck)
QUICK = settings(
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=CHECKS_OFF,
    phases=(Phase.generate, Phase.shrink),
)
LONG = settings(
    max_examples=300,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=CHECKS_OFF,
    print_blob=True,
    phases=tuple(Phase),
)
by_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


@by_shape
def test_store_equals_model(shape: Shape) -> None:
    run_state_machine_as_test(machine_for(shape), settings=QUICK)


@pytest.mark.soak
@by_shape
def test_store_equals_model_for_long(shape: Shape) -> None:
    run_state_machine_as_test(machine_for(shape), settings=LONG)


# --- scripts: encounters that chance arranges too rarely -----------------------------------------


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[Schema], Pair]]:
    """Open a store with one table ``t`` of a schema, beside its model; at the end compare everything and close it."""
    pairs: list[Pair] = []

    def open_pair(schema: Schema) -> Pair:
        keys = tuple((key,) for key in (b"a", b"m", b"q", b"z"))
        pairs.append(Pair(tmp_path / str(len(pairs)), {"t": Shape("script", schema, keys)}, ROOMY))
        return pairs[-1]

    yield open_pair
    for both in pairs:
        both.check_all(deeply=True)
        both.close()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_range_erasure_is_a_change_to_every_row_in_it(opened: Callable[[Schema], Pair], flushed: bool) -> None:
    both = opened(Schema(columns={"n": "int64"}))
    both.put("t", [{"row": b"q", "n": 1}])
    before = both.last_txn
    both.erase_range("t", None, None)
    if flushed:
        both.flush("t")
    both.put("t", [{"row": b"a", "n": 1}, {"row": b"z", "n": 1}])
    # Newer records lie around the row, but the newest that touched it is the erasure.
    both.put("t", [{"row": b"m", "n": 1}], if_unchanged_since=before)
    both.reopen()
    both.put("t", [{"row": b"m", "n": 1}], if_unchanged_since=before)


def test_a_row_that_was_read_before_expires_all_the_same(opened: Callable[[Schema], Pair]) -> None:
    both = opened(Schema(groups=[Group("main", columns={"n": "int64"}, max_age="1us")]))
    both.put("t", [{"row": b"a", "n": 1}])
    both.check_get("t", (b"a",))
    both.put("t", [{"row": b"q", "n": 1}])
    both.check_get("t", (b"a",))
    both.check_get_many("t", [(b"a",), (b"q",)])


def test_a_row_is_shown_by_the_very_cells_asked_for(opened: Callable[[Schema], Pair]) -> None:
    both = opened(Schema(groups=[Group("events", families=["click", "view"])]))
    both.put("t", [{"row": b"a", "click:b": b"1"}, {"row": b"m", "click:a": b"2"}, {"row": b"q", "view:b": b"3"}])
    for _ in range(2):
        for columns in (["click:a", "view:b"], ["click:b", "view:a"], ["view:", "click:a"], ["view:a"]):
            both.check_scan("t", columns=columns)
            both.check_scan("t", columns=columns, versions=2, through="arrow")
            both.check_get("t", (b"a",), columns)
            both.check_get_many("t", [(b"a",), (b"m",), (b"q",)], columns)
        both.flush("t")


@pytest.mark.parametrize("form", ARROW_FORMS)
def test_of_rows_that_replace_each_other_the_last_is_left_in_any_form(
    opened: Callable[[Schema], Pair], form: str
) -> None:
    both = opened(Schema(groups=[Group("main", columns={"n": "int64"}), Group("events", families=["click"])]))
    rows = [
        {"row": b"a", "click:a": b"1", "click:b": None},
        {"row": b"m", "click:a": b"1", "click:b": b"1"},
        {"row": b"a", "click:a": None, "click:b": b"2"},
        {"row": b"m", "click:a": None, "click:b": None},
    ]
    both.put("t", [{"row": b"a", "n": 1, "click:c": b"0"}, {"row": b"m", "n": 1, "click:c": b"0"}])
    both.put("t", rows, form, replace=True)
    both.check_all()
    both.put("t", [{**row, "n": n} for n, row in enumerate(rows)], form, replace=True)


# --- readers in threads --------------------------------------------------------------------------


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
            family, _, qualifier = dice.choice([name for name in shape.cells if ":" in name]).partition(":")
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


class Reader(threading.Thread):
    """Reads at snapshots of its own choosing and keeps every answer, to be judged when the writer is done."""

    def __init__(self, both: Pair, seed: int, done: threading.Event, answers_max: int) -> None:
        super().__init__(daemon=True)
        self.database = both.database
        self.shapes = both.shapes
        self.dice = random.Random(seed)
        self.done = done
        self.answers_max = answers_max
        self.answers: list[tuple[int, str, Key | None, int, list[Row | None]]] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.done.is_set() and len(self.answers) < self.answers_max:
                self.read_once()
        except BaseException as failure:
            self.failure = failure

    def read_once(self) -> None:
        name = self.dice.choice(list(self.shapes))
        key = self.dice.choice(self.shapes[name].keys)
        match self.dice.randint(0, 2):
            case 0:
                with self.database.snapshot() as snapshot:
                    rows = [snapshot.table(name).get(as_key(key))]
                self.keep(snapshot.txn, name, key, 1, rows)
            case 1:
                versions = self.dice.choice((1, 3))
                scan = self.database.table(name).scan(versions=versions)
                rows = list(scan)
                self.keep(scan.txn, name, None, versions, rows)
            case _ if self.answers:
                # An answer at a moment never changes, so an old moment may be asked again.
                txn, name, *_ = self.dice.choice(self.answers)
                rows = list(self.database.table(name).scan(as_of=txn))
                self.keep(txn, name, None, 1, rows)

    def keep(self, txn: int, name: str, key: Key | None, versions: int, rows: list[Any]) -> None:
        self.answers.append((txn, name, key, versions, as_rows(rows)))

    def judge(self, both: Pair) -> None:
        """Compare every answer with the model at its moment."""
        if self.failure is not None:
            raise self.failure
        for txn, name, key, versions, actual in self.answers:
            model = both.model.table(name)
            if key is None:
                expected = model.scan(as_of=txn, versions=versions)
            else:
                expected = [model.get(key, as_of=txn)]
            compare(actual, as_rows(expected), model, f"a thread read {name} {key or ''} at {txn}")


def walk_with_readers(path: Path, shape: Shape, seed: int, *, steps: int, reader_count: int) -> None:
    both = Pair(path, {"first": shape, "second": dataclasses.replace(shape, splits=None)}, TINY)
    done = threading.Event()
    readers = [Reader(both, seed * 100 + number, done, answers_max=steps * 2) for number in range(reader_count)]
    dice = random.Random(seed)
    try:
        for reader in readers:
            reader.start()
        for _ in range(steps):
            random_step(both, dice)
    finally:
        done.set()
        for reader in readers:
            reader.join(timeout=60)
    assert not any(reader.is_alive() for reader in readers)
    for reader in readers:
        reader.judge(both)
    assert sum(len(reader.answers) for reader in readers) > 0
    both.check_all(deeply=True)
    both.reopen()
    both.check_all(deeply=True)
    both.close()


THREADED = {shape.name: shape for shape in SHAPES if shape.name in ("plain", "columns_and_cells", "purging")}


@pytest.mark.parametrize("name", THREADED)
def test_readers_in_threads_see_the_model_at_their_snapshot(tmp_path: Path, name: str) -> None:
    walk_with_readers(tmp_path / "store", THREADED[name], seed=1, steps=150, reader_count=3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", THREADED)
def test_readers_in_threads_see_the_model_for_long(tmp_path: Path, name: str, seed: int) -> None:
    walk_with_readers(tmp_path / "store", THREADED[name], seed=seed, steps=2_000, reader_count=4)


# --- the instruments themselves ------------------------------------------------------------------


def test_a_filter_knows_three_truths() -> None:
    small = Filter("<", "n", 5, "int64")
    assert [small({"n": n}) for n in (4, 5, None)] == [True, False, None]
    either = Filter("or", parts=(small, Filter("null", "s", "", "string")))
    assert either({"n": None, "s": None}) is True
    assert either({"n": None, "s": "x"}) is None
    assert Filter("not", parts=(either,))({"n": 9, "s": "x"}) is True
