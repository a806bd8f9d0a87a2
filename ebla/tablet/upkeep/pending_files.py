"""The nursery: files that this process is about to make METADATA name, which no round of garbage collection may take.

    a path is given out, or adopted  -->  young  -->  METADATA names it, or certainly never will  -->  grown

What is read by its name, as Spark reads fragments, is held in the same way.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

__all__ = ["FRAGMENTS", "Nursery"]

FRAGMENTS = "fragments"


class Nursery:
    """The files that this process is about to make METADATA name. Safe to use from several threads."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._lock = threading.Lock()
        self._young: Counter[str] = Counter()  # guarded by _lock; several may be about to name the same file

    def new_path(self, table_id: str) -> str:
        """Return the path of a fragment that does not exist yet; from now on it is about to be named."""
        path = f"{FRAGMENTS}/{table_id}/{self._new_id()}.parquet"
        with self._lock:
            self._young[path] += 1
        return path

    def adopt(self, paths: Iterable[str]) -> None:
        """Take in files that somebody else made and that are about to be named now, each once."""
        with self._lock:
            self._young.update(paths)

    def remove(self, path: str, delete: Callable[[str], None]) -> bool:
        """Delete a file unless it is about to be named after all; tell whether it was deleted."""
        with self._lock:
            if path in self._young:
                return False
            delete(path)
            return True

    def grown(self, paths: Iterable[str]) -> None:
        """Say that METADATA names these files now, or certainly never will."""
        with self._lock:
            for path in paths:
                self._young[path] -= 1
                if self._young[path] <= 0:
                    del self._young[path]

    def young(self) -> frozenset[str]:
        """Return the files that are about to be named."""
        with self._lock:
            return frozenset(self._young)
