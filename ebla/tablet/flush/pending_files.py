"""Pending files: those that this process is about to make METADATA name. No round of garbage collection takes them.

    a path is given out, or adopted  -->  pending  -->  METADATA names it, or certainly never will  -->  let go

What is read by its name, as Spark reads fragments, is held in the same way.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

__all__ = ["FRAGMENTS", "PendingFiles"]

FRAGMENTS = "fragments"


class PendingFiles:
    """The files that this process is about to make METADATA name. Safe to use from several threads."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._lock = threading.Lock()
        self._paths: Counter[str] = Counter()  # guarded by _lock; several may be about to name the same file

    def new_path(self, table_id: str) -> str:
        """Return the path of a fragment that does not exist yet; from now on it is about to be named."""
        path = f"{FRAGMENTS}/{table_id}/{self._new_id()}.parquet"
        with self._lock:
            self._paths[path] += 1
        return path

    def adopt(self, paths: Iterable[str]) -> None:
        """Take in files that somebody else made and that are about to be named now, each once."""
        with self._lock:
            self._paths.update(paths)

    def remove(self, path: str, delete: Callable[[str], None]) -> bool:
        """Delete a file unless it is about to be named after all; tell whether it was deleted."""
        with self._lock:
            if path in self._paths:
                return False
            delete(path)
            return True

    def let_go(self, paths: Iterable[str]) -> None:
        """Say that METADATA names these files now, or certainly never will."""
        with self._lock:
            for path in paths:
                self._paths[path] -= 1
                if self._paths[path] <= 0:
                    del self._paths[path]

    def paths(self) -> frozenset[str]:
        """Return the files that are about to be named."""
        with self._lock:
            return frozenset(self._paths)
