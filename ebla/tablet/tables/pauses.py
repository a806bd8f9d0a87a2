"""Pauses: tablets whose writers wait for a moment while they are cut anew, or their schema is changed.

Reads go on, and so do writes to other tablets. What touches a paused tablet and others waits as a whole.

A pause begins when all that was given to the writers is to reach fragments, and ends when METADATA has the new tablets,
or when that was given up. What waits goes on then, and is staged for the tablets that there are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.commit_log import CommitLog
from ebla.tablet.write.mutation import Mutation
from ebla.tablet.write.row_admission import RowMutation
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
        self.pausing = Timing(_log, "holding the writers of tablets, for a split, a join or the like,", slow_seconds)

    def begin(self, table: TableState, tablets: Iterable[str]) -> None:
        """Let nobody stage a commit to some tablets of a table."""
        assert not table.paused, "one pause at a time"
        table.paused = frozenset(tablets)
        self._began_seconds = now_seconds()

    def end(self, table: TableState) -> None:
        """Let everybody go on."""
        table.paused = frozenset()
        if self._began_seconds is not None:
            self._seconds = now_seconds() - self._began_seconds
            self._began_seconds = None
        self._ended.notify_all()

    def count(self) -> None:
        """Count the pause that has ended; to be called without the commit lock."""
        seconds, self._seconds = self._seconds, None
        if seconds is not None:
            self.pausing.add(seconds)

    def wait(self, table: TableState, mutation: Mutation | RowMutation, log: CommitLog) -> None:
        """Return once no tablet that a mutation touches is paused. Raises the log's failure."""
        while table.is_paused_for(mutation):
            if log.failure is not None:
                raise log.failure
            self._ended.wait(LOOK_SECONDS)
