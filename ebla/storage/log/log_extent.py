"""What a log must hold, as it is on record outside of the log: else nobody would miss what is not there any more.

    first            last
    0007    0008    0009 .......|          0010
    must be there, all of them  | synced   may be there: made since the last time that something was put on record

An extent is a lower bound, never more: it says what was there durably at some moment. So it need not be written with
every commit, and a log that holds more is as good; what is told with every commit is in log_reach.py. Who writes the
log tells a `LogWitness`, in an order in which every extent stays true, whenever a crash comes:

    a segment is made, durably   -> on record ->   something in it may be acknowledged
    nothing below n is needed    -> on record ->   what is below n is removed
    bytes were synced            -> remembered, and on record the next time that something is

`lost` are segments that somebody looked for in vain, and has said to go on without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

__all__ = ["NOTHING", "LogExtent", "LogWitness", "Unwitnessed"]


class LogExtent(msgspec.Struct, frozen=True):
    """Segments `first` to `last` are there but those `lost`, with `synced` bytes of the last."""

    first: int = 1
    last: int = 0
    synced: int = 0
    lost: tuple[int, ...] = ()

    def reaching(self, sequence: int, synced: int) -> LogExtent:
        """Return it with the end moved forward to there; unchanged if it is there already."""
        if (sequence, synced) <= (self.last, self.synced):
            return self
        return msgspec.structs.replace(self, last=sequence, synced=synced)

    def beginning_at(self, sequence: int) -> LogExtent:
        """Return it with the beginning moved forward to a segment; unchanged if it is there already."""
        if sequence <= self.first:
            return self
        return msgspec.structs.replace(
            self, first=sequence, lost=tuple(number for number in self.lost if number >= sequence)
        )

    def without(self, lost: Sequence[int]) -> LogExtent:
        """Return it without segments that are not there any more."""
        gone = {*self.lost, *lost}
        extent = self if self.last not in gone else msgspec.structs.replace(self, synced=0)
        first = next((number for number in range(self.first, self.last + 1) if number not in gone), self.last + 1)
        return msgspec.structs.replace(
            extent, first=first, lost=tuple(sorted(number for number in gone if first <= number <= self.last))
        )

    def synced_of(self, sequence: int) -> int:
        """Return how many bytes of a segment are known to have been durable; the next one tells of any but the last."""
        return self.synced if sequence == self.last else 0

    def missing(self, numbers: Sequence[int]) -> list[int]:
        """Return the segments that are not there, where `numbers` are, in order: also those between any two of them."""
        there = {*numbers, *self.lost}
        must = [self.first, self.last] if self.first <= self.last else []
        ends = [*must, *numbers]
        return [number for number in range(min(ends), max(ends) + 1) if number not in there] if ends else []


# What must be there of a log that was never written, and of one that no record was made of.
NOTHING = LogExtent()


class LogWitness(Protocol):
    """Who keeps on record what a log holds. Called by several threads."""

    def reached(self, sequence: int, synced: int) -> None:
        """Remember that so many bytes of a segment are durable. It costs next to nothing: every sync is told."""

    def begun(self, sequence: int) -> None:
        """Put on record that a new segment is there, durably, before anything in it is acknowledged."""

    def removing(self, first: int) -> None:
        """Put on record that segments below `first` are needed no more, before any goes. Raises if that failed."""

    def closed(self) -> None:
        """Let go of what is open: the log was closed. Another may be begun after it."""


class Unwitnessed:
    """Keeps nothing on record: for logs that nobody would miss."""

    def reached(self, sequence: int, synced: int) -> None:
        """Forget it."""

    def begun(self, sequence: int) -> None:
        """Forget it."""

    def removing(self, first: int) -> None:
        """Forget it."""

    def closed(self) -> None:
        """Have nothing open."""
