"""Where to split a tablet, and how large it is: decided from the block indexes of its fragments, without any I/O.

    fragment 1   |a.......|d......|h.....|m........|s....|        first rows of blocks, each with its weight in bytes
    fragment 2        |c......................|p......|
                 weight left of the row  ~  weight from it on

**The row** must divide: some known row is smaller, and it is itself one, so that neither child is empty. It is never an
end of the tablet. A tablet in which only one row is known cannot be divided, however large that row is.

**Payload.** What counts as size is what a compaction would leave: of each group the largest run of fragments that lie
side by side, as far as they lie in the tablet, without footers. Versions that pile up on each other are the business of
compaction, not of splitting; and a file that is shared with a neighbour counts only as far as it lies here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ebla.metadata.values.table_metadata import FragmentRef, TabletMetadata
from ebla.model.ranges import KeyRange
from ebla.tablet.tables.runs import runs_of

__all__ = ["BlockIndex", "choose_row", "marks_of", "payload", "payload_at_most"]


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """A reference, and the first row and number of records of each block of its file, in order."""

    ref: FragmentRef
    first_rows: Sequence[bytes]
    block_rows: Sequence[int]


def choose_row(marks: Iterable[tuple[bytes, int]], rows: KeyRange) -> bytes | None:
    """Return the row at which a tablet of these `rows` is divided most evenly, or None if none divides it.

    `marks` are rows that have records, each with how much there is from it on to the next of its source.
    """
    weights: dict[bytes, int] = {}
    before = 0  # of blocks that begin left of the tablet: what there is of them is at its beginning
    for row, weight in marks:
        if row < rows.first:
            before += weight
        elif rows.last is None or row < rows.last:
            weights[row] = weights.get(row, 0) + weight
    known = sorted(weights)
    if len(known) < 2:
        return None
    total = before + sum(weights.values())
    best, least = known[1], None
    left = before + weights[known[0]]
    for row in known[1:]:
        difference = abs(total - 2 * left)
        if least is not None and difference > least:
            break  # it only grows from here on
        if least is None or difference < least:
            best, least = row, difference
        left += weights[row]
    return best


def marks_of(index: BlockIndex, rows: KeyRange) -> Iterable[tuple[bytes, int]]:
    """Yield the first rows of the blocks that count in `rows`, with their sizes, and the last row of the file."""
    counted = index.ref.within(rows)
    if counted is None:
        return
    record_bytes = _data_bytes(index.ref) / max(1, index.ref.rows)
    starts = index.first_rows
    for at, (row, records) in enumerate(zip(starts, index.block_rows, strict=True)):
        if counted.last is not None and row >= counted.last:
            break
        ends_before = at + 1 < len(starts) and starts[at + 1] <= counted.first
        if row < counted.first and (ends_before or counted.first > rows.first):
            continue  # not in the tablet; or what there is of it begins at a row that is not known
        yield row, int(records * record_bytes) + 1
    if counted.contains(index.ref.last):
        yield index.ref.last, 0


def payload_at_most(tablet: TabletMetadata) -> int:
    """Return a size that the payload of a tablet does not exceed, without looking at its files."""
    return sum(ref.bytes for state in tablet.groups for ref in state.current)


def payload(tablet: TabletMetadata, indexes: Mapping[FragmentRef, BlockIndex]) -> int:
    """Return about how many bytes a tablet would have if it were compacted. `indexes` are those of its references."""
    total = 0
    for state in tablet.groups:
        sizes = {ref: _bytes_in(indexes[ref], tablet.range) for ref in state.current}
        total += max((sum(sizes[ref] for ref in run) for run in runs_of(state.current)), default=0)
    return total


def _bytes_in(index: BlockIndex, rows: KeyRange) -> int:
    return sum(weight for _, weight in marks_of(index, rows))


def _data_bytes(ref: FragmentRef) -> int:
    return max(0, ref.bytes - ref.tail_bytes)
