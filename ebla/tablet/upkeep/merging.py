"""Carrying out a merge that was chosen: fragments in, one run of new files out. By the engine itself, or by any task.

    Choice --merge_of--> Merge, a value that can be sent elsewhere
    merge(reader, ..., share)     a stretch of the key at a time, without what nobody can see any more --> files
    merged_references(...)        what METADATA is to say of them

What readers of the present need goes to one run of files, and what only readers of the past do to another, the history
(`Merge.present`). So a range that was merged is clean to whoever reads the present, however far back history reaches.
History is merged with history only, and goes as a whole once nobody reads so far back.

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
from ebla.storage.fragment.fragment_run import FragmentRun
from ebla.storage.merge.compact import Retention, compact, compact_apart
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE
from ebla.tablet.flush.serialize import reference_to
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.scopes import (
    WHOLE,
    Scoped,
    ScopedOutput,
    Written,
    compact_scoped,
    is_mixed,
    may_join,
    restricted,
    scope_of,
)
from ebla.tablet.read.windows import cut
from ebla.tablet.upkeep.compaction import Choice
from ebla.tablet.upkeep.present import Present, gone_erasures, is_dense, is_rooted, present_of

__all__ = ["merge", "merge_of", "merged_references", "new_output", "record_names", "replacement"]

# What is read in one go: fewer and larger ones are faster, but it is held about four times over until it is written.
WINDOW_RECORDS = 98_304
WINDOW_BYTES = 8 << 20


def merge_of(state: GroupState, choice: Choice, group: GroupSchema, horizon: int, unflushed: int | None) -> Merge:
    """Return the merge of a choice; `unflushed` is the oldest txn of the group that is in no fragment, if any.

    The horizon may have gone back since the choice was made, as somebody began to hold an old snapshot. A range
    erasure above it stays then, for so do the records that it hides.
    """
    fragments = choice.fragments
    if any(not ref.is_history for ref in fragments):
        # Of history, only what nobody needs may go along: the rest of it would be current.
        fragments = tuple(ref for ref in fragments if not ref.is_history or ref.is_outlived_at(horizon))
    chosen = set(fragments)
    others = [ref for ref in state.fragments if ref not in chosen]
    mixed = is_mixed(fragments, group)
    present = present_of(fragments, others, state.erasures, horizon, unflushed)
    is_history = present.history_txn > 0 and not present.txn
    if mixed and not is_history:
        present = Present()  # strands are not clean before they are joined
    return Merge(
        fragments,
        state.erasures,
        gone_erasures(state.erasures, others, horizon),
        horizon,
        not is_history and is_rooted(others, horizon),
        not is_history and not mixed and is_dense(fragments, others, unflushed),
        mixed and may_join(others),
        present.txn,
        present.is_rooted,
        present.history_txn,
    )


def _retention(work: Merge, group: GroupSchema, horizon: int, *, is_rooted: bool) -> Retention:
    """Return what has to stay, if no snapshot before `horizon` will be read."""
    return Retention(
        horizon,
        is_rooted,
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
    is_topped = work.is_dense and group.keeps_one

    def new_run(is_history: bool) -> FragmentRun:
        topped = is_topped and not is_history
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
    retention = _retention(work, group, work.horizon, is_rooted=work.is_rooted)
    present = _retention(work, group, work.present, is_rooted=work.roots_present) if work.present else None
    is_history = work.history_txn > 0 and present is None
    names = record_names(group)
    mixed = is_mixed(work.fragments, group)
    scopes = [scope_of(ref, group) for ref in work.fragments] if mixed else []
    records_read = 0
    for window in _windows(reader, share, _needed(work)):
        check()
        runs, count = _runs_in(window, work, group, reader, names)
        records_read += count
        if mixed:
            for scope, part in compact_scoped(runs, group, retention, may_join=work.joins, scopes=scopes):
                output.write(scope, part, is_history=is_history)
            continue
        read = [one.run for one in runs]
        if present is None:
            left = [(compact(read, retention, is_cells=group.is_cells), is_history)]
        else:
            current, past = compact_apart(read, retention, present, is_cells=group.is_cells)
            left = [(current, False), (past, True)]
            del current, past
        del runs, read  # what is read is not needed while the rest is written, nor that while more is read
        for one, is_past in left:
            if one is not None:
                output.write(WHOLE, one, is_history=is_past)
        del left, one
    return records_read


def _needed(work: Merge) -> tuple[FragmentRef, ...]:
    """Return the fragments of a merge of which something may be left."""
    return tuple(ref for ref in work.fragments if not ref.is_outlived_at(work.horizon))


def _runs_in(
    window: KeyRange, work: Merge, group: GroupSchema, reader: Reader, names: Sequence[str]
) -> tuple[list[Scoped], int]:
    """Return what counts of the records in a window, and how many records were read for it."""
    runs = []
    count = 0
    for ref in _needed(work):
        counted = ref.within(window)
        if counted is None:
            continue
        run = reader.fragment(ref).read_range(counted.first, counted.last, names)
        if run is not None:
            count += len(run)
            runs.append(Scoped(restricted(run, ref, group), scope_of(ref, group)))
    return runs, count


def merged_references(
    work: Merge, group: GroupSchema, schema: TableSchema, written: Iterable[Written]
) -> tuple[FragmentRef, ...]:
    """Return references to what a merge wrote."""

    def settled(horizon: int, *, is_rooted: bool) -> int:
        # Surplus versions of cells stay unless everything is merged; of columns, what can go has gone.
        return horizon if is_rooted or not group.is_cells else 0

    past = settled(work.horizon, is_rooted=work.is_rooted)
    now = max(past, settled(work.present, is_rooted=work.roots_present))
    return tuple(
        msgspec.structs.replace(
            one.scope.applied_to(reference_to(one.info, schema.version)),
            settled_txn=past if one.is_history else now,
            history_txn=work.history_txn if one.is_history else 0,
            cleared_txn=work.horizon if one.is_history else max(work.horizon, work.present),
        )
        for one in written
    )


def replacement(
    work: Merge, tablet: TabletAt, group: int, added: tuple[FragmentRef, ...], records_read: int
) -> ReplaceFragments:
    """Return the change of METADATA that a merge comes to, once all of it is written."""
    left_out = sum(ref.rows for ref in added) < records_read or bool(work.dropped) or _needed(work) != work.fragments
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
