"""The entries that a replica has of a tablet behind the flushed point: a list without gaps.

    flushed                                              last
    base (3, 7) | (3, 8) (3, 9) (4, 10) (6, 11) (6, 12)
                  `-------- epochs never fall --------'

An entry has one index, or several that were given together (a group commit of the tablet): it is there as a whole.
The flushed point may lie within the first entry that is kept.

Two logs that have an entry of the same epoch and index have the same entries below it: one leader gives out the indices
of an epoch, and a replica takes an entry only behind the one that it follows in the leader's log. So logs are compared
by their *runs*, the last index of each epoch, and never by how far a replica believed them to be committed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from operator import attrgetter

from ebla.replication.configuration import NOWHERE, Position
from ebla.replication.messages import Entry, Runs

__all__ = ["AppendLog", "Gap"]


class Gap(Exception):
    """Entries are missing behind the flushed point: what was removed of the log is flushed by newer METADATA."""


_last = attrgetter("index")


class AppendLog:
    """A replica's entries. Who changes it writes the same to the server's log."""

    __slots__ = ("base", "entries")

    def __init__(self, base: Position = NOWHERE) -> None:
        self.base = base
        self.entries: list[Entry] = []  # each begins behind the one before it

    @classmethod
    def replayed(cls, found: Mapping[int, Entry], flushed: Position) -> AppendLog:
        """Return what a replay found, less what the flushed point drops: all below it, all of lower epochs above it."""
        log = cls(flushed)
        kept = [entry for index, entry in sorted(found.items()) if _is_kept(entry, flushed)]
        last = flushed.index
        for entry in kept:
            if entry.first != last + 1 and not entry.first <= flushed.index == last:
                raise Gap(f"entry {entry.first} stands where {last + 1} should, behind {flushed.index}")
            last = entry.index
        log.entries = kept
        return log

    @property
    def last(self) -> Position:
        """The position of the last entry, or the flushed point."""
        if not self.entries:
            return self.base
        entry = self.entries[-1]
        return Position(entry.epoch, entry.index)

    @property
    def last_index(self) -> int:
        """The index of the last entry, or of the flushed point."""
        return self.entries[-1].index if self.entries else self.base.index

    def _place(self, index: int) -> int:
        """Return where the entry of an index is among the entries, or where those behind it begin."""
        entries = self.entries
        at = index - self.base.index - 1
        if 0 <= at < len(entries) and entries[at].index == index:  # every entry before it has one index
            return at
        return bisect_left(entries, index, key=_last)

    def epoch_at(self, index: int) -> int | None:
        """Return the epoch of the entry of an index; None below the flushed point and behind the end."""
        if index <= self.base.index:
            return self.base.epoch if index == self.base.index else None
        at = self._place(index)
        return self.entries[at].epoch if at < len(self.entries) else None

    def behind(self, index: int) -> list[Entry]:
        """Return the entries of higher indices."""
        return self.entries[self._place(index + 1) :]

    def between(self, base: int, upto: int) -> list[Entry]:
        """Return the entries behind `base` up to `upto`."""
        return self.entries[self._place(base + 1) : self._place(upto + 1)]

    def some_behind(self, index: int, entries_max: int, bytes_max: int) -> list[Entry]:
        """Return the next entries of higher indices: at most so many, and bytes, but one in any case."""
        begin = self._place(index + 1)
        found = self.entries[begin : begin + entries_max]
        size = 0
        for at, entry in enumerate(found):
            size += len(entry.part)
            if at and size > bytes_max:
                return found[:at]
        return found

    def continues(self, entry: Entry) -> bool:
        """Tell whether an entry begins right behind the last one, or over the flushed point."""
        return entry.first == self.last_index + 1 or (not self.entries and entry.first <= self.base.index < entry.index)

    def append(self, entry: Entry) -> None:
        """Add the next entry."""
        assert self.continues(entry)
        self.entries.append(entry)

    def drop_from(self, index: int) -> None:
        """Remove the entries of this index and above."""
        del self.entries[self._place(index) :]

    def trim(self, flushed: Position) -> None:
        """Let go of what is in files: all up to the flushed point, and entries of lower epochs above it."""
        self.entries = [entry for entry in self.behind(flushed.index) if _is_kept(entry, flushed)]
        self.base = flushed

    def runs(self) -> Runs:
        """Return the base and the last index of each epoch."""
        found = [self.base]
        for entry in self.entries:
            if entry.epoch == found[-1].epoch and len(found) > 1:
                found[-1] = Position(entry.epoch, entry.index)
            else:
                found.append(Position(entry.epoch, entry.index))
        return tuple(found)

    def match(self, runs: Runs) -> int:
        """Return the highest index up to which the log with these runs is the same as this one; at least the base."""
        for at in range(len(runs) - 1, -1, -1):
            epoch, last = runs[at].epoch, runs[at].index
            first = runs[at - 1].index + 1 if at else last
            mine = self._last_of(epoch, last)
            if mine is not None and mine >= first:
                return mine
        return self.base.index

    def _last_of(self, epoch: int, at_most: int) -> int | None:
        for entry in reversed(self.entries):
            if entry.epoch < epoch:
                break
            if entry.epoch == epoch and entry.index <= at_most:
                return entry.index
        return self.base.index if (self.base.epoch == epoch and self.base.index <= at_most) else None


def _is_kept(entry: Entry, flushed: Position) -> bool:
    return entry.index > flushed.index and entry.epoch >= flushed.epoch
