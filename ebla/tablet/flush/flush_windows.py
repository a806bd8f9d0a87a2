"""Memory on its way to a file, a stretch of rows at a time: a flush takes little more memory than what it flushes.

    blocks    |--------------------------|      sorted each, and lying on each other
                  |--------------------|
              |---------------|
    windows   |        |        |        |      cut at rows, of about the same size

To put all records in order at once would take three times their size: as they are, end to end, and in order. The rows
of a window are never in another one, and all windows have the same columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ebla.model.ranges import ALL
from ebla.storage.merge.combined import CombinedRuns, combine_runs
from ebla.storage.merge.memory import rows_combined
from ebla.storage.record.records import Block, Run
from ebla.tablet.read.windows import cut

__all__ = ["FlushWindows"]

WINDOW_BYTES = 6 << 20
# Every block is cut once for every window: where many small ones lie on each other, windows are this much longer for
# each. Those of several tablets lie side by side.
BLOCK_BYTES = 192 << 10
# A window may be longer than it should be by this part of itself, for each block.
MARKS_EACH = 16


class FlushWindows:
    """All records of some blocks of one group, in order, a window at a time. No version is dropped."""

    def __init__(self, blocks: Sequence[Block], *, is_cells: bool) -> None:
        # Set once.
        self._blocks = rows_combined(blocks)
        self._is_cells = is_cells
        self._windows = [ALL]
        window_bytes = max(WINDOW_BYTES, BLOCK_BYTES * _depth(self._blocks))
        if sum(block.bytes for block in self._blocks) > window_bytes:
            marks = sorted(mark for block in self._blocks for mark in _marks(block, window_bytes // MARKS_EACH))
            self._windows = [window for window, _ in cut(ALL, marks, window_bytes, window_bytes)]

    def __len__(self) -> int:
        """Return how many there are at most."""
        return len(self._windows)

    def __iter__(self) -> Iterator[CombinedRuns]:
        # A window has the columns of all blocks, also of those that have no rows in it.
        columns = {block.records.schema: Run(block.records.slice(0, 0), block.txn) for block in self._blocks}
        for window in self._windows:
            first, last = window.first, window.last
            touched = [one for one in self._blocks if one.last >= first and (last is None or one.first < last)]
            found = [block.slice_range(first, last) for block in touched]
            runs = [run for run in found if run is not None]
            if not runs:
                continue  # it was cut within a long row
            seen = {run.records.schema for run in runs}
            yield combine_runs(
                [*runs, *(empty for schema, empty in columns.items() if schema not in seen)], is_cells=self._is_cells
            )


def _depth(blocks: Sequence[Block]) -> int:
    """Return how many blocks lie on each other at most."""
    edges = sorted([(block.first, 0) for block in blocks] + [(block.last, 1) for block in blocks])
    deepest = depth = 0
    for _, is_end in edges:
        depth += -1 if is_end else 1
        deepest = max(deepest, depth)
    return deepest


def _marks(block: Block, mark_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield rows of a block with about so many bytes between them, and the bytes up to the next one."""
    row_bytes = max(1, block.bytes // len(block))
    step = max(1, mark_bytes // row_bytes)
    for place in range(0, len(block), step):
        yield block.row_at(place), min(step, len(block) - place) * row_bytes
