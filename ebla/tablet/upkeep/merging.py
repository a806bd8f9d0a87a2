"""Carrying out a merge that was chosen: fragments in, one run of new files out. By the engine itself, or by any task.

    Choice --merge_of--> Merge, a value that can be sent elsewhere
    merge(reader, ..., share)     a stretch of the key at a time, without what nobody can see any more --> files
    merged_references(...)        what METADATA is to say of them

The share of one task is any part of the tablet, cut at rows: shares that lie side by side give runs that lie side by
side, and all of them together are what one merge of the whole would have given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from ebla.metadata.values.changes import ReplaceFragments, TabletAt
from ebla.metadata.values.table_metadata import FragmentRef, GroupState
from ebla.model.keys import KeyCodec
from ebla.model.ranges import KeyRange
from ebla.model.schema import GroupSchema, TableSchema
from ebla.service.job_orders import Merge
from ebla.storage.files.files import Files
from ebla.storage.fragment.fragment_format import FragmentInfo
from ebla.storage.fragment.fragment_run import FragmentRun
from ebla.storage.merge.compact import Retention, compact
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE
from ebla.tablet.flush.serialize import reference_to
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.scopes import (
    WHOLE,
    Scope,
    Scoped,
    ScopedOutput,
    compact_scoped,
    is_mixed,
    may_join,
    restricted,
    scope_of,
)
from ebla.tablet.read.windows import cut
from ebla.tablet.upkeep.compaction import Choice, is_dense

__all__ = ["merge", "merge_of", "merged_references", "new_output", "record_names", "replacement"]

# What is read in one go: fewer and larger ones are faster, but it is held about four times over until it is written.
WINDOW_RECORDS = 98_304
WINDOW_BYTES = 8 << 20


def merge_of(state: GroupState, choice: Choice, group: GroupSchema, horizon: int, unflushed: int | None) -> Merge:
    """Return the merge of a choice; `unflushed` is the oldest txn of the group that is in no fragment, if any.

    The horizon may have gone back since the choice was made, as somebody began to hold an old snapshot. A range
    erasure above it stays then, for so do the records that it hides.
    """
    chosen = set(choice.fragments)
    others = [ref for ref in state.fragments if ref not in chosen]
    mixed = is_mixed(choice.fragments, group)
    return Merge(
        choice.fragments,
        state.erasures,
        tuple(erasure for erasure in choice.erasures if erasure.txn <= horizon),
        horizon,
        choice.is_rooted,
        not mixed and is_dense(choice.fragments, others, unflushed),
        mixed and may_join(others),
    )


def _retention(work: Merge, group: GroupSchema) -> Retention:
    """Return what has to stay."""
    return Retention(
        work.horizon,
        work.is_rooted,
        work.erasures,
        group.max_versions,
        group.max_age_microseconds,
        group.purge_join == "and",
        work.is_dense,
    )


def new_output(
    work: Merge,
    files: Files,
    new_path: Callable[[], str],
    table_id: str,
    schema: TableSchema,
    group: GroupSchema,
    codec: KeyCodec,
    file_bytes_max: int,
) -> ScopedOutput:
    """Return where the records of a merge go; `new_path` is asked for a name as each file begins."""
    topped = work.is_dense and group.keeps_one

    def new_run() -> FragmentRun:
        return FragmentRun(files, new_path, table_id, schema, group, codec, file_bytes_max, topped=topped)

    return ScopedOutput(new_run)


def merge(
    work: Merge,
    group: GroupSchema,
    share: KeyRange,
    reader: Reader,
    output: ScopedOutput,
    check: Callable[[], None] = lambda: None,
) -> int:
    """Merge what the fragments have in `share` into `output`; return how many records were read.

    `check` is called between stretches, and raises if the work is to be given up.
    """
    retention = _retention(work, group)
    names = record_names(group)
    mixed = is_mixed(work.fragments, group)
    scopes = [scope_of(ref, group) for ref in work.fragments] if mixed else []
    records_read = 0
    for window in _windows(reader, share, work.fragments):
        check()
        runs, count = _runs_in(window, work, group, reader, names)
        records_read += count
        if mixed:
            for scope, part in compact_scoped(runs, group, retention, may_join=work.joins, scopes=scopes):
                output.write(scope, part)
            continue
        left = compact([one.run for one in runs], retention, is_cells=group.is_cells)
        del runs  # what is read is not needed while the rest is written, nor that while more is read
        if left is not None:
            output.write(WHOLE, left)
        del left
    return records_read


def _runs_in(
    window: KeyRange, work: Merge, group: GroupSchema, reader: Reader, names: Sequence[str]
) -> tuple[list[Scoped], int]:
    """Return what counts of the records in a window, and how many records were read for it."""
    runs = []
    count = 0
    for ref in work.fragments:
        counted = ref.within(window)
        if counted is None:
            continue
        run = reader.fragment(ref).read_range(counted.first, counted.last, names)
        if run is not None:
            count += len(run)
            runs.append(Scoped(restricted(run, ref, group), scope_of(ref, group)))
    return runs, count


def merged_references(
    work: Merge, group: GroupSchema, schema: TableSchema, written: Iterable[tuple[FragmentInfo, Scope]]
) -> tuple[FragmentRef, ...]:
    """Return references to what a merge wrote."""
    # Surplus versions of cells stay unless everything is merged; of columns, what can go has gone.
    settled_txn = work.horizon if work.is_rooted or not group.is_cells else 0
    added = (scope.applied_to(reference_to(info, schema.version)) for info, scope in written)
    return tuple(msgspec.structs.replace(ref, settled_txn=settled_txn) for ref in added)


def replacement(
    work: Merge, tablet: TabletAt, group: int, added: tuple[FragmentRef, ...], records_read: int
) -> ReplaceFragments:
    """Return the change of METADATA that a merge comes to, once all of it is written."""
    left_out = sum(ref.rows for ref in added) < records_read or bool(work.dropped)
    if any(ref.columns is not None and ref.txn_min <= work.horizon for ref in work.fragments):
        # What is merged in strands is divided, and so more records may come of it though values were left out.
        left_out = True
    return ReplaceFragments(tablet, group, work.fragments, added, work.dropped, work.horizon if left_out else 0)


def record_names(group: GroupSchema) -> list[str]:
    """Return the internal names of all columns that records of a group may have."""
    if group.is_cells:
        return [ROW, FAMILY, QUALIFIER, TIMESTAMP, TXN, ERASED, VALUE]
    return [ROW, TXN, ERASED, SET, *(str(column.id) for column in group.columns)]


def _windows(reader: Reader, share: KeyRange, refs: Iterable[FragmentRef]) -> Iterator[KeyRange]:
    marks: list[tuple[bytes, int]] = []
    records = 1
    size = 1
    for ref in refs:
        fragment = reader.fragment(ref)
        begin, end = fragment.blocks_of(share.first, share.last)
        rows = fragment.block_rows[begin:end]
        marks += zip(fragment.first_rows[begin:end], rows, strict=True)
        records += sum(rows)
        size += sum(rows) * fragment.record_bytes
    marks.sort()
    records_max = min(WINDOW_RECORDS, WINDOW_BYTES * records // size)
    for window, _ in cut(share, marks, records_max, records_max):
        yield window
