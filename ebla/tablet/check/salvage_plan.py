"""What is lost when a damaged fragment is given up, and what METADATA is to say instead. Reads files, changes nothing.

    look_into     block by block: what can be read and is as it should be, and what is lost       Condition
    losses_of     what that means to one table: tablets, groups, keys, records, txns, and whether
                  older versions of the lost rows come to light again                             Loss, ...
    replacements  the references of a table to the file become references to what was kept of it  ReplaceFragments, ...

A block is kept whole or not at all. If the end of the file is damaged, which says where its blocks are and what is in
them, they are kept only if what it says still agrees with METADATA and with the schema, and every block with that; a
file without such an end is lost as a whole.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ebla.errors import Corruption, EblaError, FormatTooNew, MissingFile, StoreError
from ebla.metadata.values.changes import ReplaceFragments, TabletAt
from ebla.metadata.values.table_metadata import FragmentRef, GroupState, TableMetadata, TabletMetadata
from ebla.model.keys import KeyCodec
from ebla.model.ranges import KeyRange, successor
from ebla.model.schema import GroupSchema, TableSchema
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.files import Files
from ebla.storage.fragment.fragment_format import FragmentInfo, Tail
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.tablet.check.inspection import BlockInspector, headings

__all__ = ["Condition", "Loss", "instead_of", "look_into", "losses_of", "references_to", "replacements"]


@dataclass(frozen=True, slots=True)
class LostBlocks:
    """Blocks side by side that cannot be read: their rows, how many records, of which txns.

    `last` is the last row of these, or the first behind them. `continues` says that the block behind them, which is
    kept, may have older records of that row.
    """

    rows: KeyRange
    last: bytes
    continues: bool
    records: int
    txn_min: int
    txn_max: int


@dataclass(frozen=True, slots=True)
class Condition:
    """What was found in a file. `problem` is empty if it is whole; `fragment` is None if nothing can be read of it."""

    problem: str
    fragment: Fragment | None
    kept: tuple[int, ...]
    lost: tuple[LostBlocks, ...]

    @property
    def records_kept(self) -> int:
        """How many records can be read."""
        return 0 if self.fragment is None else sum(self.fragment.block_rows[number] for number in self.kept)


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that one group of one tablet loses: of keys from `first` to `last`, which may be among them."""

    table: str
    tablet: str
    group: str
    first: Any
    last: Any
    records: int  # about: versions count, and what others of the same block have
    txn_min: int
    txn_max: int
    # Files that have older records of these keys, and about how many: they are visible again.
    older_files: int
    older_records: int
    # Whether something may have been erased by what is lost: then it is there again.
    has_erasures: bool


def look_into(files: Files, ref: FragmentRef, schema: TableSchema, *, is_cells: bool) -> Condition:
    """Read all of a file that METADATA refers to, and say what can be kept of it."""
    problem = ""
    try:
        size = files.size(ref.file)
        if size != ref.bytes:
            problem = f"it has {size} bytes, and {ref.bytes} were written"
        tail = Tail(ref.tail_bytes, ref.tail_crc) if ref.tail_bytes else None
        fragment = Fragment(files, ref.file, BlockCache(0), ref.txn, tail)
    except (FileNotFoundError, MissingFile):
        return _all_lost(ref, "the file is not there")
    except FormatTooNew:
        raise  # it is not damaged
    except (Corruption, OSError) as error:
        _check_damage(error, ref.file)
        problem = str(error)
        found = _past_its_end(files, ref, schema)
        if found is None:
            return _all_lost(ref, problem)
        fragment = found
    kept: list[int] = []
    bad: dict[int, str] = {}
    inside = BlockInspector(fragment, ref, KeyCodec(schema.key))
    for number in range(len(fragment.block_rows)):
        try:
            problems = inside.look(number, number + 1)
        except (EblaError, OSError) as error:
            _check_damage(error, ref.file)
            problems = [str(error)]
        if problems:
            bad[number] = problems[0]
        else:
            kept.append(number)
    if bad and not problem:
        problem = next(iter(bad.values()))
    if not kept:
        return _all_lost(ref, problem)
    is_divisible = ref.unique and not is_cells
    return Condition(problem, fragment, tuple(kept), tuple(_lost(fragment, sorted(bad), is_divisible)))


def _check_damage(error: BaseException | None, file: str) -> None:
    """Raise unless an error is about the bytes of a file: one that may not be opened now is not lost."""
    while error is not None:
        if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
            raise StoreError(f"{file} cannot be read: {error}: nothing was changed, mend the cause, then retry")
        if isinstance(error, EblaError) and not isinstance(error, Corruption):
            raise error
        error = error.__cause__


def _all_lost(ref: FragmentRef, problem: str) -> Condition:
    rows = KeyRange(ref.first, successor(ref.last))
    lost = LostBlocks(rows, ref.last, False, ref.rows, ref.txn_min, ref.txn_max)
    return Condition(problem, None, (), (lost,))


def _past_its_end(files: Files, ref: FragmentRef, schema: TableSchema) -> Fragment | None:
    """Open a file whose end is not what was written, if everything that it says can be compared, and agrees."""
    try:
        fragment = Fragment(files, ref.file, BlockCache(0), ref.txn)
    except (EblaError, OSError):
        return None
    ids = {str(number) for number in fragment.footer.columns.values()}
    if list(headings(fragment, ref)) or not ids <= fragment.names:
        return None
    types = fragment.written_types()
    for group in schema.groups:
        for column in group.columns:
            name = str(column.id)
            if name in ids and types.get(fragment.physical_name(name)) != column.type:
                return None
    return fragment


