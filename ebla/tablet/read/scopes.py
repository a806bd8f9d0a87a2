"""What of a fragment counts: references that are restricted, applied to the records that were read.

A group whose columns or families came from elsewhere refers to files of other groups. Their records are cut down to
what the reference says before any merge sees them:

    columns     value columns that are not named go; the rows stay, for a column takes the rows of its group along
    families    cells of other families go, and those that are called otherwise now get their names

In cells groups that is all: an erasure of a whole row was written to every group of cells at once, so it may hide what
is beside it. In columns groups it may not. `put(replace=True)` erases a row in one group and sets all of it in another,
so that an erasure in a file speaks only for the columns that its group had. Columns that the same references speak for
form a **strand**; where there are erasures, strands are merged apart and joined by row:

    columns    a b | e        a, b: here from the start; e came from elsewhere
    file 1     1 1 | -        (a b)
    file 2     - - | 1        (e)
    file 3     1 1 | 1        written since then: speaks for all

Whether a **row** is there is another matter: all records of all files tell, and all erasures. A replacement does no
harm to that, for where it erases the row in one group, it writes it to another at the same txn; of the two, the record
counts. A compaction joins strands for good where no erasure is left, and writes one file for each where some is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.schema import GroupSchema
from ebla.storage.fragment.fragment_format import FragmentInfo
from ebla.storage.fragment.fragment_run import FragmentRun
from ebla.storage.merge.arrange import arrange_rows, changes, erased_mask
from ebla.storage.merge.combined import combined_values
from ebla.storage.merge.compact import Compacted, Retention, compact
from ebla.storage.merge.merge import MergedColumns, merge_columns
from ebla.storage.merge.parts import join_parts
from ebla.storage.merge.rules import Rules
from ebla.storage.merge.topping import count_surplus
from ebla.storage.record.records import ERASED, FAMILY, NOT_VALUES, ROW, SET, TXN, Run, value_names
from ebla.tablet.read.assembly import join_rows

__all__ = [
    "WHOLE",
    "Scope",
    "Scoped",
    "ScopedOutput",
    "Written",
    "compact_scoped",
    "covers",
    "is_mixed",
    "may_join",
    "merge_scoped",
    "restricted",
    "scope_of",
]


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns that a source speaks for; None: all that its group has."""

    columns: frozenset[int] | None = None

    def has(self, column: int) -> bool:
        """Tell whether the source speaks for a column."""
        return self.columns is None or column in self.columns

    def applied_to(self, ref: FragmentRef) -> FragmentRef:
        """Return a reference that speaks for this much."""
        return ref if self.columns is None else msgspec.structs.replace(ref, columns=tuple(sorted(self.columns)))


WHOLE = Scope()


@dataclass(frozen=True, slots=True)
class Scoped:
    """A run, and what it speaks for."""

    run: Run
    scope: Scope = WHOLE


def scope_of(ref: FragmentRef, group: GroupSchema) -> Scope:
    """Return what a reference speaks for in a columns group."""
    return WHOLE if covers(ref, group) else Scope(frozenset(ref.columns or ()))


def covers(ref: FragmentRef, group: GroupSchema) -> bool:
    """Tell whether a reference speaks for all columns of its group, as those of an unchanged schema do.

    Of references from different groups one does at most: they never speak for the same. Where there is no column to
    tell them by, none that is restricted does.
    """
    return ref.columns is None or (bool(group.columns) and group.column_by_id.keys() <= set(ref.columns))


def is_mixed(refs: Iterable[FragmentRef], group: GroupSchema) -> bool:
    """Tell whether some reference in a columns group does not speak for all columns."""
    return any(ref.columns is not None and not covers(ref, group) for ref in refs)


# --- single runs ---------------------------------------------------------------------------------


def restricted(run: Run, ref: FragmentRef, group: GroupSchema) -> Run:
    """Return the records of a run that count."""
    if group.is_cells:
        return _only_families(run, ref)
    if ref.columns is None:
        return run
    return _only_columns(run, frozenset(ref.columns))


