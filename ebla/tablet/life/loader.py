"""Loading tablets: the driver of their life (tablet_stages.py), which decides; here it is carried out.

    open, create     config and log first, for all; fragments when somebody reads the tablet
    read             a tablet that is not loaded is checked and loaded by its first reader, the others wait
    idle             what nobody has read for `tablet_idle_seconds` lets go of footers and blocks, and of memory

Whole tables are taken offline, and brought back, by the unloader (unloader.py).

**Safe load.** Before a tablet is read (`metadata.check.check_load`): its range fits those of its neighbours, every
reference has rows of it, every file is there and has the size it was written with. What does not fit fails the reads of
that tablet, and says what it is and what can be done; the other tablets are read. If it is METADATA that is wrong, the
table takes no change until it is repaired.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from ebla.clock import Clock
from ebla.errors import Corruption, EblaError, MissingFile, TableUnloaded, Unavailable
from ebla.metadata.values.check import FileFacts, Finding, check_load
from ebla.metadata.values.serving import UNLOADED
from ebla.metadata.values.table_metadata import FragmentRef, TableMetadata, TabletMetadata
from ebla.model.ranges import KeyRange
from ebla.service.listener import RangeChanged, TabletListener
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.files import Files
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.tablet.flush.flusher import Flusher
from ebla.tablet.tables.door import Door
from ebla.tablet.tables.led_tablets import tablets_of
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.tables.tablet_stages import LifeEvent, TabletStage

__all__ = ["Loader", "is_unloaded"]


class Loader(TabletListener):
    """Loads tablets of open tables, and lets go of what is idle. Safe to use from several threads."""

    def __init__(
        self,
        tables: OpenTables,
        files: Files,
        fragments: OpenFragments,
        cache: BlockCache,
        flusher: Flusher,
        clock: Clock,
        idle_seconds: float,
    ) -> None:
        # Set once.
        self._tables = tables
        self._files = files
        self._fragments = fragments
        self._cache = cache
        self._flusher = flusher
        self._clock = clock
        self._idle_seconds = idle_seconds
        tables.events.add(self)
        # Used by whoever drops what is idle: the worker's thread, or a test.
        self._swept_at = clock.monotonic_seconds()

    # --- tables come ---

    def opened(self, table: TableState) -> None:
        """Note that the METADATA of a table was read; its log may have to be replayed yet."""
        table.door = Door(table.name, TabletStage.UNKNOWN, is_watched=table.led is not None)
        table.door.move_all(LifeEvent.LOAD)
        table.door.move_all(LifeEvent.CONFIG_LOADED)

    def ready(self, table: TableState) -> None:
        """Note that the log is replayed, and serve the table unless METADATA says that it is unloaded.

        METADATA names the log of this server before the first write to a tablet is acknowledged: that is the saving of
        the config, and nobody has to wait for it here.
        """
        # Of tablets that several servers share out, those that are unloaded are led by nobody.
        if table.led is None and is_unloaded(table.view.metadata):
            table.is_offline = True
            table.door.move_all(LifeEvent.FAILED, "load it with load_table")
            return
        if table.damage:
            table.is_offline = True
        self._begin(table)

    def _begin(self, table: TableState) -> None:
        table.door.move_all(LifeEvent.LOG_REPLAYED)
        table.door.move_all(LifeEvent.CONFIG_SAVED)
        table.door.begin(tablet.id for tablet in table.view.metadata.tablets)

    # --- requests ---

    def admit(self, table: TableState, rows: KeyRange) -> None:
        """Return when the tablets of `rows` can be read, loading them if need be; raises if they cannot."""
        if not table.door.is_open:
            self._admit(table, table.view.metadata.overlapping(rows))

    def admit_rows(self, table: TableState, rows: pa.Array) -> None:
        """Return when the tablets of sorted rows can be read, as `admit`."""
        if not table.door.is_open:
            self._admit(table, tablets_of(rows, table.view.metadata))

    def admit_row(self, table: TableState, row: bytes) -> None:
        """Return when the tablet of a row can be read, as `admit`."""
        if not table.door.is_open:
            self._admit(table, (table.view.metadata.tablet_for(row),))

    def _admit(self, table: TableState, tablets: Sequence[TabletMetadata]) -> None:
        if table.led is not None:
            table.led.check_read(tablets)
        table.door.admit(tablets, "read", lambda one: self.load(table, one))

    def admit_write(self, table: TableState) -> None:
        """Return when a table that was offline takes writes; raises if it does not."""
        table.check_whole()
        tablets = table.view.metadata.tablets
        table.door.admit(tablets[:1], "write", lambda one: None)
        if table.is_offline:
            raise TableUnloaded(f"the table {table.name!r} is not loaded: load it with load_table, then retry")

    # --- fragments ---

    def load_all(self, table: TableState) -> None:
        """Load all tablets of a table, without waiting for somebody to read them."""
        self.admit(table, KeyRange())

    def load(self, table: TableState, tablet: TabletMetadata) -> None:
        """Check a tablet and what it refers to; raise if it cannot be read."""
        while True:
            metadata = table.view.metadata
            current = metadata.by_id(tablet.id)
            if current is None:
                return  # split or joined meanwhile, after it was loaded by somebody else
            try:
                facts = {ref.file: self._facts(ref) for state in current.groups for ref in state.fragments}
                findings = check_load(table.name, metadata, current.id, facts)
                if findings:
                    raise _refusal(metadata, findings)
            except MissingFile as error:
                if table.view.metadata is metadata:
                    raise self._fragments.explain(_missing(facts), error) from None
                continue  # it was replaced by another, and removed
            return

    def _facts(self, ref: FragmentRef) -> FileFacts:
        """Return what can be told of a file without reading it; what is wrong inside is found when it is read."""
        if self._fragments.find(ref.file, ref.txn) is not None:
            return FileFacts(ref.bytes, is_sized_only=True)
        try:
            return FileFacts(self._files.size(ref.file), is_sized_only=True)
        except FileNotFoundError:
            return FileFacts(problem="missing")
        except OSError as error:
            raise Unavailable(f"{ref.file} cannot be looked at: {error}: mend the cause, then retry") from error

    # --- idle ---

    def drop_idle(self) -> int:
        """Let go of what belongs to tablets that nobody has read for a while; return how many these are."""
        now = self._clock.monotonic_seconds()
        if not self._idle_seconds or now - self._swept_at < self._idle_seconds:
            return 0
        self._swept_at = now
        used = self._fragments.take_used()
        dropped = 0
        for table in self._tables.all():
            dropped += self._drop_idle(table, used)
        return dropped

    def _drop_idle(self, table: TableState, used: Collection[str]) -> int:
        idle, kept = [], set()
        for tablet in table.view.metadata.tablets:
            files = {ref.file for state in tablet.groups for ref in state.fragments}
            if files and files.isdisjoint(used) and table.door.state_of(tablet.id) is TabletStage.ACTIVE:
                idle.append((tablet.id, files))
            else:
                kept |= files
        # Some may have been unloaded, split or joined since they were looked at.
        moved = table.door.move([tablet for tablet, _ in idle], LifeEvent.IDLE, (TabletStage.ACTIVE,))
        there = table.view.metadata
        self._retire(table, [tablet for tablet in moved if there.by_id(tablet) is None])
        if not moved:
            return 0
        # What belongs in memory stays there, read or not.
        self.let_go({file for _, files in idle for file in files if not self._cache.is_kept(file)} - kept)
        if len(moved) == len(there.tablets) and table.memory_bytes:
            self._flusher.flush_table(table)
        return len(moved)

    def _retire(self, table: TableState, tablets: Iterable[str]) -> None:
        """Forget the states of tablets that were split or joined; those of an unloaded table have none."""
        served = (TabletStage.FRAGMENTS_LOADING, TabletStage.ACTIVE, TabletStage.READ_ONLY)
        table.door.move(tablets, LifeEvent.RETIRED, served)

    def let_go(self, files: Collection[str]) -> None:
        """Forget footers and blocks of files."""
        self._fragments.forget(files)
        self._cache.drop_files(files)

    # --- events ---

    def on_range_changed(self, event: RangeChanged) -> None:
        """Forget the state of a tablet that was split or joined."""
        table = self._tables.find(event.table)
        if table is not None:
            self._retire(table, [event.tablet])


def _refusal(metadata: TableMetadata, findings: Sequence[Finding]) -> EblaError:
    """Return the error for a tablet that is not loaded: what is wrong with it, and what can be done about that."""
    first = findings[0]
    text = first.text
    if first.repair:
        text += f"; close the store and let `repair` {first.repair}"
    elif "restore" not in text:
        text += "; `verify` tells more: if it cannot be repaired, restore METADATA from a backup"
    if len(findings) > 1:
        text += f" (and {len(findings) - 1} more: `verify` tells all)"
    if first.kind == "missing":
        return MissingFile(text)
    return Corruption(first.file or f"METADATA of table {metadata.table_id}", text)


def _missing(facts: Mapping[str, FileFacts]) -> str:
    return next(file for file, known in facts.items() if known.problem == "missing")


def is_unloaded(metadata: TableMetadata) -> bool:
    """Tell whether METADATA says that no server has the table."""
    return any(tablet.state == UNLOADED for tablet in metadata.tablets)
