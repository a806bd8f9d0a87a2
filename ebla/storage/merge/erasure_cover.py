"""What erasures hide: the one place that decides it, for the merge, for topping and for compaction.

A record is hidden by an erasure of its row, of its family or of its cell, or of a range that its row is in, if the txn
of the erasure is greater than its own. Records stand in the order of arrange.py, by row and newest first; so an erasure
of a row hides what follows it in the row, and a range erasure hides some of one piece of the order.

    columns group      erased_above     erasures that stand over a record in its row
    cells group        hidden_cells     erasures of row, family and cell, each up to a time
    both               hide_ranges      erasures of ranges, which are not records
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from ebla.model.order import Indices, Mask, lower_bound
from ebla.storage.merge.arrange import Arranged, ArrangedCells, changes
from ebla.storage.record.records import TIMESTAMP_MAX

__all__ = ["TXN_MAX", "Erasure", "erased_above", "hidden_cells", "hide_ranges"]

TXN_MAX = (1 << 63) - 1


class Erasure(Protocol):
    """A range erasure: hides what is older than `txn` in [first, last)."""

    @property
    def first(self) -> bytes: ...  # noqa: D102
    @property
    def last(self) -> bytes | None: ...  # noqa: D102
    @property
    def txn(self) -> int: ...  # noqa: D102


def erased_above(marks: Mask, arranged: Arranged) -> Indices:
    """Count, for every record of a columns group, the erasures at it and above it in its row. It is seen if none is.

    `marks` tells which records are erasures; like the answer, it goes with the order.
    """
    total: Indices = np.cumsum(marks)
    before: Indices = (total - marks)[~arranged.repeats]
    return total - before[arranged.row_of]


def hidden_cells(cells: ArrangedCells, marks: Mask) -> Mask:
    """Tell which cells are under an erasure of their cell, family or row with a greater txn and no older timestamp.

    `marks` tells which records are erasures; like the answer, it goes with the order.
    """
    families, qualifiers, stamps = cells.families, cells.qualifiers, cells.stamps
    txns = cells.txns[cells.order]
    hidden = np.zeros(len(txns), dtype=np.bool_)
    new_row = changes(cells.row_of)
    new_family = new_row | changes(families)
    new_cell = new_family | changes(qualifiers)
    levels = (
        (new_row, marks & (families == 0)),
        (new_family, marks & (families > 0) & (qualifiers == 0)),
        (new_cell, marks & (qualifiers > 0)),
    )
    for begins, erasing in levels:
        if not erasing.any():
            continue
        covers = np.cumsum(begins) - 1
        places = np.flatnonzero(erasing & (stamps == TIMESTAMP_MAX))
        newest = np.full(int(covers[-1]) + 1, -1, dtype=np.int64)
        np.maximum.at(newest, covers[places], txns[places])
        hidden |= txns < newest[covers]
        # An erasure with a timestamp of its own is rare, and hides only what is not newer than that.
        for place in np.flatnonzero(erasing & (stamps != TIMESTAMP_MAX)):
            hidden |= (covers == covers[place]) & (txns < txns[place]) & (stamps <= stamps[place])
    return hidden


def hide_ranges(
    visible: Mask,
    arranged: Arranged,
    erasures: Sequence[Erasure],
    as_of: int = TXN_MAX,
    *,
    below_newest: bool = False,
) -> None:
    """Hide what range erasures up to `as_of` cover; the order is by row, so each covers one piece of it.

    With `below_newest`, an erasure that is newer than all of a row hides nothing of the row.
    """
    if not erasures:
        return
    ordered = arranged.rows.take(pa.array(arranged.order))
    txns = arranged.txns[arranged.order]
    newest = txns[~arranged.repeats][arranged.row_of] if below_newest else None
    for erasure in erasures:
        if erasure.txn > as_of:
            continue
        begin = lower_bound(ordered, erasure.first)
        end = len(ordered) if erasure.last is None else lower_bound(ordered, erasure.last)
        kept = txns[begin:end] >= erasure.txn
        if newest is not None:
            kept |= newest[begin:end] < erasure.txn
        visible[begin:end] &= kept
