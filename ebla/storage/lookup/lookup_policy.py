"""When a lookup file pays, and which ones go when there is no room: decisions without I/O.

To make one costs about a microsecond for each record, once. It saves most of what a row costs that is found in a
block: a few microseconds where the block is decoded already (of cells, a few tens), and half a millisecond where it is
not. So a file is worth it when what its readers have paid so far would have paid for it: then whatever comes, no more
than twice as much is spent as by who knew it beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "CELLS_FOUND_POINTS",
    "DECODED_POINTS",
    "FOUND_POINTS",
    "SHORT_SCAN_POINTS",
    "Held",
    "decoded_points",
    "is_for_many",
    "is_worth_making",
    "who_goes",
]

# What a row costs more than with a lookup file, in about the time that it takes to make one of a record.
FOUND_POINTS = 4
CELLS_FOUND_POINTS = 40
DECODED_POINTS = 400
DECODED_POINTS_PER_KIB = 0.75  # of blocks that are so large that this is more
SHORT_SCAN_POINTS = 100  # for each fragment that a short scan may touch
# Many rows at once are found in blocks from one in so many rows of the fragment on, asked for until then, if they fit
# into a share of the cache: picked from decoded columns, they cost a fraction of what they do one by one.
MANY_SHARE = 64
CACHE_SHARE = 4
# Files that were asked for in so many of the last rounds stay: else two that are asked for by turns are made for ever.
STAYS_ROUNDS = 60


def decoded_points(block_bytes: int) -> int:
    """Return what a row costs for which a block of so many bytes, decoded, was decoded."""
    return max(DECODED_POINTS, int(block_bytes / 1024 * DECODED_POINTS_PER_KIB))


def is_worth_making(records: int, points: int) -> bool:
    """Tell whether to make the lookup file of a fragment with so many records."""
    return points >= records


def is_for_many(records: int, asked: int, file_bytes: int, cache_bytes: int) -> bool:
    """Tell whether many rows are to be looked up one by one, given how many of a fragment were asked for so far."""
    return asked * MANY_SHARE < records or file_bytes * CACHE_SHARE > cache_bytes


@dataclass(frozen=True, slots=True)
class Held:
    """A lookup file on disk: its bytes, and the round in which it was asked for last."""

    bytes: int
    used_round: int


def who_goes(held: Mapping[str, Held], needed_bytes: int, bytes_max: int, this_round: int) -> list[str] | None:
    """Return the files to remove for another of so many bytes, longest unused first; None if it has no place."""
    there = sum(one.bytes for one in held.values())
    gone: list[str] = []
    for name in sorted(held, key=lambda one: (held[one].used_round, one)):
        if there + needed_bytes <= bytes_max:
            break
        if this_round - held[name].used_round <= STAYS_ROUNDS:
            return None
        gone.append(name)
        there -= held[name].bytes
    return gone if there + needed_bytes <= bytes_max else None
