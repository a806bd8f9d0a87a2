"""Topping: the newest record of a row takes over what older ones set, so that a reader need not look at those.

    txn       9        7          4                             9           7          4
    sets      a        b          a b c          becomes        a b c       b          a b c
    values    a9       b7         a4 b4 c4                      a9 b7 c4    b7         a4 b4 c4

A reader at 9 or later gets everything from one record; a reader at 8 does not see that one, and all others are as they
were. The record keeps its txn, the values keep theirs no longer: so it is done only where a group keeps one version and
no age limit, and only to runs that are **dense**: no other source has records of these rows with a txn in between.

An erasure ends it: nothing below is taken over. So does a range erasure below the newest record of a row. One that is
newer than that hides the whole row anyway, or none of it from a reader before the erasure, who gets everything.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.order import Indices, Mask
from ebla.storage.merge.arrange import Arranged, arrange_rows, end_to_end, erased_mask
from ebla.storage.merge.column_sets import column_types, set_column, set_patterns, setters
from ebla.storage.merge.erasure_cover import Erasure, erased_above, hide_ranges
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TXN, Run

__all__ = ["Tops", "count_surplus", "firsts_of_rows", "newest", "taken_with_tops", "top_batch"]

Tops = tuple[Indices, Mask]
"""Places of records that take over what those below them set, at most one per row; and what may be taken over."""


def top_batch(records: pa.RecordBatch, erasures: Sequence[Erasure]) -> pa.RecordBatch:
    """Return dense records of a columns group, sorted as in a fragment, with every row's newest record topped."""
    if SET not in records.schema.names:
        return records
    runs = [Run(records)]
    arranged = arrange_rows(runs)
    return taken_with_tops(
        runs, arranged, np.ones(len(arranged.order), dtype=np.bool_), [newest(runs, arranged, erasures)]
    )


def newest(runs: Sequence[Run], arranged: Arranged, erasures: Sequence[Erasure]) -> Tops:
    """Return the newest record of every row that has several, and what is visible now."""
    visible = np.ones(len(arranged.order), dtype=np.bool_)
    erased = erased_mask(runs)
    if erased is not None and erased.any():
        visible = erased_above(erased[arranged.order], arranged) == 0
    hide_ranges(visible, arranged, erasures, below_newest=True)
    several = np.zeros(len(visible), dtype=np.bool_)
    several[:-1] = arranged.repeats[1:]
    return np.flatnonzero(visible & several & ~arranged.repeats), visible


def taken_with_tops(runs: Sequence[Run], arranged: Arranged, keep: Mask, tops: Sequence[Tops]) -> pa.RecordBatch:
    """Return the records to `keep`, in order, with only the columns they need; `tops` are among them."""
    order = arranged.order
    types = column_types(runs)
    patterns = set_patterns(runs)
    position = np.cumsum(keep) - 1
    chosen = order[keep]
    erased = erased_mask(runs)
    columns: dict[str, pa.Array] = {ROW: arranged.rows.take(pa.array(chosen))}
    is_set = np.zeros((len(chosen), len(types)), dtype=np.bool_)
    for at, (name, kind) in enumerate(types.items()):
        sets = setters(runs, patterns, int(name))[order]
        source = chosen.copy()
        found = sets[keep]
        for places, visible in tops:
            own = places[keep[places]]
            setting = _first_from(own, np.flatnonzero(visible & sets), arranged.row_of)
            has = setting >= 0
            into = position[own]
            source[into[has]] = order[setting[has]]
            found[into] = has
        is_set[:, at] = found
        columns[name] = end_to_end(runs, name, kind).take(pa.array(source))
    marks = None if erased is None or not erased[chosen].any() else erased[chosen]
    sets_column = set_column(is_set, [*types], marks)
    if sets_column is not None:
        columns[SET] = sets_column
    columns[TXN] = pa.array(arranged.txns[chosen])
    if marks is not None:
        columns[ERASED] = pa.array(marks)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _first_from(places: Indices, setting: Indices, row_of: Indices) -> Indices:
    """Return, for each place, the first of `setting` from it on that is in the same row, or -1."""
    if not len(setting) or not len(places):
        return np.full(len(places), -1, dtype=np.int64)
    at = np.searchsorted(setting, places)
    found = setting[np.minimum(at, len(setting) - 1)]
    found[(at == len(setting)) | (row_of[found] != row_of[places])] = -1
    return found


def count_surplus(records: pa.RecordBatch, *, is_cells: bool) -> int:
    """Return how many of the sorted records have the same identity as the one before them."""
    if records.num_rows < 2:
        return 0
    same: pa.Array | None = None
    for name in (ROW, FAMILY, QUALIFIER) if is_cells else (ROW,):
        column = records.column(name)
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        alike = pc.fill_null(pc.equal(before, after), False)
        same = alike if same is None else pc.and_(same, alike)
    return int(pc.sum(same).as_py())


def firsts_of_rows(run: Run, share_max: float = 1.0) -> Run:
    """Return the newest record of every row, and all erasures: what a reader of topped records needs.

    The run itself, if that would be more than `share_max` of it: then it is quicker to merge all.
    """
    rows = run.column(ROW)
    assert rows is not None
    if len(rows) < 2:
        return run
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = pc.not_equal(rows.slice(1), rows.slice(0, len(rows) - 1)).to_numpy(zero_copy_only=False)
    if first.all() or first.sum() > share_max * len(rows):
        return run
    erased = run.column(ERASED)
    if erased is not None:
        first |= pc.fill_null(erased, False).to_numpy(zero_copy_only=False)
    return Run(run.records.filter(pa.array(first)), run.txn)
