"""Sorting a log into fragments, portion by portion: what opening does with a log, so that many can do it at once.

    portions       0007 0008 0009 | 0010 0011 0012 | 0013 0014x         segments that follow one another   (pure)
    each of them   entries --> replay into memory --> fragments         by opening's own code, wherever it runs
    all of them    one segment follows the other without a gap; one change of METADATA per table           (pure)

The records of a portion are newer than all of the portion before it, as those of a flush are newer than all of the
flush before it. So the fragments of several portions lie on each other like those of several flushes, and nothing has
to be moved from one portion to another. What a range erasure hides is older than itself: a portion need not know of
those in the portions before it.

Damage is told, not raised, so that it reaches whoever asked with file and offset, wherever it was found.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from ebla.errors import Corruption, StoreError, TooManyFiles
from ebla.metadata.values.changes import Change, Flush, FlushedTablet, NewFragment, RequireSchema
from ebla.metadata.values.table_metadata import RangeErasure, TableMetadata
from ebla.settings import Settings
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.files import Files
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.storage.log.log_entry import LogEntry, Reply
from ebla.storage.log.log_extent import NOTHING, LogExtent
from ebla.storage.log.log_format import SegmentBytes, SegmentInfo
from ebla.storage.log.log_reader import SegmentReading, check_length, check_synced
from ebla.tablet.flush.serialize import FlushWork, flush_change, write_fragment
from ebla.tablet.read.row_cache import CachedRows
from ebla.tablet.recovery.replay import Replayed, UnknownTablet, replay
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.recent_rows import RecentRows

__all__ = [
    "Damage",
    "LogSorter",
    "SortedPortion",
    "SortedReplies",
    "SortedSegment",
    "SortedTable",
    "changes_for",
    "check_portions",
    "divide_segments",
    "map_segment",
    "open_table",
]


class SortedSegment(msgspec.Struct, frozen=True):
    """A segment that was read, how long the one before it was by its header, and how much of its end is torn."""

    info: SegmentInfo
    previous_bytes: int | None
    torn_bytes: int


class SortedTable(msgspec.Struct, frozen=True):
    """A fragment, or range erasures, that a portion has for one group of a table."""

    table: str
    flush: Flush


class SortedReplies(msgspec.Struct, frozen=True):
    """What clients were told of one tablet, in a portion."""

    table: str
    tablet: str
    replies: tuple[Reply, ...]


class Damage(msgspec.Struct, frozen=True):
    """A spot that is not what was written, as `Corruption` tells it."""

    file: str
    reason: str
    offset: int | None

    def error(self) -> Corruption:
        """Return the error to raise."""
        return Corruption(self.file, self.reason, self.offset)


class SortedPortion(msgspec.Struct, frozen=True):
    """What came of a portion of a log. If it is damaged, nothing else of it counts.

    `refused` are tables of which it has a tablet that METADATA does not, and why: as when a store is opened, they are
    left alone, and the log is kept for them.
    """

    number: int
    segments: tuple[SortedSegment, ...] = ()
    tables: tuple[SortedTable, ...] = ()
    replies: tuple[SortedReplies, ...] = ()
    former_replies: tuple[Reply, ...] = ()  # of no tablet
    txn_max: int = 0
    entries: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    damage: Damage | None = None


# --- before: who reads what ----------------------------------------------------------------------


def divide_segments(sizes: Sequence[int], portions: int) -> list[range]:
    """Divide segments of these sizes into at most so many portions of neighbours, about even in bytes."""
    total = sum(sizes)
    portions = min(portions, len(sizes))
    divided: list[range] = []
    begin, done = 0, 0
    for at, size in enumerate(sizes):
        done += size
        is_full = len(divided) + 1 < portions and done * portions >= total * (len(divided) + 1)
        if is_full or at + 1 == len(sizes):
            divided.append(range(begin, at + 1))
            begin = at + 1
    return divided


# --- one portion ---------------------------------------------------------------------------------


def map_segment(root: str, path: str) -> SegmentBytes:
    """Return the bytes of a segment without reading them: what is looked at comes and goes with the page cache."""
    with Path(root, path).open("rb") as file:
        file.seek(0, 2)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""


def open_table(name: str, metadata: TableMetadata, files: Files) -> TableState:
    """Return a table to be replayed into: nobody reads it."""
    return TableState(
        name, metadata, OpenFragments(files, BlockCache(0), 1), CachedRows(RecentRows(2, 0), 0), Settings()
    )


class LogSorter:
    """Replays segments, in order, into the memory of tables, and writes that to fragments when it has grown.

    Nothing names the fragments yet. While one of them is synced, the next is sorted.
    """

    def __init__(
        self,
        files: Files,
        server: str,
        tables: Mapping[str, TableState],
        new_path: Callable[[str], str],
        flush_bytes: int,
        only: Callable[[LogEntry], LogEntry] = lambda entry: entry,
    ) -> None:
        """`only` returns what counts of an entry; the rest is passed over."""
        self._files = files
        self._only = only
        self._server = server
        self._tables = dict(tables)
        self._refused: dict[str, str] = {}
        self._new_path = new_path
        self._flush_bytes = flush_bytes
        self._replayed = Replayed()
        self._segments: list[SortedSegment] = []
        self._flushes: list[SortedTable] = []
        self._syncing: Future[None] | None = None

    def sort(self, number: int, segments: Iterable[tuple[str, SegmentBytes, bool]]) -> SortedPortion:
        """Sort the segments of a portion: path, bytes, and whether it is the last of the log."""
        with ThreadPoolExecutor(1) as pool:
            try:
                for path, data, is_last in segments:
                    self._read(SegmentReading(path, data, is_last), pool)
                for table in self._tables.values():
                    self._flush(table, pool)
                self._settle()
            except Corruption as error:
                return SortedPortion(number, damage=Damage(error.file, error.reason, error.offset))
            except TooManyFiles:
                raise
            except OSError as error:
                raise StoreError(f"the log cannot be sorted: {error}: free space or mend the cause, retry") from error
        replies = tuple(
            SortedReplies(table.id, tablet.id, tuple(state.replies.all()))
            for table in self._tables.values()
            for tablet, state in table.states()
            if state.replies is not None
        )
        return SortedPortion(
            number,
            tuple(self._segments),
            tuple(self._flushes),
            replies,
            tuple(self._replayed.replies),
            self._replayed.txn_max,
            self._replayed.entries,
            tuple(self._refused.items()),
        )

    def _read(self, reading: SegmentReading, pool: ThreadPoolExecutor) -> None:
        def grown(table: TableState) -> None:
            if table.memory_bytes >= self._flush_bytes:
                self._flush(table, pool)

        def refuse(table: TableState, error: UnknownTablet) -> None:
            self._refused[table.id] = str(error)
            del self._tables[table.id]

        reading.check_identity(self._server)
        for _, entry in reading.entries():
            replay(self._only(entry), self._tables, self._replayed, grown, refuse)
        header, torn = reading.header, reading.torn_tail()
        previous_bytes = None if header is None else header.previous_bytes
        self._segments.append(SortedSegment(reading.info(), previous_bytes, 0 if torn is None else torn.size))

    def _flush(self, table: TableState, pool: ThreadPoolExecutor) -> None:
        """Write the memory of a table to fragments."""

        def sync_later(sync: Callable[[], None]) -> None:
            self._settle()
            self._syncing = pool.submit(sync)

        for group in table.view.schema.groups:
            work = FlushWork.of(table, group.id)
            if not work.is_empty:
                info = write_fragment(work, self._files, self._new_path, sync_later)
                self._flushes.append(SortedTable(table.id, flush_change(work, info)))
                work.let_go()

    def _settle(self) -> None:
        """Wait until what was written is durable."""
        if self._syncing is not None:
            self._syncing.result()
            self._syncing = None


# --- after: what they found together -------------------------------------------------------------


def check_portions(portions: Sequence[SortedPortion], extent: LogExtent = NOTHING) -> list[SegmentInfo]:
    """Return all segments, in order; raise `Corruption` for the first damage, or a segment that lost its end."""
    segments: list[SegmentInfo] = []
    for portion in portions:
        if portion.damage is not None:
            raise portion.damage.error()
        for segment in portion.segments:
            if segments:
                check_length(segments[-1], segment.info.sequence, segment.previous_bytes)
            check_synced(segment.info, extent)
            segments.append(segment.info)
    return segments


def changes_for(metadata: TableMetadata, sorted_tables: Iterable[SortedTable]) -> list[Change]:
    """Return the change that makes all that was sorted of a table part of it, from METADATA as it was replayed upon.

    It is refused if somebody else has flushed any of it meanwhile, or changed the schema.
    """
    flushes: dict[int, list[Flush]] = defaultdict(list)
    for one in sorted_tables:
        assert one.table == metadata.table_id
        flushes[one.flush.group].append(one.flush)
    changes: list[Change] = [RequireSchema(metadata.schema.version)]
    for group, several in sorted(flushes.items()):
        fragments: list[NewFragment] = []
        flushed: dict[str, int] = {}
        erasures: dict[str, dict[RangeErasure, None]] = defaultdict(dict)
        for flush in several:
            fragments += flush.fragments
            for at in flush.tablets:
                flushed[at.tablet] = max(at.flushed, flushed.get(at.tablet, 0))
                erasures[at.tablet].update(dict.fromkeys(at.erasures))
        tablets = []
        for tablet_id, index in sorted(flushed.items()):
            tablet = metadata.by_id(tablet_id)
            assert tablet is not None, "it was replayed upon this METADATA"
            base = tablet.group(group).flushed
            tablets.append(FlushedTablet(tablet_id, tablet.epoch, index, tuple(erasures[tablet_id]), base))
        changes.append(Flush(group, tuple(fragments), tuple(tablets)))
    return changes if len(changes) > 1 else []
