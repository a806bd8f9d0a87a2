"""Reading the log: every whole entry in order, the torn end cut off, damage refused.

    segment   0007 ........ 0008 ........ 0009 ......x          (x: does not check out)
              must be whole, to the byte  the last: may end in a torn write

What a bad spot means, and why:
- **In a segment that is not the last: damage.** The writer syncs a segment to its last byte before it makes the next.
- **In the last segment, and a later entry header says that the spot was synced: damage.**
- **In the header of the last segment: damage if anything follows it**, since the header is synced before the first
  entry is written. Otherwise the segment was being made when the crash came, and is empty.
- **Else: a torn write** that nobody was told of. Replay ends there; the one who opens the log for writing cuts it off
  with `truncate_torn_tail` before a new segment is begun. That also syncs what is kept: whole entries that a killed
  process left unsynced are replayed and built upon, so they must not go with a power cut any more.
- **A number missing between two segments: a lost file.** Segments are deleted from the oldest on, so a missing
  beginning is normal. Where a removal was cut short, a mark says where the log begins (log_removal.py); segments below
  it are passed over, whichever of them are left.

Damage to the very last entry of a log that was not closed looks like a torn write and cannot be told from one.

Nothing here changes a file but `truncate_torn_tail`. A reader beside a living writer sees a prefix of what is being
written. If the writer deletes a segment between the listing and the reading, `FileNotFoundError` comes through:
its contents are in fragments by then, so the reader must start over from newer metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c
import msgspec
import pyarrow as pa

from ebla.errors import Corruption, FormatTooNew, MissingFile
from ebla.storage.files import Files
from ebla.storage.log_format import (
    ENTRY_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    EntryHeader,
    EntryKind,
    LogEntry,
    SegmentBytes,
    SegmentHeader,
    SegmentInfo,
    decode_entry,
    decode_entry_header,
    decode_segment_header,
    find_entry_header,
    segment_path,
    segment_sequence,
)
from ebla.storage.log_removal import LogNames, list_names

__all__ = [
    "LogRecovery",
    "RecoveredEntry",
    "SegmentReading",
    "TornTail",
    "check_length",
    "cut_after",
    "list_segments",
    "make_durable",
    "read_segment",
    "recover",
    "truncate_torn_tail",
]

_LISTINGS_MAX = 10


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
    the log is written again; `next_sequence` is the number of the next segment to be made; `exhausted` says that all
    was read and found good.
    """

    def __init__(self, files: Files, directory: str) -> None:
        paths = list_segments(files, directory)
        self.segments: list[SegmentInfo] = []
        self.torn_tail: TornTail | None = None
        self.exhausted = False
        self.next_sequence = 1 + (_sequence(paths[-1]) if paths else 0)
        self._entries = self._read(files, directory, paths)

    def __next__(self) -> RecoveredEntry:
        return next(self._entries)

    def _read(self, files: Files, directory: str, paths: list[str]) -> Iterator[RecoveredEntry]:
        server = directory.rpartition("/")[2]
        for path in paths:
            reading = SegmentReading(path, files.read(path), is_last=path == paths[-1])
            if reading.header is not None:
                reading.check_identity(server)
                if self.segments:
                    check_length(self.segments[-1], reading.header.previous_bytes)
            for offset, entry in reading.entries():
                yield RecoveredEntry(path, offset, entry)
            self.segments.append(reading.info())
            self.torn_tail = reading.torn_tail()
        self.exhausted = True


def recover(files: Files, directory: str) -> LogRecovery:
    """Read the log in `directory` (named by its server's UUID), for its owner or for a reader beside it.

    Iterating raises `Corruption` or `FormatTooNew` at the spot, after the entries before it, and `FileNotFoundError` if
    a segment was deleted meanwhile. `MissingFile` is raised at once.
    """
    return LogRecovery(files, directory)


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
    """Cut the last segment of a log off where it is no longer good, and make it durable, torn or not."""
    files.truncate(last.path, last.bytes)


def make_durable(files: Files, directory: str) -> None:
    """Make all that the last segment holds durable, torn or not: what a killed process wrote may not be yet.

    For the one who holds the store's lock, before anything that the log holds is moved elsewhere in parts.
    """
    paths = list_segments(files, directory)
    if paths:
        files.truncate(paths[-1], files.size(paths[-1]))


def list_segments(files: Files, directory: str) -> list[str]:
    """Return the segments that count, in order, without a gap.

    A listing is not one moment: while a writer deletes the oldest segments, it may show one of them and not the one
    after it, or a mark and not the segment that it is for. So what is missing counts only if it still is when nothing
    moves any more.
    """
    before: LogNames | None = None
    for _ in range(_LISTINGS_MAX):
        names = list_names(files, directory)
        paths = [path for sequence, path in names.segments if sequence >= names.begin]
        gap = _first_gap(paths)
        begins_as_marked = not names.begin or (bool(paths) and _sequence(paths[0]) == names.begin)
        if gap is None and begins_as_marked:
            return paths
        if names == before:
            if gap is None and paths:
                return paths  # its beginning was removed since the mark was made, and a crash brought the mark back
            missing = segment_path(directory, names.begin if gap is None else gap)
            where = "with all that came after it" if gap is None else "between other segments"
            raise MissingFile(f"{missing} is missing from the log, {where}: restore it from a copy")
        before = names
    raise FileNotFoundError(f"the segments in {directory} change faster than they can be listed")


def _first_gap(paths: list[str]) -> int | None:
    numbers = [_sequence(path) for path in paths]
    for expected, number in enumerate(numbers, start=numbers[0] if numbers else 0):
        if number != expected:
            return expected
    return None


def _sequence(path: str) -> int:
    number = segment_sequence(path)
    assert number is not None
    return number


def check_length(before: SegmentInfo, previous_bytes: int | None) -> None:
    """Raise `Corruption` unless a segment is as long as the header of the next one says that it was."""
    if previous_bytes is not None and previous_bytes != before.bytes:
        raise Corruption(
            before.path,
            f"it ends after {before.bytes} bytes but had {previous_bytes} when the next segment was begun",
            min(before.bytes, previous_bytes),
        )


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
        """Yield offsets and entries; raise `Corruption` at a spot that was whole once."""
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
            self._txn_min = min(self._txn_min, entry.txn_min) if self._txn_max else entry.txn_min
            self._txn_max = max(self._txn_max, entry.txn_max)
            yield offset, entry

    def info(self) -> SegmentInfo:
        """Return what was read: its size is that up to which it is good."""
        return SegmentInfo(self.path, _sequence(self.path), self._end, self._txn_min, self._txn_max, self._closed)

    def torn_tail(self) -> TornTail | None:
        """Return what is not good, if anything."""
        rest = len(self._data) - self._end
        return TornTail(self.path, self._end, rest) if rest else None

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

    def _decode(self, header: EntryHeader, offset: int, payload: pa.Buffer) -> LogEntry:
        if header.kind != EntryKind.COMMIT or header.flags:
            raise FormatTooNew(
                f"{self.path} at offset {offset} has an entry of kind {header.kind} (flags {header.flags}), which this "
                "version of Ebla does not know: update it"
            )
        try:
            return decode_entry(payload)
        except (ValueError, struct.error, msgspec.MsgspecError, pa.ArrowException) as error:
            raise Corruption(
                self.path, f"an entry cannot be understood though its checksum fits ({error})", offset
            ) from error
