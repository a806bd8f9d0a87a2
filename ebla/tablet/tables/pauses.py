"""Pauses: tables whose writers wait for a moment while their tablets are cut anew. Reads go on, and so do other tables.

A pause begins when all that was given to the writers is to reach fragments, and ends when METADATA has the new tablets,
or when that was given up. What waits goes on then, and is staged for the tablets that there are.
"""

from __future__ import annotations

import logging
import threading

from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.commit_log import CommitLog
from ebla.timing import Timing, now_seconds

# Whoever ends a pause may be interrupted before he has told those who wait: they look by themselves.
LOOK_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Pauses:
    """Guarded by the commit lock, which the callers of all methods but `count` hold."""

    def __init__(self, commit_lock: threading.Lock, slow_seconds: float = 0.0) -> None:
        self._ended = threading.Condition(commit_lock)
        self._began_seconds: float | None = None
        self._seconds: float | None = None
        self.pausing = Timing(_log, "holding the writers of a table, for a split, a join or the like,", slow_seconds)

    def begin(self, table: TableState) -> None:
        """Let nobody stage a commit to a table."""
        assert not table.is_paused, "one pause at a time"
        table.is_paused = True
        self._began_seconds = now_seconds()

    def end(self, table: TableState) -> None:
        """Let everybody go on."""
        table.is_paused = False
        if self._began_seconds is not None:
            self._seconds = now_seconds() - self._began_seconds
            self._began_seconds = None
        self._ended.notify_all()

    def count(self) -> None:
        """Count the pause that has ended; to be called without the commit lock."""
        seconds, self._seconds = self._seconds, None
        if seconds is not None:
            self.pausing.add(seconds)

    def wait(self, table: TableState, log: CommitLog) -> None:
        """Return once a table is not paused. Raises the log's failure."""
        while table.is_paused:
            if log.failure is not None:
                raise log.failure
            self._ended.wait(LOOK_SECONDS)
