"""Planning a compaction: which fragments become which runs, and which task merges what. Pure, but for the footers.

    METADATA, terms --choose_merges-->  a merge for every tablet and group that has something to gain
                    --divide-------->  sections, cut at rows where blocks begin; portions, one for each task

    merge 1   |----section----|----section----|---section---|        a large tablet: several tasks
    merge 2   |-section-|                                            small ones: several to a task
    merge 3   |-section-|

The engine's own chooser says what is merged (`tablet.compaction`), on the terms of whoever owns the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from ebla.direct.compacting import Reason, choose_merge, cut
from ebla.metadata.values.changes import TabletAt
from ebla.metadata.values.table_metadata import FragmentRef, TableMetadata, TabletMetadata
from ebla.model.ranges import KeyRange
from ebla.model.schema import GroupSchema
from ebla.pipeline.spark.portions import portions_of
from ebla.service.job_orders import CompactionTerms, GroupTerms, Merge, Strategy
from ebla.settings import MIB

__all__ = ["PlannedMerge", "Section", "Wanted", "choose_merges", "divide"]

# A section is not smaller than this for the sake of more cores: its outcome would soon be merged with others again.
SECTION_BYTES_MIN = 16 * MIB
PORTIONS_PER_CORE = 3


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    """A merge of one group of one tablet."""

    tablet: TabletAt
    range: KeyRange
    group: int
    reason: Reason
    merge: Merge

    @property
    def bytes(self) -> int:
        """How much is read."""
        return sum(ref.bytes for ref in self.merge.fragments)


# Rows, and the group whose fragments are to be merged there; None: all groups.
Wanted: TypeAlias = tuple[KeyRange, int | None]


@dataclass(frozen=True, slots=True)
class Section:
    """The part of a merge, by its number, that lies in a range of rows."""

    merge: int
    share: KeyRange
    bytes: int


def choose_merges(
    metadata: TableMetadata,
    terms: CompactionTerms,
    wanted: Sequence[Wanted],
    *,
    only_due: bool,
) -> list[PlannedMerge]:
    """Choose what to merge in the tablets that have rows in one of the ranges `wanted`.

    With `only_due`, what the engine would merge by itself; otherwise everything there is, as when a person asks.
    """
    by_group = {one.group: one for one in terms.groups}
    merges = []
    for tablet in metadata.tablets:
        for group in metadata.schema.groups:
            is_wanted = any(number in (None, group.id) and tablet.range.overlaps(rows) for rows, number in wanted)
            known = by_group.get(group.id)  # a group that was made at this moment has its turn another time
            if is_wanted and known is not None:
                found = _choose(tablet, group, known, terms.strategy, only_due)
                merges += [] if found is None else [found]
    return merges


def _choose(
    tablet: TabletMetadata, group: GroupSchema, known: GroupTerms, strategy: Strategy, only_due: bool
) -> PlannedMerge | None:
    found = choose_merge(tablet.group(group.id), group, known, strategy, only_due=only_due)
    if found is None:
        return None
    reason, merge = found
    return PlannedMerge(TabletAt(tablet.id, tablet.epoch), tablet.range, group.id, reason, merge)


Marks: TypeAlias = Sequence[tuple[bytes, int]]


def divide(
    merges: Sequence[PlannedMerge], cores: int, file_bytes: int, marks_of: Callable[[FragmentRef], Marks]
) -> list[list[Section]]:
    """Divide merges into portions of about equal work, the largest first.

    `marks_of` gives the first row of every block of a fragment, and how many records it has; it is asked only where a
    merge is too large for one task.
    """
    total = sum(one.bytes for one in merges)
    goal = max(SECTION_BYTES_MIN, min(file_bytes, ceil(total / (PORTIONS_PER_CORE * max(1, cores)))))
    sections: list[Section] = []
    for number, one in enumerate(merges):
        if one.merge.fragments:
            sections += _sections(number, one, goal, marks_of)
    return portions_of(sections, lambda one: one.bytes, goal)


def _sections(number: int, one: PlannedMerge, goal: int, marks_of: Callable[[FragmentRef], Marks]) -> list[Section]:
    count = round(one.bytes / goal)
    if count <= 1:
        return [Section(number, one.range, one.bytes)]
    marks: list[tuple[bytes, int]] = []
    for ref in one.merge.fragments:
        record_bytes = ref.bytes / max(1, ref.rows)
        counted = ref.within(one.range)
        own = marks_of(ref) if counted is not None else ()
        marks += [
            (row, ceil(rows * record_bytes)) for row, rows in own if counted is not None and counted.contains(row)
        ]
    marks.sort()
    share = ceil(sum(weight for _, weight in marks) / count)
    return [Section(number, window, weight) for window, weight in cut(one.range, marks, share, share)]
