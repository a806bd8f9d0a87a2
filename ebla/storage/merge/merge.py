"""The merge: many sorted runs of one group in, what a reader sees at one snapshot out.

Both layouts go through the same steps, on whole arrays:

    1. order      all records by identity, newest first               (arrange.py)
    2. hide       what is erased, range-erased, expired or too new
    3. choose     per identity, or per column of it, the newest that is left
    4. take       the chosen values

An identity is the row in a columns group, and row, family and qualifier in a cells group. A record is hidden by an
erasure with a greater txn; order between runs comes from the txn alone, never from the order of the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.clock import COUNTER_BITS
from ebla.model.order import Indices, Mask, equal_neighbours
from ebla.model.projection import version_type
from ebla.storage.merge.arrange import (
    Arranged,
    Txns,
    arrange_cells,
    arrange_rows,
    changes,
    concat,
    end_to_end,
    erased_mask,
    need,
    newest_runs_first,
)
from ebla.storage.merge.column_sets import set_patterns, setters
from ebla.storage.merge.erasure_cover import erased_above, hidden_cells, hide_ranges
from ebla.storage.merge.rules import Rules, kept_versions
from ebla.storage.merge.short_merge import merge_few
from ebla.storage.record.records import FAMILY, QUALIFIER, ROW, TIMESTAMP, VALUE, Run


@dataclass(frozen=True, slots=True)
class MergedColumns:
    """The visible rows of a columns group and their columns by field id: values, or lists of versions."""

    rows: pa.Array
    columns: Mapping[int, pa.Array]


@dataclass(frozen=True, slots=True)
class MergedCells:
    """The visible cells of a cells group in order, and for each the number of its row among `rows`."""

    rows: pa.Array
    row_of: Indices
    family: pa.Array
    qualifier: pa.Array
    timestamp: pa.Array
    txn: pa.Array
    value: pa.Array


# --- columns groups ------------------------------------------------------------------------------


def merge_columns(
    runs: Sequence[Run],
    types: Mapping[int, pa.DataType],
    rules: Rules,
    *,
    limit: int | None = None,
    short_way: bool = True,
) -> MergedColumns:
    """Merge runs of a columns group. `types` names the columns wanted, by field id, with their types.

    A few records go a shorter way, to the same answer. To a caller who needs no more than `limit` rows, the first ones,
    more may be given.
    """
    runs = newest_runs_first(_visible_runs(runs, rules))
    if not runs:
        return _no_columns(types, rules)
    if short_way and rules.versions == 1 and not rules.erasures and not rules.expires_alone:
        found = merge_few(runs, types, limit)
        if found is not None:
            return MergedColumns(*found)
    arranged = arrange_rows(runs)
    order, starts, row_of = arranged.order, np.flatnonzero(~arranged.repeats), arranged.row_of
    visible = _visible(runs, arranged, rules)
    exists: Mask | None = None
    if visible is not None:
        exists = np.zeros(len(starts), dtype=np.bool_)
        exists[row_of[visible]] = True
        if exists.all():
            exists = None
    chooser = _Chooser(runs, arranged, visible, exists)
    row_txns = _newest_txns(arranged, visible) if rules.keeps_one and rules.versions > 1 else None
    columns = {}
    for field_id, kind in types.items():
        name = str(field_id)
        whole = end_to_end(runs, name, kind)
        present = tuple(name in run.records.schema.names for run in runs)
        if rules.versions == 1:
            columns[field_id] = _take(whole, chooser.newest(field_id, present))
        else:
            chosen = chooser.all(field_id, present)
            columns[field_id] = _versions(whole, kind, arranged.txns, chosen, rules, row_txns)
    leads = order[starts] if exists is None else order[starts[exists]]
    return MergedColumns(arranged.rows.take(pa.array(leads)), columns)


def _no_columns(types: Mapping[int, pa.DataType], rules: Rules) -> MergedColumns:
    shape = {i: version_type(kind) if rules.versions > 1 else kind for i, kind in types.items()}
    return MergedColumns(pa.array([], pa.binary()), {i: pa.array([], kind) for i, kind in shape.items()})


class _Chooser:
    """Finds, per row, the records that set a column; columns set by the same records share the answer."""

    def __init__(self, runs: Sequence[Run], arranged: Arranged, visible: Mask | None, exists: Mask | None) -> None:
        self._runs = runs
        self._order = arranged.order
        self._repeats = arranged.repeats
        self._groups = arranged.row_of
        self._visible = visible
        self._count = int(arranged.row_of[-1]) + 1
        self._exists = exists
        self._patterns = set_patterns(runs)
        self._known: dict[object, Indices] = {}

    def newest(self, field_id: int, present: tuple[bool, ...]) -> Indices:
        """Return, for every row that exists, the record that sets the column, or -1."""
        key = present if self._patterns is None else (field_id, present)
        found = self._known.get(key)
        if found is None and self._visible is None and self._patterns is None and all(present):
            found = self._known[key] = self._order[~self._repeats]
        elif found is None:
            places = self._places(field_id, present)
            groups = self._groups[places]
            leads = np.ones(len(places), dtype=np.bool_)
            leads[1:] = groups[1:] != groups[:-1]
            found = np.full(self._count, -1, dtype=np.int64)
            found[groups[leads]] = self._order[places[leads]]
            if self._exists is not None:
                found = found[self._exists]
            self._known[key] = found
        return found

    def all(self, field_id: int, present: tuple[bool, ...]) -> tuple[Indices, Indices, int]:
        """Return every record that sets the column, newest first per row; the row of each; and the number of rows."""
        places = self._places(field_id, present)
        groups = self._groups[places]
        count = self._count
        if self._exists is not None:
            renumber = np.cumsum(self._exists) - 1
            groups, count = renumber[groups], int(self._exists.sum())
        return self._order[places], groups, count

    def _places(self, field_id: int, present: tuple[bool, ...]) -> Indices:
        sets: Mask | None = None
        if self._patterns is not None or not all(present):
            sets = setters(self._runs, self._patterns, field_id)[self._order]
        if sets is None and self._visible is None:
            return np.arange(len(self._order))
        if sets is None:
            sets = self._visible
        elif self._visible is not None:
            sets = sets & self._visible
        assert sets is not None
        return np.flatnonzero(sets)


def _newest_txns(arranged: Arranged, visible: Mask | None) -> Txns:
    """Return, for every row that exists, the txn of its newest visible record."""
    places = np.arange(len(arranged.order)) if visible is None else np.flatnonzero(visible)
    leads = places[changes(arranged.row_of[places])]
    txns: Txns = arranged.txns[arranged.order[leads]]
    return txns


def _versions(
    whole: pa.Array,
    kind: pa.DataType,
    txns: Txns,
    chosen: tuple[Indices, Indices, int],
    rules: Rules,
    row_txns: Txns | None,
) -> pa.Array:
    indices, groups, count = chosen
    keep = kept_versions(groups, txns[indices] >> COUNTER_BITS, rules, repeated=txns[indices])
    indices, groups = indices[keep], groups[keep]
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(groups, minlength=count), out=offsets[1:])
    taken_txns = txns[indices] if row_txns is None else row_txns[groups]
    structs = pa.StructArray.from_arrays(
        [
            whole.take(pa.array(indices)),
            pa.array(taken_txns),
            pa.array(taken_txns >> COUNTER_BITS).cast(pa.timestamp("us")),
        ],
        fields=list(version_type(kind).value_type),
    )
    return pa.ListArray.from_arrays(pa.array(offsets), structs, type=version_type(kind))


# --- cells groups --------------------------------------------------------------------------------


def merge_cells(runs: Sequence[Run], rules: Rules) -> MergedCells:
    """Merge runs of a cells group."""
    runs = _visible_runs(runs, rules)
    if not runs:
        return _no_cells()
    cells = arrange_cells(runs)
    order, row_of, stamps = cells.order, cells.row_of, cells.stamps
    visible = np.ones(len(order), dtype=np.bool_)
    erased = erased_mask(runs)
    if erased is not None:
        marks = erased[order]
        visible = ~(marks | hidden_cells(cells, marks))
    hide_ranges(visible, cells, rules.erasures, rules.as_of)
    places = np.flatnonzero(visible)
    keep = kept_versions(cells.identity[places], stamps[places], rules, repeated=stamps[places])
    places = places[keep]
    chosen = order[places]
    numbers, leads = np.unique(row_of[places], return_index=True)
    take = pa.array(chosen)
    family, qualifier, timestamp, value = (
        cells.columns[name].take(take) for name in (FAMILY, QUALIFIER, TIMESTAMP, VALUE)
    )
    return MergedCells(
        rows=cells.rows.take(pa.array(chosen[leads])),
        row_of=np.searchsorted(numbers, row_of[places]),
        family=family,
        qualifier=qualifier,
        timestamp=timestamp,
        txn=pa.array(cells.txns[chosen]),
        value=value,
    )


def cells_as_they_are(runs: Sequence[Run]) -> MergedCells:
    """Return consecutive runs as if they had been merged: they have one record per cell, and nothing is hidden."""
    rows, family, qualifier, timestamp, value = (
        concat([need(run, name) for run in runs]) for name in (ROW, FAMILY, QUALIFIER, TIMESTAMP, VALUE)
    )
    begins = np.ones(len(rows), dtype=np.bool_)
    begins[1:] = ~equal_neighbours(rows)
    return MergedCells(
        rows=rows.take(pa.array(np.flatnonzero(begins))),
        row_of=np.cumsum(begins) - 1,
        family=family,
        qualifier=qualifier,
        timestamp=timestamp,
        txn=pa.array(np.concatenate([run.txns() for run in runs])),
        value=value,
    )


def _no_cells() -> MergedCells:
    text, numbers = pa.array([], pa.string()), pa.array([], pa.int64())
    empty = pa.array([], pa.binary())
    return MergedCells(empty, np.zeros(0, dtype=np.int64), text, text, numbers, numbers, empty)


# --- steps that both layouts share ---------------------------------------------------------------


def _take(values: pa.Array, indices: Indices) -> pa.Array:
    missing = indices < 0
    if missing.any():
        return values.take(pa.array(indices, mask=missing))
    return pc.take(values, pa.array(indices), boundscheck=False)


def _visible_runs(runs: Sequence[Run], rules: Rules) -> list[Run]:
    """Leave out what is newer than the snapshot."""
    kept = []
    for run in runs:
        if run.txn is not None:
            if run.txn <= rules.as_of and len(run):
                kept.append(run)
            continue
        mask = run.txns() <= rules.as_of
        if mask.all():
            if len(run):
                kept.append(run)
        elif mask.any():
            kept.append(Run(run.records.filter(pa.array(mask))))
    return kept


def _visible(runs: Sequence[Run], arranged: Arranged, rules: Rules) -> Mask | None:
    """Tell which records of a columns group, in order, are not hidden; None if all are seen."""
    erased = erased_mask(runs)
    if erased is None and not rules.erasures and not rules.expires_alone:
        return None
    order = arranged.order
    visible = np.ones(len(order), dtype=np.bool_)
    if erased is not None and erased.any():
        visible = erased_above(erased[order], arranged) == 0
    if rules.expires_alone and rules.expired_before is not None:
        visible &= (arranged.txns[order] >> COUNTER_BITS) >= rules.expired_before
    hide_ranges(visible, arranged, rules.erasures, rules.as_of)
    return None if visible.all() else visible
