"""What a compaction leaves: every snapshot that may still be read answers as before, and the rest is gone."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from ebla.storage.merge.compact import Compacted, Retention, compact
from ebla.storage.merge.merge import merge_cells, merge_columns
from ebla.storage.merge.rules import Rules
from ebla.storage.merge.topping import firsts_of_rows
from ebla.storage.record.records import TIMESTAMP_MAX, Run
from tests.support.records import (
    COLUMN_TYPES,
    DICE,
    ROWS,
    Cell,
    ColumnsRun,
    Range,
    cell_runs,
    cells_batch,
    columns_runs,
)

TXNS = range(14)
TXNS_MAX = 1 << 40


def retention(dice: Random, *, is_rooted: bool) -> Retention:
    erasures = [
        Range(dice.choice(ROWS), dice.choice([None, *ROWS]), dice.randint(1, 14) << 10)
        for _ in range(dice.choice([0, 0, 1, 3]))
    ]
    return Retention(
        horizon=dice.randint(0, 13) << 10,
        is_rooted=is_rooted,
        erasures=[e for e in erasures if e.last is None or e.first < e.last],
        versions_kept=dice.choice([None, 1, 1, 2, 3]),
        age_max_microseconds=dice.choice([None, None, dice.randint(0, 12)]),
        purge_both=dice.random() < 0.5,
    )


def readers(kept: Retention, versions: int) -> list[Rules]:
    """Return readers at every snapshot that may still be read."""
    rules = []
    for txn in TXNS:
        as_of = txn << 10
        if as_of >= kept.horizon:
            expired = None if kept.age_max_microseconds is None else txn - kept.age_max_microseconds
            rules.append(Rules(as_of, kept.erasures, versions, expired, kept.versions_kept, kept.purge_both))
    return rules


def run_of(compacted: Compacted | None) -> list[Run]:
    if compacted is None:
        return []
    compacted.records.validate(full=True)
    return [Run(compacted.records)]


def columns_seen(runs: list[Run], rules: Rules) -> Any:
    seen = merge_columns(runs, COLUMN_TYPES, rules)
    return seen.rows.to_pylist(), {i: column.to_pylist() for i, column in seen.columns.items()}


def cells_seen(runs: list[Run], rules: Rules) -> Any:
    seen = merge_cells(runs, rules)
    columns = (seen.family, seen.qualifier, seen.timestamp, seen.txn, seen.value)
    return seen.rows.to_pylist(), seen.row_of.tolist(), [column.to_pylist() for column in columns]


def divided(runs: list[Run], dice: Random, *, is_rooted: bool) -> tuple[list[Run], list[Run]]:
    """Return the inputs of a compaction, and what stays beside it."""
    if is_rooted:
        return runs, []
    inputs = [run for run in runs if dice.random() < 0.6]
    return inputs, [run for run in runs if run not in inputs]


@given(columns_runs(), DICE)
@settings(deadline=None, max_examples=120)
def test_every_snapshot_from_the_horizon_on_sees_the_same_columns(given: list[ColumnsRun], dice: Random) -> None:
    is_rooted = dice.random() < 0.5
    kept = retention(dice, is_rooted=is_rooted)
    runs = [run.run() for run in given]
    inputs, others = divided(runs, dice, is_rooted=is_rooted)
    outputs = run_of(compact(inputs, kept, is_cells=False))
    for rules in readers(kept, versions=dice.choice([1, 3])):
        assert columns_seen([*others, *outputs], rules) == columns_seen(runs, rules)


@given(columns_runs(), DICE)
@settings(deadline=None, max_examples=120)
def test_every_snapshot_sees_the_same_where_the_newest_record_took_over_what_others_set(
    given: list[ColumnsRun], dice: Random
) -> None:
    kept = replace(retention(dice, is_rooted=False), versions_kept=1, age_max_microseconds=None, is_dense=True)
    runs = [run.run() for run in given]
    low, high = sorted((dice.randint(0, 14) << 10, dice.randint(0, 14) << 10))
    inputs = [between(run, low, high) for run in runs]
    others = [between(run, *ends) for run in runs for ends in ((0, low - 1), (high + 1, TXNS_MAX))]
    outputs = run_of(compact(inputs, kept, is_cells=False))
    for rules in readers(kept, versions=dice.choice([1, 3])):
        assert columns_seen([*others, *outputs], rules) == columns_seen(runs, rules)
    newest = Rules(TXNS_MAX, kept.erasures, versions_kept=1)
    thin = [firsts_of_rows(run) for run in outputs]
    assert columns_seen([*others, *thin], newest) == columns_seen(runs, newest)


def between(run: Run, low: int, high: int) -> Run:
    txns = run.txns()
    return Run(run.records.filter(pa.array((txns >= low) & (txns <= high))), run.txn)


@given(cell_runs(), DICE)
@settings(deadline=None, max_examples=120)
def test_every_snapshot_from_the_horizon_on_sees_the_same_cells(given: list[list[Cell]], dice: Random) -> None:
    is_rooted = dice.random() < 0.5
    kept = retention(dice, is_rooted=is_rooted)
    runs = [Run(cells_batch(run)) for run in given]
    inputs, others = divided(runs, dice, is_rooted=is_rooted)
    outputs = run_of(compact(inputs, kept, is_cells=True))
    for rules in readers(kept, versions=dice.choice([1, 3])):
        assert cells_seen([*others, *outputs], rules) == cells_seen(runs, rules)


@given(columns_runs(), DICE)
@settings(deadline=None, max_examples=100)
def test_one_record_per_row_is_left_where_nothing_is_retained(given: list[ColumnsRun], dice: Random) -> None:
    kept = replace(retention(dice, is_rooted=True), horizon=13 << 10, versions_kept=1, age_max_microseconds=None)
    outputs = run_of(compact([run.run() for run in given], kept, is_cells=False))
    for run in outputs:
        rows = run.records.column("_row").to_pylist()
        assert "_erased" not in run.records.schema.names
        assert len(set(rows)) == len(rows), "a partial record and what it updates are one"


def test_a_row_that_was_written_often_shrinks_to_one_record() -> None:
    txns = [n << 10 for n in range(5_000, 0, -1)]
    run = Run(
        pa.RecordBatch.from_arrays(
            [pa.array([b"hot"] * 5_000, pa.binary()), pa.array(txns), pa.array(range(5_000))],
            names=["_row", "_txn", "3"],
        )
    )
    left = compact([run], Retention(TXNS_MAX, is_rooted=False, versions_kept=1), is_cells=False)
    assert left is not None
    assert left.unique
    assert left.records.to_pydict() == {"_row": [b"hot"], "3": [0], "_txn": [5_000 << 10]}


def test_an_erasure_stays_until_nothing_older_can_be_elsewhere() -> None:
    cells = [
        Cell(b"r", "f", None, TIMESTAMP_MAX, 3 << 10, True, None),
        Cell(b"r", "f", "q", 1, 1 << 10, False, b"old"),
    ]
    run = Run(cells_batch(cells))
    partial = compact([run], Retention(TXNS_MAX, is_rooted=False), is_cells=True)
    assert partial is not None
    assert partial.records.column("_erased").to_pylist() == [True]
    assert compact([run], Retention(TXNS_MAX, is_rooted=True), is_cells=True) is None


def test_nothing_after_the_horizon_goes() -> None:
    run = Run(
        pa.RecordBatch.from_arrays(
            [pa.array([b"r"] * 3, pa.binary()), pa.array([7 << 10, 6 << 10, 1 << 10]), pa.array([3, 2, 1])],
            names=["_row", "_txn", "3"],
        )
    )
    left = compact([run], Retention(5 << 10, is_rooted=True, versions_kept=1), is_cells=False)
    assert left is not None
    assert left.records.column("3").to_pylist() == [3, 2, 1]


def test_a_surplus_version_stays_while_an_erasure_elsewhere_may_hide_the_newer_one() -> None:
    # The version with the older timestamp was written last, after an erasure that lies in another fragment.
    newer = Cell(b"r", "f", "q", 20, 2 << 10, False, b"newer time")
    later = Cell(b"r", "f", "q", 10, 5 << 10, False, b"later commit")
    erasure = Cell(b"r", "f", "q", TIMESTAMP_MAX, 3 << 10, True, None)
    inputs, other = [Run(cells_batch([newer, later]))], Run(cells_batch([erasure]))
    left = run_of(compact(inputs, Retention(TXNS_MAX, is_rooted=False, versions_kept=1), is_cells=True))
    seen = merge_cells([*left, other], Rules(versions_kept=1))
    assert seen.value.to_pylist() == [b"later commit"]
    everything = run_of(compact([*inputs, other], Retention(TXNS_MAX, is_rooted=True, versions_kept=1), is_cells=True))
    assert everything[0].records.column("value").to_pylist() == [b"later commit"]


def test_what_a_range_erasure_hides_is_gone() -> None:
    run = Run(
        pa.RecordBatch.from_arrays(
            [pa.array([b"a", b"b", b"c"], pa.binary()), pa.array([1 << 10, 1 << 10, 4 << 10]), pa.array([1, 2, 3])],
            names=["_row", "_txn", "3"],
        )
    )
    kept = Retention(9 << 10, is_rooted=False, erasures=[Range(b"b", None, 3 << 10)])
    left = compact([run], kept, is_cells=False)
    assert left is not None
    assert left.records.column("_row").to_pylist() == [b"a", b"c"]
    later = compact([run], replace(kept, horizon=2 << 10), is_cells=False)
    assert later is not None
    assert later.records.num_rows == 3


@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize("versions", [None, 1, 2])
@pytest.mark.parametrize("horizon", [0, 9 << 10])
def test_parts_of_one_record_are_made_one_in_whatever_order_they_come(
    horizon: int, versions: int | None, is_dense: bool
) -> None:
    rows, txns = pa.array([b"a", b"b"], pa.binary()), pa.array([5 << 10, 5 << 10])
    left = pa.record_batch({"_row": rows, "_txn": txns, "1": pa.array([1, 2])})
    right = pa.record_batch({"_row": rows, "_txn": txns, "2": pa.array(["x", None])})
    alone = pa.record_batch({"_row": rows, "_txn": txns, "_set": ["", ""]})
    older = pa.record_batch({"_row": rows, "_txn": pa.array([4 << 10] * 2), "1": pa.array([7, 7]), "_set": ["1", "1"]})
    for parts in permutations([left, right, alone, older]):
        kept = Retention(horizon, is_rooted=True, versions_kept=versions, is_dense=is_dense)
        runs = run_of(compact([Run(part) for part in parts], kept, is_cells=False))
        seen = merge_columns(runs, {1: pa.int64(), 2: pa.string()}, Rules())
        assert [seen.columns[i].to_pylist() for i in (1, 2)] == [[1, 2], ["x", None]]
        identities = list(zip(runs[0].records["_row"].to_pylist(), runs[0].txns().tolist(), strict=True))
        assert len(set(identities)) == len(identities)
