"""Memory fragments: what a group of a tablet holds that is not yet in a file.

`Memory` is an immutable value; writers replace it by a new one, so a reader keeps what it has without a lock. It is a
handful of sorted blocks: small ones are combined, so that a read never has to look into hundreds.

    apply      -> with_block            one block per commit
    log worker -> replace               the small blocks of one group commit become one
    reader     -> choose_blocks, combine  many blocks become few, in the background
    flush      -> without               what is in a file goes
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ebla.storage.merge.combined import combine_runs
from ebla.storage.record.cell_block import CellBlock, combine_cells
from ebla.storage.record.records import (
    Block,
    Run,
)
from ebla.storage.record.row_block import RowBlock, RowPlan, combine_rows

COMBINE_BLOCKS_MIN = 8
# To combine blocks takes as much memory again as they do: not blocks of this size, nor more than twice that at once.
COMBINE_BYTES_MAX = 12 << 20
ERASURE_BYTES = 256

_Placed: TypeAlias = tuple[int, Block]


@dataclass(frozen=True, slots=True)
class MemoryErasure:
    """A range erasure that is only in the log so far, and its log index in the tablet that holds it."""

    first: bytes
    last: bytes | None
    txn: int
    index: int = 0


class _Index:
    """Blocks with their places, divided by whether all records of a block are of one row, by which it is then found.

    It is added to while others read it, who pass over what is beyond their own blocks.
    """

    __slots__ = ("of_one_row", "of_rows")

    def __init__(self) -> None:
        self.of_rows: list[_Placed] = []
        self.of_one_row: dict[bytes, list[_Placed]] = {}

    def add(self, place: int, block: Block) -> None:
        if block.first == block.last:
            self.of_one_row.setdefault(block.first, []).append((place, block))
        else:
            self.of_rows.append((place, block))


class Memory:
    """The unflushed records and range erasures of one group of one tablet. Blocks stand in commit order.

    To add a block must not cost more the more there are. So a value and those that come after it share one list, of
    which each has the first `count` blocks; only who adds to a value that has successors already copies the list. They
    share an index of it as well, once somebody has asked for one.
    """

    __slots__ = ("_blocks", "_index", "_shared", "bytes", "count", "erasures")

    def __init__(
        self,
        blocks: Sequence[Block] = (),
        erasures: tuple[MemoryErasure, ...] = (),
        bytes: int = 0,
    ) -> None:
        # Set once, but for what is made when somebody asks for it: `_blocks` and `_index`.
        self._shared = list(blocks)
        self._blocks: tuple[Block, ...] | None = tuple(blocks)
        self._index: _Index | None = None
        self.count = len(blocks)
        self.erasures = erasures
        self.bytes = bytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Memory):
            return NotImplemented
        return (self.blocks, self.erasures, self.bytes) == (other.blocks, other.erasures, other.bytes)

    __hash__ = None  # type: ignore[assignment]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks."""
        blocks = self._blocks
        if blocks is None:
            blocks = self._blocks = tuple(self._shared[: self.count])
        return blocks

    def blocks_around(self, row: bytes) -> Sequence[Block]:
        """Return the blocks between whose ends a row lies. Most blocks are of one row each, and cost nothing here."""
        index, count = self._index, self.count
        if index is None:
            made = _Index()
            for place, block in enumerate(self.blocks):
                made.add(place, block)
            index = self._index = made
        found = [block for place, block in index.of_rows if place < count and block.first <= row <= block.last]
        alone = index.of_one_row.get(row)
        return found if alone is None else found + [block for place, block in alone if place < count]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self.count and not self.erasures

    @property
    def txn_min(self) -> int | None:
        """The oldest txn held, or None if nothing is."""
        txns = [block.txn_min for block in self.blocks] + [erasure.txn for erasure in self.erasures]
        return min(txns, default=None)

    def with_block(self, block: Block) -> Memory:
        """Add a block. One thread at a time does that to a memory and its successors."""
        longer = Memory.__new__(Memory)
        # The empty memory lives for ever, and must not keep what comes after it.
        is_last = self.count > 0 and len(self._shared) == self.count
        longer._shared = self._shared if is_last else self._shared[: self.count]
        longer._shared.append(block)
        longer._blocks = None
        longer._index = index = self._index if is_last else None
        if index is not None:
            index.add(self.count, block)
        longer.count = self.count + 1
        longer.erasures = self.erasures
        longer.bytes = self.bytes + block.bytes
        return longer

    def with_erasure(self, erasure: MemoryErasure) -> Memory:
        """Add a range erasure."""
        return Memory(self.blocks, (*self.erasures, erasure), self.bytes + ERASURE_BYTES)

    def replace(self, old: Collection[Block], new: Block) -> Memory:
        """Put `new` in the place of the `old` blocks; unchanged if one of them is already gone."""
        gone = {id(block) for block in old}
        kept: list[Block] = []
        at: int | None = None
        for block in self.blocks:
            if id(block) in gone:
                at = len(kept) if at is None else at
            else:
                kept.append(block)
        if at is None or len(kept) + len(gone) != len(self.blocks):
            return self
        kept.insert(at, new)
        return Memory(tuple(kept), self.erasures, sum(block.bytes for block in kept) + self._erasure_bytes)

    def without(self, blocks: Collection[Block], erasures: Collection[MemoryErasure]) -> Memory:
        """Take out what has been flushed."""
        gone = {id(block) for block in blocks} | {id(erasure) for erasure in erasures}
        kept = tuple(block for block in self.blocks if id(block) not in gone)
        left = tuple(erasure for erasure in self.erasures if id(erasure) not in gone)
        return Memory(kept, left, sum(block.bytes for block in kept) + ERASURE_BYTES * len(left))

    def committed(self, txn: int) -> tuple[tuple[Block, ...], tuple[MemoryErasure, ...]]:
        """Return the blocks and erasures that are wholly at or below `txn`."""
        blocks = tuple(block for block in self.blocks if block.txn_max <= txn)
        return blocks, tuple(erasure for erasure in self.erasures if erasure.txn <= txn)

    @property
    def _erasure_bytes(self) -> int:
        return ERASURE_BYTES * len(self.erasures)


