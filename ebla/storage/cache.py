"""The block cache: decoded blocks and bloom filters of files, bounded in bytes.

Least recently used goes first, within four priority classes: what belongs wholly to one in-memory group (1), wholly to
several (2), partly to one (3), or to none (4). A lower class is emptied before a higher one is touched.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

PRIORITIES = (1, 2, 3, 4)
ON_DEMAND = 4


class BlockCache:
    """A byte-bounded cache shared by all readers of a store. Safe to use from several threads."""

    def __init__(self, bytes_max: int) -> None:
        # Set once.
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._classes: dict[int, OrderedDict[Hashable, tuple[Any, int]]] = {p: OrderedDict() for p in PRIORITIES}
        self._priority: dict[Hashable, int] = {}
        self._bytes = 0
        self._hits = 0
        self._misses = 0

    @property
    def bytes_max(self) -> int:
        """How many bytes it may hold."""
        return self._bytes_max

    def peek(self, key: Hashable) -> Any | None:
        """Return what is cached under `key`, or None, without counting it as used."""
        with self._lock:
            priority = self._priority.get(key)
            return None if priority is None else self._classes[priority][key][0]

    def get(self, key: Hashable) -> Any | None:
        """Return what is cached under `key`, or None."""
        with self._lock:
            priority = self._priority.get(key)
            if priority is None:
                self._misses += 1
                return None
            self._hits += 1
            entries = self._classes[priority]
            entries.move_to_end(key)
            return entries[key][0]

    def put(self, key: Hashable, value: Any, size_bytes: int, priority: int = ON_DEMAND) -> None:
        """Keep `value`, making room by dropping what matters less. What is larger than the cache is not kept."""
        if size_bytes > self._bytes_max:
            return
        with self._lock:
            self._remove(key)
            self._classes[priority][key] = (value, size_bytes)
            self._priority[key] = priority
            self._bytes += size_bytes
            while self._bytes > self._bytes_max:
                lowest = next(p for p in reversed(PRIORITIES) if self._classes[p])
                self._remove(next(iter(self._classes[lowest])))

    def drop(self, keys: list[Hashable]) -> None:
        """Forget these keys: their file is gone."""
        with self._lock:
            for key in keys:
                self._remove(key)

    def _remove(self, key: Hashable) -> None:
        priority = self._priority.pop(key, None)
        if priority is not None:
            self._bytes -= self._classes[priority].pop(key)[1]

    def stats(self) -> dict[str, int]:
        """Return bytes and entries held, hits and misses."""
        with self._lock:
            return {
                "bytes": self._bytes,
                "bytes_max": self._bytes_max,
                "entries": len(self._priority),
                "hits": self._hits,
                "misses": self._misses,
            }
