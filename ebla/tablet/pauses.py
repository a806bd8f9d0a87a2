"""Pauses: tables whose writers wait for a moment while their tablets are cut anew. Reads go on, and so do other tables.

A pause begins when all that was given to the writers is to reach fragments, and ends when METADATA has the new tablets,
or when that was given up. What waits goes on then, and is staged for the tablets that there are.
"""

from __future__ import annotations

import threading

from ebla.tablet.commit_log import CommitLog
from ebla.tablet.table_state import TableState

# Whoever ends a pause may be interrupted before he has told those who wait: they look by themselves.
LOOK_SECONDS = 1.0


class Pauses:
    """Guarded by the commit lock, which the callers of all methods hold."""

    def __init__(self, commit_lock: threading.Lock) -> None:
        self._ended = threading.Condition(commit_lock)

    def begin(self, table: TableState) -> None:
        """Let nobody stage a commit to a table."""
        assert not table.is_paused, "one pause at a time"
        table.is_paused = True

    def end(self, table: TableState) -> None:
        """Let everybody go on."""
        table.is_paused = False
        self._ended.notify_all()

    def wait(self, table: TableState, log: CommitLog) -> None:
        """Return once a table is not paused. Raises the log's failure."""
        while table.is_paused:
            if log.failure is not None:
                raise log.failure
            self._ended.wait(LOOK_SECONDS)
