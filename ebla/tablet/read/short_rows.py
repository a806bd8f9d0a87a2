"""The first few rows of a stretch, one by one: what a short scan is read by, where all files have lookup files.

A window of Arrow costs some hundred microseconds, whatever is in it: blocks are decoded, sliced, merged, assembled and
made dicts of. For twenty rows it is less to take the values of each from the lookup files and to resolve them as `get`
does.

    lookup file   a   c d     |
    lookup file     b c   e   |-- smallest row next, with all that sources have of it --> dict
    memory            c       |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from ebla.metadata.values.table_metadata import FragmentRef, TabletMetadata
from ebla.model.keys import KeyCodec
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange
from ebla.model.schema import GroupSchema
from ebla.storage.lookup.lookup_file import LookupFile
from ebla.storage.lookup.lookup_format import Damaged
from ebla.storage.lookup.lookup_policy import SHORT_SCAN_POINTS
from ebla.storage.lookup.lookups import Lookups
from ebla.storage.lookup.row_values import CellLists, Elsewhere, RecordShape, Values, Wanted
from ebla.storage.record.cell_block import CellBlock
from ebla.storage.record.records import Block
from ebla.storage.record.row_block import RowBlock
from ebla.tablet.read.answers import ReadPoint, rules_for
from ebla.tablet.read.row_cells import cell_lists_in, newest_cells
from ebla.tablet.read.row_records import RowRecord, newest_first, resolve, visible_records
from ebla.tablet.read.view import NO_SOURCES, TableView, check_history

__all__ = ["SHORT_ROWS_MAX", "ShortRows", "Taken"]

# More rows than this are quicker by Arrow.
SHORT_ROWS_MAX = 128
# More blocks of memory, or of single rows there, are combined first.
BLOCKS_MAX = 32
SINGLE_ROWS_MAX = 256
# So many rows are looked at for each that is wanted: where more are erased, a window tells that quicker.
LOOKED_AT_FACTOR = 4

# What a source has of a row: values of a lookup file, or the places in a block.
_Found: TypeAlias = "Values | tuple[Block, int, int]"


class Taken(NamedTuple):
    """Rows as dicts, each with its encoded key, and the row up to which that is everything; None: the whole stretch."""

    rows: list[tuple[bytes, dict[str, Any]]]
    end: bytes | None


class _Source:
    """A lookup file or a block, at one of its rows."""

    __slots__ = ("_rows", "found", "group", "is_past", "pick", "row", "shape", "txn")

    def __init__(
        self,
        group: int,
        rows: Iterator[tuple[bytes, _Found]],
        shape: RecordShape | None = None,
        txn: int | None = None,
        *,
        is_past: bool = False,
    ) -> None:
        """`is_past`: no record of it is newer than the reader."""
        self.is_past = is_past
        self.pick: Callable[[Values], tuple[Any, ...]] | None = None  # what takes the wanted columns of its rows
        self.group = group
        self._rows = rows
        self.shape = shape
        self.txn = txn
        self.row = b""
        self.found: _Found = []

    def advance(self) -> bool:
        """Go on to the next row; False if there is none."""
        found = next(self._rows, None)
        if found is None:
            return False
        self.row, self.found = found
        return True

    def run(self, bound: bytes | None, count: int) -> Iterator[tuple[bytes, Values]]:
        """Yield up to `count` rows below `bound`, from this one on, of a lookup file, and stand at the one after them.

        Where there is none, `row` is empty then.
        """
        row, found = self.row, self.found
        for _ in range(count):
            if bound is not None and row >= bound:
                break
            assert not isinstance(found, tuple), "of a lookup file"
            if len(found) == 1:
                raise Elsewhere
            yield row, found
            row, found = next(self._rows, (b"", []))
            if not found:
                break
        self.row, self.found = row, found


class ShortRows:
    """Reads the first few rows of stretches of one table."""

    def __init__(self, lookups: Lookups, codec: KeyCodec, typed_since: int) -> None:
        """Columns of files that were written before version `typed_since` may have other types there."""
        # Set once.
        self._lookups = lookups
        self._codec = codec
        self._typed_since = typed_since

    def take(self, view: TableView, tablet: TabletMetadata, share: KeyRange, point: ReadPoint) -> Taken | None:
        """Return the first rows of `share`, which lies in `tablet`, up to the limit; None if Arrow has to read them.

        `Damaged`, `Elsewhere` or `OSError` if a lookup file does not have them.
        """
        limit = point.limit
        assert limit is not None, "a short scan has a limit"
        sources = self._sources(view, tablet, share, point)
        if sources is None:
            return None
        sources = [source for source in sources if source.advance()]
        taken: list[tuple[bytes, dict[str, Any]]] = []
        names = (*point.projection.schema.key_names, *(name for name, _ in point.projection.by_group[0][1]))
        decode = self._codec.decode
        for _ in range(LOOKED_AT_FACTOR * limit):
            if not sources:
                return Taken(taken, None)
            first = sources[0] if len(sources) == 1 else min(sources, key=_row_of)
            row = first.row
            if share.last is not None and row >= share.last:
                return Taken(taken, None)
            if len(taken) == limit:
                return Taken(taken, row)
            pick = first.pick
            if pick is not None:
                # Up to the next row of another source it has them alone.
                bounds = [source.row for source in sources if source is not first]
                if share.last is not None:
                    bounds.append(share.last)
                bound = min(bounds, default=None)
                if bound is None or row < bound:
                    for row, found in first.run(bound, limit - len(taken)):
                        taken.append((row, dict(zip(names, (*decode(row), *pick(found)), strict=True))))
                    if not first.found:
                        sources.remove(first)
                    continue
            shown = self._shown(row, [source for source in sources if source.row == row], point)
            if shown is None:
                return None
            if shown:
                taken.append((row, shown))
            sources = [source for source in sources if source.row != row or source.advance()]
        return Taken(taken, min((source.row for source in sources), default=None))

    def _sources(
        self, view: TableView, tablet: TabletMetadata, share: KeyRange, point: ReadPoint
    ) -> list[_Source] | None:
        """Return all that may have rows from the first of `share` on, before their first rows; None if too much may."""
        as_of = point.as_of
        sources: list[_Source] = []
        is_alone = len(point.projection.groups) == 1
        for group, (_, wanted) in zip(point.projection.groups, point.projection.by_group, strict=True):
            memory = view.memory_of(tablet.id, group.id)
            state = tablet.group(group.id)
            check_history(state, as_of)
            if memory.erasures or state.erasures or memory.count > BLOCKS_MAX + SINGLE_ROWS_MAX:
                return None
            blocks = [block for block in memory.blocks if block.txn_min <= as_of and block.last >= share.first]
            single = [block for block in blocks if isinstance(block, (RowBlock, CellBlock))]
            if len(blocks) - len(single) > BLOCKS_MAX or len(single) > SINGLE_ROWS_MAX:
                return None
            if len(single) < len(blocks):
                sources += [
                    _Source(group.id, _rows_of_block(block, share.first))
                    for block in blocks
                    if not isinstance(block, (RowBlock, CellBlock))
                ]
            sources += [_Source(group.id, rows) for rows in _rows_of_single(single)]
            for ref in state.fragments:
                if not ref.is_read_at(as_of) or not ref.may_have_rows_in(share):
                    continue
                if self._counts_in_part(ref):
                    return None
                file = self._lookups.of(ref.file, ref.bytes)
                if file is None:
                    self._lookups.note_cost(ref.file, ref.rows, SHORT_SCAN_POINTS)
                    return None
                rows = self._rows_of_file(file, ref.file, share.first)
                is_past = ref.txn_max <= as_of
                source = _Source(group.id, rows, file.shape, ref.txn, is_past=is_past)
                if is_past and is_alone and not group.is_cells:
                    source.pick = file.shape.pick(wanted)
                sources.append(source)
        has_only_blocks = bool(sources) and all(source.shape is None for source in sources)
        return None if has_only_blocks else sources  # which Arrow reads as quickly

    def _rows_of_file(self, file: LookupFile, fragment: str, first: bytes) -> Iterator[tuple[bytes, _Found]]:
        """Yield the rows of a lookup file from one on."""
        try:
            for values in file.rows_from(first):
                yield values[0], values
        except (Damaged, OSError) as reason:
            self._lookups.let_go_damaged(fragment, reason)
            raise

    def _counts_in_part(self, ref: FragmentRef) -> bool:
        return ref.is_restricted or ref.clip is not None or ref.schema_version < self._typed_since

    def _shown(self, row: bytes, sources: Sequence[_Source], point: ReadPoint) -> dict[str, Any] | None:
        """Return a row as a user gets it, an empty one if there is none to be seen; None if it has to be merged."""
        projection, as_of = point.projection, point.as_of
        values: dict[str, Any] = {}
        cells: dict[int, dict[tuple[str, str], bytes]] = {}
        exists = False
        for group, (group_id, wanted) in zip(projection.groups, projection.by_group, strict=True):
            own = sources if len(projection.groups) == 1 else [one for one in sources if one.group == group_id]
            if group.is_cells:
                found = newest_cells(
                    [_cells(one) for one in own], as_of=as_of, expired_before=_expired_before(group, as_of)
                )
                if found is None:
                    return None
                cells[group_id] = projection.only_wanted(group, found)
                exists |= bool(cells[group_id])
                continue
            newest = _newest(own[0], wanted) if len(own) == 1 else None
            if newest is not None:
                values |= newest
                exists = True
                continue
            values.update([(name, None) for name, _ in wanted])
            if own:
                exists |= resolve(newest_first([_records(one, as_of) for one in own]), wanted, values)
        if not exists:
            return {}
        key = zip(projection.schema.key_names, self._codec.decode(row), strict=True)
        return projection.shown_cells(key, values, cells) if cells else _in_order(projection, key, values)


_row_of = attrgetter("row")
_first_of = attrgetter("first")


def _in_order(projection: Projection, key: Iterator[tuple[str, Any]], values: dict[str, Any]) -> dict[str, Any]:
    if len(projection.groups) == 1:
        return dict(chain(key, values.items()))
    return dict(chain(key, ((name, values[name]) for name in projection.names)))


def _expired_before(group: GroupSchema, as_of: int) -> int | None:
    if group.max_age_microseconds is None:
        return None
    rules = rules_for(group, as_of, NO_SOURCES, 1)
    return rules.expired_before if rules.expires_alone else None


def _rows_of_single(blocks: Sequence[Block]) -> list[Iterator[tuple[bytes, _Found]]]:
    """Return blocks of single rows in order, in as few lines as each row is at most once in a line."""
    lines: list[list[Block]] = []
    for block in sorted(blocks, key=_first_of):
        for line in lines:
            if line[-1].first < block.first:
                line.append(block)
                break
        else:
            lines.append([block])
    return [((block.first, (block, 0, len(block))) for block in line) for line in lines]


def _rows_of_block(block: Block, first: bytes) -> Iterator[tuple[bytes, _Found]]:
    """Yield the rows of a block from one on, with their places."""
    begin = block.lower_bound(first)
    while begin < len(block):
        row = block.row_at(begin)
        end = begin + 1
        while end < len(block) and block.row_at(end) == row:
            end += 1
        yield row, (block, begin, end)
        begin = end


def _newest(source: _Source, wanted: Wanted) -> dict[str, Any] | None:
    """Return the wanted columns of a row that one lookup file alone has, if its newest record says it all."""
    found = source.found
    if source.shape is None or not source.is_past or isinstance(found, tuple):
        return None
    source.shape.check_here(found)
    return source.shape.newest(found, wanted)


def _records(source: _Source, as_of: int) -> Sequence[RowRecord] | Iterator[RowRecord]:
    found = source.found
    if isinstance(found, tuple):
        return visible_records(*found, 0, as_of)
    assert source.shape is not None, "values are those of a lookup file"
    source.shape.check_here(found)
    return source.shape.records(found, source.txn, 0, as_of)


def _cells(source: _Source) -> CellLists:
    found = source.found
    if isinstance(found, tuple):
        return cell_lists_in(*found)
    assert source.shape is not None, "values are those of a lookup file"
    source.shape.check_here(found)
    return source.shape.cell_lists(found, source.txn)
