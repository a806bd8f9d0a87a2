"""Planning a scan: which rows Spark reads by itself, and which have to be merged. Pure: values in, values out.

    fragment A   |===============================|
    fragment B             |=====|                   |======|      B: whole rows again, newer than A; and new ones
    memory                           .  .   .                      corrections here and there
    erased                                               |--|

    so            A         A+B   A   A,memory   A    B
                 |--clean--|layer|-c-|--layered-|-c| |-c-|

A stretch is **clean** where one fragment alone has records, one for each row, and nothing hides any of them: its rows
are the answer as they lie in the file. It is **layered** where files can be read as they are but for some of their
rows: those that a newer file, or anything else, has too. *Covers* say which; what the rest has to say is merged row by
row (`Merged`). Everything else that has records is **dirty**, and cut into *sections* of about equal work. All of it
together is every row of the scan, each once.

Invariants:

- A clean read yields nothing but rows of its ranges, less those that are covered: a file that has rows elsewhere (after
  a split, or because somebody corrected them) is read with a filter. Files are put into one read only if none has rows
  in the ranges of another, unless all of each is read.
- A layered stretch is read from all of its owners, or from none.
- Where in doubt, a stretch is dirty: that costs time and never an answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from ebla.direct.views import Erasure
from ebla.model.ranges import KeyRange
from ebla.pipeline.scanning.stretches import Source, Stretch, sweep

__all__ = ["CleanRead", "Cover", "Limits", "Merged", "ScanPlan", "Section", "make_plan"]

MIB = 1 << 20
# Stretches that are given up may break other reads apart; after so many rounds all layers are given up at once.
ROUNDS_MAX = 6


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
    # Files smaller than this are merged where they meet others; so are those that others have too much to say about.
    layer_records_min: int = 65_536
    layer_others_share_max: float = 0.25
    # What is merged row by row travels with the plan; keys of files that meet are compared when the plan is made.
    layer_others_max: int = 1_000_000
    layer_records_max: int = 32_000_000
    # Up to so many rows are merged as the scan is planned (overlay.py), out of files of so many bytes; 0: none are.
    overlay_rows_max: int = 200_000
    overlay_read_bytes_max: int = 512 * MIB


@dataclass(frozen=True, slots=True)
class CleanRead:
    """Files of one group whose rows are the answer: all of them, or those in `ranges` if there are any."""

    group: int
    files: tuple[str, ...]
    ranges: tuple[KeyRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that one task merges: ranges in order, and about how many records they hold.

    With `rows` (an Arrow stream of encoded keys, sorted) it is these rows alone.
    """

    ranges: tuple[KeyRange, ...]
    records: int
    rows: bytes | None = None


@dataclass(frozen=True, slots=True)
class Cover:
    """In these ranges, a row of one source (by its number) is not the answer where another has that row too."""

    source: int
    by: int
    ranges: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """The rows that a source has in these ranges are merged one by one."""

    source: int
    ranges: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """All rows of a scan, each once: what Spark reads by itself, less what is covered, and what is merged."""

    clean: tuple[CleanRead, ...]
    dirty: tuple[Section, ...]
    covers: tuple[Cover, ...] = ()
    merged: tuple[Merged, ...] = ()


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
    limits: Limits = Limits(),
) -> ScanPlan:
    """Divide the rows of a scan. `erasures` are range erasures that the scan sees, each with the group it hides in."""
    stretches = sweep(sources, erasures)
    _weigh(stretches, sources, limits)
    rounds = 0
    while True:
        reads, left = _native(stretches, sources, limits)
        if left and rounds == ROUNDS_MAX:
            left += [stretch for stretch in stretches if stretch.owners and not stretch.is_clean]
        if not left:
            break
        for stretch in left:
            stretch.give_up()
        rounds += 1
    dirty = [stretch for stretch in stretches if not stretch.owners]
    native = [stretch for stretch in stretches if stretch.owners]
    sections = _sections(dirty, [stretch.first for stretch in native], cores, limits)
    covers, merged = _layers(native, sources)
    return ScanPlan(_apart(reads, sources, {cover.source for cover in covers}), sections, covers, merged)


