"""A few newer records over many older rows: the merge of a short scan, in fewer steps than the merge of a long one.

    base      the oldest run: one whole record per row, all of them older than any other
    overlay   the records of all other runs, a few dozen

The general merge costs some ten calls per column whatever the size, which for a hundred rows is nearly all it costs.
Here the overlay is walked record by record, and a column that nobody changed is the base's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ebla.storage.arrange import end_to_end
from ebla.storage.records import ERASED, ROW, SET, Run, value_names

BASE_RECORDS_MAX = 2_048
OVERLAY_RECORDS_MAX = 1_024


def overlaid(runs: Sequence[Run], types: Mapping[int, pa.DataType]) -> tuple[pa.Array, dict[int, pa.Array]] | None:
    """Return the rows and the newest values of their columns; None where that takes the general merge.

    All records are to be seen: none is too new, erased or expired. The newest run comes first.
    """
    *others, base = runs
    if len(base) > BASE_RECORDS_MAX or sum(map(len, others)) > OVERLAY_RECORDS_MAX:
        return None
    if any(ERASED in run.records.schema.names for run in runs) or _is_partial(base):
        return None
    rows = base.column(ROW)
    assert rows is not None
    base_rows: list[bytes] = rows.to_pylist()
    if not all(a < b for a, b in pairwise(base_rows)):
        return None
    records = _newest_first(others, len(base))
    places = {row: at for at, row in enumerate(base_rows)}
    if records and records[-1][0] <= int(base.txns().max()):
        base_txns = base.txns().tolist()
        if any(row in places and txn <= base_txns[places[row]] for txn, row, _, _ in records):
            return None
    names = {str(field_id) for field_id in types}
    changed: dict[str, dict[bytes, int]] = {}
    new_rows: set[bytes] = set()
    for _, row, place, sets in records:
        if row not in places:
            new_rows.add(row)
        for name in sets & names:
            changed.setdefault(name, {}).setdefault(row, place)
    sources = np.arange(len(base_rows), dtype=np.int64)
    if new_rows:
        base_rows = sorted([*base_rows, *new_rows])
        sources = np.fromiter((places.get(row, -1) for row in base_rows), np.int64, len(base_rows))
        places = {row: at for at, row in enumerate(base_rows)}
        rows = pa.array(base_rows, pa.binary())
    columns = {}
    together = [base, *others]
    for field_id, kind in types.items():
        name = str(field_id)
        updates = changed.get(name)
        own = base.column(name)
        if updates is None and not new_rows:
            columns[field_id] = pa.nulls(len(base), kind) if own is None else own
            continue
        taken = sources.copy()
        for row, place in (updates or {}).items():
            taken[places[row]] = place
        columns[field_id] = end_to_end(together, name, kind).take(pa.array(taken, mask=taken < 0))
    return rows, columns


def _is_partial(run: Run) -> bool:
    sets = run.column(SET)
    return sets is not None and sets.null_count < len(sets)


def _newest_first(runs: Sequence[Run], begin: int) -> list[tuple[int, bytes, int, frozenset[str]]]:
    """Return the records of runs that lie end to end from `begin` on, as (txn, row, place, columns it sets)."""
    records: list[tuple[int, bytes, int, frozenset[str]]] = []
    for run in runs:
        rows = run.column(ROW)
        assert rows is not None
        whole = frozenset(value_names(run.records))
        sets = run.column(SET)
        named = [whole] * len(run) if sets is None else [_ids(text, whole) for text in sets.to_pylist()]
        txns = [run.txn] * len(run) if run.txn is not None else run.txns().tolist()
        # Of records that share a txn, as those of a stacked run do, the first is the newest.
        records += zip(txns, rows.to_pylist(), range(begin, begin + len(run)), named, strict=True)
        begin += len(run)
    records.sort(key=lambda record: record[0], reverse=True)
    return records


def _ids(text: str | None, whole: frozenset[str]) -> frozenset[str]:
    return whole if text is None else whole.intersection(text.split())
