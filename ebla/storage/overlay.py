"""A few newer records over many older rows: the merge of a short scan, in fewer steps than the merge of a long one.

    base      the oldest run: one whole record per row, all of them older than any other
    overlay   the records of all other runs, a few dozen

The general merge costs some ten calls per column whatever the size, which for a hundred rows is nearly all it costs.
Here the overlay is walked record by record, and a column that nobody changed is the base's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa

from ebla.storage.records import ERASED, ROW, SET, TXN, Run

BASE_RECORDS_MAX = 2_048
OVERLAY_RECORDS_MAX = 1_024


def overlaid(runs: Sequence[Run], types: Mapping[int, pa.DataType]) -> tuple[pa.Array, dict[int, pa.Array]] | None:
    """Return the rows and the newest values of their columns; None where that takes the general merge.

    All records are to be seen: none is too new, erased or expired. The newest run comes first.
    """
    if len(runs[-1]) > BASE_RECORDS_MAX or sum(map(len, runs[:-1])) > OVERLAY_RECORDS_MAX:
        return None
    base, *others = [_columns(run) for run in (runs[-1], *runs[:-1])]
    sets = base.get(SET)
    if any(ERASED in columns for columns in (base, *others)) or (sets is not None and sets.null_count < len(sets)):
        return None
    rows = base[ROW]
    base_rows: list[bytes] = rows.to_pylist()
    if not all(a < b for a, b in pairwise(base_rows)):
        return None
    places = {row: at for at, row in enumerate(base_rows)}
    records = _newest_first(list(zip(runs[:-1], others, strict=True)), len(base_rows))
    base_txns = runs[-1].txns()
    if (
        records
        and records[-1][0] <= base_txns.max()
        and any(row in places and txn <= base_txns[places[row]] for txn, row, _, _ in records)
    ):
        return None
    changed: dict[str, dict[bytes, int]] = {str(field_id): {} for field_id in types}
    new_rows: set[bytes] = set()
    for _, row, place, names in records:
        if row not in places:
            new_rows.add(row)
        for name in names:
            if name in changed:
                changed[name].setdefault(row, place)
    sources = np.arange(len(base_rows), dtype=np.int64)
    if new_rows:
        base_rows = sorted([*base_rows, *new_rows])
        sources = np.fromiter((places.get(row, -1) for row in base_rows), np.int64, len(base_rows))
        places = {row: at for at, row in enumerate(base_rows)}
        rows = pa.array(base_rows, pa.binary())
    found = {}
    for field_id, kind in types.items():
        name = str(field_id)
        updates = changed[name]
        if not updates and not new_rows:
            found[field_id] = base[name] if name in base else pa.nulls(len(base_rows), kind)
            continue
        taken = sources.copy()
        for row, place in updates.items():
            taken[places[row]] = place
        parts = [one[name] if name in one else pa.nulls(len(one[ROW]), kind) for one in (base, *others)]
        found[field_id] = pa.concat_arrays(parts).take(pa.array(taken, mask=taken < 0) if new_rows else pa.array(taken))
    return rows, found


def _columns(run: Run) -> dict[str, pa.Array]:
    records = run.records
    columns = dict(zip(records.schema.names, records.columns, strict=True))
    if isinstance(records, pa.RecordBatch):
        return columns
    return {name: column.combine_chunks() for name, column in columns.items()}


def _newest_first(
    runs: Sequence[tuple[Run, Mapping[str, pa.Array]]], begin: int
) -> list[tuple[int, bytes, int, Collection[str]]]:
    """Return the records of runs that lie end to end from `begin` on, as (txn, row, place, columns it sets)."""
    records: list[tuple[int, bytes, int, Collection[str]]] = []
    for run, columns in runs:
        whole = [name for name in columns if not name.startswith("_")]
        count = len(run)
        sets = columns.get(SET)
        named: list[Collection[str]] = [whole] * count
        if sets is not None:
            # Few lists come again and again. What a reference does not count is not among the columns.
            lists: dict[str | None, Collection[str]] = {None: whole}
            for text in sets.unique().to_pylist():
                lists[text] = whole if text is None else [name for name in text.split() if name in columns]
            named = [lists[text] for text in sets.to_pylist()]
        txns = [run.txn] * count if run.txn is not None else columns[TXN].to_pylist()
        records += zip(txns, columns[ROW].to_pylist(), range(begin, begin + count), named, strict=True)
        begin += count
    # Of records that share a txn, as those of a stacked run do, the first is the newest: the sort is stable.
    records.sort(key=_txn_of, reverse=True)
    return records


_txn_of = itemgetter(0)