def _weigh(stretches: Iterable[Stretch], sources: Sequence[Source], limits: Limits) -> None:
    """Give up layers where the merge is the better way, file by file; the largest file of a stretch stands for it."""
    sizes = [sum(span.records for span in source.spans) for source in sources]
    by_base: dict[int, list[Stretch]] = defaultdict(list)
    for stretch in stretches:
        if stretch.owners:
            by_base[max(stretch.owners, key=sizes.__getitem__)].append(stretch)
    weights = {
        base: (sum(stretch.others_records for stretch in own), sum(stretch.records for stretch in own))
        for base, own in by_base.items()
        if not all(stretch.is_clean for stretch in own)
    }
    others_all = records_all = 0
    for base, (others, records) in sorted(weights.items(), key=lambda item: (item[1], item[0])):
        is_small = sizes[base] < limits.layer_records_min
        takes_long = records_all + records > limits.layer_records_max
        is_much = others > records * limits.layer_others_share_max or others_all + others > limits.layer_others_max
        if is_small or takes_long or is_much:
            for stretch in by_base[base]:
                if stretch.others or (not stretch.is_clean and (is_small or takes_long)):
                    stretch.give_up()
        if not (is_small or takes_long):
            records_all += records
            others_all += 0 if is_much else others


def _native(
    stretches: Sequence[Stretch], sources: Sequence[Source], limits: Limits
) -> tuple[tuple[CleanRead, ...], list[Stretch]]:
    """Return reads for all owners of all stretches, and the stretches of which an owner is not worth a read."""
    wholes, parts = _divided(_runs(stretches, sources), sources)
    parts.sort(key=lambda run: -run.records)
    worth = [run for run in parts if run.records >= limits.clean_records_min][: limits.clean_ranges_max]
    reads, refused = _reads(worth, sources, limits.clean_reads_max)
    kept = {id(run) for run in worth} - {id(run) for run in refused}
    left = {id(stretch): stretch for run in parts if id(run) not in kept for stretch in run.stretches}
    return (*_whole_reads(wholes, sources), *reads), list(left.values())


def _apart(reads: Iterable[CleanRead], sources: Sequence[Source], covered: Collection[int]) -> tuple[CleanRead, ...]:
    """Divide reads of whole files into files that are covered in places and others, if these are most of it."""
    files = {_file(sources[n]) for n in covered}
    sizes = {source.file: sum(span.records for span in source.spans) for source in sources}
    made: list[CleanRead] = []
    for read in reads:
        some = tuple(file for file in read.files if file in files)
        rest = tuple(file for file in read.files if file not in files)
        if read.ranges or not some or sum(sizes[file] for file in some) > sum(sizes[file] for file in rest):
            made.append(read)
        else:
            made += [replace(read, files=some), replace(read, files=rest)]
    return tuple(made)


def _layers(native: Iterable[Stretch], sources: Sequence[Source]) -> tuple[tuple[Cover, ...], tuple[Merged, ...]]:
    """Return which rows of owners are not the answer, and which of the others are merged."""
    covers: dict[tuple[int, int], list[KeyRange]] = defaultdict(list)
    merged: dict[int, list[KeyRange]] = defaultdict(list)

    def add(ranges: list[KeyRange], stretch: Stretch, source: Source) -> None:
        previous = ranges[-1].last if ranges else None
        if previous is not None and not _has_rows(source, previous, stretch.first):
            ranges[-1] = KeyRange(ranges[-1].first, stretch.last)
        else:
            ranges.append(KeyRange(stretch.first, stretch.last))

    for stretch in native:
        for at, owner in enumerate(stretch.owners):
            for other in (*stretch.owners[at + 1 :], *stretch.others):
                add(covers[owner, other], stretch, sources[other])
        for other in stretch.others:
            add(merged[other], stretch, sources[other])
    return (
        tuple(Cover(source, by, tuple(ranges)) for (source, by), ranges in sorted(covers.items())),
        tuple(Merged(source, tuple(ranges)) for source, ranges in sorted(merged.items())),
    )


def _runs(stretches: Iterable[Stretch], sources: Sequence[Source]) -> list[_Run]:
    runs: list[_Run] = []
    latest: dict[int, _Run] = {}
    for stretch in stretches:
        for owner in stretch.owners:
            run = latest.get(owner)
            if run is not None and not _has_rows(sources[owner], run.stretches[-1].last, stretch.first):
                run.stretches.append(stretch)
            else:
                latest[owner] = run = _Run(owner, [stretch])
                runs.append(run)
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


def _sections(
    dirty: Sequence[Stretch], native_rows: Sequence[bytes], cores: int, limits: Limits
) -> tuple[Section, ...]:
    """Cut dirty stretches into sections of about equal work, and join what nothing native stands between."""
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
        joins = bool(ranges) and bisect_right(native_rows, stretch.first) == bisect_right(native_rows, ranges[-1].first)
        if joins:
            ranges[-1] = KeyRange(ranges[-1].first, stretch.last)
        else:
            ranges.append(KeyRange(stretch.first, stretch.last))
        records += stretch.records
        done += load
    sections.append(Section(tuple(ranges), records))
    return tuple(sections)
