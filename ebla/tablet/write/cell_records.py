"""Records of cells: sorted by row, family, qualifier and timestamp, each once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ebla.model.order import Indices, sort_rows
from ebla.storage.merge.arrange import arrange_cells, changes
from ebla.storage.record.records import (
    ERASED,
    FAMILY,
    QUALIFIER,
    ROW,
    TIMESTAMP,
    TIMESTAMP_MAX,
    TXN,
    VALUE,
    Run,
)

__all__ = [
    "AT_COMMIT",
    "FEW_CELLS_MAX",
    "batch_of",
    "cell_marks",
    "distinct_cells",
    "distinct_few_cells",
    "distinct_many_cells",
    "in_place",
    "sorted_by_row",
]

# Stands for "the commit's own time" while records are sorted; no user may give it.
AT_COMMIT = TIMESTAMP_MAX - 1
# So many cells are put in order one by one.
FEW_CELLS_MAX = 32


def cell_marks(rows: pa.Array, family: str | None, qualifier: str | None) -> pa.RecordBatch:
    """Return erasures of a cell, of a family (no qualifier) or of the whole row (no family either)."""
    count = len(rows)
    return batch_of(
        {
            ROW: rows,
            FAMILY: pa.array([family], pa.string()).take(pa.array(np.zeros(count, dtype=np.int64))),
            QUALIFIER: pa.array([qualifier], pa.string()).take(pa.array(np.zeros(count, dtype=np.int64))),
            TIMESTAMP: pa.array(np.full(count, TIMESTAMP_MAX, dtype=np.int64)),
            ERASED: pa.array(np.ones(count, dtype=np.bool_)),
            VALUE: pa.nulls(count, pa.binary()),
        }
    )


def distinct_cells(records: pa.RecordBatch) -> tuple[pa.RecordBatch, bool]:
    """Sort cells; of several for one identity and timestamp keep the last. Tell whether identities are unique now."""
    if records.num_rows <= FEW_CELLS_MAX:
        return distinct_few_cells(records)
    return distinct_many_cells(records)


def distinct_few_cells(records: pa.RecordBatch) -> tuple[pa.RecordBatch, bool]:
    """Do `distinct_cells` for the cells of a row or two, one by one: calls of Arrow would cost more than they do."""
    if records.num_rows == 1:
        return records, True
    rows, stamps = records.column(ROW).to_pylist(), records.column(TIMESTAMP).to_pylist()
    # None, of erasures, stands first.
    families, qualifiers = (
        [(value is not None, value or "") for value in records.column(name).to_pylist()] for name in (FAMILY, QUALIFIER)
    )
    identities = list(zip(rows, families, qualifiers, strict=True))
    last = {(identity, -stamp): place for place, (identity, stamp) in enumerate(zip(identities, stamps, strict=True))}
    places = [last[cell] for cell in sorted(last)]
    ordered = records if places == list(range(len(rows))) else records.take(pa.array(places, pa.int64()))
    return ordered, len(set(identities)) == len(places)


def distinct_many_cells(records: pa.RecordBatch) -> tuple[pa.RecordBatch, bool]:
    """Do `distinct_cells` for any number of cells, on whole arrays."""
    numbered = records.append_column(TXN, pa.array(np.arange(records.num_rows, dtype=np.int64)))
    cells = arrange_cells([Run(sorted_by_row(numbered))])
    lead = changes(cells.identity) | changes(cells.stamps)
    ordered = sorted_by_row(records).take(pa.array(cells.order[lead]))
    return ordered, int(cells.identity[-1]) + 1 == ordered.num_rows


def sorted_by_row(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records in the order of their rows, those of a row as they were."""
    order, _ = sort_rows(records.column(ROW))
    return records if in_place(order, records.num_rows) else records.take(pa.array(order))


def batch_of(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """Return arrays as a batch."""
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def in_place(order: Indices, count: int) -> bool:
    """Tell whether an order leaves all of so many records where they are."""
    return len(order) == count and not order[:1].any() and bool((order[1:] > order[:-1]).all())
