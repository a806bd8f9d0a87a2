"""What a reader of a table sees at one moment: METADATA, and the memory of every tablet. An immutable value.

Writers, flushes and schema changes put a new view in the place of the old one in a single assignment, so that a reader
that holds a view needs no lock and never sees half a change. What exists only beyond a reader's txn is left out when
it reads, not when it takes the view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from ebla.clock import microseconds_of
from ebla.errors import HistoryGone, UnknownTable
from ebla.metadata.values.table_metadata import FragmentRef, GroupState, TableMetadata, TabletMetadata
from ebla.model.order import lower_bound
from ebla.model.ranges import KeyRange
from ebla.model.schema import TableSchema
from ebla.storage.merge.erasure_cover import TXN_MAX, Erasure
from ebla.storage.merge.memory import Memory
from ebla.storage.record.records import Block

if TYPE_CHECKING:
    from ebla.tablet.tables.schema_parts import SchemaParts

NO_MEMORY = Memory()


class TableView(msgspec.Struct, frozen=True, eq=False):
    """A table at one moment."""

    metadata: TableMetadata
    memory: Mapping[str, Mapping[int, Memory]]  # by tablet and group; what holds nothing is not in it
    parts: SchemaParts

    @property
    def schema(self) -> TableSchema:
        """The schema in force."""
        return self.metadata.schema

    def memory_of(self, tablet: str, group: int) -> Memory:
        """Return the unflushed records of a group of a tablet."""
        own = self.memory.get(tablet)
        return NO_MEMORY if own is None else own.get(group, NO_MEMORY)

    def memories_of(self, group: int) -> dict[str, Memory]:
        """Return the unflushed records of a group by tablet, of those that have some."""
        return {tablet: own[group] for tablet, own in self.memory.items() if group in own}

    def oldest_in_memory(self, group: int | None = None) -> int | None:
        """Return the oldest txn that is in memory, of one group or of all; None if nothing is."""
        held = [one.txn_min for own in self.memory.values() for at, one in own.items() if group is None or at == group]
        return min((txn for txn in held if txn is not None), default=None)

    def tablets_in(self, key_range: KeyRange) -> Iterator[tuple[TabletMetadata, KeyRange]]:
        """Yield the tablets that a range touches, in order, each with its share of the range."""
        for tablet in self.metadata.overlapping(key_range):
            share = key_range.intersect(KeyRange(tablet.first, tablet.last))
            if share is not None:
                yield tablet, share

    def tablets_of(self, rows: pa.Array) -> Iterator[tuple[TabletMetadata, int, int]]:
        """Yield the tablets of sorted rows, each with begin and end of its own among them."""
        begin = 0
        while begin < len(rows):
            tablet = self.metadata.tablet_for(rows[begin].as_py())
            end = len(rows)
            if tablet.last is not None and rows[-1].as_py() >= tablet.last:
                end = lower_bound(rows, tablet.last, begin)
            yield tablet, begin, end
            begin = end

    def erased_at(self, tablet: TabletMetadata, group: int, row: bytes, as_of: int = TXN_MAX) -> int:
        """Return the newest txn up to `as_of` at which a range erasure covered a row; 0 if none did."""
        known: list[Erasure] = [*self.memory_of(tablet.id, group).erasures, *tablet.group(group).erasures]
        covering = [e.txn for e in known if e.txn <= as_of and KeyRange(e.first, e.last).contains(row)]
        return max(covering, default=0)

    def sources(
        self,
        tablet: TabletMetadata,
        group: int,
        share: KeyRange,
        as_of: int,
        blocks: Sequence[Block] | None = None,
    ) -> Sources:
        """Return everything that a read of one group in `share` at `as_of` has to look at.

        Of the blocks in memory, those that are given are looked at, or all. History that a read at `as_of` does not
        need is left out.
        """
        state = tablet.group(group)
        check_history(state, as_of)
        memory = self.memory_of(tablet.id, group)
        looked_at = memory.blocks if blocks is None else blocks
        blocks = tuple(b for b in looked_at if b.txn_min <= as_of and _touches(share, b.first, b.last))
        fragments = tuple(f for f in state.fragments if f.is_read_at(as_of) and f.may_have_rows_in(share))
        known: list[Erasure] = [*memory.erasures, *state.erasures]
        erasures = tuple(
            erasure
            for erasure in known
            if erasure.txn <= as_of
            and share.overlaps(KeyRange(erasure.first, erasure.last))
            and (any(b.txn_min < erasure.txn for b in blocks) or any(f.has_hidden_by(erasure.txn) for f in fragments))
        )
        return Sources(blocks, fragments, erasures)


@dataclass(frozen=True, slots=True)
class Sources:
    """The blocks in memory, the fragments and the range erasures that a read of one group has to look at."""

    blocks: tuple[Block, ...]
    fragments: tuple[FragmentRef, ...]
    erasures: tuple[Erasure, ...]

    def __len__(self) -> int:
        return len(self.blocks) + len(self.fragments)

    def spans(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the first and the last row of each block and fragment."""
        for block in self.blocks:
            yield block.first, block.last
        for fragment in self.fragments:
            yield fragment.first, fragment.last


NO_SOURCES = Sources((), (), ())


def check_history(state: GroupState, as_of: int) -> None:
    """Raise `HistoryGone` if a compaction has left out what a reader at `as_of` may need."""
    if as_of < state.floor_txn:
        raise HistoryGone(
            f"txn {as_of} ({time_text(as_of)}) is too long ago: history reaches back to txn {state.floor_txn} there "
            f"({time_text(state.floor_txn)}); read at a later one, "
            "and keep more history (history_seconds) if you need it"
        )


def check_existed(name: str, metadata: TableMetadata, as_of: int) -> None:
    """Raise `UnknownTable` if there was no such table yet at `as_of`."""
    if as_of < metadata.created_txn:
        raise UnknownTable(
            f"at txn {as_of} ({time_text(as_of)}) there was no table {name!r} yet: it was made at txn "
            f"{metadata.created_txn} ({time_text(metadata.created_txn)}); read at that or a later one"
        )


def time_text(txn: int) -> str:
    """Return the time of a txn as text."""
    return datetime.fromtimestamp(microseconds_of(txn) / 1e6, UTC).isoformat(timespec="milliseconds")


def _touches(share: KeyRange, first: bytes, last: bytes) -> bool:
    """Tell whether rows from `first` to `last`, both inclusive, may be in `share`."""
    return last >= share.first and (share.last is None or first < share.last)
