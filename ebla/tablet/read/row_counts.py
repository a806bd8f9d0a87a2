"""How many rows a tablet has, about: each counted once, however many groups and files it is in.

    group a   |-- file 1: 1,000 records ---|      memory: 10         1,010   the largest of the groups counts:
    group b   |-- file 2:   400 records ---|                           400   a row has at most one place in each
                    | file 3, shared: 900 |  --> the 300 of it that lie in the tablet

Records are counted, not rows: an update, an erasure and a new row are one each, and which is which is known when they
are merged. Of a file that reaches beyond the tablet, the records in its range count: the footer tells them block by
block, and a block across the border is looked into. Of cells, there are several for a row: as many as in a first block.

The number is exact where nothing lies on each other and nothing is erased; else it is an estimate, most often too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow.compute as pc

from ebla.errors import EblaError
from ebla.metadata.values.table_metadata import FragmentRef, TabletMetadata
from ebla.model.ranges import KeyRange
from ebla.model.schema import GroupSchema
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.record.records import Block
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.view import TableView
from ebla.tablet.read.windows import lie_on_each_other

__all__ = ["TabletCount", "count_tablet", "distinct_files"]


class TabletCount(NamedTuple):
    """What a tablet has: rows, in its files and in memory, and the share of its files."""

    rows: int
    is_exact: bool
    fragments: int  # files
    bytes: int  # of the files, by the share of their records


class _GroupCount(NamedTuple):
    rows: int
    is_exact: bool


def count_tablet(view: TableView, tablet: TabletMetadata) -> TabletCount:
    """Count what a tablet has."""
    shares: dict[str, tuple[int, float]] = {}
    groups: list[_GroupCount] = []
    for group in view.schema.groups:
        counted: list[tuple[FragmentRef, int]] = []
        for ref in tablet.group(group.id).fragments:
            records = _records_in(view.parts.reader, ref, tablet.range)
            if not ref.is_history:
                counted.append((ref, records))
            share = records / ref.rows if ref.rows else 1.0
            # A file that several groups, or several parts of a group, refer to is one file.
            shares[ref.file] = (ref.bytes, min(1.0, max(share, shares.get(ref.file, (0, 0.0))[1])))
        groups.append(_count_group(view, tablet, group, counted))
    filled = [group for group in groups if group.rows]
    return TabletCount(
        max((group.rows for group in filled), default=0),
        len(filled) <= 1 and all(group.is_exact for group in groups),
        len(shares),
        round(sum(size * share for size, share in shares.values())),
    )


def distinct_files(tablets: Sequence[TabletMetadata]) -> dict[str, int]:
    """Return the files that tablets refer to, each once, with their sizes."""
    return {ref.file: ref.bytes for tablet in tablets for state in tablet.groups for ref in state.fragments}


def _count_group(
    view: TableView, tablet: TabletMetadata, group: GroupSchema, counted: Sequence[tuple[FragmentRef, int]]
) -> _GroupCount:
    state, memory = tablet.group(group.id), view.memory_of(tablet.id, group.id)
    blocks = [(block, found) for block in memory.blocks if (found := _block_records(block, tablet.range))]
    files = [(ref, records) for ref, records in counted if records]
    records = sum(found for _, found in blocks) + sum(_newest(ref, found) for ref, found in files)
    if group.is_cells:
        per_row = _cells_per_row(view.parts.reader, [ref for ref, _ in files], [block for block, _ in blocks])
        return _GroupCount(-(-records // per_row), not records)
    spans = [(block.first, block.last) for block, _ in blocks] + [(ref.first, ref.last) for ref, _ in files]
    is_exact = (
        all(_is_unique(block) and not block.has_erasures for block, _ in blocks)
        and not any(not ref.unique or ref.has_erasures or ref.is_restricted for ref, _ in files)
        and not (records and (state.erasures or memory.erasures or group.max_age_microseconds is not None))
        and not lie_on_each_other(spans)
    )
    return _GroupCount(records, is_exact)


def _newest(ref: FragmentRef, records: int) -> int:
    """Return how many of so many records of a file are the newest of their row in it, about."""
    return records - round(ref.surplus * records / ref.rows)


def _records_in(reader: Reader, ref: FragmentRef, rows: KeyRange) -> int:
    """Return how many records of a file count in a range; all of them if the file cannot tell."""
    counted = ref.within(rows)
    if counted is None or not ref.may_have_rows_in(rows):
        return 0
    if ref.first >= counted.first and (counted.last is None or ref.last < counted.last):
        return ref.rows
    try:
        fragment = reader.fragment(ref)
        begin = _records_before(fragment, counted.first)
        end = ref.rows if counted.last is None else _records_before(fragment, counted.last)
    except EblaError:  # who reads the rows is told; this is about how many there are
        return ref.rows
    return end - begin


def _records_before(fragment: Fragment, row: bytes) -> int:
    """Return how many records of a file stand before a row; at most one block is decoded."""
    begin, end = fragment.blocks_of(row, row + b"\0")
    before = sum(fragment.block_rows[:begin])
    for number in range(begin, end):
        found = fragment.block(number).lower_bound(row)
        before += found
        if found < fragment.block_rows[number]:
            break
    return before


def _block_records(block: Block, rows: KeyRange) -> int:
    if block.last < rows.first or (rows.last is not None and block.first >= rows.last):
        return 0
    end = len(block) if rows.last is None else block.lower_bound(rows.last)
    return end - block.lower_bound(rows.first)


def _is_unique(block: Block) -> bool:
    """Tell whether every row is there once; of a block that came from the log it is not noted."""
    return block.unique or int(pc.count_distinct(block.rows).as_py()) == len(block)


def _cells_per_row(reader: Reader, files: Sequence[FragmentRef], blocks: Sequence[Block]) -> int:
    largest = max(files, key=lambda ref: ref.rows, default=None)
    if largest is not None:
        try:
            return max(1, reader.fragment(largest).block(0).cells_per_row)
        except EblaError:
            return 1
    return max((block.cells_per_row for block in blocks), default=1)
