"""The row cache: whole rows, as the dicts that a user gets, for keys that are asked for again and again.

A cached row is what a reader at the newest commit sees. Every commit takes its rows out before it becomes visible, and
a row is put in only if nothing has touched it since it was read (`RecentRows` knows of rows, the cache itself of range
erasures), so that an entry is never stale. Looking a row up takes no lock.

What goes first is the oldest row that nobody has asked for since its turn came last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from sys import getsizeof
from typing import Any

import pyarrow as pa

from ebla.storage.order import Indices
from ebla.tablet.recent_rows import RecentRows

# The places of a row in the tables of the cache, and the key by which it is found.
ENTRY_BYTES = 300
ASKED_ONCE_MAX = 100_000


def row_bytes(row: dict[str, Any], *, names_too: bool = False) -> int:
    """Return what a row takes in memory as a dict of Python's values, which is more than their lengths.

    `names_too`: it has names that other rows do not share, as rows of cells have.
    """
    return getsizeof(row) + sum(map(_value_bytes, row.values())) + (sum(map(getsizeof, row)) if names_too else 0)


def _value_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return row_bytes(value, names_too=True)
    if isinstance(value, (list, tuple)):
        return getsizeof(value) + sum(map(_value_bytes, value))
    return getsizeof(value)


class RowCache:
    """Rows of one table, bounded in bytes."""

    def __init__(self, recent: RecentRows, bytes_max: int) -> None:
        # Set once.
        self._recent = recent
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        # Written under _lock; read without it.
        self.rows: OrderedDict[bytes, dict[str, Any]] = OrderedDict()
        # Those that were found here. Whoever finds one adds it, without the lock, perhaps when it is a row no more.
        self.used: set[bytes] = set()
        # Guarded by _lock.
        self._asked_once: set[bytes] = set()
        self._sizes: dict[bytes, int] = {}
        self._bytes = 0
        self._cleared_at = 0

    def wants(self, row: bytes) -> bool:
        """Tell whether a row that was just read is worth keeping: not before it is asked for a second time."""
        asked = self._asked_once
        if row in asked:
            return True
        with self._lock:
            if len(asked) >= ASKED_ONCE_MAX:
                asked.clear()
            asked.add(row)
        return False

    def put(self, row: bytes, value: dict[str, Any], size_bytes: int, slot: int, read_at: int) -> None:
        """Keep a row of so many bytes that was read at txn `read_at`, unless something may have changed it since."""
        size_bytes += ENTRY_BYTES + len(row)
        if size_bytes * 16 > self._bytes_max:
            return
        with self._lock:
            # Watch first, look second: a commit that is not seen here will see that the slot is watched.
            self._recent.watch(slot)
            if self._recent.newest(slot) > read_at or self._cleared_at > read_at:
                return
            if row in self.rows:
                self._remove(row)
            if len(self.used) > len(self.rows):
                self.used.intersection_update(self.rows)
            self._make_room(size_bytes)
            self.rows[row] = value
            self._sizes[row] = size_bytes
            self._bytes += size_bytes

    def _make_room(self, size_bytes: int) -> None:
        while self._bytes + size_bytes > self._bytes_max:
            oldest = next(iter(self.rows))
            if oldest in self.used:
                self.used.discard(oldest)
                self.rows.move_to_end(oldest)
            else:
                self._remove(oldest)

    def drop(self, rows: pa.Array, places: Indices) -> None:
        """Take out the rows at `places`: they are about to change."""
        keys = rows.take(pa.array(places)).to_pylist()
        with self._lock:
            for key in keys:
                if key in self.rows:
                    self._remove(key)

    def clear(self, txn: int) -> None:
        """Take out everything: at `txn` any row may change. What was read before that is not put in any more."""
        with self._lock:
            self._cleared_at = max(txn, self._cleared_at)
            self.rows.clear()
            self.used.clear()
            self._sizes.clear()
            self._bytes = 0

    def _remove(self, key: bytes) -> None:
        del self.rows[key]
        self.used.discard(key)
        self._bytes -= self._sizes.pop(key)

    def stats(self) -> dict[str, int]:
        """Return bytes and rows held."""
        with self._lock:
            return {"bytes": self._bytes, "bytes_max": self._bytes_max, "rows": len(self.rows)}
