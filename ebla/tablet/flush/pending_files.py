"""Pending files: those that this process is about to make METADATA name. No round of garbage collection takes them.

    a path is given out, or adopted  -->  pending  -->  METADATA names it, or certainly never will  -->  let go

What is read by its name, as Spark reads fragments, is held in the same way.

Where several servers share the files, as in a cluster, the names tell when they were given out (`file_names`), and
`oldest_microseconds` is told to whoever removes files: nothing that is older is about to be named here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ebla.clock import Clock
from ebla.errors import OutcomeUnknown
from ebla.metadata.values.file_names import file_microseconds, timed_name

__all__ = ["FRAGMENTS", "PendingFiles"]

FRAGMENTS = "fragments"


class PendingFiles:
    """The files that this process is about to make METADATA name. Safe to use from several threads."""

    def __init__(self, new_id: Callable[[], str], clock: Clock | None = None) -> None:
        """With a clock, names tell when they were given out."""
        # Set once.
        self._new_id = new_id
        self._clock = clock
        self._lock = threading.Lock()
        self._last_microseconds = 0  # guarded by _lock; names that are given out are later
        self._paths: Counter[str] = Counter()  # guarded by _lock; several may be about to name the same file

    def new_path(self, table_id: str) -> str:
        """Return the path of a fragment that does not exist yet; from now on it is about to be named."""
        with self._lock:
            if self._clock is None:
                name = f"{self._new_id()}.parquet"
            else:
                name = timed_name(self._next_microseconds(self._clock), self._new_id())
            path = f"{FRAGMENTS}/{table_id}/{name}"
            self._paths[path] += 1
        return path

    def _next_microseconds(self, clock: Clock) -> int:
        self._last_microseconds = max(clock.microseconds(), self._last_microseconds + 1)
        return self._last_microseconds

    def oldest_microseconds(self) -> int | None:
        """Return a time that all names have which are about to be named, now or later; None if names do not tell."""
        if self._clock is None:
            return None
        with self._lock:
            times = [time for path in self._paths if (time := file_microseconds(path)) is not None]
            return min([*times, self._next_microseconds(self._clock)])

    def pass_by(self, microseconds: int) -> None:
        """Give out later names only: none that is older may be named any more."""
        with self._lock:
            self._last_microseconds = max(self._last_microseconds, microseconds)

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

    @contextmanager
    def until_settled(self, paths: Iterable[str]) -> Iterator[None]:
        """Let go of files when the block ends: METADATA names them then, or certainly never will.

        If the outcome is not known, METADATA may come to name them yet: they stay for as long as this process runs.
        """
        try:
            yield
        except OutcomeUnknown:
            raise
        except Exception:
            self.let_go(paths)
            raise
        self.let_go(paths)

    def paths(self) -> frozenset[str]:
        """Return the files that are about to be named."""
        with self._lock:
            return frozenset(self._paths)
