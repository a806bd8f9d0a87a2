"""Admission: what a client sends becomes sorted records per group, ready to be committed or refused as a whole.

    PutBatch / keys / range  -->  Mutation { rows touched, records by group, range erasures }

Everything that can be done without a lock is done here: encoding, sorting, resolving two entries for one identity (the
last wins), dividing columns among groups. Nothing here reads the store or has any effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidBatch
from ebla.model.batch import PutBatch
from ebla.model.keys import KeyCodec
from ebla.model.order import Indices, Mask, sort_rows
from ebla.model.schema import GroupSchema, TableSchema, Target
from ebla.storage.merge.arrange import concat
from ebla.storage.merge.merge import merge_columns
from ebla.storage.merge.rules import Rules
from ebla.storage.record.records import (
    ERASED,
    FAMILY,
    QUALIFIER,
    ROW,
    SET,
    TIMESTAMP,
    TXN,
    VALUE,
    Run,
    schema_bytes,
    size_bytes,
)
from ebla.tablet.write.cell_records import (
    AT_COMMIT,
    FEW_CELLS_MAX,
    batch_of,
    cell_marks,
    distinct_cells,
    in_place,
    sorted_by_row,
)
from ebla.tablet.write.mutation import NO_ROWS, GroupRecords, Mutation, cells_part

# What stays in memory until a flush comes in pieces of about one size, again and again. The system's own allocator
# hands the same pages out again; Arrow's default gives them back to the kernel, which clears new ones every time.
_POOL = pa.system_memory_pool()
SET_NOTHING = ""
TIMESTAMP_GIVEN = "timestamp"
PLANS_MAX = 256


class _Share(NamedTuple):
    """The value columns [begin, end) of a plan, which are one group's."""

    group: int
    begin: int
    end: int
    schema: pa.Schema
    schema_bytes: bytes


class _Plan(NamedTuple):
    """What columns of certain names become: rows and then the columns at `places`, divided among groups."""

    places: tuple[int, ...]
    schema: pa.Schema
    shares: tuple[_Share, ...]


