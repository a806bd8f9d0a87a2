"""The entries that a replica has of a tablet behind the flushed point: a list without gaps.

    flushed                                              last
    base (3, 7) | (3, 8) (3, 9) (4, 10) (6, 11) (6, 12)
                  `-------- epochs never fall --------'

Two logs that have an entry of the same epoch and index have the same entries below it: one leader gives out the indices
of an epoch, and a replica takes an entry only behind the one that it follows in the leader's log. So logs are compared
by their *runs*, the last index of each epoch, and never by how far a replica believed them to be committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ebla.replication.configuration import NOWHERE, Position
from ebla.replication.messages import Entry, Runs

__all__ = ["AppendLog", "Gap"]


class Gap(Exception):
    """Entries are missing behind the flushed point: what was removed of the log is flushed by newer METADATA."""


class AppendLog:
    """A replica's entries. Who changes it writes the same to the server's log."""

    __slots__ = ("base", "entries")

    def __init__(self, base: Position = NOWHERE) -> None:
        self.base = base
        self.entries: list[Entry] = []  # entries[n].index == base.index + 1 + n

    @classmethod
    def replayed(cls, found: Mapping[int, Entry], flushed: Position) -> AppendLog:
        """Return what a replay found, less what the flushed point drops: all below it, all of lower epochs above it."""
        log = cls(flushed)
        kept = [entry for index, entry in sorted(found.items()) if _is_kept(entry, flushed)]
        for index, entry in enumerate(kept, flushed.index + 1):
            if entry.index != index:
                raise Gap(f"entry {entry.index} stands where {index} should, behind {flushed.index}")
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
        return self.base.index + len(self.entries)

    def epoch_at(self, index: int) -> int | None:
        """Return the epoch of the entry of an index; None below the flushed point and behind the end."""
        at = index - self.base.index - 1
        if at == -1:
            return self.base.epoch
        return self.entries[at].epoch if 0 <= at < len(self.entries) else None

    def behind(self, index: int) -> list[Entry]:
        """Return the entries of higher indices."""
        return self.entries[max(0, index - self.base.index) :]

    def between(self, base: int, upto: int) -> list[Entry]:
        """Return the entries behind `base` up to `upto`."""
        return self.entries[max(0, base - self.base.index) : max(0, upto - self.base.index)]

    def append(self, entry: Entry) -> None:
        """Add the next entry."""
        assert entry.index == self.last_index + 1
        self.entries.append(entry)

    def drop_from(self, index: int) -> None:
        """Remove the entries of this index and above."""
        del self.entries[max(0, index - self.base.index - 1) :]

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
