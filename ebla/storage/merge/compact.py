"""The merge of a compaction: many sorted runs of one group in, one out, without what nobody can see any more.

Every snapshot that may still be read is at or above the **horizon**. So of the records up to the horizon only what a
reader *at* it sees has to stay; everything after it stays as it is.

    txn   --1----2----3----4----|----5----6-->        horizon 4
          set a     set b       |  set a              2 and 3 are hidden or replaced at 4, and at every later snapshot
               erase            |
          gone gone? stays      |  stays              the erasure goes only if nothing older is left elsewhere

An erasure may hide records in fragments that are no input of this compaction. It goes only in a **rooted** one, where
there are none. The same holds for surplus versions of cells, of which another fragment may hide the newer ones; a
surplus version of a column is older than what replaced it, so whatever hides that hides it too.

What stays is **put apart** if somebody asks for it: what a reader at some later txn, the present, needs, and the rest,
which is history. It is the same question twice, for two horizons: current is what would stay if the present were the
horizon, history is what stays beside that.

    txn   --1----2----3----4----|----5----6-->        horizon 4, present 6
          set a     set b       |  set a              current: 6, or what 6 takes over of the others
               erase            |       set b         history: 3, 5; needed by readers before 6

A record that stays keeps its own txn. Where a group keeps one version of each column and knows no age, a partial record
up to the horizon and those that it updates become one, and the newest of a row takes over what others set (topping.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ebla.clock import COUNTER_BITS, microseconds_of
from ebla.model.order import Indices, Mask
from ebla.storage.merge.arrange import Arranged, ArrangedCells, arrange_cells, arrange_rows, changes, erased_mask
from ebla.storage.merge.column_sets import column_types, set_patterns, sets_differ, setters
from ebla.storage.merge.combined import columns_at
from ebla.storage.merge.erasure_cover import TXN_MAX, Erasure, erased_above, hidden_cells, hide_ranges
from ebla.storage.merge.parts import are_apart, join_parts
from ebla.storage.merge.rules import Rules, kept_versions
from ebla.storage.merge.topping import Tops, newest, taken_with_tops
from ebla.storage.record.records import ERASED, SET, Run


@dataclass(frozen=True, slots=True)
class Retention:
    """What a compaction must keep.

    `horizon`: no snapshot below this txn will be read again, and no record at or below it is anywhere but in
    fragments. `is_rooted`: every fragment that may hold records of these rows at or below the horizon is an input.
    `is_dense`: nothing but the inputs has records of these rows with a txn between the oldest and newest of theirs.
    """

    horizon: int
    is_rooted: bool
    erasures: Sequence[Erasure] = ()
    versions_kept: int | None = None
    age_max_microseconds: int | None = None
    purge_both: bool = False
    is_dense: bool = False

    def rules(self) -> Rules:
        """Return how a reader at the horizon sees the group."""
        expired = (
            None if self.age_max_microseconds is None else microseconds_of(self.horizon) - self.age_max_microseconds
        )
        return Rules(self.horizon, self.erasures, TXN_MAX, expired, self.versions_kept, self.purge_both)


@dataclass(frozen=True, slots=True)
class Compacted:
    """Records that stay, and how many of them are not the first of their identity."""

    records: pa.RecordBatch
    surplus: int

    @property
    def unique(self) -> bool:
        """Whether there is at most one record for each identity."""
        return self.surplus == 0


def compact(runs: Sequence[Run], retention: Retention, *, is_cells: bool) -> Compacted | None:
    """Return what is left of the runs of one group, or None if nothing is."""
    runs = [run for run in runs if len(run)]
    if not runs:
        return None
    runs, arranged = _arranged(runs, is_cells=is_cells)
    return _left(runs, arranged, *_kept(runs, arranged, retention))


def compact_apart(
    runs: Sequence[Run], retention: Retention, present: Retention, *, is_cells: bool
) -> tuple[Compacted | None, Compacted | None]:
    """Return what is left of the runs of one group, current and history apart.

    `present` is the same with the present in the place of the horizon, and holds what that promises. To readers from
    there on the first is what all of it is; to others, from the horizon on, both together are.
    """
    runs = [run for run in runs if len(run)]
    if not runs:
        return None, None
    runs, arranged = _arranged(runs, is_cells=is_cells)
    keep, tops = _kept(runs, arranged, retention)
    now, tops_now = _kept(runs, arranged, present)
    return _left(runs, arranged, now, tops_now), _left(runs, arranged, keep & ~now, tops)


def _arranged(runs: Sequence[Run], *, is_cells: bool) -> tuple[Sequence[Run], Arranged]:
    if is_cells:
        return runs, arrange_cells(runs)
    arranged = arrange_rows(runs)
    if are_apart(runs, arranged):
        runs = [Run(join_parts(runs))]
        arranged = arrange_rows(runs)
    return runs, arranged


def _kept(runs: Sequence[Run], arranged: Arranged, retention: Retention) -> tuple[Mask, list[Tops]]:
    """Tell which records stay, in order, and which of them take over what others set."""
    if isinstance(arranged, ArrangedCells):
        return _kept_cells(runs, arranged, retention), []
    return _kept_records(runs, arranged, retention)


def _left(runs: Sequence[Run], arranged: Arranged, keep: Mask, tops: list[Tops]) -> Compacted | None:
    if not keep.any():
        return None
    identity = arranged.identity if isinstance(arranged, ArrangedCells) else arranged.row_of
    records = taken_with_tops(runs, arranged, keep, tops) if tops else _taken(runs, arranged, keep)
    return Compacted(records, int((~changes(identity[keep])).sum()))


def _kept_records(runs: Sequence[Run], arranged: Arranged, retention: Retention) -> tuple[Mask, list[Tops]]:
    """Tell which records of a columns group stay, in order, and which of them take over what others set."""
    rules = retention.rules()
    order, row_of = arranged.order, arranged.row_of
    txns = arranged.txns[order]
    is_new = txns > retention.horizon
    # A record that was met in two places, as after a flush that was repeated, is one record.
    once = changes(row_of) | changes(txns)
    seen = ~is_new & once
    hide_ranges(seen, arranged, rules.erasures, rules.as_of)
    marks = np.zeros(len(order), dtype=np.bool_)
    erased = erased_mask(runs)
    if erased is not None:
        marks = erased[order] & seen
        covered = erased_above(marks, arranged)
        seen &= covered == 0
        marks &= covered == 1  # of several erasures of a row, the newest hides what the others do
    if rules.expires_alone and rules.expired_before is not None:
        seen &= (txns >> COUNTER_BITS) >= rules.expired_before
    keep = is_new & once
    if not retention.is_rooted:
        keep |= marks
    if rules.versions_kept is None:
        return keep | seen, []
    # The newest one makes the row exist, whatever it sets.
    places = np.flatnonzero(seen)
    newest_seen = places[changes(row_of[places])]
    keep[newest_seen] = True
    if rules.keeps_one and (retention.is_rooted or retention.is_dense):
        if not sets_differ(runs):
            return keep, []
        tops = [(newest_seen, seen)]
        return keep, [*tops, newest(runs, arranged, retention.erasures)] if retention.is_dense else tops
    for sets in _setters(runs, order):
        places = np.flatnonzero(seen & sets)
        kept = kept_versions(row_of[places], txns[places] >> COUNTER_BITS, rules, repeated=txns[places])
        keep[places[kept]] = True
    return keep, []


def _setters(runs: Sequence[Run], order: Indices) -> list[Mask]:
    """Return, for every column, which records set it, in order; columns that the same ones set are listed once."""
    patterns = set_patterns(runs)
    masks: dict[bytes, Mask] = {}
    for name in column_types(runs):
        mask = setters(runs, patterns, int(name))[order]
        masks[np.packbits(mask).tobytes()] = mask
    return list(masks.values())


def _kept_cells(runs: Sequence[Run], cells: ArrangedCells, retention: Retention) -> Mask:
    """Tell which records of a cells group stay, in order."""
    rules = retention.rules()
    txns = cells.txns[cells.order]
    is_new = txns > retention.horizon
    stamp_lead = changes(cells.identity) | changes(cells.stamps)
    once = stamp_lead | changes(txns)
    old = ~is_new & once
    hide_ranges(old, cells, rules.erasures, rules.as_of)
    keep = is_new & once
    erased = erased_mask(runs)
    seen = old
    if erased is not None:
        marks = erased[cells.order] & old
        seen = old & ~erased[cells.order] & ~hidden_cells(cells, marks)
        if not retention.is_rooted:
            # Of erasures of the same thing up to the same time, the newest hides what the others do.
            keep[_leads(marks, cells)] = True
    leads = _leads(seen, cells)
    if retention.is_rooted:
        leads = leads[kept_versions(cells.identity[leads], cells.stamps[leads], rules, repeated=cells.stamps[leads])]
    keep[leads] = True
    return keep


def _leads(mask: Mask, cells: ArrangedCells) -> Indices:
    """Return the places in `mask` that are the newest for their identity and timestamp."""
    places = np.flatnonzero(mask)
    if not len(places):
        return places
    return places[changes(cells.identity[places]) | changes(cells.stamps[places])]


def _taken(runs: Sequence[Run], arranged: Arranged, keep: Mask) -> pa.RecordBatch:
    """Return the records that stay, in order, with only the columns that they need."""
    columns = columns_at(runs, arranged, arranged.order[keep])
    sets, erased = columns.get(SET), columns.get(ERASED)
    if sets is not None and sets.null_count == len(sets):
        del columns[SET]
    if erased is not None and not erased.true_count:
        del columns[ERASED]
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