def _only_columns(run: Run, columns: frozenset[int]) -> Run:
    names = run.records.schema.names
    kept = [name for name in names if name in NOT_VALUES or name.startswith("key:") or int(name) in columns]
    return run if len(kept) == len(names) else Run(run.records.select(kept), run.txn)


def _only_families(run: Run, ref: FragmentRef) -> Run:
    if not ref.is_restricted:
        return run
    family = run.column(FAMILY)
    assert family is not None, "records of cells have a family"
    if isinstance(family, pa.DictionaryArray):
        family = family.dictionary_decode()
    records = run.records
    # An erasure of the whole row has no family, and always counts.
    counts: Any = None
    if ref.families is not None:
        counts = pc.is_in(family, value_set=pa.array([*ref.families, None], pa.string()))
    if ref.families_out:
        others = pc.invert(pc.is_in(family, value_set=pa.array(ref.families_out, pa.string())))
        counts = others if counts is None else pc.and_(counts, others)
    if ref.renamed:
        stored, now = zip(*ref.renamed, strict=True)
        places = pc.index_in(family, value_set=pa.array(stored, pa.string()))
        called = pc.coalesce(pa.array(now, pa.string()).take(places), family)
        at = records.schema.get_field_index(FAMILY)
        records = records.set_column(at, FAMILY, called)
    return Run(records if counts is None else records.filter(counts), run.txn)


# --- strands -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Strand:
    """Columns that the same sources speak for, and the records of these that count."""

    columns: tuple[int, ...]
    runs: tuple[Run, ...]


def _strands(sources: Sequence[Scoped], columns: Iterable[int], scopes: Iterable[Scope] = ()) -> list[_Strand]:
    """Divide the columns of a group. If some sources speak for none of them, there is a strand of rows alone.

    `scopes` are others that tell columns apart.
    """
    columns = tuple(columns)
    scopes = list(dict.fromkeys([*scopes, *(one.scope for one in sources)]))
    divided: dict[tuple[bool, ...], list[int]] = {}
    for column in columns:
        divided.setdefault(tuple(scope.has(column) for scope in scopes), []).append(column)
    strands = []
    for key, own in divided.items():
        speaking = {scope for scope, speaks in zip(scopes, key, strict=True) if speaks}
        runs = [_only_columns(one.run, frozenset(own)) for one in sources if one.scope in speaking]
        strands.append(_Strand(tuple(own), tuple(_written_first([run for run in runs if len(run)]))))
    if any(not any(one.scope.has(column) for column in columns) for one in sources):
        strands.append(_Strand((), (_rows_of(sources),)))
    return strands


def _written_first(runs: Sequence[Run]) -> Sequence[Run]:
    """Return the runs as one in which, of what was written and erased in one row by one commit, the record is first.

    They may come from different groups, and then it is what counts.
    """
    erased = erased_mask(runs) if len(runs) > 1 else None
    if erased is None:
        return runs
    arranged = arrange_rows(runs)
    within = np.lexsort((erased[arranged.order], -arranged.txns[arranged.order], arranged.row_of))
    order = arranged.order[within]
    take = pa.array(order)
    columns = {ROW: arranged.rows.take(take), TXN: pa.array(arranged.txns[order]), ERASED: pa.array(erased[order])}
    columns |= combined_values(runs, take)
    return [Run(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))]


def _rows_of(sources: Sequence[Scoped]) -> Run:
    """Return the rows of all sources, and their erasures but for those at whose txn a record was written."""
    runs = [one.run for one in sources]
    arranged = arrange_rows(runs)
    order = arranged.order
    txns = arranged.txns[order]
    leads = changes(arranged.row_of) | changes(txns)
    columns = {ROW: arranged.rows.take(pa.array(order[leads])), TXN: pa.array(txns[leads])}
    erased = erased_mask(runs)
    if erased is not None:
        written = np.zeros(int(leads.sum()), dtype=np.bool_)
        written[(np.cumsum(leads) - 1)[~erased[order]]] = True
        columns[ERASED] = pa.array(~written)
    columns[SET] = pa.array([""] * int(leads.sum()), pa.string())
    return Run(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))


