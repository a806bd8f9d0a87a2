"""Parts of one record: what a commit wrote to one row of a columns group, and lies in several places.

A commit writes one record to each group. When columns move, records of one commit come together in one group, from the
files of several:

    txn 7    x: sets a         move b to x         x: sets a   (file 1)
             y: sets b                                sets b   (file 2)         two parts of one record

Readers do not mind, for they choose column by column. Whoever writes a file makes one record of the parts. A record
that is met twice, as after a flush that was repeated, is the same with parts that are alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ebla.model.order import Indices
from ebla.storage.merge.arrange import Arranged, arrange_rows, changes, end_to_end, erased_mask
from ebla.storage.merge.column_sets import column_types, set_column, set_patterns, sets_differ, setters
from ebla.storage.record.records import ERASED, ROW, SET, TXN, Run

__all__ = ["are_apart", "join_parts"]


def are_apart(runs: Sequence[Run], arranged: Arranged) -> bool:
    """Tell whether some records lie in parts that may set different columns."""
    if not arranged.repeats.any() or not sets_differ(runs):
        return False
    return not (~arranged.repeats | changes(arranged.txns[arranged.order])).all()


def join_parts(runs: Sequence[Run]) -> pa.RecordBatch:
    """Return the records of several runs in order, those of one row and one commit as one.

    Where one part is an erasure and another is not, the record counts: a replacement erases a row in one group and
    writes it to another.
    """
    arranged = arrange_rows(runs)
    order = arranged.order
    txns = arranged.txns[order]
    leads = changes(arranged.row_of) | changes(txns)
    identity: Indices = np.cumsum(leads) - 1
    count = int(identity[-1]) + 1
    patterns = set_patterns(runs)
    columns: dict[str, pa.Array] = {ROW: arranged.rows.take(pa.array(order[leads])), TXN: pa.array(txns[leads])}
    erased = erased_mask(runs)
    is_written = np.ones(count, dtype=np.bool_)
    if erased is not None and erased.any():
        is_written[:] = False
        is_written[identity[~erased[order]]] = True
        if not is_written.all():
            columns[ERASED] = pa.array(~is_written)
    types = column_types(runs)
    is_set = np.zeros((count, len(types)), dtype=np.bool_)
    for at, (name, kind) in enumerate(types.items()):
        own = setters(runs, patterns, int(name))
        if erased is not None:
            own &= ~erased
        places = np.flatnonzero(own[order])
        first = places[changes(identity[places])] if len(places) else places
        chosen = np.full(count, -1, dtype=np.int64)
        chosen[identity[first]] = order[first]
        is_set[:, at] = chosen >= 0
        columns[name] = end_to_end(runs, name, kind).take(pa.array(chosen, mask=chosen < 0))
    sets = set_column(is_set, [*types], ~is_written) if types else pa.array([""] * count, pa.string())
    if sets is not None:
        columns[SET] = sets
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
