"""Planning a scan: which rows Spark reads by itself, and which have to be merged. Pure: values in, values out.

    fragment A   |=========================|
    fragment B                |====|            |=========|      B: a correction of some rows, then new ones
    erased                                                  |--|

    who is there  A            A+B   A           B           -
    so            |---clean---|dirty|---clean---|---clean---|

A stretch is **clean** where one fragment alone has records, one for each row, and nothing hides any of them: its rows
are the answer as they lie in the file. Everything else that has records is **dirty**, and cut into *sections* of about
equal work. Clean and dirty together are every row of the scan, each once.

Invariants:

- A clean read yields nothing but rows of its clean ranges: a file that has rows elsewhere (after a split, or because
  somebody corrected them) is read with a filter. Files are put into one read only if none has rows in the ranges of
  another.
- Where in doubt, a stretch is dirty: that costs time and never an answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from ebla.pipeline.stretches import Source, Stretch, sweep
from ebla.ranges import KeyRange
from ebla.storage.merge import Erasure

__all__ = ["CleanRead", "Limits", "ScanPlan", "Section", "make_plan"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """How finely a scan is divided."""

    # A section has about so much to read, or less where that keeps more cores busy.
    section_records: int = 500_000
    section_bytes: int = 64 * MIB
    # Below this, a section is not divided for the sake of more cores.
    section_records_min: int = 65_536
    # A clean part of a file is read by Spark if it is worth it, and these are not too many to filter by.
    clean_records_min: int = 16_384
    clean_ranges_max: int = 64
    clean_reads_max: int = 8


@dataclass(frozen=True, slots=True)
class CleanRead:
    """Files of one group whose rows are the answer: all of them, or those in `ranges` if there are any."""

    group: int
    files: tuple[str, ...]
    ranges: tuple[KeyRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that one task merges: ranges in order, and about how many records they hold."""

    ranges: tuple[KeyRange, ...]
    records: int


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """All rows of a scan, each once: what Spark reads by itself, and what is merged."""

    clean: tuple[CleanRead, ...]
    dirty: tuple[Section, ...]


@dataclass(slots=True)
class _Run:
    """Consecutive stretches of one file, which are read as one range."""

    owner: int
    stretches: list[Stretch]

    @property
    def range(self) -> KeyRange:
        return KeyRange(self.stretches[0].first, self.stretches[-1].last)

    @property
    def records(self) -> int:
        return sum(stretch.records for stretch in self.stretches)


