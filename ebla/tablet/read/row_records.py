"""The records of one row, as they lie in blocks: looked at newest first, without a merge, until nothing is missing.

    memory     a: . 7 .         visible, by txn     7  sets b        values   b <- 7
    file 1     a: 5 .                               5  sets a               a <- 5, and all is there
    file 2     a: 1 2                               2  not looked at any more

A row that was updated a million times costs the few newest of its records.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np

from ebla.model.python_values import python_value
from ebla.storage.lookup.row_values import RowValues
from ebla.storage.record.records import ERASED, SET, TXN, Block
from ebla.storage.record.row_block import RowBlock

__all__ = ["RowRecord", "newest_first", "places_in_memory", "resolve", "visible_records"]

RowRecord: TypeAlias = tuple[int, Block | RowValues, int]
"""The txn of a record, the block it is in, and its place there; or what it sets, as a lookup file has it."""

# From so many records of a row in one block on, only those that set something else than newer ones are looked at.
CHAIN_RECORDS_MIN = 16


def places_in_memory(
    blocks: Sequence[Block], row: bytes, as_of: int, wanted: Sequence[tuple[str, str]]
) -> list[tuple[Block, int, int]]:
    """Return the places of a row in blocks in memory, as far as a reader of the `wanted` columns may need them.

    A block that has none of the columns which newer ones do not set is left out, wherever there are no erasures: of a
    row that is updated all the time the newest block is enough, and one that has what is not updated.
    """
    places = []
    missing = {field_id for _, field_id in wanted}
    covered_from = 0  # everything older than this is covered by the blocks that were found
    for block in sorted(blocks, key=attrgetter("txn_max"), reverse=True) if len(blocks) > 1 else blocks:
        if block.txn_min > as_of:
            continue
        if block.txn_max < covered_from and not block.has_erasures and missing.isdisjoint(block.fields):
            continue
        begin, end = block.find(row)
        if begin == end:
            continue
        places.append((block, begin, end))
        if block.txn_max <= as_of and not (block.has_partial or block.has_erasures):
            missing -= block.fields
            covered_from = min(covered_from or block.txn_min, block.txn_min)
    return places


def newest_first(several: Sequence[Iterable[RowRecord]]) -> Iterable[RowRecord]:
    """Put records in one order that come newest first from several blocks each."""
    return several[0] if len(several) == 1 else heapq.merge(*several, key=itemgetter(0), reverse=True)


def visible_records(block: Block, begin: int, end: int, erased_at: int, as_of: int) -> Iterator[RowRecord]:
    """Yield the records at these places of one row, which stand newest first, with txns from `erased_at` to `as_of`."""
    if block.txn is not None:
        if erased_at <= block.txn <= as_of:
            yield from ((block.txn, block, place) for place in range(begin, end))
        return
    txns = block.columns[TXN]
    if block.txn_max > as_of:
        begin = bisect_left(range(end), -as_of, begin, end, key=lambda place: -txns[place].as_py())
    places: Iterable[int] = range(begin, end)
    if not block.has_partial and not block.has_erasures:
        places = range(begin, min(begin + 1, end))  # older ones set nothing else
    elif block.has_partial and end - begin >= CHAIN_RECORDS_MIN:
        places = _first_of_each_set(block, begin, end)
    for place in places:
        txn = txns[place].as_py()
        if txn < erased_at:
            return
        yield txn, block, place


def _first_of_each_set(block: Block, begin: int, end: int) -> list[int]:
    """Return, of the places of one row, the first that sets each different list of columns: the others add nothing.

    And the first that erases the row.
    """
    codes, count = block.set_codes
    if count == 1:
        return [begin]  # however many there are, the newest says it all
    chain = codes[begin:end]
    if count > 64:
        return sorted(begin + int(place) for place in np.unique(chain, return_index=True)[1])
    return sorted(begin + int(same.argmax()) for code in range(count) if (same := chain == code).any())


def resolve(records: Iterable[RowRecord], wanted: Sequence[tuple[str, str]], values: dict[str, Any]) -> bool:
    """Fill in the newest value of each wanted column from the records of one row, newest first; tell if it exists.

    What the merge does for many rows, for the few records of one. `wanted` has names and field ids.
    """
    exists = False
    for _, block, place in records:
        if isinstance(block, (RowBlock, RowValues)):
            cells = block.cells
            if cells is None:
                break  # it erases the row
            wanted = _fill(cells, wanted, values)
            exists = True
            if not wanted:
                break
            continue
        columns = block.columns
        if block.has_erasures and columns[ERASED][place].as_py():
            break
        exists = True
        named = columns[SET][place].as_py() if block.has_partial else None
        sets = columns.keys() if named is None else set(named.split()) & columns.keys()
        missing = []
        for name, field_id in wanted:
            if field_id in sets:
                values[name] = python_value(columns[field_id][place])
            else:
                missing.append((name, field_id))
        if not missing:
            break
        wanted = missing
    return exists


def _fill(cells: dict[str, Any], wanted: Sequence[tuple[str, str]], values: dict[str, Any]) -> list[tuple[str, str]]:
    """Fill in what a row of plain values sets; return what is wanted still."""
    missing = []
    for name, field_id in wanted:
        if field_id in cells:
            values[name] = cells[field_id]
        else:
            missing.append((name, field_id))
    return missing
