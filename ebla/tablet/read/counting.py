"""Counting rows without reading them, where files and memory can tell.

A tablet's share of a range is cut where a block in memory, a fragment or a range erasure begins or ends. In a piece in
which a single one of them has rows, one record for each and none of them hidden, their number is known: from METADATA
where all of the fragment counts, else from the numbers of rows of its blocks, of which only those at the ends of the
piece are looked into.

    fragments   |----------------|        |------------|
    memory               |--|
    pieces      |--known-|rd|--known------|----known---|        rd: to be read and merged, as a scan does

Rows of which several groups tell, versions, ages and cells are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from ebla.metadata.values.table_metadata import FragmentRef, TabletMetadata
from ebla.model.order import lower_bound
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange, successor
from ebla.model.schema import GroupSchema
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.record.records import ROW, Block
from ebla.tablet.read.answers import is_clean, rules_for
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.scopes import is_mixed
from ebla.tablet.read.view import Sources, TableView

__all__ = ["count_pieces"]

# A tablet is cut into at most so many pieces for the sake of what is in memory: with more, most of it is merged anyway.
PIECES_MAX = 256


def count_pieces(
    view: TableView, tablet: TabletMetadata, share: KeyRange, projection: Projection, as_of: int
) -> Iterator[tuple[KeyRange, int | None]]:
    """Yield pieces that make up `share`, which must lie in `tablet`, in order, each with its number of rows.

    None for those that have to be read.
    """
    if projection.versions != 1:
        yield share, None
        return
    unknown: KeyRange | None = None
    for piece in _pieces(share, [view.sources(tablet, group.id, share, as_of) for group in projection.groups]):
        found = [(group, view.sources(tablet, group.id, piece, as_of)) for group in projection.groups]
        there = [(group, sources) for group, sources in found if len(sources)]
        count = 0 if not there else None
        if len(there) == 1:
            count = _known(view.parts.reader, *there[0], piece, as_of)
        if count is None:
            unknown = piece if unknown is None else KeyRange(unknown.first, piece.last)
            continue
        if unknown is not None:
            yield unknown, None
            unknown = None
        yield piece, count
    if unknown is not None:
        yield unknown, None


def _pieces(share: KeyRange, groups: Sequence[Sources]) -> list[KeyRange]:
    ends: set[bytes] = set()
    in_memory: set[bytes] = set()
    for sources in groups:
        for ref in sources.fragments:
            ends |= {ref.first, successor(ref.last)}
        for erasure in sources.erasures:
            ends |= {erasure.first} if erasure.last is None else {erasure.first, erasure.last}
        for block in sources.blocks:
            in_memory |= {block.first, successor(block.last)}
    if len(ends) + len(in_memory) <= PIECES_MAX:
        ends |= in_memory
    cuts = [share.first, *sorted(end for end in ends if end > share.first and share.contains(end))]
    return [KeyRange(first, last) for first, last in zip(cuts, [*cuts[1:], share.last], strict=True)]


def _known(reader: Reader, group: GroupSchema, sources: Sources, piece: KeyRange, as_of: int) -> int | None:
    if (
        group.is_cells
        or is_mixed(sources.fragments, group)
        or not is_clean(sources, rules_for(group, as_of, sources, 1))
    ):
        return None
    in_memory = sum(_block_rows(block, piece) for block in sources.blocks)
    return in_memory + sum(_fragment_rows(reader, ref, piece) for ref in sources.fragments)


def _block_rows(block: Block, piece: KeyRange) -> int:
    end = len(block) if piece.last is None else block.lower_bound(piece.last)
    return max(0, end - block.lower_bound(piece.first))


def _fragment_rows(reader: Reader, ref: FragmentRef, piece: KeyRange) -> int:
    counted = ref.within(piece)
    if counted is None:
        return 0
    if counted.first <= ref.first and (counted.last is None or ref.last < counted.last):
        return ref.rows
    fragment = reader.fragment(ref)
    end = ref.rows if counted.last is None else _rows_before(fragment, counted.last)
    return max(0, end - _rows_before(fragment, counted.first))


def _rows_before(fragment: Fragment, row: bytes) -> int:
    """Return how many records a fragment with one for each row has before `row`."""
    number = bisect_right(fragment.first_rows, row) - 1
    if number < 0:
        return 0
    block = fragment.cached_block(number)
    if block is not None:
        within = block.lower_bound(row)
    else:
        rows = fragment.read_blocks(number, number + 1, [ROW]).column(ROW).combine_chunks()
        within = lower_bound(rows, row)
    return sum(fragment.block_rows[:number]) + within