def _lost(fragment: Fragment, bad: Sequence[int], is_divisible: bool) -> Iterator[LostBlocks]:
    """Yield stretches of blocks that cannot be read; if rows are not divided among blocks, they end before the next."""
    begin = 0
    while begin < len(bad):
        end = begin + 1
        while end < len(bad) and bad[end] == bad[end - 1] + 1:
            end += 1
        numbers = bad[begin:end]
        after = numbers[-1] + 1
        is_end = after == len(fragment.block_rows)
        last = fragment.footer.last if is_end else fragment.first_rows[after]
        is_exclusive = is_divisible and not is_end
        spans = [fragment.txn_span(number) for number in numbers]
        yield LostBlocks(
            KeyRange(fragment.first_rows[numbers[0]], last if is_exclusive else successor(last)),
            last,
            not is_divisible and not is_end,
            sum(fragment.block_rows[number] for number in numbers),
            min(low for low, _ in spans),
            max(high for _, high in spans),
        )
        begin = end


# --- what it means to a table --------------------------------------------------------------------


def references_to(metadata: TableMetadata, file: str) -> Iterator[tuple[TabletMetadata, GroupState, list[FragmentRef]]]:
    """Yield the groups of tablets that refer to a file, with their references to it."""
    for tablet in metadata.tablets:
        for state in tablet.groups:
            refs = [ref for ref in state.fragments if ref.file == file]
            if refs:
                yield tablet, state, refs


def losses_of(name: str, metadata: TableMetadata, file: str, condition: Condition, files: Files) -> Iterator[Loss]:
    """Yield what a table loses with the lost blocks of a file."""
    codec = KeyCodec(metadata.schema.key)
    for tablet, state, refs in references_to(metadata, file):
        group = metadata.schema.group_by_id[state.group]
        for ref in refs:
            counted = ref.within(tablet.range)
            for lost in condition.lost:
                rows = None if counted is None else counted.intersect(lost.rows)
                if rows is not None:
                    # History stays hidden to readers of the present, whatever replaced it.
                    older = [o for o in state.current if o.file != file and o.txn_min < lost.txn_max]
                    yield _loss(name, tablet.id, group, ref, lost, rows, older, codec, files)


def _loss(
    name: str,
    tablet: str,
    group: GroupSchema,
    ref: FragmentRef,
    lost: LostBlocks,
    rows: KeyRange,
    older: Sequence[FragmentRef],
    codec: KeyCodec,
    files: Files,
) -> Loss:
    counts = [_records_in(files, other, rows) for other in older]
    txn_min, txn_max = (lost.txn_min, lost.txn_max) if ref.txn is None else (ref.txn, ref.txn)
    is_continued = lost.continues and rows.last == lost.rows.last
    return Loss(
        table=name,
        tablet=tablet,
        group=group.name,
        first=codec.shown_bound(rows.first),
        last=codec.shown_bound(lost.last if rows.last in (None, lost.rows.last) else rows.last or b""),
        records=lost.records,
        txn_min=txn_min,
        txn_max=txn_max,
        older_files=sum(count > 0 for count in counts) + is_continued,
        older_records=sum(counts) + is_continued,
        has_erasures=ref.has_erasures,
    )


def _records_in(files: Files, ref: FragmentRef, rows: KeyRange) -> int:
    """Return about how many records a file has in a range, 0 if certainly none."""
    counted = ref.within(rows)
    if counted is None or not ref.may_have_rows_in(rows):
        return 0
    try:
        fragment = Fragment(files, ref.file, BlockCache(0), ref.txn)
    except (EblaError, OSError):
        return ref.rows
    begin, end = fragment.blocks_of(counted.first, counted.last)
    return sum(fragment.block_rows[begin:end])


def replacements(metadata: TableMetadata, file: str, kept: FragmentInfo | None) -> list[ReplaceFragments]:
    """Return the changes after which a table refers to what was kept of a file, in the place of all of it."""
    changes = []
    for tablet, state, refs in references_to(metadata, file):
        made = [] if kept is None else [instead_of(ref, kept) for ref in refs]
        added = tuple(ref for ref in made if ref.may_have_rows_in(tablet.range))
        changes.append(ReplaceFragments(TabletAt(tablet.id, tablet.epoch), state.group, tuple(refs), added, (), 0))
    return changes


def instead_of(ref: FragmentRef, kept: FragmentInfo) -> FragmentRef:
    """Return the reference to what was kept of a damaged file."""
    return msgspec.structs.replace(
        ref,
        file=kept.file,
        rows=kept.rows,
        bytes=kept.bytes,
        first=kept.first,
        last=kept.last,
        txn_min=kept.txn_min,
        txn_max=kept.txn_max,
        tail_bytes=kept.tail.size,
        tail_crc=kept.tail.crc,
        surplus=max(0, min(ref.surplus, kept.rows - 1)),
        # The newest record of a row may be among what is lost.
        topped=ref.topped and kept.rows == ref.rows,
    )
