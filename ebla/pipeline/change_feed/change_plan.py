"""Which rows were touched between two txns: where to look for them, and how to share the looking out.

    since              until
      |    fragment B    |           all of its rows were touched
      |        fragment C ---+--     some were: those of records with a txn between the two
    --+-- fragment A             |   none, unless a range erasure between the two covers them
      |    memory              --+-- as fragments

    driver   `steps`         ranges of rows with about the same work each, from METADATA and footers     no row is read
    task     `touched_rows`  the rows of one range, sorted, each once                                    keys and txns

Nothing that has no txn between the two is opened. Since txn 0, before everything, all rows there are were touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

import pyarrow as pa

from ebla.direct.fragments import ROW, TXN, Block, Run
from ebla.direct.views import Erasure, Reader, TableView, check_history
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange
from ebla.pipeline.scanning.layers import distinct

__all__ = ["Step", "check_since", "has_touched", "steps", "touched_rows"]

Origin: TypeAlias = FragmentRef | Block
MEMORY_STRIDE = 1_024
# A source with fewer records than this part of a step is not looked into: it goes with its first row.
MARKS_PER_STEP = 4


@dataclass(frozen=True, slots=True)
class Step:
    """A range of rows to look through, and about how many records that means."""

    range: KeyRange
    records: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to look: of the records of a source in a range, those with a txn in (after, up_to] were touched."""

    origin: Origin
    range: KeyRange
    after: int
    up_to: int

    @property
    def records(self) -> int:
        return self.origin.rows if isinstance(self.origin, FragmentRef) else len(self.origin)


def check_since(view: TableView, projection: Projection, key_range: KeyRange, since: int) -> None:
    """Raise `HistoryGone` if it is not known any more what rows of a range were at a txn; before everything, it is."""
    if not since:
        return
    for tablet, _ in view.tablets_in(key_range):
        for group in projection.groups:
            check_history(tablet.group(group.id), since)


def _places(view: TableView, projection: Projection, key_range: KeyRange, since: int, until: int) -> Iterator[_Place]:
    for tablet, share in view.tablets_in(key_range):
        for group in projection.groups:
            state = tablet.group(group.id)
            memory = view.memory_of(tablet.id, group.id)
            erasures: list[Erasure] = [*state.erasures, *memory.erasures]
            erased = [
                part
                for erasure in erasures
                if since < erasure.txn <= until
                and (part := share.intersect(KeyRange(erasure.first, erasure.last))) is not None
            ]
            origins: list[Origin] = [*state.fragments, *memory.blocks]
            for origin in origins:
                counted = origin.within(share) if isinstance(origin, FragmentRef) else share
                if counted is None or origin.txn_min > until or not _may_meet(origin, counted):
                    continue
                if origin.txn_max > since:
                    yield _Place(origin, counted, since, until)
                for part in erased:
                    # What an erasure covers was touched if it was there before.
                    both = counted.intersect(part)
                    if origin.txn_min <= since and both is not None and _may_meet(origin, both):
                        yield _Place(origin, both, 0, since)


def _may_meet(origin: Origin, rows: KeyRange) -> bool:
    return origin.last >= rows.first and (rows.last is None or origin.first < rows.last)


def has_touched(view: TableView, projection: Projection, key_range: KeyRange, since: int, until: int) -> bool:
    """Tell whether a row may have been touched, by METADATA and memory alone."""
    return next(_places(view, projection, key_range, since, until), None) is not None


def steps(
    view: TableView,
    reader: Reader,
    projection: Projection,
    key_range: KeyRange,
    since: int,
    until: int,
    records_max: int,
    tasks: int = 1,
) -> list[Step]:
    """Cut a range into steps of at most about `records_max` records to look at, as many for each of so many `tasks`.

    The steps are about even; they cover the range without a gap; there are none if nothing in it can have been touched.
    """
    places = list(_places(view, projection, key_range, since, until))
    if not places:
        return []
    whole = sum(place.records for place in places)
    marks: list[tuple[bytes, int]] = []
    for place in places:
        marks += _marks(place, reader, whole // _count(whole, records_max, tasks) // MARKS_PER_STEP)
    marks.sort()
    # Of a file that is asked for in part, only that part is left.
    left = sum(records for _, records in marks)
    count = _count(left, records_max, tasks)
    found: list[Step] = []
    first, held = key_range.first, 0
    for row, records in marks:
        if held and row > first and held + records / 2 > left / max(1, count - len(found)):
            found.append(Step(KeyRange(first, row), held))
            first, held, left = row, 0, left - held
        held += records
    return [*found, Step(KeyRange(first, key_range.last), held)]


def _count(records: int, records_max: int, tasks: int) -> int:
    """Return into how many steps records are cut: so many for every task, none with many more than the most."""
    return tasks * max(1, ceil(records / (tasks * records_max)))


def _marks(place: _Place, reader: Reader, stride: int) -> Iterator[tuple[bytes, int]]:
    """Yield rows from which on so many records come, up to the next of them; of few records, just the first."""
    origin, first, last = place.origin, place.range.first, place.range.last
    if place.records <= stride:
        yield max(first, origin.first), place.records
    elif isinstance(origin, FragmentRef):
        fragment = reader.fragment(origin)
        begin, end = fragment.blocks_of(first, last)
        for block in range(begin, end):
            yield max(first, fragment.first_rows[block]), fragment.block_rows[block]
    else:
        run = origin.slice_range(first, last)
        rows = None if run is None else run.column(ROW)
        for at in range(0, 0 if rows is None else len(rows), MEMORY_STRIDE):
            assert rows is not None
            yield rows[at].as_py(), min(MEMORY_STRIDE, len(rows) - at)


def touched_rows(
    view: TableView, reader: Reader, projection: Projection, key_range: KeyRange, since: int, until: int
) -> pa.Array:
    """Return the rows that some record or range erasure with a txn in (since, until] touched, sorted, each once.

    Raises `HistoryGone` if it is not known any more what they were before.
    """
    check_since(view, projection, key_range, since)
    places = _places(view, projection, key_range, since, until)
    return distinct([rows for place in places for rows in _rows(place, reader)])


def _rows(place: _Place, reader: Reader) -> Iterator[pa.Array]:
    origin, share = place.origin, place.range
    is_whole = origin.txn_min > place.after and origin.txn_max <= place.up_to
    run: Run | None
    if isinstance(origin, FragmentRef):
        run = reader.fragment(origin).read_range(share.first, share.last, [ROW] if is_whole else [ROW, TXN])
    else:
        run = origin.slice_range(share.first, share.last)
    if run is None:
        return
    rows = run.column(ROW)
    assert rows is not None
    if is_whole:
        yield rows
        return
    txns = run.txns()
    yield rows.filter(pa.array((txns > place.after) & (txns <= place.up_to)))