def merge_scoped(
    sources: Sequence[Scoped], group: GroupSchema, types: Mapping[int, pa.DataType], rules: Rules
) -> MergedColumns:
    """Merge runs of a columns group that do not all speak for the same columns."""
    if all(one.scope is WHOLE for one in sources) or not any(ERASED in one.run.records.schema.names for one in sources):
        return merge_columns([one.run for one in sources], types, rules)
    merged = [
        merge_columns(strand.runs, {i: types[i] for i in strand.columns if i in types}, rules)
        for strand in _strands(sources, group.column_by_id)
        if any(i in types for i in strand.columns)
    ]
    shown = merge_columns([_rows_of(sources)], {}, rules)
    rows, places = join_rows([shown.rows, *(part.rows for part in merged)])
    places = places[1:]
    columns: dict[int, pa.Array] = {}
    for part, place in zip(merged, places, strict=True):
        if len(place) == len(rows):
            columns.update(part.columns)
            continue
        back = np.full(len(rows), -1, dtype=np.int64)
        back[place] = np.arange(len(place))
        take = pa.array(back, mask=back < 0)
        columns.update((column, values.take(take)) for column, values in part.columns.items())
    return MergedColumns(rows, {column: columns[column] for column in types})


# --- compaction ----------------------------------------------------------------------------------


def compact_scoped(
    sources: Sequence[Scoped], group: GroupSchema, retention: Retention, *, may_join: bool, scopes: Iterable[Scope] = ()
) -> list[tuple[Scope, Compacted]]:
    """Return what is left of runs that do not all speak for the same columns: in one, or a part for each strand.

    They may be joined if no erasure is anywhere that speaks for some strands only. `scopes` are those of all that is
    merged: strands are the same in every stretch of it, or they would lie on each other in more files than there are.
    """
    left: list[tuple[Scope, Compacted]] = []
    for strand in _strands(sources, group.column_by_id, scopes):
        part = compact(strand.runs, retention, is_cells=False)
        if part is not None:
            left.append((Scope(frozenset(strand.columns)), part))
    if not may_join or any(ERASED in part.records.schema.names for _, part in left):
        return left
    if len(left) > 1:
        return [(WHOLE, _joined([part.records for _, part in left]))]
    return [(WHOLE, part) for _, part in left]


def may_join(others: Iterable[FragmentRef]) -> bool:
    """Tell whether strands may be joined for good, as far as references that are not compacted with them go."""
    return not any(ref.has_erasures and ref.columns is not None for ref in others)


def _joined(parts: Sequence[pa.RecordBatch]) -> Compacted:
    """Make one record of those of one row and one commit, which were in different groups once."""
    records = join_parts([Run(part) for part in parts])
    return Compacted(records, count_surplus(records, is_cells=False))


class Written(NamedTuple):
    """A file that a compaction wrote, what it speaks for, and whether it is history."""

    info: FragmentInfo
    scope: Scope
    is_history: bool


class ScopedOutput:
    """The files of a compaction: one run of them, or one for each strand that is left; and one run of history.

    `new_run` is told whether that is what it is for.
    """

    def __init__(self, new_run: Callable[[bool], FragmentRun]) -> None:
        self._new_run = new_run
        self._runs: dict[tuple[Scope, bool], FragmentRun] = {}

    def write(self, scope: Scope, part: Compacted, *, is_history: bool = False) -> None:
        """Add what is left of one stretch of rows."""
        run = self._runs.get((scope, is_history))
        if run is None:
            run = self._runs[scope, is_history] = self._new_run(is_history)
        run.write(_explicit(part.records), unique=part.unique, surplus=part.surplus)

    def finish(self) -> list[Written]:
        """Make everything durable and return what was written."""
        return [Written(info, *kind) for kind, run in self._runs.items() for info in run.finish()]

    def abandon(self) -> None:
        """Remove all files, finished or not, as far as that is possible. Nothing may name them."""
        for run in self._runs.values():
            run.abandon()


def _explicit(records: pa.RecordBatch) -> pa.RecordBatch:
    """Say of records that have lost all their columns that they set none, before others with columns join them."""
    names = records.schema.names
    if SET in names or value_names(records):
        return records
    return records.append_column(SET, pa.array([""] * records.num_rows, pa.string()))
