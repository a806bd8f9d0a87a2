"""Reading the log: every whole entry in order, the torn end cut off, damage refused.

    segment   0007 ........ 0008 ........ 0009 ......x          (x: does not check out)
              must be whole, to the byte  the last: may end in a torn write

What a bad spot means, and why:
- **In a segment that is not the last: damage.** The writer syncs a segment to its last byte before it makes the next.
- **In the last segment, and a later entry header says that the spot was synced: damage.**
- **In the header of the last segment: damage if anything follows it**, since the header is synced before the first
  entry is written. Otherwise the segment was being made when the crash came, and is empty.
- **In the last segment, below what is on record as synced: damage** (log_extent.py), also if it merely ends there.
- **Zeros to the end of the last segment: room** that its writer had reserved. It is cut off like a torn write.
- **Else: a torn write** that nobody was told of. Replay ends there; the one who opens the log for writing cuts it off
  with `truncate_torn_tail` before a new segment is begun. That also syncs what is kept: whole entries that a killed
  process left unsynced are replayed and built upon, so they must not go with a power cut any more.
- **A number missing between two segments, or among those that are on record: a lost file.** Segments are deleted from
  the oldest on, so a missing beginning is normal, up to where the record says that the log begins. Where a removal was
  cut short, a mark says where that is (log_removal.py); segments below it are passed over, whichever of them are left.

What came after the last that is on record looks like a torn write if it is damaged, and cannot be told from one: of a
log that was closed, that is nothing.

Nothing here changes a file but `truncate_torn_tail`. A reader beside a living writer sees a prefix of what is being
written. If the writer deletes a segment between the listing and the reading, `FileNotFoundError` comes through:
its contents are in fragments by then, so the reader must start over from newer metadata. What he takes for lost may
have been removed since the record was read: it counts if the record is still the same afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import google_crc32c
import msgspec
import pyarrow as pa

from ebla.errors import Corruption, FormatTooNew, MissingFile
from ebla.storage.files.files import Files, parent_of
from ebla.storage.log.former_entry import decode_former_entry
from ebla.storage.log.log_entry import LogEntry, decode_entry
from ebla.storage.log.log_extent import NOTHING, LogExtent
from ebla.storage.log.log_format import (
    ENTRY_HEADER_BYTES,
    FORMAT_VERSION,
    SEGMENT_HEADER_BYTES,
    EntryHeader,
    EntryKind,
    SegmentBytes,
    SegmentHeader,
    SegmentInfo,
    decode_entry_header,
    decode_segment_header,
    find_entry_header,
    segment_path,
    segment_sequence,
)
from ebla.storage.log.log_removal import LogNames, list_names
from ebla.storage.log.replica_entry import ReplicaEntry, decode_replica_entry

__all__ = [
    "RESTORE",
    "LogRecovery",
    "RecoveredEntry",
    "SegmentReading",
    "TornTail",
    "check_length",
    "check_synced",
    "cut_after",
    "list_segments",
    "make_durable",
    "read_segment",
    "recover",
    "server_of",
    "truncate_torn_tail",
]

_LISTINGS_MAX = 10
# What to do about a log that is not whole.
RESTORE = "restore it from a copy, or give it up with `ebla repair --accept-lost-log`"


@dataclass(frozen=True, slots=True)
class TornTail:
    """The end of the last segment from `offset` on, which a crash left half written."""

    path: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class RecoveredEntry:
    """An entry and where it stands."""

    path: str
    offset: int
    entry: LogEntry


class LogRecovery(Iterator[RecoveredEntry]):
    """All entries of a log in order, one segment in memory at a time. The attributes are final when it is exhausted.

    `segments` are those read so far, with the size up to which each is good; `torn_tail` is what must be cut off before
    the log is written again; `next_sequence` is the number of the next segment to be made; `unfinished` is the header
    of the last segment if it can be written on, as nothing is to be cut off, no mark says that it has ended, and it is
    of the version that is written today; `version` is the version of the last segment that has a header;
    `exhausted` says that all was read and found good.
    """

    def __init__(self, files: Files, directory: str, extent: LogExtent) -> None:
        paths = list_segments(files, directory, extent)
        self.segments: list[SegmentInfo] = []
        self.torn_tail: TornTail | None = None
        self.unfinished: SegmentHeader | None = None
        self.version = 0
        self.exhausted = False
        self.next_sequence = 1 + max(extent.last, _sequence(paths[-1]) if paths else 0)
        self._entries = self._read(files, directory, paths, extent)

    def __next__(self) -> RecoveredEntry:
        return next(self._entries)

    def _read(self, files: Files, directory: str, paths: list[str], extent: LogExtent) -> Iterator[RecoveredEntry]:
        server = server_of(directory)
        for path in paths:
            reading = SegmentReading(path, files.read(path), is_last=path == paths[-1])
            if reading.header is not None:
                reading.check_identity(server)
                self.version = reading.header.version
                if self.segments:
                    check_length(self.segments[-1], reading.header.sequence, reading.header.previous_bytes)
            for offset, entry in reading.entries():
                yield RecoveredEntry(path, offset, entry)
            self.segments.append(reading.info())
            check_synced(self.segments[-1], extent)
            self.torn_tail = reading.torn_tail()
            is_whole = self.torn_tail is None and extent.last <= self.segments[-1].sequence
            self.unfinished = reading.header if is_whole and reading.can_be_written_on else None
        self.exhausted = True


def recover(files: Files, directory: str, extent: LogExtent = NOTHING) -> LogRecovery:
    """Read the log in `directory` (named by its server's UUID), for its owner or for a reader beside it.

    `extent` is what it must hold. Iterating raises `Corruption` or `FormatTooNew` at the spot, after the entries before
    it, and `FileNotFoundError` if a segment was deleted meanwhile. `MissingFile` is raised at once.
    """
    return LogRecovery(files, directory, extent)


def read_segment(files: Files, path: str, *, is_last: bool = True) -> Iterator[tuple[int, LogEntry]]:
    """Read one segment: offsets and entries. A torn end is passed over if it is the last segment, else `Corruption`."""
    return SegmentReading(path, files.read(path), is_last).entries()


def truncate_torn_tail(files: Files, recovery: LogRecovery) -> None:
    """Cut off what a recovery found torn, if anything, and make all that it found durable, torn or not.

    For the one who holds the store's lock, after the recovery was read to its end and before a `LogWriter` is made.
    """
    if not recovery.exhausted:
        raise ValueError("a log must be read to its end before it can be cut there")
    if recovery.segments:
        cut_after(files, recovery.segments[-1])


def cut_after(files: Files, last: SegmentInfo) -> None:
    """Cut the last segment of a log off where it is no longer good, and make it durable with its name, torn or not.

    Who made it may have died before its name was durable, and it may be written on.
    """
    files.truncate(last.path, last.bytes)
    files.sync_directory(parent_of(last.path))


def make_durable(files: Files, directory: str, extent: LogExtent = NOTHING) -> None:
    """Make all that the last segment holds durable, torn or not: what a killed process wrote may not be yet.

    For the one who holds the store's lock, before anything that the log holds is moved elsewhere, a portion at a time.
    """
    paths = list_segments(files, directory, extent)
    if paths:
        files.truncate(paths[-1], files.size(paths[-1]))
        files.sync_directory(directory)


def list_segments(files: Files, directory: str, extent: LogExtent = NOTHING) -> list[str]:
    """Return the segments that count, in order: all that must be there by `extent`, and no gap between any two.

    A listing is not one moment: while a writer deletes the oldest segments, it may show one of them and not the one
    after it, or a mark and not the segment that it is for. So what is missing counts only if it still is when nothing
    moves any more.
    """
    before: LogNames | None = None
    for _ in range(_LISTINGS_MAX):
        names = list_names(files, directory)
        numbers = [sequence for sequence, _ in names.segments if sequence >= names.begin]
        paths = [path for sequence, path in names.segments if sequence >= names.begin]
        missing = extent.missing(numbers)
        begins_as_marked = not names.begin or (bool(paths) and numbers[0] == names.begin)
        if not missing and begins_as_marked:
            return paths
        if names == before:
            if not missing and (paths or names.begin < extent.first):
                return paths  # its beginning was removed since the mark was made, and a crash brought the mark back
            raise MissingFile(f"{told_missing(directory, missing or [names.begin], numbers)}: {RESTORE}")
        before = names
    raise FileNotFoundError(f"the segments in {directory} change faster than they can be listed")


def told_missing(directory: str, missing: Sequence[int], there: Sequence[int]) -> str:
    """Return which segments are missing, and where, if `there` are the others."""
    if not there:
        where = "with all that came after it" if len(missing) == 1 else f"with all up to {missing[-1]:016d}.log"
    elif missing[0] < there[0]:
        where = f"which begins with {there[0]:016d}.log now"
    elif missing[0] > there[-1]:
        where = f"which ends with {there[-1]:016d}.log now"
    else:
        where = "between other segments"
    return f"{segment_path(directory, missing[0])} is missing from the log, {where}"


def server_of(directory: str) -> str:
    """Return the server of a log: ``log/<server>``, or ``log/<server>/<start>`` where each start has one of its own."""
    names = directory.split("/")
    return names[min(1, len(names) - 1)]


def _sequence(path: str) -> int:
    number = segment_sequence(path)
    assert number is not None
    return number


def check_length(before: SegmentInfo, sequence: int, previous_bytes: int | None) -> None:
    """Raise `Corruption` unless a segment is as long as the header of the next one says that it was."""
    if sequence == before.sequence + 1 and previous_bytes not in (None, before.bytes):
        raise Corruption(
            before.path,
            f"it ends after {before.bytes} bytes but had {previous_bytes} when the next segment was begun",
            min(before.bytes, previous_bytes or 0),
        )


def check_synced(segment: SegmentInfo, extent: LogExtent) -> None:
    """Raise `Corruption` if a segment is not as long any more as it is known to have been."""
    synced = extent.synced_of(segment.sequence)
    if segment.bytes < synced:
        reason = f"what is good of it ends there, and {synced} bytes are on record as synced: {RESTORE}"
        raise Corruption(segment.path, reason, segment.bytes)


class SegmentReading:
    """One segment in memory, or mapped into it. `entries` moves `_end` forward over all that is good.

    `info` and `torn_tail` are final when all entries were read.
    """

    def __init__(self, path: str, data: SegmentBytes, is_last: bool) -> None:
        self.path = path
        self._data = data
        self._is_last = is_last
        self._closed = False
        self._txn_min = 0
        self._txn_max = 0
        try:
            self.header = decode_segment_header(data)
        except FormatTooNew as error:
            raise FormatTooNew(f"{path} is {error}") from None
        self._end = SEGMENT_HEADER_BYTES if self.header is not None else 0
        # A segment that was empty when a recovery cut it off has no bytes at all, and others after it.
        if self.header is None and (len(data) > SEGMENT_HEADER_BYTES or (data and not is_last)):
            raise Corruption(path, "it does not begin with the header of a log segment", 0)

    def check_identity(self, server: str) -> None:
        """Refuse a segment that was put in the place of another."""
        header = self.header
        if header is not None and (header.server != server or header.sequence != _sequence(self.path)):
            raise Corruption(self.path, f"it is segment {header.sequence} of the log of server {header.server}", 0)

    def entries(self) -> Iterator[tuple[int, LogEntry]]:
        """Yield offsets and commits; raise `Corruption` at a spot that was whole once."""
        for offset, entry in self.all_entries():
            if isinstance(entry, LogEntry):
                yield offset, entry

    def all_entries(self) -> Iterator[tuple[int, LogEntry | ReplicaEntry]]:
        """Yield what `entries` does, and the records of replicas."""
        if self.header is None:
            return
        buffer = pa.py_buffer(self._data)
        while self._end < len(self._data):
            offset = self._end
            header = decode_entry_header(self._data, offset, self.header)
            begin = offset + ENTRY_HEADER_BYTES
            end = begin + (header.payload_bytes if header is not None else 0)
            if header is None or end > len(self._data):
                self._check_torn(self.header, offset)
                return
            payload = buffer.slice(begin, end - begin)
            if google_crc32c.value(payload) != header.payload_crc:
                self._check_torn(self.header, offset)
                return
            if header.kind == EntryKind.CLOSED:
                self._close(end)
                return
            entry = self._decode(header, offset, payload)
            self._end = end
            if entry.txn_max:
                self._txn_min = min(self._txn_min, entry.txn_min) if self._txn_max else entry.txn_min
                self._txn_max = max(self._txn_max, entry.txn_max)
            yield offset, entry

    def info(self) -> SegmentInfo:
        """Return what was read: its size is that up to which it is good."""
        return SegmentInfo(self.path, _sequence(self.path), self._end, self._txn_min, self._txn_max, self._closed)

    @property
    def can_be_written_on(self) -> bool:
        """Whether what comes next may stand in it: it has not ended, and its entries are written as today."""
        return self.header is not None and self.header.version == FORMAT_VERSION and not self._closed

    def torn_tail(self) -> TornTail | None:
        """Return what is not good, if anything."""
        rest = self._data[self._end :]
        return TornTail(self.path, self._end, len(rest)) if rest.strip(b"\0") else None

    def _check_torn(self, segment: SegmentHeader, offset: int) -> None:
        """Raise `Corruption` if the bad entry at `offset` was whole once."""
        if not self._is_last:
            raise Corruption(self.path, "an entry does not match its checksum, in a segment that was finished", offset)
        begin = offset + 1
        while (found := find_entry_header(self._data, begin, segment)) is not None:
            begin = found[0] + 1
            if found[1].synced > offset:
                raise Corruption(
                    self.path,
                    f"an entry does not match its checksum, and the entry at {found[0]} shows that it once did",
                    offset,
                )

    def _close(self, end: int) -> None:
        if end < len(self._data):
            raise Corruption(self.path, "bytes follow the mark of its end", end)
        self._closed = True
        self._end = end

    def _decode(self, header: EntryHeader, offset: int, payload: pa.Buffer) -> LogEntry | ReplicaEntry:
        if header.kind not in (EntryKind.COMMIT, EntryKind.REPLICAS) or header.flags:
            raise FormatTooNew(
                f"{self.path} at offset {offset} has an entry of kind {header.kind} (flags {header.flags}), which this "
                "version of Ebla does not know: update it"
            )
        assert self.header is not None
        try:
            if header.kind == EntryKind.REPLICAS:
                return decode_replica_entry(payload)
            return decode_entry(payload) if self.header.version >= 2 else decode_former_entry(payload)
        except (ValueError, struct.error, msgspec.MsgspecError, pa.ArrowException) as error:
            raise Corruption(
                self.path, f"an entry cannot be understood though its checksum fits ({error})", offset
            ) from error
