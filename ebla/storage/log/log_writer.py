"""Writing the log: append entries, sync them, roll segments, remove segments that are no longer needed.

                 append(entry)            sync()
    log worker ----- one writev ----- one fdatasync ----> acknowledge       the file is longer than what is written:
                        |                                                   a sync of no new length costs a third less
                        | the segment is full: closed entry, sync; create the next, sync it and the directory; tell
                        v                      the witness (log_extent.py)
    segments:  0007 closed   0008 closed   0009 current
                  `- delete_segments(txn): oldest first, only finished ones, only below txn (log_removal.py)

    start_over, when nothing in the log is needed any more:  a segment 0010 of one entry, then 0007 to 0009 go

Invariants:
- An entry is durable when the `sync` after its `append` returned. The writer never acknowledges anything itself.
- When segment n + 1 exists, segment n is complete and synced, to its last byte.
- Nothing in a segment is acknowledged before its witness was told of it, and none goes before he was told of that.
- Segments vanish from the oldest on; no crash leaves a gap but below a mark. The newest one stays, whoever wrote it:
  numbers go on from it, and none is ever used twice.
- The first error of a write or a sync ends the writer for good. What reached the disk is then unknown, and a second
  fsync may report success over pages that the kernel has dropped. Only a replay, that is reopening, can go on.

`append`, `sync` and `close` are called by one thread at a time; the rest by any thread.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from itertools import takewhile

from ebla.errors import LogFailed, TooManyFiles
from ebla.storage.files.files import BytesLike, Files, WritableFile
from ebla.storage.log.log_entry import LogEntry, encode_entry
from ebla.storage.log.log_extent import LogWitness, Unwitnessed
from ebla.storage.log.log_format import (
    SEGMENT_HEADER_BYTES,
    EntryKind,
    SegmentHeader,
    SegmentInfo,
    encode_segment_header,
    frame_entry,
    segment_path,
)
from ebla.storage.log.log_removal import remove_before
from ebla.storage.log.replica_entry import ReplicaEntry, encode_replica_entry

__all__ = ["LogWriter", "start_over"]

# So much longer than what is written a segment is made at a time, the more the longer it is. It takes no room on the
# disk, and a segment that is finished has none of it left.
RESERVED_BYTES_MIN = 64 << 10
RESERVED_BYTES_MAX = 1 << 20


class _Segment:
    """The segment being written. All that `info` has of it is synced."""

    def __init__(self, info: SegmentInfo, header: SegmentHeader, file: WritableFile) -> None:
        self.path = info.path
        self.header = header
        self.file = file
        self.bytes = info.bytes
        self.synced = info.bytes
        self.reserved = info.bytes
        self.txn_min = info.txn_min
        self.txn_max = info.txn_max

    def info(self, closed: bool = False) -> SegmentInfo:
        return SegmentInfo(self.path, self.header.sequence, self.bytes, self.txn_min, self.txn_max, closed)


class LogWriter:
    """The log of one server, open for writing. The first segment is made by the first `append`.

    `next_sequence` and `older` come from the recovery of what is in the directory: the number of the first segment to
    make, and the segments before it, which this writer may delete later. With `unfinished`, the header of the last of
    them, that one is written on, if it is not full; whoever wrote it before must be gone.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        server: str,
        next_sequence: int,
        segment_bytes: int,
        older: Sequence[SegmentInfo] = (),
        *,
        unfinished: SegmentHeader | None = None,
        witness: LogWitness | None = None,
    ) -> None:
        # Set once.
        self._witness = witness or Unwitnessed()
        self._files = files
        self._directory = directory
        self._server = server
        self._segment_bytes = segment_bytes
        # The length of the segment before the first one written here, or None if there is none.
        self._previous_bytes = _size_of_segment(files, segment_path(directory, next_sequence - 1))
        if older and older[-1].sequence == next_sequence - 1 and older[-1].bytes != self._previous_bytes:
            raise ValueError(f"{older[-1].path} must be cut to {older[-1].bytes} bytes before the log is written again")
        # The writing thread's own.
        self._next_sequence = next_sequence
        self._unfinished = unfinished
        self._closed = False
        # Set by the writing thread, read by all.
        self._current: _Segment | None = None
        self._failure: BaseException | None = None
        # Guarded by _lock.
        self._lock = threading.Lock()
        self._finished = list(older)
        # Held for a whole `delete_segments`, so that two of them do not interleave. Taken before _lock.
        self._delete_lock = threading.Lock()

    @property
    def failed(self) -> bool:
        """Whether the writer met an error and accepts nothing more."""
        return self._failure is not None

    def append(self, entry: LogEntry) -> int:
        """Write an entry and return its size in bytes. It is durable after the next `sync`.

        Raises `LogFailed` if it could not be written; it may then be found by the recovery all the same.
        """
        return self._append(EntryKind.COMMIT, encode_entry(entry), entry.txn_min, entry.txn_max)

    def append_replicas(self, entry: ReplicaEntry) -> int:
        """Write records of replicas, as `append` does commits."""
        return self._append(EntryKind.REPLICAS, encode_replica_entry(entry), entry.txn_min, entry.txn_max)

    def _append(self, kind: EntryKind, payload: list[BytesLike], txn_min: int, txn_max: int) -> int:
        self._check_open()
        try:
            segment = self._current or self._write_on()
            if segment is None or segment.bytes >= self._segment_bytes:
                segment = self._roll()
            if segment.bytes >= segment.reserved:
                segment.reserved = segment.bytes + min(max(segment.bytes, RESERVED_BYTES_MIN), RESERVED_BYTES_MAX)
                segment.file.reserve(segment.reserved)
            length = self._write(segment, kind, payload)
        except OSError as error:
            raise self._failed(error) from error
        except BaseException as error:
            self._failure = error  # an interrupt, too, leaves an entry half written
            raise
        if txn_max:
            segment.txn_min = min(segment.txn_min, txn_min) if segment.txn_max else txn_min
            segment.txn_max = max(segment.txn_max, txn_max)
        return length

    def sync(self, *, is_last: bool = False) -> None:
        """Make every appended entry durable. Raises `LogFailed`; then nothing since the last sync is known to be.

        `is_last`: nothing is written after it, and the segment is as long as what is in it.
        """
        self._check_open()
        try:
            if self._current is not None:
                self._sync(self._current, is_last=is_last)
        except OSError as error:
            raise self._failed(error) from error
        except BaseException as error:
            self._failure = error  # an interrupt, too, leaves an entry half written
            raise

    def close(self) -> None:
        """Sync and close the log. After a failure only the file is closed.

        No mark of its end is written: the record has the exact end of a log that was closed, and the next writer goes
        on from there.
        """
        if self._closed:
            return
        segment = self._current
        if segment is not None and not self.failed:
            self.sync(is_last=True)
        self._closed = True
        if segment is not None:
            segment.file.close()
        self._witness.closed()

    def start_over(self, entry: LogEntry) -> None:
        """After `close`, and with nothing in the log needed any more, leave one that has only this entry.

        Nothing happens after a failure. `LogFailed` or `OSError` if it cannot be done wholly: what is left is as good.
        """
        assert self._closed
        if not self.failed:
            start_over(
                self._files,
                self._directory,
                self._server,
                self._next_sequence,
                self.segments(),
                self._segment_bytes,
                entry,
                self._witness,
            )

    def segments(self) -> list[SegmentInfo]:
        """Return what is known of every segment that is still there, oldest first, the current one last."""
        with self._lock:
            current = self._current
            return [*self._finished, current.info()] if current is not None else [*self._finished]

    def total_bytes(self) -> int:
        """Return the size of all segments together."""
        return sum(segment.bytes for segment in self.segments())

    def delete_segments(self, txn: int) -> list[SegmentInfo]:
        """Delete, oldest first, the finished segments that hold nothing at or above `txn`, and return them.

        It stops at the first segment that is still needed, so that the rest has no gap, and never touches the current
        one, or the newest if nothing was written yet. An `OSError`, or what the witness raises, comes through; what is
        left can be deleted by a later call.
        """
        with self._delete_lock:
            with self._lock:
                removable = self._finished if self._current is not None else self._finished[:-1]
                doomed = [*takewhile(lambda segment: segment.txn_max < txn, removable)]
            if doomed:
                self._witness.removing(doomed[-1].sequence + 1)
                remove_before(self._files, self._directory, doomed[-1].sequence + 1)
                with self._lock:
                    del self._finished[: len(doomed)]
            return doomed

    # --- the writing thread ----------------------------------------------------------------------

    def _write_on(self) -> _Segment | None:
        """Go on in the last segment that is there, if that may be."""
        header, self._unfinished = self._unfinished, None
        info = self._finished[-1] if self._finished else None
        if header is None or info is None or info.sequence != header.sequence or info.bytes >= self._segment_bytes:
            return None
        assert info.sequence == self._next_sequence - 1, "it would come after others"
        file = self._files.write_on(info.path)
        if file.tell() != info.bytes:
            file.close()
            raise ValueError(f"{info.path} must be cut to {info.bytes} bytes before it is written on")
        segment = _Segment(info, header, file)
        with self._lock:
            self._finished.pop()
            self._current = segment
        return segment

    def _roll(self) -> _Segment:
        """Finish the current segment, if any, and start the next."""
        previous_bytes = self._previous_bytes
        finished = self._current
        if finished is not None:
            # Before the mark, which vouches for every entry before it, and behind which nothing may be.
            self._sync(finished, is_last=True)
            self._write(finished, EntryKind.CLOSED, ())
            self._sync(finished)
            finished.file.close()
            previous_bytes = finished.bytes
        path = segment_path(self._directory, self._next_sequence)
        header, data = encode_segment_header(self._server, self._next_sequence, previous_bytes)
        file = self._files.create(path)
        try:
            file.write(data)
            file.sync()
            self._files.sync_directory(self._directory)
            self._witness.begun(self._next_sequence)
        except BaseException:
            file.close()
            raise
        started = _Segment(SegmentInfo(path, self._next_sequence, SEGMENT_HEADER_BYTES), header, file)
        with self._lock:
            if finished is not None:
                self._finished.append(finished.info(closed=True))
            self._current = started
        self._next_sequence += 1
        return started

    def _write(self, segment: _Segment, kind: EntryKind, payload: Sequence[bytes | bytearray | memoryview]) -> int:
        length = segment.file.write_buffers(frame_entry(kind, payload, segment.header, segment.bytes, segment.synced))
        segment.bytes += length
        return length

    def _sync(self, segment: _Segment, *, is_last: bool = False) -> None:
        is_longer = is_last and segment.reserved > segment.bytes
        if is_longer:
            segment.file.reserve(segment.bytes)
        if is_longer or segment.synced < segment.bytes:
            segment.file.sync()
            segment.synced = segment.bytes
            segment.reserved = segment.bytes if is_last else segment.reserved
            self._witness.reached(segment.header.sequence, segment.synced)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise _log_failed(self._failure, self._directory) from self._failure
        if self._closed:
            raise ValueError("the log is closed")

    def _failed(self, error: OSError) -> LogFailed:
        """End the writer; return what to raise."""
        self._failure = error
        return _log_failed(error, self._directory)


