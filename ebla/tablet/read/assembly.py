"""Assembling an answer: what was merged in each group becomes the columns that a projection asks for.

A row is in the answer if one of the groups that were read shows it: an outer join on the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.order import Indices, Mask, sort_rows
from ebla.model.projection import Output, Projection, version_type
from ebla.model.schema import WILDCARD
from ebla.storage.merge.arrange import concat
from ebla.storage.merge.merge import MergedCells, MergedColumns

__all__ = ["assemble", "join_rows"]


def assemble(
    projection: Projection,
    keys: Sequence[pa.Array],
    rows: pa.Array,
    merged: Mapping[int, tuple[MergedColumns | MergedCells, Indices]],
) -> pa.RecordBatch:
    """Build the answer for `rows`: `merged` has, per group, what was merged and the place of each of its rows."""
    arrays: list[pa.Array] = list(keys)
    placed: dict[int, Indices] = {}
    for output in projection.outputs:
        part, places = merged[output.group.id]
        if isinstance(part, MergedColumns):
            column = part.columns[output.field_id]
            if len(part.rows) != len(rows):
                back = placed.get(output.group.id)
                if back is None:
                    back = np.full(len(rows), -1, dtype=np.int64)
                    back[places] = np.arange(len(places))
                    placed[output.group.id] = back
                column = column.take(pa.array(back, mask=back < 0))
            arrays.append(column)
        else:
            arrays.append(_cells(projection, output, part, places[part.row_of], len(rows)))
    return pa.RecordBatch.from_arrays(arrays, schema=projection.arrow_schema)


def _cells(projection: Projection, output: Output, cells: MergedCells, row_of: Indices, count: int) -> pa.Array:
    """Build one output column from merged cells whose rows are numbered by `row_of`."""
    mask = _mask(output, cells)
    places = np.arange(len(row_of)) if mask is None else np.flatnonzero(mask)
    # Versions of one cell stand together; its first opens an item.
    opens = np.ones(len(places), dtype=np.bool_)
    if projection.versions > 1 and len(places):
        opens = _item_starts(cells, row_of, places)
    item_rows = row_of[places[opens]]
    take = pa.array(places)
    if projection.versions > 1:
        bounds = np.append(np.flatnonzero(opens), len(places)).astype(np.int32)
        stamps = cells.timestamp.take(take).cast(pa.timestamp("us"))
        structs = pa.StructArray.from_arrays(
            [cells.value.take(take), cells.txn.take(take), stamps],
            fields=list(version_type(pa.binary()).value_type),
        )
        items = pa.ListArray.from_arrays(pa.array(bounds), structs, type=version_type(pa.binary()))
    else:
        items = cells.value.take(take)
    if output.kind == "cell":
        back = np.full(count, -1, dtype=np.int64)
        back[item_rows] = np.arange(len(item_rows))
        return items.take(pa.array(back, mask=back < 0))
    leads = pa.array(places[opens])
    names = cells.qualifier.take(leads)
    if output.kind == "wildcard":
        family = cells.family.take(leads)
        named = pc.binary_join_element_wise(family, names, ":")
        names = pc.if_else(pc.and_not(pc.equal(family, ""), _mean_others(projection, names)), names, named)
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(item_rows, minlength=count), out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), names, items)


def _mean_others(projection: Projection, names: pa.Array) -> pa.Array:
    """Tell which names, of cells of the unnamed family, mean something else by themselves: such are ``:name``."""
    taken = pa.array(sorted(projection.taken_names), pa.string())
    return pc.or_(pc.match_substring(names, ":"), pc.is_in(names, value_set=taken))


def _mask(output: Output, cells: MergedCells) -> Mask | None:
    if output.kind == "wildcard":
        named = [f.name for f in output.group.families if f.name != WILDCARD]
        if not named:
            return None
        is_named = pc.is_in(cells.family, value_set=pa.array(named, pa.string()))
        return np.asarray(pc.invert(is_named).to_numpy(zero_copy_only=False))
    mask = pc.equal(cells.family, output.family)
    if output.kind == "cell":
        mask = pc.and_(mask, pc.equal(cells.qualifier, output.qualifier))
    return np.asarray(mask.to_numpy(zero_copy_only=False))


def _item_starts(cells: MergedCells, row_of: Indices, places: Indices) -> Mask:
    take = pa.array(places)
    opens = np.ones(len(places), dtype=np.bool_)
    same = row_of[places[1:]] == row_of[places[:-1]]
    for column in (cells.family.take(take), cells.qualifier.take(take)):
        equal = pc.equal(column.slice(1), column.slice(0, len(column) - 1))
        same &= np.asarray(equal.to_numpy(zero_copy_only=False))
    opens[1:] = ~same
    return opens


def join_rows(parts: Sequence[pa.Array]) -> tuple[pa.Array, list[Indices]]:
    """Join sorted rows of several groups: all rows, and for every part the places of its rows among them."""
    longest = max(parts, key=len)
    if all(part is longest or part.equals(longest) for part in parts):
        whole = np.arange(len(longest))
        return longest, [whole] * len(parts)
    rows = concat(list(parts))
    order, repeats = sort_rows(rows)
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(~repeats) - 1
    places, begin = [], 0
    for part in parts:
        places.append(numbers[begin : begin + len(part)])
        begin += len(part)
    return rows.take(pa.array(order[~repeats])), places