def choose_blocks(blocks: Sequence[Block]) -> list[Block]:
    """Choose blocks to combine into one: all up to the largest that is not much larger than those below it together.

    Every time, the block that a record is in becomes at least half as large again, so that a record is moved a
    logarithmic number of times. What is left is a handful of blocks, each larger than twice all smaller ones, or so
    large that it is better left alone.
    """
    if len(blocks) < COMBINE_BLOCKS_MIN:
        return []
    ascending = sorted((block for block in blocks if block.bytes < COMBINE_BYTES_MAX), key=len)
    count = total = size_bytes = 0
    for at, block in enumerate(ascending):
        size_bytes += block.bytes
        if size_bytes > 2 * COMBINE_BYTES_MAX:
            break
        if at and len(block) <= 2 * total:
            count = at + 1
        total += len(block)
    wanted = {id(block) for block in ascending[:count]}
    return [block for block in blocks if id(block) in wanted]


def combine(blocks: Sequence[Block], *, is_cells: bool) -> Block:
    """Return one block with all records of `blocks`, which are of one tablet. No version is dropped."""
    fewer = rows_combined(blocks)
    if len(fewer) == 1 < len(blocks):
        return fewer[0]
    combined = combine_runs([Run(block.records, block.txn) for block in fewer], is_cells=is_cells)
    return Block(combined.records, unique=combined.unique, index=max([block.index for block in fewer]))


def rows_combined(blocks: Sequence[Block]) -> Sequence[Block]:
    """Return the blocks with those of single rows combined, which is cheap, as far as they have the same columns."""
    single: dict[RowPlan, list[RowBlock]] = {}
    cells: list[CellBlock] = []
    larger: list[Block] = []
    for block in blocks:
        if isinstance(block, RowBlock):
            single.setdefault(block.plan, []).append(block)
        elif isinstance(block, CellBlock):
            cells.append(block)
        else:
            larger.append(block)
    if len(cells) > 1:
        larger.append(combine_cells(cells))
    else:
        larger += cells
    return [*larger, *(of[0] if len(of) == 1 else combine_rows(of) for of in single.values())]