class Admission:
    """Turns requests for one table, at one schema version, into mutations."""

    def __init__(self, schema: TableSchema, codec: KeyCodec) -> None:
        self._schema = schema
        self._codec = codec
        self._columns_groups = [group for group in schema.groups if not group.is_cells]
        # Any thread adds to it; the same twice does no harm.
        self._plans: dict[tuple[str, ...], _Plan] = {}

    # --- puts ---

    def put(self, batch: PutBatch, *, replace: bool = False) -> Mutation:
        """Admit rows; with `replace`, what a row does not give is erased."""
        parts: dict[int, GroupRecords] = {}
        rows = NO_ROWS
        if batch.columns is not None and batch.columns.num_rows:
            rows = self._encode(batch.columns)
            names = tuple(batch.columns.schema.names)
            if replace or SET in names:
                rows = self._put_columns(batch.columns, rows, parts, replace)
            else:
                rows = self._put_plain(batch.columns, rows, parts, names)
        if batch.cells is not None and batch.cells.num_rows:
            rows = _distinct_rows([rows, self._put_cells(batch.cells, parts)])
        if replace and len(rows):
            self._erase_the_rest(rows, parts)
        return Mutation(rows, parts, schema_version=self._schema.version)

    def _encode(self, batch: pa.RecordBatch) -> pa.Array:
        return self._codec.encode_arrays([batch.column(name) for name in self._schema.key_names])

    def _put_plain(
        self, batch: pa.RecordBatch, rows: pa.Array, parts: dict[int, GroupRecords], names: tuple[str, ...]
    ) -> pa.Array:
        """Admit rows that all set all columns of the batch: the usual case, in as few steps as possible."""
        plan = self._plans.get(names) or self._remember_plan(names)
        order, repeats = sort_rows(rows)
        if repeats.any():
            order = _last_of_each(order, repeats)
        records = pa.RecordBatch.from_arrays([rows, *map(batch.column, plan.places)], schema=plan.schema)
        is_copy = not in_place(order, len(rows))
        if is_copy:
            records = pc.take(records, pa.array(order), boundscheck=False, memory_pool=_POOL)
            rows = records.column(0)
        for group, begin, end, schema, described in plan.shares:
            if len(plan.shares) == 1:
                own = records
            else:
                own = pa.RecordBatch.from_arrays([rows, *map(records.column, range(begin, end))], schema=schema)
            size = own.get_total_buffer_size() if is_copy else size_bytes(own)
            parts[group] = GroupRecords(own, described, size)
        return rows

    def _remember_plan(self, names: tuple[str, ...]) -> _Plan:
        places: list[int] = []
        fields = [pa.field(ROW, pa.binary())]
        shares = []
        for group in self._columns_groups:
            begin = len(fields)
            for column in sorted(group.columns, key=lambda column: column.id):
                if column.name in names:
                    places.append(names.index(column.name))
                    fields.append(pa.field(str(column.id), column.type))
            if len(fields) > begin:
                schema = pa.schema([fields[0], *fields[begin:]])
                shares.append(_Share(group.id, begin, len(fields), schema, schema_bytes(schema)))
        plan = _Plan(tuple(places), pa.schema(fields), tuple(shares))
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        self._plans[names] = plan
        return plan

    def _put_columns(
        self, batch: pa.RecordBatch, rows: pa.Array, parts: dict[int, GroupRecords], replace: bool
    ) -> pa.Array:
        order, repeats = sort_rows(rows)
        sets = batch.column(SET) if SET in batch.schema.names else None
        some_repeat = bool(repeats.any())
        if some_repeat and (replace or sets is None):
            order, some_repeat = _last_of_each(order, repeats), False
        take = None if in_place(order, len(rows)) else pa.array(order)
        ordered = batch
        if take is not None:
            # The key columns are not needed any more: the rows say it all.
            key_names = self._schema.key_names
            ordered = batch.select([name for name in batch.schema.names if name not in key_names]).take(take)
            rows = rows.take(take)
        for group in self._columns_groups:
            records = self._columns_records(group, ordered, rows, replace)
            if records is None:
                continue
            if some_repeat:
                records = _fold_repeats(group, records)
            parts[group.id] = GroupRecords.of(records, is_copy=take is not None)
        return rows.filter(pa.array(~repeats)) if some_repeat else rows

    def _columns_records(
        self, group: GroupSchema, batch: pa.RecordBatch, rows: pa.Array, replace: bool
    ) -> pa.RecordBatch | None:
        """Return what a sorted batch has for one group, or None if it has nothing."""
        names = batch.schema.names
        values = {column.id: batch.column(column.name) for column in group.columns if column.name in names}
        mask: Mask | None = None
        explicit: pa.Array | None = None
        if SET in names:
            is_first = group is self._columns_groups[0]
            mask, explicit = _share_of_group(batch.column(SET), tuple(values), takes_bare_rows=is_first)
            if not mask.any():
                return None
        elif not values:
            return None
        if replace:
            explicit = None
            for column in group.columns:
                if column.id not in values:
                    values[column.id] = pa.nulls(len(rows), column.type)
        named = {ROW: rows, **({SET: explicit} if explicit is not None else {})}
        named.update((str(i), values[i]) for i in sorted(values))
        records = batch_of(named)
        return records if mask is None or mask.all() else records.filter(pa.array(mask))

    def _put_cells(self, batch: pa.RecordBatch, parts: dict[int, GroupRecords]) -> pa.Array:
        rows = self._encode(batch)
        if TIMESTAMP_GIVEN in batch.schema.names:
            given = batch.column(TIMESTAMP_GIVEN)
            if pc.any(pc.equal(given, AT_COMMIT)).as_py():
                raise InvalidBatch(
                    f"the timestamp {AT_COMMIT} stands for the time of the commit: leave it out, or give another"
                )
            stamps = pc.fill_null(given, AT_COMMIT)
        else:
            stamps = pa.array(np.full(len(rows), AT_COMMIT, dtype=np.int64))
        family, qualifier, value = (batch.column(name) for name in (FAMILY, QUALIFIER, VALUE))
        cells = batch_of({ROW: rows, FAMILY: family, QUALIFIER: qualifier, TIMESTAMP: stamps, VALUE: value})
        for group, records in self._by_group(cells):
            sorted_cells, unique = distinct_cells(records)
            parts[group.id] = cells_part(sorted_cells, unique)
        return rows

    def _by_group(self, cells: pa.RecordBatch) -> Iterable[tuple[GroupSchema, pa.RecordBatch]]:
        encoded = cells.column(FAMILY).dictionary_encode()
        owners = []
        for family in encoded.dictionary.to_pylist():
            group = self._schema.family_group(family)
            if group is None:
                raise InvalidBatch(
                    f"no group takes the family {family!r}: the table has {self._schema.describe_columns()}"
                )
            owners.append(group.id)
        if len(set(owners)) == 1:
            yield self._schema.group_by_id[owners[0]], cells
            return
        group_of = np.array(owners)[encoded.indices.to_numpy(zero_copy_only=False)]
        for group_id in sorted(set(owners)):
            yield self._schema.group_by_id[group_id], cells.filter(pa.array(group_of == group_id))

    def _erase_the_rest(self, rows: pa.Array, parts: dict[int, GroupRecords]) -> None:
        """Erase what the rows had in groups, or had as cells, that they do not give now."""
        for group in self._schema.groups:
            part = parts.get(group.id)
            if group.is_cells:
                marks = cell_marks(rows, None, None)
                if part is None:
                    parts[group.id] = cells_part(marks, unique=True)
                else:
                    both = _concat_batches([part.records, marks])
                    parts[group.id] = cells_part(distinct_cells(both)[0], part.unique)
                continue
            given = part.records.column(ROW) if part is not None else NO_ROWS
            missing = rows.filter(pc.invert(pc.is_in(rows, value_set=given)))
            if len(missing):
                marks = batch_of({ROW: missing, ERASED: pa.array(np.ones(len(missing), dtype=np.bool_))})
                records = marks if part is None else sorted_by_row(_concat_batches([part.records, marks]))
                parts[group.id] = GroupRecords.of(records)

    # --- erasures ---

    def erase(self, rows: pa.Array, targets: Sequence[Target] | None = None) -> Mutation:
        """Admit the erasure of encoded rows: whole, or of the columns, cells and families given.

        Erasing a typed column sets it to null; the caller sees to it that only rows that exist are named then.
        """
        order, repeats = sort_rows(rows)
        rows = rows.take(pa.array(order[~repeats]))
        parts: dict[int, GroupRecords] = {}
        for group in self._schema.groups:
            own = None if targets is None else [target for target in targets if target.group.id == group.id]
            if own is not None and not own:
                continue
            if group.is_cells:
                marks = [(None, None)] if own is None else [(target.family, target.qualifier) for target in own]
                records = _concat_batches([cell_marks(rows, family, qualifier) for family, qualifier in marks])
                parts[group.id] = cells_part(distinct_cells(records)[0], unique=True)
                continue
            named: dict[str, pa.Array] = {ROW: rows}
            if own is None:
                named[ERASED] = pa.array(np.ones(len(rows), dtype=np.bool_))
            else:
                columns = {target.column.id: target.column for target in own if target.column is not None}
                named.update((str(i), pa.nulls(len(rows), columns[i].type)) for i in sorted(columns))
            records = batch_of(named)
            parts[group.id] = GroupRecords.of(records)
        return Mutation(rows, parts, schema_version=self._schema.version)


