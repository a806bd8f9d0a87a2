"""The files that jobs are merging: the engine's compactor leaves them alone, for an hour at most."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from ebla.clock import Clock

__all__ = ["BUSY_SECONDS", "JobMerges"]

# A job that takes longer, or has died, must not keep the engine from its work for ever.
BUSY_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class _Busy:
    """Files of a table that a job is merging, until a moment of the monotonic clock."""

    table_id: str
    files: frozenset[str]
    until: float


class JobMerges:
    """Knows what jobs are merging. Safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lock = threading.Lock()
        """Held over a commit: whoever removes files takes it, so that none is removed while it is being adopted."""
        self._busy_lock = threading.Lock()
        # Guarded by _busy_lock.
        self._busy: dict[str, _Busy] = {}

    def begin(self, job: str, table_id: str, files: Iterable[str]) -> None:
        """Leave some files to a job; those that it had before are free."""
        held = frozenset(files)
        with self._busy_lock:
            self._busy.pop(job, None)
            if held:
                self._busy[job] = _Busy(table_id, held, self._clock.monotonic_seconds() + BUSY_SECONDS)

    def end(self, job: str) -> None:
        """Say that a job is done."""
        with self._busy_lock:
            self._busy.pop(job, None)

    def files_of(self, table_id: str) -> frozenset[str]:
        """Return the files of a table that jobs are merging."""
        with self._busy_lock:
            now = self._clock.monotonic_seconds()
            self._busy = {job: one for job, one in self._busy.items() if one.until > now}
            return frozenset().union(*(one.files for one in self._busy.values() if one.table_id == table_id))
