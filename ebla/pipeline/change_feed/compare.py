"""Rows at two txns: what they are at the later one, and whether they were there at the earlier one.

    earlier                         later
      |   old sources    |   fresh sources   |
      |  a b c d e f g   |     b   d         |       b, d: read from fresh sources alone, if these say everything
      |                  |                   |       were they there before? only the keys of the old blocks around them

To read a row as it is means to look into everything that may have it; for many rows all over a large table, that is
most of the table. But a record that sets all columns hides what is older, and to know that a row was there, nobody has
to know what it was. Where that does not hold (partial puts, cells, erasures), rows are read as all rows are.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.direct.views import TableState, TableView, is_mixed, read_rows
from ebla.metadata.values.table_metadata import FragmentRef, TabletMetadata
from ebla.model.order import Mask, lower_bound
from ebla.model.projection import Projection
from ebla.model.ranges import ALL, KeyRange, successor
from ebla.model.schema import GroupSchema
from ebla.pipeline.change_feed.change_plan import touched_rows
from ebla.pipeline.scanning.layers import matches
from ebla.pipeline.scanning.survey import sets_all

__all__ = ["rows_at", "rows_since", "were_there"]


def rows_at(table: TableState, projection: Projection, rows: pa.Array, txn: int) -> tuple[pa.Table, pa.Array]:
    """Return what is there of rows, which are sorted and each once, at a txn, and where in it each of them is."""
    return _placed(table, projection, rows, read_rows(table, table.view, projection, rows, txn))


def rows_since(
    table: TableState, projection: Projection, rows: pa.Array, since: int, until: int
) -> tuple[pa.Table, pa.Array]:
    """Return what is there at `until` of rows that were touched after `since`, and where in it each of them is."""
    view = _fresh(table, projection, rows, since, until) if len(rows) else None
    if view is None:
        return rows_at(table, projection, rows, until)
    said = _said_by_all(view, table, projection, rows, since, until)
    if said is None:
        return _placed(table, projection, rows, read_rows(table, view, projection, rows, until))
    parts = [
        read_rows(table, view, projection, rows.filter(pa.array(said)), until),
        read_rows(table, table.view, projection, rows.filter(pa.array(~said)), until),
    ]
    return _placed(table, projection, rows, pa.concat_tables(parts))


def _placed(table: TableState, projection: Projection, rows: pa.Array, found: pa.Table) -> tuple[pa.Table, pa.Array]:
    keys = [_one(found.column(name)) for name in projection.schema.key_names]
    return found, pc.index_in(rows, value_set=table.codec.encode_arrays(keys))


def _one(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


# --- fresh sources -------------------------------------------------------------------------------


def _fresh(table: TableState, projection: Projection, rows: pa.Array, since: int, until: int) -> TableView | None:
    """Return the table without what is older than `since`; None if something newer does not say everything."""
    view = table.view
    share = _span(rows)
    tablets = {}
    for tablet, part in view.tablets_in(share):
        kept = []
        for group in projection.groups:
            state = tablet.group(group.id)
            fresh = tuple(ref for ref in state.fragments if since < ref.txn_max and ref.txn_min <= until)
            touching = [ref for ref in fresh if ref.may_have_rows_in(part)]
            if group.is_cells or is_mixed(state.fragments, group):
                return None
            if not all(sets_all(ref, table.reader.fragment(ref), group.id, projection) for ref in touching):
                return None
            kept.append(msgspec.structs.replace(state, fragments=fresh))
        tablets[tablet.id] = msgspec.structs.replace(tablet, groups=tuple(kept))
    memory = [view.memory_of(tablet, group.id) for tablet in tablets for group in projection.groups]
    if any(one.erasures or any(block.txn_max > since for block in one.blocks) for one in memory):
        return None
    metadata = view.metadata
    changed = tuple(tablets.get(tablet.id, tablet) for tablet in metadata.tablets)
    return TableView(msgspec.structs.replace(metadata, tablets=changed), {}, view.parts)


def _said_by_all(
    view: TableView, table: TableState, projection: Projection, rows: pa.Array, since: int, until: int
) -> Mask | None:
    """Tell which rows were touched in every group that is read; None if there is but one, where all were."""
    if len(projection.groups) == 1:
        return None
    said = np.ones(len(rows), dtype=np.bool_)
    for group in projection.groups:
        outputs = tuple(output for output in projection.outputs if output.group.id == group.id)
        if not outputs:
            return np.zeros(len(rows), dtype=np.bool_)
        own = touched_rows(view, table.reader, Projection(projection.schema, outputs), _span(rows), since, until)
        said &= np.asarray(pc.is_in(rows, value_set=own).to_numpy(zero_copy_only=False))
    return said


# --- whether it was there ------------------------------------------------------------------------


def were_there(table: TableState, projection: Projection, rows: pa.Array, txn: int) -> pa.Array:
    """Tell which of rows, which are sorted and each once, were there at a txn."""
    found = [_were_there(table, projection, tablet, part, txn) for tablet, part in _by_tablet(table.view, rows)]
    return pa.concat_arrays(found) if found else pa.array([], pa.bool_())


def _were_there(
    table: TableState, projection: Projection, tablet: TabletMetadata, rows: pa.Array, txn: int
) -> pa.Array:
    there = np.zeros(len(rows), dtype=np.bool_)
    for group in projection.groups:
        known = _known(table, tablet, group, rows, txn)
        if known is None:
            # Of a row as it was, only whether it was there matters.
            earlier = table.projection([]) if projection.is_whole else projection
            return pc.is_valid(rows_at(table, earlier, rows, txn)[1])
        there |= known
    return pa.array(there)


def _known(table: TableState, tablet: TabletMetadata, group: GroupSchema, rows: pa.Array, txn: int) -> Mask | None:
    """Tell which rows a group has at a txn by their keys alone; None if that cannot be told."""
    sources = table.view.sources(tablet, group.id, _span(rows), txn)
    is_plain = not group.is_cells and group.max_age_microseconds is None and not is_mixed(sources.fragments, group)
    if not is_plain or sources.blocks or sources.erasures:
        return None
    if any(ref.has_erasures or ref.is_restricted for ref in sources.fragments):
        return None
    there = np.zeros(len(rows), dtype=np.bool_)
    for ref in sources.fragments:
        counted = KeyRange(*ref.clip) if ref.clip is not None else ALL
        begin = lower_bound(rows, counted.first)
        end = len(rows) if counted.last is None else lower_bound(rows, counted.last, begin)
        there[begin:end] |= _members(table, ref, rows.slice(begin, end - begin), txn)
    return there


def _members(table: TableState, ref: FragmentRef, rows: pa.Array, txn: int) -> Mask:
    found = np.zeros(len(rows), dtype=np.bool_)
    fragment = table.reader.fragment(ref)
    for which, places in matches(fragment, rows, txn if ref.txn_max > txn else None):
        del places
        found[which] = True
    return found


def _by_tablet(view: TableView, rows: pa.Array) -> Iterator[tuple[TabletMetadata, pa.Array]]:
    begin = 0
    while begin < len(rows):
        tablet = view.metadata.tablet_for(rows[begin].as_py())
        end = len(rows) if tablet.last is None else lower_bound(rows, tablet.last, begin)
        yield tablet, rows.slice(begin, end - begin)
        begin = end


def _span(rows: pa.Array) -> KeyRange:
    return KeyRange(rows[0].as_py(), successor(rows[-1].as_py()))
