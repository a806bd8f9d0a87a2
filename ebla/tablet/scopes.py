"""What of a fragment counts: references that are restricted, applied to the records that were read.

A group whose columns or families came from elsewhere refers to files of other groups. Their records are cut down to
what the reference says before any merge sees them:

    columns     value columns that are not named go; of a guest, so do records that set and erase nothing then
    families    cells of other families go, and those that are called otherwise now get their names

In cells groups that is all: an erasure of a whole row was written to every group of cells at once, so it may hide what
is beside it. In columns groups it may not. `put(replace=True)` erases a row in one group and sets all of it in another,
so that an erasure in a file speaks only for the columns that its group had. Columns that the same references speak for
form a **strand**; where there are erasures, strands are merged apart and joined by row:

    columns    a b | e        a, b: home here from the start; e came as a guest
    file 1     1 1 | -        (a b)
    file 2     - - | 1        (e), guest
    file 3     1 1 | 1        written since then: speaks for all

A guest does not make a row exist by itself, only by a column that is seen. A compaction joins strands for good where no
erasure is left, and writes one file for each where some is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.metadata.table_metadata import FragmentRef
from ebla.schema import GroupSchema
from ebla.storage.arrange import arrange_rows, changes, end_to_end
from ebla.storage.compact import Compacted, Retention, compact
from ebla.storage.fragment_format import FragmentInfo
from ebla.storage.fragment_run import FragmentRun
from ebla.storage.merge import MergedColumns, Rules, merge_columns, set_patterns, setters
from ebla.storage.order import Indices, Mask
from ebla.storage.records import ERASED, FAMILY, NOT_VALUES, ROW, SET, TXN, Run, value_names
from ebla.tablet.projection import join_rows

__all__ = [
    "WHOLE",
    "Scope",
    "Scoped",
    "ScopedOutput",
    "compact_scoped",
    "covers",
    "is_mixed",
    "merge_scoped",
    "restricted",
    "scope_of",
]


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns that a source speaks for; None: all that its group has."""

    columns: frozenset[int] | None = None
    is_guest: bool = False

    def has(self, column: int) -> bool:
        """Tell whether the source speaks for a column."""
        return self.columns is None or column in self.columns

    def applied_to(self, ref: FragmentRef) -> FragmentRef:
        """Return a reference that speaks for this much."""
        if self.columns is None:
            return ref
        return msgspec.structs.replace(ref, columns=tuple(sorted(self.columns)), is_guest=self.is_guest)


WHOLE = Scope()


@dataclass(frozen=True, slots=True)
class Scoped:
    """A run, and what it speaks for."""

    run: Run
    scope: Scope = WHOLE


def scope_of(ref: FragmentRef, group: GroupSchema) -> Scope:
    """Return what a reference speaks for in a columns group."""
    return WHOLE if covers(ref, group) else Scope(frozenset(ref.columns or ()), ref.is_guest)


def covers(ref: FragmentRef, group: GroupSchema) -> bool:
    """Tell whether a reference speaks for all columns of its group, as those of an unchanged schema do."""
    return ref.columns is None or (not ref.is_guest and group.column_by_id.keys() <= set(ref.columns))


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
    scope = frozenset(ref.columns)
    return _only_columns(run, scope, is_guest=ref.is_guest)


def _only_columns(run: Run, columns: frozenset[int], *, is_guest: bool) -> Run:
    names = run.records.schema.names
    kept = [name for name in names if name in NOT_VALUES or name.startswith("key:") or int(name) in columns]
    narrow = run if len(kept) == len(names) else Run(run.records.select(kept), run.txn)
    return _that_say(narrow, columns) if is_guest else narrow


def _that_say(run: Run, columns: Iterable[int]) -> Run:
    """Leave out records that neither set one of the columns nor erase."""
    patterns = set_patterns([run])
    says = np.zeros(len(run), dtype=np.bool_)
    for column in columns:
        says |= setters([run], patterns, column)
    erased = run.column(ERASED)
    if erased is not None:
        says |= pc.fill_null(erased, False).to_numpy(zero_copy_only=False)
    return run if says.all() else Run(run.records.filter(pa.array(says)), run.txn)


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
    is_home: bool


