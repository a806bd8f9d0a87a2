"""Owning a store whose coordination service is shared by several hosts: a lease, kept as long as the store is open.

    take --> renew every third of its time --> release
               `-- lost, or not renewed in time: the store accepts no more writes

The lock file of the directory says who owns it among the processes of a host. The lease says so among hosts that see
the same directory. Whoever is about to acknowledge a commit asks `check` first, after the sync: by its own steady
clock, so that a process that was stopped for long notices before it says anything wrong.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService, Lease, LeaseHeld, LeaseLost
from ebla.errors import EblaError, LogFailed, StoreLocked

OWNER_NODE = "owner"

_log = logging.getLogger(__name__)


class Ownership:
    """The lease of the store at `root`, held from the construction until `release`."""

    def __init__(self, coordination: CoordinationService, clock: Clock, root: Path, ttl_seconds: float) -> None:
        """Take the lease; `StoreLocked` if another host has it.

        The caller holds the lock of the directory. So whoever had the lease from this host before does not run any
        more, and it can be taken over at once.
        """
        owner = f"{socket.gethostname()}:{root.resolve()}"
        self._ttl_seconds = ttl_seconds
        self._on_lost: Callable[[EblaError], None] = lambda error: None
        self._stopped = threading.Event()
        self._lease = self._take(coordination, clock, owner)
        self._thread = threading.Thread(target=self._run, name="ebla-owner", daemon=True)
        self._thread.start()

    def _take(self, coordination: CoordinationService, clock: Clock, owner: str) -> Lease:
        try:
            return coordination.lease(OWNER_NODE, owner, self._ttl_seconds)
        except LeaseHeld as error:
            reason = f"the store is open for writing by {error.owner}: close it there, or wait until its lease runs out"
            raise StoreLocked(reason) from error

    @property
    def epoch(self) -> int:
        """The number of this holding of the lease."""
        return self._lease.epoch

    def on_lost(self, callback: Callable[[EblaError], None]) -> None:
        """Have `callback` called, from another thread, when the lease is lost."""
        self._on_lost = callback

    def check(self) -> None:
        """Raise `LogFailed` if the lease ran out or was lost."""
        if not self._lease.is_held:
            raise _lost()

    def release(self) -> None:
        """Give the lease up, so that the next one need not wait."""
        self.abandon()
        with contextlib.suppress(EblaError):
            self._lease.release()

    def abandon(self) -> None:
        """Stop renewing; the lease runs out."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._ttl_seconds / 3):
            try:
                self._lease.renew()
            except LeaseLost:
                break
            except EblaError as error:
                _log.warning("the lease of the store could not be renewed, will try again: %s", error)
        if not self._stopped.is_set():
            lost = _lost()
            _log.error("%s", lost)
            self._on_lost(lost)


def _lost() -> LogFailed:
    return LogFailed("this process no longer owns the store: its lease was lost, another may have it; open it again")
