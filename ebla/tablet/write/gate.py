"""The gate: while a bulk commit has reserved its txns and METADATA does not have it yet, nobody gets a later txn.

    ... 17 18 19 |T   |  20 21 ...
    in the log   |    |  not given out before METADATA has T
                 T is reserved: the gate is closed

So whoever finds T in METADATA finds everything before it in the log, and whoever finds something after T in the log
finds T in METADATA; a read at T or later waits. If it cannot be found out whether METADATA has T, the gate stays closed
and the log has failed: whoever waits gets that failure.
"""

from __future__ import annotations

import threading

from ebla.tablet.write.commit_log import CommitLog


class Gate:
    """Guarded by the commit lock, which the callers of all methods hold."""

    def __init__(self, commit_lock: threading.Lock) -> None:
        self._changed = threading.Condition(commit_lock)
        self.reserved: int | None = None
        """The first txn of a bulk commit under way."""

    def close(self, txn: int) -> None:
        """Let nobody have a txn: a bulk commit has reserved `txn` and perhaps some after it."""
        assert self.reserved is None, "one bulk commit at a time"
        self.reserved = txn

    def open(self) -> None:
        """Let everybody go on."""
        self.reserved = None
        self._changed.notify_all()

    def stay_closed(self) -> None:
        """Tell those who wait that the log has failed."""
        self._changed.notify_all()

    def wait(self, log: CommitLog, up_to_txn: int | None = None) -> None:
        """Return once no bulk commit is under way at or below `up_to_txn` (None: at all). Raises the log's failure."""
        while self.reserved is not None and (up_to_txn is None or self.reserved <= up_to_txn):
            if log.failure is not None:
                raise log.failure
            self._changed.wait()
