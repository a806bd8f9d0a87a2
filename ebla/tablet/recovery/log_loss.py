"""Giving up what a log has lost: what that is, and what must be there from then on.

    on record   0007 0008 0009 0010 0011....|      the log is refused, and can be brought back from a copy
    there       0007           0010 0011..
    given up    0007  -    -   0010 0011..|        on record again; what is there is replayed, the rest is told as lost

Only what is gone is given up. A segment that is there and damaged in its middle is not: whoever wants to go on without
it moves the file away, and gives up all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise

import msgspec

from ebla.clock import microseconds_of
from ebla.errors import Corruption
from ebla.storage.files.files import Files
from ebla.storage.log.log_extent import LogExtent
from ebla.storage.log.log_format import SegmentInfo
from ebla.storage.log.log_reader import SegmentReading, check_length
from ebla.storage.log.log_removal import list_names

__all__ = ["LogLoss", "find_loss"]


@dataclass(frozen=True, slots=True)
class LogLoss:
    """What a log has lost, in sentences, and what it holds without that. Nothing is lost if there is no sentence."""

    told: tuple[str, ...]
    extent: LogExtent


def find_loss(files: Files, directory: str, extent: LogExtent) -> LogLoss:
    """Compare a log that nobody writes with what it must hold; `Corruption` if what is there of it is damaged."""
    names = list_names(files, directory)
    paths = [path for sequence, path in names.segments if sequence >= names.begin]
    there = [_read(files, directory, path, is_last=path == paths[-1]) for path in paths]
    for before, after in pairwise(there):
        check_length(before.info, after.info.sequence, after.previous_bytes)
    segments = [segment.info for segment in there]
    numbers = [segment.sequence for segment in segments]
    missing = extent.missing(numbers)
    told = [_told_missing(run, segments) for run in _runs(missing)]
    kept = extent
    for segment in segments:
        if segment.bytes < extent.synced_of(segment.sequence):
            kept = msgspec.structs.replace(kept, synced=segment.bytes)
            lost = extent.synced - segment.bytes
            told.append(f"{lost} bytes at the end of {segment.path} are lost: {_between(segment.txn_max, 0)}")
    if numbers and extent.last < extent.first:
        kept = LogExtent(numbers[0], numbers[-1])
    elif numbers and numbers[-1] > extent.last:
        kept = msgspec.structs.replace(kept, last=numbers[-1], synced=0)
    return LogLoss(tuple(told), kept.without(missing))


class _Segment(msgspec.Struct, frozen=True):
    info: SegmentInfo
    previous_bytes: int | None


def _read(files: Files, directory: str, path: str, is_last: bool) -> _Segment:
    try:
        reading = SegmentReading(path, files.read(path), is_last)
        reading.check_identity(directory.rpartition("/")[2])
        for _ in reading.entries():
            pass
    except Corruption as error:
        reason = f"{error.reason}; restore it from a copy, or move it away to give up all of it"
        raise Corruption(error.file, reason, error.offset) from error
    return _Segment(reading.info(), None if reading.header is None else reading.header.previous_bytes)


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Return numbers in runs that follow one another."""
    grouped = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    return [[number for _, number in run] for _, run in grouped]


def _told_missing(run: Sequence[int], there: Sequence[SegmentInfo]) -> str:
    before = max((segment.txn_max for segment in there if segment.sequence < run[0]), default=0)
    after = min((segment.txn_min for segment in there if segment.sequence > run[-1] and segment.txn_max), default=0)
    which = f"segment {run[0]} is" if len(run) == 1 else f"segments {run[0]} to {run[-1]} are"
    return f"{which} lost: {_between(before, after)}"


def _between(before: int, after: int) -> str:
    """Return which commits were between two txns; 0 where there is no other."""
    bounds = [f"after {_shown(before)}"] if before else []
    bounds += [f"before {_shown(after)}"] if after else []
    when = " and ".join(bounds)
    return f"all that was committed{' ' if when else ''}{when}, in any table, and is not in files"


def _shown(txn: int) -> str:
    return f"txn {txn} ({datetime.fromtimestamp(microseconds_of(txn) / 1e6, UTC).isoformat(timespec='milliseconds')})"
