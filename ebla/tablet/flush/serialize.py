"""Serialize: the memory of one table group becomes a fragment, METADATA names it, and only then memory and log let go.

    choose      the table group with the largest A * memory + B * log held back      (pure)
    write       its committed records, merged, as one new file, synced
    save        one METADATA transaction: the reference for every tablet it overlaps, and how far each is flushed
    release     drop the memory; log segments that nobody needs any more go

A failure at any step leaves the records where they were, in memory and in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ebla.metadata.values.changes import Flush, FlushedTablet, NewFragment
from ebla.metadata.values.table_metadata import FragmentRef, RangeErasure, TableMetadata
from ebla.settings import Settings
from ebla.storage.files.files import Files
from ebla.storage.fragment.fragment_format import FragmentInfo, FragmentLayout
from ebla.storage.fragment.fragment_run import conformed
from ebla.storage.fragment.fragment_writer import FragmentWriter
from ebla.storage.merge.erasure_cover import TXN_MAX, Erasure
from ebla.storage.merge.memory import MemoryErasure
from ebla.storage.merge.topping import count_surplus, top_batch
from ebla.storage.record.records import Block
from ebla.tablet.flush.flush_windows import FlushWindows
from ebla.tablet.read.view import TableView
from ebla.tablet.tables.table_state import TableState


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table group that could be flushed: what it holds in memory, and how much log it keeps from being removed."""

    table: str
    group: int
    memory_bytes: int
    log_bytes: int


def choose(candidates: Iterable[Candidate], settings: Settings, total_log_bytes: int) -> Candidate | None:
    """Choose what to flush next, or None if nothing needs it yet."""
    held = [candidate for candidate in candidates if candidate.memory_bytes]
    if not held:
        return None
    total = sum(candidate.memory_bytes for candidate in held)
    largest = max(candidate.memory_bytes for candidate in held)
    is_needed = (
        largest >= settings.flush_bytes
        or total >= settings.memory_bytes_max // 2
        or total_log_bytes >= settings.log_bytes_max
    )
    if not is_needed:
        return None

    def score(candidate: Candidate) -> float:
        return settings.flush_weight_memory * candidate.memory_bytes + settings.flush_weight_log * candidate.log_bytes

    return max(held, key=score)


@dataclass(frozen=True, slots=True)
class Held:
    """What a group of one tablet holds in memory: blocks and erasures that are committed."""

    blocks: tuple[Block, ...]
    erasures: tuple[MemoryErasure, ...]

    @property
    def index(self) -> int:
        """The newest index of the tablet in it."""
        return max([*(block.index for block in self.blocks), *(erasure.index for erasure in self.erasures)])


@dataclass(frozen=True, slots=True)
class FlushWork:
    """What one flush takes out of memory, by tablet: fixed when it begins, while writes go on."""

    table: TableState
    group: int
    held: Mapping[str, Held]

    @classmethod
    def of(cls, table: TableState, group: int, tablets: Collection[str] | None = None) -> FlushWork:
        """Take what is committed of a group, of some tablets or of all. The commit lock is held."""
        found = {}
        for tablet, memory in table.view.memories_of(group).items():
            if tablets is None or tablet in tablets:
                held = Held(*memory.committed(table.tablet(tablet).safe_txn(TXN_MAX)))
                if held.blocks or held.erasures:
                    found[tablet] = held
        return cls(table, group, found)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to flush."""
        return not self.held

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of all tablets."""
        return tuple([block for held in self.held.values() for block in held.blocks])

    @property
    def erasures(self) -> tuple[MemoryErasure, ...]:
        """The erasures of all tablets."""
        return tuple([erasure for held in self.held.values() for erasure in held.erasures])

    def let_go(self) -> None:
        """Drop it from memory: it is in a file that METADATA names. The commit lock is held."""
        for tablet, held in self.held.items():
            left = self.table.view.memory_of(tablet, self.group).without(held.blocks, held.erasures)
            self.table.set_memory(tablet, self.group, left)


def write_fragment(
    work: FlushWork,
    files: Files,
    new_path: Callable[[str], str],
    defer: Callable[[Callable[[], None]], None] | None = None,
) -> FragmentInfo | None:
    """Write the records of a flush to a new file; None if it is all erasures of ranges.

    It is durable, unless `defer` takes it upon itself to make it so.
    """
    return write_blocks(work.table.view, work.group, work.blocks, work.erasures, files, new_path, defer)


