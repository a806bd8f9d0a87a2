"""The short way of the merge; that it agrees with the general one is seen in test_merge.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ebla.storage.merge.short_merge import RECORDS_MAX, merge_few
from ebla.storage.record.records import Run

TYPES = {1: pa.int64(), 2: pa.string()}


def run(rows: list[str], txns: list[int] | int, **columns: list[Any]) -> Run:
    arrays: dict[str, pa.Array] = {"_row": pa.array([row.encode() for row in rows], pa.binary())}
    if isinstance(txns, list):
        arrays["_txn"] = pa.array(txns, pa.int64())
    for name, given in columns.items():
        kind = {"c1": pa.int64(), "c2": pa.string(), "_set": pa.string(), "_erased": pa.bool_()}[name]
        arrays[name.removeprefix("c")] = pa.array(given, kind)
    records = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    return Run(records, None if isinstance(txns, list) else txns)


BASE = run(["a", "b", "c"], 1, c1=[1, 2, 3], c2=["x", "y", "z"])


def seen(*runs: Run, limit: int | None = None) -> Any:
    found = merge_few(runs, TYPES, limit)
    if found is None:
        return None
    rows, columns = found
    return [row.decode() for row in rows.to_pylist()], columns[1].to_pylist(), columns[2].to_pylist()


def test_a_run_alone_is_not_copied() -> None:
    found = merge_few([BASE], TYPES)
    assert found is not None
    assert found[1][2].buffers()[2].address == BASE.records.column("2").buffers()[2].address


def test_new_rows_stand_in_order_and_have_null_where_nothing_is_set() -> None:
    newer = run(["aa", "d"], [7, 8], c1=[10, None], c2=[None, "d"], _set=["1", "2"])
    assert seen(newer, BASE) == (["a", "aa", "b", "c", "d"], [1, 10, 2, 3, None], ["x", None, "y", "z", "d"])


def test_the_newest_of_several_counts_in_whichever_run_it_is() -> None:
    newer, older = run(["b", "b"], [9, 7], c1=[90, 70]), run(["b"], [8], c1=[80], c2=["eight"])
    assert seen(newer, older, BASE) == (["a", "b", "c"], [1, 90, 3], ["x", "eight", "z"])


def test_whole_rows_hide_what_partial_ones_set_before_and_not_after() -> None:
    partial = run(["a", "b"], [5, 9], c1=[50, 90], c2=[None, None], _set=["1", "1"])
    whole = run(["a", "b"], 7, c1=[70, 71], c2=["seven", None])
    assert seen(partial, whole, BASE) == (["a", "b", "c"], [70, 90, 3], ["seven", None, "z"])


def test_of_records_that_share_a_txn_the_first_counts() -> None:
    assert seen(run(["b", "b"], 5, c1=[51, 50], c2=["p", "q"]), BASE)[1:] == ([1, 51, 3], ["x", "p", "z"])


def test_no_more_rows_are_merged_than_are_wanted() -> None:
    newer = run(["aa", "b", "z"], [7, 8, 9], c1=[10, 20, 30], c2=["n", "m", "o"])
    assert seen(newer, BASE, limit=3) == (["a", "aa", "b"], [1, 10, 20], ["x", "n", "m"])
    assert seen(newer, BASE, limit=1) == (["a"], [1], ["x"])
    assert seen(newer, BASE, limit=9) == seen(newer, BASE)
    assert seen(BASE, limit=2) == (["a", "b"], [1, 2], ["x", "y"])


def test_runs_in_several_chunks_are_merged_alike() -> None:
    halves = pa.concat_tables([pa.Table.from_batches([BASE.records.slice(0, 1)]), pa.table(BASE.records.slice(1))])
    assert seen(run(["b"], 5, c1=[20]), Run(halves, 1)) == seen(run(["b"], 5, c1=[20]), BASE)


def test_what_is_not_so_simple_goes_the_general_way() -> None:
    assert seen(run(["b"], 5, c1=[1], _erased=[True]), BASE) is None
    many = RECORDS_MAX + 1
    assert seen(run(["b"] * many, list(range(many + 2, 2, -1)), c1=[1] * many), BASE) is None
