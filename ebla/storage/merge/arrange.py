"""Laying the records of several runs end to end and finding their common order: the first step of every merge.

Nothing is copied into its new order here. `order` lists the places of the records, end to end, in the order that
fragments have: by identity, then (in cells groups) newest timestamp, then newest txn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.order import Indices, Mask, common_prefix_length, newest_first, sort_rows
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, TIMESTAMP, VALUE, Run

Txns: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arranged:
    """Records of several runs of one group, and their order.

    `rows` and `txns` lie end to end, as in the runs; `order` arranges them; `repeats` and `row_of` go with the order:
    whether a record has the same row as the one before it, and the number of its row.
    """

    rows: pa.Array
    txns: Txns
    order: Indices
    repeats: Mask
    row_of: Indices


@dataclass(frozen=True, slots=True)
class ArrangedCells(Arranged):
    """The same for a cells group. `columns` lie end to end; the numbers go with the order.

    `families` and `qualifiers` number the names in their order, nulls being zero; `identity` numbers the cells.
    """

    columns: Mapping[str, pa.Array]
    families: Indices
    qualifiers: Indices
    stamps: Txns
    identity: Indices


def newest_runs_first(runs: Sequence[Run]) -> list[Run]:
    """Return the runs by their newest txn, descending.

    Records of one row then mostly lie newest first already, and a stable sort by row leaves them so.
    """
    if len(runs) < 2:
        return list(runs)
    return sorted(runs, key=lambda run: run.txn if run.txn is not None else int(run.txns().max()), reverse=True)


def arrange_rows(runs: Sequence[Run]) -> Arranged:
    """Arrange runs of a columns group: by row, newest txn first. Quickest where the newest run comes first.

    Some runs may be empty, not all.
    """
    arrays = [need(run, ROW) for run in runs]
    rows = concat(arrays)
    txns = np.concatenate([run.txns() for run in runs])
    first = min(array[0].as_py() for array in arrays if len(array))
    last = max(array[-1].as_py() for array in arrays if len(array))
    order, repeats = sort_rows(rows, common_prefix_length(first, last))
    return Arranged(rows, txns, newest_first(order, repeats, txns), repeats, np.cumsum(~repeats) - 1)


def arrange_cells(runs: Sequence[Run]) -> ArrangedCells:
    """Arrange runs of a cells group: by row, family, qualifier, newest timestamp, newest txn."""
    by_row = arrange_rows(runs)
    columns = {name: concat([need(run, name) for run in runs]) for name in (FAMILY, QUALIFIER, TIMESTAMP, VALUE)}
    order = by_row.order
    stamps: Txns = columns[TIMESTAMP].to_numpy(zero_copy_only=False)[order]
    families, qualifiers = _ranks(columns[FAMILY])[order], _ranks(columns[QUALIFIER])[order]
    code = families * (int(qualifiers.max(initial=0)) + 1) + qualifiers
    # The rows stay where they are: sorting by row number first moves records only within their row. A complement turns
    # the order of timestamps around, also for the smallest, which has no negative.
    within = np.lexsort((-by_row.txns[order], ~stamps, code, by_row.row_of))
    code = code[within]
    return ArrangedCells(
        by_row.rows,
        by_row.txns,
        order[within],
        by_row.repeats,
        by_row.row_of,
        columns,
        families[within],
        qualifiers[within],
        stamps[within],
        np.cumsum(changes(by_row.row_of) | changes(code)) - 1,
    )


def changes(values: Indices) -> Mask:
    """Tell where a value differs from the one before it; the first always does."""
    differs = np.ones(len(values), dtype=np.bool_)
    differs[1:] = values[1:] != values[:-1]
    return differs


def concat(arrays: Sequence[pa.Array]) -> pa.Array:
    """Return the arrays end to end as one."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def end_to_end(runs: Sequence[Run], name: str, kind: pa.DataType) -> pa.Array:
    """Return one column of all runs as one array, copied once at most; nulls where a run does not have it."""
    arrays: list[pa.Array] = []
    for run in runs:
        at = run.records.schema.get_field_index(name)
        if at < 0:
            arrays.append(pa.nulls(len(run), kind))
            continue
        column = run.records.column(at)
        arrays.extend(column.chunks if isinstance(column, pa.ChunkedArray) else [column])
    return concat(arrays)


def erased_mask(runs: Sequence[Run]) -> Mask | None:
    """Tell which records, end to end, are erasures; None if no run has any."""
    columns = [run.column(ERASED) for run in runs]
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.zeros(len(run), dtype=np.bool_)
            if column is None
            else pc.fill_null(column, False).to_numpy(zero_copy_only=False)
            for run, column in zip(runs, columns, strict=True)
        ]
    )


def need(run: Run, name: str) -> pa.Array:
    """Return a column that all records have, with its values and not with numbers of them."""
    column = run.column(name)
    assert column is not None, f"records of this group have a column {name}"
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def _ranks(column: pa.Array) -> Indices:
    """Number the values of a column in their order from one; nulls are zero."""
    encoded = column.dictionary_encode()
    by_value = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(by_value) + 1, dtype=np.int64)
    ranks[by_value] = np.arange(1, len(by_value) + 1)
    ranks[len(by_value)] = 0
    numbers: Indices = ranks[pc.fill_null(encoded.indices, len(by_value)).to_numpy(zero_copy_only=False)]
    return numbers
