"""A table as a tablet server holds it: its view, and what is needed to stage a commit in it.

Staging makes a commit's records part of memory and gives each tablet they touch its next log index. It happens under
the store's commit lock, in txn order, and does as little as possible there.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from ebla.clock import microseconds_of
from ebla.errors import SchemaError, TableDamaged
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.model.keys import KeyCodec
from ebla.model.order import lower_bound
from ebla.model.projection import Projection
from ebla.settings import Settings
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.storage.log.log_entry import ErasureHeader, Reply, Slice, TabletPosition
from ebla.storage.merge.erasure_cover import TXN_MAX
from ebla.storage.merge.memory import MemoryErasure
from ebla.storage.record.records import Block
from ebla.storage.record.row_block import RowBlock
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.row_cache import CachedRows, RowCache
from ebla.tablet.read.view import TableView
from ebla.tablet.tables.door import Door
from ebla.tablet.tables.events import Events
from ebla.tablet.tables.led_tablets import LedTablets
from ebla.tablet.tables.schema_parts import SchemaParts
from ebla.tablet.write.admission import Admission
from ebla.tablet.write.commit_log import SMALL_BLOCK_ROWS, Combined, Commit, StagedBlock
from ebla.tablet.write.mutation import Mutation
from ebla.tablet.write.row_admission import RowAdmission, RowMutation
from ebla.tablet.write.turns import Turns

_log = logging.getLogger(__name__)

# Scans that began under a former schema go on for so many changes of it.
FORMER_MAX = 4
# So many blocks may gather in a group before small ones are combined, even if nobody reads.
BLOCKS_GATHERED_MAX = 64


class TableState:
    """One open table. Fields that change are guarded by the store's commit lock; `view` may be read by anybody."""

    def __init__(
        self,
        name: str,
        metadata: TableMetadata,
        fragments: OpenFragments,
        cached: CachedRows,
        settings: Settings,
        damage: str = "",
        events: Events | None = None,
        led: LedTablets | None = None,
    ) -> None:
        """`events` are told of every change of METADATA, if somebody listens to the table; `led`: None for all."""
        # Set once.
        self.id = metadata.table_id
        self.damage = damage  # what is wrong with METADATA: nothing is changed then, and only whole tablets are read
        self.door = Door(name)
        self.turns = Turns()
        self.salt = zlib.crc32(self.id.encode()) * 0x9E3779B1
        self._parts_of = partial(SchemaParts, fragments=fragments, cached=cached, settings=settings)
        self._events = events
        self.led = led  # which tablets are led here; None: all of them
        # Replaced as a whole, under the commit lock; read without it.
        self.view = TableView(metadata, {}, self._parts_of(metadata.schema))
        self.is_dropped = False
        self.is_in_doubt = False  # its drop or renaming had an unknown outcome: see table_lifecycle.py
        self.is_unsettled = False  # a split or join had an unknown outcome: see recutter.py
        self.is_schema_in_doubt = False  # a change of its schema had an unknown outcome: see alterer.py
        # Guarded by the commit lock; the name is read without it.
        self.name = name
        self.flushing: dict[int, frozenset[int]] = {}
        # The newest commit that may have changed any row: a range erasure, a bulk commit, all that a clone began with.
        self.last_wide_txn = metadata.newest_txn
        self.combining_wanted: set[int] = set()
        self.is_paused = False  # writers wait: see pauses.py
        self.former: dict[int, TableView] = {}  # the last views of former schemas, by version: for scans under way
        self.invalid_schema: SchemaError | None = None  # what METADATA says and cannot be, so that it is ignored
        self.is_offline = False  # it was unloaded, or is damaged, and takes no writes: see loader.py
        self._indexes: dict[str, int] = {}
        self._log_taken: set[str] = set()

    def check_whole(self) -> None:
        """Raise `TableDamaged` if METADATA of the table is damaged, so that nothing of it can be changed."""
        if self.damage:
            raise TableDamaged(
                f"the table {self.name!r} takes no change, since {self.damage}; its whole tablets can be read: close "
                "the store, `ebla.verify` tells what is wrong and `ebla.repair` mends what can be"
            )

    def own_tablets(self, metadata: TableMetadata) -> Sequence[TabletMetadata]:
        """Return the tablets that are led here."""
        if self.led is None:
            return metadata.tablets
        ids = self.led.ids
        return [tablet for tablet in metadata.tablets if tablet.id in ids]

    @property
    def codec(self) -> KeyCodec:
        """How keys are encoded, by the schema in force. So are the others below."""
        return self.view.parts.codec

    @property
    def admission(self) -> Admission:
        """How requests become mutations."""
        return self.view.parts.admission

    @property
    def row_admission(self) -> RowAdmission:
        """How single rows become mutations."""
        return self.view.parts.row_admission

    @property
    def reader(self) -> Reader:
        """The read path."""
        return self.view.parts.reader

    @property
    def row_cache(self) -> RowCache:
        """Rows that were asked for again and again."""
        return self.view.parts.row_cache

    def projection(self, columns: Sequence[str] | None, versions: int = 1) -> Projection:
        """Return the projection on these columns, remembered if it is a common one."""
        return self.view.parts.projection(columns, versions)

    # --- writing, under the commit lock ---

    def stage(
        self, mutation: Mutation | RowMutation, txn: int, reply: Reply | None = None
    ) -> tuple[Commit, list[TabletMetadata]]:
        """Add a mutation to memory at `txn`. Returns what goes to the log, and the tablets it is the first to touch."""
        if isinstance(mutation, RowMutation):
            return self._stage_row(mutation, txn, reply)
        view = self.view
        metadata = view.metadata
        touched: dict[str, TabletMetadata] = {}
        indexes: dict[str, int] = {}

        def index_of(tablet: TabletMetadata) -> int:
            if tablet.id not in indexes:
                indexes[tablet.id] = self._indexes[tablet.id] = self._indexes.get(tablet.id, 0) + 1
                touched[tablet.id] = tablet
            return indexes[tablet.id]

        memory = dict(view.memory)
        staged: list[StagedBlock] = []
        for group_id, part in mutation.groups.items():
            records = part.stamped(microseconds_of(txn))
            cuts = divide(records.column("_row"), metadata)
            own = {tablet.id: index_of(tablet) for tablet, _, _ in cuts}
            block = Block(records, txn=txn, unique=part.unique, indexes=own, bytes_known=part.size_bytes)
            slices = tuple(Slice(t.id, t.epoch, own[t.id], begin, end) for t, begin, end in cuts)
            group = metadata.schema.group_by_id[group_id]
            staged.append(StagedBlock(self.id, group, metadata.schema.version, block, part.schema_bytes, slices))
            memory[group_id] = view.memory_of(group_id).with_block(block)
            if len(block) <= SMALL_BLOCK_ROWS and memory[group_id].count >= BLOCKS_GATHERED_MAX:
                self.combining_wanted.add(group_id)
        erasures: list[ErasureHeader] = []
        for key_range in mutation.ranges:
            tablets = metadata.overlapping(key_range)
            positions = tuple(TabletPosition(t.id, t.epoch, index_of(t)) for t in tablets)
            erasures.append(ErasureHeader(self.id, key_range.first, key_range.last, txn, positions))
            erased = MemoryErasure(key_range.first, key_range.last, txn, {p.tablet: p.index for p in positions})
            for group in metadata.schema.groups:
                memory[group.id] = memory.get(group.id, view.memory_of(group.id)).with_erasure(erased)
            self.last_wide_txn = txn
        self.view = TableView(metadata, memory, self.view.parts)
        first_touched = [t for t in touched.values() if t.id not in self._log_taken]
        self._log_taken.update(t.id for t in first_touched)
        return Commit(txn, mutation.bytes, tuple(staged), tuple(erasures), reply), first_touched

    def _stage_row(self, mutation: RowMutation, txn: int, reply: Reply | None) -> tuple[Commit, list[TabletMetadata]]:
        metadata = self.view.metadata
        tablet = metadata.tablets[0] if len(metadata.tablets) == 1 else metadata.tablet_for(mutation.row)
        index = self._indexes[tablet.id] = self._indexes.get(tablet.id, 0) + 1
        own = {tablet.id: index}
        slices = (Slice(tablet.id, tablet.epoch, index, 0, 1),)
        memory = dict(self.view.memory)
        staged: list[StagedBlock] = []
        for group, plan, values, size_bytes in mutation.parts:
            block = RowBlock(plan, mutation.row, values, txn=txn, size_bytes=size_bytes, indexes=own)
            staged.append(StagedBlock(self.id, group, metadata.schema.version, block, plan.schema_bytes, slices))
            held = memory[group.id] = self.view.memory_of(group.id).with_block(block)
            if held.count >= BLOCKS_GATHERED_MAX:
                self.combining_wanted.add(group.id)
        self.view = TableView(metadata, memory, self.view.parts)
        first_touched = [] if tablet.id in self._log_taken else [tablet]
        self._log_taken.add(tablet.id)
        return Commit(txn, mutation.bytes, tuple(staged), (), reply), first_touched

    def slices_of(self, block: Block) -> tuple[Slice, ...]:
        """Divide a combined block among the tablets again."""
        cuts = divide(block.rows, self.view.metadata)
        return tuple(Slice(t.id, t.epoch, block.indexes[t.id], begin, end) for t, begin, end in cuts)

    def combined(self, group: int, combined: Combined) -> None:
        """Put a combined block in the place of the small ones that it is made of."""
        memory = self.view.memory_of(group).replace([staged.block for staged in combined.old], combined.new.block)
        self.view = replace(self.view, memory={**self.view.memory, group: memory})

    def restore(self, group: int, block: Block | None, erasure: MemoryErasure | None = None) -> None:
        """Add what a replay of the log found."""
        memory = self.view.memory_of(group)
        if block is not None:
            memory = memory.with_block(block)
        if erasure is not None:
            memory = memory.with_erasure(erasure)
        self.view = replace(self.view, memory={**self.view.memory, group: memory})

    def index_of(self, tablet: str) -> int:
        """Return the newest log index of a tablet."""
        return self._indexes.get(tablet, 0)

    def saw_index(self, tablet: str, index: int) -> None:
        """Note a log index found in a replay: later ones are greater."""
        self._indexes[tablet] = max(index, self._indexes.get(tablet, 0))

    def use_metadata(self, metadata: TableMetadata, log: str | None) -> None:
        """Take over newer METADATA; an older one that arrives late is ignored."""
        if metadata.sequence >= self.view.metadata.sequence:
            before = self.view.metadata
            if metadata.schema.version == self.view.parts.version:
                self.view = replace(self.view, metadata=metadata)
                self.invalid_schema = None  # what METADATA says now is what is in force
            elif not self._use_schema(metadata):
                return
            if self.led is not None:
                self.led.use(metadata)
            if self._events is not None:
                self._events.note(before, metadata)
            if log is not None:
                self._log_taken.update(tablet.id for tablet in metadata.tablets if tablet.log == log)
            for tablet in metadata.tablets:
                for state in tablet.groups:
                    self.saw_index(tablet.id, state.flushed)

    def forget_logs(self) -> None:
        """Forget which tablets METADATA has in the log of this server: it has none any more."""
        self._log_taken.clear()

    def holds_unflushed(self, tablets: frozenset[str]) -> bool:
        """Tell whether something of these tablets is in memory and in the log only."""
        held = [block.indexes for memory in self.view.memory.values() for block in memory.blocks]
        held += [erasure.indexes for memory in self.view.memory.values() for erasure in memory.erasures]
        return any(not tablets.isdisjoint(indexes) for indexes in held)

    def _use_schema(self, metadata: TableMetadata) -> bool:
        """Take over METADATA with another schema; False if that cannot be, and the last one stays in force."""
        try:
            metadata.schema.check()
        except SchemaError as error:
            self.invalid_schema = error
            _log.warning("table %s: schema version %s is ignored: %s", self.name, metadata.schema.version, error)
            return False
        assert not any(memory.count or memory.erasures for memory in self.view.memory.values()), (
            "a schema is changed when all is in fragments"
        )
        self.invalid_schema = None
        self.former[self.view.parts.version] = self.view
        self.view.parts.row_cache.clear(TXN_MAX)  # the view stays for a while, and nobody asks its cache any more
        while len(self.former) > FORMER_MAX:
            del self.former[min(self.former)]
        self.combining_wanted.clear()
        self.view = TableView(metadata, {}, self._parts_of(metadata.schema))
        return True

    def view_under(self, schema_version: int) -> TableView | None:
        """Return the newest view under a version of the schema: that of now, or the last one before it was changed."""
        view = self.view
        return view if view.parts.version == schema_version else self.former.get(schema_version)

    @property
    def memory_bytes(self) -> int:
        """The size of everything unflushed."""
        return sum(memory.bytes for memory in self.view.memory.values())


def divide(rows: pa.Array, metadata: TableMetadata) -> list[tuple[TabletMetadata, int, int]]:
    """Divide sorted rows among tablets: each tablet that has some, with begin and end of its rows."""
    if len(metadata.tablets) == 1:
        return [(metadata.tablets[0], 0, len(rows))]
    cuts = []
    begin, count = 0, len(rows)
    while begin < count:
        tablet = metadata.tablet_for(rows[begin].as_py())
        end = count if tablet.last is None else lower_bound(rows, tablet.last, begin)
        cuts.append((tablet, begin, end))
        begin = end
    return cuts
