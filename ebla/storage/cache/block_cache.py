"""The block cache: decoded blocks and bloom filters of files, bounded in bytes, the footers of open files included.

Least recently used goes first, within four priority classes: what belongs wholly to one in-memory group (1), wholly to
several (2), partly to one (3), or to none (4). A lower class is emptied before a higher one is touched.

    class 1   |#########|                 kept as long as anything of classes 2 to 4 is there to go
    class 2   |##|
    class 3   |#|
    class 4   |#####################|     everything else, on demand

Which class a file is in changes with METADATA and the schema: `set_classes` says it for all files at once, and what is
cached moves. A key is a tuple that begins with its file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, TypeAlias

Key: TypeAlias = "tuple[str, *tuple[Hashable, ...]]"

PRIORITIES = (1, 2, 3, 4)
ON_DEMAND = 4
# Whoever minds is told when so many bytes have gone to make room.
MUCH_BYTES = 16 << 20


def class_of(are_in_memory: Collection[bool]) -> int:
    """Return the class of a file from what the groups that refer to it say of being in memory, each once."""
    if not any(are_in_memory):
        return ON_DEMAND
    if not all(are_in_memory):
        return 3
    return 1 if len(are_in_memory) == 1 else 2


class BlockCache:
    """A byte-bounded cache shared by all readers of a store. Safe to use from several threads."""

    def __init__(self, bytes_max: int, on_much_gone: Callable[[], None] = lambda: None) -> None:
        """`on_much_gone` is called by whoever puts something, without the lock, when much has gone to make room."""
        # Set once.
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._on_much_gone = on_much_gone
        # How often something was read to be put in. Written under _lock; read without it.
        self.filled = 0
        # Guarded by _lock.
        self._reserved_bytes = 0
        self._gone_bytes = 0
        self._classes: dict[int, OrderedDict[Key, tuple[Any, int]]] = {p: OrderedDict() for p in PRIORITIES}
        self._priority: dict[Key, int] = {}
        self._bytes = 0
        self._bytes_of = dict.fromkeys(PRIORITIES, 0)
        self._hits = dict.fromkeys(PRIORITIES, 0)
        self._misses = dict.fromkeys(PRIORITIES, 0)
        self._class_of: dict[str, int] = {}  # of files that are not in the last class

    @property
    def bytes_max(self) -> int:
        """How many bytes it may hold."""
        return self._bytes_max

    def peek(self, key: Key) -> Any | None:
        """Return what is cached under `key`, or None, without counting it as used."""
        with self._lock:
            priority = self._priority.get(key)
            return None if priority is None else self._classes[priority][key][0]

    def get(self, key: Key, *, is_last: bool = True) -> Any | None:
        """Return what is cached under `key`, or None: a miss, if that was the last place to look."""
        with self._lock:
            priority = self._priority.get(key)
            if priority is None:
                if is_last:
                    self._misses[self._class_of.get(key[0], ON_DEMAND)] += 1
                return None
            self._hits[priority] += 1
            entries = self._classes[priority]
            entries.move_to_end(key)
            return entries[key][0]

    def put(self, key: Key, value: Any, size_bytes: int) -> None:
        """Keep `value`, making room by dropping what matters less. What is larger than the cache is not kept."""
        with self._lock:
            self.filled += 1
            if size_bytes > self.room:
                return
            self._remove(key)
            self._add(key, value, size_bytes, self._class_of.get(key[0], ON_DEMAND))
            while self._bytes > self.room:
                lowest = next(p for p in reversed(PRIORITIES) if self._classes[p])
                before = self._bytes
                self._remove(next(iter(self._classes[lowest])))
                self._gone_bytes += before - self._bytes
            is_much = self._gone_bytes >= MUCH_BYTES
            if is_much:
                self._gone_bytes = 0
        if is_much:
            self._on_much_gone()

    def reserve(self, size_bytes: int) -> None:
        """Hold so many bytes less (with a minus: more) for the sake of something that is kept elsewhere.

        At least half of them stay for what is cached. Room is made when something is put.
        """
        with self._lock:
            self._reserved_bytes += size_bytes

    @property
    def room(self) -> int:
        """How many bytes there are for what is cached."""
        return max(self._bytes_max // 2, self._bytes_max - self._reserved_bytes)

    def drop(self, keys: Collection[Key]) -> None:
        """Forget these keys: their file is gone."""
        with self._lock:
            for key in keys:
                self._remove(key)

    def drop_files(self, files: Collection[str]) -> None:
        """Forget all that is of these files, by whose names keys begin."""
        with self._lock:
            for key in [key for key in self._priority if key[0] in files]:
                self._remove(key)

    def clear(self) -> int:
        """Forget everything; return how many bytes that was."""
        with self._lock:
            held = self._bytes
            for key in list(self._priority):
                self._remove(key)
            return held

    # --- classes ---

    def is_kept(self, file: str) -> bool:
        """Tell whether a file is in one of the classes that are loaded before anybody asks."""
        return file in self._class_of

    def has_room(self, file: str, size_bytes: int) -> bool:
        """Tell whether so much of a file fits without anything going that matters as much or more."""
        with self._lock:
            own = self._class_of.get(file, ON_DEMAND)
            held = sum(self._bytes_of[priority] for priority in PRIORITIES if priority <= own)
            return held + size_bytes <= self.room

    def set_classes(self, classes: Mapping[str, int]) -> None:
        """Say in which class each file is; what is not named is in the last. What is cached moves along."""
        kept = {file: priority for file, priority in classes.items() if priority != ON_DEMAND}
        with self._lock:
            before, self._class_of = self._class_of, kept
            moved = {file for file in before.keys() | kept.keys() if before.get(file) != kept.get(file)}
            if not moved:
                return
            for key in [key for key in self._priority if key[0] in moved]:
                value, size_bytes = self._classes[self._priority[key]][key]
                self._remove(key)
                self._add(key, value, size_bytes, kept.get(key[0], ON_DEMAND))

    def _add(self, key: Key, value: Any, size_bytes: int, priority: int) -> None:
        self._classes[priority][key] = (value, size_bytes)
        self._priority[key] = priority
        self._bytes += size_bytes
        self._bytes_of[priority] += size_bytes

    def _remove(self, key: Key) -> None:
        priority = self._priority.pop(key, None)
        if priority is not None:
            size_bytes = self._classes[priority].pop(key)[1]
            self._bytes -= size_bytes
            self._bytes_of[priority] -= size_bytes

    def stats(self) -> dict[str, Any]:
        """Return bytes and entries held, hits and misses, in all and by class."""
        with self._lock:
            return {
                "bytes": self._bytes,
                "bytes_max": self._bytes_max,
                "entries": len(self._priority),
                "hits": sum(self._hits.values()),
                "misses": sum(self._misses.values()),
                "classes": {
                    str(priority): {
                        "files": sum(one == priority for one in self._class_of.values()) if priority < 4 else None,
                        "bytes": self._bytes_of[priority],
                        "entries": len(self._classes[priority]),
                        "hits": self._hits[priority],
                        "misses": self._misses[priority],
                        "hit_rate": _rate(self._hits[priority], self._misses[priority]),
                    }
                    for priority in PRIORITIES
                },
            }


def _rate(hits: int, misses: int) -> float | None:
    return round(hits / (hits + misses), 4) if hits + misses else None
