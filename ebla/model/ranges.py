"""Ranges of rows: half-open, over encoded keys.

    first                      last
    [--------------------------)         last=None reaches past every row, first=b"" begins before every row

A row is the bytes that `keys.py` makes of a key; their order is the order of the keys. A tablet, a scan, a range
erasure and a prefix are all a `KeyRange`.

Invariants: `first` belongs to the range, `last` does not; a range with ``first >= last`` holds nothing, overlaps
nothing and is covered by every other.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALL", "KeyRange", "prefix_end", "successor"]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows from `first` up to, and not including, `last`; None is past every row."""

    first: bytes = b""
    last: bytes | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no row at all can be in the range."""
        return self.last is not None and self.first >= self.last

    def contains(self, row: bytes) -> bool:
        """Tell whether `row` is in the range."""
        return self.first <= row and (self.last is None or row < self.last)

    def covers(self, other: KeyRange) -> bool:
        """Tell whether every row of `other` is in this range."""
        if other.is_empty:
            return True
        return self.first <= other.first and (self.last is None or (other.last is not None and other.last <= self.last))

    def overlaps(self, other: KeyRange) -> bool:
        """Tell whether some row can be in both ranges."""
        return self.intersect(other) is not None

    def intersect(self, other: KeyRange) -> KeyRange | None:
        """Return the rows that are in both ranges, or None if there can be none."""
        first = max(self.first, other.first)
        if self.last is None:
            last = other.last
        elif other.last is None:
            last = self.last
        else:
            last = min(self.last, other.last)
        if last is not None and first >= last:
            return None
        return KeyRange(first, last)


ALL = KeyRange()


def successor(row: bytes) -> bytes:
    """Return the smallest row that is greater than `row`."""
    return row + b"\0"


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the smallest row greater than every row that begins with `prefix`; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    if not kept:
        return None
    return kept[:-1] + bytes((kept[-1] + 1,))
