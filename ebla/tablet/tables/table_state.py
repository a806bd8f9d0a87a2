"""A table as a tablet server holds it: its view, and what is needed to stage a commit in it.

Staging makes a commit's records part of memory and gives each tablet they touch its next log index. It happens under
the store's commit lock, in txn order, and does as little as possible there.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from ebla.clock import microseconds_of
from ebla.errors import SchemaError, TableDamaged
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.model.keys import KeyCodec
from ebla.model.order import lower_bound, lower_bounds
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange
from ebla.settings import Settings
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.storage.log.log_entry import Reply
from ebla.storage.merge.erasure_cover import TXN_MAX
from ebla.storage.merge.memory import ERASURE_BYTES, Memory, MemoryErasure
from ebla.storage.record.records import Block
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.row_cache import CachedRows, RowCache
from ebla.tablet.read.view import NO_MEMORY, TableView
from ebla.tablet.tables.door import Door
from ebla.tablet.tables.events import Events
from ebla.tablet.tables.led_tablets import LedTablets
from ebla.tablet.tables.schema_parts import SchemaParts
from ebla.tablet.write.admission import Admission
from ebla.tablet.write.commit import SMALL_BLOCK_ROWS, Combined, Commit, StagedBlock, StagedPart
from ebla.tablet.write.mutation import GroupRecords, Mutation
from ebla.tablet.write.row_admission import RowAdmission, RowMutation
from ebla.tablet.write.tablet_state import TabletState
from ebla.tablet.write.turns import Turns

_log = logging.getLogger(__name__)

# How many former schemas are kept, for scans that began under them.
FORMER_MAX = 4
# How many blocks a group has at most before small ones are combined, also while there are no readers.
BLOCKS_GATHERED_MAX = 64


class TableState:
    """One open table. Fields that change are guarded by the store's commit lock; any thread may read `view`."""

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
        """`events` are told of every change of METADATA, if there are listeners; `led`: None for all."""
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
        # The largest floor of a tablet; at first that of all that a clone began with.
        self._floor_txn_max = metadata.newest_txn
        self.combining_wanted: set[tuple[str, int]] = set()  # tablets and groups with many small blocks
        self.memory_bytes = 0  # the size of everything unflushed
        self.paused: frozenset[str] = frozenset()  # tablets whose writers wait: see pauses.py
        self.former: dict[int, TableView] = {}  # the last views of former schemas, by version: for scans under way
        self.later: TableMetadata | None = None  # under a later schema, which is not in force yet: see late_schema.py
        self.invalid_schema: SchemaError | None = None  # what METADATA says and cannot be, so that it is ignored
        self.is_offline = False  # it was unloaded, or is damaged, and takes no writes: see loader.py
        self.held: frozenset[str] = frozenset()  # tablets that wait for their replicas, while others go on
        self.holds = 0  # how often a tablet was held
        self._tablets: dict[str, TabletState] = {}
        self._heirs: dict[str, TabletState] = {}

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
        version = metadata.schema.version
        memory = dict(view.memory)
        changed: dict[str, dict[int, Memory]] = {}
        parts: dict[str, StagedPart] = {}
        first_touched: list[TabletMetadata] = []

        def part_of(tablet: TabletMetadata) -> StagedPart:
            part = parts.get(tablet.id)
            if part is None:
                state = self.tablet(tablet.id)
                state.allocate(txn)
                if not state.is_log_taken:
                    state.is_log_taken = True
                    first_touched.append(tablet)
                part = parts[tablet.id] = StagedPart(self.id, tablet.id, state, tablet.epoch, version, state.index)
                if reply is not None:
                    part.replies.append(reply)
                    state.remember((reply,))
                memory[tablet.id] = changed[tablet.id] = dict(memory.get(tablet.id, {}))
            return part

        cuts_of_all = divide(mutation.rows, metadata)
        for group_id, given in mutation.groups.items():
            records = given.stamped(microseconds_of(txn))
            group = metadata.schema.group_by_id[group_id]
            rows = records.num_rows
            # Columns of all rows: a group has each of them once at most.
            is_of_all = not group.is_cells and given.unique and rows == len(mutation.rows)
            for tablet, begin, end in cuts_of_all if is_of_all else divide(records.column("_row"), metadata):
                part = part_of(tablet)
                is_whole = end - begin == rows
                block = Block(
                    records if is_whole else records.slice(begin, end - begin),
                    txn=txn,
                    unique=given.unique,
                    index=part.index,
                    bytes_known=given.size_bytes * end // rows - given.size_bytes * begin // rows,
                )
                whole = None if is_whole else records
                part.blocks.append(StagedBlock(group, block, given.schema_bytes, whole, begin))
                own = changed[tablet.id]
                held = own[group_id] = own.get(group_id, NO_MEMORY).with_block(block)
                self.memory_bytes += block.bytes
                if len(block) <= SMALL_BLOCK_ROWS and held.count >= BLOCKS_GATHERED_MAX:
                    self.combining_wanted.add((tablet.id, group_id))
        for key_range in mutation.ranges:
            for tablet in metadata.overlapping(key_range):
                part = part_of(tablet)
                erasure = MemoryErasure(key_range.first, key_range.last, txn, part.index)
                part.erasures.append(erasure)
                own = changed[tablet.id]
                for group in metadata.schema.groups:
                    own[group.id] = own.get(group.id, NO_MEMORY).with_erasure(erasure)
                    self.memory_bytes += ERASURE_BYTES
                self.raise_floor(txn, [tablet.id])
        self.view = TableView(metadata, memory, view.parts)
        return Commit(txn, mutation.bytes, tuple(parts.values())), first_touched

    def _stage_row(self, mutation: RowMutation, txn: int, reply: Reply | None) -> tuple[Commit, list[TabletMetadata]]:
        view = self.view
        metadata = view.metadata
        tablet = metadata.tablets[0] if len(metadata.tablets) == 1 else metadata.tablet_for(mutation.row)
        state = self.tablet(tablet.id)
        index = state.allocate(txn)
        part = StagedPart(self.id, tablet.id, state, tablet.epoch, metadata.schema.version, index)
        if reply is not None:
            part.replies.append(reply)
            state.remember((reply,))
        own = dict(view.memory.get(tablet.id, {}))
        for group, plan, values, size_bytes in mutation.parts:
            block = plan.block(mutation.row, values, txn, size_bytes, index)
            part.blocks.append(StagedBlock(group, block, plan.schema_bytes))
            held = own[group.id] = own.get(group.id, NO_MEMORY).with_block(block)
            self.memory_bytes += block.bytes
            if held.count >= BLOCKS_GATHERED_MAX:
                self.combining_wanted.add((tablet.id, group.id))
        memory = dict(view.memory)
        memory[tablet.id] = own
        self.view = TableView(metadata, memory, view.parts)
        first_touched = [] if state.is_log_taken else [tablet]
        state.is_log_taken = True
        return Commit(txn, mutation.bytes, (part,)), first_touched

    def combined(self, one: Combined) -> None:
        """Put a combined block in the place of the small ones that it is made of."""
        memory = self.view.memory_of(one.tablet, one.group)
        self.set_memory(one.tablet, one.group, memory.replace(one.old, one.new))

    def restore(self, tablet: str, group: int, block: Block | None, erasure: MemoryErasure | None = None) -> None:
        """Add what a replay of the log found."""
        memory = self.view.memory_of(tablet, group)
        if block is not None:
            memory = memory.with_block(block)
        if erasure is not None:
            memory = memory.with_erasure(erasure)
        self.set_memory(tablet, group, memory)

    def set_memory(self, tablet: str, group: int, memory: Memory) -> None:
        """Replace what a group of a tablet holds in memory."""
        view = self.view
        self.memory_bytes += memory.bytes - view.memory_of(tablet, group).bytes
        own = {**view.memory.get(tablet, {}), group: memory}
        if memory.is_empty:
            del own[group]
        changed = {**view.memory, tablet: own}
        if not own:
            del changed[tablet]
        self.view = TableView(view.metadata, changed, view.parts)

    def tablet(self, tablet: str) -> TabletState:
        """Return what is kept of a tablet."""
        state = self._tablets.get(tablet)
        if state is None:
            # One that came by a split or join has rows of others: what is not known of any is not known of it.
            state = self._heirs.pop(tablet, None) or TabletState(self._floor_txn_max)
            self._tablets[tablet] = state
        return state

    def states(self) -> list[tuple[TabletMetadata, TabletState]]:
        """Return what is kept of every tablet of which something is."""
        tablets = self.view.metadata.tablets
        return [(tablet, self._tablets[tablet.id]) for tablet in tablets if tablet.id in self._tablets]

    def expect(self, heirs: Mapping[str, TabletState]) -> None:
        """Have states ready for tablets that are about to come by a split or join; those of an earlier try go."""
        self._heirs = dict(heirs)

    # --- conflicts and pauses, under the commit lock ---

    def raise_floor(self, txn: int, tablets: Iterable[str] | None = None) -> None:
        """Note that any row of some tablets, or of all, may have changed at `txn`: a range was erased, a job loaded."""
        self._floor_txn_max = max(self._floor_txn_max, txn)
        for state in self._tablets.values() if tablets is None else map(self.tablet, tablets):
            state.floor_txn = max(state.floor_txn, txn)

    def stretches_changed_since(self, rows: pa.Array, txn: int) -> list[tuple[int, int]]:
        """Return which of some sorted rows, by begin and end, are of tablets whose rows may all have changed since."""
        if self._floor_txn_max <= txn:
            return []
        cuts = divide(rows, self.view.metadata)
        return [(begin, end) for tablet, begin, end in cuts if self.tablet(tablet.id).floor_txn > txn]

    def may_have_changed_since(self, row: bytes, txn: int) -> bool:
        """Tell whether a row is of a tablet whose rows may all have changed since."""
        return self._floor_txn_max > txn and self.tablet(self.view.metadata.tablet_for(row).id).floor_txn > txn

    def touched(self, mutation: Mutation | RowMutation) -> list[TabletMetadata]:
        """Return the tablets that a mutation touches."""
        metadata = self.view.metadata
        if isinstance(mutation, RowMutation):
            return [metadata.tablet_for(mutation.row)]
        found = {tablet.id: tablet for tablet, _, _ in divide(mutation.rows, metadata)}
        found.update((tablet.id, tablet) for one in mutation.ranges for tablet in metadata.overlapping(one))
        return [*found.values()]

    def answered(self, request: tuple[str, int], tablets: Iterable[TabletMetadata]) -> dict[str, int]:
        """Return which of some tablets have carried out a request before, and the txns they answered with."""
        found = {tablet.id: self.tablet(tablet.id).answered(request) for tablet in tablets}
        return {tablet: txn for tablet, txn in found.items() if txn is not None}

    def without(self, mutation: Mutation, tablets: Collection[str]) -> Mutation:
        """Return what a mutation has for other tablets than these."""
        metadata = self.view.metadata
        groups = {}
        for group_id, given in mutation.groups.items():
            cuts = divide(given.records.column("_row"), metadata)
            kept = [given.records.slice(begin, end - begin) for tablet, begin, end in cuts if tablet.id not in tablets]
            if kept:
                records = pa.concat_batches(kept)
                groups[group_id] = GroupRecords.of(
                    records, unique=given.unique, stamps_at_commit=given.stamps_at_commit
                )
        cuts = divide(mutation.rows, metadata)
        rows = [mutation.rows.slice(begin, end - begin) for tablet, begin, end in cuts if tablet.id not in tablets]
        ranges = [
            both
            for one in mutation.ranges
            for tablet in metadata.overlapping(one)
            if tablet.id not in tablets and (both := one.intersect(tablet.range)) is not None
        ]
        left = pa.concat_arrays(rows) if rows else mutation.rows.slice(0, 0)
        return Mutation(left, groups, tuple(ranges), mutation.schema_version)

    def is_paused_for(self, mutation: Mutation | RowMutation) -> bool:
        """Tell whether a mutation has to wait, since a tablet that it touches is paused."""
        return bool(self.paused) and any(tablet.id in self.paused for tablet in self.touched(mutation))

    @property
    def is_in_question(self) -> bool:
        """Whether it has to be found out first which tablets there are, or under which schema.

        While that is being saved, it is about paused tablets alone.
        """
        return (self.is_unsettled or self.is_schema_in_doubt or self.later is not None) and not self.paused

    # --- leading, under the commit lock ---

    def hold(self, tablet: str) -> None:
        """Note that commits of a tablet are not committed though later ones are: it is read before them."""
        self.held |= {tablet}
        self.holds += 1

    def safe_txn(self, tablets: Iterable[str]) -> int | None:
        """Return the largest txn at which tablets can be read if some of them are held; None if none is."""
        found = [self.tablet(one).safe_txn(TXN_MAX) for one in tablets if one in self.held]
        return min(found, default=None)

    def gain(self, tablets: Collection[str], txn: int) -> None:
        """Begin to lead tablets at `txn`, the newest allocated one: what was known of their rows does not count."""
        self.raise_floor(txn, tablets)
        self._drop_cached(tablets, txn)

    def lose(self, tablets: Collection[str], txn: int) -> None:
        """Answer nothing from memory for tablets that are led here no more; `txn` was the newest allocated one.

        What was read until then is not cached any more, by readers that are late.
        """
        assert not self.holds_unflushed(tablets), "a tablet is given up when all of it is in fragments"
        self._drop_cached(tablets, txn + 1)

    def _drop_cached(self, tablets: Collection[str], txn: int) -> None:
        for tablet in self.view.metadata.tablets:
            if tablet.id in tablets:
                self.row_cache.drop_range(tablet.range, txn)

    def use_metadata(self, metadata: TableMetadata, log: str | None, *, is_flushed: bool = False) -> None:
        """Take over newer METADATA; an older one that arrives late is ignored.

        Where others may change the schema, it waits until METADATA has all that is in memory, as `is_flushed` says.
        """
        if self.led is not None and not is_flushed and self._is_later(metadata):
            if self.later is None or metadata.sequence > self.later.sequence:
                self.later = metadata
            return
        if metadata.sequence >= self.view.metadata.sequence:
            before = self.view.metadata
            if metadata.schema.version == self.view.parts.version:
                self.view = TableView(metadata, self.view.memory, self.view.parts)
                self.invalid_schema = None  # what METADATA says now is what is in force
            elif not self._use_schema(metadata, is_flushed):
                return
            if self.led is not None:
                self.led.use(metadata)
            if self._events is not None:
                self._events.note(before, metadata)
            for tablet in metadata.tablets:
                state = self.tablet(tablet.id)
                state.is_log_taken |= log is not None and tablet.log == log
                for group in tablet.groups:
                    state.saw_index(group.flushed)
            if len(self._tablets) > len(metadata.tablets):
                self._tablets = {tablet.id: self._tablets[tablet.id] for tablet in metadata.tablets}

    def forget_logs(self) -> None:
        """Forget which tablets METADATA has in the log of this server: it has none any more."""
        for state in self._tablets.values():
            state.is_log_taken = False

    def holds_unflushed(self, tablets: Iterable[str]) -> bool:
        """Tell whether something of these tablets is in memory and in the log only."""
        return not self.view.memory.keys().isdisjoint(tablets)

    def _is_later(self, metadata: TableMetadata) -> bool:
        """Tell whether METADATA has a schema that is not in force, while rows of the last one are in memory."""
        return metadata.schema.version > self.view.parts.version and bool(self.view.memory)

    def _use_schema(self, metadata: TableMetadata, is_flushed: bool) -> bool:
        """Take over METADATA with another schema; False if that cannot be, and the last one stays in force."""
        try:
            metadata.schema.check()
        except SchemaError as error:
            self.invalid_schema, self.later = error, None
            _log.warning("table %s: schema version %s is ignored: %s", self.name, metadata.schema.version, error)
            return False
        assert is_flushed or not self.view.memory, "a schema is changed when all is in fragments"
        self.invalid_schema = None
        self.former[self.view.parts.version] = self.view
        self.view.parts.row_cache.clear(TXN_MAX)  # the view stays for a while; its cache is not asked any more
        while len(self.former) > FORMER_MAX:
            del self.former[min(self.former)]
        self.combining_wanted.clear()
        self.view = TableView(metadata, {}, self._parts_of(metadata.schema))
        self.memory_bytes, self.later = 0, None
        return True

    def view_under(self, schema_version: int) -> TableView | None:
        """Return the newest view under a version of the schema: that of now, or the last one before it was changed."""
        view = self.view
        return view if view.parts.version == schema_version else self.former.get(schema_version)


def divide(rows: pa.Array, metadata: TableMetadata) -> list[tuple[TabletMetadata, int, int]]:
    """Divide sorted rows among tablets: each tablet that has some, with begin and end of its rows."""
    count = len(rows)
    if len(metadata.tablets) == 1 or not count:
        return [(metadata.tablets[0], 0, count)] if count else []
    first, last = rows[0].as_py(), rows[-1].as_py()
    tablet = metadata.tablet_for(first)
    if tablet.last is None or last < tablet.last:
        return [(tablet, 0, count)]
    tablets = metadata.overlapping(KeyRange(first, last + b"\0"))
    if len(tablets) <= count:
        ends = [*lower_bounds(rows, [one.first for one in tablets[1:]]), count]
        cuts = zip(tablets, [0, *ends], ends, strict=False)
        return [(one, begin, end) for one, begin, end in cuts if begin < end]
    found, begin = [], 0
    while begin < count:
        tablet = metadata.tablet_for(rows[begin].as_py())
        end = count if tablet.last is None else lower_bound(rows, tablet.last, begin)
        found.append((tablet, begin, end))
        begin = end
    return found