def start_over(
    files: Files,
    directory: str,
    server: str,
    next_sequence: int,
    segments: Sequence[SegmentInfo],
    segment_bytes: int,
    entry: LogEntry,
    witness: LogWitness | None = None,
) -> None:
    """Begin a segment that has `entry` alone and remove all before it, which are whole, and of which nothing is needed.

    There must be an entry, whose txn is not below theirs: numbers of segments go on from the last one that is there,
    and none is ever used twice.
    """
    writer = LogWriter(files, directory, server, next_sequence, segment_bytes, segments, witness=witness)
    try:
        writer.append(entry)
        writer.sync(is_last=True)
        writer.delete_segments(entry.txn_max + 1)
    finally:
        writer.close()


def _size_of_segment(files: Files, path: str) -> int | None:
    try:
        return files.size(path)
    except FileNotFoundError:
        return None


def _log_failed(cause: BaseException, directory: str) -> LogFailed:
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return LogFailed(
            f"no space left on the disk for the log ({directory}): free space, then reopen the store; reads go on"
        )
    if isinstance(cause, TooManyFiles):
        return LogFailed(
            f"the log ({directory}) cannot be written any more: {cause}, by reopening the store; reads go on"
        )
    return LogFailed(
        f"the log ({directory}) cannot be written any more: {str(cause) or type(cause).__name__}; "
        "mend the cause, then reopen the store; reads go on"
    )
