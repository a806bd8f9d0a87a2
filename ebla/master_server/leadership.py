"""Which master leads: the one that holds the lease. A holding of the lease is a term, and its number grows.

    follower --lease taken--> leads, in term n --lost, or released--> follower --> ... in term m > n

The lease is renewed by a thread of its own, so that nothing that takes long ends it. Who leads looks at it before every
write; that a write was sent before the lease ran out and lands after is harmless, for every write names what it was
decided on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ebla.coordination.service import CoordinationService, Lease, LeaseHeld, LeaseLost
from ebla.errors import EblaError

__all__ = ["LEASE", "Leadership"]

LEASE = "master"
TTL_SECONDS = 3.0
RENEW_SECONDS = 0.75

_log = logging.getLogger(__name__)


class Leadership:
    """Tries to lead, again and again, from `start` to `close`."""

    def __init__(
        self,
        coordination: CoordinationService,
        owner: str,
        on_gained: Callable[[Lease], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_gained` is called when a term begins, `on_lost` with the reason when it is over, both by one thread."""
        # Set once.
        self._coordination = coordination
        self._owner = owner
        self._on_gained = on_gained
        self._on_lost = on_lost
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebla-leadership", daemon=True)
        # Written by the thread.
        self._lease: Lease | None = None
        self.leader = ""
        """Who holds the lease, as far as this master knows; empty if it does not."""

    def start(self) -> None:
        """Begin to try."""
        self._thread.start()

    def resign(self) -> None:
        """Give the lease up, as after a write whose outcome is unknown: another master, or this one, begins anew."""
        lease = self._lease
        if lease is not None:
            lease.release()

    def close(self) -> None:
        """Give the lease up and try no more."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._lease is None:
                    self._try()
                else:
                    self._keep(self._lease)
            except Exception:
                _log.exception("the lease of the master could not be looked at")
            self._stopping.wait(RENEW_SECONDS)
        if self._lease is not None:
            self._on_lost("this master is closing")
            self._lease.release()

    def _try(self) -> None:
        try:
            lease = self._coordination.lease(LEASE, self._owner, TTL_SECONDS)
        except LeaseHeld as held:
            self.leader = held.owner
            return
        except EblaError as error:
            _log.warning("the lease of the master cannot be taken: %s", error)
            return
        self.leader = self._owner
        try:
            self._on_gained(lease)
        except EblaError as error:
            _log.warning("this master cannot begin a term: %s", error)
            lease.release()
            return
        self._lease = lease
        _log.info("this master leads, in term %d", lease.epoch)

    def _keep(self, lease: Lease) -> None:
        try:
            lease.renew()
        except LeaseLost:
            pass
        except EblaError as error:
            _log.warning("the lease of the master could not be renewed: %s", error)
        if not lease.is_held:
            self._lease, self.leader = None, ""
            _log.warning("this master leads no more: its lease is over")
            self._on_lost("its lease is over")
