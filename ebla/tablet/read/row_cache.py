"""The row cache: whole rows, as the dicts that a user gets, for keys that are asked for again and again.

A cached row is what a reader at the newest commit sees. Every commit takes its rows out before it becomes visible, and
a row is put in only if nothing has touched it since it was read (`RecentRows` knows of rows, the cache itself of range
erasures), so that an entry is never stale. Looking a row up takes no lock.

    get, nothing cached   read --> wants? --> put                 if no commit has touched it since
    put of one row        leave --> log --> taken_back --> put    as it was, with what the commit has set
    any other change      drop, clear
    a tablet comes, goes  drop_range                              what is known of its rows is of another time

Tables have caches of their own, which share one bound. What goes first is the oldest row of any of them that nobody has
asked for since its turn came last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from sys import getsizeof
from typing import Any

import pyarrow as pa

from ebla.model.order import Indices
from ebla.model.ranges import KeyRange
from ebla.tablet.write.recent_rows import RecentRows

__all__ = ["CachedRows", "RowCache", "row_bytes"]

# The places of a row in the tables of the cache, and the key by which it is found.
ENTRY_BYTES = 320
# Rows that were asked for once are remembered, so that those that come again are kept: so many, and no more than so
# many times as many as there is room for.
ASKED_ONCE_MAX = 100_000
ASKED_ONCE_FACTOR = 2
# Rows that are out while they are changed: as many as there are writers, but for those whose commits failed. They are
# not counted, so large ones are not kept.
LEFT_MAX = 64
LEFT_BYTES_MAX = 64 << 10


def row_bytes(row: dict[str, Any], *, names_too: bool = False, is_flat: bool = False) -> int:
    """Return what a row takes in memory as a dict of Python's values, which is more than their lengths.

    `names_too`: it has names that other rows do not share, as rows of cells have. `is_flat`: no value holds others.
    """
    values = sum(map(getsizeof if is_flat else _value_bytes, row.values()))
    return getsizeof(row) + values + (sum(map(getsizeof, row)) if names_too else 0)


def _value_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return row_bytes(value, names_too=True)
    if isinstance(value, (list, tuple)):
        return getsizeof(value) + sum(map(_value_bytes, value))
    return getsizeof(value)


class CachedRows:
    """What the row caches of all tables of a store hold together, bounded in bytes.

    An interrupt may come between any two steps: a row that has a turn and is not there, or the other way round, does no
    harm.
    """

    def __init__(self, recent: RecentRows, bytes_max: int) -> None:
        # Set once.
        self.recent = recent
        self.bytes_max = bytes_max
        self.lock = threading.Lock()  # of all these caches
        # Guarded by lock.
        self._bytes = 0
        self._turns: OrderedDict[tuple[RowCache, bytes], int] = OrderedDict()
        self._asked_once: set[int] = set()

    def add(self, cache: RowCache, row: bytes, size_bytes: int) -> None:
        """Count a row in, the last whose turn it is to go, and make room for it. The lock is held."""
        self._bytes -= self._turns.pop((cache, row), 0)
        while self._turns and self._bytes + size_bytes > self.bytes_max:
            oldest, its_row = turn = next(iter(self._turns))
            if its_row in oldest.used:
                oldest.used.discard(its_row)
                self._turns.move_to_end(turn)
            else:
                oldest.remove(its_row)
        if not self._turns:
            self._bytes = 0
        self._turns[cache, row] = size_bytes
        self._bytes += size_bytes
        if len(self._asked_once) > self._asked_once_max():
            self._asked_once.clear()

    def remove(self, cache: RowCache, row: bytes) -> int:
        """Count a row out, if it is counted; return its bytes. The lock is held."""
        size_bytes = self._turns.pop((cache, row), 0)
        self._bytes -= size_bytes
        return size_bytes

    def bytes_of(self, cache: RowCache) -> int:
        """Return how many bytes a cache holds. The lock is held."""
        return sum(size_bytes for (owner, _), size_bytes in self._turns.items() if owner is cache)

    @property
    def has_room(self) -> bool:
        """Whether half of what may be held is free. Told without the lock."""
        return self._bytes < self.bytes_max // 2

    def is_asked_again(self, cache: RowCache, row: bytes) -> bool:
        """Tell whether a row is asked for a second time, as far as that is remembered; if not, remember it."""
        asked = hash(row) ^ id(cache)  # others may share it: then one is kept a little early
        if asked in self._asked_once:
            return True
        with self.lock:
            if len(self._asked_once) >= self._asked_once_max():
                self._asked_once.clear()
            self._asked_once.add(asked)
        return False

    def _asked_once_max(self) -> int:
        """Return how many rows are remembered that were asked for once. The lock is held.

        Where there is no room for all, a row that comes again so late would be gone before it comes a third time.
        """
        if self.has_room:
            return ASKED_ONCE_MAX
        return min(ASKED_ONCE_MAX, ASKED_ONCE_FACTOR * len(self._turns) + 1)


class RowCache:
    """Rows of one table."""

    def __init__(self, all_rows: CachedRows) -> None:
        # Set once.
        self._all = all_rows
        self._lock = all_rows.lock
        # Written under _lock; read without it. A row is never changed in place, for somebody may be copying it.
        self.rows: dict[bytes, dict[str, Any]] = {}
        # Those that were found here. Whoever finds one adds it, without the lock, perhaps when it is a row no more.
        self.used: set[bytes] = set()
        # Guarded by _lock.
        self._left: dict[bytes, tuple[int, dict[str, Any]]] = {}
        self._cleared_at = 0

    def wants(self, row: bytes, *, was_read: bool) -> bool:
        """Tell whether to keep a row that was just got: if a block was decoded for it, or it is asked for again.

        Any, while half of the room is free: then it costs no other its place.
        """
        return was_read or self._all.has_room or self._all.is_asked_again(self, row)

    def put(self, row: bytes, value: dict[str, Any], size_bytes: int, slot: int, read_at: int) -> None:
        """Keep a row of so many bytes that was read at txn `read_at`, unless something may have changed it since."""
        size_bytes += ENTRY_BYTES + len(row)
        if size_bytes * 16 > self._all.bytes_max:
            return
        recent = self._all.recent
        with self._lock:
            # Watch first, look second: a commit that is not seen here will see that the slot is watched.
            recent.watch(slot)
            if recent.newest(slot) > read_at or self._cleared_at > read_at:
                return
            if row in self.rows:
                self.remove(row)
            if len(self.used) > len(self.rows):
                self.used.intersection_update(self.rows)
            self._all.add(self, row, size_bytes)
            self.rows[row] = value

    def leave(self, row: bytes, txn: int) -> None:
        """Take out a row that changes at `txn`. What it was is there for `taken_back` until the row changes again."""
        with self._lock:
            self._left.pop(row, None)
            value = self.rows.get(row)
            if value is None:
                return
            if self.remove(row) <= LEFT_BYTES_MAX:
                if len(self._left) >= LEFT_MAX:
                    self._left.clear()
                self._left[row] = txn, value

    def taken_back(self, row: bytes, txn: int) -> dict[str, Any] | None:
        """Return what a row was just before it changed at `txn`, if it was here then and has not changed since."""
        if row not in self._left:
            return None
        with self._lock:
            changed_at, value = self._left.get(row, (0, None))
            if changed_at != txn:
                return None
            del self._left[row]
            return value

    def drop(self, rows: pa.Array, places: Indices) -> None:
        """Take out the rows at `places`: they are about to change."""
        keys = rows.take(pa.array(places)).to_pylist()
        with self._lock:
            for key in keys:
                self._left.pop(key, None)
                if key in self.rows:
                    self.remove(key)

    def clear(self, txn: int) -> None:
        """Take out everything: at `txn` any row may change. What was read before that is not put in any more."""
        with self._lock:
            self._cleared_at = max(txn, self._cleared_at)
            gone, self.rows = self.rows, {}  # first: whatever becomes of the rest, they are not served
            self._left.clear()
            self.used.clear()
            for row in gone:
                self._all.remove(self, row)

    def drop_range(self, rows: KeyRange, txn: int) -> None:
        """Take out the rows of a range: at `txn` any of them may change, and none that was read before is put in."""
        with self._lock:
            self._cleared_at = max(txn, self._cleared_at)  # of other rows, too: they are read again
            for row in [row for row in self.rows if rows.contains(row)]:
                self.remove(row)
            self._left.clear()

    def reopen(self, txn: int) -> None:
        """Take rows again that were read at `txn` or later, after everything was taken out for good."""
        with self._lock:
            self._cleared_at = txn

    def remove(self, row: bytes) -> int:
        """Take out a row, if it is there; return its bytes. The lock is held."""
        self.rows.pop(row, None)
        self.used.discard(row)
        return self._all.remove(self, row)

    def stats(self) -> dict[str, int]:
        """Return bytes and rows held; the bound is that of all tables together."""
        with self._lock:
            return {"bytes": self._all.bytes_of(self), "bytes_max": self._all.bytes_max, "rows": len(self.rows)}
