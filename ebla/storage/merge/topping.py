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

from ebla.model.order import Indices, Mask, lower_bound
from ebla.storage.merge.arrange import Arranged, arrange_rows, end_to_end, erased_mask
from ebla.storage.merge.merge import Erasure, set_patterns, setters
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TXN, Run, value_names

__all__ = ["Tops", "count_surplus", "firsts_of_rows", "newest", "sets_differ", "taken_with_tops", "top_batch"]

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


def sets_differ(runs: Sequence[Run]) -> bool:
    """Tell whether some records may set other columns than others do: else there is nothing to take over."""
    columns = {frozenset(value_names(run.records)) for run in runs}
    return len(columns) > 1 or any(SET in run.records.schema.names for run in runs)


def newest(runs: Sequence[Run], arranged: Arranged, erasures: Sequence[Erasure]) -> Tops:
    """Return the newest record of every row that has several, and what is visible now."""
    visible = np.ones(len(arranged.order), dtype=np.bool_)
    erased = erased_mask(runs)
    if erased is not None and erased.any():
        marks = erased[arranged.order].astype(np.int64)
        total = np.cumsum(marks)
        before = (total - marks)[~arranged.repeats]
        visible = (total - before[arranged.row_of]) == 0
    _hide_below_newest(visible, arranged, erasures)
    several = np.zeros(len(visible), dtype=np.bool_)
    several[:-1] = arranged.repeats[1:]
    return np.flatnonzero(visible & several & ~arranged.repeats), visible


def _hide_below_newest(visible: Mask, arranged: Arranged, erasures: Sequence[Erasure]) -> None:
    """Hide what range erasures cover of the rows that have something newer than them."""
    if not erasures:
        return
    ordered = arranged.rows.take(pa.array(arranged.order))
    txns = arranged.txns[arranged.order]
    newest_txns = txns[~arranged.repeats][arranged.row_of]
    for erasure in erasures:
        begin = lower_bound(ordered, erasure.first)
        end = len(ordered) if erasure.last is None else lower_bound(ordered, erasure.last)
        visible[begin:end] &= (txns[begin:end] >= erasure.txn) | (newest_txns[begin:end] < erasure.txn)


def taken_with_tops(runs: Sequence[Run], arranged: Arranged, keep: Mask, tops: Sequence[Tops]) -> pa.RecordBatch:
    """Return the records to `keep`, in order, with only the columns they need; `tops` are among them."""
    order = arranged.order
    kinds: dict[str, pa.DataType] = {}
    for run in runs:
        for name in value_names(run.records):
            kinds.setdefault(name, run.records.schema.field(name).type)
    names = sorted(kinds, key=int)
    patterns = set_patterns(runs)
    position = np.cumsum(keep) - 1
    chosen = order[keep]
    erased = erased_mask(runs)
    columns: dict[str, pa.Array] = {ROW: arranged.rows.take(pa.array(chosen))}
    is_set = np.zeros((len(chosen), len(names)), dtype=np.bool_)
    for at, name in enumerate(names):
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
        columns[name] = end_to_end(runs, name, kinds[name]).take(pa.array(source))
    marks = None if erased is None or not erased[chosen].any() else erased[chosen]
    sets_column = _set_column(is_set, names, marks)
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


def _set_column(is_set: Mask, names: Sequence[str], erased: Mask | None) -> pa.Array | None:
    """Return `_set` for records that set these of the columns; None if all of them set all."""
    whole = is_set.all(axis=1)
    if erased is not None:
        whole = whole | erased  # an erasure sets nothing, and need not say so
    if whole.all():
        return None
    packed = np.packbits(is_set, axis=1)
    patterns, which = np.unique(packed, axis=0, return_inverse=True)
    texts = [
        " ".join(name for name, bit in zip(names, np.unpackbits(pattern)[: len(names)], strict=True) if bit)
        for pattern in patterns
    ]
    return pa.array(texts, pa.string()).take(pa.array(which.reshape(-1), mask=whole))


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
