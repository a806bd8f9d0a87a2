"""Txns that pass without a record: everything before one is durable, and everything after it comes later.

A table gets its name at such a txn, a restored table appears at one, and history that has ended is behind one. They go
one at a time, and no bulk commit is under way meanwhile: both take the same lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ebla.clock import TxnClock
from ebla.tablet.write.commit_log import CommitLog
from ebla.tablet.write.gate import Gate
from ebla.tablet.write.open_state import OpenState
from ebla.tablet.write.sequencer import Sequencer

__all__ = ["PassingTxns"]


class PassingTxns:
    """Lets txns pass. Lock order: its own lock, then the commit lock."""

    def __init__(
        self, commit_lock: threading.Lock, gate: Gate, sequencer: Sequencer, txn_clock: TxnClock, state: OpenState
    ) -> None:
        # Set once.
        self._commit_lock = commit_lock
        self._gate = gate
        self._sequencer = sequencer
        self._txn_clock = txn_clock
        self._state = state
        self.lock = threading.Lock()
        """Held over a bulk commit, too: whoever removes files takes it, so that none goes while it is being adopted."""

    @contextmanager
    def passing(self) -> Iterator[Callable[[], int]]:
        """Hold the lock, and lend what lets a txn pass."""
        with self.lock:
            yield self.pass_txn

    def pass_txn(self) -> int:
        """Let a txn pass that no record has, and return it: all before it is durable then, and stable.

        The caller holds `lock`.
        """
        log = self._state.writable_log()
        self.wait_stable(log, self._sequencer.allocated)
        txn = 0
        try:
            with self._commit_lock:
                log = self._state.writable_log()
                before = self._sequencer.allocated
                txn = self._txn_clock.next()
                self._gate.close(txn)
            self.wait_stable(log, before)
            with self._commit_lock:
                self._sequencer.allocate(txn)
                self._sequencer.commit(txn)
                self._gate.open()
        except BaseException as error:
            if txn and self._sequencer.committed < txn <= self._sequencer.allocated:
                log.fail(error)  # interrupted: nobody may wait for a txn that will never be in the log
            self.open_again(txn)
            raise
        return txn

    def wait_stable(self, log: CommitLog, txn: int) -> None:
        """Return once all up to a txn is durable, and what it depends on is saved."""
        log.wait(txn)
        self._sequencer.wait_stable(txn)

    def open_again(self, reserved: int) -> None:
        """Open the gate if it was closed for these txns."""
        with self._commit_lock:
            if reserved and self._gate.reserved == reserved:
                self._gate.open()