def write_blocks(
    view: TableView,
    group_id: int,
    blocks: Sequence[Block],
    erasures: Sequence[MemoryErasure],
    files: Files,
    new_path: Callable[[str], str],
    defer: Callable[[Callable[[], None]], None] | None = None,
) -> FragmentInfo | None:
    """Write records that a view has in memory to a new file, as `write_fragment` does; None if there are none."""
    if not blocks:
        return None
    metadata = view.metadata
    group = view.schema.group_by_id[group_id]
    may_top = group.keeps_one and _is_dense(metadata, group_id, blocks)
    covering: list[Erasure] = [*erasures, *(e for tablet in metadata.tablets for e in tablet.group(group_id).erasures)]
    windows = FlushWindows(blocks, is_cells=group.is_cells)
    layout: FragmentLayout | None = None
    with ExitStack() as open_file:
        for merged in windows:
            is_topped = may_top and not merged.unique
            records = top_batch(merged.records, covering) if is_topped else merged.records
            if layout is None:
                # The columns of all windows; of a single one, topping may have left some out.
                layout = FragmentLayout.of(view.schema, group, records if len(windows) == 1 else merged.records)
                path = new_path(metadata.table_id)
                writer = FragmentWriter(files, path, metadata.table_id, layout, view.parts.codec, unique=True)
                open_file.enter_context(writer)
            writer.unique &= merged.unique
            writer.topped |= is_topped
            writer.surplus += 0 if merged.unique else count_surplus(records, is_cells=group.is_cells)
            writer.write(conformed(records, layout))
            del merged, records  # before the next ones are made
        return writer.finish(defer=defer)


def _is_dense(metadata: TableMetadata, group: int, blocks: Sequence[Block]) -> bool:
    """Tell whether no fragment of the group has a txn among those of the flush: a bulk commit may have come between."""
    oldest = min(block.txn_min for block in blocks)
    states = (tablet.group(group) for tablet in metadata.tablets)
    return all(fragment.txn_max < oldest for state in states for fragment in state.fragments)


def flush_change(
    work: FlushWork,
    info: FragmentInfo | None,
    landed: TableMetadata | None = None,
    points: Mapping[str, tuple[int, int]] | None = None,
) -> Flush:
    """Return the METADATA change that makes a flush part of the table.

    `points`: of tablets with replicas, up to which entry (epoch, index) all is in files with it.
    `landed` is METADATA in which an earlier attempt, whose outcome was not known, may have been saved. Tablets that it
    flushed as far as this one would are left out: their records are in its fragment.
    """
    metadata = work.table.view.metadata
    flushed = {tablet: held.index for tablet, held in work.held.items()}
    if landed is not None:
        flushed = {t: index for t, index in flushed.items() if index > _flushed(landed, t, work.group)}
    holders = [tablet for tablet in flushed if work.held[tablet].blocks]
    fragments: tuple[NewFragment, ...] = ()
    if info is not None:
        reference = reference_to(info, metadata.schema.version)
        fragments = (NewFragment(reference, tuple(sorted(holders))),)
    tablets = []
    for tablet_id, index in sorted(flushed.items()):
        tablet = metadata.by_id(tablet_id)
        assert tablet is not None, "memory belongs to tablets that METADATA knows"
        own = tuple(RangeErasure(one.first, one.last, one.txn) for one in work.held[tablet_id].erasures)
        epoch, upto = (points or {}).get(tablet_id, (0, 0))
        tablets.append(FlushedTablet(tablet.id, tablet.epoch, index, own, flushed_epoch=epoch, flushed_index=upto))
    return Flush(work.group, fragments, tuple(tablets), metadata.schema.version)


def reference_to(info: FragmentInfo, schema_version: int) -> FragmentRef:
    """Return the reference to a fragment that was just written."""
    return FragmentRef(
        file=info.file,
        rows=info.rows,
        bytes=info.bytes,
        first=info.first,
        last=info.last,
        txn_min=info.txn_min,
        txn_max=info.txn_max,
        schema_version=schema_version,
        unique=info.unique,
        has_erasures=info.has_erasures,
        has_partial=info.has_partial,
        tail_bytes=info.tail.size,
        tail_crc=info.tail.crc,
        surplus=info.surplus,
        topped=info.topped,
    )


def _flushed(metadata: TableMetadata, tablet_id: str, group: int) -> int:
    tablet = metadata.by_id(tablet_id)
    return 0 if tablet is None else tablet.group(group).flushed
