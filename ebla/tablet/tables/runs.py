"""Runs: fragments that lie side by side, so that every row is in one of them at most.

How many runs there are is how deep the fragments of a tablet lie on each other: what a merge is chosen by, and what a
reader of a row has to look into.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ebla.metadata.values.table_metadata import FragmentRef

__all__ = ["runs_of"]


def runs_of(fragments: Sequence[FragmentRef]) -> list[list[FragmentRef]]:
    """Divide fragments into as few runs as possible, the fragments of each lying side by side."""
    runs: list[list[FragmentRef]] = []
    ends: list[bytes] = []  # of the runs, ascending
    for fragment in sorted(fragments, key=lambda one: (one.first, one.last)):
        # The run that ends nearest before it, so that neighbours stay together.
        at = bisect_left(ends, fragment.first) - 1
        if at < 0:
            run = [fragment]
        else:
            run = runs.pop(at)
            ends.pop(at)
            run.append(fragment)
        place = bisect_left(ends, fragment.last)
        ends.insert(place, fragment.last)
        runs.insert(place, run)
    return runs