def _strands(sources: Sequence[Scoped], columns: Iterable[int]) -> list[_Strand]:
    """Divide the columns of a group. The first strand is the home of rows, and may have no column."""
    scopes = list(dict.fromkeys(one.scope for one in sources))
    home = tuple(not scope.is_guest for scope in scopes)
    divided: dict[tuple[bool, ...], list[int]] = {home: []}
    for column in columns:
        divided.setdefault(tuple(scope.has(column) for scope in scopes), []).append(column)
    strands = []
    for key, own in divided.items():
        speaking = {scope for scope, speaks in zip(scopes, key, strict=True) if speaks}
        runs = [
            _only_columns(one.run, frozenset(own), is_guest=key != home) for one in sources if one.scope in speaking
        ]
        strands.append(_Strand(tuple(own), tuple(run for run in runs if len(run)), key == home))
    return strands


def merge_scoped(
    sources: Sequence[Scoped], group: GroupSchema, types: Mapping[int, pa.DataType], rules: Rules
) -> MergedColumns:
    """Merge runs of a columns group that do not all speak for the same columns."""
    if all(one.scope is WHOLE for one in sources) or not any(ERASED in one.run.records.schema.names for one in sources):
        return merge_columns([one.run for one in sources], types, rules)
    strands = _strands(sources, group.column_by_id)
    merged = [merge_columns(s.runs, {i: types[i] for i in s.columns if i in types}, rules) for s in strands]
    rows, places = join_rows([part.rows for part in merged])
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
    sources: Sequence[Scoped], group: GroupSchema, retention: Retention
) -> list[tuple[Scope, Compacted]]:
    """Return what is left of runs that do not all speak for the same columns: in one, or a part for each strand."""
    left: list[tuple[Scope, Compacted]] = []
    for strand in _strands(sources, group.column_by_id):
        part = compact(strand.runs, retention, is_cells=False)
        if part is not None:
            is_whole = strand.is_home and len(strand.columns) == len(group.columns)
            left.append((WHOLE if is_whole else Scope(frozenset(strand.columns), not strand.is_home), part))
    if any(ERASED in part.records.schema.names for _, part in left):
        return left
    if len(left) > 1:
        return [(WHOLE, _joined([part.records for _, part in left]))]
    return [(WHOLE, part) for _, part in left]


def _joined(parts: Sequence[pa.RecordBatch]) -> Compacted:
    """Make one record of those of one row and one commit, which were in different groups once."""
    runs = [Run(part) for part in parts]
    arranged = arrange_rows(runs)
    order = arranged.order
    txns = arranged.txns[order]
    leads = changes(arranged.row_of) | changes(txns)
    identity: Indices = np.cumsum(leads) - 1
    count = int(identity[-1]) + 1
    patterns = set_patterns(runs)
    columns: dict[str, pa.Array] = {ROW: arranged.rows.take(pa.array(order[leads])), TXN: pa.array(txns[leads])}
    ids = sorted({int(name) for part in parts for name in value_names(part)})
    sets = np.zeros((len(ids), count), dtype=np.bool_)
    for at, column in enumerate(ids):
        kind = next(part.schema.field(str(column)).type for part in parts if str(column) in part.schema.names)
        places = np.flatnonzero(setters(runs, patterns, column)[order])
        first = places[changes(identity[places])] if len(places) else places
        chosen = np.full(count, -1, dtype=np.int64)
        chosen[identity[first]] = order[first]
        sets[at] = chosen >= 0
        columns[str(column)] = end_to_end(runs, str(column), kind).take(pa.array(chosen, mask=~sets[at]))
    if not sets.all() or not ids:
        columns[SET] = _set_texts(sets, ids)
    records = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return Compacted(records, count - int(arranged.row_of[-1]) - 1)


class ScopedOutput:
    """The files of a compaction: one run of them, or one for each strand that is left."""

    def __init__(self, new_run: Callable[[], FragmentRun]) -> None:
        self._new_run = new_run
        self._runs: dict[Scope, FragmentRun] = {}

    def write(self, scope: Scope, part: Compacted) -> None:
        """Add what is left of one stretch of rows."""
        run = self._runs.get(scope)
        if run is None:
            run = self._runs[scope] = self._new_run()
        run.write(_explicit(part.records), unique=part.unique, surplus=part.surplus)

    def finish(self) -> list[tuple[FragmentInfo, Scope]]:
        """Make everything durable and return what was written."""
        return [(info, scope) for scope, run in self._runs.items() for info in run.finish()]

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


def _set_texts(sets: Mask, ids: Sequence[int]) -> pa.Array:
    """Return `_set` of records of which it is known which columns they set."""
    if not ids:
        return pa.array([""] * sets.shape[1], pa.string())
    kinds, which = np.unique(sets.T, axis=0, return_inverse=True)
    texts = [None if all(kind) else " ".join(str(i) for i, has in zip(ids, kind, strict=True) if has) for kind in kinds]
    return pa.array(texts, pa.string()).take(pa.array(which.reshape(-1)))
