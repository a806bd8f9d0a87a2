"""The open tables of a store, the memory that they hold together, and the lock under which commits change them.

The **commit lock** orders everything that changes what readers see: commits, flushes, combined blocks, METADATA.
Whoever holds it does no I/O. Writers that must wait because memory is full wait for `room`, which belongs to the same
lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ebla.errors import EblaError, UnknownTable, shown
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.storage.merge.erasure_cover import TXN_MAX
from ebla.storage.merge.memory import Memory
from ebla.tablet.tables.events import Events
from ebla.tablet.tables.refused_tables import RefusedTables
from ebla.tablet.tables.table_state import TableState


class OpenTables:
    """Tables by name and by id. Methods that say so are called with the lock held; the others take it."""

    def __init__(self) -> None:
        # Set once.
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)
        self.events = Events()
        # Guarded by the lock.
        self.refused = RefusedTables()
        self.memory_bytes = 0
        self._by_id: dict[str, TableState] = {}
        self._by_name: dict[str, TableState] = {}  # those that have one: all but the unlinked

    def add(self, table: TableState, *, is_unlinked: bool = False) -> None:
        """Begin to serve a table. One of the same name was replaced by it, and is served no more.

        One that is unlinked has no name: it is served to those who have it, and brought back by its id.
        """
        with self.lock:
            if is_unlinked:
                self._by_id[table.id] = table
                return
            former = self._by_name.get(table.name)
            if former is not None:
                self._let_go(former)
            self._by_id[table.id] = table
            self._by_name[table.name] = table
        self.events.deliver()

    def refuse(self, name: str, table_id: str, error: EblaError) -> None:
        """Serve a table no longer, or not at all: it is there, and damaged."""
        with self.lock:
            self.refused.add(name, table_id, error)
            refused = self._by_id.pop(table_id, None)
            if refused is not None and self._by_name.get(name) is refused:
                del self._by_name[name]

    def remove(self, name: str) -> None:
        """Stop serving a table that was dropped; its memory is let go. If that is interrupted, it can be repeated."""
        with self.lock:
            self._let_go(self._by_name[name])
            del self._by_name[name]
        self.events.deliver()

    def unlink(self, table: TableState) -> None:
        """Serve a table without a name, to those who have it. If that is interrupted, it can be repeated."""
        with self.lock:
            if self._by_name.get(table.name) is table:
                del self._by_name[table.name]

    def purge(self, table_id: str) -> None:
        """Stop serving a table that is unlinked; its memory is let go."""
        with self.lock:
            table = self._by_id.get(table_id)
            if table is not None:
                self._let_go(table)
        self.events.deliver()

    def rename(self, table: TableState, name: str) -> None:
        """Serve a table under another name, or one again; no other has it. If it is interrupted, it can be repeated."""
        with self.lock:
            self._by_name[name] = table
            if table.name != name:
                if self._by_name.get(table.name) is table:
                    del self._by_name[table.name]
                table.name = table.door.table = name

    def _let_go(self, table: TableState) -> None:
        """Forget a table that was dropped. The lock is held."""
        table.is_dropped = True  # first: whatever becomes of the rest, nothing more is written to it
        table.view.parts.row_cache.clear(TXN_MAX)
        self.events.note_unloaded(table.view.metadata)
        if self._by_id.pop(table.id, None) is not None:
            self.memory_bytes -= table.memory_bytes
        self.room.notify_all()

    def use_metadata(self, table: TableState, metadata: TableMetadata, server: str) -> None:
        """Let a table take over newer METADATA, and tell those who listen."""
        with self.lock:
            table.use_metadata(metadata, server)
        self.events.deliver()

    def named(self, name: str) -> TableState:
        """Return a table; `UnknownTable` if there is none of that name, `TableDamaged` if it is refused."""
        table = self._by_name.get(name) if isinstance(name, str) else None
        if table is None:
            if isinstance(name, str):
                self.refused.check(name)
            names = sorted(self._by_name)
            listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "no tables yet"
            raise UnknownTable(f"there is no table {shown(name)}: the store has {listed}")
        return table

    def find(self, table_id: str) -> TableState | None:
        """Return a table by its id, or None if it is not open (any more)."""
        return self._by_id.get(table_id)

    def all(self) -> list[TableState]:
        """Return all tables that are served, by name; those that have none any more by the last that they had."""
        with self.lock:
            return sorted(self._by_id.values(), key=lambda table: table.name)

    def all_held(self) -> list[TableState]:
        """Return all tables that are served. The lock is held."""
        return [*self._by_id.values()]

    def listed(self) -> list[TableState]:
        """Return the tables that have a name, by name."""
        with self.lock:
            return [self._by_name[name] for name in sorted(self._by_name)]

    def forget_cached_rows(self) -> None:
        """Let no row be answered from the cache, in a forked process: its locks may be held for ever."""
        for table in [*self._by_id.values()]:
            table.view.parts.row_cache.rows.clear()

    def count_memory(self) -> None:
        """Add up what all tables hold, as after a replay."""
        with self.lock:
            self.memory_bytes = sum(table.memory_bytes for table in self._by_id.values())

    def oldest_txn(self) -> int | None:
        """Return the oldest txn that is only in the log and in memory, None if there is none. The lock is held."""
        held = [table.view.oldest_in_memory() for table in self._by_id.values()]
        held.append(self.refused.held_txn)
        return min((txn for txn in held if txn is not None), default=None)

    @contextmanager
    def counted(self, table: TableState) -> Iterator[None]:
        """Keep count of what a change does to a table's memory. The lock is held."""
        before = table.memory_bytes
        yield
        if not table.is_dropped:
            self.memory_bytes += table.memory_bytes - before

    def set_memory(self, table: TableState, tablet: str, group: int, memory: Memory) -> None:
        """Replace the memory of one group of a tablet. The lock is held."""
        with self.counted(table):
            table.set_memory(tablet, group, memory)
