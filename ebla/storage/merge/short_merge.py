"""The merge of a few records: what a short scan needs, in fewer steps than the merge of many.

    runs      a: 1 2 . .     newest first     rows   a    b    c   (as many as are wanted)
              b: . 7 3 .                      whole  a0   b1   c0  the newest record that says everything
              c: . . 4 9                      newer  c3           columns that later records changed

The general merge costs some ten calls per column whatever the size, which for a hundred rows is nearly all it costs.
Here records are walked one by one. Where all rows are in the oldest run, as they mostly are, its columns are the answer
but for the values that are newer; else all columns of the rows found are taken in one call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa

from ebla.storage.record.records import ERASED, ROW, SET, Run

__all__ = ["RECORDS_MAX", "merge_few"]

RECORDS_MAX = 2_048

# A record on the walk: its txn, its row, its place among all records, and the columns it sets, None for all.
Walked = tuple[int, bytes, int, "Sequence[str] | None"]


def merge_few(
    runs: Sequence[Run], types: Mapping[int, pa.DataType], limit: int | None = None
) -> tuple[pa.Array, dict[int, pa.Array]] | None:
    """Return the rows and the newest values of their columns; None where that takes the general merge.

    All records are to be seen: none is too new, erased or expired. Of records of one row that share a txn, the first
    one of the first run counts. With a `limit`, no more rows than that are merged.
    """
    if sum(map(len, runs)) > RECORDS_MAX or any(ERASED in run.records.schema.names for run in runs):
        return None
    keys: Sequence[list[bytes]] = [_rows(run) for run in runs]
    if limit is not None:
        runs, keys = _first_rows(runs, keys, limit)
    records = _newest_first(runs[:-1], keys[:-1], types)
    if _is_base(runs[-1], keys[-1], records):
        patches = _patches(records, keys[-1], types)
        if patches is not None:
            return _patched(runs, types, patches)
    combined = _combined(runs, types)
    whole, newer, rows = _walk(_newest_first(runs, keys, types))
    order = sorted(rows)
    places = np.fromiter((whole.get(row, -1) for row in order), np.int64, len(order))
    found = combined.take(_indices(places))
    columns = dict(zip(types, found.columns[1:], strict=True))
    for name, changed in newer.items():
        ours = places.copy()
        for row, place in changed.items():
            ours[bisect_left(order, row)] = place
        columns[int(name)] = combined.column(name).take(_indices(ours))
    return found.column(0) if len(whole) == len(rows) else pa.array(order, pa.binary()), columns


# --- a few records over rows that are all there --------------------------------------------------


def _is_base(run: Run, rows: Sequence[bytes], newer: Sequence[Walked]) -> bool:
    """Tell whether a run has one whole record per row, all of them older than the others."""
    if not rows or not all(a < b for a, b in pairwise(rows)) or _is_partial(run):
        return False
    newest = run.txn if run.txn is not None else int(run.txns().max())
    return not newer or newer[-1][0] > newest


def _patches(
    records: Sequence[Walked], rows: Sequence[bytes], types: Mapping[int, pa.DataType]
) -> dict[int, dict[int, int]] | None:
    """Return by column which of the `rows` get their value from which record; None if there is a row beside them.

    Records are counted from the end of the rows on.
    """
    patches: dict[int, dict[int, int]] = {}
    everything = [str(field_id) for field_id in types]
    for _, row, place, names in records:
        at = bisect_left(rows, row)
        if at == len(rows) or rows[at] != row:
            return None
        for name in everything if names is None else names:
            patches.setdefault(int(name), {}).setdefault(at, len(rows) + place)
    return patches


def _patched(
    runs: Sequence[Run], types: Mapping[int, pa.DataType], patches: Mapping[int, Mapping[int, int]]
) -> tuple[pa.Array, dict[int, pa.Array]]:
    """Return the rows of the last run with some values from the others. A column without such is its own."""
    *others, base = runs
    own = np.arange(len(base), dtype=np.int64)
    columns = {}
    for field_id, kind in types.items():
        changed = patches.get(field_id)
        if changed is None:
            columns[field_id] = _column(base, field_id, kind)
            continue
        places = own.copy()
        places[list(changed)] = list(changed.values())
        arrays = [_column(run, field_id, kind) for run in (base, *others)]
        columns[field_id] = pa.concat_arrays(arrays).take(pa.array(places))
    rows = base.column(ROW)
    assert rows is not None
    return rows, columns


def _column(run: Run, field_id: int, kind: pa.DataType) -> pa.Array:
    found = run.column(str(field_id))
    return pa.nulls(len(run), kind) if found is None else found


# --- any records ---------------------------------------------------------------------------------


def _rows(run: Run) -> list[bytes]:
    rows = run.column(ROW)
    assert rows is not None
    found: list[bytes] = rows.to_pylist()
    return found


def _first_rows(
    runs: Sequence[Run], keys: Sequence[list[bytes]], limit: int
) -> tuple[Sequence[Run], Sequence[list[bytes]]]:
    """Cut off what lies behind so many rows."""
    distinct = sorted(set(chain.from_iterable(keys)))
    if len(distinct) <= limit:
        return runs, keys
    ends = [bisect_left(rows, distinct[limit]) for rows in keys]
    kept = [(run, rows, end) for run, rows, end in zip(runs, keys, ends, strict=True) if end]
    return [Run(run.records.slice(0, end), run.txn) for run, _, end in kept], [rows[:end] for _, rows, end in kept]


def _combined(runs: Sequence[Run], types: Mapping[int, pa.DataType]) -> pa.RecordBatch:
    """Return the rows and the columns asked for of all runs, end to end; null where a run does not have them."""
    names = [ROW, *map(str, types)]
    batches: list[pa.RecordBatch] = []
    schema: pa.Schema | None = None
    for run in runs:
        try:
            records = run.records.select(names)
        except KeyError:
            records = _filled(run.records, types)
        if schema is None:
            schema = records.schema
        elif not records.schema.equals(schema):
            records = type(records).from_arrays(records.columns, schema=schema)
        batches += [records] if isinstance(records, pa.RecordBatch) else records.to_batches()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _filled(records: pa.RecordBatch | pa.Table, types: Mapping[int, pa.DataType]) -> pa.RecordBatch | pa.Table:
    held = set(records.schema.names)
    arrays = {ROW: records.column(ROW)}
    for field_id, kind in types.items():
        name = str(field_id)
        arrays[name] = records.column(name) if name in held else pa.nulls(records.num_rows, kind)
    return type(records).from_arrays(list(arrays.values()), names=list(arrays))


def _is_partial(run: Run) -> bool:
    sets = run.column(SET)
    return sets is not None and sets.null_count < len(sets)


def _newest_first(
    runs: Sequence[Run], keys: Sequence[Sequence[bytes]], types: Mapping[int, pa.DataType]
) -> list[Walked]:
    """Return the records of runs that lie end to end, by txn."""
    records: list[Walked] = []
    begin = 0
    wanted = [str(field_id) for field_id in types]
    for run, rows in zip(runs, keys, strict=True):
        held = set(run.records.schema.names)
        count = len(rows)
        present = [name for name in wanted if name in held]
        # What a reference does not count is not among the columns.
        everything = None if len(present) == len(wanted) else present
        named: list[Sequence[str] | None] = [everything] * count
        if SET in held:
            sets = run.column(SET)
            assert sets is not None
            # Few lists come again and again.
            lists: dict[str | None, Sequence[str] | None] = {None: everything}
            for at, text in enumerate(sets.to_pylist()):
                if text not in lists:
                    lists[text] = [name for name in text.split() if name in present]
                named[at] = lists[text]
        txns = [run.txn] * count if run.txn is not None else run.txns().tolist()
        records += zip(txns, rows, range(begin, begin + count), named, strict=True)
        begin += count
    # Of records that share a txn, as those of a stacked run do, the first is the newest: the sort is stable.
    records.sort(key=itemgetter(0), reverse=True)
    return records


def _walk(records: Sequence[Walked]) -> tuple[dict[bytes, int], dict[str, dict[bytes, int]], set[bytes]]:
    """Return the newest record of each row that sets everything, what newer ones set, and all rows."""
    whole: dict[bytes, int] = {}
    newer: dict[str, dict[bytes, int]] = {}
    rows: set[bytes] = set()
    for _, row, place, names in records:
        if row in whole:
            continue
        rows.add(row)
        if names is None:
            whole[row] = place
            continue
        for name in names:
            newer.setdefault(name, {}).setdefault(row, place)
    return whole, newer, rows


def _indices(places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    missing = places < 0
    return pa.array(places, mask=missing) if missing.any() else pa.array(places)
