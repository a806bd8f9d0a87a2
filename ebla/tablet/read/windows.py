"""Cutting a key range into windows that are read one at a time, at the first rows of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ebla.model.ranges import KeyRange

__all__ = ["WINDOW_GROWTH", "Window", "after", "cut", "even_window_rows", "lie_on_each_other"]

WINDOW_GROWTH = 4

Window = tuple[KeyRange, int]
"""A range to be read at once, and about how many records it has."""


def cut(share: KeyRange, marks: Sequence[tuple[bytes, int]], first: int, largest: int) -> list[Window]:
    """Cut a range at some of the sorted `marks` into windows of about `first` records and then ever more."""
    windows = []
    begin, held, size = share.first, 0, min(first, largest)
    for row, rows in marks:
        if held >= size and begin < row and (share.last is None or row < share.last):
            windows.append((KeyRange(begin, row), held))
            begin, held = row, 0
            size = min(largest, size * WINDOW_GROWTH)
        held += rows
    windows.append((KeyRange(begin, share.last), held))
    return windows


def even_window_rows(rows: int, largest: int, threads: int) -> int:
    """Return how many records a window has if `rows` are shared out evenly among threads, `largest` at a time."""
    rounds = -(-rows // (largest * threads))
    return max(1, -(-rows // max(1, rounds * threads)))


def lie_on_each_other(spans: Iterable[tuple[bytes, bytes]]) -> bool:
    """Tell whether two of the spans, from a first to a last row, have rows in common: then there is work in a merge."""
    reach: bytes | None = None
    for first, last in sorted(spans):
        if reach is not None and first <= reach:
            return True
        reach = last
    return False


def after(rows: KeyRange, window: KeyRange, *, reverse: bool) -> KeyRange | None:
    """Return what comes after a window in a scan of `rows`, None if that is nothing."""
    if reverse:
        return None if window.first <= rows.first else KeyRange(rows.first, window.first)
    if window.last is None or (rows.last is not None and window.last >= rows.last):
        return None
    return KeyRange(window.last, rows.last)
