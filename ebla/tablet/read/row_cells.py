"""The newest cells of one row, out of the few records that the sources have of it.

What the merge does for many rows, for one: a merge costs some thirty calls of Arrow and numpy for each group, whatever
it merges, which for the dozen cells of a row is many times what a look at each of them takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ebla.storage.lookup.row_values import CellLists
from ebla.storage.record.cell_block import CellBlock
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, TIMESTAMP, TXN, VALUE, Block, Run

__all__ = ["CELL_RECORDS_MAX", "Cells", "cell_lists", "cell_lists_in", "newest_cells"]

# From here on the merge is quicker.
CELL_RECORDS_MAX = 256

# Values by family and qualifier.
Cells: TypeAlias = dict[tuple[str, str], bytes]

# Timestamp, txn and value.
_Found: TypeAlias = tuple[int, int, bytes]


def cell_lists_in(block: Block, begin: int, end: int) -> CellLists:
    """Return the cells at these places of a block, all of one row, as lists."""
    if isinstance(block, CellBlock):
        return block.lists
    return cell_lists(Run(block.records.slice(begin, end - begin), block.txn))


def cell_lists(run: Run) -> CellLists:
    """Return the cells of a run as lists."""
    records = run.records
    count = len(run)
    return (
        records.column(FAMILY).to_pylist(),
        records.column(QUALIFIER).to_pylist(),
        records.column(TIMESTAMP).to_pylist(),
        records.column(TXN).to_pylist() if run.txn is None else [run.txn] * count,
        records.column(ERASED).to_pylist() if ERASED in records.schema.names else [False] * count,
        records.column(VALUE).to_pylist(),
    )


def newest_cells(
    sources: Sequence[CellLists], *, as_of: int, erased_at: int = 0, expired_before: int | None = None
) -> Cells | None:
    """Return the newest version of each cell that a reader at `as_of` sees; None if there are too many records.

    `erased_at` is the txn of the newest range erasure over the row. What has a timestamp before `expired_before` is
    hidden by its age.
    """
    if sum([len(lists[0]) for lists in sources]) > CELL_RECORDS_MAX:
        return None
    if len(sources) == 1 and expired_before is None:
        families, qualifiers, _, txns, erased, contents = sources[0]
        if max(txns) <= as_of and min(txns) >= erased_at and True not in erased:
            # Of each cell the first is the newest: the last that is put in stays.
            names = zip(reversed(families), reversed(qualifiers), strict=True)
            return dict(zip(names, reversed(contents), strict=True))  # type: ignore[arg-type]
    erasures: dict[tuple[str | None, str | None], list[tuple[int, int]]] = {}
    seen: list[tuple[Any, _Found]] = []
    for lists in sources:
        for family, qualifier, stamp, txn, is_erasure, value in zip(*lists, strict=True):
            if txn > as_of or txn < erased_at:
                continue
            if is_erasure:
                erasures.setdefault((family, qualifier), []).append((stamp, txn))
            elif expired_before is None or stamp >= expired_before:
                seen.append(((family, qualifier), (stamp, txn, value)))
    newest: dict[tuple[str, str], _Found] = {}
    for cell, found in seen:
        if erasures and _is_hidden(cell, found[0], found[1], erasures):
            continue
        best = newest.get(cell)
        if best is None or found[:2] > best[:2]:
            newest[cell] = found
    return {cell: value for cell, (_, _, value) in newest.items()}


def _is_hidden(
    cell: tuple[str, str],
    stamp: int,
    txn: int,
    erasures: Mapping[tuple[str | None, str | None], Sequence[tuple[int, int]]],
) -> bool:
    """Tell whether a version is under an erasure of its cell, family or row that has a greater txn and is not older."""
    return any(
        txn < erased_txn and stamp <= erased_stamp
        for scope in (cell, (cell[0], None), (None, None))
        for erased_stamp, erased_txn in erasures.get(scope, ())
    )
