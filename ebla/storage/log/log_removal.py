"""Removing the beginning of a log: many segments at the price of two syncs, and no crash leaves a hole that counts.

    0007.log   0008.log 0009.log 0010.log        nothing before 0010 is needed any more
    0010.begin 0008.log 0009.log 0010.log        the oldest is renamed to a mark: here the log begins.  Sync
    0010.begin                   0010.log        the others go; a crash brings any of them back.        Sync
                                 0010.log        so does the mark, and if it comes back it still tells the truth

A number missing between two segments is a lost file, and the log is refused. But names that were removed since the last
sync of a directory survive a crash in any choice. So whoever lists a log passes over what is below its newest mark,
and the next who owns it removes that. Above it, a hole is a lost file as ever.

Invariants:
- A mark is made only for a segment that is there, durably. So a log that has a mark and nothing at or above it has
  lost its end, and is refused; and what is below a mark was never begun after it, since numbers only grow.
- A mark goes only when the removal of all that it covers is durable.
- While a process lives, names go from the oldest on: a reader who lists them beside it sees no hole that lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ebla.storage.files.files import Files
from ebla.storage.log.log_format import mark_path, mark_sequence, segment_sequence

__all__ = ["LogNames", "finish_removal", "list_names", "remove_before"]


class LogNames(NamedTuple):
    """The names in the directory of a log, in order; `begin` is what the newest of the marks says, or 0."""

    segments: Sequence[tuple[int, str]]
    marks: Sequence[str]
    begin: int


def list_names(files: Files, directory: str) -> LogNames:
    """Return what there is of a log, at this moment or, beside a process that changes it, at several."""
    segments, marks, begin = [], [], 0
    for info in files.list(directory):
        if (sequence := segment_sequence(info.path)) is not None:
            segments.append((sequence, info.path))
        elif (sequence := mark_sequence(info.path)) is not None:
            marks.append(info.path)
            begin = max(begin, sequence)
    return LogNames(segments, marks, begin)


def remove_before(files: Files, directory: str, begin: int) -> None:
    """Remove all segments below `begin`, of which nothing is needed, and what an earlier removal has left.

    For the one who owns the log, one at a time. The segment `begin` must be there, durably. If an `OSError` comes
    through, the rest can be removed by a later call, also of another process.
    """
    names = list_names(files, directory)
    begin = max(begin, names.begin)
    if not any(sequence >= begin for sequence, _ in names.segments):
        raise ValueError(f"the log in {directory} cannot begin at {begin}: it ends before")
    doomed = [path for sequence, path in names.segments if sequence < begin]
    marks = [*names.marks]
    if len(doomed) > 1:
        mark = mark_path(directory, begin)
        if mark not in marks:
            # Renamed, not made: it must be possible on a disk that is full, and the name takes no more room.
            files.replace(doomed.pop(0), mark)
            marks.append(mark)
        files.sync_directory(directory)  # also if it was there: an earlier call may have failed in between
    for path in doomed:
        files.delete(path)
    if doomed or marks:
        files.sync_directory(directory)
    for mark in marks:
        files.delete(mark)


def finish_removal(files: Files, directory: str) -> None:
    """Remove what is left of a removal that did not come to its end. For the one who owns the log, and has read it."""
    begin = list_names(files, directory).begin
    if begin:
        remove_before(files, directory, begin)
