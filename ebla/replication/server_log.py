"""The one log of a server: records of all its replicas, in segments, and their replay.

    Standing   this replica is here, and has seen this epoch; said again at the head of every segment
    Appended   an entry of a replica
    Dropped    a replica's entries from an index on are not the leader's, and do not count
    Gone       the replica was deleted

    segment 4: Standing .. | Appended .. | Dropped .. |     segment 5: Standing .. | Appended ..

A segment goes when every entry in it is flushed. **A record of a drop stays as long as what it drops is on disk**: were
it gone, a replay would bring back entries of a leader that lost its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from ebla.replication.configuration import LogEnd
from ebla.replication.messages import Entry

__all__ = ["Appended", "Dropped", "Gone", "Key", "Record", "Replayed", "ServerLog", "Standing", "replay"]

Key: TypeAlias = tuple[str, str]  # tablet and assignment id


class Standing(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """A replica is here, and takes nothing of a lower epoch any more."""

    key: Key
    epoch: int


class Appended(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """An entry of a replica."""

    key: Key
    entry: Entry


class Dropped(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=3):
    """The entries of a replica that stand before this, from an index on, do not count."""

    key: Key
    index: int


class Gone(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=4):
    """A replica was deleted."""

    key: Key


Record: TypeAlias = Standing | Appended | Dropped | Gone


class Replayed:
    """What a log has of one replica."""

    __slots__ = ("entries", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.entries: dict[int, Entry] = {}

    def take(self, entry: Entry) -> None:
        """Add an entry: it removes those of its indices and above that are of lower epochs."""
        self.drop(entry.first, below_epoch=entry.epoch)
        self.entries[entry.index] = entry

    def drop(self, index: int, below_epoch: int | None = None) -> None:
        """Remove the entries of an index and above, all or those of lower epochs."""
        for at in [at for at in self.entries if at >= index]:
            if below_epoch is None or self.entries[at].epoch < below_epoch:
                del self.entries[at]


def replay(records: Iterable[tuple[int, Record]], ends: Iterable[LogEnd] = ()) -> dict[Key, Replayed]:
    """Return what numbered records say of each replica; nothing behind an end counts."""
    end_of = {end.assignment_id: end.sequence for end in ends}
    found: dict[Key, Replayed] = {}
    for sequence, record in records:
        key = record.key
        if sequence > end_of.get(key[1], sequence):
            continue
        if isinstance(record, Gone):
            found.pop(key, None)
            continue
        known = found.get(key)
        if known is None:
            known = found[key] = Replayed(0)
        if isinstance(record, Appended):
            known.take(record.entry)
        elif isinstance(record, Dropped):
            known.drop(record.index)
        else:
            known.epoch = max(known.epoch, record.epoch)
    return found


class _Segment:
    """What of a segment has to be flushed before it goes, and which segments have to go before it does."""

    __slots__ = ("count", "held_by", "highest")

    def __init__(self) -> None:
        self.count = 0
        self.highest: dict[Key, int] = {}
        self.held_by: set[int] = set()


class ServerLog:
    """Numbers the records, cuts the log into segments, and tells which of these are needed."""

    __slots__ = ("_segments", "current", "next_sequence", "records", "segment_records", "synced")

    def __init__(self, on_disk: Iterable[tuple[int, int, Record]], segment_records: int) -> None:
        """Begin with what is on disk, each with its segment and number; what comes goes to a new segment."""
        self.segment_records = segment_records
        self._segments: dict[int, _Segment] = {}
        self.next_sequence = 1
        self.current = 0
        for segment, sequence, record in on_disk:
            self.current = segment
            self._note(segment, record)
            self.next_sequence = sequence + 1
        self.synced = self.next_sequence - 1
        self.current += 1
        self._segments[self.current] = _Segment()
        self.records: list[Record] = []  # not taken by the driver yet

    @property
    def is_full(self) -> bool:
        """Whether the current segment has as many records as it should."""
        return self._segments[self.current].count >= self.segment_records

    def rotate(self) -> None:
        """Begin the next segment."""
        assert not self.records
        self.current += 1
        self._segments[self.current] = _Segment()

    def append(self, record: Record) -> int:
        """Add a record, and return its number."""
        self.records.append(record)
        self._note(self.current, record)
        self.next_sequence += 1
        return self.next_sequence - 1

    def taken(self) -> tuple[int, tuple[Record, ...]]:
        """Return what is to be written now, and the number of the first."""
        records, self.records = tuple(self.records), []
        return self.next_sequence - len(records), records

    def free(self, is_needed: Callable[[Key, int], bool]) -> list[int]:
        """Return the segments that can go, oldest first; `is_needed` tells of a replica and an index."""
        freed = []
        for number, segment in sorted(self._segments.items()):
            if number == self.current or self._is_held(segment):
                continue
            if not any(is_needed(key, index) for key, index in segment.highest.items()):
                del self._segments[number]
                freed.append(number)
        return freed

    def _is_held(self, segment: _Segment) -> bool:
        return any(held in self._segments for held in segment.held_by)

    def _note(self, number: int, record: Record) -> None:
        segment = self._segments.setdefault(number, _Segment())
        segment.count += 1
        if isinstance(record, Appended):
            key, index = record.key, record.entry.index
            segment.highest[key] = max(index, segment.highest.get(key, 0))
        elif isinstance(record, Standing):
            segment.highest.setdefault(record.key, 0)
        elif isinstance(record, Dropped):
            segment.held_by |= {
                other
                for other, one in self._segments.items()
                if other != number and one.highest.get(record.key, 0) >= record.index
            }
        elif isinstance(record, Gone):
            segment.held_by |= {
                other for other, one in self._segments.items() if other != number and record.key in one.highest
            }
