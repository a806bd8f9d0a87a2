"""The short way of the merge; that it agrees with the general one is seen in test_merge.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ebla.storage.overlay import OVERLAY_RECORDS_MAX, overlaid
from ebla.storage.records import Run

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


def seen(*runs: Run) -> Any:
    found = overlaid(runs, TYPES)
    if found is None:
        return None
    rows, columns = found
    return [row.decode() for row in rows.to_pylist()], columns[1].to_pylist(), columns[2].to_pylist()


def test_a_column_that_nobody_changed_is_the_bases_own() -> None:
    found = overlaid([run(["b"], 5, c1=[20]), BASE], TYPES)
    assert found is not None
    assert found[1][2].buffers()[2].address == BASE.records.column("2").buffers()[2].address
    assert found[1][1].to_pylist() == [1, 20, 3]


def test_new_rows_stand_in_order_and_have_null_where_nothing_is_set() -> None:
    newer = run(["aa", "d"], [7, 8], c1=[10, None], c2=[None, "d"], _set=["1", "2"])
    assert seen(newer, BASE) == (["a", "aa", "b", "c", "d"], [1, 10, 2, 3, None], ["x", None, "y", "z", "d"])


def test_the_newest_of_several_counts_in_whichever_run_it_is() -> None:
    newer, older = run(["b", "b"], [9, 7], c1=[90, 70]), run(["b"], [8], c1=[80], c2=["eight"])
    assert seen(newer, older, BASE) == (["a", "b", "c"], [1, 90, 3], ["x", "eight", "z"])


def test_what_is_not_so_simple_goes_the_general_way() -> None:
    assert seen(run(["b"], 5, c1=[1], _erased=[True]), BASE) is None
    assert seen(run(["b"], [1], c1=[1]), BASE) is None, "as old as the base"
    assert seen(run(["z"], [1], c1=[1]), BASE) is not None, "of another row"
    assert seen(BASE, run(["a", "a"], [1, 0], c1=[1, 2])) is None, "two records of a row in the base"
    assert seen(run(["b"], 5, c1=[1]), run(["b"], 1, c1=[1], c2=[None], _set=["1"])) is None, "a partial base"
    many = OVERLAY_RECORDS_MAX + 1
    assert seen(run(["b"] * many, list(range(many + 2, 2, -1)), c1=[1] * many), BASE) is None