def make_plan(
    sources: Sequence[Source],
    erasures: Iterable[tuple[int, Erasure]],
    cores: int = 1,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> ScanPlan:
    """Divide the rows of a scan. `erasures` are range erasures that the scan sees, each with the group it hides in."""
    stretches, _ = sweep(sources, erasures)
    wholes, parts = _divided(_runs(stretches, sources), sources)
    parts.sort(key=lambda run: -run.records)
    worth = [run for run in parts if run.records >= limits.clean_records_min][: limits.clean_ranges_max]
    reads, refused = _reads(worth, sources, limits.clean_reads_max)
    kept = {id(run) for run in worth} - {id(run) for run in refused}
    dirty = [stretch for stretch in stretches if stretch.owner is None]
    dirty += [stretch for run in parts if id(run) not in kept for stretch in run.stretches]
    dirty.sort(key=lambda stretch: stretch.first)
    clean_rows = sorted(run.range.first for run in [*wholes, *(run for run in worth if id(run) in kept)])
    return ScanPlan((*_whole_reads(wholes, sources), *reads), _sections(dirty, clean_rows, cores, limits))


def _runs(stretches: Iterable[Stretch], sources: Sequence[Source]) -> list[_Run]:
    runs: list[_Run] = []
    previous: Stretch | None = None
    for stretch in stretches:
        if stretch.owner is not None:
            joins = (
                previous is not None
                and previous.owner == stretch.owner
                and not _has_rows(sources[stretch.owner], previous.last, stretch.first)
            )
            if joins:
                runs[-1].stretches.append(stretch)
            else:
                runs.append(_Run(stretch.owner, [stretch]))
        previous = stretch
    return runs


def _has_rows(source: Source, first: bytes, last: bytes) -> bool:
    """Tell whether a source may have rows in [first, last), counted or not."""
    if first >= last:
        return False
    at = bisect_right(source.spans, first, key=lambda span: span.last)
    return at < len(source.spans) and source.spans[at].first < last


def _divided(runs: Iterable[_Run], sources: Sequence[Source]) -> tuple[list[_Run], list[_Run]]:
    """Return the runs that have all rows of their file, and the others."""
    wholes: list[_Run] = []
    parts: list[_Run] = []
    for run in runs:
        spans = sources[run.owner].spans
        is_whole = run.range.first <= spans[0].first and run.stretches[-1].last >= spans[-1].last
        (wholes if is_whole else parts).append(run)
    return wholes, parts


def _file(source: Source) -> str:
    assert source.file is not None, "only files are read natively"
    return source.file


def _whole_reads(wholes: Iterable[_Run], sources: Sequence[Source]) -> list[CleanRead]:
    files: dict[int, list[str]] = defaultdict(list)
    for run in wholes:
        files[sources[run.owner].group].append(_file(sources[run.owner]))
    return [CleanRead(group, tuple(named)) for group, named in sorted(files.items())]


def _reads(runs: Iterable[_Run], sources: Sequence[Source], reads_max: int) -> tuple[list[CleanRead], list[_Run]]:
    """Put parts of files into as few reads as can be, and return those that found no place."""
    by_file: dict[int, list[_Run]] = defaultdict(list)
    for run in runs:
        by_file[run.owner].append(run)
    reads: list[list[int]] = []
    refused: list[_Run] = []
    for owner, own in sorted(by_file.items()):
        for members in reads:
            if all(_fit(owner, own, other, by_file[other], sources) for other in members):
                members.append(owner)
                break
        else:
            if len(reads) < reads_max:
                reads.append([owner])
            else:
                refused += own
    made = []
    for members in reads:
        ranges = sorted((run.range for owner in members for run in by_file[owner]), key=lambda r: r.first)
        files = tuple(_file(sources[owner]) for owner in members)
        made.append(CleanRead(sources[members[0]].group, files, tuple(ranges)))
    return made, refused


def _fit(one: int, ones: Sequence[_Run], other: int, others: Sequence[_Run], sources: Sequence[Source]) -> bool:
    """Tell whether two files of one group have no rows in each other's ranges."""
    if sources[one].group != sources[other].group:
        return False

    def strays(source: Source, runs: Sequence[_Run]) -> bool:
        return any(_has_rows(source, run.stretches[0].first, run.stretches[-1].last) for run in runs)

    return not strays(sources[one], others) and not strays(sources[other], ones)


def _sections(dirty: Sequence[Stretch], clean_rows: Sequence[bytes], cores: int, limits: Limits) -> tuple[Section, ...]:
    """Cut dirty stretches into sections of about equal work, and join what nothing clean stands between."""
    if not dirty:
        return ()
    loads = [max(s.records / limits.section_records, s.bytes / limits.section_bytes) for s in dirty]
    records_all = sum(stretch.records for stretch in dirty)
    count = max(1, ceil(sum(loads)), min(2 * cores, records_all // max(1, limits.section_records_min)))
    target = max(sum(loads), 1e-9) / count
    sections: list[Section] = []
    ranges: list[KeyRange] = []
    records, done, goal = 0, 0.0, target
    for stretch, load in zip(dirty, loads, strict=True):
        if ranges and done >= goal and len(sections) < count - 1:
            sections.append(Section(tuple(ranges), records))
            ranges, records, goal = [], 0, goal + target
        joins = bool(ranges) and bisect_right(clean_rows, stretch.first) == bisect_right(clean_rows, ranges[-1].first)
        if joins:
            ranges[-1] = KeyRange(ranges[-1].first, stretch.last)
        else:
            ranges.append(KeyRange(stretch.first, stretch.last))
        records += stretch.records
        done += load
    sections.append(Section(tuple(ranges), records))
    return tuple(sections)