# --- building records ----------------------------------------------------------------------------


def _last_of_each(order: Indices, repeats: Mask) -> Indices:
    """Return the place of the last entry of each row, which stands for all where all set the same columns."""
    last = np.ones(len(order), dtype=np.bool_)
    last[:-1] = ~repeats[1:]
    return order[last]  # the sort is stable


def _share_of_group(sets: pa.Array, given: tuple[int, ...], *, takes_bare_rows: bool) -> tuple[Mask, pa.Array | None]:
    """Return which rows set something in a group that is `given` these ids, and the group's own `_set` if needed."""
    encoded = sets.dictionary_encode()
    shares: list[str | None] = []
    has: list[bool] = []
    for text in encoded.dictionary.to_pylist():
        ids = sorted(set(map(int, text.split())).intersection(given))
        has.append(bool(ids) or (takes_bare_rows and text == SET_NOTHING))
        shares.append(None if ids and len(ids) == len(given) else " ".join(map(str, ids)))
    codes = pc.fill_null(encoded.indices, len(has)).to_numpy(zero_copy_only=False)
    mask = np.array([*has, bool(given)], dtype=np.bool_)[codes]
    if all(share is None for share, here in zip(shares, has, strict=True) if here):
        return mask, None
    return mask, pa.array([*shares, None], pa.string()).take(pa.array(codes))


def _fold_repeats(group: GroupSchema, records: pa.RecordBatch) -> pa.RecordBatch:
    """Fold several entries for one row into one that sets all their columns, the last entry winning for each."""
    rows = records.column(ROW)
    _, repeats = sort_rows(rows)
    if not repeats.any():
        return records
    ids = [column.id for column in group.columns if str(column.id) in records.schema.names]
    types = {i: group.column_by_id[i].type for i in ids}
    numbered = records.append_column(TXN, pa.array(np.arange(len(rows), dtype=np.int64)))
    merged = merge_columns([Run(numbered)], types, Rules())
    starts = np.flatnonzero(~repeats)
    everything = " ".join(map(str, sorted(ids)))
    sets = records.column(SET).fill_null(everything).to_pylist() if SET in records.schema.names else None
    named: dict[str, pa.Array] = {ROW: merged.rows}
    if sets is not None:
        folded = [
            " ".join(map(str, sorted({i for text in sets[begin:end] for i in map(int, text.split())})))
            for begin, end in zip(starts, [*starts[1:], len(sets)], strict=True)
        ]
        named[SET] = pa.array([None if text == everything and ids else text for text in folded], pa.string())
    named.update((str(i), merged.columns[i]) for i in sorted(ids))
    return batch_of(named)


def _concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the batches end to end, with the columns of all of them; what a batch lacks is null there."""
    if len(batches) == 1:
        return batches[0]
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="default").combine_chunks().to_batches()[0]


def _distinct_rows(arrays: Sequence[pa.Array]) -> pa.Array:
    """Return the rows of all arrays, sorted, each once."""
    rows = concat(arrays)
    if len(rows) <= FEW_CELLS_MAX:
        return pa.array(sorted(set(rows.to_pylist())), pa.binary())
    order, repeats = sort_rows(rows)
    if not repeats.any() and in_place(order, len(rows)):
        return rows
    return rows.take(pa.array(order[~repeats]))
