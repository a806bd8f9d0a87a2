"""Store and model under any interleaving: every operation, with flushes, reopenings and crashes in between.

One Hypothesis state machine per table shape. Each has two tables of that shape in one store, and so in one log: `first`
is split where the shape says so, `second` is one tablet. The steps are in `pair.py`; the machine only chooses them.

`make test` runs the same few examples every time; `make soak` runs many, and others each time. A failure prints the
steps that lead to it, and at the end the rows that differ and what was written to them.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from .pair import ROOMY, TINY, Pair
from .reference import Cell, Key, Row
from .strategies import ADDABLE, APPENDABLE, ARROW_FORMS, SHAPES, WAITS, Filter, Shape

THROUGH = ("dicts", "dicts", "arrow", "batches")


def step(**arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """Make a rule of a method, by strategies; in a watchful machine, store and model are compared after it."""

    def decorate(method: Callable[..., None]) -> Any:
        @functools.wraps(method)
        def watched(self: Any, **drawn: Any) -> None:
            method(self, **drawn)
            if self.watchful:
                self.both.check_all()

        return rule(**arguments)(watched)

    return decorate


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

        @step(table=tables, row=shape.rows(), wait=st.sampled_from(WAITS))
        def put_row(self, table: str, row: Row, wait: str) -> None:
            self.both.put(table, [row], "dict", wait=wait)

        @step(table=tables, rows=shape.row_lists(), wait=st.sampled_from(WAITS))
        def put_list(self, table: str, rows: list[Row], wait: str) -> None:
            self.both.put(table, rows, wait=wait)

        @step(table=tables, rows=shape.batches(), form=st.sampled_from(ARROW_FORMS), replace=st.booleans())
        def put_arrow(self, table: str, rows: list[Row], form: str, replace: bool) -> None:
            self.both.put(table, rows, form, replace=replace)

        @step(table=tables, seed=st.integers(0, 99), count=st.integers(10, 60))
        def put_many(self, table: str, seed: int, count: int) -> None:
            self.both.put(table, shape.random_rows(random.Random(seed), count))

        @step(table=tables, rows=shape.row_lists())
        def replace(self, table: str, rows: list[Row]) -> None:
            self.both.put(table, rows, replace=True)

        @precondition(lambda self: foretold)
        @step(table=tables, rows=shape.row_lists(), replace=st.booleans())
        def put_if_absent(self, table: str, rows: list[Row], replace: bool) -> None:
            self.both.put(table, rows, if_absent=True, replace=replace)

        @step(table=tables, rows=shape.row_lists(), moment=moments)
        def put_if_unchanged(self, table: str, rows: list[Row], moment: int) -> None:
            self.both.put(table, rows, if_unchanged_since=self.both.remembered(table, moment))

        @step(table=tables, row=shape.rows())
        def put_after_reading(self, table: str, row: Row) -> None:
            self.both.put_unchanged(table, row)

        @precondition(lambda self: bool(shape.cells))
        @step(table=tables, cells=shape.cell_lists() if shape.cells else st.nothing(), as_timestamps=st.booleans())
        def put_cells(self, table: str, cells: list[Cell], as_timestamps: bool) -> None:
            self.both.put_cells(table, cells, as_timestamps=as_timestamps)

        # --- erasures -------------------------------------------------------------------------

        @step(table=tables, key=keys)
        def erase(self, table: str, key: Key) -> None:
            self.both.erase(table, key)

        @precondition(lambda self: foretold or bool(shape.cells))
        @step(table=tables, key=keys, columns=shape.erasable())
        def erase_columns(self, table: str, key: Key, columns: list[str]) -> None:
            self.both.erase(table, key, columns)

        @step(table=tables, some=st.lists(keys, min_size=1, max_size=4))
        def erase_many(self, table: str, some: list[Key]) -> None:
            self.both.erase_many(table, some)

        @step(table=tables, ends=shape.ranges())
        def erase_range(self, table: str, ends: tuple[Key | None, Key | None]) -> None:
            self.both.erase_range(table, *ends)

        # --- read, change and write in one ----------------------------------------------------

        @precondition(lambda self: foretold and bool(addable))
        @step(table=tables, key=keys, chosen=choice(addable))
        def increment(self, table: str, key: Key, chosen: tuple[str, Any]) -> None:
            self.both.increment(table, key, *chosen)

        @precondition(lambda self: foretold and bool(appendable))
        @step(table=tables, key=keys, chosen=choice(appendable))
        def append(self, table: str, key: Key, chosen: tuple[str, Any]) -> None:
            self.both.append(table, key, *chosen)

        @precondition(lambda self: foretold)
        @step(table=tables, row=shape.rows(), nothing=st.booleans())
        def transact(self, table: str, row: Row, nothing: bool) -> None:
            key = tuple(row[name] for name in shape.key_names)
            changes = {name: value for name, value in row.items() if name not in shape.key_names}
            self.both.transact(table, key, None if nothing or not changes else changes)

        # --- reads ----------------------------------------------------------------------------

        @step(table=tables, key=keys, columns=shape.projections(), moment=when, odd=st.booleans())
        def get(self, table: str, key: Key, columns: list[str] | None, moment: int | None, odd: bool) -> None:
            self.both.check_get(table, key, columns, moment, by_name=odd, uncommitted=odd and moment is None)

        @step(table=tables, some=st.lists(keys, min_size=1, max_size=6), columns=shape.projections(), moment=when)
        def get_many(self, table: str, some: list[Key], columns: list[str] | None, moment: int | None) -> None:
            self.both.check_get_many(table, some, columns, moment)

        @step(table=tables, asked=scans(), moment=when, as_of_time=st.booleans(), through=st.sampled_from(THROUGH))
        def scan(self, table: str, asked: dict[str, Any], moment: int | None, as_of_time: bool, through: str) -> None:
            self.both.check_scan(table, moment=moment, as_of_time=as_of_time, through=through, **asked)

        @step(table=tables, choice=st.sampled_from(("latest", "read_uncommitted")))
        def scan_by_choice(self, table: str, choice: str) -> None:
            self.both.check_scan(table, options={choice: True})

        @step(table=tables, reverse=st.booleans(), versions=st.sampled_from((1, 2)))
        def begin_scan(self, table: str, reverse: bool, versions: int) -> None:
            self.both.begin_scan(table, reverse=reverse, versions=versions)

        @step(number=numbers, count=st.none() | st.integers(1, 4))
        def continue_scan(self, number: int, count: int | None) -> None:
            self.both.continue_scan(number, count)

        @step(named=st.booleans())
        def take_snapshot(self, named: bool) -> None:
            self.both.take_snapshot(named=named)

        @step(number=numbers, table=tables, key=keys)
        def read_snapshot(self, number: int, table: str, key: Key) -> None:
            self.both.check_snapshot(number, table, key)

        @step(number=numbers)
        def release_snapshot(self, number: int) -> None:
            self.both.release_snapshot(number)

        # --- the life of the store ------------------------------------------------------------

        @step(table=tables)
        def flush(self, table: str) -> None:
            self.both.flush(table)

        @step(table=tables, forget=st.booleans(), by_job=st.booleans())
        def compact(self, table: str, forget: bool, by_job: bool) -> None:
            self.both.compact(table, forget=forget, by_job=by_job)

        @step(table=tables, seed=st.integers(0, 99), forget=st.sampled_from((False, False, False, True)))
        def merge_some(self, table: str, seed: int, forget: bool) -> None:
            self.both.merge_some(table, seed, forget=forget)

        @step()
        def collect_garbage(self) -> None:
            self.both.collect_garbage()

        @step(table=tables, at=st.none() | keys)
        def split(self, table: str, at: Key | None) -> None:
            self.both.split(table, at)

        @step(table=tables, number=numbers)
        def join(self, table: str, number: int) -> None:
            self.both.join(table, number)

        @step(table=tables)
        def unload(self, table: str) -> None:
            self.both.unload(table)

        @step(table=tables, seed=st.integers(0, 999))
        def alter(self, table: str, seed: int) -> None:
            self.both.alter(table, seed)

        @step(in_order=st.booleans())
        def reopen(self, in_order: bool) -> None:
            if in_order:
                self.both.reopen()
            else:
                self.both.crash()

        @step(table=tables)
        def recreate(self, table: str) -> None:
            self.both.recreate(table)

        @step(table=tables)
        def clone(self, table: str) -> None:
            self.both.clone(table, "second" if table == "first" else "first")

        @step(table=tables, key=keys, wrong=st.sampled_from(("column", "type", "key", "no key", "bytes")))
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

        # Hypothesis takes the rule with the fewest arguments and the first name for the simplest, and tries it most.
        @step()
        def agree(self) -> None:
            self.both.check_all(deeply=True)

        def teardown(self) -> None:
            has_failed = sys.exc_info()[0] is not None
            try:
                if self.pair is not None:
                    if not has_failed:  # else there is a better account of the difference under way
                        self.pair.check_all(deeply=True)
                    self.pair.database.close()
            finally:
                shutil.rmtree(self.directory, ignore_errors=True)

    Machine.__qualname__ = Machine.__name__ = f"Machine_{shape.name}"
    return Machine


CHECKS_OFF = tuple(HealthCheck)
QUICK = settings(
    max_examples=7,
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
def test_store_equals_model(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    # A few records take the ways of many.
    monkeypatch.setattr("ebla.tablet.read.row_records.CHAIN_RECORDS_MIN", 2)
    monkeypatch.setattr("ebla.tablet.read.reader.THIN_RECORDS_MIN", 2)
    # A failure is shortened for five minutes otherwise, and a broken store fails for every shape.
    monkeypatch.setattr("hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS", 20, raising=False)
    run_state_machine_as_test(machine_for(shape), settings=QUICK)


@pytest.mark.soak
@by_shape
def test_store_equals_model_for_long(shape: Shape) -> None:
    run_state_machine_as_test(machine_for(shape), settings=LONG)


# --- the instruments themselves ------------------------------------------------------------------


def test_a_filter_knows_three_truths() -> None:
    small = Filter("<", "n", 5, "int64")
    assert [small({"n": n}) for n in (4, 5, None)] == [True, False, None]
    either = Filter("or", parts=(small, Filter("null", "s", "", "string")))
    assert either({"n": None, "s": None}) is True
    assert either({"n": None, "s": "x"}) is None
    assert Filter("not", parts=(either,))({"n": 9, "s": "x"}) is True
